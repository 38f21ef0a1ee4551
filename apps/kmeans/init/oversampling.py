"""Initial centers by k-means‖: oversampling in a few passes over X, and k-means++ over the samples.

References
----------
Bahmani, Moseley, Vattani, Kumar and Vassilvitskii, "Scalable k-means++", PVLDB 5 (2012).
"""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from tsapps.apps.kmeans.data.blocks import Data
from tsapps.apps.kmeans.data.distances import square_norms
from tsapps.apps.kmeans.init.chosen import Chosen
from tsapps.apps.kmeans.init.plusplus import first_sample
from tsapps.kernels.arrays import to_host

__all__ = ["BlockOversampling", "Nearest", "Oversampling", "kmeans_parallel"]

#: Labels rows. Parameters: a block (rows, d), and −2·pᵀ (d, m) and ‖p‖² (m,) of the points p. Returns the index of the
#: nearest point of each row, (rows,), int32.
Nearest = Callable[[Any, Any, Any], Any]

#: OVERSAMPLING: number of samples drawn per round, as a multiple of k. ROUNDS: minimum number of rounds. With these
#: values, k-means‖ reaches the potential of k-means++ in the paper.
OVERSAMPLING, ROUNDS = 2, 5


class Oversampling(Protocol):
    """X, and for each sample the nearest drawn sample; D is the distance to it."""

    def add(self, points: np.ndarray) -> None:
        """Add newly drawn samples, (m, d); they are numbered in the order in which they are added."""

    def potential(self) -> float:
        """Return Σ w·D² over all samples."""

    def at(self, targets: np.ndarray) -> np.ndarray:
        """Return the index of the first sample at which the running sum of w·D² reaches each target, (m,)."""

    def weights(self) -> np.ndarray:
        """Return, for each drawn sample, the total weight of the samples nearest to it, float64."""


def kmeans_parallel(
    data: Data,
    n_clusters: int,
    random_state: np.random.RandomState,
    oversampling: Oversampling,
    chosen: Chosen | None = None,
) -> np.ndarray:
    """Draw centers by k-means‖: oversample in a few passes over X, then reduce the drawn samples to k.

    Five rounds draw 2k samples each, with probability proportional to w·D². D is the distance to the nearest sample
    drawn in earlier rounds. Each drawn sample then gets the total weight of the samples nearest to it. Weighted greedy
    k-means++ on the drawn samples selects k of them, in memory.

    Further rounds follow until at least k drawn samples have a positive total weight. If the drawn samples include all
    distinct rows of X, and these are fewer than k, the centers repeat them in order.

    Parameters
    ----------
    data : Data
    n_clusters : int
    random_state : numpy.random.RandomState
    oversampling : Oversampling
        Of the samples of `data`; none has been drawn.
    chosen : callable, optional
        See `Chosen`.

    Returns
    -------
    numpy.ndarray of shape (n_clusters, d)
        The centers, centered as `data` is.

    Notes
    -----
    A round draws exactly 2k times from the joint distribution, as the paper's experiments do "to reduce the variance".
    So it needs 2k random numbers; an independent decision for each sample would need n.
    """
    samples = np.array([first_sample(data, random_state)])
    oversampling.add(data.rows(samples))
    rounds = 0
    while True:
        potential = oversampling.potential()
        if not potential > 0:
            break
        if rounds >= ROUNDS and np.count_nonzero(oversampling.weights()) >= n_clusters:
            break
        draws = random_state.uniform(size=OVERSAMPLING * n_clusters) * potential
        # Rounding can put a draw on a sample that has been drawn.
        found = np.setdiff1d(oversampling.at(draws), samples)
        if not found.size:
            break
        oversampling.add(data.rows(found))
        samples = np.concatenate([samples, found])
        rounds += 1
        if chosen is not None:
            chosen(rounds, max(rounds, ROUNDS))
    weights = oversampling.weights()
    points, weights = data.rows(samples[weights > 0]), weights[weights > 0]
    if len(points) <= n_clusters:
        return np.resize(points, (n_clusters, data.n_features))
    from sklearn.cluster import kmeans_plusplus as weighted_kmeans_plusplus

    return weighted_kmeans_plusplus(points, n_clusters, sample_weight=weights, random_state=random_state)[0]


class BlockOversampling:
    """`Oversampling` of data that is read in blocks, for NumPy and CuPy.

    Parameters
    ----------
    data : Data
    nearest_of : callable
        Labels the rows of a block; see `Nearest`.
    """

    def __init__(self, data: Data, nearest_of: Nearest) -> None:
        xp = data.xp
        self._data, self._nearest_of, self._count = data, nearest_of, 0
        self._nearest = xp.zeros(data.n_samples, np.int32)
        self._closest = xp.full(data.n_samples, np.inf, data.dtype)  # D² of each sample
        self._running: Any = None

    def add(self, points: np.ndarray) -> None:
        """Add newly drawn samples; see `Oversampling.add`."""
        data, xp, first, self._running = self._data, self._data.xp, self._count, None
        nearest, closest, device_points = self._nearest, self._closest, xp.asarray(points)
        minus_2_points, norms = xp.asarray(np.ascontiguousarray(-2 * points.T)), xp.asarray(square_norms(points))

        def work(start: int, block: Any) -> None:
            labels = self._nearest_of(block, minus_2_points, norms)
            distances = data.block_distances(block, device_points, labels)
            part = slice(start, start + len(block))
            closer = distances < closest[part]
            nearest[part] = xp.where(closer, labels + np.int32(first), nearest[part])
            closest[part] = xp.where(closer, distances, closest[part])

        for _ in data.each_block(work, max(len(points), data.temporary_columns)):
            pass
        self._count += len(points)

    def potential(self) -> float:
        """Return Σ w·D² over all samples; see `Oversampling.potential`."""
        weights = self._data.sample_weight
        running = self._closest if weights is None else weights * self._closest
        self._running = self._data.xp.cumsum(running, dtype=np.float64)
        return float(self._running[-1])

    def at(self, targets: np.ndarray) -> np.ndarray:
        """Return indices of samples; see `Oversampling.at`."""
        found = to_host(self._data.xp.searchsorted(self._running, self._data.xp.asarray(targets)))
        self._running = None
        # Rounding can put a target past the end of the running sum.
        return np.minimum(found, self._data.n_samples - 1)

    def weights(self) -> np.ndarray:
        """Return the total weight of each drawn sample; see `Oversampling.weights`."""
        weights = None if self._data.sample_weight is None else to_host(self._data.sample_weight)
        return np.bincount(to_host(self._nearest), weights=weights, minlength=self._count).astype(np.float64)
