"""The float code: weighted (Huang–Abraham) checksums of a matrix's rows and columns, by blocks.

    rows    (⌈n / block⌉, weights, m)    rows[b, p, i]    = Σ_j (j − b·block + 1)^p A[i, j],   columns j of block b
    columns (⌈m / block⌉, weights, n)    columns[b, p, j] = Σ_i (i − b·block + 1)^p A[i, j],   rows i of block b

with p = 0 … weights − 1: the products A·W and Vᵀ·A with fixed tall matrices W and V of weights. A block of rows and a
block of columns intersect in a *tile* of block × block elements, which has its own sums of each row and column.

Stored sums are float64, or float32 for float16 and bfloat16. This module accumulates all sums in float64, and rounds
them at the end. A GPU accumulates in another order. A sum of q terms w x with unit roundoff u differs from the exact
sum by at most ``γ_q Σ |w x|``, with γ_q = q·u / (1 − q·u). So two sums in different orders differ by at most twice that
bound. Additions of denormals are exact. A stored sum that is not finite is ignored.

If elements are near the largest float64, partial sums may overflow although the sum does not. Therefore, if sums
approach that range, elements beyond 2⁸⁵⁰ are summed separately, scaled by 2⁻⁶⁴. The weights in a sum add up to less
than 2⁴⁰, so that neither of the two sums overflows.

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

#: Supported block sizes; the most weights.
BLOCKS, MOST_WEIGHTS = (256, 512, 1024), 4
#: Scale of the sums of huge elements: a power of two, so that scaling is exact.
SCALE = 2.0**-64
_HALF_TYPES = ("float16", "bfloat16")
# If a sum of a tile reaches the first number, the tile is summed again, and elements beyond the second number are
# summed separately. The sums of the other elements are then below 2⁸⁹⁰.
_LARGE, _HUGE = 2.0**900, 2.0**850
# The most columns, and the approximate number of elements, that are converted at once, so that they fit in a CPU's
# cache.
_COLUMNS, _ELEMENTS = 2048, 1 << 17


def check_weighted(weights: int, block: int) -> None:
    """Raise `ValueError` for an unsupported number of weights or block size."""
    if not 1 <= weights <= MOST_WEIGHTS:
        raise ValueError(f"weights must be 1 to {MOST_WEIGHTS}, got {weights}")
    if block not in BLOCKS:
        raise ValueError(f"block must be one of {', '.join(map(str, BLOCKS))}, got {block}")


def sums_dtype(dtype: str) -> np.dtype:
    """Return the type of the sums of elements of type `dtype`.

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
    """Return γ_q for a sum of one block, stored in the type `sums`.

    q counts the additions, and the roundings of the element, of its weight, of their product and of the sum. Tensor
    cores may truncate float32 sums instead of rounding them, which doubles u.
    """
    q_u = (block + 4) * float(np.finfo(sums).eps) / (1 if sums == np.float32 else 2)
    return q_u / (1 - q_u)


class WeightedSums:
    """The sums of a matrix that is added in parts, in row-major order.

    Parameters
    ----------
    shape : (int, int)
    dtype : str
        The name of the elements' type.
    weights, block : int
    absolute : bool, optional
        Whether to sum ``|w x|``, for rounding error bounds.

    Attributes
    ----------
    rows, columns : numpy.ndarray of float64
        Complete after all parts were added. They are finite if the elements are.
    huge : (numpy.ndarray, numpy.ndarray) or None
        Row sums and column sums of huge elements, scaled by `SCALE`, which `rows` and `columns` do not include; None if
        no element is huge.
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
        """Return zeros for the sums of rows, of columns, and of the columns of the current block of rows."""
        weights = len(self._powers)
        rows, columns = (of(self._shape, weights, self._block) for of in (rows_shape, columns_shape))
        return np.zeros(rows), np.zeros(columns), np.zeros((weights, self._shape[1]))

    def stored(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the complete sums of rows and of columns in the stored type; overflow gives infinity."""
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
            Indices of the first element.
        elements : numpy.ndarray of shape (some, some)
        """
        with one_blas_thread():
            self._add(row, column, elements)

    def _add(self, row: int, column: int, elements: np.ndarray) -> None:
        """Add a part of the matrix, split at the boundaries of blocks of rows."""
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
        """Add elements of one block of rows."""
        with np.errstate(over="ignore", invalid="ignore"):  # of elements that are not finite
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
        """Return the sums of huge elements: of rows, and of the columns of the current block of rows."""
        if self.huge is None or self._huge_here is None:
            rows, columns, self._huge_here = self._zeros()
            self.huge = rows, columns
        return self.huge[0], self._huge_here


def _large(sums: np.ndarray) -> bool:
    """Return whether any sum is large or not finite."""
    return not np.abs(sums).max() < _LARGE
