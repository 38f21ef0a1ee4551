"""The cuBLAS engine: Lloyd as GPU libraries usually have it, in CuPy.

Scores by one cuBLAS product a block of rows, then arg-min, then the sums by label: for few clusters a second cuBLAS
product, with the one-hot label matrix, for many a sort of the labels and a sum of each segment. X is read twice an
iteration and the block's scores are written and read. It is what our own kernels are measured against, and what serves
every shape that they do not.

No float is added atomically and every reduction has a fixed order: the same bits on every run.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

import cupy
import numpy as np
from cupyx import empty_pinned

from tsapps.apps.kmeans.assign.plan import log2_lanes, vector_of
from tsapps.apps.kmeans.data.rows import Reader, RescaledRows, Rows, readers
from tsapps.apps.kmeans.engines.engine import Engine
from tsapps.apps.kmeans.inertia.plan import RunningSums, inertia_plan
from tsapps.kernels.arrays import to_host
from tsapps.kernels.gpu_specs import GpuSpec, live
from tsapps.kernels.jit.kernel import Kernel, function
from tsapps.kernels.plan.mma import ELEMENT

__all__ = ["CublasEngine"]

T = TypeVar("T")

# Temporaries of a block: large enough that launches (about 5 µs each) do not show, small beside the memory of a GPU.
_BLOCK_BYTES = 512 << 20
# A count up to this is exact in float32.
_MOST_ROWS = 1 << 24
# A pinned buffer of a stream from the host; two of them in turn, each filled by several threads: one copies at about
# 11 GB/s, a fifth of what the link takes.
_PINNED_BYTES = 64 << 20
_FILLERS = min(8, os.cpu_count() or 1)

# With more clusters than this a product with the one-hot label matrix costs more than sorting the labels.
_ONE_HOT_CLUSTERS = 64

_SOURCE, _INERTIA, _LABELS = (
    Path(__file__).parents[1] / file for file in ("engines/cublas_step.cuh", "inertia/inertia.cuh", "data/labels.cuh")
)
_LABEL_KERNELS = ("kmeans::change_labels", "kmeans::count_labels")
_THREADS = 256
# The points that one launch of point_distances takes, and the rows that a group of lanes of own_distances does.
_POINTS, _ROWS_TOGETHER = 8, 4
# Blocks of column_moments, about; and the threads of a block that puts their parts together, columns and rows.
_MOMENT_BLOCKS, _FOLDED = 4096, (32, 8)
# Blocks a multiprocessor of what counts labels, as many as are resident.
_LABEL_BLOCKS = 4


def _row_groups(rows: int, columns: int) -> tuple[Any, tuple[int]]:
    """Return log2 of the lanes that share a row, at most a warp, and the grid that covers the rows."""
    shared_by = log2_lanes(columns)
    return np.int32(shared_by), (-((-rows << shared_by) // _THREADS),)


def _whole_vectors(array: Any, wide: int) -> bool:
    """Tell whether an array's rows, or its one row, are whole vectors of `wide` elements, and begin where those may."""
    here = array.data.ptr % (wide * array.itemsize) == 0
    return here and array.shape[-1] % wide == 0 and array.flags.c_contiguous


def _one_hot_sums(one_hot: Any, block: Any) -> tuple[Any, Any]:
    """Return the sums (k, d) and weights (k,) of a block's rows, of their weighted one-hot labels (rows, k)."""
    return one_hot.T @ block, one_hot.T @ cupy.ones(len(block), block.dtype)


def _pointer(array: Any | None) -> Any:
    """Return the argument that a kernel takes for an array that may be absent."""
    return np.intp(0) if array is None else array


