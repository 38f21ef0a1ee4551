"""`Costs`: squared distances of all samples to k centers, and passes over them in blocks of samples.

With a price for each cluster, the reduced cost of a sample in a cluster is its squared distance plus the price, minus
the lowest such sum of the sample.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from tsapps.apps.kmeans.data.blocks import Data
from tsapps.apps.kmeans.data.host_data import HostData
from tsapps.kernels.blas.threads import one_blas_thread

__all__ = ["Costs", "NearestClusters"]

T = TypeVar("T")

# Columns of all temporary arrays of a pass together, for each center. A block then fits the cache of a core.
_TEMPORARIES = 8
# Memory of a fit beside the costs, for each sample: labels, gaps, and what is sorted to settle sizes.
_SAMPLE_BYTES = 64


@dataclass(frozen=True)
class NearestClusters:
    """The cluster of lowest cost plus price of every sample.

    Attributes
    ----------
    labels : array of shape (n,), int32
        The lowest index on a tie.
    gaps : array of shape (n,), float64
        The lowest reduced cost of another cluster; infinite for k = 1.
    total : float
        The sum of the lowest costs plus prices.
    typical_gap : float
        The median of the gaps that are positive beyond rounding; 0 if there are none.
    """

    labels: Any
    gaps: Any
    total: float
    typical_gap: float


class Costs:
    """Squared distances of all samples to k centers, in float64.

    They are kept if memory allows for n · k of them; otherwise, every pass computes them again.

    Parameters
    ----------
    data : Data
        The centered samples.
    centers : numpy.ndarray of shape (k, d)
        Centered like the samples.
    square_norm : float
        Σ ‖x‖² over the samples.

    Attributes
    ----------
    rounding : float
        A bound of the rounding errors of a sum of n costs.
    """

    def __init__(self, data: Data, centers: np.ndarray, square_norm: float) -> None:
        self.data, self.xp, self.k = data, data.xp, len(centers)
        wide = np.asarray(centers, np.float64)
        norms = (wide * wide).sum(axis=1)
        self._centers, self._norms = self.xp.asarray(wide), self.xp.asarray(norms)[:, np.newaxis]
        n, d = data.n_samples, data.n_features
        self.rounding = float(np.finfo(np.float64).eps) * (d + 8) * (square_norm + n * float(norms.max()))
        self._columns = _TEMPORARIES * self.k
        self._kept: list[tuple[int, Any]] | None = None
        if data.fits(n * (self.k * 8 + _SAMPLE_BYTES)):
            self._kept = list(self.each(lambda start, block: (start, block)))

    def _block(self, rows: Any) -> Any:
        """Return the costs of some samples, (k, rows): by center, so that minima are operations on long vectors."""
        wide = rows.astype(np.float64, copy=False)
        found = self._centers @ wide.T
        found *= -2
        found += self._norms
        found += (wide * wide).sum(axis=1)
        return found

    def each(self, work: Callable[[int, Any], T]) -> Iterator[T]:
        """Yield ``work(first sample, costs)`` for every block of costs, (k, rows), in the order of the samples.

        `work` must not write to the costs.
        """
        if self._kept is None:
            yield from self.data.each_centered_block(lambda start, rows: work(start, self._block(rows)), self._columns)
        elif isinstance(self.data, HostData):
            with one_blas_thread():
                yield from self.data.pool.map(lambda kept: work(*kept), self._kept)
        else:
            for start, block in self._kept:
                yield work(start, block)

    def nearest(self, prices: np.ndarray) -> NearestClusters:
        """Return the cluster of lowest cost plus price, (k,), of every sample."""
        xp, n = self.xp, self.data.n_samples
        labels, gaps, paid = xp.empty(n, np.int32), xp.empty(n), xp.asarray(prices)[:, np.newaxis]

        def work(start: int, block: Any) -> Any:
            sums, part = block + paid, slice(start, start + block.shape[1])
            own, samples = sums.argmin(axis=0), xp.arange(block.shape[1])
            lowest = sums[own, samples]
            sums[own, samples] = np.inf
            labels[part], gaps[part] = own, sums.min(axis=0) - lowest
            return lowest.sum()

        total = float(sum(self.each(work)))
        positive = gaps[(gaps > 4 * self.rounding / n) & (gaps < np.inf)]
        return NearestClusters(labels, gaps, total, float(xp.median(positive)) if len(positive) else 0.0)

    def total(self, labels: Any) -> float:
        """Return the sum of the costs of all samples in the clusters of their labels, (n,)."""

        def work(start: int, block: Any) -> Any:
            count = block.shape[1]
            return block[labels[start : start + count], self.xp.arange(count)].sum()

        return float(sum(self.each(work)))

    def sizes(self, labels: Any) -> np.ndarray:
        """Return the number of samples of each cluster, (k,), int64."""
        return self.data.count_labels(labels, self.k)
