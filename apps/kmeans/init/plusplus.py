"""First centers: drawn as scikit-learn draws them, so that the same random state gives the same samples; and k-means‖.

References
----------
Arthur and Vassilvitskii, "k-means++: the advantages of careful seeding", SODA 2007; with the greedy choice among
2 + ⌊ln k⌋ candidates a step that scikit-learn makes.
Bahmani, Moseley, Vattani, Kumar and Vassilvitskii, "Scalable k-means++", PVLDB 5 (2012).
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from tsapps.apps.kmeans.data.distances import square_norms
from tsapps.apps.kmeans.data.rows import ArrayRows
from tsapps.apps.kmeans.engines.engine import Engine
from tsapps.kernels.arrays import to_host

__all__ = ["SMALL", "is_small", "kmeans_parallel", "kmeans_plusplus", "random_samples"]

# Up to this many bytes of X, sums over the samples follow scikit-learn's own rounding in float32, on the host: which
# sample a random number falls on depends on the last bits of a running sum. Above it they are carried in float64 where
# X is: scikit-learn's float32 running sum loses whole samples there (after 2²⁴ equal terms it stops growing).
SMALL = 8 << 20

#: Of k-means‖: samples drawn a round, in multiples of k, and rounds. The paper's choice, with which it reaches what
#: k-means++ does.
OVERSAMPLING, ROUNDS = 2, 5


def _probabilities(engine: Engine) -> np.ndarray:
    n = engine.n_samples
    weights = np.ones(n, engine.dtype) if engine.sample_weight is None else to_host(engine.sample_weight)
    return weights / weights.sum()


def is_small(engine: Engine) -> bool:
    """Tell whether X is so small that what follows from the last bit of a sum is to follow as in scikit-learn."""
    return engine.n_samples * engine.n_features * engine.dtype.itemsize <= SMALL


def _first_sample(engine: Engine, random_state: np.random.RandomState) -> int:
    """Draw one sample with probability in proportion to its weight."""
    if is_small(engine) or engine.sample_weight is not None:
        return int(random_state.choice(engine.n_samples, p=_probabilities(engine)))
    # What `choice` does with its one random number where all weights are the same, without n running sums.
    return min(int(random_state.random_sample() * engine.n_samples), engine.n_samples - 1)


def random_samples(engine: Engine, n_clusters: int, random_state: np.random.RandomState) -> np.ndarray:
    """Draw `n_clusters` different samples with probability in proportion to their weights.

    Returns
    -------
    numpy.ndarray of shape (n_clusters, d)
    """
    seeds = random_state.choice(engine.n_samples, size=n_clusters, replace=False, p=_probabilities(engine))
    return engine.rows(seeds)


def _rows_on_host(engine: Engine) -> Callable[[np.ndarray], np.ndarray]:
    """Return what `Engine.rows` is, for many calls: an array on a GPU is brought to the host once."""
    if not isinstance(engine.source, ArrayRows):
        return engine.rows
    X, mean = engine.source.on_host, to_host(engine.mean)

    def rows(indices: np.ndarray) -> np.ndarray:
        centered: np.ndarray = X[indices].astype(engine.dtype) - mean
        return centered

    return rows


def kmeans_plusplus(engine: Engine, n_clusters: int, random_state: np.random.RandomState) -> np.ndarray:
    """Draw centers by greedy k-means++.

    Each step draws 2 + ⌊ln k⌋ candidates with probability in proportion to w·D² (D: distance to the nearest center so
    far) and keeps the one that lowers the potential Σ w·D² most.

    Returns
    -------
    numpy.ndarray of shape (n_clusters, d)
    """
    trials = 2 + int(np.log(n_clusters))
    # In float64 no draw depends on how sums are rounded, or one in 10¹⁰.
    small, first = is_small(engine) and engine.dtype == np.float32, _first_sample(engine, random_state)
    # They do not depend on the data, and scikit-learn draws nothing between them.
    draws = random_state.uniform(size=(n_clusters - 1, trials))
    if not small:
        samples = engine.draw_plus_plus(first, draws)
        if samples is not None:
            return engine.rows(samples)
    rows = _rows_on_host(engine) if small else engine.rows
    centers = np.empty((n_clusters, engine.n_features), engine.dtype)
    centers[0] = rows(np.array([first]))[0]
    xp = np if small else engine.xp

    def here(array: Any) -> Any:
        return engine.brought(array) if small else array

    weights: Any = engine.sample_weight
    if small:
        weights = np.ones(engine.n_samples, engine.dtype) if weights is None else to_host(weights)

    def weighted(distances: Any) -> Any:
        return distances if weights is None else distances * weights

    def potential(distances: Any) -> Any:
        if small:
            return (distances @ weights[:, np.newaxis])[:, 0]
        return weighted(distances).sum(axis=1, dtype=np.float64)

    distances = engine.square_distances(centers[:1])
    seen, best = here(distances), 0
    best_potential = potential(seen)[best]
    for step in range(1, n_clusters):
        running = xp.cumsum(weighted(seen[best]), dtype=None if small else np.float64)
        candidates = to_host(xp.searchsorted(running, xp.asarray(draws[step - 1] * float(best_potential))))
        # Rounding can put a draw past the end of the running sum.
        np.clip(candidates, None, engine.n_samples - 1, out=candidates)
        points, closest = rows(candidates), distances[best]
        distances = engine.square_distances(points)
        engine.xp.minimum(closest, distances, out=distances)
        seen = here(distances)
        potentials = potential(seen)
        best = int(potentials.argmin())
        best_potential, centers[step] = potentials[best], points[best]
    return centers


def kmeans_parallel(engine: Engine, n_clusters: int, random_state: np.random.RandomState) -> np.ndarray:
    """Draw centers by k-means‖: many samples in each of a few passes, of which k are then chosen.

    Five rounds draw 2k samples each, with probability in proportion to w·D² (D: distance to the nearest one drawn in
    the rounds before). Every sample then counts for the nearest one drawn, and greedy k-means++ chooses k of them by
    these weights, in memory. Where the rounds found fewer than k that are nearest to a sample, more follow; where no
    sample is off those drawn, fewer than k are distinct, and the centers are these, again and again in their order.

    Parameters
    ----------
    engine : Engine
    n_clusters : int
    random_state : numpy.random.RandomState

    Returns
    -------
    numpy.ndarray of shape (n_clusters, d)

    Notes
    -----
    A round draws exactly 2k times from the joint distribution, as the paper's experiments do "to reduce the variance",
    rather than each sample independently: so it takes 2k random numbers and not n.

    References
    ----------
    Bahmani, Moseley, Vattani, Kumar and Vassilvitskii, "Scalable k-means++", PVLDB 5 (2012).
    """
    xp = engine.xp
    samples = np.array([_first_sample(engine, random_state)])
    nearest = xp.zeros(engine.n_samples, np.int32)
    closest = xp.full(engine.n_samples, np.inf, engine.dtype)
    _add_nearest(engine, engine.rows(samples), 0, nearest, closest)
    rounds = 0
    while True:
        running = closest if engine.sample_weight is None else engine.sample_weight * closest
        running = xp.cumsum(running, dtype=np.float64)
        potential = float(running[-1])
        if not potential > 0:
            break
        if rounds >= ROUNDS and np.count_nonzero(_weights_of(engine, nearest, len(samples))) >= n_clusters:
            break
        draws = random_state.uniform(size=OVERSAMPLING * n_clusters) * potential
        found = to_host(xp.searchsorted(running, xp.asarray(draws)))
        # Rounding can put a draw past the end of the running sum, or on a sample that has been drawn.
        found = np.setdiff1d(np.minimum(found, engine.n_samples - 1), samples)
        if not found.size:
            break
        del running
        _add_nearest(engine, engine.rows(found), len(samples), nearest, closest)
        samples = np.concatenate([samples, found])
        rounds += 1
    weights = _weights_of(engine, nearest, len(samples))
    points, weights = engine.rows(samples[weights > 0]), weights[weights > 0]
    if len(points) <= n_clusters:
        return np.resize(points, (n_clusters, engine.n_features))
    from sklearn.cluster import kmeans_plusplus as weighted_kmeans_plusplus

    return weighted_kmeans_plusplus(points, n_clusters, sample_weight=weights, random_state=random_state)[0]


def _add_nearest(engine: Engine, points: np.ndarray, first: int, nearest: Any, closest: Any) -> None:
    """Lower every sample's least square distance `closest` (n,) to that to the nearest of some points, where it is.

    `nearest` (n,), int32, gets the point's number there: its index plus `first`.
    """
    xp = engine.xp
    device_points = xp.asarray(points)
    minus_2_points = xp.asarray(np.ascontiguousarray(-2 * points.T))
    norms = xp.asarray(square_norms(points))

    def work(start: int, block: Any) -> None:
        labels = engine.assign_block(block, None, minus_2_points, norms, update=False, potential=False)[0]
        distances = engine.block_distances(block, device_points, labels)
        part = slice(start, start + len(block))
        closer = distances < closest[part]
        nearest[part] = xp.where(closer, labels + np.int32(first), nearest[part])
        closest[part] = xp.where(closer, distances, closest[part])

    for _ in engine.each_block(work, max(len(points), engine.temporary_columns)):
        pass


def _weights_of(engine: Engine, nearest: Any, count: int) -> np.ndarray:
    """Return the weight of the samples nearest to each of those drawn, (count,), float64, added in their order."""
    weights = None if engine.sample_weight is None else to_host(engine.sample_weight)
    return np.bincount(to_host(nearest), weights=weights, minlength=count).astype(np.float64)
