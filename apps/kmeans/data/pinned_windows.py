"""Windows of X in pinned host memory, copied to the GPU; pinning, copying and computing overlap.

The copy engine reads the link at its full rate, whatever the alignment of X; kernels do not. Pages are pinned when
their window is due, while earlier windows are being copied.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from tsapps.kernels.runtime.machine import Machine

__all__ = ["copied_windows"]

# Number of windows in GPU memory: kernels read one while the next ones are copied.
_SLOTS = 3


def copied_windows(machine: Machine, pinned: Any, rows: int) -> Iterator[tuple[int, Any]]:
    """Yield (first row, copy on the GPU) of the windows of a `PinnedArray`.

    Parameters
    ----------
    machine : Machine
    pinned : PinnedArray
    rows : int
        Number of rows of a window; the last may have fewer.

    Yields
    ------
    start : int
    window : array of shape (rows, d)
        Valid until the next window is requested.

    Raises
    ------
    PinningError
        If the system does not pin a page.
    """
    X, copies, current, xp = pinned.array, machine.stream(), machine.current_stream(), machine.xp
    source, row_bytes, rows = _bytes_of(X), X.itemsize * X.shape[1], min(rows, len(X))
    slots = [(xp.empty((rows, X.shape[1]), X.dtype), machine.event(), machine.event()) for _ in range(_SLOTS)]
    for *_, used in slots:
        used.record()  # earlier work on the current stream may still read the memory of a slot
    try:
        for turn, start in enumerate(range(0, len(X), rows)):
            slot, copied, used = slots[turn % _SLOTS]
            window = slot[: min(rows, len(X) - start)]
            to, begin = _bytes_of(window), start * row_bytes
            copies.wait_event(used)
            for first, end in pinned.pieces(begin, begin + len(to)):
                machine.copy(to[first - begin : end - begin], source[first:end], copies)
            copied.record(copies)
            current.wait_event(copied)
            yield start, window
            used.record(current)
    finally:
        copies.synchronize()  # copies write to the slots


def _bytes_of(array: Any) -> Any:
    """Return the bytes of a contiguous array, as an array."""
    return array.reshape(-1).view(np.uint8)
