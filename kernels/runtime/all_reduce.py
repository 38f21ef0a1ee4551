"""Sums of integer arrays over several GPUs of this process, by NCCL, in stream order.

NCCL comes with the package nvidia-nccl-cu13 (or -cu12); CuPy's bindings call it. This module alone knows either.
"""

import atexit
from collections.abc import Sequence
from contextlib import suppress
from threading import Lock
from typing import Any

from tsapps.kernels.arrays import address
from tsapps.kernels.devices import NoDeviceError
from tsapps.kernels.runtime.machine import Machine, cuda_machine

__all__ = ["NcclAllReduce", "connect"]


# Held during a call, and while GPUs are connected. All GPUs have to run the all-reduces in the same order, so threads
# must not mix their calls.
_calling, _connecting = Lock(), Lock()


class NcclAllReduce:
    """An all-reduce over GPUs of this process; each call adds 64-bit integers of all GPUs, element by element.

    Threads may call it at the same time. No other NCCL calls may run on the same GPUs meanwhile.

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
        with _calling:
            try:
                nccl.groupStart()
                for machine, communicator, one, to in zip(self._machines, self._communicators, own, total, strict=True):
                    with machine.current():
                        stream = machine.current_stream().ptr
                        arguments = address(one), address(to), one.size, nccl.NCCL_INT64, nccl.NCCL_SUM
                        communicator.allReduce(*arguments, stream)
                nccl.groupEnd()
            except BaseException:  # Ctrl-C too: GPUs would wait forever for those that have not been called
                with suppress(nccl.NcclError):
                    nccl.groupEnd()
                self.abort()
                raise

    @property
    def is_open(self) -> bool:
        """False after `close` or `abort`."""
        return bool(self._communicators)

    def close(self) -> None:
        """Release the connections."""
        for communicator in self._taken():
            communicator.destroy()

    def abort(self) -> None:
        """Release the connections, and end all-reduces that wait for another GPU; their results are lost."""
        for communicator in self._taken():
            with suppress(self._nccl.NcclError):  # that of a failed GPU; the others must not wait for it
                communicator.abort()

    def _taken(self) -> list[Any]:
        taken, self._communicators = self._communicators, []
        return taken


# By the indices of the GPUs.
_connected: dict[tuple[int, ...], NcclAllReduce] = {}


def connect(machines: Sequence[Machine]) -> NcclAllReduce:
    """Return the `NcclAllReduce` of these GPUs, which are connected once and stay so until the process ends."""
    indices = tuple(machine.index for machine in machines)
    with _connecting:
        made = _connected.get(indices)
        if made is None or not made.is_open:
            made = _connected[indices] = NcclAllReduce(indices)
            atexit.register(made.close)
    return made
