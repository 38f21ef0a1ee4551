"""Euclidean distances in host memory; squared distances have the same bits as scikit-learn's.

k-means++ samples initial centers by squared distances, and must sample the same centers as scikit-learn. scikit-learn
itself is not used, because its import takes a second, which is most of the time of a small run.
"""

from math import sqrt

import numpy as np

from tsapps.apps.kmeans.data.frame import ldexp, overflow_exponent
from tsapps.apps.kmeans.data.rows import Rows

__all__ = ["distances_of", "distances_of_labels", "square_distances", "square_norms"]

# Minimum size, in float64 elements, of the pieces in which float32 data is converted to float64. The bits of a matrix
# product depend on its shape, so pieces have scikit-learn's size: a tenth of the total number of elements of points,
# rows and distances, or this minimum if it is more.
_LEAST_PIECE = 10 << 17
# Squared distances below _CANCELLED · (‖x‖² + ‖c‖²) suffer from cancellation. They are recomputed from differences
# x − c, about _TOGETHER elements of x − c at a time.
_CANCELLED, _TOGETHER = 2.0**-20, 1 << 17
# Elements of a block of rows that `distances_of_labels` reads.
_ELEMENTS = 1 << 22


def square_norms(rows: np.ndarray) -> np.ndarray:
    """Return ‖x‖² of every row x, (n,), with the same bits as ``sklearn.utils.extmath.row_norms``."""
    norms: np.ndarray = np.einsum("ij,ij->i", rows, rows)
    return norms


def square_distances(points: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return ‖p − x‖² for every point p and row x, with the same bits as ``sklearn.metrics.euclidean_distances``.

    Parameters
    ----------
    points : numpy.ndarray of shape (m, d)
        Finite float32 or float64 values.
    rows : numpy.ndarray of shape (n, d)
        Finite values of the same dtype.

    Returns
    -------
    numpy.ndarray of shape (m, n)
        The squared distances, computed in float64 and rounded to the dtype of the points.
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
    """Return ‖p‖² − 2·p·x + ‖x‖² for float64 points p and rows x, (m, n); rounding may make elements negative."""
    found: np.ndarray = -2 * (points @ rows.T)
    found += square_norms(points)[:, np.newaxis]
    found += square_norms(rows)
    return found


def _piece_rows(m: int, n: int, d: int) -> int:
    """Return the number b of points per piece, which is also the number of rows per piece.

    The points, the rows and the distances of a piece take b² + 2·b·d float64 elements.
    """
    most = max(((m + n) * d + m * n) / 10, _LEAST_PIECE)
    return max(int((sqrt(4 * d * d + 4 * most) - 2 * d) / 2), 1)


def distances_of(rows: np.ndarray, centers: np.ndarray) -> np.ndarray:
    """Return the distance of every row, (n, d), to every center, (k, d): (n, k) float64, accurate for close pairs."""
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


def distances_of_labels(rows: Rows, centers: np.ndarray, labels: np.ndarray, *, cosine: bool) -> np.ndarray:
    """Return the distance of every row from the center of its label, (n,), in float64.

    Parameters
    ----------
    rows : Rows
        In host memory, n rows of d columns.
    centers : numpy.ndarray of shape (k, d)
    labels : numpy.ndarray of shape (n,), int32
    cosine : bool
        Whether distances are 1 minus the cosine of the angle between row and center; 1 if either is zero.
    """
    wide, found = centers.astype(np.float64), np.empty(rows.shape[0])
    for start, block in rows.blocks(max(1, _ELEMENTS // rows.shape[1])):
        some, own = block.astype(np.float64), wide[labels[start : start + len(block)]]
        if cosine:
            lengths = np.linalg.norm(some, axis=1) * np.linalg.norm(own, axis=1)
            products = np.einsum("ij,ij->i", some, own)
            found[start : start + len(block)] = 1 - np.divide(products, lengths, out=products * 0, where=lengths > 0)
        else:
            found[start : start + len(block)] = np.linalg.norm(some - own, axis=1)
    return found