class CublasEngine(Engine):
    """Passes over X with CuPy and cuBLAS; see `Engine`.

    X is held on the GPU, centered, where a copy fits; where it does not it is read in every pass, from the GPU if it
    lies there, else streamed from its source in host memory or in a file through two pinned buffers in turn.
    """

    xp = cupy

    def __init__(self, source: Rows, dtype: np.dtype, sample_weight: np.ndarray | None, index: int) -> None:
        self.device = f"cuda:{index}"
        self._gpu = cupy.cuda.Device(index)
        self.gpu: GpuSpec = live(index)
        self._passing: Any = None  # what arrays come to the host by
        with self._gpu:
            super().__init__(source, dtype, sample_weight)
            #: What kernels subtract from the rows that they are given: all that is left of the mean.
            self.shift = cupy.zeros(self.n_features, self.dtype)
            #: The largest |x − origin| of each feature that `moments` has seen.
            self.largest = cupy.zeros(self.n_features)

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

    def brought(self, array: Any) -> np.ndarray:
        """Return an array in host memory; see `Engine.brought`. By way of pinned memory, a third of the time."""
        if self._passing is None or self._passing.nbytes < array.nbytes:
            self._passing = empty_pinned(array.nbytes, np.uint8)
        host: np.ndarray = self._passing[: array.nbytes].view(array.dtype).reshape(array.shape)
        array.get(out=host)
        return host

    def forget_labels(self) -> None:
        """Set every label to −1, which is all bits set: a third of the time that a kernel of CuPy's takes."""
        self.labels.data.memset_async(0xFF, self.labels.nbytes)

    @property
    def temporary_columns(self) -> int:
        """Columns of what `block_moments` and `block_distances` make of a block beside their results: none."""
        return 0

    def block_rows(self, n_columns: int) -> int:
        """Return the rows of a block whose widest temporary has `n_columns` columns."""
        if n_columns == 0 and self.held is not None:
            return self.n_samples
        rows = _BLOCK_BYTES // (self.dtype.itemsize * max(n_columns, self.n_features))
        return max(1, min(rows, _MOST_ROWS))

    def source_blocks(self, rows: int) -> Iterator[tuple[int, Any]]:
        """Yield (first row, block) of the source on this GPU, in the source's own dtype, not centered."""
        if self.source.device is not None:
            return self.source.blocks(rows)
        if isinstance(self.source, RescaledRows):  # rows are scaled here rather than by the host
            return self.source.scaled(_stream_to_gpu(self.source.source, rows))
        return _stream_to_gpu(self.source, rows)

    def each_block(self, work: Callable[[int, Any], T], n_columns: int) -> Iterator[T]:
        """Yield ``work(first row, block)`` for every block of centered rows in `dtype`, in row order."""
        for start, block in self.blocks(n_columns):
            yield work(start, self.prepared(block))

    def assign_block(
        self, block: Any, weights: Any | None, minus_2_centers: Any, norms: Any, *, update: bool, potential: bool
    ) -> tuple[Any, Any | None, Any, Any]:
        """Assign a block's rows; see `Engine.assign_block`."""
        rows, k = len(block), len(norms)
        scores = block @ minus_2_centers
        labels = cupy.empty(rows, np.int32)
        lowest = cupy.empty(rows, self.dtype) if potential else None
        one_hot = update and k <= _ONE_HOT_CLUSTERS
        lanes, grid = _row_groups(rows, k)
        arguments = (scores, norms, _pointer(weights), np.int64(rows), np.int32(k), lanes, np.bool_(one_hot))
        self._kernel("nearest", self._scalar)(grid, (_THREADS,), (*arguments, labels, _pointer(lowest)))
        if not update:
            return labels, lowest, 0, 0
        sums = _one_hot_sums(scores, block) if one_hot else self._segment_sums(block, weights, labels, k)
        return labels, lowest, *sums

    def sum_block(self, block: Any, weights: Any | None, labels: Any, k: int) -> tuple[Any, Any]:
        """Return the sums and weights of a block's rows by label; see `Engine.sum_block`."""
        if k > _ONE_HOT_CLUSTERS:
            return self._segment_sums(block, weights, labels, k)
        one_hot = (labels[:, cupy.newaxis] == cupy.arange(k, dtype=np.int32)).astype(self.dtype)
        if weights is not None:
            one_hot *= weights[:, cupy.newaxis]
        return _one_hot_sums(one_hot, block)

    def relabel(self, held: Any, labels: Any) -> Any:
        """Give samples new labels, and return how many differ; see `Engine.relabel`."""
        changed = cupy.zeros((), np.uint64)
        self._with_labels("change_labels", labels, held, changed)
        return changed

    def cluster_sizes(self, labels: Any, k: int) -> np.ndarray:
        """Return how many samples have each label; see `Engine.cluster_sizes`."""
        counts = cupy.zeros(k, np.int64)
        self._with_labels("count_labels", labels, np.int32(k), counts)
        return to_host(counts)

    def _with_labels(self, name: str, labels: Any, *arguments: Any) -> None:
        """Launch a kernel of data/labels.cuh: CuPy's own for the same take seconds to compile."""
        kernel = function(_LABELS, _LABEL_KERNELS, f"kmeans::{name}", self._gpu.id)
        blocks = min(-(-len(labels) // _THREADS), _LABEL_BLOCKS * self.gpu.multiprocessors)
        kernel((blocks,), (_THREADS,), (labels, np.int64(len(labels)), *arguments))

    def _segment_sums(self, block: Any, weights: Any | None, labels: Any, k: int) -> tuple[Any, Any]:
        order = cupy.argsort(labels)
        starts = cupy.searchsorted(labels[order], cupy.arange(k + 1, dtype=np.int32))
        sums, totals = cupy.empty((k, self.n_features)), cupy.empty(k)
        arguments = (block, _pointer(weights), order, starts, np.int32(self.n_features), sums, totals)
        self._kernel("segment_sums", self._scalar)((k, self.n_features // 32 + 1), (32, 8), arguments)
        return sums, totals

    def _sums_about(self, origin: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self.largest = cupy.zeros(self.n_features)
        return super()._sums_about(origin)

    def block_moments(self, block: Any, origin: Any) -> tuple[Any, Any]:
        """Return Σ(x − origin) and Σ(x − origin)² over a block's rows, each of shape (d,), float64."""
        rows, d = block.shape
        wide = vector_of(block.itemsize)
        vectors = _whole_vectors(block, wide)
        wide = wide if vectors else 1
        width = min(32, 1 << (-(-d // wide) - 1).bit_length())
        columns = -(-d // (width * wide))
        # Many blocks, so that their last wave does not show; their number is not the GPU's to decide, nor is the order.
        slices = min(max(1, _MOMENT_BLOCKS // columns), -(-rows // 64))
        parts = cupy.empty((3, slices, d))
        arguments = (block, origin, np.int64(rows), np.int32(d), *parts)
        add_up, fold = self._kernel_of_blocks("column_moments", block, vectors=vectors), self._kernel("fold_moments")
        add_up((columns, slices), (width, _THREADS // width), arguments)
        totals, sizes = cupy.empty((2, d)), (np.int32(slices), np.int32(d))
        fold((-(-d // _FOLDED[0]),), _FOLDED, (parts, *sizes, totals, self.largest))
        return totals[0], totals[1]

    def rounded_moments(self) -> tuple[np.ndarray, float] | None:
        """Return `moments` as NumPy rounds them; see `Engine.rounded_moments`.

        NumPy adds up the rows of several columns one after the other; what is one column, by pairs.
        """
        X, d = self.held, self.n_features
        if X is None or d == 1:
            return None

        def means(about: np.ndarray, *, squares: bool) -> np.ndarray:
            kernel = self._kernel("add_in_order", self._scalar, str(squares).lower())
            sums = cupy.empty(d, self.dtype)
            sizes = np.int64(self.n_samples), np.int32(d)
            kernel((-(-d // 32),), (32,), (X, cupy.asarray(about), *sizes, sums))
            return (to_host(sums) / np.intp(self.n_samples)).astype(self.dtype)

        mean = means(np.zeros(d, self.dtype), squares=False)
        return mean, float(np.mean(means(mean, squares=True)))

    def block_distances(self, block: Any, centers: Any, labels: Any) -> Any:
        """Return ‖x − c‖² of each of a block's rows and the center that its label names, in `dtype`."""
        rows, d = block.shape
        distances = cupy.empty(rows, self.dtype)
        wide = vector_of(block.itemsize)
        vectors = all(_whole_vectors(array, wide) for array in (block, self.shift, centers))
        lanes, grid = _row_groups(-(-rows // _ROWS_TOGETHER), d // wide if vectors else d)
        arguments = (block, self.shift, centers, labels, np.int64(rows), np.int32(d), lanes, distances)
        self._kernel_of_blocks("own_distances", block, vectors=vectors)(grid, (_THREADS,), arguments)
        return distances

    def inertia(self, centers: np.ndarray) -> float:
        """Return Σ w·‖x − c‖²; see `Engine.inertia`."""
        device_centers = cupy.asarray(centers, dtype=self.dtype)

        def work(start: int, block: Any) -> Any:
            labels = self.labels[start : start + len(block)]
            return self._block_inertia(block, device_centers, labels, self.weights_of(start, block))

        first, *skip_full_assign = self.each_block(work, self.temporary_columns)
        return float(sum(skip_full_assign, first).item()) / (2 if self.spherical else 1)

    def _block_inertia(
        self, block: Any, centers: Any, labels: Any, weights: Any | None, kept: RunningSums | None = None
    ) -> Any:
        """Return Σ w·‖x − c‖² of a block's rows, an array of one float64; `kept` are sums of all of them."""
        (rows, d), k = block.shape, len(centers)
        sizes = rows, d, k, block.itemsize, self.dtype.itemsize
        aligned, digits = block.data.ptr % 16 == 0, None if kept is None else kept.digits
        plan = inertia_plan(*sizes, aligned=aligned, device=self.gpu, digits=digits)
        name = plan.kernel(ELEMENT[block.dtype.name], ELEMENT[self.dtype.name], weighted=weights is not None)
        kernel = function(_INERTIA, (name,), name, self._gpu.id)
        kernel.max_dynamic_shared_size_bytes = plan.shared_bytes
        sums, arrived, total = cupy.empty(plan.slices), cupy.zeros(1, np.uint32), cupy.empty(())
        counts = np.int64(rows), np.int32(k), np.int32(d), np.int32(plan.log2_lanes), np.int32(plan.slices)
        arguments = (block, self.shift, centers, labels, _pointer(weights), *counts, sums, arrived, total)
        compared = () if kept is None else (kept.argument,)
        grid = (plan.blocks(self.gpu.multiprocessors),)
        kernel(grid, (plan.threads,), (*arguments, *compared), shared_mem=plan.shared_bytes)
        return total

    def _kernel(self, name: str, *arguments: str) -> Kernel:
        """Return a kernel of engines/cublas_step.cuh, by its name and template arguments."""
        full = f"{name}<{', '.join(arguments)}>" if arguments else name
        return function(_SOURCE, (full,), full, self._gpu.id)

    @property
    def _scalar(self) -> str:
        return ELEMENT[self.dtype.name]

    def _kernel_of_blocks(self, name: str, block: Any, *, vectors: bool) -> Kernel:
        """Return the one for `block`, of those that take blocks of any dtype."""
        return self._kernel(name, ELEMENT[block.dtype.name], self._scalar, str(vectors).lower())

    def square_distances(self, points: np.ndarray) -> Any:
        """Return ‖x − p‖² for every point p and sample x, shape (len(points), n), in `dtype`."""
        out = cupy.empty((len(points), self.n_samples), self.dtype)
        groups = []
        for first in range(0, len(points), _POINTS):
            group = np.zeros((_POINTS, self.n_features))
            wanted = points[first : first + _POINTS]
            group[: len(wanted)] = wanted
            groups.append((cupy.asarray(group), len(wanted), out[first:]))

        def work(start: int, block: Any) -> None:
            rows, d = block.shape
            lanes, grid = _row_groups(rows, d)
            for group, count, distances in groups:
                sizes = (np.int32(count), np.int64(rows), np.int32(d), lanes, np.int64(self.n_samples))
                arguments = (block, self.shift, group, *sizes, distances[:, start:])
                self._kernel("point_distances", self._scalar)(grid, (_THREADS,), arguments)

        for _ in self.each_block(work, self.n_features):
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
    """One of two turns of a stream: a pinned buffer, its twin on the GPU, and when each may be written again."""

    def __init__(self, shape: tuple[int, int], dtype: np.dtype) -> None:
        self.pinned = empty_pinned(shape, dtype)
        self.twin = cupy.empty(shape, dtype)
        self.used = 0
        self.copied = cupy.cuda.Event(disable_timing=True)
        self.consumed = cupy.cuda.Event(disable_timing=True)
        # The twin's memory may still be in use by work queued on this stream before it was freed.
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
        self.twin[: self.used].set(self.pinned[: self.used], stream=copies)
        self.copied.record(copies)
        current = cupy.cuda.get_current_stream()
        current.wait_event(self.copied)
        yield self.twin[: self.used]
        self.consumed.record(current)
