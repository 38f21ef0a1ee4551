"""Protected products on the CPU: products by BLAS in blocks of rows, their row checks, and location of wrong elements.

B gets eight additional columns, so that every row of the product carries its checks. Row l of the extended B is

    [ b_l1 … b_lw | Σ_j b_lj | Σ_j j/w · b_lj | z_l1 s_l | … | z_l6 s_l ],     j = 1 … w,

with s_l the size of row l of B (product/thresholds.py). The second sum detects errors that cancel in the first sum: +δ
and −δ in one row. The random numbers z are hashes of their position, so they are the same on every run.

The sum over k is computed in *runs* of 256 products, whose sums are added to a total, and in whole tiles of rows and
columns. So the accumulation order is known, which the statistical threshold needs (rounding_model.py). The order is the
same for all sizes and depends only on a row's position in its tile: OpenBLAS has one order in float64 and two orders in
float32. (With several threads, OpenBLAS itself decides how to divide more than about 64 columns.) Without runs and
tiles, a BLAS restarts its sums after some hundreds of products, with shorter runs at the end. It also uses kernels with
other orders for remaining rows and columns, for small products and for single rows.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from tsapps.apps.abft.product.exact_products import exact_product, exponents_of
from tsapps.apps.abft.product.rounding_model import SQUARABLE, max_deviation, rounding_deviations
from tsapps.apps.abft.product.thresholds import LEAST_NORMAL, QUANTUM, ErrorBounds

__all__ = [
    "CHECKS",
    "MOST_LISTED",
    "RUN",
    "WrongElement",
    "check_columns",
    "checked_blocks",
    "flagged",
    "random_signs",
    "rounded",
    "wrong_elements",
]

#: Additional columns: two checks, and six probes of the row's magnitude.
CHECKS = 8
# Bytes of a block of rows: of A and the product, for a product; of A and C, when wrong elements are located.
_BLOCK_BYTES, _LOCATE_BYTES = 64 << 20, 16 << 20
#: Products in a run.
RUN = 256
# Multiples of rows and columns for which no BLAS kernel has a remainder.
_TILE_ROWS, _TILE_COLUMNS = 48, 8
# The least multiply-adds of a product for which a BLAS does not use its kernels for small products (OpenBLAS: 10⁶). A
# depth below _LEAST_DEPTH counts as _LEAST_DEPTH, because there the order of additions does not matter.
_LARGE, _LEAST_DEPTH = 1 << 21, 8

#: Row, column, value found and correct value.
WrongElement = tuple[int, int, float, float]
#: The most wrong elements that a report lists.
MOST_LISTED = 1 << 16


def random_signs(k: int, n: int) -> np.ndarray:
    """Return z, (k, n) float64: ``½ ≤ |z| ≤ 1`` with random signs, from hashes of 8·row + column (MurmurHash3)."""
    x = (8 * np.arange(k, dtype=np.uint32)[:, np.newaxis] + np.arange(n, dtype=np.uint32)).astype(np.uint32)
    x ^= x >> np.uint32(16)
    x *= np.uint32(0x85EBCA6B)
    x ^= x >> np.uint32(13)
    x *= np.uint32(0xC2B2AE35)
    x ^= x >> np.uint32(16)
    size = 0.5 + (x >> np.uint32(8)) * 2.0**-25
    return np.where(x & np.uint32(1), -size, size)


def weights(w: int) -> np.ndarray:
    """Return the weights of the two checks, (w, 2) float64."""
    return np.stack([np.ones(w), np.arange(1, w + 1) / max(w, 1)], axis=1)


def working_type(dtype: np.dtype) -> type[np.floating]:
    """Return the type in which products of a dtype are accumulated."""
    return np.float64 if dtype == np.float64 else np.float32


def check_columns(B: np.ndarray, bounds: ErrorBounds) -> np.ndarray:
    """Return the additional columns of B, (k, 8), in the accumulation type."""
    wide = B.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        sums = wide @ weights(B.shape[1])
        size = np.hypot(_norms(wide), sums[:, 0]) if bounds.by_spread else abs(wide).sum(axis=1)
        probes = random_signs(len(B), CHECKS - 2) * size[:, np.newaxis]
        return np.concatenate([sums, probes], axis=1).astype(working_type(B.dtype))


def _norms(x: np.ndarray) -> np.ndarray:
    """Return the norms of rows; scaling avoids that their squares overflow float64."""
    exponents = np.frexp(abs(x).max(axis=1, initial=0))[1]
    return np.ldexp(np.linalg.norm(np.ldexp(x, -exponents[:, np.newaxis]), axis=1), exponents)


def multiply(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """Return A · B, run by run, for a block of rows A and the extended B in the accumulation type."""
    product = np.zeros((len(A), B.shape[1]), A.dtype)
    for first in range(0, len(B), RUN):
        _add_run(product, A[:, first : first + RUN], B[first : first + RUN], begins=first == 0)
    return product


def _add_run(product: np.ndarray, A: np.ndarray, B: np.ndarray, *, begins: bool) -> None:
    """Add the product of one run to `product`; `begins` marks the first run, for which `product` is zero.

    The rows of an incomplete last tile are padded with zero rows. So that the BLAS uses its kernel for large products,
    preceding rows are multiplied with them again if necessary.
    """
    m, least = len(A), _least_rows(*B.shape)
    whole = m // _TILE_ROWS * _TILE_ROWS if m >= least else 0
    with np.errstate(over="ignore", invalid="ignore"):
        if begins:
            np.matmul(A[:whole], B, out=product[:whole])
        else:
            product[:whole] += A[:whole] @ B
        if whole < m:
            begin = max(0, whole + _TILE_ROWS - least)
            padded = np.zeros((least, A.shape[1]), A.dtype)
            padded[: m - begin] = A[begin:]
            product[whole:] += (padded @ B)[whole - begin : m - begin]


def _whole(size: int, tile: int) -> int:
    """Return a size rounded up to whole tiles."""
    return -(-size // tile) * tile


def _least_rows(depth: int, columns: int) -> int:
    """Return the least number of rows, in whole tiles, for which a BLAS uses its kernels for large products."""
    return _whole(-(-_LARGE // max(1, max(depth, _LEAST_DEPTH) * columns)), _TILE_ROWS)


def checked_blocks(
    A: np.ndarray, B: np.ndarray, bounds: ErrorBounds, out: np.ndarray | None
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield (first row, sums, checks) for blocks of rows of A · B.

    Parameters
    ----------
    A, B : numpy.ndarray of shapes (m, k), (k, w)
    bounds : ErrorBounds
    out : numpy.ndarray of shape (m, w) or None
        Receives the sums, rounded to its dtype. If None, only the checks are computed, and the sums have no columns.
    """
    work = working_type(A.dtype)
    m, k = A.shape
    w = 0 if out is None else B.shape[1]
    columns = _whole(w + CHECKS, _TILE_COLUMNS)
    extended = np.zeros((k, columns), work)
    extended[:, :w], extended[:, w : w + CHECKS] = B[:, :w], check_columns(B, bounds)
    rows = max(_TILE_ROWS, _BLOCK_BYTES // (extended.itemsize * (k + columns)) // _TILE_ROWS * _TILE_ROWS)
    tiny = _tiny_rows(B)
    for first in range(0, m, rows):
        end = min(m, first + rows)
        extended_sums = multiply(A[first:end].astype(work, copy=False), extended)
        if tiny.size:
            _invalidate_unsure(extended_sums[:, w : w + CHECKS], A[first:end, tiny], B.shape[1], bounds)
        if out is not None:
            with np.errstate(over="ignore", invalid="ignore"):
                out[first:end] = extended_sums[:, :w]
        yield first, extended_sums[:, :w], extended_sums[:, w : w + CHECKS]


def _tiny_rows(B: np.ndarray) -> np.ndarray:
    """Return the rows of B whose check columns may lose more to underflow than to rounding."""
    work = np.dtype(working_type(B.dtype)).itemsize
    with np.errstate(over="ignore", invalid="ignore"):
        size = abs(B.astype(np.float64)).sum(axis=1)
    return np.flatnonzero((size > 0) & (size < B.shape[1] * LEAST_NORMAL[work] * 2.0**22))


def _invalidate_unsure(checks: np.ndarray, A: np.ndarray, w: int, bounds: ErrorBounds) -> None:
    """Set the checks of a row to NaN, which flags the row, if underflow in check columns may hide a wrong element.

    `A` has only the columns that multiply tiny rows of B. In such a row of B, underflow changes each check column by at
    most w + 1 times the smallest positive number.
    """
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        lost = abs(A.astype(np.float64)).sum(axis=1) * ((w + 1) * QUANTUM[checks.itemsize])
        checks[~(lost <= _most_of_rows(checks, bounds))] = np.nan


def _most_of_rows(checks: np.ndarray, bounds: ErrorBounds) -> np.ndarray:
    """Return the bounds of the rows' residuals, without the rounding of C to its dtype."""
    return bounds.row * abs(checks).astype(np.float64).max(axis=1, initial=0) + bounds.row_absolute


def flagged(sums: np.ndarray, checks: np.ndarray, bounds: ErrorBounds, *, rounded: bool) -> np.ndarray:
    """Return the rows whose sums disagree with their checks, or whose bound is not finite.

    Parameters
    ----------
    sums : numpy.ndarray of shape (rows, w)
    checks : numpy.ndarray of shape (rows, 8)
    bounds : ErrorBounds
    rounded : bool
        Whether `sums` have been rounded to C's dtype.

    Returns
    -------
    numpy.ndarray of shape (n_flagged,), int64
    """
    with np.errstate(over="ignore", invalid="ignore"):
        work = sums.astype(checks.dtype, copy=False)
        residuals = abs(work @ weights(sums.shape[1]).astype(checks.dtype) - checks[:, :2]).max(axis=1, initial=0)
        most = _most_of_rows(checks, bounds)
        if rounded and bounds.rounding:
            most += bounds.rounding * abs(work).sum(axis=1) + sums.shape[1] * bounds.rounding_absolute
        # This comparison also flags NaN.
        return np.flatnonzero(~((residuals <= most) & (most < np.inf)))


def wrong_elements(
    A: np.ndarray, B: np.ndarray, C: np.ndarray, rows: Iterable[int], bounds: ErrorBounds
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Yield the wrong elements of some rows of C, one block of rows at a time.

    Elements with a non-finite factor are not tested. A non-finite element is tested only if no partial sum can overflow
    and C's dtype can hold the exact value.

    Yields
    ------
    rows, columns : numpy.ndarray of shape (n_wrong,), int64
        In order.
    found : numpy.ndarray of shape (n_wrong,), float64
    values : numpy.ndarray of shape (n_wrong,)
        The exact elements, rounded to C's dtype.
    """
    every, wide = np.asarray(list(rows), np.int64), B.astype(np.float64, copy=False)
    step = max(1, _LOCATE_BYTES // (8 * max(1, sum(B.shape))))
    for first in range(0, len(every), step):
        some = every[first : first + step]
        i, columns, found, exact = _wrong_in_block(A[some], wide, C[some], bounds)
        yield some[i], columns, found, rounded(exact, C.dtype)


def _wrong_in_block(
    A: np.ndarray, B: np.ndarray, C: np.ndarray, bounds: ErrorBounds
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return rows, columns, values found and exact values of the wrong elements of a block of rows."""
    product = exact_product(A, B)
    with np.errstate(all="ignore"):
        found = C.astype(np.float64)
        # All values of an element are divided by 2^by, where `by` is the largest of their exponents. So nothing
        # overflows, and underflow is negligible.
        if product.exponent is None:
            by, exact, magnitude = 0, product.scaled, product.magnitude
        else:
            of_bounds = exponents_of(np.array([bounds.absolute]))
            by = np.maximum(product.exponent, np.maximum(exponents_of(found), of_bounds))
            exact, magnitude = (np.ldexp(x, product.exponent - by) for x in (product.scaled, product.magnitude))
        allowed = bounds.magnitude * magnitude + np.ldexp(bounds.absolute, -by)
        if bounds.spread:
            allowed += bounds.spread * _scaled_deviations(A, B, magnitude, by, bounds)
        # A non-finite element is correct if a partial sum may overflow, or if it may round to infinity.
        may_overflow = (magnitude >= np.ldexp(bounds.largest_sum, -by)) | (
            abs(exact) + allowed >= np.ldexp(bounds.largest, -by)
        )
        # C holds the rounded sum, not the rounded exact element.
        if bounds.rounding:
            allowed += bounds.rounding * (abs(exact) + allowed) + bounds.rounding_absolute
        tested = np.isfinite(exact) & (np.isfinite(found) | ~may_overflow)
        i, j = np.nonzero(tested & ~(abs(np.ldexp(found, -by) - exact) <= allowed))
    return i, j, found[i, j], product.value[i, j]


def _scaled_deviations(A: np.ndarray, B: np.ndarray, magnitude: np.ndarray, by: Any, bounds: ErrorBounds) -> np.ndarray:
    """Return the deviations of rounding errors, divided by 2^by; `magnitude` is Σ|ab|, divided by 2^by."""
    size = np.ldexp(magnitude, by)
    squarable = (size > SQUARABLE[0]) & (size < SQUARABLE[1])
    deviations = np.ldexp(rounding_deviations(A, B, bounds.model), -by)
    return np.where(squarable, deviations, max_deviation(bounds.model, A.shape[1]) * magnitude)


def rounded(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return float64 values rounded to a dtype once.

    A bfloat16 is rounded from float32. The float32 is truncated and, if that is inexact, its last bit is set to 1
    (round to odd), so that a value just above the midpoint of two bfloat16 numbers is not mistaken for a tie.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        if dtype.name != "bfloat16":
            return x.astype(dtype)
        cut = x.astype(np.float32)
        beyond = abs(cut.astype(np.float64)) > abs(x)
        cut[beyond] = np.nextafter(cut[beyond], np.float32(0))
        cut.view(np.uint32)[...] |= cut != x
        return cut.astype(dtype)
