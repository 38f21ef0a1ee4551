"""Contested samples: those that may be in another cluster in an assignment of lowest cost; a linear program over them.

An assignment with a sample in a cluster of reduced cost r costs at least the lower bound plus r. So samples and
clusters whose reduced cost is above the gap between a known assignment and the bound can be left out: the rest has an
assignment of lowest cost ("reduced cost fixing"). HiGHS finds it, of a few thousand samples out of any number. Samples
with equal reduced costs are one row of its problem.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_array, vstack

from tsapps.apps.kmeans.balanced.assignment import BalancedAssignment
from tsapps.apps.kmeans.balanced.costs import Costs, NearestClusters
from tsapps.apps.kmeans.balanced.limits import Limits
from tsapps.kernels.arrays import to_host

__all__ = ["MOST_PAIRS", "improve"]

#: Maximum number of pairs of a contested sample (or of several equal ones) and a cluster: HiGHS takes about a second.
MOST_PAIRS = 1 << 16
# Maximum number of contested samples times clusters before equal ones are counted as one.
_MOST_NUMBERS = 1 << 22
# Number of contested samples of the first linear program, and factor between one and the next.
_FIRST, _FACTOR = 512, 8


@dataclass(frozen=True)
class _Contested:
    """Contested samples by their reduced costs.

    Attributes
    ----------
    samples : numpy.ndarray of shape (m,)
        Indices of the samples, by group.
    groups : numpy.ndarray of shape (g, k)
        The reduced costs of each group of equal samples; infinite if they are left out.
    counts : numpy.ndarray of shape (g,)
        Number of samples of each group.
    """

    samples: np.ndarray
    groups: np.ndarray
    counts: np.ndarray


def improve(costs: Costs, limits: Limits, near: NearestClusters, found: BalancedAssignment) -> BalancedAssignment:
    """Improve an assignment and its bound among ever more contested samples, until they are equal or these too many.

    Parameters
    ----------
    costs : Costs
    limits : Limits
    near : NearestClusters
        For the prices of `found`.
    found : BalancedAssignment

    Returns
    -------
    BalancedAssignment
        The bound is the cost itself if that proves, up to rounding, that no assignment costs less.
    """
    xp, n, most = costs.xp, costs.data.n_samples, _FIRST
    while True:
        width = gap = found.cost - found.bound
        if gap <= costs.rounding:
            return replace(found, bound=found.cost)
        if most < n:  # all samples that are equal but for rounding
            width = min(width, float(xp.partition(near.gaps, most)[most]) + 4 * costs.rounding / n)
        contested = _contested(costs, near, found, width)
        if contested is None:
            return found
        samples = xp.asarray(contested.samples)
        fixed = costs.sizes(found.labels) - np.bincount(to_host(found.labels[samples]), minlength=costs.k)
        # In an assignment of lowest cost, clusters with prices above the gap are full, and those with prices below its
        # negative as small as allowed. Larger prices would say no more, and cost digits.
        clipped = np.clip(found.prices, -2 * gap, 2 * gap)
        solved = _solve(contested, clipped, limits.lower - fixed, limits.upper - fixed)
        if solved is None:
            return found
        labels = found.labels.copy()
        labels[samples] = xp.asarray(solved[0])
        found = replace(found, labels=labels, cost=costs.total(labels))
        if found.cost - found.bound <= width:
            return replace(found, bound=found.cost)
        prices = found.prices + (solved[1] - clipped)
        other = costs.nearest(prices)
        bound = other.total - limits.paid(prices)
        if bound > found.bound:
            near, found = other, replace(found, bound=bound, prices=prices)
        most *= _FACTOR


def _contested(costs: Costs, near: NearestClusters, assigned: BalancedAssignment, width: float) -> _Contested | None:
    """Return the samples with a choice: between clusters of reduced costs up to `width`, and the assigned one.

    Returns None if they are too many for a linear program.
    """
    xp, labels, paid = costs.xp, assigned.labels, costs.xp.asarray(assigned.prices)[:, np.newaxis]
    on_device = xp.flatnonzero((near.gaps <= width) | (labels != near.labels))
    samples = to_host(on_device)
    if len(samples) * costs.k > _MOST_NUMBERS:
        return None

    def work(start: int, block: Any) -> np.ndarray:
        first, end = np.searchsorted(samples, [start, start + block.shape[1]])
        inside = on_device[first:end]
        sums = block[:, inside - start] + paid
        found = (sums - sums.min(axis=0)).T
        left_out = found > width
        left_out[xp.arange(len(inside)), labels[inside]] = False
        found[left_out] = np.inf
        return to_host(found)

    reduced = np.concatenate(list(costs.each(work)))
    unit = costs.rounding / costs.data.n_samples or 1.0
    _, first, group, counts = np.unique(
        np.rint(reduced / unit), axis=0, return_index=True, return_inverse=True, return_counts=True
    )
    found = _Contested(samples[np.argsort(group, kind="stable")], reduced[first], counts)
    return None if np.isfinite(found.groups).sum() > MOST_PAIRS else found


def _solve(
    contested: _Contested, prices: np.ndarray, lower: np.ndarray, upper: np.ndarray
) -> tuple[np.ndarray, np.ndarray] | None:
    """Assign the contested samples at the lowest cost by HiGHS; return None if it fails.

    Parameters
    ----------
    contested : _Contested
    prices : numpy.ndarray of shape (k,)
        The prices that the reduced costs contain, up to those of clusters that are full or as small as allowed.
    lower, upper : numpy.ndarray of shape (k,)
        Limits of the numbers of contested samples of each cluster.

    Returns
    -------
    clusters : numpy.ndarray of shape (m,)
        Of the contested samples.
    prices : numpy.ndarray of shape (k,)
        The best prices for the contested samples alone; those of clusters that none may be in are not changed.
    """
    if not len(contested.samples):
        return contested.samples, prices
    k, (group, cluster) = len(prices), np.nonzero(np.isfinite(contested.groups))
    pairs, number = np.ones(len(group)), np.arange(len(group))
    of_group = csr_array((pairs, (group, number)), shape=(len(contested.groups), len(group)))
    of_cluster = csr_array((pairs, (cluster, number)), shape=(k, len(group)))
    increase = contested.groups[group, cluster] - prices[cluster]
    scale = abs(increase).max() or 1.0  # HiGHS has absolute tolerances
    found = linprog(
        increase / scale,
        A_ub=vstack([of_cluster, -of_cluster]),
        b_ub=np.concatenate([upper, -lower]),
        A_eq=of_group,
        b_eq=contested.counts,
        method="highs-ipm",
    )
    if found.status != 0:
        return None
    flow = np.rint(found.x).astype(np.int64)  # whole numbers at a vertex, as the constraints are those of a network
    sizes = of_cluster @ flow
    if not (np.array_equal(of_group @ flow, contested.counts) and (sizes >= lower).all() and (sizes <= upper).all()):
        return None
    marginals = scale * found.ineqlin.marginals
    return np.repeat(cluster, flow), np.where(of_cluster.sum(axis=1) > 0, marginals[k:] - marginals[:k], prices)
