"""Assignment of samples to clusters of limited sizes, at the lowest cost or close to it.

1. Prices of clusters by ascent of the dual (prices.py): a lower bound of the cost of every assignment.
2. Each sample to the cluster of lowest cost plus price, and a few samples elsewhere for exact sizes (settle.py).
3. The samples whose cluster the bound leaves open, exactly, by a linear program (contested.py).

Usually step 3 proves that no assignment costs less. If too many samples are left open, all steps are repeated with
better prices; what then remains is a gap between the cost and the bound.
"""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from tsapps.apps.kmeans.balanced.assignment import BalancedAssignment
from tsapps.apps.kmeans.balanced.contested import improve
from tsapps.apps.kmeans.balanced.costs import Costs, NearestClusters
from tsapps.apps.kmeans.balanced.limits import Limits
from tsapps.apps.kmeans.balanced.prices import falling_prices
from tsapps.apps.kmeans.balanced.settle import settle

__all__ = ["assign"]


def assign(costs: Costs, limits: Limits, prices: np.ndarray) -> BalancedAssignment:
    """Assign the samples at a low cost; `prices`, (k,), are those of an assignment to similar centers, or zeros."""
    near = costs.nearest(prices)
    tried: Iterable[tuple[np.ndarray, NearestClusters]] = [(prices, near)]
    if prices.any() or not limits.hold(costs.sizes(near.labels)):
        tried = falling_prices(costs, limits, prices, near)
    best: BalancedAssignment | None = None
    for prices, near in tried:
        labels = settle(costs, limits, prices, near)
        found = BalancedAssignment(labels, costs.total(labels), near.total - limits.paid(prices), prices)
        found = improve(costs, limits, near, found)
        if best is not None:
            cheaper = min(best, found, key=lambda one: one.cost)
            found = replace(max(best, found, key=lambda one: one.bound), labels=cheaper.labels, cost=cheaper.cost)
        best = found
        if best.gap == 0:
            break
    assert best is not None  # at least one pair of prices and nearest clusters is tried
    return best
