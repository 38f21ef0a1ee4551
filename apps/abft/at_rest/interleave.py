"""How the bytes of a matrix are dealt out to blocks of words, for the exact code: along the matrix's own columns.

Bytes are taken as they lie, row by row, as little-endian words of 32 bits, the last filled up with zeros. The words are
rows of `width` words each, and of every column of them, 512 words one below the other are a *block*:

              column 0   column 1   …   column width − 1
    row 0     word 0     word 1         word width − 1        512 rows are a *stripe*: width blocks of 512 words,
    row 1     word width …                                    the last stripe's of fewer
    …

A row of words is `fold` rows of the matrix, so that a block stays in the columns of the matrix that it began in, and a
kernel that walks down columns adds up whole blocks. A run of `width` words that were overwritten (a sector, a page) is
one word of as many blocks: rows of a skinny matrix are folded until a row of words has up to 4 KiB, a page. A matrix
of too few rows for full blocks is *flat*: its words are dealt out to up to 4096 columns in turn, whatever its own are.
"""

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["ROWS", "WORD", "Layout", "fold", "layout"]

#: Words of a block; bytes of a word.
ROWS, WORD = 512, 4
# Bytes of a row of words that come by folding, a page, and words by dealing out, at most. Wider rows are not folded:
# of those a GPU adds up words and elements in one pass.
_FOLDED_BYTES, _FLAT_WIDTH = 4096, 4096


@dataclass(frozen=True)
class Layout:
    """How so many bytes are dealt out.

    Attributes
    ----------
    n_bytes : int
    width : int
        Columns of words.
    """

    n_bytes: int
    width: int

    @property
    def n_words(self) -> int:
        """Words, the last of which may be filled up."""
        return -(-self.n_bytes // WORD)

    @property
    def stripes(self) -> int:
        """Stripes of 512 rows, the last of which may have fewer."""
        return -(-self.n_words // (self.width * ROWS))

    def rows(self, stripe: int) -> int:
        """Return the rows of a stripe; words past the last are zero."""
        left = self.n_words - stripe * self.width * ROWS
        return min(ROWS, -(-left // self.width))

    def stripe_bytes(self, stripe: int) -> tuple[int, int]:
        """Return where the bytes of a stripe begin and end."""
        begin = stripe * ROWS * self.width * WORD
        return begin, min(self.n_bytes, begin + ROWS * self.width * WORD)


def layout(shape: Sequence[int], itemsize: int) -> Layout:
    """Return how the bytes of a matrix are dealt out.

    Parameters
    ----------
    shape : (int, int)
    itemsize : int
        Bytes of an element.

    Raises
    ------
    ValueError
        If the matrix has no bytes.
    """
    rows, columns = shape
    if rows < 1 or columns < 1 or itemsize < 1:
        raise ValueError(f"there is nothing to encode: {rows} × {columns} elements of {itemsize} bytes")
    n_bytes, together = rows * columns * itemsize, fold(shape, itemsize)
    if together:
        return Layout(n_bytes, together * columns * itemsize // WORD)
    return Layout(n_bytes, min(_FLAT_WIDTH, max(1, -(-n_bytes // WORD) // ROWS)))


def fold(shape: Sequence[int], itemsize: int) -> int:
    """Return how many rows of a matrix are one row of words; 0 where it is dealt out flat."""
    rows, row_bytes = shape[0], shape[1] * itemsize
    together = next(q for q in (1, 2, 4) if q * row_bytes % WORD == 0)
    while 2 * together * row_bytes <= _FOLDED_BYTES and rows // (2 * together) >= ROWS:
        together *= 2
    return together if rows // together >= ROWS else 0
