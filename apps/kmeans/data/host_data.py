"""`HostData`: X in host memory, or streamed from its source; passes by NumPy on one thread per core."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from tsapps.apps.kmeans.data.blocks import Data
from tsapps.apps.kmeans.data.distances import distances_of, square_distances
from tsapps.apps.kmeans.data.frame import frobenius_norm, subtract_mean
from tsapps.apps.kmeans.data.rows import ArrayRows, Rows
from tsapps.kernels.blas.threads import one_blas_thread
from tsapps.kernels.devices import available_cores
from tsapps.kernels.system.host_memory import available_host_memory

__all__ = ["HostData", "check_memory"]

T = TypeVar("T")

# Elements of a task's widest temporary (16 MiB of float64): enough that the time to hand over tasks to threads is
# small.
_TASK_ELEMENTS = 1 << 21
_LEAST_ROWS = 256
# The memory of a fit, whose total the README states. Temporaries per thread, including queued blocks, in blocks.
_THREAD_BLOCKS = 7
# Bytes per sample: in total (label, k-means++ distances and running sums, relocation of empty clusters), and of the
# label.
_SAMPLE_BYTES, _LABEL_BYTES = 40, 4
# The most bytes in the working type of an X with a narrower type that is held in the working type. Larger X is
# converted in each pass, which may double the time.
_MOST_CONVERTED = 256 << 20


class HostData(Data):
    """X in host memory; see `Data`.

    X is held in memory if X and the other memory of a fit take at most half of the available memory. Otherwise every
    pass reads the source. A held X is centered and of type `dtype`, except a large X of a narrower type: it is held in
    its own type, and each pass converts it. Block boundaries depend only on shapes, so results do not depend on the
    number of threads.

    Parameters
    ----------
    source, dtype, sample_weight
        See `Data`.

    Raises
    ------
    MemoryError
        If the temporaries of the threads and the labels alone exceed the available memory.
    """

    xp = np
    device = "cpu"
    #: Whether rows may be so far from the mean that scores overflow, because they were not part of the fit.
    may_be_far = False

    def __init__(self, source: Rows, dtype: np.dtype, sample_weight: np.ndarray | None) -> None:
        n, d = source.shape
        of_thread = _THREAD_BLOCKS * 8 * min(max(_TASK_ELEMENTS, _LEAST_ROWS * d), n * (d + 4))
        available = available_host_memory()
        self.threads = max(1, min(available_cores(), available // 4 // of_thread))
        #: Bytes that a fit may use in addition to X.
        self.working_bytes = self.threads * of_thread + _SAMPLE_BYTES * n
        check_memory(source.name, self.threads * of_thread + _LABEL_BYTES * n, available)
        self.pool = ThreadPoolExecutor(self.threads)
        super().__init__(source, dtype, sample_weight)

    def fits(self, size: int) -> bool:
        """Tell whether X may take `size` more bytes; see `Data.fits`."""
        return size + self.working_bytes <= available_host_memory() // 2

    @property
    def keeps_source_dtype(self) -> bool:
        """Whether X is held in its own type, because that type is narrower than `dtype` and X is large."""
        converted = self.n_samples * self.n_features * self.dtype.itemsize
        return self.source.dtype.itemsize < self.dtype.itemsize and converted > _MOST_CONVERTED

    def held_bytes(self) -> int:
        """Return the size in bytes of a held copy of X."""
        itemsize = (self.source if self.keeps_source_dtype else self).dtype.itemsize
        return self.n_samples * self.n_features * itemsize

    def _hold(self) -> None:
        """Copy X to memory, not centered yet; a large X of a narrower type is copied in its own type to `reader`."""
        if not self.keeps_source_dtype:
            super()._hold()
        elif not isinstance(self.source, ArrayRows):
            copy = np.empty(self.source.shape, self.source.dtype)
            for start, block in self.source_blocks(self.block_rows(self.n_features)):
                copy[start : start + len(block)] = block
            self.reader = ArrayRows(copy, self.source.name)

    def block_rows(self, n_columns: int) -> int:
        """Return the number of rows of a block whose widest temporary has `n_columns` columns."""
        return max(_LEAST_ROWS, _TASK_ELEMENTS // max(n_columns, self.n_features))

    def each_block(self, work: Callable[[int, Any], T], n_columns: int) -> Iterator[T]:
        """Yield ``work(first row, block)`` for every block of centered rows in `dtype`, in row order."""
        waiting: deque[Future[T]] = deque()
        # One BLAS thread per thread of the pool: nested threads would compete for the cores.
        with one_blas_thread():
            for start, block in self.blocks(n_columns):
                waiting.append(self.pool.submit(lambda start, block: work(start, self.prepared(block)), start, block))
                if len(waiting) > 2 * self.threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

    def prepared(self, block: Any) -> Any:
        """Return a block of `blocks` in `dtype`, row-major and centered; see `Data.prepared`."""
        if self.held is not None:
            return block
        rows = block.astype(self.dtype, order="C", copy=False)
        return subtract_mean(rows, self.mean, np.empty(rows.shape, self.dtype) if rows is block else rows)

    def is_surely_finite(self, block: Any) -> bool:
        """Tell whether a block is finite, from its Frobenius norm; see `Data.is_surely_finite`."""
        return block.flags.c_contiguous and bool(np.isfinite(frobenius_norm(block)))

    def center_once(self, mean: np.ndarray) -> None:
        """Check X, and subtract `mean` from blocks as they are read, without a copy of X; see `Data.center_once`."""
        self.refuse_non_finite()
        self.may_be_far = True
        if self.held is self._borrowed:
            self.held = None
        self.center(mean)

    def square_distances(self, points: np.ndarray) -> np.ndarray:
        """Return ‖x − p‖² for every point p and sample x, shape (len(points), n), in `dtype`."""
        out = np.empty((len(points), self.n_samples), self.dtype)

        def work(start: int, block: Any) -> None:
            out[:, start : start + len(block)] = square_distances(points, block)

        for _ in self.each_block(work, len(points)):
            pass
        return out

    def distances(self, points: np.ndarray) -> np.ndarray:
        """Return ‖x − p‖, or 1 − cos, for every sample and point; see `Data.distances`."""
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
        for start in range(0, len(labels), _TASK_ELEMENTS):  # in pieces, because bincount converts labels to 8 bytes
            sizes += np.bincount(labels[start : start + _TASK_ELEMENTS], minlength=k)
        return sizes


def check_memory(name: str, size: int, available: int) -> None:
    """Raise MemoryError if more bytes are needed than available, before the system kills the process.

    Parameters
    ----------
    name : str
        The matrix, for the message.
    size, available : int
        Bytes.
    """
    if size > available:
        needed, found = (f"{count / 2**30:.2f} GiB" for count in (size, available))
        raise MemoryError(
            f"{name}: {needed} are needed besides the data, and {found} are available: raise the memory limit of this "
            f"process, or use fewer rows"
        )
