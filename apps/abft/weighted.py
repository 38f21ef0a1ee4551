"""The float code: weighted sums of a matrix's elements along its rows and along its columns, block by block.

    rows    (⌈n / block⌉, weights, m)    rows[b, p, i]    = Σ_j (j − b·block + 1)^p A[i, j],   columns j of block b
    columns (⌈m / block⌉, weights, n)    columns[b, p, j] = Σ_i (i − b·block + 1)^p A[i, j],   rows i of block b

with p = 0 … weights − 1: the products A·W and Vᵀ·A with fixed tall matrices W and V of weights. A block of rows and a
block of columns meet in a *tile* of block × block elements, which has its own sums of every row and every column.

Sums are float64, of float16 and bfloat16 float32; here all are added up in float64, and those rounded at the end. The
same sums made elsewhere are of another order of additions. Of two that are both sums of the same q numbers, with
roundings u, neither is farther from the exact one than γ_q Σ |w x|, with γ_q = q·u / (1 − q·u): so they are not farther
apart than twice that. A sum that is not finite, of elements that are not or by overflow, says nothing.

Source: K.-H. Huang and J. Abraham (1984) for weighted checksums of matrices; N. Higham, Accuracy and Stability of
Numerical Algorithms (2002), section 4.2, for the bound.
"""

from collections.abc import Sequence

import numpy as np

from tsapps.apps.abft.threads import one_thread

__all__ = [
    "BLOCKS",
    "MOST_WEIGHTS",
    "WeightedSums",
    "check_weighted",
    "columns_shape",
    "gamma",
    "rows_shape",
    "sums_dtype",
]

#: Sizes of blocks; the most weights.
BLOCKS, MOST_WEIGHTS = (256, 512, 1024), 4
_HALVES = ("float16", "bfloat16")
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
    return np.dtype(np.float32 if dtype in _HALVES else np.float64)


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
        Whether these are sums of |w x|, in float64 whatever the elements: what bounds of rounding are made of.

    Attributes
    ----------
    rows, columns : numpy.ndarray
        Whole once all parts have been added.
    """

    def __init__(self, shape: Sequence[int], dtype: str, weights: int, block: int, *, absolute: bool = False) -> None:
        check_weighted(weights, block)
        kind = np.dtype(np.float64) if absolute else sums_dtype(dtype)
        self.rows = np.zeros(rows_shape(shape, weights, block), kind)
        self.columns = np.zeros(columns_shape(shape, weights, block), kind)
        self._block, self._absolute = block, absolute
        self._powers = np.arange(1, block + 1, dtype=np.float64) ** np.arange(weights)[:, np.newaxis]
        # Of the block of rows at hand: rounded to `kind` when it has ended.
        self._here = np.zeros((weights, shape[1]))
        self._shape = shape

    def add(self, row: int, column: int, elements: np.ndarray) -> None:
        """Add some rows, or of one row a piece that begins at a multiple of the block.

        Parameters
        ----------
        row, column : int
            Of the first element.
        elements : numpy.ndarray of shape (some, some)
        """
        with one_thread():
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
                with np.errstate(over="ignore"):
                    self.columns[band] = self._here
                self._here[:] = 0
            begin = end

    def _add_tile(self, row: int, column: int, elements: np.ndarray) -> None:
        """Add elements of one block of rows."""
        inside = row % self._block
        with np.errstate(over="ignore", invalid="ignore"):  # of elements that are not finite
            tile = elements.astype(np.float64)
            if self._absolute:
                np.abs(tile, out=tile)
            self._here[:, column : column + tile.shape[1]] += self._powers[:, inside : inside + len(tile)] @ tile
            for j in range(0, tile.shape[1], self._block):
                piece = tile[:, j : j + self._block]
                band = (column + j) // self._block
                self.rows[band, :, row : row + len(tile)] = self._powers[:, : piece.shape[1]] @ piece.T
