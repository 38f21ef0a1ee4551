"""Where rows and centers are compared: about the mean of the fitted rows, in units of a power of two.

A distance loses what its two points' norms lose to rounding. So both are taken about the mean, and where squares would
overflow or underflow, in units of a power of two, which rounds nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from tsapps.apps.kmeans.data.rows import RescaledRows, Rows

__all__ = [
    "Frame",
    "Placed",
    "ScaledRows",
    "exponent_of",
    "frame_about",
    "is_in_range",
    "ldexp",
    "length",
    "less",
    "shrinking",
]

# Beside the largest number, and the smallest normal one in units of the last place of 1, squared: what sums of products
# of a few numbers take.
_ROOM = 32.0
# Columns that NumPy subtracts a row from at full speed: more than it takes into its buffers at a time.
_COLUMNS = 16384
# Centers that lose more than this of their distances' scale in the rows' dtype are given in float64.
_MOST_LOST = 2.0**-12


def is_in_range(dtype: np.dtype, square: float, total: float) -> bool:
    """Tell whether distances of `dtype` are exact to its last places.

    Parameters
    ----------
    dtype : numpy.dtype
        float32 or float64.
    square : float
        A typical square of a distance.
    total : float
        No less than the sum of squares of all distances.
    """
    numbers = np.finfo(dtype)
    least = float(numbers.tiny) / float(numbers.eps) ** 2
    return least * _ROOM < square and total < float(numbers.max) / _ROOM


def exponent_of(largest: float) -> int:
    """Return the exponent of the unit in which a distance of twice `largest` is about 1; 0 where there is none."""
    return int(np.frexp(largest)[1]) + 1 if largest > 0 else 0


def length(rows: np.ndarray) -> float:
    """Return the root of the sum of the squares of rows (n, d), C-contiguous: not finite if one of them is not."""
    numbers = rows.reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        return float(numbers @ numbers) ** 0.5


def less(rows: np.ndarray, mean: np.ndarray, out: np.ndarray) -> np.ndarray:
    """Write rows (n, d) less a mean (d,) to `out`, of at least n rows, and return those."""
    n, d = rows.shape
    # Several rows at a time: row by row NumPy takes longer, of few columns ten times as long.
    together = max(1, min(n, _COLUMNS // d)) if rows.flags.c_contiguous else 1
    whole, many = n - n % together, np.tile(mean, together)
    np.subtract(rows[:whole].reshape(-1, together * d), many, out=out[:whole].reshape(-1, together * d))
    np.subtract(rows[whole:], mean, out=out[whole:n])
    return out[:n]


def shrinking(rows: np.ndarray, centers: np.ndarray, rows_length: float | None = None) -> int:
    """Return an exponent for which the products of rows · 2^−exponent and centers · 2^−exponent do not overflow.

    Parameters
    ----------
    rows : numpy.ndarray of shape (n, d)
    centers : numpy.ndarray of shape (k, d) or (d, k)
    rows_length : float, optional
        The `length` of the rows, where it is known.

    Returns
    -------
    int
        0 where they do not overflow as they are.
    """
    most = float(abs(centers).max())
    rows_length = length(rows) if rows_length is None else rows_length
    if rows_length * max(1.0, most) * rows.shape[1] < float(np.finfo(rows.dtype).max) / _ROOM:
        return 0
    largest = max(float(rows.max(initial=0)), -float(rows.min(initial=0)), most)
    exponent = int(np.frexp(largest)[1])
    return exponent if 2 * exponent + rows.shape[1].bit_length() + 4 >= np.finfo(rows.dtype).maxexp else 0


def frame_about(centers: np.ndarray, dtype: np.dtype) -> "Frame":
    """Return a frame of `dtype` for centers (k, d) of which nobody knows the rows: about their own mean."""
    wide = centers.astype(np.float64)
    exponent = int(np.frexp(abs(wide).max())[1])
    mean = np.ldexp(np.ldexp(wide, -exponent).mean(axis=0), exponent)  # a sum may overflow
    spread = float(abs(0.5 * wide - 0.5 * mean).max())
    square = 4 * spread * spread
    exponent = 0 if spread == 0 or is_in_range(dtype, square, square * centers.size) else exponent_of(spread)
    return Frame(ldexp(mean, -exponent).astype(dtype), exponent)


def ldexp(array: Any, exponent: int) -> Any:
    """Return array · 2^exponent, of NumPy or CuPy floats."""
    xp: Any = import_module("cupy") if type(array).__module__.startswith("cupy") else np
    with np.errstate(over="ignore"):
        return xp.ldexp(array, exponent) if exponent else array


@dataclass(frozen=True)
class Frame:
    """A row x is worked on as x · 2^−exponent − mean, in the mean's dtype.

    Attributes
    ----------
    mean : numpy.ndarray of shape (d,)
        float32 or float64.
    exponent : int
    """

    mean: np.ndarray
    exponent: int = 0

    def centered(self, rows: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Return rows (n, d) as they are worked on; float64 rows are subtracted from in float64.

        In a new array, or in `out`, of at least as many rows, where rows have its dtype.
        """
        dtype = np.result_type(rows.dtype, self.mean.dtype)
        rows = ldexp(rows.astype(dtype, copy=False), -self.exponent)
        out = np.empty(rows.shape, dtype) if out is None or out.dtype != dtype else out
        return less(rows, self.mean, out).astype(self.mean.dtype, copy=False)

    def restored(self, centers: np.ndarray) -> np.ndarray:
        """Return centers (k, d) that were worked on as points among the rows.

        In the frame's dtype; in float64 where that would lose a part of 2^−12 of the centers' distances from the mean.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            narrow: np.ndarray = ldexp(centers + self.mean, self.exponent)
            wide: np.ndarray = ldexp(centers.astype(np.float64) + self.mean, self.exponent)
            scale = np.ldexp(float(abs(centers).max()), self.exponent)
            return narrow if abs(narrow - wide).max() <= _MOST_LOST * scale else wide


class Placed:
    """A fit's centers, in the frame that its labels were found in.

    Parameters
    ----------
    frame : Frame
    worked : numpy.ndarray of shape (k, d)
        As they were worked on, in the frame's dtype.
    given : numpy.ndarray of shape (k, d)
        The same, as they were given to the caller.
    """

    def __init__(self, frame: Frame, worked: np.ndarray, given: np.ndarray) -> None:
        self.frame, self.worked, self.given = frame, worked, given.copy()

    def centers(self, given: np.ndarray) -> np.ndarray:
        """Return the centers as they were worked on; if the caller has other ones by now, those in the frame."""
        same = given.dtype == self.given.dtype and np.array_equal(given, self.given)
        return self.worked if same else self.frame.centered(given)


class ScaledRows(RescaledRows):
    """The rows of another matrix times 2^−exponent."""

    def __init__(self, source: Rows, exponent: int, dtype: np.dtype) -> None:
        super().__init__(source, dtype)
        self.exponent = exponent

    def _scaled(self, block: Any, _: Sequence[int] | np.ndarray) -> Any:
        return ldexp(block, -self.exponent)
