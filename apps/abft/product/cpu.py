"""Protected products on the CPU: multiply by BLAS in blocks of rows, check each row, and locate wrong elements.

B (k × w) gets eight additional columns, so that every row of the product has eight *checks*: two checksums and six
probes of the row's magnitude. Row l of the extended B is

    [ b_l1 … b_lw | Σ_j b_lj | Σ_j j/w · b_lj | z_l1 s_l | … | z_l6 s_l ],     j = 1 … w,

where s_l is the size of row l of B (product/thresholds.py). The second checksum detects errors that cancel in the first
checksum, such as +δ and −δ in one row. The random numbers z are hashes of their indices, so every run uses the same z.

The sum over k is computed in *runs* of 256 products; the sum of each run is added to a total. The BLAS only multiplies
whole tiles of rows and columns. So the accumulation order is known, which the statistical threshold needs
(rounding_model.py). The order is the same for all sizes and depends only on the position of a row in its tile: OpenBLAS
has one order in float64 and two orders in float32. One part of the order is not controlled: with several threads,
OpenBLAS itself decides how to divide more than about 64 columns.

Without runs and tiles, a BLAS restarts its sums after some hundreds of products, with shorter runs at the end. It also
uses kernels with other orders for remaining rows and columns, for small products and for single rows.
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

#: Number of columns that are added to B: two for checksums, and six for probes of the row's magnitude.
CHECKS = 8
# Approximate size in bytes of a block of rows: of A and the extended product together, when products are computed; and
# of A and C in float64 together, when wrong elements are located.
_BLOCK_BYTES, _LOCATE_BYTES = 64 << 20, 16 << 20
#: Number of products per run; the last run may have fewer.
RUN = 256
# Rows and columns of a tile: multiples of the block sizes of all BLAS kernels, so that none handles remaining rows.
_TILE_ROWS, _TILE_COLUMNS = 48, 8
# Minimum number of multiply-adds of a product for which a BLAS does not use its kernels for small products; OpenBLAS
# uses them up to 10⁶. A depth below _LEAST_DEPTH counts as _LEAST_DEPTH, because there the accumulation order does not
# matter.
_LARGE, _LEAST_DEPTH = 1 << 21, 8

#: A wrong element: row, column, value found, and correct value.
WrongElement = tuple[int, int, float, float]
#: Maximum number of wrong elements that a report lists.
MOST_LISTED = 1 << 16


def random_signs(k: int, n: int) -> np.ndarray:
    """Return z, (k, n) float64: pseudo-random numbers with ``½ ≤ |z| ≤ 1`` and random signs.

    They are hashes of 8·row + column (MurmurHash3).
    """
    x = (8 * np.arange(k, dtype=np.uint32)[:, np.newaxis] + np.arange(n, dtype=np.uint32)).astype(np.uint32)
    x ^= x >> np.uint32(16)
    x *= np.uint32(0x85EBCA6B)
    x ^= x >> np.uint32(13)
    x *= np.uint32(0xC2B2AE35)
    x ^= x >> np.uint32(16)
    size = 0.5 + (x >> np.uint32(8)) * 2.0**-25
    return np.where(x & np.uint32(1), -size, size)


def weights(w: int) -> np.ndarray:
    """Return the weights of the two checksums of a row of w elements, (w, 2) float64."""
    return np.stack([np.ones(w), np.arange(1, w + 1) / max(w, 1)], axis=1)


def working_type(dtype: np.dtype) -> type[np.floating]:
    """Return the type in which products of a dtype are accumulated."""
    return np.float64 if dtype == np.float64 else np.float32


def check_columns(B: np.ndarray, bounds: ErrorBounds) -> np.ndarray:
    """Return the eight columns that are added to B, (k, 8), in the accumulation type."""
    wide = B.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        sums = wide @ weights(B.shape[1])
        size = np.hypot(_norms(wide), sums[:, 0]) if bounds.by_spread else abs(wide).sum(axis=1)
        probes = random_signs(len(B), CHECKS - 2) * size[:, np.newaxis]
        return np.concatenate([sums, probes], axis=1).astype(working_type(B.dtype))


def _norms(x: np.ndarray) -> np.ndarray:
    """Return the Euclidean norm of each row; scaling prevents overflow of the squares."""
    exponents = np.frexp(abs(x).max(axis=1, initial=0))[1]
    return np.ldexp(np.linalg.norm(np.ldexp(x, -exponents[:, np.newaxis]), axis=1), exponents)


def multiply(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """Return A · B, run by run, for a block of rows A and the extended B in the accumulation type."""
    product = np.zeros((len(A), B.shape[1]), A.dtype)
    for first in range(0, len(B), RUN):
        _add_run(product, A[:, first : first + RUN], B[first : first + RUN], begins=first == 0)
    return product


def _add_run(product: np.ndarray, A: np.ndarray, B: np.ndarray, *, begins: bool) -> None:
    """Add A · B, the product of one run, to `product`; `begins` is true for the first run, where `product` is zero.

    The rows of an incomplete last tile are padded with zero rows. If the padded tile is too small for the BLAS's kernel
    for large products, the preceding rows are multiplied again together with the last tile.
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
    """Return a number of rows or columns, rounded up to whole tiles."""
    return -(-size // tile) * tile


def _least_rows(depth: int, columns: int) -> int:
    """Return the minimum number of rows, in whole tiles, for which a BLAS uses its kernels for large products."""
    return _whole(-(-_LARGE // max(1, max(depth, _LEAST_DEPTH) * columns)), _TILE_ROWS)


def checked_blocks(
    A: np.ndarray, B: np.ndarray, bounds: ErrorBounds, out: np.ndarray | None
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Compute A · B with checks in blocks of rows: yield (first row, sums, checks) per block.

    `sums` are the elements of the block in the accumulation type, and `checks` are the eight checks of each row.

    Parameters
    ----------
    A, B : numpy.ndarray of shapes (m, k), (k, w)
    bounds : ErrorBounds
    out : numpy.ndarray of shape (m, w) or None
        Receives the sums, rounded to the dtype of `out`. If `out` is None, only the checks are computed, and `sums` has
        no columns.
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
    """Return the rows of B where underflow may change the check columns by more than rounding does."""
    work = np.dtype(working_type(B.dtype)).itemsize
    with np.errstate(over="ignore", invalid="ignore"):
        size = abs(B.astype(np.float64)).sum(axis=1)
    return np.flatnonzero((size > 0) & (size < B.shape[1] * LEAST_NORMAL[work] * 2.0**22))


def _invalidate_unsure(checks: np.ndarray, A: np.ndarray, w: int, bounds: ErrorBounds) -> None:
    """Set the checks of a row to NaN, which flags the row, if underflow in B's check columns may hide a wrong element.

    `A` has only the columns of A that multiply tiny rows of B (`_tiny_rows`). Underflow changes each check column of a
    tiny row by at most w + 1 times the smallest positive number.
    """
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        lost = abs(A.astype(np.float64)).sum(axis=1) * ((w + 1) * QUANTUM[checks.itemsize])
        checks[~(lost <= _most_of_rows(checks, bounds))] = np.nan


def _most_of_rows(checks: np.ndarray, bounds: ErrorBounds) -> np.ndarray:
    """Return the bound of each row's residual, for sums that are not rounded to C's dtype."""
    return bounds.row * abs(checks).astype(np.float64).max(axis=1, initial=0) + bounds.row_absolute


def flagged(sums: np.ndarray, checks: np.ndarray, bounds: ErrorBounds, *, rounded: bool) -> np.ndarray:
    """Return the rows that fail their check: the residual exceeds its bound, or the bound is not finite.

    The residual of a row is the larger difference of its two checksums from the weighted sums of its elements.

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
        # The negated comparison also flags rows with NaN.
        return np.flatnonzero(~((residuals <= most) & (most < np.inf)))


def wrong_elements(
    A: np.ndarray, B: np.ndarray, C: np.ndarray, rows: Iterable[int], bounds: ErrorBounds
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Recompute some rows of C, and yield their wrong elements, one block of rows at a time.

    Elements with a non-finite factor are not tested. A non-finite element is tested only if no partial sum can overflow
    and C's dtype can hold the exact value.

    Yields
    ------
    rows, columns : numpy.ndarray of shape (n_wrong,), int64
        The indices of the wrong elements, in row-major order within the block.
    found : numpy.ndarray of shape (n_wrong,), float64
        The elements of C.
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
        # All values that are compared for an element are divided by 2^by, where `by` is the largest exponent among
        # these values. So nothing overflows, and underflow is negligible.
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
    """Return the deviation of each element's rounding error (rounding_model.py), divided by 2^by.

    `magnitude` is Σ|ab| divided by 2^by, where the sum extends over the element's products.
    """
    size = np.ldexp(magnitude, by)
    squarable = (size > SQUARABLE[0]) & (size < SQUARABLE[1])
    deviations = np.ldexp(rounding_deviations(A, B, bounds.model), -by)
    return np.where(squarable, deviations, max_deviation(bounds.model, A.shape[1]) * magnitude)


def rounded(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return float64 values rounded to a dtype with a single rounding.

    NumPy rounds to bfloat16 from float32. So a value is first truncated to float32, and the last bit of the float32 is
    set to 1 if bits were cut off (round to odd). Then a value just above the midpoint of two bfloat16 numbers is not
    mistaken for a tie.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        if dtype.name != "bfloat16":
            return x.astype(dtype)
        cut = x.astype(np.float32)
        beyond = abs(cut.astype(np.float64)) > abs(x)
        cut[beyond] = np.nextafter(cut[beyond], np.float32(0))
        cut.view(np.uint32)[...] |= cut != x
        return cut.astype(dtype)
