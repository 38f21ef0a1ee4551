"""Windows of X in pinned host memory, copied to the GPU: copying, computing and the pinning of pages overlap.

The copy engine reads the link at its full rate, whatever the alignment of X; kernels do not. Threads pin pages at half
of that rate or less. Where the order of windows does not matter, other threads meanwhile read windows from the end of
X, whose pages are not pinned yet, into pinned buffers.
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np

from tsapps.apps.kmeans.data.host_stream import FILLERS, read_by_threads
from tsapps.apps.kmeans.data.rows import Reader
from tsapps.kernels.runtime.machine import Machine

__all__ = ["copied_windows"]

# Number of windows in GPU memory: kernels read one while the next ones are copied.
_SLOTS = 3


def copied_windows(machine: Machine, pinned: Any, rows: int, read: Reader | None = None) -> Iterator[tuple[int, Any]]:
    """Yield (first row, copy on the GPU) of the windows of a `PinnedArray`.

    Parameters
    ----------
    machine : Machine
    pinned : PinnedArray
    rows : int
        Number of rows of a window; the last may have fewer.
    read : Reader, optional
        Reads rows of X. By default, windows are yielded in order, as their pages become pinned. With `read`, they are
        yielded in any order, and it reads those whose pages are not pinned yet.

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
    X, copies = pinned.array, machine.stream()
    (n, d), source = X.shape, _bytes_of(X)
    rows = min(rows, n)
    slots = [_Slot(machine, (rows, d), X.dtype) for _ in range(_SLOTS)]
    front, back = 0, -(-n // rows)  # the windows that are left
    try:
        with ThreadPoolExecutor(FILLERS) as fillers:
            for turn in range(back):
                slot = slots[turn % _SLOTS]
                fills = read is not None and not pinned.is_pinned(*_range(front, rows, X))
                front, back, number = (front, back - 1, back - 1) if fills else (front + 1, back, front)
                start, (begin, end) = number * rows, _range(number, rows, X)
                count = min(rows, n - start)
                if read is not None and fills:
                    pieces: Iterable[Any] = [_bytes_of(slot.filled(read, slice(start, start + count), fillers))]
                else:
                    pieces = (source[first:last] for first, last in pinned.pieces(begin, end))
                with slot.on_gpu(pieces, count, copies) as window:
                    yield start, window
    finally:
        copies.synchronize()  # copies write to the slots


def _range(number: int, rows: int, X: np.ndarray) -> tuple[int, int]:
    """Return the first byte of window `number`, and its end."""
    row_bytes = X.itemsize * X.shape[1]
    return number * rows * row_bytes, min((number + 1) * rows, len(X)) * row_bytes


def _bytes_of(array: Any) -> Any:
    """Return the bytes of a contiguous array, as an array."""
    return array.reshape(-1).view(np.uint8)


class _Slot:
    """Memory of a window on the GPU, and events after which it, and the pinned buffer, may be overwritten."""

    def __init__(self, machine: Machine, shape: tuple[int, int], dtype: np.dtype) -> None:
        self._machine = machine
        self._memory = machine.xp.empty(shape, dtype)
        self._buffer: np.ndarray | None = None
        self._copied, self._used = machine.event(), machine.event()
        self._used.record()  # earlier work on the current stream may still read the memory

    def filled(self, read: Reader, rows: slice, fillers: ThreadPoolExecutor) -> np.ndarray:
        """Return rows of X that several threads read into the pinned buffer."""
        if self._buffer is None:
            self._buffer = self._machine.pinned(self._memory.shape, self._memory.dtype)
        self._copied.synchronize()
        filled = self._buffer[: rows.stop - rows.start]
        read_by_threads(read, rows, filled, fillers)
        return filled

    @contextmanager
    def on_gpu(self, pieces: Iterable[Any], rows: int, copies: Any) -> Iterator[Any]:
        """Copy the bytes of `rows` rows, in pieces, on the stream `copies`; the context's stream may use the copy."""
        window, end, current = self._memory[:rows], 0, self._machine.current_stream()
        to = _bytes_of(window)
        copies.wait_event(self._used)
        for piece in pieces:
            self._machine.copy(to[end : end + len(piece)], piece, copies)
            end += len(piece)
        self._copied.record(copies)
        current.wait_event(self._copied)
        yield window
        self._used.record(current)
