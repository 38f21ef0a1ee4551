"""The NumPy engine: data in memory or streamed from its source, a thread a core.

`TSKMeans` on in-memory data uses scikit-learn's own compiled Lloyd instead, which is up to twice as fast where k and d
are small; this engine serves what scikit-learn cannot: data larger than memory, and progress after every iteration.
"""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from tsapps.apps.kmeans.data.distances import square_distances
from tsapps.apps.kmeans.data.frame import ldexp, length, less, shrinking
from tsapps.apps.kmeans.data.rows import ArrayRows, Rows
from tsapps.apps.kmeans.engines.engine import Engine
from tsapps.apps.kmeans.init.plusplus import is_small
from tsapps.apps.kmeans.init.plusplus_host import draw_plus_plus
from tsapps.kernels.blas.threads import one_blas_thread
from tsapps.kernels.devices import available_cores
from tsapps.kernels.system.host_memory import available_host_memory

__all__ = ["CpuEngine", "distances_of"]

T = TypeVar("T")

# A task of about 16 MiB a temporary keeps its work far above the cost of handing it to a thread; its scores are made
# 1 MiB at a time, so that the arg-min reads them from the level-2 cache.
_TASK_ELEMENTS = 1 << 21
_SCORE_ELEMENTS = 1 << 17
_LEAST_ROWS = 256
# Memory: temporaries of a task's size that a thread may need, its share of the blocks that wait among them; bytes a
# sample for its label and for what draws of first centers and filled clusters keep of it; and the largest X that is
# held converted though its own type is narrower (to convert it in each pass may double the time of a fit). The README
# states the sum of these.
_THREAD_BLOCKS = 7
_SAMPLE_BYTES, _LABEL_BYTES = 40, 4
_MOST_CONVERTED = 256 << 20
# Distances of all samples to all candidates of a step of k-means++ are kept up to this size, or a fourth of X's.
_MOST_DISTANCES = 64 << 20
# Rows of one of scikit-learn's products, by which ties in small data are decided with the same rounding.
_CHUNK_ROWS = 256
# Square distances of less than this part of the two points' squared norms are computed again, by differences.
_CANCELLED = 2.0**-20


