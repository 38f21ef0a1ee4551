"""Clocks for work on a GPU and on the CPU, and how often to repeat what they time.

On a GPU every timing starts with a cold level-2 cache: a buffer larger than the cache is read before the clock starts.
(Written, it would leave the cache full of what has yet to go to memory, at the cost of what is timed.)
"""

import time
from collections.abc import Callable
from statistics import median
from typing import Any, Protocol

__all__ = ["Clock", "CpuClock", "GpuClock", "median", "repeats_within"]


# Bytes that are read before the clock starts: by one launch, as long as the host then takes for several.
_FLUSHED = 1 << 30


class Clock(Protocol):
    """What times a call."""

    def call_ms(self, call: Callable[[], Any]) -> float:
        """Return the milliseconds of a call, by the most exact clock of the device."""

    def wall_ms(self, call: Callable[[], Any]) -> tuple[float, Any]:
        """Return the milliseconds of a call by the wall clock, until the device is idle, and what it returns."""


class GpuClock:
    """CUDA events on the current stream of the current GPU, and the wall clock."""

    def __init__(self) -> None:
        import cupy

        self._cupy = cupy
        l2 = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["l2CacheSize"]
        self._flush = cupy.zeros(max(_FLUSHED, 2 * l2) // 8, cupy.uint64)
        self._largest = cupy.empty((), cupy.uint64)
        self._start, self._stop = cupy.cuda.Event(), cupy.cuda.Event()

    def _read_flush(self) -> None:
        self._cupy.max(self._flush, out=self._largest)

    def call_ms(self, call: Callable[[], Any]) -> float:
        """Return the milliseconds of what a call launches, between two events: it is queued behind the flush.

        So what the host does before the first launch is not in it; what it does between launches and after the last one
        is, where the device waits for it.
        """
        self._read_flush()
        self._start.record()
        call()
        self._stop.record()
        self._stop.synchronize()
        return float(self._cupy.cuda.get_elapsed_time(self._start, self._stop))

    def wall_ms(self, call: Callable[[], Any]) -> tuple[float, Any]:
        """Return the milliseconds of a call by the wall clock, until the device is idle, and what it returns."""
        self._read_flush()
        self._cupy.cuda.Device().synchronize()
        start = time.perf_counter()
        result = call()
        self._cupy.cuda.Device().synchronize()
        return 1e3 * (time.perf_counter() - start), result


class CpuClock:
    """The wall clock."""

    def call_ms(self, call: Callable[[], Any]) -> float:
        """Return the milliseconds of a call."""
        return self.wall_ms(call)[0]

    def wall_ms(self, call: Callable[[], Any]) -> tuple[float, Any]:
        """Return the milliseconds of a call, and what it returns."""
        start = time.perf_counter()
        result = call()
        return 1e3 * (time.perf_counter() - start), result


def repeats_within(seconds: float, each_ms: float, most: int) -> int:
    """Return how often to repeat what takes about `each_ms`: as often as `seconds` allow, from 1 to `most` times."""
    return max(1, min(most, int(1e3 * seconds / max(each_ms, 1e-3))))
