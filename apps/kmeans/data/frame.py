"""Centering and power-of-two scaling of rows and centers, which keep distances accurate and in range.

The rounding error of a distance between a row and a center grows with the norms of both. So the mean of the fitted rows
is subtracted from rows and centers. If squared distances would overflow or underflow, rows and centers are also scaled
by a power of two, which is exact.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from tsapps.apps.kmeans.data.rows import RescaledRows, Rows

__all__ = [
    "FittedCenters",
    "Frame",
    "ScaledRows",
    "exponent_of",
    "frame_about",
    "frobenius_norm",
    "is_in_range",
    "ldexp",
    "overflow_exponent",
    "subtract_mean",
]

# Minimum factor between squared distances and either end of the number range, so that sums of a few products stay in
# range.
_HEADROOM = 32.0
# Minimum number of elements per row for which NumPy's broadcasting runs at full speed: more than its buffer holds.
_COLUMNS = 16384
# Maximum change of an element of the centers by rounding to the frame's dtype, as a fraction of the largest difference
# between an element of a center and the mean. Beyond this change, centers are returned in float64.
_MOST_LOSS = 2.0**-12


def is_in_range(dtype: np.dtype, square: Any, total: Any) -> Any:
    """Return True if squared distances in `dtype` neither overflow nor lose precision to underflow.

    Parameters
    ----------
    dtype : numpy.dtype
        float32 or float64.
    square : float or numpy.ndarray of float64
        A typical squared distance.
    total : float or numpy.ndarray of float64
        An upper bound of the sum of all squared distances.

    Returns
    -------
    bool or numpy.ndarray of bool
    """
    numbers = np.finfo(dtype)
    least = float(numbers.tiny) / float(numbers.eps) ** 2
    return (least * _HEADROOM < square) & (total < float(numbers.max) / _HEADROOM)


def exponent_of(largest: float) -> int:
    """Return the exponent e with ½ ≤ 2 · `largest` · 2^−e < 1; 0 if `largest` is not positive."""
    return int(np.frexp(largest)[1]) + 1 if largest > 0 else 0


def largest_of(array: np.ndarray) -> float:
    """Return the largest absolute value of an array; NaN if it has one."""
    return max(float(array.max()), -float(array.min()))  # no temporary array, unlike abs(array).max()


def frobenius_norm(rows: np.ndarray) -> float:
    """Return the Frobenius norm of C-contiguous rows, (n, d); not finite on overflow or if an element is not finite."""
    numbers = rows.reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        return float(numbers @ numbers) ** 0.5


def subtract_mean(rows: np.ndarray, mean: np.ndarray, out: np.ndarray) -> np.ndarray:
    """Write rows − mean to the first n rows of `out`, and return these n rows.

    Parameters
    ----------
    rows : numpy.ndarray of shape (n, d)
    mean : numpy.ndarray of shape (d,)
    out : numpy.ndarray of shape (m, d), m ≥ n
    """
    n, d = rows.shape
    # `together` rows are treated as one long row: NumPy's broadcasting over short rows is up to ten times slower.
    together = max(1, min(n, _COLUMNS // d)) if rows.flags.c_contiguous else 1
    whole, many = n - n % together, np.tile(mean, together)
    np.subtract(rows[:whole].reshape(-1, together * d), many, out=out[:whole].reshape(-1, together * d))
    np.subtract(rows[whole:], mean, out=out[whole:n])
    return out[:n]


def overflow_exponent(rows: np.ndarray, centers: np.ndarray, rows_norm: float | None = None) -> int:
    """Return an exponent e for which inner products of rows · 2^−e and centers · 2^−e do not overflow.

    Parameters
    ----------
    rows : numpy.ndarray of shape (n, d)
    centers : numpy.ndarray of shape (k, d) or (d, k)
    rows_norm : float, optional
        The `frobenius_norm` of the rows, if it is known.

    Returns
    -------
    int
        0 if no scaling is needed.
    """
    most = largest_of(centers)
    rows_norm = frobenius_norm(rows) if rows_norm is None else rows_norm
    if rows_norm * max(1.0, most) * rows.shape[1] < float(np.finfo(rows.dtype).max) / _HEADROOM:
        return 0
    largest = max(float(rows.max(initial=0)), -float(rows.min(initial=0)), most)
    exponent = int(np.frexp(largest)[1])
    return exponent if 2 * exponent + rows.shape[1].bit_length() + 4 >= np.finfo(rows.dtype).maxexp else 0


def frame_about(centers: np.ndarray, dtype: np.dtype) -> "Frame":
    """Return a frame in `dtype` for centers, (k, d), whose fitted rows are unknown; its mean is that of the centers."""
    wide = centers.astype(np.float64)
    exponent = int(np.frexp(abs(wide).max())[1])
    mean = np.ldexp(np.ldexp(wide, -exponent).mean(axis=0), exponent)  # scaled, because the sum may overflow
    spread = float(abs(0.5 * wide - 0.5 * mean).max())
    square = 4 * spread * spread
    exponent = 0 if spread == 0 or is_in_range(dtype, square, square * centers.size) else exponent_of(spread)
    return Frame(ldexp(mean, -exponent).astype(dtype), exponent)


def ldexp(array: Any, exponent: int) -> Any:
    """Return array · 2^exponent for a NumPy or CuPy array of floats; the array itself if the exponent is 0."""
    xp: Any = import_module("cupy") if type(array).__module__.startswith("cupy") else np
    with np.errstate(over="ignore"):
        return xp.ldexp(array, exponent) if exponent else array


@dataclass(frozen=True)
class Frame:
    """The map from a row x to the centered row x · 2^−exponent − mean, in the dtype of the mean.

    Attributes
    ----------
    mean : numpy.ndarray of shape (d,)
        The mean of the scaled rows x · 2^−exponent; float32 or float64.
    exponent : int
        0 if rows are not scaled.
    """

    mean: np.ndarray
    exponent: int = 0

    def centered(self, rows: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Return scaled and centered rows, (n, d), in the dtype of the mean.

        The mean is subtracted in the wider of the dtypes of the rows and of the mean, and the difference is rounded to
        the dtype of the mean. `out` must have at least n rows. The differences are written to `out` if `out` has the
        dtype of the subtraction, otherwise to a new array.
        """
        dtype = np.result_type(rows.dtype, self.mean.dtype)
        rows = ldexp(rows.astype(dtype, copy=False), -self.exponent)
        out = np.empty(rows.shape, dtype) if out is None or out.dtype != dtype else out
        return subtract_mean(rows, self.mean, out).astype(self.mean.dtype, copy=False)

    def restored(self, centers: np.ndarray) -> np.ndarray:
        """Return centers in the units of the caller's rows, (centers + mean) · 2^exponent: the inverse of `centered`.

        Parameters
        ----------
        centers : numpy.ndarray of shape (k, d)

        Returns
        -------
        numpy.ndarray of shape (k, d)
            In the frame's dtype; in float64 if rounding to the frame's dtype changes an element by more than 2⁻¹² of
            the largest difference between an element and the mean.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            narrow: np.ndarray = ldexp(centers + self.mean, self.exponent)
            most = largest_of(centers)
            # A sum is rounded by half an ulp at most. For most centers, this bound makes the comparison unnecessary.
            sums, numbers = most + largest_of(self.mean), np.finfo(narrow.dtype)
            if self.exponent == 0 and float(numbers.eps) * sums <= _MOST_LOSS * most and sums < float(numbers.max):
                return narrow
            wide: np.ndarray = ldexp(centers.astype(np.float64) + self.mean, self.exponent)
            scale = np.ldexp(most, self.exponent)
            return narrow if abs(narrow - wide).max() <= _MOST_LOSS * scale else wide


class FittedCenters:
    """The centers of a fit, centered and in the units of the caller's rows, and the frame that converts between them.

    Parameters
    ----------
    frame : Frame
        Its method `centered` yields the first form, its method `restored` the second form.
    centered : numpy.ndarray of shape (k, d)
        The centers that the fit used, in the frame's dtype.
    restored : numpy.ndarray of shape (k, d)
        The same centers in the units of the caller's rows; not copied.
    """

    def __init__(self, frame: Frame, centered: np.ndarray, restored: np.ndarray) -> None:
        self.frame, self.centered, self.restored = frame, centered, restored

    def centers(self, current: np.ndarray) -> np.ndarray:
        """Return the caller's current centers, (k, d), centered. If unchanged, they are the centers of the fit."""
        same = current.dtype == self.restored.dtype and np.array_equal(current, self.restored)
        return self.centered if same else self.frame.centered(current)


class ScaledRows(RescaledRows):
    """The rows of another matrix, multiplied by 2^−exponent."""

    def __init__(self, source: Rows, exponent: int, dtype: np.dtype) -> None:
        super().__init__(source, dtype)
        self.exponent = exponent

    def _scaled(self, block: Any, _: Sequence[int] | np.ndarray) -> Any:
        return ldexp(block, -self.exponent)
