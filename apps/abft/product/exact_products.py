"""Nearly exact elements of a product A · B: double-double dot products, for factors of any exponents.

For float64 factors, sums are pairwise, and the rounding errors of all products and additions are computed and added to
the result (T. Ogita, S. Rump and S. Oishi, Accurate sum and dot product, 2005). For factors of the other dtypes,
products are exact in float64, and far from the ends of its range.

Near the ends of float64's range, Σ|ab| may overflow although Σab does not, and the error of a product may underflow. In
that case, mantissas are multiplied and exponents are added as integers. Each element is divided by 2^exponent, the
power of two of its largest product: value = scaled · 2^exponent, and Σ|ab| = magnitude · 2^exponent. Nothing overflows,
and only terms below 2⁻¹⁰⁰⁰ of the largest product underflow.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

__all__ = ["ExactProduct", "exact_product", "exact_rows", "exponents_of"]

# Maximum bytes of the products that one part computes and sums, so that they fit in the cache. A single element may
# need more.
_EXACT_BYTES = 1 << 20
# 2²⁷ + 1: with this factor, Veltkamp's splitting divides a float64 into two parts. Products of such parts are exact.
_SPLITTER = 134217729.0
# Maximum exponent of a factor, and maximum and minimum exponents of a product, for which nothing overflows or
# underflows.
_LARGEST_FACTOR, _LARGEST_PRODUCT, _LEAST_PRODUCT = 990, 990, -900
# The exponent assigned to zeros, far below that of any product. Half the smallest positive float64 is 2^_HALF_QUANTUM.
_NO_EXPONENT, _HALF_QUANTUM = -10_000, -1075


class ExactProduct(NamedTuple):
    """The nearly exact product of a few rows of A with B; all arrays have shape (rows, w).

    Attributes
    ----------
    value : numpy.ndarray
        The elements, rounded to float64; infinite if beyond the range of float64.
    scaled, magnitude : numpy.ndarray
        The elements and Σ|ab|, both divided by 2^exponent.
    exponent : numpy.ndarray of int or None
        The exponent of each element's scale; None if no element is scaled, which means 0.
    """

    value: np.ndarray
    scaled: np.ndarray
    magnitude: np.ndarray
    exponent: np.ndarray | None


def exact_rows(A: np.ndarray, B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the nearly exact product of a few rows of A with B, in float64, and Σ|ab|; both of shape (rows, w)."""
    product = exact_product(A, B)
    if product.exponent is None:
        return product.value, product.magnitude
    with np.errstate(all="ignore"):
        return product.value, np.ldexp(product.magnitude, product.exponent)


def exact_product(A: np.ndarray, B: np.ndarray) -> ExactProduct:
    """Return the nearly exact product of a few rows of A with B. B has A's dtype, or is B converted to float64."""
    a, b = A.astype(np.float64, copy=False), B.astype(np.float64, copy=False)
    with np.errstate(all="ignore"):
        if A.dtype == np.float64 and not _is_ordinary(a, b):
            return _scaled_product(a, b)
        magnitude = abs(a) @ abs(b)
        if A.dtype != np.float64:
            value = a @ b
        else:
            value = np.empty_like(magnitude)
            for part, left, right in _parts(a, b):
                value[part] = sum(_twofold(*_products(left, right), magnitude[part].shape))
    return ExactProduct(value, value, magnitude, None)


def exponents_of(x: np.ndarray, none: int = _NO_EXPONENT) -> np.ndarray:
    """Return the integer e with ``2^(e−1) ≤ |x| < 2^e`` for each element x; `none` if x is zero or not finite."""
    return np.where(np.isfinite(x) & (x != 0), np.frexp(x)[1], none)


def _is_ordinary(a: np.ndarray, b: np.ndarray) -> bool:
    """Return True if no product, partial sum or rounding error of a · b overflows or underflows."""
    (least_a, most_a), (least_b, most_b) = _range_of(a), _range_of(b)
    most = most_a + most_b + a.shape[1].bit_length()
    return max(most_a, most_b) <= _LARGEST_FACTOR and most <= _LARGEST_PRODUCT and least_a + least_b >= _LEAST_PRODUCT


def _range_of(x: np.ndarray) -> tuple[int, int]:
    """Return the minimum and maximum exponent of the finite non-zero elements of x; (0, 0) if there are none."""
    size = abs(x)
    size = size[(size > 0) & (size < np.inf)]
    if not size.size:
        return 0, 0
    least, most = np.frexp([size.min(), size.max()])[1].tolist()
    return least, most


