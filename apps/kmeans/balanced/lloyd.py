"""Lloyd's algorithm with assignments to clusters of limited sizes.

References
----------
Bradley, Bennett and Demiriz, "Constrained k-means clustering", Microsoft Research MSR-TR-2000-65 (2000).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from tsapps.apps.kmeans.balanced.assign import assign
from tsapps.apps.kmeans.balanced.assignment import BalancedAssignment
from tsapps.apps.kmeans.balanced.costs import Costs
from tsapps.apps.kmeans.balanced.limits import Limits
from tsapps.apps.kmeans.data.blocks import Data
from tsapps.kernels.arrays import to_host

__all__ = ["BalancedRun", "run_from"]


@dataclass(frozen=True)
class BalancedRun:
    """The result of a run.

    Attributes
    ----------
    labels : array of shape (n,), int32
    centers : numpy.ndarray of shape (k, d)
        Centered like the samples.
    inertia : float
    n_iter : int
    gap : float
        Relative gap between the cost of the assignment of `labels` to `centers` and its lower bound.
    """

    labels: Any
    centers: np.ndarray
    inertia: float
    n_iter: int
    gap: float


def run_from(data: Data, centers: np.ndarray, limits: Limits, max_iter: int, tol: float) -> BalancedRun:
    """Iterate from initial centers, (k, d), until no assignment costs less than the last, or the centers settle.

    `tol` is the squared center shift up to which a run has converged. Labels belong to the returned centers.
    """
    square_norm, done, shift, same = data.square_norm(), 0, np.inf, False
    found = assign(Costs(data, centers, square_norm), limits, np.zeros(len(centers)))
    while done < max_iter and shift > tol and not same:
        following = _means(data, found.labels, centers)
        shift = float(((following.astype(np.float64) - centers) ** 2).sum())
        again = _assigned_again(Costs(data, following, square_norm), limits, found)
        centers, same, found, done = following, again.labels is found.labels, again, done + 1
    # As in scikit-learn, the iteration that finds the same labels counts.
    n_iter = min(done + 1, max_iter) if same and shift > tol else done
    return BalancedRun(found.labels, centers, data.inertia(centers, found.labels), n_iter, found.gap)


def _assigned_again(costs: Costs, limits: Limits, last: BalancedAssignment) -> BalancedAssignment:
    """Return an assignment to the next centers: the labels of the last one, if none is found that costs less."""
    found, cost = assign(costs, limits, last.prices), costs.total(last.labels)
    if cost - found.cost > costs.rounding:
        return found
    return BalancedAssignment(last.labels, cost, cost if found.gap == 0 else min(found.bound, cost), found.prices)


def _means(data: Data, labels: Any, centers: np.ndarray) -> np.ndarray:
    """Return the mean of each cluster, (k, d), in the working type; its center if it is empty."""
    xp, k = data.xp, len(centers)

    def work(start: int, rows: Any) -> Any:
        own = labels[start : start + len(rows)]
        indicators = xp.zeros((k, len(rows)))
        indicators[own, xp.arange(len(rows))] = 1
        return indicators @ rows.astype(np.float64, copy=False)

    sums = to_host(sum(data.each_centered_block(work, 4 * max(k, data.n_features))))
    sizes = data.count_labels(labels, k)[:, np.newaxis]
    means: np.ndarray = np.where(sizes > 0, sums / np.maximum(sizes, 1), centers).astype(data.dtype)
    return means
