"""Initial centers: greedy k-means++ and random samples, drawn as scikit-learn draws them.

The same random state gives the same samples as in scikit-learn.

References
----------
Arthur and Vassilvitskii, "k-means++: the advantages of careful seeding", SODA 2007. As in scikit-learn, each step
chooses the best of 2 + ⌊ln k⌋ candidates (greedy k-means++).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tsapps.apps.kmeans.data.blocks import Data
from tsapps.apps.kmeans.data.rows import ArrayRows
from tsapps.apps.kmeans.init.chosen import Chosen
from tsapps.apps.kmeans.init.plan import prunes
from tsapps.kernels.arrays import to_host

__all__ = [
    "Draw",
    "Drawn",
    "equally_likely_samples",
    "first_sample",
    "kmeans_plusplus",
    "n_trials",
    "order_of_sums",
    "random_numbers",
    "random_samples",
]

#: Draws samples by greedy k-means++. Parameters: the index of the first sample; uniform random numbers in [0, 1),
#: (k − 1, trials); and a `Chosen`. Candidate j of step i is the sample at which the running sum of w·D² reaches
#: ``draws[i, j]`` of its total. Returns the sample indices of the centers, (k,), or None if the implementation does not
#: support the data.
Draw = Callable[[int, np.ndarray, Chosen | None], np.ndarray | None]


def _probabilities(data: Data) -> np.ndarray:
    """Return the weights of the samples, normalised to sum 1, (n,)."""
    n = data.n_samples
    weights = np.ones(n, data.dtype) if data.sample_weight is None else to_host(data.sample_weight)
    return weights / weights.sum()


def first_sample(data: Data, random_state: np.random.RandomState) -> int:
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


def order_of_sums(n_clusters: int) -> tuple[int, bool]:
    """Return the number of candidates, and whether steps may be pruned: together they fix the order of additions.

    Pruned steps of a GPU add up in another order, which may change a draw.
    """
    trials = n_trials(n_clusters)
    return trials, prunes(n_clusters - 1, trials)


def random_numbers(data: Data, n_clusters: int, random_state: np.random.RandomState) -> tuple[int, np.ndarray]:
    """Return the first sample, and the random numbers of all steps, (n_clusters − 1, candidates).

    The numbers do not depend on the data, and scikit-learn draws the same sequence.
    """
    return first_sample(data, random_state), random_state.uniform(size=(n_clusters - 1, n_trials(n_clusters)))


def kmeans_plusplus(
    data: Data,
    n_clusters: int,
    random_state: np.random.RandomState,
    draw: Draw | None = None,
    chosen: Chosen | None = None,
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
    chosen : callable, optional
        See `Chosen`. It is not called if earlier calls have drawn the samples.

    Returns
    -------
    numpy.ndarray of shape (n_clusters, d)
        The centers, centered as `data` is.

    Notes
    -----
    No step depends on those that follow. So fewer centers from the same random numbers are the first of more: fits of
    several k with one seed, from the largest k down, draw once for all k of the same number of candidates.
    """
    # Only float32 needs scikit-learn's rounding: in float64, about one draw in 10¹⁰ depends on the rounding of sums.
    small, (first, draws) = data.rounds_draws(n_clusters), random_numbers(data, n_clusters, random_state)
    method = data.host_mean().tobytes(), small, *order_of_sums(n_clusters)
    known = data.drawn if data.drawn is not None and data.drawn.method == method else None
    if known is not None and known.first == first and np.array_equal(draws, known.draws[: len(draws)]):
        return known.centers[:n_clusters].copy()
    samples = None if small or draw is None else draw(first, draws, chosen)
    if samples is None:
        samples = _draw(data, first, draws, chosen, small=small)
    centers = data.rows(samples)
    if known is None:  # of several runs, the first: the numbers of later ones depend on k
        data.drawn = Drawn(method, first, draws, centers.copy())
    return centers


class Drawn(NamedTuple):
    """Samples that became centers, (k, d), and what they were drawn from.

    `method` identifies the centered rows, and the order of additions.
    """

    method: tuple[bytes, bool, int, bool]
    first: int
    draws: np.ndarray
    centers: np.ndarray


def _draw(data: Data, first: int, draws: np.ndarray, chosen: Chosen | None, *, small: bool) -> np.ndarray:
    """Draw samples, as `Draw` does, for any data; with scikit-learn's rounding, on the host, if `small`."""
    samples = np.full(len(draws) + 1, first, np.int64)
    rows = _rows_on_host(data) if small else data.rows
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

    distances = data.square_distances(rows(samples[:1]))
    seen, best = here(distances), 0
    best_potential = potential(seen)[best]
    for step, drawn in enumerate(draws, start=1):
        running = xp.cumsum(weighted(seen[best]), dtype=None if small else np.float64)
        candidates = to_host(xp.searchsorted(running, xp.asarray(drawn * float(best_potential))))
        # Rounding can put a draw past the end of the running sum.
        np.clip(candidates, None, data.n_samples - 1, out=candidates)
        closest = distances[best]
        distances = data.square_distances(rows(candidates))
        data.xp.minimum(closest, distances, out=distances)
        seen = here(distances)
        potentials = potential(seen)
        best = int(potentials.argmin())
        best_potential, samples[step] = potentials[best], candidates[best]
        if chosen is not None:
            chosen(step + 1, len(samples))
    return samples
