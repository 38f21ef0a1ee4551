"""Empty clusters: each gets the sample that is farthest from its own center, as in scikit-learn."""

from typing import Any

import numpy as np

from tsapps.apps.kmeans.data.blocks import Data
from tsapps.apps.kmeans.results import Assignment
from tsapps.apps.kmeans.update.means import next_centers
from tsapps.kernels.arrays import to_host

__all__ = ["relocate_empty_clusters", "without_empty_clusters"]


def without_empty_clusters(data: Data, labels: Any, found: Assignment, centers: np.ndarray) -> np.ndarray:
    """Return the next centers where `centers` (k, d) left a cluster empty."""
    relocate_empty_clusters(data, labels, found, centers)
    return next_centers(data, found, centers)


def relocate_empty_clusters(data: Data, labels: Any, found: Assignment, centers: np.ndarray) -> None:
    """Give each empty cluster the sample farthest from its own center, taken from that center's cluster.

    The choice among equals is scikit-learn's: the order that `numpy.argpartition` leaves.
    """
    empty = np.flatnonzero(found.weights == 0)
    distances = data.own_distances(centers, labels)
    if distances.max() == 0:
        return  # fewer distinct samples than clusters: there is nothing to move to
    farthest = np.argpartition(distances, -len(empty))[: -len(empty) - 1 : -1]
    rows = data.rows(farthest).astype(np.float64)
    of_rows = to_host(labels[data.xp.asarray(farthest)])
    weights = np.ones(len(farthest))
    if data.sample_weight is not None:
        weights = to_host(data.sample_weight[data.xp.asarray(farthest)]).astype(np.float64)
    for new, old, row, weight in zip(empty, of_rows, rows, weights, strict=True):
        found.sums[old] -= row * weight
        found.sums[new] = row * weight
        found.weights[new] = weight
        found.weights[old] -= weight
