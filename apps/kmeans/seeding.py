"""First centres, drawn as scikit-learn draws them: the same random state gives the same samples.

References
----------
Arthur and Vassilvitskii, "k-means++: the advantages of careful seeding", SODA 2007; with the greedy choice among
2 + ⌊ln k⌋ candidates a step that scikit-learn makes.
"""

from typing import Any

import numpy as np

from tsapps.apps.kmeans.engine import Engine
from tsapps.kernels.arrays import to_host

__all__ = ["SMALL", "kmeans_plusplus", "random_samples"]

# Up to this many bytes of X, sums over the samples follow scikit-learn's own rounding in float32, on the host: which
# sample a random number falls on depends on the last bits of a running sum. Above it they are carried in float64 where
# X is: scikit-learn's float32 running sum loses whole samples there (after 2²⁴ equal terms it stops growing).
SMALL = 32 << 20


def _probabilities(engine: Engine) -> np.ndarray:
    n = engine.n_samples
    weights = np.ones(n, engine.dtype) if engine.sample_weight is None else to_host(engine.sample_weight)
    return weights / weights.sum()


def random_samples(engine: Engine, n_clusters: int, random_state: np.random.RandomState) -> np.ndarray:
    """Draw `n_clusters` different samples with probability in proportion to their weights.

    Returns
    -------
    numpy.ndarray of shape (n_clusters, d)
    """
    seeds = random_state.choice(engine.n_samples, size=n_clusters, replace=False, p=_probabilities(engine))
    return engine.rows(seeds)


def kmeans_plusplus(engine: Engine, n_clusters: int, random_state: np.random.RandomState) -> np.ndarray:
    """Draw centres by greedy k-means++.

    Each step draws 2 + ⌊ln k⌋ candidates with probability in proportion to w·D² (D: distance to the nearest centre so
    far) and keeps the one that lowers the potential Σ w·D² most.

    Returns
    -------
    numpy.ndarray of shape (n_clusters, d)
    """
    trials = 2 + int(np.log(n_clusters))
    small = engine.n_samples * engine.n_features * engine.dtype.itemsize <= SMALL
    if small or engine.sample_weight is not None:
        first = random_state.choice(engine.n_samples, p=_probabilities(engine))
    else:
        # What `choice` does with its one random number where all weights are the same, without n running sums.
        first = min(int(random_state.random_sample() * engine.n_samples), engine.n_samples - 1)
    # They do not depend on the data, and scikit-learn draws nothing between them.
    draws = random_state.uniform(size=(n_clusters - 1, trials))
    if not small:
        samples = engine.draw_plus_plus(int(first), draws)
        if samples is not None:
            return engine.rows(samples)
    centers = np.empty((n_clusters, engine.n_features), engine.dtype)
    centers[0] = engine.rows(np.array([first]))[0]
    xp = np if small else engine.xp

    def here(array: Any) -> Any:
        return to_host(array) if small else array

    weights: Any = None if engine.sample_weight is None else here(engine.sample_weight)
    if small and weights is None:
        weights = np.ones(engine.n_samples, engine.dtype)

    def weighted(distances: Any) -> Any:
        return distances if weights is None else distances * weights

    def potential(distances: Any) -> Any:
        if small:
            return (distances @ weights[:, np.newaxis])[:, 0]
        return weighted(distances).sum(axis=1, dtype=np.float64)

    closest = here(engine.square_distances(centers[:1]))
    best_potential = potential(closest)[0]
    closest = closest[0]
    for step in range(1, n_clusters):
        running = xp.cumsum(weighted(closest), dtype=None if small else np.float64)
        candidates = to_host(xp.searchsorted(running, xp.asarray(draws[step - 1] * float(best_potential))))
        # Rounding can put a draw past the end of the running sum.
        np.clip(candidates, None, engine.n_samples - 1, out=candidates)
        distances = here(engine.square_distances(engine.rows(candidates)))
        xp.minimum(closest, distances, out=distances)
        potentials = potential(distances)
        best = int(potentials.argmin())
        best_potential, closest = potentials[best], distances[best]
        centers[step] = engine.rows(candidates[best : best + 1])[0]
    return centers
