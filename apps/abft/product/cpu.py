"""Protected products on the CPU: blocks of rows by BLAS, the rows that are suspected, and the elements that are wrong.

B gets eight columns more, so that every row of the product carries its checks (product/thresholds.py):

    [ B | Σ_j b_lj | Σ_j (j + 1)/w · b_lj | z_l1 s_l | … | z_l6 s_l ]

The second weights see what cancels in the first: errors of +δ and −δ in one row. The random numbers z are a hash of
their place, the same on every run.

Products are computed in runs of 256 of their depth, which are added up, and of whole tiles of rows and columns. So
their order is known, which the statistical threshold stands on (rounding_model.py), and the same for all sizes, by a
row's place in its tile: OpenBLAS has one order in float64, and two in float32. (Of several threads, it shares out more
columns than some 64 as it sees fit.) By itself a BLAS begins anew after some hundreds of products, differently at the
end, and has kernels of another order for what is left over of rows and columns, for small products and for single rows.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from tsapps.apps.abft.product.exact_products import exact_product, exponents_of
from tsapps.apps.abft.product.rounding_model import HELD, most_walk, walks
from tsapps.apps.abft.product.thresholds import LEAST_NORMAL, QUANTUM, Bounds

__all__ = [
    "CHECKS",
    "MOST_LISTED",
    "RUN",
    "Wrong",
    "check_columns",
    "checked_blocks",
    "flagged",
    "random_signs",
    "rounded",
    "wrong",
]

#: Columns that a row carries beside those of C: two checks, and the probes of its magnitude.
CHECKS = 8
# Bytes of A that are multiplied at a time; bytes of rows that are judged at a time.
_BLOCK_BYTES, _JUDGED_BYTES = 64 << 20, 16 << 20
#: Products that are added up at a time.
RUN = 256
# Of rows and columns, what no kernel of a BLAS leaves anything of; multiplications from which on it has none for small
# products, OpenBLAS from 10⁶ on; and a depth below which that is no matter.
_TILE_ROWS, _TILE_COLUMNS, _LARGE, _FEWEST = 48, 8, 1 << 21, 8

#: Row, column, what was found and what it should be; and how many are listed.
Wrong = tuple[int, int, float, float]
MOST_LISTED = 1 << 16


def random_signs(k: int, n: int) -> np.ndarray:
    """Return z, (k, n) float64: ``½ ≤ |z| ≤ 1`` of either sign, hashes of 8·row + column (MurmurHash3's finalizer)."""
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
    """Return what products of a dtype are summed in."""
    return np.float64 if dtype == np.float64 else np.float32


def check_columns(B: np.ndarray, bounds: Bounds) -> np.ndarray:
    """Return the columns that B gets, (k, 8), in the type that is summed in."""
    wide = B.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        sums = wide @ weights(B.shape[1])
        size = np.hypot(_norms(wide), sums[:, 0]) if bounds.by_spread else abs(wide).sum(axis=1)
        probes = random_signs(len(B), CHECKS - 2) * size[:, np.newaxis]
        return np.concatenate([sums, probes], axis=1).astype(working_type(B.dtype))


def _norms(x: np.ndarray) -> np.ndarray:
    """Return the norms of rows whose squares may be beyond float64."""
    exponents = np.frexp(abs(x).max(axis=1, initial=0))[1]
    return np.ldexp(np.linalg.norm(np.ldexp(x, -exponents[:, np.newaxis]), axis=1), exponents)


def multiply(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """Return the product of a block of rows and all columns, both in the type that is summed in."""
    product = np.zeros((len(A), B.shape[1]), A.dtype)
    for first in range(0, len(B), RUN):
        _add_run(product, A[:, first : first + RUN], B[first : first + RUN], begins=first == 0)
    return product


def _add_run(product: np.ndarray, A: np.ndarray, B: np.ndarray, *, begins: bool) -> None:
    """Add A · B of one run to `product`, which is zero if the run `begins`.

    Rows that are no whole tile are multiplied once more with whole tiles before them, and filled up with zeros.
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
            rest = np.zeros((least, A.shape[1]), A.dtype)
            rest[: m - begin] = A[begin:]
            product[whole:] += (rest @ B)[whole - begin : m - begin]


def _whole(size: int, tile: int) -> int:
    """Return a size as whole tiles."""
    return -(-size // tile) * tile


def _least_rows(depth: int, columns: int) -> int:
    """Return how many rows at least of a run a BLAS multiplies by its kernels for large products, as whole tiles."""
    return _whole(-(-_LARGE // max(1, max(depth, _FEWEST) * columns)), _TILE_ROWS)


def checked_blocks(
    A: np.ndarray, B: np.ndarray, bounds: Bounds, out: np.ndarray | None
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield (first row, sums, checks) of blocks of rows of A · B.

    Parameters
    ----------
    A, B : numpy.ndarray of shapes (m, k), (k, w)
    bounds : Bounds
    out : numpy.ndarray of shape (m, w) or None
        What the sums are rounded to; if None, only the checks are computed, and the sums have no columns.
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
        carried = multiply(A[first:end].astype(work, copy=False), extended)
        if tiny.size:
            _drop_unsure(carried[:, w : w + CHECKS], A[first:end, tiny], B.shape[1], bounds)
        if out is not None:
            with np.errstate(over="ignore", invalid="ignore"):
                out[first:end] = carried[:, :w]
        yield first, carried[:, :w], carried[:, w : w + CHECKS]


def _tiny_rows(B: np.ndarray) -> np.ndarray:
    """Return the rows of B whose check columns may lose more to underflow than to rounding."""
    work = np.dtype(working_type(B.dtype)).itemsize
    with np.errstate(over="ignore", invalid="ignore"):
        size = abs(B.astype(np.float64)).sum(axis=1)
    return np.flatnonzero((size > 0) & (size < B.shape[1] * LEAST_NORMAL[work] * 2.0**22))


def _drop_unsure(checks: np.ndarray, A: np.ndarray, w: int, bounds: Bounds) -> None:
    """Make checks NaN, so that their rows are suspected, where underflow in check columns may hide a wrong element.

    `A` has the columns that meet the rows of B that are tiny: each of their check columns is off by w + 1 of the
    smallest numbers at most.
    """
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        lost = abs(A.astype(np.float64)).sum(axis=1) * ((w + 1) * QUANTUM[checks.itemsize])
        checks[~(lost <= _most_of_rows(checks, bounds))] = np.nan


def _most_of_rows(checks: np.ndarray, bounds: Bounds) -> np.ndarray:
    """Return what rows may be off by, before C is rounded."""
    return bounds.row * abs(checks).astype(np.float64).max(axis=1, initial=0) + bounds.row_absolute


def flagged(sums: np.ndarray, checks: np.ndarray, bounds: Bounds, *, rounded: bool) -> np.ndarray:
    """Return which rows do not agree with their checks, or are not finite.

    Parameters
    ----------
    sums : numpy.ndarray of shape (rows, w)
    checks : numpy.ndarray of shape (rows, 8)
    bounds : Bounds
    rounded : bool
        Whether `sums` have been rounded to C's dtype.

    Returns
    -------
    numpy.ndarray of shape (suspected,), int64
    """
    with np.errstate(over="ignore", invalid="ignore"):
        work = sums.astype(checks.dtype, copy=False)
        off = abs(work @ weights(sums.shape[1]).astype(checks.dtype) - checks[:, :2]).max(axis=1, initial=0)
        most = _most_of_rows(checks, bounds)
        if rounded and bounds.rounding:
            most += bounds.rounding * abs(work).sum(axis=1) + sums.shape[1] * bounds.rounding_absolute
        # Written so that what is not a number is suspected.
        return np.flatnonzero(~((off <= most) & (most < np.inf)))


def wrong(
    A: np.ndarray, B: np.ndarray, C: np.ndarray, rows: Iterable[int], bounds: Bounds
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Yield the elements of some rows of C that are wrong, a block of rows after another.

    An element is not judged where a factor is not finite. One that is not finite itself is judged only where no sum on
    the way may overflow, and C's dtype holds the exact one.

    Yields
    ------
    rows, columns : numpy.ndarray of shape (wrong,), int64
        In order.
    found : numpy.ndarray of shape (wrong,), float64
    values : numpy.ndarray of shape (wrong,)
        What they should be: the exact elements, rounded to C's dtype.
    """
    every, wide = np.asarray(list(rows), np.int64), B.astype(np.float64, copy=False)
    step = max(1, _JUDGED_BYTES // (8 * max(1, sum(B.shape))))
    for first in range(0, len(every), step):
        some = every[first : first + step]
        i, columns, found, exact = _wrong_of(A[some], wide, C[some], bounds)
        yield some[i], columns, found, rounded(exact, C.dtype)


def _wrong_of(
    A: np.ndarray, B: np.ndarray, C: np.ndarray, bounds: Bounds
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return where elements of a block of rows are wrong, what they are, and the exact ones."""
    product = exact_product(A, B)
    with np.errstate(all="ignore"):
        found = C.astype(np.float64)
        # All that an element is judged by, without a factor of 2^exponent: of the largest of it, so that nothing
        # overflows, and what underflows is negligible.
        if product.exponent is None:
            by, exact, magnitude = 0, product.scaled, product.magnitude
        else:
            of_bounds = exponents_of(np.array([bounds.absolute]))
            by = np.maximum(product.exponent, np.maximum(exponents_of(found), of_bounds))
            exact, magnitude = (np.ldexp(x, product.exponent - by) for x in (product.scaled, product.magnitude))
        allowed = bounds.magnitude * magnitude + np.ldexp(bounds.absolute, -by)
        if bounds.spread:
            allowed += bounds.spread * _walks_of(A, B, magnitude, by, bounds)
        # A sum that is not finite is right where it may overflow on its way, or round to that.
        may_overflow = (magnitude >= np.ldexp(bounds.largest_sum, -by)) | (
            abs(exact) + allowed >= np.ldexp(bounds.largest, -by)
        )
        # What is rounded is the sum, not the exact element.
        if bounds.rounding:
            allowed += bounds.rounding * (abs(exact) + allowed) + bounds.rounding_absolute
        judged = np.isfinite(exact) & (np.isfinite(found) | ~may_overflow)
        i, j = np.nonzero(judged & ~(abs(np.ldexp(found, -by) - exact) <= allowed))
    return i, j, found[i, j], product.value[i, j]


def _walks_of(A: np.ndarray, B: np.ndarray, magnitude: np.ndarray, by: Any, bounds: Bounds) -> np.ndarray:
    """Return how far roundings may walk, without a factor of 2^by; `magnitude` is Σ|ab| without it."""
    size = np.ldexp(magnitude, by)
    held = (size > HELD[0]) & (size < HELD[1])
    walked = np.ldexp(walks(A, B, bounds.walk), -by)
    return np.where(held, walked, most_walk(bounds.walk, A.shape[1]) * magnitude)


def rounded(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return float64 rounded to a dtype once.

    bfloat16 comes by way of float32, in which what was cut off is kept as an odd last bit, so that nothing that is
    above the middle of two neighbours looks like it.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        if dtype.name != "bfloat16":
            return x.astype(dtype)
        cut = x.astype(np.float32)
        beyond = abs(cut.astype(np.float64)) > abs(x)
        cut[beyond] = np.nextafter(cut[beyond], np.float32(0))
        cut.view(np.uint32)[...] |= cut != x
        return cut.astype(dtype)
