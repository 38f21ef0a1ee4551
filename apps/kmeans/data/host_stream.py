"""Streaming of a host matrix to a GPU in blocks of rows: reading, copying and computing overlap."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from tsapps.apps.kmeans.data.rows import Reader, Rows, readers
from tsapps.kernels.runtime.machine import Machine
from tsapps.kernels.system.task_pool import TaskPool

__all__ = ["buffer_rows", "stream_to_gpu"]

# Size in bytes of each of the two pinned buffers, unless a chunk is larger. Number of threads that fill a buffer: one
# thread copies about 11 GB/s, a fifth of the bandwidth of the link to the GPU.
_PINNED_BYTES = 64 << 20
_FILLERS = min(8, os.cpu_count() or 1)


def buffer_rows(source: Rows) -> int:
    """Return the number of rows of a host matrix that a pinned buffer should hold, at least 1."""
    return max(1, _PINNED_BYTES // (source.shape[1] * source.dtype.itemsize))


def stream_to_gpu(machine: Machine, source: Rows, rows: int) -> Iterator[tuple[int, Any]]:
    """Yield (first row, block) for a host matrix, with blocks on the current GPU.

    Three operations overlap: threads fill one pinned buffer from the source or its file, the copy engine copies the
    other buffer to the GPU, and the GPU computes on the previous block.

    Parameters
    ----------
    machine : Machine
    source : Rows
        The matrix, in host memory or in a file.
    rows : int
        Number of rows per block, and of a pinned buffer; the last block may have fewer. The source may yield smaller
        blocks.

    Yields
    ------
    start : int
    block : array of shape (rows, d)
        A block of rows in the source's dtype; valid until the next block is requested.
    """
    rows = min(rows, source.shape[0])
    slots = [_Slot(machine, (rows, source.shape[1]), source.dtype) for _ in range(2)]
    copies = machine.stream()
    parts = _cut(readers(source, rows), rows)
    try:
        with TaskPool(_FILLERS) as fillers, TaskPool(1) as reader:
            filled = reader.submit(slots[0].fill, parts, fillers)
            turn = 0
            while (start := filled.result()) is not None:
                slot = slots[turn % 2]
                turn += 1
                filled = reader.submit(slots[turn % 2].fill, parts, fillers)
                with slot.on_gpu(copies) as block:
                    yield start, block
    finally:
        # Wait for the copies: the allocator reuses freed pinned memory even while a copy still reads it.
        for slot in slots:
            slot.copied.synchronize()


def _cut(blocks: Iterator[tuple[int, int, Reader]], rows: int) -> Iterator[tuple[int, slice, Reader]]:
    """Yield (first row, its rows in the block, the block's reader) for parts of blocks, cut at multiples of `rows`."""
    for start, count, read in blocks:
        begin = 0
        while begin < count:
            end = min(count, begin + rows - (start + begin) % rows)
            yield start + begin, slice(begin, end), read
            begin = end


def _read(read: Reader, part: slice, to: np.ndarray, fillers: TaskPool) -> None:
    """Copy the rows `part` of a block to an array, by several threads."""
    share = -(-len(to) // _FILLERS)
    pieces = (slice(first, min(first + share, len(to))) for first in range(0, len(to), share))
    started = [
        fillers.submit(read, slice(part.start + piece.start, part.start + piece.stop), to[piece]) for piece in pieces
    ]
    for one in started:
        one.result()


class _Slot:
    """A pinned buffer, a GPU buffer of the same shape, and the events after which each buffer may be overwritten.

    The pinned buffer may be overwritten after `copied`, the GPU buffer after `consumed`.
    """

    def __init__(self, machine: Machine, shape: tuple[int, int], dtype: np.dtype) -> None:
        self._machine = machine
        self.pinned, self.on_device = machine.pinned(shape, dtype), machine.xp.empty(shape, dtype)
        self.used = 0
        self.copied, self.consumed = machine.event(), machine.event()
        # The GPU buffer may reuse memory that earlier work on the current stream still reads.
        self.consumed.record()

    def fill(self, parts: Iterator[tuple[int, slice, Reader]], fillers: TaskPool) -> int | None:
        """Fill the pinned buffer with the next parts. Return the index of its first row; None if no part is left."""
        self.copied.synchronize()
        start, self.used = None, 0
        while self.used < len(self.pinned) and (found := next(parts, None)) is not None:
            first, part, read = found
            start = first if start is None else start
            to = self.pinned[self.used : self.used + part.stop - part.start]
            _read(read, part, to, fillers)
            self.used += len(to)
        return start

    @contextmanager
    def on_gpu(self, copies: Any) -> Iterator[Any]:
        """Copy the block to the GPU on the stream `copies`. Within the context, the current stream may use the copy."""
        copies.wait_event(self.consumed)
        self._machine.copy(self.on_device[: self.used], self.pinned[: self.used], copies)
        self.copied.record(copies)
        current = self._machine.current_stream()
        current.wait_event(self.copied)
        yield self.on_device[: self.used]
        self.consumed.record(current)
