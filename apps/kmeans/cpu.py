"""The NumPy engine: data in memory or streamed from its source, a thread a core.

`TSKMeans` on in-memory data uses scikit-learn's own compiled Lloyd instead, which is up to twice as fast where k and d
are small; this engine serves what scikit-learn cannot: data larger than memory, and progress after every iteration.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.metrics.pairwise import euclidean_distances
from threadpoolctl import ThreadpoolController

from tsapps.apps.kmeans.engine import Engine
from tsapps.apps.kmeans.rows import Rows
from tsapps.kernels.host_memory import available_host_memory

__all__ = ["CpuEngine"]

T = TypeVar("T")

# A task of about 16 MiB a temporary keeps its work far above the cost of handing it to a thread; its scores are made
# 1 MiB at a time, so that the arg-min reads them from the level-2 cache.
_TASK_ELEMENTS = 1 << 21
_SCORE_ELEMENTS = 1 << 17


class CpuEngine(Engine):
    """Passes over X with NumPy and BLAS; see `Engine`.

    X is held in memory, centred, where it fits in half of what is available, and is read from its source in every
    pass where it does not. Block bounds depend on shapes alone, so results do not depend on the number of threads.
    """

    xp = np
    device = "cpu"

    def __init__(self, source: Rows, dtype: np.dtype, sample_weight: np.ndarray | None) -> None:
        self.threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.pool = ThreadPoolExecutor(self.threads)
        self.libraries = ThreadpoolController()
        super().__init__(source, dtype, sample_weight)

    def fits(self, size: int) -> bool:
        """Tell whether `size` more bytes for X leave the machine room to work."""
        return size <= available_host_memory() // 2

    def block_rows(self, n_columns: int) -> int:
        """Return the rows of a block whose widest temporary has `n_columns` columns."""
        return max(256, _TASK_ELEMENTS // max(n_columns, self.n_features))

    def each_block(self, work: Callable[[int, Any], T], n_columns: int) -> Iterator[T]:
        """Yield ``work(first row, block)`` for every block of centred rows in `dtype`, in row order."""
        waiting: deque[Future[T]] = deque()
        # One BLAS thread for each of ours: nested threads fight over the cores.
        with self.libraries.limit(limits=1, user_api="blas"):
            for start, block in self.blocks(n_columns):
                waiting.append(self.pool.submit(lambda start, block: work(start, self.prepared(block)), start, block))
                if len(waiting) > 2 * self.threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

    def assign_block(
        self, block: Any, weights: Any | None, minus_2_centers: Any, norms: Any, *, update: bool, potential: bool
    ) -> tuple[Any, Any | None, Any, Any]:
        """Assign a block's rows; see `Engine.assign_block`."""
        labels = np.empty(len(block), np.int32)
        lowest = np.empty(len(block), self.dtype) if potential else None
        rows = max(64, _SCORE_ELEMENTS // len(norms))
        for start in range(0, len(block), rows):
            part = slice(start, start + rows)
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
        # The sums are the transpose of the weighted one-hot label matrix, times the rows.
        entries = np.ones(len(block), self.dtype) if weights is None else weights
        one_hot = csr_matrix((entries, labels, np.arange(len(block) + 1)), shape=(len(block), k))
        return one_hot.T @ block, np.bincount(labels, weights=weights, minlength=k)

    def square_distances(self, points: np.ndarray) -> np.ndarray:
        """Return ‖x − p‖² for every point p and sample x, shape (len(points), n), in `dtype`."""
        out = np.empty((len(points), self.n_samples), self.dtype)

        def work(start: int, block: Any) -> None:
            out[:, start : start + len(block)] = euclidean_distances(points, block, squared=True)

        for _ in self.each_block(work, len(points)):
            pass
        return out
