"""Fixed-point format of the cluster sums: limbs and scales from the range of the data; see fixed_point.cuh."""

from dataclasses import dataclass
from math import ceil, log2

import numpy as np

from tsapps.apps.kmeans.data.fixed_point_data import FixedPointData
from tsapps.apps.kmeans.data.plan import MOST_EXPONENT

__all__ = ["NARROW", "WIDE", "Integers", "columns_of_block", "integers", "integers_of"]

# The largest |e| of a scale 2^e in float64. For float32, the limit is `MOST_EXPONENT`.
_MOST_EXPONENT_64 = 900
#: Number of 16-bit limbs per element of the sums: two or three.
NARROW, WIDE = 2, 3
# Number of bits that an element uses, without the sign.
_BITS = {NARROW: 30, WIDE: 46}
# Two limbs are as exact as float32 on average if the largest |element| is at most this many times the root mean square
# of all elements.
_SPREAD = 2.0**8
# Shared memory for the sums of a block of `scatter_add` in bytes (kPlane in update/scatter_add.cuh).
_PLANES = 66 * 1024


@dataclass(frozen=True, eq=False)
class Integers:
    """Fixed-point format of the cluster sums; see update/fixed_point.cuh.

    Attributes
    ----------
    digits : {2, 3}
        Number of 16-bit limbs per element.
    scales : numpy.ndarray of shape (d + 1,), float64
        Powers of two that multiply the elements of each feature, and as the last number that of the weights.
    """

    digits: int
    scales: np.ndarray

    @property
    def scales_of_kernels(self) -> np.ndarray:
        """The scales in the type that kernels read: float32 for two limbs, float64 for three."""
        return self.scales.astype(np.float32 if self.digits == NARROW else np.float64)

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block of `scatter_add` in bytes."""
        return _PLANES // (4 * self.digits) * 4 * self.digits


def integers(n: int, dtype: np.dtype, largest: np.ndarray, middle: float, most_weight: float | None) -> Integers:
    """Select the fixed-point format of the cluster sums.

    Parameters
    ----------
    n : int
    dtype : {float32, float64}
        Working dtype.
    largest : numpy.ndarray of shape (d,)
        Upper bound of ``|x − mean|`` of each feature.
    middle : float
        Root mean square of the elements of x − mean over all rows x.
    most_weight : float, optional
        The largest ``|weight|``; None if all weights are 1.

    Returns
    -------
    Integers

    Notes
    -----
    Elements have two limbs if float32 is not more exact on average. They are then rounded to 2⁻³¹ of the largest
    element of their feature. Otherwise elements have three limbs, and are rounded to 2⁻⁴⁷ of the largest element.
    Rounding is coarser if sums of n elements would overflow 64 bits.
    """
    most = largest * (1.0 if most_weight is None else most_weight)
    # A constant feature adds zeros, whatever its scale.
    exponents = np.clip(np.ceil(np.log2(np.where(most > 0, most, 1.0))), -_MOST_EXPONENT_64, None)
    # Weights take three limbs: they may differ by orders of magnitude, and small ones must not round to zero.
    narrow = dtype == np.float32 and most_weight is None and float(largest.max()) <= _SPREAD * middle
    narrow = narrow and bool((np.abs(exponents) < MOST_EXPONENT).all())
    digits = NARROW if narrow else WIDE
    bits = min(_BITS[digits], 62 - ceil(log2(n)))
    of_weight = 0 if not most_weight else bits - ceil(log2(most_weight))
    scales = np.exp2(np.append(bits - exponents, of_weight))
    scales.flags.writeable = False
    return Integers(digits, scales)


def integers_of(data: FixedPointData, subtracted: np.ndarray | None = None) -> Integers:
    """Return the fixed-point format of the cluster sums of X − `subtracted`, (d,).

    By default, it is that of X minus the point that passes over `data` subtract.
    """
    spread = data.spread(subtracted)
    if data.integers is None or data.integers[0] is not spread:
        data.integers = spread, integers(data.n_total, data.dtype, *spread, data.most_weight)
    found: Integers = data.integers[1]
    return found


def columns_of_block(d: int, k: int, digits: int) -> tuple[int, int]:
    """Return the number of columns that a block of `scatter_add` sums, and the number of blocks for all d + 1 columns.

    A block has sums of its columns for k clusters in shared memory; an element has `digits` limbs.
    """
    chunks = -(-(d + 1) // (_PLANES // (4 * digits) // k))
    return -(-(d + 1) // chunks), chunks
