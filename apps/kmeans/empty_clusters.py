"""Empty clusters: each gets the sample that is farthest from its own center, as in scikit-learn."""

import numpy as np

from tsapps.apps.kmeans.engines.engine import Engine
from tsapps.apps.kmeans.results import Assignment
from tsapps.kernels.arrays import to_host

__all__ = ["relocate_empty_clusters", "without_empty_clusters"]


def without_empty_clusters(engine: Engine, step: Assignment, centers: np.ndarray) -> np.ndarray:
    """Return the next centers where `centers` (k, d) left a cluster empty."""
    relocate_empty_clusters(engine, step, centers)
    return engine.next_centers(step, centers)


def relocate_empty_clusters(engine: Engine, step: Assignment, centers: np.ndarray) -> None:
    """Give each empty cluster the sample farthest from its own center, taken from that center's cluster.

    The choice among equals is scikit-learn's: the order that `numpy.argpartition` leaves.
    """
    empty = np.flatnonzero(step.weights == 0)
    distances = engine.own_distances(centers)
    if distances.max() == 0:
        return  # fewer distinct samples than clusters: there is nothing to move to
    farthest = np.argpartition(distances, -len(empty))[: -len(empty) - 1 : -1]
    rows = engine.rows(farthest).astype(np.float64)
    labels = to_host(engine.labels[engine.xp.asarray(farthest)])
    weights = np.ones(len(farthest))
    if engine.sample_weight is not None:
        weights = to_host(engine.sample_weight[engine.xp.asarray(farthest)]).astype(np.float64)
    for new, old, row, weight in zip(empty, labels, rows, weights, strict=True):
        step.sums[old] -= row * weight
        step.sums[new] = row * weight
        step.weights[new] = weight
        step.weights[old] -= weight
