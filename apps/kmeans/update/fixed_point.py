"""Fixed-point sums of clusters: their format, chosen from the range of the data; see fixed_point.cuh."""

from dataclasses import dataclass
from math import ceil, log2

import numpy as np

from tsapps.apps.kmeans.data.plan import MOST_EXPONENT

__all__ = ["NARROW", "WIDE", "Integers", "columns_of_block", "integers"]

# Likewise of float64, by which integers are scaled.
_MOST_OF_DOUBLE = 900
#: Digits of 16 bits of a sum's elements, and the most bits that they use beside the sign.
NARROW, WIDE = 2, 3
_BITS = {NARROW: 30, WIDE: 46}
# How far a feature's largest element may lie above the mean square for two digits to be as exact as float32.
_SPREAD = 2.0**8
# Bytes of a block's sums (kPlane in update/scatter_add.cuh).
_PLANES = 66 * 1024


@dataclass(frozen=True)
class Integers:
    """How elements become integers; see update/fixed_point.cuh.

    Attributes
    ----------
    digits : {2, 3}
        Of 16 bits each.
    scales : tuple of float
        For each feature, and for the weights, the power of two that an element is multiplied by.
    """

    digits: int
    scales: tuple[float, ...]

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block of `move`."""
        return _PLANES // (4 * self.digits) * 4 * self.digits


def integers(n: int, dtype: np.dtype, largest: np.ndarray, middle: float, most_weight: float | None) -> Integers:
    """Choose how sums are kept.

    Parameters
    ----------
    n : int
    dtype : {float32, float64}
    largest : numpy.ndarray of shape (d,)
        No less than the largest ``|x − mean|`` of each feature.
    middle : float
        The root of the mean square of all x − mean.
    most_weight : float, optional
        The largest ``|weight|``; None where all are 1.

    Notes
    -----
    An element is exact to 2⁻³¹ of its feature's largest where float32 is no better in the mean, else to 2⁻⁴⁷ or to what
    leaves room for n of them in 64 bits.
    """
    most = largest * (1.0 if most_weight is None else most_weight)
    # A feature that is always the same adds zeros, whatever its scale.
    exponents = np.clip(np.ceil(np.log2(np.where(most > 0, most, 1.0))), -_MOST_OF_DOUBLE, None)
    # Weights may differ by much, and a cluster of small ones is no empty cluster.
    narrow = dtype == np.float32 and most_weight is None and float(largest.max()) <= _SPREAD * middle
    narrow = narrow and bool((np.abs(exponents) < MOST_EXPONENT).all())
    digits = NARROW if narrow else WIDE
    bits = min(_BITS[digits], 62 - ceil(log2(n)))
    of_weight = 0 if not most_weight else bits - ceil(log2(most_weight))
    return Integers(digits, tuple(np.exp2(np.append(bits - exponents, of_weight)).tolist()))


def columns_of_block(d: int, k: int, digits: int) -> tuple[int, int]:
    """Return the columns of the sums that a block of `move` has, and how many blocks have them all."""
    chunks = -(-(d + 1) // (_PLANES // (4 * digits) // k))
    return -(-(d + 1) // chunks), chunks
