"""Protected products on the CPU: blocks of rows by BLAS, the rows that are suspected, and the elements that are wrong.

B gets eight columns more, so that every row of the product carries its checks (thresholds.py):

    [ B | Σ_j b_lj | Σ_j (j + 1)/w · b_lj | z_l1 s_l | … | z_l6 s_l ]

The second weights see what cancels in the first: errors of +δ and −δ in one row. The random numbers z are a hash of
their place, the same on every run.

Products are computed in runs of 256 of their depth, which are added up, and of whole tiles of rows and columns. So
their order is known, which the statistical threshold stands on (walk.py), and the same for all sizes, by a row's place
in its tile: OpenBLAS has one order in float64, and two in float32. (Of several threads, it shares out more columns
than some 64 as it sees fit.) By itself a BLAS begins anew after some hundreds of products, differently at the end, and
has kernels of another order for what is left over of rows and columns, for small products and for single rows.
"""

from collections.abc import Iterable, Iterator

import numpy as np

from tsapps.apps.abft.thresholds import Bounds
from tsapps.apps.abft.walk import walks

__all__ = [
    "CHECKS",
    "MOST_LISTED",
    "RUN",
    "Wrong",
    "check_columns",
    "checked_blocks",
    "exact_rows",
    "random_signs",
    "rounded",
    "suspected",
    "wrong",
]

#: Columns that a row carries beside those of C: two checks, and the probes of its magnitude.
CHECKS = 8
# Bytes of A that are multiplied at a time; bytes of rows that are judged at a time, and of their products, which stay
# in the cache.
_BLOCK_BYTES, _JUDGED_BYTES, _EXACT_BYTES = 64 << 20, 16 << 20, 1 << 20
#: Products that are added up at a time.
RUN = 256
# Of rows and columns, what no kernel of a BLAS leaves anything of; multiplications from which on it has none for small
# products, OpenBLAS from 10⁶ on; and a depth below which that is no matter.
_TILE_ROWS, _TILE_COLUMNS, _LARGE, _FEWEST = 48, 8, 1 << 21, 8
# 2²⁷ + 1, by which a float64 is split into halves of which products are exact (Veltkamp).
_SPLITTER = 134217729.0

#: Row, column, what was found and what it should be; and how many are listed.
Wrong = tuple[int, int, float, float]
MOST_LISTED = 1 << 16


def random_signs(k: int, n: int) -> np.ndarray:
    """Return z, (k, n) float64: ½ ≤ |z| ≤ 1 of either sign, a hash of 8·row + column (MurmurHash3's finalizer)."""
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
    with np.errstate(over="ignore", invalid="ignore"):
        sums = wide @ weights(B.shape[1])
        size = np.hypot(np.linalg.norm(wide, axis=1), sums[:, 0]) if bounds.by_spread else abs(wide).sum(axis=1)
        probes = random_signs(len(B), CHECKS - 2) * size[:, np.newaxis]
        return np.concatenate([sums, probes], axis=1).astype(working_type(B.dtype))


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
    for first in range(0, m, rows):
        end = min(m, first + rows)
        carried = multiply(A[first:end].astype(work, copy=False), extended)
        if out is not None:
            with np.errstate(over="ignore", invalid="ignore"):
                out[first:end] = carried[:, :w]
        yield first, carried[:, :w], carried[:, w : w + CHECKS]


def suspected(sums: np.ndarray, checks: np.ndarray, bounds: Bounds, *, rounded: bool) -> np.ndarray:
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
        most = bounds.row * abs(checks).astype(np.float64).max(axis=1, initial=0) + bounds.row_absolute
        if rounded and bounds.rounding:
            most += bounds.rounding * abs(work).sum(axis=1) + sums.shape[1] * bounds.rounding_absolute
        # Written so that what is not a number is suspected.
        return np.flatnonzero(~((off <= most) & (most < np.inf)))


def exact_rows(A: np.ndarray, B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the product of a few rows as exactly as float64 holds it, and Σ|ab|, each (rows, w) float64.

    Of float64, products and sums are kept with what they lose (T. Ogita, S. Rump and S. Oishi, Accurate sum and dot
    product, 2005), by a tree of sums. B may have been converted to float64 before.
    """
    a, b = A.astype(np.float64, copy=False), B.astype(np.float64, copy=False)
    with np.errstate(all="ignore"):
        magnitude = abs(a) @ abs(b)
        if A.dtype != np.float64:
            return a @ b, magnitude
        exact, (k, w) = np.empty_like(magnitude), b.shape
        # What is kept of every product: of few columns and rows at a time.
        columns = max(1, min(w, _EXACT_BYTES // (8 * max(1, k))))
        rows = max(1, _EXACT_BYTES // (8 * max(1, k * columns)))
        for column in range(0, w, columns):
            for row in range(0, len(a), rows):
                part = slice(row, row + rows), slice(column, column + columns)
                exact[part] = _twofold(a[part[0]], b[:, part[1]])
        return exact, magnitude


def _twofold(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    left, right = a.T[:, :, np.newaxis], b[:, np.newaxis, :]
    sums = left * right
    lost = _lost_of_product(left, right, sums)
    # Where halves overflow there is nothing to be kept: such products are near the largest number.
    lost = np.where(np.isfinite(lost), lost, 0.0).sum(axis=0)
    if not len(sums):
        return lost
    while len(sums) > 1:
        half = len(sums) // 2
        x, y = sums[:half], sums[half : 2 * half]
        total = x + y
        back = total - x
        lost += ((x - (total - back)) + (y - back)).sum(axis=0)
        sums = np.concatenate([total, sums[2 * half :]])
    return np.where(np.isfinite(sums[0]), sums[0] + lost, sums[0])


def _lost_of_product(x: np.ndarray, y: np.ndarray, product: np.ndarray) -> np.ndarray:
    """Return x·y − fl(x·y) (T. Dekker, 1971)."""

    def split(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        high = _SPLITTER * z - (_SPLITTER * z - z)
        return high, z - high

    (x_high, x_low), (y_high, y_low) = split(x), split(y)
    return x_low * y_low - (((product - x_high * y_high) - x_low * y_high) - x_high * y_low)


def wrong(
    A: np.ndarray, B: np.ndarray, C: np.ndarray, rows: Iterable[int], bounds: Bounds
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Yield the elements of some rows of C that are wrong, a block of rows after another.

    An element is not judged where the exact one is not finite: where a factor is not, or the sum is beyond float64. One
    that is not finite itself is judged only where no sum on the way may overflow, and C's dtype holds the exact one.

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
    exact, magnitude = exact_rows(A, B)
    walk = walks(A, B, bounds.walk) if bounds.spread else 0.0
    with np.errstate(all="ignore"):
        found = C.astype(np.float64)
        allowed = bounds.magnitude * magnitude + bounds.spread * walk + bounds.absolute
        # What is rounded is the sum, not the exact element.
        allowed += bounds.rounding * (abs(exact) + allowed) + bounds.rounding_absolute
        judged = np.isfinite(exact) & (
            np.isfinite(found) | ((magnitude < bounds.largest_sum) & (abs(exact) + allowed < bounds.largest))
        )
        i, j = np.nonzero(judged & ~(abs(found - exact) <= allowed))
    return i, j, found[i, j], exact[i, j]


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
