"""Relocation of empty clusters to the samples farthest from their assigned centers, as in scikit-learn."""

from typing import Any

import numpy as np

from tsapps.apps.kmeans.data.blocks import Data
from tsapps.apps.kmeans.data.farthest_rows import MOST_FARTHEST, FarthestRows, farthest_rows, holds_rows
from tsapps.apps.kmeans.results import Assignment
from tsapps.apps.kmeans.update.means import next_centers
from tsapps.kernels.arrays import to_host

__all__ = ["next_centers_after_relocation", "relocate_empty_clusters"]

# Up to this many samples on a GPU, the farthest samples come in scikit-learn's order. It is that of
# `numpy.argpartition`, which needs all distances on the host.
_MOST_ORDERED = 1 << 18


def next_centers_after_relocation(data: Data, labels: Any, found: Assignment, centers: np.ndarray) -> np.ndarray:
    """Relocate the empty clusters of an assignment, and return the new centers.

    Parameters
    ----------
    data : Data
    labels : array of shape (n,), int32
    found : Assignment
        The assignment to `centers`. Its sums and weights are modified in place.
    centers : numpy.ndarray of shape (k, d)

    Returns
    -------
    numpy.ndarray of shape (k, d)
    """
    relocate_empty_clusters(data, labels, found, centers)
    return next_centers(data, found, centers)


def relocate_empty_clusters(data: Data, labels: Any, found: Assignment, centers: np.ndarray) -> None:
    """Move the samples farthest from their assigned centers into the empty clusters, one sample per cluster.

    Modifies the sums and weights of `found` in place, but not `labels`. If all distances are zero, nothing is moved.

    Parameters
    ----------
    data : Data
    labels : array of shape (n,), int32
    found : Assignment
        The assignment to `centers`.
    centers : numpy.ndarray of shape (k, d)
    """
    empty = np.flatnonzero(found.weights == 0)
    farthest = _farthest_rows(data, labels, centers, len(empty))
    if farthest is None:
        return  # fewer distinct samples than clusters
    weights = farthest.weights
    weighted = farthest.rows * weights[:, np.newaxis]
    found.sums[empty], found.weights[empty] = weighted, weights
    np.subtract.at(found.weights, farthest.labels, weights)
    for old, row in zip(farthest.labels, weighted, strict=True):
        found.sums[old] -= row


def _farthest_rows(data: Data, labels: Any, centers: np.ndarray, count: int) -> FarthestRows | None:
    """Return the `count` samples of `_farthest_samples`; None if all distances are zero."""
    if len(labels) > _MOST_ORDERED and 1 <= count <= MOST_FARTHEST and holds_rows(data):
        return farthest_rows(data, centers, labels, count)
    indices = _farthest_samples(data, labels, centers, count)
    if indices is None:
        return None
    there = data.xp.asarray(indices)
    weights = np.ones(len(indices))
    if data.sample_weight is not None:
        weights = to_host(data.sample_weight[there]).astype(np.float64)
    return FarthestRows(indices, to_host(labels[there]), weights, data.rows(indices).astype(np.float64))


def _farthest_samples(data: Data, labels: Any, centers: np.ndarray, count: int) -> np.ndarray | None:
    """Return the indices of the `count` samples farthest from their centers; None if all distances are zero.

    On a GPU and beyond `_MOST_ORDERED` samples, they come in the order of their distances, otherwise in scikit-learn's.
    """
    if data.xp is not np and len(labels) > _MOST_ORDERED:
        return _by_distance(data, labels, centers, count)
    distances = data.own_distances(centers, labels)
    return None if distances.max() == 0 else np.argpartition(distances, -count)[: -count - 1 : -1]


def _by_distance(data: Data, labels: Any, centers: np.ndarray, count: int) -> np.ndarray | None:
    """Return what `_farthest_samples` does, largest distance first. Each block of samples is searched where it is."""
    indices, values, start = [], [], 0
    for part in data.each_own_distance(centers, labels):
        some = data.xp.argpartition(part, max(0, len(part) - count))[-count:]
        indices.append(to_host(some).astype(np.int64) + start)
        values.append(to_host(part[some]))
        start += len(part)
    index, value = np.concatenate(indices), np.concatenate(values)
    order = np.lexsort((index, -value))[:count]
    return None if value[order[0]] == 0 else index[order]
