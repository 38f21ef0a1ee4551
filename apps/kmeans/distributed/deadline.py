"""Waiting for GPUs that wait for each other: if one fails, the others would wait forever."""

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tsapps.kernels.runtime.machine import Machine

__all__ = ["AllReduce", "OneGpu", "wait_for", "wait_for_launches"]

# Seconds that a wait may take in addition to a generous estimate of the work; and floating-point operations per second,
# of which every GPU makes more.
_SECONDS, _OPERATIONS = 60.0, 1e11
# The host asks without pause for so many seconds, and then at this interval.
_SPINS, _INTERVAL = 0.05, 0.001


class AllReduce(Protocol):
    """Adds up arrays of 64-bit integers of several GPUs."""

    @property
    def is_open(self) -> bool:
        """False after `abort`."""

    def __call__(self, own: Sequence[Any], total: Sequence[Any]) -> None:
        """Enqueue on each GPU's current stream that its array in `total` becomes the sum of all arrays in `own`."""

    def abort(self) -> None:
        """End all-reduces that wait for another GPU; later calls fail."""


class OneGpu:
    """The all-reduce of a single GPU, which nothing calls."""

    is_open = True

    def __call__(self, own: Sequence[Any], total: Sequence[Any]) -> None:
        """Raise NotImplementedError."""
        raise NotImplementedError

    def abort(self) -> None:
        """Do nothing."""


def wait_for(done: Callable[[], bool], all_reduce: AllReduce, work: float, what: str) -> None:
    """Wait until `done` returns True.

    Parameters
    ----------
    done : callable
    all_reduce : AllReduce
        Is aborted if the wait ends in vain, or by Ctrl-C.
    work : float
        Floating-point operations that may take place meanwhile.
    what : str
        What does not end, for the message.

    Raises
    ------
    TimeoutError
        If it takes a minute longer than the work should take on the slowest of GPUs.
    """
    begun, most = time.monotonic(), _SECONDS + work / _OPERATIONS
    try:
        while not done():
            waited = time.monotonic() - begun
            if waited > most:
                raise TimeoutError(
                    f"{what} has not ended after {waited:.0f} s: a GPU has failed, or does not reach the others; "
                    "the fit is abandoned"
                )
            if waited > _SPINS:
                time.sleep(_INTERVAL)
    except BaseException:  # Ctrl-C too
        all_reduce.abort()
        raise


def wait_for_launches(machine: Machine, all_reduce: AllReduce, work: float, what: str) -> None:
    """Wait until the launches so far on the current stream of a GPU, which is current, have ended; see `wait_for`."""
    launched = machine.event()
    launched.record()
    wait_for(lambda: launched.done, all_reduce, work, what)
