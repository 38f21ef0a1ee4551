"""Shares of X by the rates of GPUs: one that is slower than the others, or busy, gets fewer rows."""

import time
from collections.abc import Callable, Sequence

import numpy as np

from tsapps.kernels.runtime.machine import Machine

__all__ = ["measured_shares"]

# Bytes of a copy in GPU memory, and how many are timed.
_BYTES, _COPIES = 64 << 20, 8
# Rates that differ by less are taken for the same: GPUs of one kind differ by a few per cent, as do measurements.
_ALIKE = 0.9


def measured_shares(machines: Sequence[Machine], clock: Callable[[], float] = time.perf_counter) -> list[float]:
    """Return for each GPU its share of the rows, in proportion to the rate at which it copies its own memory.

    Parameters
    ----------
    machines : sequence of Machine
    clock : callable
        Returns the time in seconds.

    Returns
    -------
    list of float
        1 for GPUs that are nearly as fast as the fastest, less for others. 1 for all if one has no memory to measure.
    """
    seconds = []
    for machine in machines:
        with machine.current():
            if machine.free_bytes() < 4 * _BYTES:
                return [1.0] * len(machines)
            source, to = (machine.xp.empty(_BYTES, np.uint8) for _ in range(2))
            for copies in (1, _COPIES):  # the first copy takes longer
                start = clock()
                for _ in range(copies):
                    machine.copy(to, source)
                machine.current_stream().synchronize()
                elapsed = clock() - start
            seconds.append(elapsed)
    rates = [min(seconds) / one for one in seconds]
    return [1.0 if rate >= _ALIKE else rate for rate in rates]
