"""A kernel's launch with its grid and its arguments, packed once: for what is launched again and again.

CuPy looks at every argument of every launch, some 10 µs of the host's time for a kernel of fifteen; and iterations of
Lloyd's algorithm on small data are four or five kernels in 30 µs. Where the GPU can, the blocks of one come while the
last of another are at work.
"""

import ctypes
import sys
from collections.abc import Callable, Iterable, Sequence
from ctypes import POINTER, byref, c_int, c_uint, c_void_p, pointer
from functools import cache, partial
from typing import Any

import numpy as np

from tsapps.kernels.arrays import address
from tsapps.kernels.gpu_specs import live

__all__ = ["BoundLaunch", "DependentLaunch", "ProductLaunch", "pack", "structure"]

#: Computes C ← alpha · A · B + beta · C on CuPy's current stream, of the addresses of A, B and C, and alpha and beta.
ProductLaunch = Callable[[int, int, int, float, float], None]

# What every argument begins at a multiple of: as much as any type of CUDA C++ is aligned to.
_ALIGNMENT = 16
# The compute capability from which on kernels can overlap.
_OVERLAPPING = 9.0


def pack(arguments: Iterable[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Put a kernel's arguments side by side.

    Parameters
    ----------
    arguments : iterable
        NumPy scalars and structures, by value, and arrays, by address.

    Returns
    -------
    values : numpy.ndarray of bytes
    addresses : numpy.ndarray of uintp
        Where each argument lies, in `values`, 16 bytes or more apart.
    """
    values, offsets = bytearray(), []
    for argument in arguments:
        offsets.append(len(values))
        values += argument.tobytes() if isinstance(argument, np.generic) else np.uintp(address(argument)).tobytes()
        values += bytes(-len(values) % _ALIGNMENT)
    held = np.frombuffer(values, np.uint8)
    return held, np.array(offsets, np.uintp) + np.uintp(held.ctypes.data)


def structure(dtype: np.dtype, **fields: Any) -> Any:
    """Return the argument of a kernel that takes a C++ class by value.

    Parameters
    ----------
    dtype : numpy.dtype
        The class as a NumPy structure.
    **fields
        Every field by its name, except padding: numbers, structures, arrays by address, and None as the null address.

    Raises
    ------
    TypeError
        If a field is missing or unknown.
    """
    names = {name for name in dtype.names or () if not name.startswith("padding")}
    if names != fields.keys():
        raise TypeError(f"a structure has fields {sorted(names)}, got {sorted(fields)}")
    made = np.zeros((), dtype)
    for name, value in fields.items():
        plain = isinstance(value, (int, float, np.generic))
        made[name] = value if plain else 0 if value is None else address(value)
    return made[()]


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute, whose value has 64 bytes."""

    _fields_ = (("id", c_int), ("padding", c_int), ("value", c_int), ("rest", c_int * 15))


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        *(("sizes", c_uint * 6), ("shared_mem", c_uint), ("stream", c_void_p)),
        *(("attributes", POINTER(_Attribute)), ("count", c_uint)),
    )


# CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION: the kernel may begin before the one ahead of it has ended.
_OVERLAPS = _Attribute(6, 0, 1)


@cache
def _launch_function(device: int) -> Any | None:
    """Return the driver's cuLaunchKernelEx, where kernels can overlap; of compute capability 9.0 on."""
    if float(live(device).compute_capability) < _OVERLAPPING:
        return None
    return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1").cuLaunchKernelEx


class BoundLaunch:
    """A launch that takes no more than the current stream, as often as it is called.

    Parameters
    ----------
    kernel : tsapps.kernels.jit.kernel.Kernel or cupy.cuda.Function
        One of the current device.
    grid, block : sequence of int
        Up to three numbers each.
    arguments : sequence
        As for `pack`. What they hold stays alive with this.
    shared_mem : int
        Bytes of dynamic shared memory.
    """

    def __init__(
        self, kernel: Any, grid: Sequence[int], block: Sequence[int], arguments: Sequence[Any], shared_mem: int = 0
    ) -> None:
        import cupy

        self._arguments = arguments
        values, self._addresses = pack(arguments)
        # Where each argument is, in words of eight bytes.
        self._words, self._places = values.view(np.uint64), ((self._addresses - values.ctypes.data) // 8).tolist()
        sizes = (*grid, 1, 1)[:3] + (*block, 1, 1)[:3]
        self._stream = cupy.cuda.get_current_stream
        self._launch = self._bound(kernel.ptr, (*sizes, shared_mem), int(self._addresses.ctypes.data))

    @staticmethod
    def _bound(function: int, sizes: tuple[int, ...], addresses: int) -> Callable[[int], None]:
        """Return what launches it on a stream."""
        import cupy

        launch = partial(cupy.cuda.driver.launchKernel, function, *sizes)
        return lambda stream: launch(stream, addresses, 0)

    def change(self, place: int, value: int, word: int = 0) -> None:
        """Change an argument, by its place from 0, from the next launch on; not for several threads.

        It is an address, or an integer that is not negative; or, of a structure, the word of eight bytes that is one.
        """
        self._words[self._places[place] + word] = value

    def __call__(self) -> None:
        """Launch it on the current stream; not by several threads at a time."""
        self._launch(self._stream().ptr)


class DependentLaunch(BoundLaunch):
    """A launch of a kernel that may begin before the one ahead of it in the stream has ended, and waits for it itself.

    It has to begin with `ptx::griddepcontrol_wait` (ptx/dependent_launch.cuh). GPUs before compute capability 9.0
    launch it in order.
    """

    @staticmethod
    def _bound(function: int, sizes: tuple[int, ...], addresses: int) -> Callable[[int], None]:
        import cupy

        launch = _launch_function(cupy.cuda.Device().id)
        if launch is None:
            return BoundLaunch._bound(function, sizes, addresses)
        *of_grid_and_block, shared_mem = sizes
        config = _Config((c_uint * 6)(*of_grid_and_block), shared_mem, None, pointer(_OVERLAPS), 1)
        given = byref(config), c_void_p(function), c_void_p(addresses), None

        def launch_on(stream: int) -> None:
            config.stream = stream
            status = launch(*given)
            if status:
                raise cupy.cuda.driver.CUDADriverError(status)

        return launch_on
