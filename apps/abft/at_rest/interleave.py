"""Interleaving of a matrix's bytes over code blocks of the exact code, along the columns of the matrix.

The bytes in row-major order are little-endian words of 32 bits; the last word is padded with zeros. The words form rows
of `width` words, and 512 consecutive words of a column form a *block*:

              column 0   column 1   …   column width − 1
    row 0     word 0     word 1         word width − 1        512 rows are a *stripe* of width blocks;
    row 1     word width …                                    the last stripe may have fewer rows
    …

A row of words consists of `fold` consecutive rows of the matrix. So the words of a block are in the same columns of the
matrix, and a kernel that reads along columns sums whole blocks. If `width` consecutive words are overwritten, such as a
disk sector or a page, only one word of each block changes. For this reason, rows of a skinny matrix are folded: a row
of words joins matrix rows of up to 4 KiB in total, a page. A matrix with too few rows for full blocks is *flat*: its
words are interleaved over up to 4096 columns of words, independent of the columns of the matrix.
"""

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["ROWS", "WORD", "Layout", "fold", "layout"]

#: Maximum number of words per block, which is the number of rows of words per stripe; bytes per word.
ROWS, WORD = 512, 4
# Maximum bytes of a row of words that folding may produce (a page), and maximum words per row of a flat matrix. Longer
# matrix rows are not folded to fill a page, so that a GPU can sum words and elements in one pass.
_FOLDED_BYTES, _FLAT_WIDTH = 4096, 4096


@dataclass(frozen=True)
class Layout:
    """The interleaving of the bytes of a matrix.

    Attributes
    ----------
    n_bytes : int
        Number of bytes.
    width : int
        Words per row of words.
    """

    n_bytes: int
    width: int

    @property
    def n_words(self) -> int:
        """Number of words; the last word may be padded with zeros."""
        return -(-self.n_bytes // WORD)

    @property
    def stripes(self) -> int:
        """Number of stripes of 512 rows of words; the last stripe may have fewer rows."""
        return -(-self.n_words // (self.width * ROWS))

    def rows(self, stripe: int) -> int:
        """Return the number of rows of words in a stripe; words of its last row beyond the data count as zero."""
        left = self.n_words - stripe * self.width * ROWS
        return min(ROWS, -(-left // self.width))

    def stripe_bytes(self, stripe: int) -> tuple[int, int]:
        """Return the offset of a stripe's first byte, and the offset after its last byte."""
        begin = stripe * ROWS * self.width * WORD
        return begin, min(self.n_bytes, begin + ROWS * self.width * WORD)


def layout(shape: Sequence[int], itemsize: int) -> Layout:
    """Return the interleaving of a matrix's bytes.

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
    """Return the number of matrix rows that a row of words consists of; 0 if the matrix is flat."""
    rows, row_bytes = shape[0], shape[1] * itemsize
    together = next(q for q in (1, 2, 4) if q * row_bytes % WORD == 0)
    while 2 * together * row_bytes <= _FOLDED_BYTES and rows // (2 * together) >= ROWS:
        together *= 2
    return together if rows // together >= ROWS else 0
