"""Layouts of X on a GPU, from sizes alone: its half-precision copy, and the lanes that share a row."""

from math import inf, log2, sqrt

import numpy as np

__all__ = [
    "EXACT",
    "MOST_EXPONENT",
    "ROUNDING",
    "ROWS",
    "UNCERTIFIED",
    "half_copy_scale",
    "half_copy_scales",
    "log2_lanes",
    "norm_limit_of",
    "padded",
    "vector_of",
]

#: Powers of two that float32 can be scaled by, back and forth.
MOST_EXPONENT = 96
#: The C++ class `CenteredRows` of assign/rescore.cuh, as a NumPy structure.
ROWS = np.dtype([("X", "u8"), ("leading", "i8"), ("d", "i4"), ("padding", "i4"), ("mean", "u8"), ("weights", "u8")])
#: What float16 loses of a row beside its norm, but for few rows: of data rounded to it, and of data that it holds.
ROUNDING, EXACT = 2.0**-12, 2.0**-20
#: What norms, and with them the bound, are multiplied by where labels are not proved: the roundings of a score remain.
UNCERTIFIED = 2.0**-10
# Where float16 is to hold the data: about so large in the mean square, a four-thousandth of its largest number.
_MIDDLE = 16.0


def padded(d: int) -> int:
    """Return the elements of a row of the shadow: d rounded up to 16 bytes."""
    return -(-d // 8) * 8


def log2_lanes(columns: int) -> int:
    """Return log2 of the lanes that share a row of so many columns: at most a warp."""
    return min(5, (columns - 1).bit_length())


def vector_of(itemsize: int) -> int:
    """Return the elements that a lane of data/half_copy.cuh takes at a time (its kVector)."""
    return 2 if itemsize == 8 else 4


def half_copy_scale(middle: float) -> float:
    """Return the power of two that the shadow's elements are multiplied by; `middle` is the data's root mean square."""
    exponent = round(log2(_MIDDLE) - log2(middle)) if 0 < middle < inf else 0
    return float(2.0 ** min(max(exponent, -MOST_EXPONENT), MOST_EXPONENT))


def half_copy_scales(middles: np.ndarray) -> np.ndarray:
    """Return the `half_copy_scale` of each of many data sets, float32."""
    there = (middles > 0) & (middles < inf)
    exponents = np.rint(log2(_MIDDLE) - np.log2(np.where(there, middles, _MIDDLE)))
    return np.exp2(np.clip(exponents, -MOST_EXPONENT, MOST_EXPONENT)).astype(np.float32)


def norm_limit_of(d: int) -> float:
    """Return the norm that few rows of the shadow exceed: twice the root of the mean square; see update/centers.cuh."""
    return 2.0 * _MIDDLE * sqrt(2.0 * d)
