"""The float code: weighted sums of a matrix's elements along its rows and along its columns, block by block.

    rows    (⌈n / block⌉, weights, m)    rows[b, p, i]    = Σ_j (j − b·block + 1)^p A[i, j],   columns j of block b
    columns (⌈m / block⌉, weights, n)    columns[b, p, j] = Σ_i (i − b·block + 1)^p A[i, j],   rows i of block b

with p = 0 … weights − 1: the products A·W and Vᵀ·A with fixed tall matrices W and V of weights. A block of rows and a
block of columns meet in a *tile* of block × block elements, which has its own sums of every row and every column.

Sums are float64, of float16 and bfloat16 float32; here all are added up in float64, and those rounded at the end. The
same sums made elsewhere are of another order of additions. Of two that are both sums of the same q numbers, with
roundings u, neither is farther from the exact one than ``γ_q Σ |w x|``, with γ_q = q·u / (1 − q·u): so they are not
farther apart than twice that. Nothing is lost below the smallest normal number, where additions are exact. A stored sum
that is not finite, of elements that are not or by overflow, says nothing.

Elements near the largest float64 overflow on the way to a sum that does not, in one order of additions and not in
another. Where sums come near it, elements beyond 2⁸⁵⁰ are therefore added up apart, times 2⁻⁶⁴: an element's weights
add up to less than 2⁴⁰, so neither those sums nor the others' overflow.

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

#: Sizes of blocks; the most weights.
BLOCKS, MOST_WEIGHTS = (256, 512, 1024), 4
#: What sums of huge elements are multiplied by; a power of two, so that nothing is rounded.
SCALE = 2.0**-64
_HALF_TYPES = ("float16", "bfloat16")
# Where a tile's sums reach the first number, they are added up again, with elements beyond the second one apart: the
# others' are then less than 2⁸⁹⁰.
_LARGE, _HUGE = 2.0**900, 2.0**850
# A tile that is converted at a time has no more columns than these, and about so many elements: a CPU's cache.
_COLUMNS, _ELEMENTS = 2048, 1 << 17


def check_weighted(weights: int, block: int) -> None:
    """Raise `ValueError` unless there are so many weights, and blocks of that size."""
    if not 1 <= weights <= MOST_WEIGHTS:
        raise ValueError(f"weights must be 1 to {MOST_WEIGHTS}, got {weights}")
    if block not in BLOCKS:
        raise ValueError(f"block must be one of {', '.join(map(str, BLOCKS))}, got {block}")


def sums_dtype(dtype: str) -> np.dtype:
    """Return the type of the sums of elements of a type, by its name.

    Raises
    ------
    ValueError
        If they are wider than float64.
    """
    if dtype in ("longdouble", "float96", "float128"):
        raise ValueError(f"the float code's sums are float64, and cannot be of {dtype}: use the exact code")
    return np.dtype(np.float32 if dtype in _HALF_TYPES else np.float64)


def rows_shape(shape: Sequence[int], weights: int, block: int) -> tuple[int, int, int]:
    """Return the shape of the sums along rows of a matrix (m, n)."""
    return -(-shape[1] // block), weights, shape[0]


def columns_shape(shape: Sequence[int], weights: int, block: int) -> tuple[int, int, int]:
    """Return the shape of the sums along columns of a matrix (m, n)."""
    return -(-shape[0] // block), weights, shape[1]


def gamma(block: int, sums: np.dtype) -> float:
    """Return γ_q of a sum of a block, in a type.

    q is its additions, and four roundings more: of the element, its weight, their product, and the sum itself. A sum in
    float32 may have been cut off rather than rounded: so do tensor cores.
    """
    q_u = (block + 4) * float(np.finfo(sums).eps) / (1 if sums == np.float32 else 2)
    return q_u / (1 - q_u)


class WeightedSums:
    """The sums of a matrix that comes in parts, in the order of its bytes.

    Parameters
    ----------
    shape : (int, int)
    dtype : str
        The name of its elements' type.
    weights, block : int
    absolute : bool, optional
        Whether these are sums of ``|w x|``: what bounds of rounding are made of.

    Attributes
    ----------
    rows, columns : numpy.ndarray of float64
        Whole once all parts have been added. They are finite wherever the elements are.
    huge : (numpy.ndarray, numpy.ndarray) or None
        What is to be added to them, times `SCALE`; None where there is nothing.
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
        """Return sums along rows, along columns, and along columns of the block of rows at hand."""
        weights = len(self._powers)
        rows, columns = (of(self._shape, weights, self._block) for of in (rows_shape, columns_shape))
        return np.zeros(rows), np.zeros(columns), np.zeros((weights, self._shape[1]))

    def stored(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the sums along rows and along columns in the type that they are stored in, once all are whole.

        A sum that is larger than the type's largest number is infinite.
        """
        rows, columns = self.rows, self.columns
        with np.errstate(over="ignore", invalid="ignore"):
            if self.huge is not None:
                rows, columns = rows + self.huge[0] / SCALE, columns + self.huge[1] / SCALE
            return rows.astype(self._kind, copy=False), columns.astype(self._kind, copy=False)

    def add(self, row: int, column: int, elements: np.ndarray) -> None:
        """Add some rows, or of one row a piece that begins at a multiple of the block.

        Parameters
        ----------
        row, column : int
            Of the first element.
        elements : numpy.ndarray of shape (some, some)
        """
        with one_blas_thread():
            self._add(row, column, elements)

    def _add(self, row: int, column: int, elements: np.ndarray) -> None:
        """Add a part, by pieces of one block of rows."""
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
            # No other type's come near overflow.
            if elements.dtype == np.float64 and (_large(sums) or _large(of_rows)):
                huge = np.abs(tile) > _HUGE
                if huge.any():
                    rows, here = self._scaled_apart()
                    here[:, across] += self._multiply(row, column, np.where(huge, tile * SCALE, 0.0), rows)
                    sums = self._multiply(row, column, np.where(huge, 0.0, tile), self.rows)
            self._here[:, across] += sums

    def _multiply(self, row: int, column: int, tile: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Write the sums along rows of a tile, and return those along its columns."""
        for j in range(0, tile.shape[1], self._block):
            piece = tile[:, j : j + self._block]
            band = (column + j) // self._block
            rows[band, :, row : row + len(tile)] = self._powers[:, : piece.shape[1]] @ piece.T
        inside = row % self._block
        return self._powers[:, inside : inside + len(tile)] @ tile

    def _scaled_apart(self) -> tuple[np.ndarray, np.ndarray]:
        """Return sums of huge elements: along rows, and along columns of the block of rows at hand."""
        if self.huge is None or self._huge_here is None:
            rows, columns, self._huge_here = self._zeros()
            self.huge = rows, columns
        return self.huge[0], self._huge_here


def _large(sums: np.ndarray) -> bool:
    """Return whether a sum is large or not finite."""
    return not np.abs(sums).max() < _LARGE
