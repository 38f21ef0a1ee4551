"""Distances in host memory; square ones bit for bit as scikit-learn computes them, without importing it.

k-means++ draws initial centers by these distances, and is to draw the same ones as scikit-learn. The import of
scikit-learn takes a second, most of the time of a small run.
"""

from math import sqrt

import numpy as np

from tsapps.apps.kmeans.data.frame import ldexp, overflow_exponent

__all__ = ["distances_of", "square_distances", "square_norms"]

# float32 is widened to float64 piece by piece. The bits of a product depend on its shape, so pieces have scikit-learn's
# sizes: they take a tenth of the memory of points, rows and distances, and at least this many elements of float64.
_LEAST_PIECE = 10 << 17
# Square distances of less than this part of the two points' squared norms are computed again, by differences, so many
# elements at a time.
_CANCELLED, _TOGETHER = 2.0**-20, 1 << 17


def square_norms(rows: np.ndarray) -> np.ndarray:
    """Return ‖x‖² for every row, (n,), as ``sklearn.utils.extmath.row_norms`` does."""
    norms: np.ndarray = np.einsum("ij,ij->i", rows, rows)
    return norms


def square_distances(points: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return ‖p − x‖² for every point p (m, d) and row x (n, d), as ``sklearn.metrics.euclidean_distances`` does.

    Parameters
    ----------
    points, rows : numpy.ndarray
        Of the same dtype, float32 or float64; finite.

    Returns
    -------
    numpy.ndarray of shape (m, n)
        In their dtype; computed in float64.
    """
    if rows.dtype == np.float64:
        return np.maximum(_expanded(points, rows), 0)
    found = np.empty((len(points), len(rows)), np.float32)
    size = _piece_rows(*found.shape, rows.shape[1])
    for first in range(0, len(points), size):
        some = points[first : first + size].astype(np.float64)
        for start in range(0, len(rows), size):
            part = rows[start : start + size].astype(np.float64)
            found[first : first + size, start : start + size] = _expanded(some, part)
    return np.maximum(found, 0, out=found)


def _expanded(points: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return ‖p‖² − 2·p·x + ‖x‖² of float64 points and rows; rounding may take it below zero."""
    found: np.ndarray = -2 * (points @ rows.T)
    found += square_norms(points)[:, np.newaxis]
    found += square_norms(rows)
    return found


def _piece_rows(m: int, n: int, d: int) -> int:
    """Return how many points and rows a piece has: b with b² + 2·b·d elements of memory for pieces."""
    most = max(((m + n) * d + m * n) / 10, _LEAST_PIECE)
    return max(int((sqrt(4 * d * d + 4 * most) - 2 * d) / 2), 1)


def distances_of(rows: np.ndarray, centers: np.ndarray) -> np.ndarray:
    """Return the distance of every row to every center, (n, k), float64: those that cancel, by differences."""
    rows, centers = rows.astype(np.float64, copy=False), centers.astype(np.float64, copy=False)
    exponent = overflow_exponent(rows, centers)
    rows, centers = ldexp(rows, -exponent), ldexp(centers, -exponent)
    squares = square_distances(rows, centers)
    norms = (rows * rows).sum(axis=1)[:, np.newaxis] + (centers * centers).sum(axis=1)
    i, j = np.nonzero(squares < _CANCELLED * norms)
    each = max(1, _TOGETHER // rows.shape[1])
    for start in range(0, len(i), each):
        some, at = i[start : start + each], j[start : start + each]
        squares[some, at] = ((rows[some] - centers[at]) ** 2).sum(axis=1)
    return np.ldexp(np.sqrt(squares), exponent)
