"""What a page on a clustering shows beyond its summary: columns that tell clusters apart, silhouettes, a projection."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tsapps.apps.kmeans.data.rows import Rows
from tsapps.apps.kmeans.number_of_clusters import DEFAULT_SAMPLE, blocks_of, drawn_rows, scores_of_rows
from tsapps.apps.kmeans.scores.indices import Labeled, Scores
from tsapps.kernels.arrays import to_host
from tsapps.kernels.matmul import gram

__all__ = ["ReportFacts", "facts_of"]

# Rows of the projection.
_POINTS = 1500


@dataclass(frozen=True)
class ReportFacts:
    """What was computed from rows and their labels, in the units in which they were clustered.

    Attributes
    ----------
    sizes : numpy.ndarray of shape (k,)
    means, deviations : numpy.ndarray of shape (d,)
        Of the columns.
    separation : numpy.ndarray of shape (d,)
        The share of each column's variance that lies between clusters, from 0 to 1.
    scores : Scores
    sample_labels : numpy.ndarray of shape (sample,)
        The labels of the rows whose silhouettes `scores` has.
    points, centers : numpy.ndarray of shape (points, 2) and (k, 2)
        Some rows, and the centers, on the first two principal axes of these rows.
    point_labels : numpy.ndarray of shape (points,)
    shares : tuple of float
        The shares of the points' variance on both axes.
    """

    sizes: np.ndarray
    means: np.ndarray
    deviations: np.ndarray
    separation: np.ndarray
    scores: Scores
    sample_labels: np.ndarray
    points: np.ndarray
    centers: np.ndarray
    point_labels: np.ndarray
    shares: tuple[float, float]


def facts_of(rows: Rows, centers: np.ndarray, labels: np.ndarray, *, metric: str, seed: int) -> ReportFacts:
    """Return the facts on a clustering.

    Parameters
    ----------
    rows : Rows
        n rows of d columns.
    centers : array of shape (k, d)
    labels : numpy.ndarray of int32, shape (n,)
    metric : {"euclidean", "cosine"}
    seed : int
        Seed of the samples.
    """
    n, k, wide = rows.shape[0], len(centers), np.asarray(centers, np.float64)
    blocks, sample = blocks_of(rows, metric, max(k, DEFAULT_SAMPLE)), drawn_rows(n, DEFAULT_SAMPLE, seed)
    (scores,) = scores_of_rows(rows, metric, sample, [Labeled(wide, labels)])
    drawn = drawn_rows(n, _POINTS, seed + 1)
    means, variances, chosen = _moments_and_rows(blocks, drawn)
    sizes = np.bincount(labels, minlength=k)
    between = (sizes[:, None] * (wide - means) ** 2).sum(axis=0) / n
    separation = np.divide(between, variances, out=np.zeros_like(between), where=variances > 0).clip(0, 1)
    points, projected, shares = _projected(chosen, wide)
    deviations = np.sqrt(variances)
    own = labels[sample], points, projected, labels[drawn]
    return ReportFacts(sizes, means, deviations, separation, scores, *own, shares)


def _moments_and_rows(
    blocks: Callable[[], Iterator[tuple[int, Any]]], numbers: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the means and variances of the columns, merged from those of blocks (Chan et al. 1983), and some rows.

    `numbers` are those of the rows, ascending.
    """
    count, mean, squares, found = 0, np.zeros(1), np.zeros(1), list[np.ndarray]()
    for start, block in blocks():
        host = to_host(block)
        of_block, merged = host.mean(axis=0), count + len(host)
        apart = of_block - mean
        squares = squares + ((host - of_block) ** 2).sum(axis=0) + apart**2 * (count * len(host) / merged)
        mean, count = mean + apart * (len(host) / merged), merged
        found.append(host[numbers[(numbers >= start) & (numbers < start + len(host))] - start])
    return mean, squares / count, np.concatenate(found)


def _projected(rows: np.ndarray, centers: np.ndarray) -> tuple[np.ndarray, np.ndarray, tuple[float, float]]:
    """Return rows and centers on the rows' first two principal axes, and the shares of the variance on these."""
    origin = rows.mean(axis=0)
    centered = rows - origin
    # Of the smaller of both products: rows · rowsᵀ has the same eigenvalues as rowsᵀ · rows.
    is_tall = centered.shape[0] >= centered.shape[1]
    values, vectors = np.linalg.eigh(gram(centered) if is_tall else centered @ centered.T)
    values, vectors = np.maximum(values[::-1], 0), vectors[:, ::-1]
    axes = vectors[:, :2] if is_tall else centered.T @ vectors[:, :2]
    lengths = np.linalg.norm(axes, axis=0)
    axes = axes / np.where(lengths > 0, lengths, 1)
    if axes.shape[1] < 2:  # a single column
        axes, values = np.column_stack([axes, np.zeros(len(axes))]), np.append(values, 0)
    total = values.sum() or 1.0
    return centered @ axes, (centers - origin) @ axes, (float(values[0] / total), float(values[1] / total))
