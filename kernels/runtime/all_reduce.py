"""Sums of integer arrays over several GPUs, of this process or of several, by NCCL, in stream order.

NCCL comes with the package nvidia-nccl-cu13 (or -cu12); CuPy's bindings call it. This module alone knows either.
"""

import atexit
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from threading import Lock, Thread
from typing import Any

from tsapps.kernels.arrays import address
from tsapps.kernels.devices import NoDeviceError
from tsapps.kernels.runtime.machine import Machine, cuda_machine

__all__ = ["GroupError", "Identity", "NcclAllReduce", "connect", "join", "leave", "nccl_version", "new_identity"]

#: What the processes of a group have in common: a unique number of NCCL, in hexadecimal digits.
Identity = str

# Seconds that processes wait for each other when they join a group.
_SECONDS = 60.0


# Held during a call, and while GPUs are connected. All GPUs have to run the all-reduces in the same order, so threads
# must not mix their calls.
_calling, _connecting = Lock(), Lock()


class GroupError(RuntimeError):
    """An all-reduce with other processes failed, or was aborted."""


class NcclAllReduce:
    """An all-reduce over GPUs; each call adds 64-bit integers of all GPUs, element by element.

    Threads may call it at the same time. No other NCCL calls may run on the same GPUs meanwhile.

    Parameters
    ----------
    machines : sequence of Machine
        The GPUs of this process.
    communicators : sequence of cupy.cuda.nccl.NcclCommunicator
        The communicator of each; those of other processes may belong to the same group.
    """

    def __init__(self, machines: Sequence[Machine], communicators: Sequence[Any]) -> None:
        self._nccl, self._machines, self._communicators = _nccl(), machines, list(communicators)

    @classmethod
    def of_indices(cls, indices: Sequence[int]) -> "NcclAllReduce":
        """Connect GPUs of this process by CUDA's numbers of them.

        Raises
        ------
        NoDeviceError
            If NCCL is not installed, or cannot connect the GPUs.
        """
        nccl, machines = _nccl(), [cuda_machine(index) for index in indices]
        try:
            return cls(machines, nccl.NcclCommunicator.initAll(list(indices)))
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
        if not self.is_open:
            raise GroupError("the group of GPUs was abandoned")
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
            made = _connected[indices] = NcclAllReduce.of_indices(indices)
            atexit.register(made.close)
    return made


def _nccl() -> Any:
    """Return CuPy's module for NCCL; raise NoDeviceError if NCCL is not installed."""
    try:
        from cupy.cuda import nccl

        nccl.get_version()
    except (ImportError, AttributeError, RuntimeError) as error:
        raise NoDeviceError(
            f"several GPUs need NCCL, which is not installed (pip install nvidia-nccl-cu13): {error}"
        ) from error
    return nccl


def nccl_version() -> int | None:
    """Return the version of NCCL, such as 22809; None if it is not installed."""
    with suppress(NoDeviceError):
        return int(_nccl().get_version())
    return None


def new_identity() -> Identity:
    """Return a new `Identity`, made by one of the processes of a group for all."""
    return str(_nccl().get_unique_id().hex())


# The group that each GPU of this process has joined last, by CUDA's number of the GPU.
_joined: dict[int, tuple[Identity, NcclAllReduce]] = {}


def join(machine: Machine, identity: Identity, rank: int, size: int) -> NcclAllReduce:
    """Return the all-reduce of a GPU of this process with those of others, all of which call this function.

    A GPU joins a group once, and leaves its last one.

    Parameters
    ----------
    machine : Machine
    identity : Identity
    rank : int
        Number of the GPU in the group, from 0.
    size : int
        Number of GPUs of the group.

    Raises
    ------
    GroupError
        If NCCL cannot connect the GPUs, others do not join within a minute, or the group was left.
    """
    known, all_reduce = _joined.get(machine.index, (None, None))
    if all_reduce is not None and known == identity:
        if not all_reduce.is_open:
            raise GroupError("the group of GPUs was abandoned")
        return all_reduce
    if all_reduce is not None:
        all_reduce.abort()
    communicator: Future[Any] = Future()

    def connect_gpu() -> None:
        try:
            with machine.current():
                communicator.set_result(_nccl().NcclCommunicator(size, bytes.fromhex(identity), rank))
        except BaseException as error:  # noqa: BLE001 (raised again in the caller's thread)
            communicator.set_exception(error)

    # A thread of its own, as NCCL waits for the others without end.
    Thread(target=connect_gpu, daemon=True, name="tsapps-nccl").start()
    try:
        made = NcclAllReduce([machine], [communicator.result(_SECONDS)])
    except TimeoutError as error:
        raise GroupError(f"{size} GPUs did not join within {_SECONDS:.0f} s: one is lost, or is not reached") from error
    except RuntimeError as error:
        raise GroupError(f"NCCL cannot connect GPU {rank} of {size}: {error}") from error
    if not _joined:
        atexit.register(_leave_all)
    _joined[machine.index] = identity, made
    return made


def leave(identity: Identity) -> None:
    """Abandon a group, if a GPU of this process has joined it: all-reduces that wait for others end without result."""
    for known, all_reduce in list(_joined.values()):
        if known == identity:
            all_reduce.abort()


def _leave_all() -> None:
    for _, all_reduce in list(_joined.values()):
        all_reduce.abort()
