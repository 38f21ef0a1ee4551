"""The float code: weighted (Huang–Abraham) checksums of a matrix's rows and columns, by blocks.

    rows    (⌈n / block⌉, weights, m)    rows[b, p, i]    = Σ_j (j − b·block + 1)^p A[i, j],   columns j of block b
    columns (⌈m / block⌉, weights, n)    columns[b, p, j] = Σ_i (i − b·block + 1)^p A[i, j],   rows i of block b

with p = 0 … weights − 1. These sums are the products A·W and Vᵀ·A, where the entries of the tall matrices W and V are
the factors (…)^p. A block of rows and a block of columns intersect in a *tile* of block × block elements. Each row and
each column of a tile has separate sums.

Stored sums are float64, or float32 if the elements are float16 or bfloat16. This module accumulates all sums in
float64, and rounds them once at the end. A GPU accumulates in another order. A computed sum of q terms, each a weight w
times an element x, differs from the exact sum by at most ``γ_q Σ |w x|``. Here γ_q = q·u / (1 − q·u), and u is the unit
roundoff. So sums in two different orders differ by at most twice that bound. Additions of denormals are exact.
Verification ignores stored sums that are not finite.

If elements are near the largest float64, partial sums may overflow although the sum does not. Therefore, if sums
approach that range, *huge* elements, of magnitude above 2⁸⁵⁰, are scaled by 2⁻⁶⁴ and summed separately. The weights of
a sum add up to less than 2⁴⁰. So neither the sum of the huge elements nor the sum of the others overflows.

Source: K.-H. Huang and J. Abraham (1984) for weighted checksums of matrices; N. Higham, Accuracy and Stability of
Numerical Algorithms (2002), section 4.2, for the bound.
"""

from collections.abc import Sequence

import numpy as np

from tsapps.kernels.blas.threads import one_blas_thread

__all__ = [
    "BLOCKS",
    "MOST_WEIGHTS",
    "SCALE",
    "WeightedSums",
    "check_weighted",
    "columns_shape",
    "gamma",
    "rows_shape",
    "sums_dtype",
]

#: Supported block sizes; maximum number of weights, which is the number of sums per row and block.
BLOCKS, MOST_WEIGHTS = (256, 512, 1024), 4
#: Factor that scales huge elements before they are summed: a power of two, so that scaling is exact.
SCALE = 2.0**-64
_HALF_TYPES = ("float16", "bfloat16")
# If a sum of a tile reaches _LARGE, the tile is summed again, and elements of magnitude above _HUGE are summed
# separately. The sums of the other elements are then below 2⁸⁹⁰.
_LARGE, _HUGE = 2.0**900, 2.0**850
# Maximum number of columns, and approximate number of elements, that are converted to float64 at once, so that the
# converted elements fit in a CPU's cache.
_COLUMNS, _ELEMENTS = 2048, 1 << 17


def check_weighted(weights: int, block: int) -> None:
    """Raise `ValueError` for an unsupported number of weights or block size."""
    if not 1 <= weights <= MOST_WEIGHTS:
        raise ValueError(f"weights must be 1 to {MOST_WEIGHTS}, got {weights}")
    if block not in BLOCKS:
        raise ValueError(f"block must be one of {', '.join(map(str, BLOCKS))}, got {block}")


def sums_dtype(dtype: str) -> np.dtype:
    """Return the type in which sums of elements of type `dtype` are stored.

    Raises
    ------
    ValueError
        If `dtype` is wider than float64.
    """
    if dtype in ("longdouble", "float96", "float128"):
        raise ValueError(f"dtype is {dtype}; expected at most float64, the float code's sums: use the exact code")
    return np.dtype(np.float32 if dtype in _HALF_TYPES else np.float64)