def _parts(a: np.ndarray, b: np.ndarray) -> Iterator[tuple[tuple[slice, slice], np.ndarray, np.ndarray]]:
    """Yield parts of a · b that fit in the cache: (slices of rows and columns, factor of a, factor of b).

    The factors have shapes (k, rows, 1) and (k, 1, columns), so that they broadcast to the products of each element.
    """
    k, w = b.shape
    columns = max(1, min(w, _EXACT_BYTES // (8 * max(1, k))))
    rows = max(1, _EXACT_BYTES // (8 * max(1, k * columns)))
    for column in range(0, w, columns):
        for row in range(0, len(a), rows):
            part = slice(row, row + rows), slice(column, column + columns)
            yield part, a[part[0]].T[:, :, np.newaxis], b[:, np.newaxis, part[1]]


def _scaled_product(a: np.ndarray, b: np.ndarray) -> ExactProduct:
    shape = len(a), b.shape[1]
    value, scaled, magnitude = np.empty(shape), np.empty(shape), np.empty(shape)
    exponent = np.zeros(shape, np.int32)
    for part, left, right in _parts(a, b):
        exponents = exponents_of(left) + exponents_of(right)
        most = exponents.max(axis=0, initial=2 * _NO_EXPONENT)
        exponent[part] = most = np.where(most > _NO_EXPONENT // 2, most, 0)
        products, lost = _products(np.frexp(left)[0], np.frexp(right)[0])
        products, lost = (np.ldexp(x, exponents - most) for x in (products, lost))
        magnitude[part] = abs(products).sum(axis=0)
        head, tail = _twofold(products, lost, most.shape)
        scaled[part], value[part] = head + tail, _unscaled(head, tail, most)
    return ExactProduct(value, scaled, magnitude, exponent)


def _unscaled(head: np.ndarray, tail: np.ndarray, exponent: np.ndarray) -> np.ndarray:
    """Return (head + tail) · 2^exponent, rounded only once even if the result is denormal."""
    total = head + tail
    rest = tail - (total - head)
    value = np.ldexp(total, exponent)
    # `cut` is the part of `total` that rounding to a denormal lost. If `cut` is exactly half the smallest positive
    # number, ldexp has rounded to even. If `rest` has the sign of `cut`, the exact loss cut + rest is more than half.
    cut = total - np.ldexp(value, -exponent)
    half = np.ldexp(1.0, _HALF_QUANTUM - exponent)
    other = (cut != 0) & (abs(cut) == half) & (np.sign(rest) == np.sign(cut)) & np.isfinite(value)
    return np.where(other, value + np.copysign(np.ldexp(1.0, _HALF_QUANTUM + 1), cut), value)


def _products(left: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return left · right and the rounding error of each product; the error of a non-finite product is 0."""
    products = left * right
    lost = _lost_of_product(left, right, products)
    return products, np.where(np.isfinite(lost), lost, 0.0)


def _twofold(sums: np.ndarray, lost_of_each: np.ndarray, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return the pairwise sums of `sums` along the first axis, and the errors of these sums.

    An error contains the rounding errors of the additions and the sum of `lost_of_each`, the errors of the terms. The
    error of a non-finite sum is 0.
    """
    lost = lost_of_each.sum(axis=0)
    if not len(sums):
        return np.zeros(shape), lost
    while len(sums) > 1:
        half = len(sums) // 2
        x, y = sums[:half], sums[half : 2 * half]
        total = x + y
        back = total - x
        lost += ((x - (total - back)) + (y - back)).sum(axis=0)
        sums = np.concatenate([total, sums[2 * half :]])
    return sums[0], np.where(np.isfinite(sums[0]), lost, 0.0)


def _lost_of_product(x: np.ndarray, y: np.ndarray, product: np.ndarray) -> np.ndarray:
    """Return x·y − fl(x·y), the rounding error of `product` = fl(x·y) (T. Dekker, 1971)."""

    def split(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        high = _SPLITTER * z - (_SPLITTER * z - z)
        return high, z - high

    (x_high, x_low), (y_high, y_low) = split(x), split(y)
    return x_low * y_low - (((product - x_high * y_high) - x_low * y_high) - x_high * y_low)
