"""Sums of integer arrays over several GPUs of this process, by NCCL, in stream order.

NCCL comes with the package nvidia-nccl-cu13 (or -cu12); CuPy's bindings call it. This module alone knows either.
"""

import atexit
from collections.abc import Sequence
from functools import cache
from typing import Any

from tsapps.kernels.arrays import address
from tsapps.kernels.devices import NoDeviceError
from tsapps.kernels.runtime.machine import Machine, cuda_machine

__all__ = ["NcclAllReduce", "connect"]


class NcclAllReduce:
    """An all-reduce over GPUs of this process; each call adds 64-bit integers of all GPUs, element by element.

    Calls must not overlap with NCCL calls of other threads on the same GPUs.

    Parameters
    ----------
    indices : sequence of int
        CUDA's numbers of the GPUs.

    Raises
    ------
    NoDeviceError
        If NCCL is not installed, or cannot connect the GPUs.
    """

    def __init__(self, indices: Sequence[int]) -> None:
        try:
            from cupy.cuda import nccl

            nccl.get_version()
        except (ImportError, AttributeError, RuntimeError) as error:
            raise NoDeviceError(
                f"several GPUs need NCCL, which is not installed (pip install nvidia-nccl-cu13): {error}"
            ) from error
        self._nccl, self._machines = nccl, [cuda_machine(index) for index in indices]
        try:
            self._communicators = nccl.NcclCommunicator.initAll(list(indices))
        except nccl.NcclError as error:
            names = ", ".join(f"cuda:{index}" for index in indices)
            raise NoDeviceError(f"NCCL cannot connect {names}: {error}; use one GPU") from error

    def __call__(self, own: Sequence[Any], total: Sequence[Any]) -> None:
        """Enqueue on the current stream of each GPU that `total` of every GPU becomes the sum of all arrays `own`.

        Parameters
        ----------
        own, total : sequence of cupy.ndarray
            For each GPU, a contiguous array of 64-bit integers; all of the same size. `own` is not written.
        """
        nccl = self._nccl
        nccl.groupStart()
        try:
            for machine, communicator, one, to in zip(self._machines, self._communicators, own, total, strict=True):
                with machine.current():
                    stream = machine.current_stream().ptr
                    arguments = address(one), address(to), one.size, nccl.NCCL_INT64, nccl.NCCL_SUM
                    communicator.allReduce(*arguments, stream)
        finally:
            nccl.groupEnd()

    def close(self) -> None:
        """Release the connections."""
        for communicator in self._communicators:
            communicator.destroy()
        self._communicators = []


def connect(machines: Sequence[Machine]) -> NcclAllReduce:
    """Return the `NcclAllReduce` of these GPUs, which are connected once and stay so until the process ends."""
    return _connected(tuple(machine.index for machine in machines))


@cache
def _connected(indices: tuple[int, ...]) -> NcclAllReduce:
    made = NcclAllReduce(indices)
    atexit.register(made.close)
    return made
