"""Exact sizes: samples leave clusters with too many, and enter clusters with too few, where that costs least."""

from typing import Any

import numpy as np

from tsapps.apps.kmeans.balanced.costs import Costs, NearestClusters
from tsapps.apps.kmeans.balanced.limits import Limits

__all__ = ["settle"]


def settle(costs: Costs, limits: Limits, prices: np.ndarray, near: NearestClusters) -> Any:
    """Return labels, (n,), whose cluster sizes are within the limits.

    It starts from the nearest clusters by cost plus price. In each round, every sample of a cluster that is too large
    proposes the cluster with room to which it can go for the least cost plus price, and the cheapest proposals for
    which there is room are accepted; on a tie, those of the lowest sample and cluster. When no cluster is too large,
    clusters that are too small are filled likewise. A round fills a cluster or is the last, so that there are at most
    2 · k + 2.
    """
    labels = near.labels.copy()
    while True:
        sizes = costs.sizes(labels)
        leaving, entering = np.maximum(sizes - limits.upper, 0), np.maximum(limits.upper - sizes, 0)
        if not leaving.any():
            leaving, entering = np.maximum(sizes - limits.lower, 0), np.maximum(limits.lower - sizes, 0)
            if not entering.any():
                return labels
        _reassign(costs, prices, labels, leaving, entering)


def _reassign(costs: Costs, prices: np.ndarray, labels: Any, leaving: np.ndarray, entering: np.ndarray) -> None:
    """Reassign at most so many samples from and to each cluster, (k,), those that increase the cost least."""
    xp = costs.xp
    samples = xp.flatnonzero(xp.asarray(leaving > 0)[labels])
    targets, increases = (array[samples] for array in _best_targets(costs, prices, labels, entering > 0))
    kept = _lowest_of_each(xp, increases, labels[samples], xp.asarray(leaving))
    kept = kept[_lowest_of_each(xp, increases[kept], targets[kept], xp.asarray(entering))]
    labels[samples[kept]] = targets[kept]


def _best_targets(costs: Costs, prices: np.ndarray, labels: Any, is_open: np.ndarray) -> tuple[Any, Any]:
    """Return the open cluster of lowest cost plus price of every sample, and how much more it costs than its own."""
    xp, n = costs.xp, costs.data.n_samples
    targets, increases = xp.empty(n, np.int32), xp.empty(n)
    paid, paid_if_open = (xp.asarray(one)[:, np.newaxis] for one in (prices, np.where(is_open, prices, np.inf)))

    def work(start: int, block: Any) -> None:
        part, samples = slice(start, start + block.shape[1]), xp.arange(block.shape[1])
        own, sums = labels[part], block + paid_if_open
        target = sums.argmin(axis=0)
        targets[part] = target
        increases[part] = sums[target, samples] - (block[own, samples] + paid[own, 0])

    for _ in costs.each(work):
        pass
    return targets, increases


def _lowest_of_each(xp: Any, values: Any, groups: Any, most: Any) -> Any:
    """Return the ascending indices of the ``most[group]`` lowest values of each group; the first on a tie."""
    ordered = xp.lexsort(xp.stack([values, groups.astype(np.float64)]))
    grouped = groups[ordered]
    ranks = xp.arange(len(grouped)) - xp.searchsorted(grouped, grouped)
    return xp.sort(ordered[ranks < most[grouped]])
