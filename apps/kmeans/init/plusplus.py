"""Initial centers: greedy k-means++ and random samples, drawn as scikit-learn draws them; and k-means‖.

The same random state gives the same samples as in scikit-learn.

References
----------
Arthur and Vassilvitskii, "k-means++: the advantages of careful seeding", SODA 2007. As in scikit-learn, each step
chooses the best of 2 + ⌊ln k⌋ candidates (greedy k-means++).
Bahmani, Moseley, Vattani, Kumar and Vassilvitskii, "Scalable k-means++", PVLDB 5 (2012).
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from tsapps.apps.kmeans.data.blocks import Data
from tsapps.apps.kmeans.data.distances import square_norms
from tsapps.apps.kmeans.data.rows import ArrayRows
from tsapps.kernels.arrays import to_host

__all__ = ["Draw", "Nearest", "kmeans_parallel", "kmeans_plusplus", "n_trials", "random_samples"]

#: Draws samples by greedy k-means++. Parameters: the index of the first sample, and uniform random numbers in [0, 1),
#: (k − 1, trials). Candidate j of step i is the sample at which the running sum of w·D² reaches ``draws[i, j]`` of its
#: total. Returns the sample indices of the centers, (k,), or None if the implementation does not support the data.
Draw = Callable[[int, np.ndarray], np.ndarray | None]
#: Labels rows. Parameters: a block (rows, d), and −2·pᵀ (d, m) and ‖p‖² (m,) of the points p. Returns the index of the
#: nearest point of each row, (rows,), int32.
Nearest = Callable[[Any, Any, Any], Any]

#: k-means‖. OVERSAMPLING: number of samples drawn per round, as a multiple of k. ROUNDS: minimum number of rounds. With
#: these values, k-means‖ reaches the potential of k-means++ in the paper.
OVERSAMPLING, ROUNDS = 2, 5


def _probabilities(data: Data) -> np.ndarray:
    """Return the weights of the samples, normalised to sum 1, (n,)."""
    n = data.n_samples
    weights = np.ones(n, data.dtype) if data.sample_weight is None else to_host(data.sample_weight)
    return weights / weights.sum()


def _first_sample(data: Data, random_state: np.random.RandomState) -> int:
    """Draw the index of one sample, with probability proportional to its weight."""
    if data.is_small or data.sample_weight is not None:
        return int(random_state.choice(data.n_samples, p=_probabilities(data)))
    # For equal weights, this gives the sample that `choice` draws, without a running sum over n samples.
    return min(int(random_state.random_sample() * data.n_samples), data.n_samples - 1)


def random_samples(data: Data, n_clusters: int, random_state: np.random.RandomState) -> np.ndarray:
    """Draw `n_clusters` different samples, with probability proportional to their weights.

    Returns
    -------
    numpy.ndarray of shape (n_clusters, d)
        The samples, centered as `data` is.
    """
    if data.is_small or data.sample_weight is not None:
        samples = random_state.choice(data.n_samples, size=n_clusters, replace=False, p=_probabilities(data))
    else:
        samples = equally_likely_samples(data.n_samples, n_clusters, random_state)
    return data.rows(samples)


def equally_likely_samples(n: int, count: int, random_state: np.random.RandomState) -> np.ndarray:
    """Draw `count` different numbers below n, as ``choice(n, count, replace=False, p=[1/n, …])`` does, in O(count).

    `choice` adds up n probabilities. Rounding of this sum changes a draw once in some 10¹⁰ / n.
    """
    found = np.zeros(0, np.int64)
    while len(found) < count:
        drawn = random_state.random_sample(count - len(found))
        left = np.minimum((drawn * (n - len(found))).astype(np.int64), n - len(found) - 1)
        # The numbers that are left, in order: each found number below or at a place moves the place up by one.
        ordered = np.sort(found)
        new = left + np.searchsorted(ordered - np.arange(len(ordered)), left, side="right")
        found = np.concatenate([found, new[np.sort(np.unique(new, return_index=True)[1])]])
    return found


def _rows_on_host(data: Data) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that does what `Data.rows` does, but copies an array on a GPU to the host only once."""
    if not isinstance(data.source, ArrayRows):
        return data.rows
    X, mean = data.source.on_host, data.host_mean()

    def rows(indices: np.ndarray) -> np.ndarray:
        centered: np.ndarray = X[indices].astype(data.dtype) - mean
        return centered

    return rows


def n_trials(n_clusters: int) -> int:
    """Return the number of candidates of each step of greedy k-means++."""
    return 2 + int(np.log(n_clusters))


