"""Scores of several clusterings of the same rows (indices.py), in two passes over blocks of rows, all in float64.

For rows that no GPU holds as one array: in host memory, streamed, sparse, or scaled on every read.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from tsapps.apps.kmeans.scores.indices import (
    ClusterSums,
    Indices,
    Labeled,
    Scores,
    columns_of_each,
    indices_of,
    scores_from,
    scores_of_each,
)
from tsapps.kernels.arrays import to_host

__all__ = ["scores_of"]


def scores_of(
    blocks: Callable[[], Iterator[tuple[int, Any]]], sample: np.ndarray, found: Sequence[Labeled]
) -> list[Scores]:
    """Return the scores of clusterings of the same rows.

    Parameters
    ----------
    blocks : callable
        Returns an iterator over all rows as (index of the first row, float64 block of NumPy or CuPy). Temporary arrays
        have as many rows as a block, and a column for every cluster of all clusterings.
    sample : numpy.ndarray of int
        Different indices of rows, ascending: the sample of which silhouettes are computed.
    found : sequence of Labeled

    Returns
    -------
    list of Scores
    """
    return scores_of_each(found, sample, lambda several: _scores_of(blocks, sample, several))


def _scores_of(
    blocks: Callable[[], Iterator[tuple[int, Any]]], sample: np.ndarray, found: Sequence[Labeled]
) -> list[Scores]:
    clusters = _Clusters(found)
    first = _first_pass(blocks, sample, clusters)
    sums, spreads = _second_pass(blocks, first, sample, clusters)
    indices, silhouettes = list[Indices](), np.empty((len(found), len(sample)))
    for place, (one, own) in enumerate(zip(found, clusters.columns, strict=True)):
        counts, apart = first.counts[own], first.means[own] - first.mean
        within = max(first.total - float((counts[:, None] * apart**2).sum()), 0.0)
        simplified = float(first.simplified[place])
        indices.append(indices_of(ClusterSums(len(one.labels), counts, apart, spreads[own], within, simplified)))
        silhouettes[place] = _silhouettes_of(sums[:, own], to_host(one.labels), sample)
    return scores_from(len(found[0].labels), indices, silhouettes)


class _Clusters:
    """The clusters of several clusterings side by side: a column for each.

    Attributes
    ----------
    found : sequence of Labeled
    columns : list of slice
        Those of each clustering.
    count : int
        Of all clusterings together.
    centers : numpy.ndarray of shape (count, d)
    """

    def __init__(self, found: Sequence[Labeled]) -> None:
        self.found, self.columns = found, columns_of_each(found)
        self.centers = np.concatenate([one.centers for one in found])
        self.count = len(self.centers)

    def columns_of(self, xp: Any, rows: slice) -> Any:
        """Return the column of each of some rows in each clustering, (rows, clusterings)."""
        there = (one.labels[rows] if xp is not np else to_host(one.labels[rows]) for one in self.found)
        labels = [xp.asarray(labels).astype(np.int64) for labels in there]
        return xp.stack([of_one + own.start for of_one, own in zip(labels, self.columns, strict=True)], axis=1)

    def indicators(self, xp: Any, columns: Any) -> Any:
        """Return an array (rows, count) with 1 where rows belong to a cluster, and 0 elsewhere."""
        found = xp.zeros((len(columns), self.count))
        _put(xp, found, columns, 1)
        return found


def _put(xp: Any, array: Any, columns: Any, value: float) -> None:
    """Set elements of each row of a contiguous array to a value."""
    array.reshape(-1)[columns + array.shape[1] * xp.arange(len(columns))[:, np.newaxis]] = value


@dataclass
class _FirstPass:
    """Sums over all rows; arrays of clusters have those of all clusterings, see `_Clusters`.

    Attributes
    ----------
    mean : numpy.ndarray of shape (d,)
    total : float
        The sum of squared distances from the mean.
    simplified : numpy.ndarray of shape (clusterings,)
        Sums of simplified silhouettes.
    counts : numpy.ndarray of shape (clusters,)
    means : numpy.ndarray of shape (clusters, d)
        The mean of each cluster; that of all rows for an empty one.
    sample : array of shape (sample, d)
        The rows of the sample, of NumPy or CuPy.
    """

    mean: np.ndarray
    total: float
    simplified: np.ndarray
    counts: np.ndarray
    means: np.ndarray
    sample: Any


def _module(array: Any) -> Any:
    """Return NumPy or CuPy, whichever an array is of."""
    if isinstance(array, np.ndarray):
        return np
    import cupy

    return cupy


@cache
def _kernel(arguments: str, distance: str, loop: str) -> Any:
    """Return a kernel of CuPy that computes an element of an array of distances in one pass."""
    import cupy

    return cupy.ElementwiseKernel(arguments, f"float64 {distance}", loop, f"tsapps_{distance}")


def _distances(xp: Any, rows: Any, points: Any) -> Any:
    """Return ‖x − p‖ for all rows (m, d) and points (k, d)."""
    found, of_rows, of_points = rows @ points.T, (rows**2).sum(axis=1)[:, None], (points**2).sum(axis=1)
    if xp is not np:
        arguments = "float64 product, float64 of_row, float64 of_point"
        return _kernel(arguments, "distance", "distance = sqrt(fmax(of_row - 2 * product + of_point, 0.0))")(
            found, of_rows, of_points, found
        )
    found *= -2
    found += of_rows
    found += of_points
    np.maximum(found, 0, out=found)
    return np.sqrt(found, out=found)


def _own_distances(xp: Any, rows: Any, points: Any, columns: Any) -> Any:
    """Return ‖x − p‖ for each row x and its point p of each clustering, (rows, clusterings), from differences."""
    found = xp.empty(columns.shape)
    if xp is not np:
        loop = """
            double sum = 0;
            for (long long l = 0; l < d; ++l) {
              const double apart = rows[i / columns_of_a_row * d + l] - points[column * d + l];
              sum += apart * apart;
            }
            own_distance = sqrt(sum)"""
        arguments = "raw float64 rows, raw float64 points, int64 column, int64 columns_of_a_row, int64 d"
        return _kernel(arguments, "own_distance", loop)(rows, points, columns, columns.shape[1], rows.shape[1], found)
    for place in range(columns.shape[1]):
        apart = rows - points[columns[:, place]]
        apart *= apart
        found[:, place] = apart.sum(axis=1)
    return np.sqrt(found, out=found)


def _first_pass(blocks: Callable[[], Iterator[tuple[int, Any]]], sample: np.ndarray, clusters: _Clusters) -> _FirstPass:
    """Pass over the rows for means and simplified silhouettes, and keep the rows of the sample.

    Sums stay where the blocks are, so that a GPU need not wait for the host.
    """
    count, total, kept = 0, 0.0, list[Any]()
    mean: Any = None
    for start, block in blocks():
        xp = _module(block)
        ones = xp.ones(len(block))
        of_block = ones @ block / len(block)  # a reduction to few columns would run on few blocks of a GPU
        if mean is None:
            mean, origin = of_block, of_block  # distances from here lose fewer digits
            centers, simplified = xp.asarray(clusters.centers) - origin, xp.zeros(len(clusters.found))
            sums, counts = xp.zeros(clusters.centers.shape), xp.zeros(clusters.count)
        merged = count + len(block)
        apart = of_block - mean
        total = total + ((block - of_block) ** 2).sum() + (apart**2).sum() * (count * len(block) / merged)
        mean, count = mean + apart * (len(block) / merged), merged
        first, stop = np.searchsorted(sample, (start, start + len(block)))
        kept.append(block[xp.asarray(sample[first:stop] - start)])
        rows, columns = block - origin, clusters.columns_of(xp, slice(start, start + len(block)))
        indicators = clusters.indicators(xp, columns)
        sums += indicators.T @ rows
        counts += ones @ indicators
        simplified += ones @ _simplified(xp, rows, centers, columns, clusters.columns)
    mean, origin, sums, counts = (to_host(array) for array in (mean, origin, sums, counts))
    means = np.where(counts[:, None] > 0, origin + sums / np.maximum(counts, 1)[:, None], mean)
    return _FirstPass(mean, float(total), to_host(simplified), counts, means, xp.concatenate(kept))


def _simplified(xp: Any, rows: Any, centers: Any, columns: Any, slices: Sequence[slice]) -> Any:
    """Return the simplified silhouette of each row in each clustering, (rows, clusterings)."""
    own, nearest = _own_distances(xp, rows, centers, columns), xp.empty(columns.shape)
    others = _distances(xp, rows, centers)
    _put(xp, others, columns, np.inf)
    for place, part in enumerate(slices):
        nearest[:, place] = others[:, part].min(axis=1)
    larger = xp.maximum(own, nearest)
    return (nearest - own) / xp.where(larger > 0, larger, 1)


def _second_pass(
    blocks: Callable[[], Iterator[tuple[int, Any]]], first: _FirstPass, sample: np.ndarray, clusters: _Clusters
) -> tuple[np.ndarray, np.ndarray]:
    """Return sums of distances by cluster: of all rows from the sample's, (sample, clusters), and from the means.

    Distances between rows are computed once for all clusterings; products with indicators of labels add them.
    """
    sums: Any = None
    for start, block in blocks():
        xp = _module(block)
        if sums is None:
            origin = xp.asarray(first.mean)
            points, means = first.sample - origin, xp.asarray(first.means) - origin
            sums, spreads = xp.zeros((len(sample), clusters.count)), xp.zeros((clusters.count, len(clusters.found)))
        rows, columns = block - origin, clusters.columns_of(xp, slice(start, start + len(block)))
        indicators = clusters.indicators(xp, columns)
        step = max(1, max(rows.size, indicators.size) // len(sample))
        for begin in range(0, len(block), step):
            part = rows[begin : begin + step]
            near = _distances(xp, points, part)
            first_row = start + begin
            inside = np.arange(*np.searchsorted(sample, (first_row, first_row + len(part))))
            if inside.size:  # rounding leaves a distance from itself
                near[xp.asarray(inside), xp.asarray(sample[inside] - first_row)] = 0
            sums += near @ indicators[begin : begin + step]
        spreads += indicators.T @ _own_distances(xp, rows, means, columns)
    # Of each cluster, the distances in its own clustering.
    own = np.concatenate([to_host(spreads[part, place]) for place, part in enumerate(clusters.columns)])
    return to_host(sums), own


def _silhouettes_of(sums: np.ndarray, labels: np.ndarray, sample: np.ndarray) -> np.ndarray:
    """Return silhouettes from the sums of distances between rows of the sample and those of each cluster."""
    sizes, own, lanes = np.bincount(labels, minlength=sums.shape[1]), labels[sample], np.arange(len(sample))
    a = sums[lanes, own] / np.maximum(sizes[own] - 1, 1)
    means = np.where(sizes > 0, sums / np.maximum(sizes, 1), np.inf)
    means[lanes, own] = np.inf
    b = means.min(axis=1)
    larger = np.maximum(a, b)
    found = np.divide(b - a, larger, out=np.zeros(len(sample)), where=(larger > 0) & (larger < np.inf))
    return np.where(sizes[own] > 1, found, 0.0)
