"""The cuBLAS engine: Lloyd as GPU libraries usually have it, in CuPy.

Scores by one cuBLAS product a block of rows, then arg-min, then the sums by label as a second cuBLAS product with the
one-hot label matrix: X is read from memory three times an iteration and the block's scores are written and read. It is
what our own kernels are measured against, and what serves every shape that they do not.

No float is added atomically and every reduction has a fixed order: the same bits on every run.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Self, TypeVar

import cupy
import numpy as np

from tsapps.apps.kmeans.engine import Engine
from tsapps.apps.kmeans.rows import Rows

__all__ = ["CublasEngine"]

T = TypeVar("T")

# Temporaries of a block: large enough that launches (about 5 µs each) do not show, small beside the memory of a GPU.
_BLOCK_BYTES = 512 << 20
# A pinned buffer of a stream from the host; two of them in turn.
_PINNED_BYTES = 64 << 20


class CublasEngine(Engine):
    """Passes over X with CuPy and cuBLAS; see `Engine`.

    X is held on the GPU, centred, where a copy fits; where it does not it is read in every pass, from the GPU if it
    lies there, else streamed from its source in host memory or in a file through two pinned buffers in turn.
    """

    xp = cupy

    def __init__(self, source: Rows, dtype: np.dtype, sample_weight: np.ndarray | None, index: int) -> None:
        self.device = f"cuda:{index}"
        self._gpu = cupy.cuda.Device(index)
        with self._gpu:
            super().__init__(source, dtype, sample_weight)

    def __enter__(self) -> Self:
        """Make the engine's GPU the current one."""
        self._gpu.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        """Give the GPU before back."""
        self._gpu.__exit__(*exception)

    def fits(self, size: int) -> bool:
        """Tell whether `size` more bytes for X leave the GPU room to work."""
        # Seeding holds the distances of 2 + ln k candidates a sample; 12 candidates are k = 22,000.
        working = self.n_samples * self.dtype.itemsize * 16 + 2 * _BLOCK_BYTES
        free, _ = cupy.cuda.runtime.memGetInfo()
        return size + working <= free + cupy.get_default_memory_pool().free_bytes()

    def block_rows(self, n_columns: int) -> int:
        """Return the rows of a block whose widest temporary has `n_columns` columns."""
        return max(1, _BLOCK_BYTES // (self.dtype.itemsize * max(n_columns, self.n_features)))

    def source_blocks(self, rows: int) -> Iterator[tuple[int, Any]]:
        """Yield (first row, block) of the source on this GPU, in the source's own dtype, not centred."""
        if self.source.device is not None:
            return self.source.blocks(rows)
        return _stream_to_gpu(self.source, rows)

    def each_block(self, work: Callable[[int, Any], T], n_columns: int) -> Iterator[T]:
        """Yield ``work(first row, block)`` for every block of centred rows in `dtype`, in row order."""
        for start, block in self.blocks(n_columns):
            yield work(start, self.prepared(block))

    def sums_by_label(self, block: Any, labels: Any, weights: Any | None, n_clusters: int) -> tuple[Any, Any]:
        """Return the weighted sum of a block's rows with each label (k, d), and the weight of each label (k,)."""
        one_hot = (labels[:, np.newaxis] == cupy.arange(n_clusters, dtype=np.int32)).astype(self.dtype)
        if weights is not None:
            one_hot *= weights[:, np.newaxis]
        return one_hot.T @ block, one_hot.sum(axis=0, dtype=np.float64)

    def square_distances(self, points: np.ndarray) -> Any:
        """Return ‖x − p‖² for every point p and sample x, shape (len(points), n), in `dtype`."""
        out = cupy.empty((len(points), self.n_samples), self.dtype)
        wide = cupy.asarray(points, dtype=np.float64)
        norms = (wide * wide).sum(axis=1)[:, np.newaxis]

        def work(start: int, block: Any) -> None:
            block = block.astype(np.float64, copy=False)
            distances = (-2 * wide) @ block.T
            distances += norms
            distances += (block * block).sum(axis=1)
            cupy.maximum(distances, 0, out=distances)
            out[:, start : start + len(block)] = distances

        for _ in self.each_block(work, 2 * (self.n_features + len(points))):
            pass
        return out


def _stream_to_gpu(source: Rows, rows: int) -> Iterator[tuple[int, Any]]:
    """Yield blocks of a host source on the current GPU, each valid until the next is asked for.

    Three things go on at once: a thread fills a pinned buffer from the source (reading its file, where it has one), the
    copy engine moves the other buffer, and the GPU works on the block before.
    """
    rows = max(1, min(rows, source.shape[0], _PINNED_BYTES // (source.shape[1] * source.dtype.itemsize)))
    slots = [_Slot((rows, source.shape[1]), source.dtype) for _ in range(2)]
    copies = cupy.cuda.Stream(non_blocking=True)
    blocks = source.blocks(rows)
    with ThreadPoolExecutor(1) as reader:
        filled = reader.submit(slots[0].fill, blocks)
        turn = 0
        while (start := filled.result()) is not None:
            slot = slots[turn % 2]
            turn += 1
            filled = reader.submit(slots[turn % 2].fill, blocks)
            with slot.on_gpu(copies) as block:
                yield start, block


class _Slot:
    """One of two turns of a stream: a pinned buffer, its twin on the GPU, and when each may be written again."""

    def __init__(self, shape: tuple[int, int], dtype: np.dtype) -> None:
        memory = cupy.cuda.alloc_pinned_memory(shape[0] * shape[1] * dtype.itemsize)
        self.pinned = np.frombuffer(memory, dtype, shape[0] * shape[1]).reshape(shape)
        self.twin = cupy.empty(shape, dtype)
        self.used = 0
        self.copied = cupy.cuda.Event(disable_timing=True)
        self.consumed = cupy.cuda.Event(disable_timing=True)
        # The twin's memory may still be in use by work queued on this stream before it was freed.
        self.consumed.record()

    def fill(self, blocks: Iterator[tuple[int, np.ndarray]]) -> int | None:
        """Copy the next block into the pinned buffer; return its first row, or None at the end."""
        self.copied.synchronize()
        start, block = next(blocks, (None, ()))
        self.used = len(block)
        if start is not None:
            np.copyto(self.pinned[: self.used], block)
        return start

    @contextmanager
    def on_gpu(self, copies: Any) -> Iterator[Any]:
        """Move the buffer to the GPU and lend it to the current stream for the length of the context."""
        copies.wait_event(self.consumed)
        self.twin[: self.used].set(self.pinned[: self.used], stream=copies)
        self.copied.record(copies)
        current = cupy.cuda.get_current_stream()
        current.wait_event(self.copied)
        yield self.twin[: self.used]
        self.consumed.record(current)
