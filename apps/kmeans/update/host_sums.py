"""Fixed-point cluster sums of rows in host memory: the integers of update/fixed_point.cuh, added in NumPy."""

import numpy as np

from tsapps.apps.kmeans.update.fixed_point import NARROW, Integers

__all__ = ["sums_of_reassigned"]

# Number of low bits of a three-limb element that are added apart from its high bits: float64 sums of either are exact
# for up to 2²⁸ rows.
_LOW_BITS = 24
# Maximum number of elements of the rows that are converted to integers at a time.
_ELEMENTS = 1 << 18


def sums_of_reassigned(
    rows: np.ndarray,
    weights: np.ndarray | None,
    reassigned: np.ndarray,
    old: np.ndarray | None,
    new: np.ndarray,
    integers: Integers,
    k: int,
) -> np.ndarray:
    """Compute how the reassigned rows of a block change the cluster sums.

    Parameters
    ----------
    rows : numpy.ndarray of shape (m, d)
        Centered, in the working type.
    weights : numpy.ndarray of shape (m,), optional
        In the working type.
    reassigned : numpy.ndarray of shape (r,)
        Indices of the reassigned rows.
    old : numpy.ndarray of shape (r,), int32, optional
        Their old labels; None if they had none. Rows without a label, which is −1, are only added.
    new : numpy.ndarray of shape (r,), int32
        Their new labels.
    integers : Integers
        Format of the sums.
    k : int

    Returns
    -------
    numpy.ndarray of shape (k, d + 1), int64
        For each cluster, the sums of round(w · x · scale) over its new rows minus those of its old rows; the last
        column has the sums of the weights.
    """
    sums = np.zeros((k, rows.shape[1] + 1), np.int64)
    each = max(1, _ELEMENTS // rows.shape[1])
    for start in range(0, len(reassigned), each):
        some = slice(start, start + each)
        numbers = _as_integers(rows, weights, reassigned[some], integers)
        _add(sums, numbers, new[some], integers)
        if old is not None:
            # After a memory error, a label may be that of no cluster; checks of a protected fit find it.
            had = np.flatnonzero((old[some] >= 0) & (old[some] < k))
            if had.size:
                _add(sums, -numbers[had], old[some][had], integers)
    return sums


def _as_integers(rows: np.ndarray, weights: np.ndarray | None, some: np.ndarray, integers: Integers) -> np.ndarray:
    """Return the whole numbers of rows and weights, (len(some), d + 1), float64."""
    values = rows[some]
    numbers = np.empty((len(some), rows.shape[1] + 1))
    if weights is None:
        numbers[:, -1] = integers.scales[-1]
    else:
        values *= weights[some, np.newaxis]
        numbers[:, -1] = weights[some] * integers.scales[-1]
    np.multiply(values, integers.scales[:-1], out=numbers[:, :-1])
    np.rint(numbers, out=numbers)
    return numbers


def _add(sums: np.ndarray, numbers: np.ndarray, labels: np.ndarray, integers: Integers) -> None:
    """Add whole numbers, (r, d + 1), to the sums of their labels."""
    if integers.digits == NARROW:
        sums += _sums_by_label(numbers, labels, len(sums))
        return
    high = np.rint(numbers * 2.0**-_LOW_BITS)
    sums += _sums_by_label(high, labels, len(sums)) << _LOW_BITS
    sums += _sums_by_label(numbers - high * 2.0**_LOW_BITS, labels, len(sums))


def _sums_by_label(numbers: np.ndarray, labels: np.ndarray, k: int) -> np.ndarray:
    """Return the sums of the numbers of each label, (k, d + 1), int64; float64 sums must be exact."""
    from scipy.sparse import csr_matrix

    count = len(labels)
    one_hot = csr_matrix((np.ones(count), labels, np.arange(count + 1)), shape=(count, k))
    found: np.ndarray = (one_hot.T @ numbers).astype(np.int64)
    return found