class CpuEngine(Engine):
    """Passes over X with NumPy and BLAS; see `Engine`.

    X is held in memory where it and all else that a fit needs take at most half of what is available, and is read from
    its source in every pass where they take more. It is held centered, in `dtype`; large X of a narrower type is held
    in its own, and each pass converts it. Block bounds depend on shapes alone, so results do not depend on the number
    of threads.

    Raises
    ------
    MemoryError
        If threads and labels alone take more than is available.
    """

    xp = np
    device = "cpu"

    def __init__(self, source: Rows, dtype: np.dtype, sample_weight: np.ndarray | None) -> None:
        n, d = source.shape
        of_thread = _THREAD_BLOCKS * 8 * min(max(_TASK_ELEMENTS, _LEAST_ROWS * d), n * (d + 4))
        available = available_host_memory()
        self.threads = max(1, min(available_cores(), available // 4 // of_thread))
        #: Bytes that a fit may take besides X.
        self.besides = self.threads * of_thread + _SAMPLE_BYTES * n
        _check_room(source.name, self.threads * of_thread + _LABEL_BYTES * n, available)
        self.pool = ThreadPoolExecutor(self.threads)
        self._is_placed = False
        super().__init__(source, dtype, sample_weight)
        # Loaded here, and not by a thread: `one_blas_thread` limits the libraries that are there when it begins.
        self._product = _scipy_product(self.dtype) if is_small(self) else None

    def fits(self, size: int) -> bool:
        """Tell whether `size` more bytes for X leave the machine room to work."""
        return size + self.besides <= available_host_memory() // 2

    @property
    def is_narrow(self) -> bool:
        """Whether X is held in its own type, which is narrower than `dtype`."""
        converted = self.n_samples * self.n_features * self.dtype.itemsize
        return self.source.dtype.itemsize < self.dtype.itemsize and converted > _MOST_CONVERTED

    def held_bytes(self) -> int:
        """Return the bytes of a copy of X, as it would be held."""
        itemsize = (self.source if self.is_narrow else self).dtype.itemsize
        return self.n_samples * self.n_features * itemsize

    def _hold(self) -> None:
        """Hold a copy of X, not centered; in its own type where that is narrow."""
        if not self.is_narrow:
            super()._hold()
        elif not isinstance(self.source, ArrayRows):
            copy = np.empty(self.source.shape, self.source.dtype)
            for start, block in self.source_blocks(self.block_rows(self.n_features)):
                copy[start : start + len(block)] = block
            self.reader = ArrayRows(copy, self.source.name)

    def block_rows(self, n_columns: int) -> int:
        """Return the rows of a block whose widest temporary has `n_columns` columns."""
        return max(_LEAST_ROWS, _TASK_ELEMENTS // max(n_columns, self.n_features))

    def each_block(self, work: Callable[[int, Any], T], n_columns: int) -> Iterator[T]:
        """Yield ``work(first row, block)`` for every block of centered rows in `dtype`, in row order."""
        waiting: deque[Future[T]] = deque()
        # One BLAS thread for each of ours: nested threads fight over the cores.
        with one_blas_thread():
            for start, block in self.blocks(n_columns):
                waiting.append(self.pool.submit(lambda start, block: work(start, self.prepared(block)), start, block))
                if len(waiting) > 2 * self.threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

    def prepared(self, block: Any) -> Any:
        """Return a block of `blocks` in `dtype`, row-major and centered; see `Blocks.prepared`."""
        if self.held is not None:
            return block
        rows = block.astype(self.dtype, order="C", copy=False)
        return less(rows, self.mean, np.empty(rows.shape, self.dtype) if rows is block else rows)

    def is_surely_finite(self, block: Any) -> bool:
        """Tell whether a block is finite, if that is soon told; see `Blocks.is_surely_finite`."""
        return block.flags.c_contiguous and bool(np.isfinite(length(block)))

    def place(self, centers: np.ndarray, mean: np.ndarray) -> np.ndarray:
        """Check X, and subtract a mean from it as it is read; see `Engine.place`."""
        self.refuse_non_finite()
        self._is_placed = True
        if self.held is self._borrowed:
            self.held = None  # a copy is not worth a pass
        return self._about(centers, mean)

    def assign_block(
        self, block: Any, weights: Any | None, minus_2_centers: Any, norms: Any, *, update: bool, potential: bool
    ) -> tuple[Any, Any | None, Any, Any]:
        """Assign a block's rows; see `Engine.assign_block`."""
        labels = np.empty(len(block), np.int32)
        lowest = np.empty(len(block), self.dtype) if potential else None
        # A fit's rows are in range (`Frame`); those of `predict` may be farther away.
        exponent = shrinking(block, minus_2_centers) if self._is_placed else 0
        block, minus_2_centers = ldexp(block, -exponent), ldexp(minus_2_centers, -exponent)
        norms, product = ldexp(norms, -2 * exponent), self._product
        if product is not None:
            minus_2_centers = np.asfortranarray(minus_2_centers)
        rows = _CHUNK_ROWS if product is not None else max(_CHUNK_ROWS, _SCORE_ELEMENTS // len(norms))
        for start in range(0, len(block), rows):
            part = slice(start, start + rows)
            if product is not None:
                scores = _scores_of_chunk(product, block[part], minus_2_centers, norms)
            else:
                scores = block[part] @ minus_2_centers
                scores += norms
            labels[part] = scores.argmin(axis=1)
            if lowest is not None:
                lowest[part] = scores.min(axis=1)
        if not update:
            return labels, lowest, 0, 0
        return labels, lowest, *self.sum_block(block, weights, labels, len(norms))

    def sum_block(self, block: Any, weights: Any | None, labels: Any, k: int) -> tuple[Any, Any]:
        """Return the sums and weights of a block's rows by label; see `Engine.sum_block`."""
        from scipy.sparse import csr_matrix

        # The sums are the transpose of the weighted one-hot label matrix, times the rows.
        entries = np.ones(len(block), self.dtype) if weights is None else weights
        one_hot = csr_matrix((entries, labels, np.arange(len(block) + 1)), shape=(len(block), k))
        return one_hot.T @ block, np.bincount(labels, weights=weights, minlength=k)

    def square_distances(self, points: np.ndarray) -> np.ndarray:
        """Return ‖x − p‖² for every point p and sample x, shape (len(points), n), in `dtype`."""
        out = np.empty((len(points), self.n_samples), self.dtype)

        def work(start: int, block: Any) -> None:
            out[:, start : start + len(block)] = square_distances(points, block)

        for _ in self.each_block(work, len(points)):
            pass
        return out

    def distances(self, points: np.ndarray) -> np.ndarray:
        """Return ‖x − p‖, or 1 − cos, for every sample and point; see `Engine.distances`."""
        out = np.empty((self.n_samples, len(points)), self.dtype)

        def work(start: int, block: Any) -> None:
            distances = distances_of(block, points)
            out[start : start + len(block)] = distances**2 / 2 if self.spherical else distances

        for _ in self.each_block(work, max(len(points), self.temporary_columns)):
            pass
        return out

    def draw_plus_plus(self, first: int, draws: np.ndarray) -> np.ndarray | None:
        """Draw samples with one distance a sample, where those to all candidates are many; see the engine's."""
        n, d = self.source.shape
        distances = draws.shape[1] * n * self.dtype.itemsize
        if distances <= max(_MOST_DISTANCES, n * d * self.source.dtype.itemsize // 4):
            return None
        _check_room(self.source.name, n * self.dtype.itemsize, available_host_memory())
        return draw_plus_plus(self, first, draws)

    def cluster_sizes(self, labels: Any, k: int) -> np.ndarray:
        """Return how many samples have each of `labels`, shape (k,), int64."""
        sizes = np.zeros(k, np.int64)
        for start in range(0, len(labels), _TASK_ELEMENTS):  # bincount widens what it is given
            sizes += np.bincount(labels[start : start + _TASK_ELEMENTS], minlength=k)
        return sizes


def _scipy_product(dtype: np.dtype) -> Callable[..., np.ndarray]:
    """Return the product of SciPy's BLAS, by which scikit-learn finds labels; NumPy may have another."""
    from scipy.linalg import get_blas_funcs

    return get_blas_funcs("gemm", dtype=dtype)


def _scores_of_chunk(
    product: Callable[..., np.ndarray], rows: np.ndarray, minus_2_centers: np.ndarray, norms: np.ndarray
) -> np.ndarray:
    """Return ‖c‖² − 2·x·c of a chunk's rows (m, d) and centers, (m, k), with scikit-learn's bits.

    It is the same product of the same library, to which norms are added. No other thread of Python runs meanwhile.
    """
    scores = np.empty((len(rows), len(norms)), rows.dtype)
    scores[:] = norms
    # The transposes, by columns, of what is here by rows.
    found = product(1.0, minus_2_centers, rows.T, beta=1.0, c=scores.T, trans_a=1, overwrite_c=1)
    return found.T


def distances_of(rows: np.ndarray, centers: np.ndarray) -> np.ndarray:
    """Return the distance of every row to every center, (n, k), float64: those that cancel, by differences."""
    rows, centers = rows.astype(np.float64, copy=False), centers.astype(np.float64, copy=False)
    exponent = shrinking(rows, centers)
    rows, centers = ldexp(rows, -exponent), ldexp(centers, -exponent)
    squares = square_distances(rows, centers)
    norms = (rows * rows).sum(axis=1)[:, np.newaxis] + (centers * centers).sum(axis=1)
    i, j = np.nonzero(squares < _CANCELLED * norms)
    each = max(1, _SCORE_ELEMENTS // rows.shape[1])
    for start in range(0, len(i), each):
        some, at = i[start : start + each], j[start : start + each]
        squares[some, at] = ((rows[some] - centers[at]) ** 2).sum(axis=1)
    return np.ldexp(np.sqrt(squares), exponent)


def _check_room(name: str, size: int, available: int) -> None:
    """Raise `MemoryError` if work on a matrix takes more than is available: the system would end the process."""
    if size > available:
        needed, found = (f"{count / 2**30:.2f} GiB" for count in (size, available))
        raise MemoryError(
            f"{name}: {needed} are needed besides the data, and {found} are available: raise the memory limit of this "
            f"process, or take fewer rows"
        )
