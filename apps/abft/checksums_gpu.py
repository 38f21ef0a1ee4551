"""Every checksum of a matrix on a GPU, in one pass by checksums.cuh."""

from functools import cache
from typing import Any

import numpy as np

from tsapps.apps.abft.checksums_plan import ChecksumsPlan
from tsapps.kernels.build import Cubin, architecture, build

__all__ = ["checksums", "compiled"]


def compiled(plan: ChecksumsPlan, arch: str) -> Cubin:
    """Compile the kernel of a plan for an architecture; needs no GPU."""
    return build('#include "apps/abft/checksums.cuh"\n', [plan.kernel], arch)


@cache
def _loaded(kernel: str, shared_bytes: int, plan: ChecksumsPlan, device: int) -> Any:
    import cupy

    cubin = compiled(plan, architecture(device))
    with cupy.cuda.Device(device):
        function = cupy.RawModule(path=str(cubin.path)).get_function(cubin.names[kernel])
        function.max_dynamic_shared_size_bytes = shared_bytes
    return function


# For each GPU and stream, the next unit: every launch leaves it at zero.
_next: dict[tuple[int, int], Any] = {}


def _next_unit(device: int) -> Any:
    import cupy

    place = device, cupy.cuda.get_current_stream().ptr
    if place not in _next:
        _next[place] = cupy.zeros(1, np.uint32)
    return _next[place]


def checksums(array: Any, plan: ChecksumsPlan) -> dict[str, Any]:
    """Return the checksums of a matrix, on its GPU.

    Parameters
    ----------
    array : cupy.ndarray
        C-contiguous, from a multiple of 16 bytes on.
    plan : ChecksumsPlan
        Made for it.

    Returns
    -------
    dict of str to cupy.ndarray
        By the names of `ChecksumsPlan.shapes`.
    """
    import cupy

    with array.device:
        tensors = {
            name: cupy.empty(shape, np.uint64 if name == "exact" else plan.sums) for name, shape in plan.shapes.items()
        }
        kernel = _loaded(plan.kernel, plan.shared_bytes, plan, array.device.id)
        blocks = min(plan.units, array.device.attributes["MultiProcessorCount"])
        addresses = {name: tensor.data.ptr for name, tensor in tensors.items()}
        task = plan.task(array.data.ptr, addresses, _next_unit(array.device.id).data.ptr)
        kernel((blocks,), (plan.threads,), (task[()],), shared_mem=plan.shared_bytes)
    return tensors