def rows_shape(shape: Sequence[int], weights: int, block: int) -> tuple[int, int, int]:
    """Return the shape of the row sums of a matrix (m, n)."""
    return -(-shape[1] // block), weights, shape[0]


def columns_shape(shape: Sequence[int], weights: int, block: int) -> tuple[int, int, int]:
    """Return the shape of the column sums of a matrix (m, n)."""
    return -(-shape[0] // block), weights, shape[1]


def gamma(block: int, sums: np.dtype) -> float:
    """Return γ_q, the relative error bound of a sum over one block of elements that is stored in the type `sums`.

    q is `block` additions plus four roundings: of the element, of the weight, of their product, and of the stored sum.
    Tensor cores may truncate float32 sums instead of rounding them, which doubles the unit roundoff u.
    """
    q_u = (block + 4) * float(np.finfo(sums).eps) / (1 if sums == np.float32 else 2)
    return q_u / (1 - q_u)


class WeightedSums:
    """Accumulator of the weighted sums of a matrix; the matrix is added in parts, in row-major order.

    Parameters
    ----------
    shape : (int, int)
        The shape (m, n) of the matrix.
    dtype : str
        The name of the elements' type.
    weights, block : int
        Number of sums per row and block; maximum number of elements per sum.
    absolute : bool, optional
        Whether to sum the magnitudes ``|w x|`` instead of w x; rounding error bounds need the sums of magnitudes.

    Attributes
    ----------
    rows, columns : numpy.ndarray of float64
        Row sums and column sums, complete after all parts were added; finite if all elements are finite.
    huge : (numpy.ndarray, numpy.ndarray) or None
        Row sums and column sums of the huge elements, scaled by `SCALE`; None if no element is huge. `rows` and
        `columns` do not include huge elements.
    """

    def __init__(self, shape: Sequence[int], dtype: str, weights: int, block: int, *, absolute: bool = False) -> None:
        check_weighted(weights, block)
        self._kind, self._block, self._absolute = sums_dtype(dtype), block, absolute
        self._powers = np.arange(1, block + 1, dtype=np.float64) ** np.arange(weights)[:, np.newaxis]
        self._shape = shape
        self.rows, self.columns, self._here = self._zeros()
        self.huge: tuple[np.ndarray, np.ndarray] | None = None
        self._huge_here: np.ndarray | None = None

    def _zeros(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return arrays of zeros: for all row sums, for all column sums, and for column sums of one block of rows."""
        weights = len(self._powers)
        rows, columns = (of(self._shape, weights, self._block) for of in (rows_shape, columns_shape))
        return np.zeros(rows), np.zeros(columns), np.zeros((weights, self._shape[1]))

    def stored(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the complete row sums and column sums, rounded to the stored type; overflow gives infinity."""
        rows, columns = self.rows, self.columns
        with np.errstate(over="ignore", invalid="ignore"):
            if self.huge is not None:
                rows, columns = rows + self.huge[0] / SCALE, columns + self.huge[1] / SCALE
            return rows.astype(self._kind, copy=False), columns.astype(self._kind, copy=False)

    def add(self, row: int, column: int, elements: np.ndarray) -> None:
        """Add whole rows, or a piece of one row that begins at a multiple of the block size.

        Parameters
        ----------
        row, column : int
            Indices in the matrix of the first element of `elements`.
        elements : numpy.ndarray of two dimensions
        """
        with one_blas_thread():
            self._add(row, column, elements)

    def _add(self, row: int, column: int, elements: np.ndarray) -> None:
        """Split a part of the matrix at the boundaries of blocks of rows, and add the pieces to the sums."""
        width = min(elements.shape[1], _COLUMNS)
        height = max(1, min(self._block, _ELEMENTS // width))
        begin = 0
        while begin < len(elements):
            band, inside = divmod(row + begin, self._block)
            end = min(len(elements), begin + height, begin + self._block - inside)
            for j in range(0, elements.shape[1], width):
                self._add_tile(row + begin, column + j, elements[begin:end, j : j + width])
            last = (row + end) % self._block == 0 or row + end == self._shape[0]
            if last and column + elements.shape[1] == self._shape[1]:
                self.columns[band] = self._here
                self._here[:] = 0
                if self.huge is not None and self._huge_here is not None:
                    self.huge[1][band] = self._huge_here
                    self._huge_here[:] = 0
            begin = end

    def _add_tile(self, row: int, column: int, elements: np.ndarray) -> None:
        """Add elements to the sums; all their rows must be in the same block of rows."""
        with np.errstate(over="ignore", invalid="ignore"):  # elements may be infinite or NaN
            tile = elements.astype(np.float64)
            if self._absolute:
                np.abs(tile, out=tile)
            across = slice(column, column + tile.shape[1])
            sums = self._multiply(row, column, tile, self.rows)
            bands = slice(column // self._block, -(-across.stop // self._block))
            of_rows = self.rows[bands, :, row : row + len(tile)]
            # Only sums of float64 elements can approach overflow.
            if elements.dtype == np.float64 and (_large(sums) or _large(of_rows)):
                huge = np.abs(tile) > _HUGE
                if huge.any():
                    rows, here = self._scaled_apart()
                    here[:, across] += self._multiply(row, column, np.where(huge, tile * SCALE, 0.0), rows)
                    sums = self._multiply(row, column, np.where(huge, 0.0, tile), self.rows)
            self._here[:, across] += sums

    def _multiply(self, row: int, column: int, tile: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Write the row sums of a tile to `rows`, and return its column sums."""
        for j in range(0, tile.shape[1], self._block):
            piece = tile[:, j : j + self._block]
            band = (column + j) // self._block
            rows[band, :, row : row + len(tile)] = self._powers[:, : piece.shape[1]] @ piece.T
        inside = row % self._block
        return self._powers[:, inside : inside + len(tile)] @ tile

    def _scaled_apart(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the arrays that accumulate huge elements: all row sums, and column sums of the current block of rows.

        The first call creates the arrays.
        """
        if self.huge is None or self._huge_here is None:
            rows, columns, self._huge_here = self._zeros()
            self.huge = rows, columns
        return self.huge[0], self._huge_here


def _large(sums: np.ndarray) -> bool:
    """Return True if the magnitude of any sum is at least `_LARGE`, or if any sum is NaN."""
    return not np.abs(sums).max() < _LARGE
