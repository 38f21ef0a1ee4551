"""Relocation of empty clusters to the samples farthest from their assigned centers, on the host, as in scikit-learn.

Steps on a GPU relocate the clusters of many samples themselves (update/relocation.py), except in protected fits.
"""

from importlib import import_module
from typing import Any

import numpy as np

from tsapps.apps.kmeans.data.blocks import Data
from tsapps.apps.kmeans.engines.step import Step
from tsapps.apps.kmeans.results import Assignment
from tsapps.apps.kmeans.update import relocation
from tsapps.apps.kmeans.update.means import next_centers
from tsapps.kernels.arrays import to_host

__all__ = ["next_centers_after_relocation", "relocate_empty_clusters"]


def next_centers_after_relocation(step: Step, found: Assignment, centers: np.ndarray) -> np.ndarray:
    """Relocate the empty clusters of an assignment, and return the new centers.

    Parameters
    ----------
    step : Step
        The step that assigned the samples.
    found : Assignment
        The assignment to `centers`. Its sums and weights are modified in place.
    centers : numpy.ndarray of shape (k, d)

    Returns
    -------
    numpy.ndarray of shape (k, d)
    """
    relocate_empty_clusters(step.data, step.labels, found, centers, step.sums_units)
    return next_centers(step.data, found, centers)


def relocate_empty_clusters(
    data: Data, labels: Any, found: Assignment, centers: np.ndarray, units: np.ndarray | None = None
) -> None:
    """Move the samples farthest from their assigned centers into the empty clusters, one sample per cluster.

    Modifies the sums and weights of `found` in place, but not `labels`. If all distances are zero, nothing is moved.

    Parameters
    ----------
    data : Data
    labels : array of shape (n,), int32
    found : Assignment
        The assignment to `centers`.
    centers : numpy.ndarray of shape (k, d)
    units : numpy.ndarray of shape (d + 1,), optional
        Fixed-point units of the sums and of the weights, to which what is moved is rounded; see `Step.sums_units`.
    """
    empty = np.flatnonzero(found.weights == 0)
    indices = _farthest_samples(data, labels, centers, len(empty))
    if indices is None:
        return  # fewer distinct samples than clusters
    there = data.xp.asarray(indices)
    weights = np.ones(len(indices), data.dtype)
    if data.sample_weight is not None:
        weights = to_host(data.sample_weight[there])
    old_labels, weighted = to_host(labels[there]), data.rows(indices) * weights[:, np.newaxis]
    weighted, weights = weighted.astype(np.float64), weights.astype(np.float64)
    if units is not None and units.any():
        weighted, weights = _rounded(weighted, units[:-1]), _rounded(weights, units[-1])
    found.sums[empty], found.weights[empty] = weighted, weights
    np.subtract.at(found.weights, old_labels, weights)
    for old, row in zip(old_labels, weighted, strict=True):
        found.sums[old] -= row


def _rounded(values: np.ndarray, units: np.ndarray) -> np.ndarray:
    """Return values rounded to multiples of powers of two, as kernels round them (update/fixed_point.cuh)."""
    found: np.ndarray = np.rint(values / units) * units
    return found


def _farthest_samples(data: Data, labels: Any, centers: np.ndarray, count: int) -> np.ndarray | None:
    """Return the indices of the `count` samples farthest from their centers; None if all distances are zero.

    Beyond `MOST_ORDERED` samples, steps with fixed-point sums take them in the order of their distances; otherwise they
    come in scikit-learn's order.
    """
    if data.as_kernels and len(labels) > relocation.MOST_ORDERED:
        return _by_distance(data, labels, centers, count)
    distances = data.own_distances(centers, labels)
    return None if distances.max() == 0 else np.argpartition(distances, -count)[: -count - 1 : -1]


def _by_distance(data: Data, labels: Any, centers: np.ndarray, count: int) -> np.ndarray | None:
    """Return what `_farthest_samples` does: the largest distance first, and of equal ones the lowest index.

    Each block of samples is searched where it is.
    """
    indices, values, start = [], [], 0
    for part in data.each_own_distance(centers, labels):
        some = _largest(part, min(count, len(part)))
        indices.append(to_host(some).astype(np.int64) + start)
        values.append(to_host(part[some]))
        start += len(part)
    index, value = np.concatenate(indices), np.concatenate(values)
    order = np.lexsort((index, -value))[:count]
    return None if value[order[0]] == 0 else index[order]


def _largest(values: Any, count: int) -> Any:
    """Return the indices of the `count` largest values, in any order; of equal values, those of the lowest indices."""
    xp: Any = np if isinstance(values, np.ndarray) else import_module("cupy")
    least = xp.partition(values, len(values) - count)[len(values) - count]
    larger = xp.flatnonzero(values > least)
    return xp.concatenate([larger, xp.flatnonzero(values == least)[: count - len(larger)]])