def kmeans_plusplus(
    data: Data, n_clusters: int, random_state: np.random.RandomState, draw: Draw | None = None
) -> np.ndarray:
    """Draw centers by greedy k-means++.

    Each step draws 2 + ⌊ln k⌋ candidates, with probability proportional to w·D². D is the distance to the nearest
    center so far. The candidate that lowers the potential Σ w·D² most becomes a center.

    Parameters
    ----------
    data : Data
    n_clusters : int
    random_state : numpy.random.RandomState
    draw : callable, optional
        A faster implementation for this engine; see `Draw`. It is not used for small float32 data, for which this
        function reproduces scikit-learn's rounding.

    Returns
    -------
    numpy.ndarray of shape (n_clusters, d)
        The centers, centered as `data` is.
    """
    trials = n_trials(n_clusters)
    # Only float32 needs scikit-learn's rounding: in float64, about one draw in 10¹⁰ depends on the rounding of sums.
    small, first = data.rounds_draws(n_clusters), _first_sample(data, random_state)
    # The random numbers of all steps: they do not depend on the data, and scikit-learn draws the same sequence.
    draws = random_state.uniform(size=(n_clusters - 1, trials))
    if not small and draw is not None:
        samples = draw(first, draws)
        if samples is not None:
            return data.rows(samples)
    rows = _rows_on_host(data) if small else data.rows
    centers = np.empty((n_clusters, data.n_features), data.dtype)
    centers[0] = rows(np.array([first]))[0]
    xp = np if small else data.xp

    def here(array: Any) -> Any:
        return data.copy_to_host(array) if small else array

    weights: Any = data.sample_weight
    if small:
        weights = np.ones(data.n_samples, data.dtype) if weights is None else to_host(weights)

    def weighted(distances: Any) -> Any:
        return distances if weights is None else distances * weights

    def potential(distances: Any) -> Any:
        if small:
            return (distances @ weights[:, np.newaxis])[:, 0]
        return weighted(distances).sum(axis=1, dtype=np.float64)

    distances = data.square_distances(centers[:1])
    seen, best = here(distances), 0
    best_potential = potential(seen)[best]
    for step in range(1, n_clusters):
        running = xp.cumsum(weighted(seen[best]), dtype=None if small else np.float64)
        candidates = to_host(xp.searchsorted(running, xp.asarray(draws[step - 1] * float(best_potential))))
        # Rounding can put a draw past the end of the running sum.
        np.clip(candidates, None, data.n_samples - 1, out=candidates)
        points, closest = rows(candidates), distances[best]
        distances = data.square_distances(points)
        data.xp.minimum(closest, distances, out=distances)
        seen = here(distances)
        potentials = potential(seen)
        best = int(potentials.argmin())
        best_potential, centers[step] = potentials[best], points[best]
    return centers


def kmeans_parallel(
    data: Data, n_clusters: int, random_state: np.random.RandomState, nearest_of: Nearest
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
    nearest_of : callable
        Labels the rows of a block; see `Nearest`.

    Returns
    -------
    numpy.ndarray of shape (n_clusters, d)
        The centers, centered as `data` is.

    Notes
    -----
    A round draws exactly 2k times from the joint distribution, as the paper's experiments do "to reduce the variance".
    So it needs 2k random numbers; an independent decision for each sample would need n.

    References
    ----------
    Bahmani, Moseley, Vattani, Kumar and Vassilvitskii, "Scalable k-means++", PVLDB 5 (2012).
    """
    xp = data.xp
    samples = np.array([_first_sample(data, random_state)])
    nearest = xp.zeros(data.n_samples, np.int32)
    closest = xp.full(data.n_samples, np.inf, data.dtype)
    _add_nearest(data, nearest_of, data.rows(samples), 0, nearest, closest)
    rounds = 0
    while True:
        running = closest if data.sample_weight is None else data.sample_weight * closest
        running = xp.cumsum(running, dtype=np.float64)
        potential = float(running[-1])
        if not potential > 0:
            break
        if rounds >= ROUNDS and np.count_nonzero(_weights_of(data, nearest, len(samples))) >= n_clusters:
            break
        draws = random_state.uniform(size=OVERSAMPLING * n_clusters) * potential
        found = to_host(xp.searchsorted(running, xp.asarray(draws)))
        # Rounding can put a draw past the end of the running sum, or on a sample that has been drawn.
        found = np.setdiff1d(np.minimum(found, data.n_samples - 1), samples)
        if not found.size:
            break
        del running
        _add_nearest(data, nearest_of, data.rows(found), len(samples), nearest, closest)
        samples = np.concatenate([samples, found])
        rounds += 1
    weights = _weights_of(data, nearest, len(samples))
    points, weights = data.rows(samples[weights > 0]), weights[weights > 0]
    if len(points) <= n_clusters:
        return np.resize(points, (n_clusters, data.n_features))
    from sklearn.cluster import kmeans_plusplus as weighted_kmeans_plusplus

    return weighted_kmeans_plusplus(points, n_clusters, sample_weight=weights, random_state=random_state)[0]


def _add_nearest(data: Data, nearest_of: Nearest, points: np.ndarray, first: int, nearest: Any, closest: Any) -> None:
    """Update `nearest` and `closest` of all samples by newly drawn points (m, d).

    `nearest` (n,), int32, is the index of the drawn point that is nearest to each sample. `closest` (n,) is the squared
    distance to this point. The new points have the indices first … first + m − 1.
    """
    xp = data.xp
    device_points = xp.asarray(points)
    minus_2_points = xp.asarray(np.ascontiguousarray(-2 * points.T))
    norms = xp.asarray(square_norms(points))

    def work(start: int, block: Any) -> None:
        labels = nearest_of(block, minus_2_points, norms)
        distances = data.block_distances(block, device_points, labels)
        part = slice(start, start + len(block))
        closer = distances < closest[part]
        nearest[part] = xp.where(closer, labels + np.int32(first), nearest[part])
        closest[part] = xp.where(closer, distances, closest[part])

    for _ in data.each_block(work, max(len(points), data.temporary_columns)):
        pass


def _weights_of(data: Data, nearest: Any, count: int) -> np.ndarray:
    """Return, for each drawn sample, the total weight of the samples nearest to it, (count,), in float64."""
    weights = None if data.sample_weight is None else to_host(data.sample_weight)
    return np.bincount(to_host(nearest), weights=weights, minlength=count).astype(np.float64)
