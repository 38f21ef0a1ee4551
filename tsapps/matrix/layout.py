"""Position and strides of a matrix that a file stores as plain bytes."""

from dataclasses import dataclass
from os import PathLike

import numpy as np

__all__ = ["Stored"]


@dataclass(frozen=True)
class Stored:
    """Position and layout of a matrix that is stored in a file as plain bytes.

    Attributes
    ----------
    path : str
        The file.
    offset : int
        Byte offset of the element in row 0, column 0.
    shape : tuple of int
        (n, d).
    strides : tuple of int
        Byte strides between rows and between columns.
    dtype : numpy.dtype
        Dtype in the file's byte order.
    """

    path: str
    offset: int
    shape: tuple[int, int]
    strides: tuple[int, int]
    dtype: np.dtype

    @property
    def by_rows(self) -> bool:
        """True if the elements of a row are contiguous."""
        return self.strides[1] == self.dtype.itemsize or self.shape[1] == 1

    def map(self, path: str | PathLike[str]) -> np.ndarray:
        """Map another file with this layout into memory; return its elements, shape (n, d), for reading and writing.

        Only for files that no other program writes to.
        """
        content = np.memmap(path, np.uint8, "r+").view(np.ndarray)
        return np.ndarray(self.shape, self.dtype, content, self.offset, self.strides)

    def place(self, byte: int) -> int:
        """Return the file offset of byte number `byte` of the matrix in row-major order and little-endian elements."""
        element, inner = divmod(byte, self.dtype.itemsize)
        row, column = divmod(element, self.shape[1])
        swapped = self.dtype != self.dtype.newbyteorder("<")
        inner = self.dtype.itemsize - 1 - inner if swapped else inner
        return self.offset + row * self.strides[0] + column * self.strides[1] + inner
