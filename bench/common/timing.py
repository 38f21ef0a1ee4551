"""Clocks for the GPU and the CPU, and the number of repetitions of a timing.

Every GPU timing starts with a cold level-2 cache: a buffer larger than the cache is read first. (Writing the buffer
would leave dirty lines in the cache, whose write-back would slow down the timed work.)
"""

import time
from collections.abc import Callable
from statistics import median
from typing import Any, Protocol

__all__ = ["Clock", "CpuClock", "GpuClock", "median", "median_ms", "repeats_within"]


# Bytes read by one launch before the clock starts; the read takes as long as the host needs for several launches.
_FLUSHED = 1 << 30
# Time of the repetitions of a call in seconds, and their maximum number.
_SECONDS, _MOST_REPEATS = 0.5, 9


class Clock(Protocol):
    """A timer of calls."""

    def call_ms(self, call: Callable[[], Any]) -> float:
        """Return the time of a call in ms, by the most exact clock of the device."""

    def wall_ms(self, call: Callable[[], Any]) -> tuple[float, Any]:
        """Return the wall time of a call in ms, until the device is idle, and the call's result."""


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
        """Return the time between two CUDA events around a call's launches, queued behind the cache flush, in ms.

        This excludes host work before the first launch. It includes host work between and after launches if the device
        waits for it.
        """
        self._read_flush()
        self._start.record()
        call()
        self._stop.record()
        self._stop.synchronize()
        return float(self._cupy.cuda.get_elapsed_time(self._start, self._stop))

    def wall_ms(self, call: Callable[[], Any]) -> tuple[float, Any]:
        """Return the wall time of a call in ms, until the device is idle, and the call's result."""
        self._read_flush()
        self._cupy.cuda.Device().synchronize()
        start = time.perf_counter()
        result = call()
        self._cupy.cuda.Device().synchronize()
        return 1e3 * (time.perf_counter() - start), result


class CpuClock:
    """The wall clock."""

    def call_ms(self, call: Callable[[], Any]) -> float:
        """Return the time of a call in ms."""
        return self.wall_ms(call)[0]

    def wall_ms(self, call: Callable[[], Any]) -> tuple[float, Any]:
        """Return the time of a call in ms, and its result."""
        start = time.perf_counter()
        result = call()
        return 1e3 * (time.perf_counter() - start), result


def repeats_within(seconds: float, each_ms: float, most: int) -> int:
    """Return how many repetitions of `each_ms` fit in `seconds`: at least 1, at most `most`."""
    return max(1, int(min(most, 1e3 * seconds / max(each_ms, 1e-3))))


def median_ms(clock: Clock, call: Callable[[], Any]) -> float:
    """Return the median time of a call in ms: of nine, or of as many as half a second allows."""
    first = clock.call_ms(call)
    again = repeats_within(_SECONDS, first, _MOST_REPEATS) - 1
    return float(median([first, *(clock.call_ms(call) for _ in range(again))]))
