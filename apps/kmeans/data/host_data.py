"""`HostData`: X in host memory, or streamed from its source; passes by NumPy on one thread per core."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from tsapps.apps.kmeans.data.distances import distances_of, square_distances, square_norms
from tsapps.apps.kmeans.data.fixed_point_data import FixedPointData
from tsapps.apps.kmeans.data.frame import frobenius_norm, subtract_mean
from tsapps.apps.kmeans.data.host_moments import partial_moments
from tsapps.apps.kmeans.data.plan import moment_chunk
from tsapps.apps.kmeans.data.rows import ArrayRows, Rows, in_place
from tsapps.apps.kmeans.data.shard import Shard
from tsapps.apps.kmeans.inertia.host_inertia import partial_inertia, total_inertia
from tsapps.apps.kmeans.inertia.plan import inertia_chunk
from tsapps.kernels.arrays import to_host
from tsapps.kernels.blas.threads import one_blas_thread
from tsapps.kernels.devices import available_cores
from tsapps.kernels.system.host_memory import available_host_memory

__all__ = ["HostData", "check_memory"]

T = TypeVar("T")

# Target number of elements of a task's widest temporary array (16 MiB of float64), large enough that submitting tasks
# to threads takes little time. Minimum number of rows per task.
_TASK_ELEMENTS = 1 << 21
_LEAST_ROWS = 256
# Memory of the temporary arrays and queued blocks of a thread, as a number of blocks. The README states the memory of a
# fit.
_THREAD_BLOCKS = 7
# Number of bytes per sample: for labels, k-means++ distances, running sums and the relocation of empty clusters
# together; and for labels alone.
_SAMPLE_BYTES, _LABEL_BYTES = 40, 4
# Maximum size in bytes, after conversion, of an X that is converted once to a wider working type. A larger X is held in
# its own type and converted in each pass, which may double the time.
_MOST_CONVERTED = 256 << 20


class HostData(FixedPointData):
    """X in host memory; see `Data`.

    X is copied to memory if the copy and the other memory of a fit take at most half of the available memory. Otherwise
    every pass reads the source. The copy is centered and of type `dtype`. Large X that is not an array in memory, or
    has a narrower type, is an exception: its copy is not centered, or has the type of X, and each pass converts and
    centers it. Block boundaries depend only on shapes, so results do not depend on the number of threads.

    Parameters
    ----------
    source, dtype, sample_weight, shard
        See `FixedPointData`.
    threads : int, optional
        Maximum number of threads; by default, one per core.

    Raises
    ------
    MemoryError
        If the labels and the temporary arrays of the threads together exceed the available memory.
    """

    xp = np
    device = "cpu"
    #: True if rows were not part of the fit, so that they may be so far from the mean that scores overflow.
    may_be_far = False
    _is_centered = False

    def __init__(
        self,
        source: Rows,
        dtype: np.dtype,
        sample_weight: np.ndarray | None,
        shard: Shard | None = None,
        threads: int | None = None,
    ) -> None:
        n, d = source.shape
        chunk = moment_chunk(n if shard is None else shard.n_total, d, np.dtype(dtype).itemsize)
        of_thread = _THREAD_BLOCKS * 8 * min(max(_TASK_ELEMENTS, _LEAST_ROWS * d, chunk * d), n * (d + 4))
        available = available_host_memory()
        cores = available_cores() if threads is None else threads
        self.threads = max(1, min(cores, available // 4 // of_thread))
        #: Bytes that a fit may use in addition to X.
        self.working_bytes = self.threads * of_thread + _SAMPLE_BYTES * n
        check_memory(source.name, self.threads * of_thread + _LABEL_BYTES * n, available)
        self.pool = ThreadPoolExecutor(self.threads)
        super().__init__(source, dtype, sample_weight, shard)

    def fits(self, size: int) -> bool:
        """Return True if `size` bytes and the other memory of a fit take at most half of the available memory."""
        return size + self.working_bytes <= available_host_memory() // 2

    @property
    def keeps_source_dtype(self) -> bool:
        """True if X is large and its own type is narrower than `dtype`, so that X is held in its own type."""
        converted = self.n_samples * self.n_features * self.dtype.itemsize
        return self.source.dtype.itemsize < self.dtype.itemsize and converted > _MOST_CONVERTED

    def held_bytes(self) -> int:
        """Return the size in bytes of a copy of X in memory, in `dtype` or in X's own type (`keeps_source_dtype`)."""
        itemsize = (self.source if self.keeps_source_dtype else self).dtype.itemsize
        return self.n_samples * self.n_features * itemsize

    def _hold(self) -> None:
        """Copy X to memory, not centered: to `held`, or to `reader` if passes convert or center what they read.

        `reader` has rows as a GPU would read them, of which k-means++ computes distances. So large X that is neither in
        memory nor in a file of such rows is held there, and not a second time.
        """
        in_memory = isinstance(self.source, ArrayRows)
        if not self.keeps_source_dtype and (in_memory or self.is_small or in_place(self.source) is not None):
            super()._hold()
        elif not in_memory:
            dtype = self.source.dtype if self.keeps_source_dtype else self.dtype
            self.reader = ArrayRows(self._copied(dtype), self.source.name)

    def rows_as_read(self, indices: range | np.ndarray) -> np.ndarray:
        """Return rows as a kernel would read them, not centered; see `FixedPointData.rows_as_read`."""
        return to_host(self.reader.rows(np.array(indices))).astype(self.dtype)

    def block_rows(self, n_columns: int) -> int:
        """Return the number of rows per block for a pass whose widest temporary array has `n_columns` columns.

        With `n_columns` = 0, each block begins at a multiple of `chunk`.
        """
        if n_columns == 0:
            return max(1, _TASK_ELEMENTS // (self.n_features * self.chunk)) * self.chunk
        return max(_LEAST_ROWS, _TASK_ELEMENTS // max(n_columns, self.n_features))

    def each_block(self, work: Callable[[int, Any], T], n_columns: int) -> Iterator[T]:
        """Yield ``work(first row, block)`` for every block of centered rows in `dtype`, in row order."""
        rows = self.block_rows(n_columns)
        blocks = whole_blocks(self.blocks_of(rows), rows) if n_columns == 0 else self.blocks_of(rows)
        return self._each(blocks, work, self.prepared)

    def each_block_as_read(self, work: Callable[[int, Any], T], chunk: int, elements: int) -> Iterator[T]:
        """Yield ``work(first row, block)`` for every block of rows in `dtype`, not centered, in row order.

        Each block begins at a multiple of `chunk` rows, and has about so many elements.
        """
        rows = max(1, elements // (self.n_features * chunk)) * chunk

        def as_read(block: Any) -> Any:
            return block.astype(self.dtype, order="C", copy=False)

        return self._each(whole_blocks(self.reader.blocks(rows), rows), work, as_read)

    def _each(
        self, blocks: Iterable[tuple[int, Any]], work: Callable[[int, Any], T], prepare: Callable[[Any], Any]
    ) -> Iterator[T]:
        waiting: deque[Future[T]] = deque()
        # BLAS runs on one thread per call, because the threads of the pool already occupy all cores.
        with one_blas_thread():
            for start, block in blocks:
                waiting.append(self.pool.submit(lambda start, block: work(start, prepare(block)), start, block))
                if len(waiting) > 2 * self.threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

    def prepared(self, block: Any) -> Any:
        """Return a block that `blocks` yielded, converted to `dtype`, row-major and centered."""
        if self.held is not None:
            return block
        rows = block.astype(self.dtype, order="C", copy=False)
        if not self._subtracted.any():
            return rows
        return subtract_mean(rows, self.mean, np.empty(rows.shape, self.dtype) if rows is block else rows)

    def is_surely_finite(self, block: Any) -> bool:
        """Return True if the Frobenius norm of a block is finite, which proves that all of its elements are finite."""
        return block.flags.c_contiguous and bool(np.isfinite(frobenius_norm(block)))

    def center(self, mean: np.ndarray) -> None:
        """Subtract `mean`, (d,), from all rows that passes read from now on; see `Data.center`.

        A second call with the same mean, by the next fit, changes nothing.
        """
        subtracted = mean.astype(self.dtype).astype(np.float64)
        if self._is_centered and np.array_equal(subtracted, self._subtracted):
            return
        self._subtracted, self._is_centered = subtracted, True
        super().center(mean)

    def center_once(self, mean: np.ndarray) -> None:
        """Check that X is finite, and subtract `mean` from each block on read, without copying the caller's array."""
        self.refuse_non_finite()
        self.may_be_far = True
        if self.held is self._borrowed:
            self.held = None
        self.center(mean)

    def partial_moments(self, origin: np.ndarray) -> np.ndarray:
        """Return the moments of each chunk, shape (3, chunks, d), float64; see `FixedPointData.partial_moments`."""
        blocks = self.each_block(lambda _, block: partial_moments(block, origin, self.chunk), 0)
        return np.concatenate(list(blocks), axis=1)

    def block_distances(self, block: Any, centers: Any, labels: Any) -> Any:
        """Return ‖x − c‖² of each row x of a block and the center c of its label, (rows,), in `dtype`."""
        if not self.as_kernels:
            return super().block_distances(block, centers, labels)
        return square_norms(block.astype(np.float64) - centers[labels]).astype(self.dtype)

    def inertia(self, centers: np.ndarray, labels: np.ndarray) -> float:
        """Return Σ w·‖x − c‖²; see `Data.inertia`."""
        return total_inertia(self.partial_inertia(centers, labels)) / (2 if self.spherical else 1)

    def partial_inertia(self, centers: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return Σ w·‖x − c‖² of each chunk, shape (chunks,), float64.

        Those of all shards, joined, are the argument of `total_inertia`.
        """
        chunk = inertia_chunk(self.n_total, self.n_features, self.itemsize)

        def work(start: int, block: Any) -> np.ndarray:
            own = labels[start : start + len(block)]
            weights = self.weights_of(start, block)
            return partial_inertia(block, centers, own, weights, chunk=chunk, itemsize=self.itemsize)

        return np.concatenate(list(self.each_block(work, 0)))

    def square_distances(self, points: np.ndarray) -> np.ndarray:
        """Return ‖x − p‖² for every point p and sample x, shape (len(points), n), in `dtype`."""
        out = np.empty((len(points), self.n_samples), self.dtype)

        def work(start: int, block: Any) -> None:
            out[:, start : start + len(block)] = square_distances(points, block)

        for _ in self.each_block(work, len(points)):
            pass
        return out

    def distances(self, points: np.ndarray) -> np.ndarray:
        """Return ‖x − p‖, or 1 − cos(x, p), for every sample x and point p; see `Data.distances`."""
        out = np.empty((self.n_samples, len(points)), self.dtype)

        def work(start: int, block: Any) -> None:
            distances = distances_of(block, points)
            out[start : start + len(block)] = distances**2 / 2 if self.spherical else distances

        for _ in self.each_block(work, max(len(points), self.temporary_columns)):
            pass
        return out

    def count_labels(self, labels: Any, k: int) -> np.ndarray:
        """Return the number of samples with each of k labels, (k,), int64."""
        sizes = np.zeros(k, np.int64)
        for start in range(0, len(labels), _TASK_ELEMENTS):  # in pieces, because bincount copies its labels as int64
            sizes += np.bincount(labels[start : start + _TASK_ELEMENTS], minlength=k)
        return sizes


def whole_blocks(blocks: Iterable[tuple[int, Any]], rows: int) -> Iterator[tuple[int, Any]]:
    """Yield blocks of `rows` rows each, except the last, from consecutive blocks of at most as many."""
    parts: list[Any] = []
    first = count = 0
    for start, block in blocks:
        if not parts and len(block) == rows:
            yield start, block
            continue
        first = first if parts else start
        parts.append(block)
        count += len(block)
        while count >= rows:
            joined = np.concatenate(parts)
            yield first, joined[:rows]
            first, count = first + rows, count - rows
            parts = [joined[rows:]] if count else []
    if parts:
        yield first, np.concatenate(parts)


def check_memory(name: str, size: int, available: int) -> None:
    """Raise MemoryError if more bytes are needed than available, before the system kills the process.

    Parameters
    ----------
    name : str
        The name of the matrix in the message.
    size, available : int
        Number of bytes needed in addition to the matrix, and number of bytes available.
    """
    if size > available:
        needed, found = (f"{count / 2**30:.2f} GiB" for count in (size, available))
        raise MemoryError(
            f"{name}: {needed} are needed besides the data, and {found} are available: raise the memory limit of this "
            f"process, or use fewer rows"
        )
