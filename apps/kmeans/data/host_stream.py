"""Blocks of a host source on a GPU, read, copied and worked on at the same time."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np

from tsapps.apps.kmeans.data.rows import Reader, Rows, readers
from tsapps.kernels.runtime.machine import Machine

__all__ = ["stream_to_gpu"]

# A pinned buffer; two of them in turn, each filled by several threads: one copies at about 11 GB/s, a fifth of what the
# link takes.
_PINNED_BYTES = 64 << 20
_FILLERS = min(8, os.cpu_count() or 1)


def stream_to_gpu(machine: Machine, source: Rows, rows: int) -> Iterator[tuple[int, Any]]:
    """Yield blocks of a host source on the current GPU, each valid until the next is asked for.

    Three things go on at once: a thread fills a pinned buffer from the source (reading its file, where it has one), the
    copy engine moves the other buffer, and the GPU works on the block before.
    """
    rows = max(1, min(rows, source.shape[0], _PINNED_BYTES // (source.shape[1] * source.dtype.itemsize)))
    slots = [_Slot(machine, (rows, source.shape[1]), source.dtype) for _ in range(2)]
    copies = machine.stream()
    blocks = readers(source, rows)
    try:
        with ThreadPoolExecutor(_FILLERS) as fillers, ThreadPoolExecutor(1) as reader:
            filled = reader.submit(slots[0].fill, blocks, fillers)
            turn = 0
            while (start := filled.result()) is not None:
                slot = slots[turn % 2]
                turn += 1
                filled = reader.submit(slots[turn % 2].fill, blocks, fillers)
                with slot.on_gpu(copies) as block:
                    yield start, block
    finally:
        # Pinned memory goes to whoever asks next as soon as nobody has it, whatever is still to be read of it.
        for slot in slots:
            slot.copied.synchronize()


class _Slot:
    """One of two turns of a stream: a pinned buffer, its on_device on the GPU, and when each may be written again."""

    def __init__(self, machine: Machine, shape: tuple[int, int], dtype: np.dtype) -> None:
        self._machine = machine
        self.pinned, self.on_device = machine.pinned(shape, dtype), machine.xp.empty(shape, dtype)
        self.used = 0
        self.copied, self.consumed = machine.event(), machine.event()
        # The on_device's memory may still be in use by work queued on this stream before it was freed.
        self.consumed.record()

    def fill(self, blocks: Iterator[tuple[int, int, Reader]], fillers: ThreadPoolExecutor) -> int | None:
        """Copy the next block of `readers` into the pinned buffer; return its first row, or None at the end."""
        self.copied.synchronize()
        found = next(blocks, None)
        if found is None:
            return None
        start, self.used, read = found
        share = -(-self.used // _FILLERS)
        parts = [slice(first, min(first + share, self.used)) for first in range(0, self.used, share)]
        list(fillers.map(lambda part: read(part, self.pinned[part]), parts))
        return start

    @contextmanager
    def on_gpu(self, copies: Any) -> Iterator[Any]:
        """Move the buffer to the GPU and lend it to the current stream for the length of the context."""
        copies.wait_event(self.consumed)
        self._machine.copy(self.on_device[: self.used], self.pinned[: self.used], copies)
        self.copied.record(copies)
        current = self._machine.current_stream()
        current.wait_event(self.copied)
        yield self.on_device[: self.used]
        self.consumed.record(current)
