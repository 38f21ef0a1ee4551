"""Matrices whose elements can be addressed: arrays in host memory, mapped files, and arrays on a GPU."""

from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any

import numpy as np

from tsapps.errors import MatrixError
from tsapps.kernels.arrays import as_array, kind_of, refuse_masked
from tsapps.matrix.base import Matrix
from tsapps.matrix.checks import check_finite

__all__ = ["GpuMatrix", "HostMatrix", "Stored", "open_array"]


def open_array(array: Any) -> Matrix:
    """View an array or data frame as a matrix, without a copy where its library allows it.

    Raises
    ------
    TypeError
        If `array` is an array of no known kind.
    MatrixError
        If it is no matrix of numbers.
    """
    name = "the data frame in memory" if kind_of(array) == "frame" else "the array in memory"
    try:
        refuse_masked(array, f"{name}:")
    except ValueError as error:
        raise MatrixError(str(error)) from error
    array = as_array(array)
    return HostMatrix(array, name) if isinstance(array, np.ndarray) else GpuMatrix(array, name)


@dataclass(frozen=True)
class Stored:
    """Where the elements of a matrix lie in a file, as plain bytes.

    Attributes
    ----------
    path : str
        The file.
    offset : int
        Where the element in row 0, column 0 begins, in bytes.
    shape : tuple of int
        (n, d).
    strides : tuple of int
        Bytes from a row, and from a column, to the next.
    dtype : numpy.dtype
        In the file's byte order.
    """

    path: str
    offset: int
    shape: tuple[int, int]
    strides: tuple[int, int]
    dtype: np.dtype

    def map(self, path: str | PathLike[str], *, write: bool = False) -> np.ndarray:
        """Map the elements of another file that is laid out as this one, shape (n, d), for reading or for writing."""
        content = np.memmap(path, np.uint8, "r+" if write else "r").view(np.ndarray)
        return np.ndarray(self.shape, self.dtype, content, self.offset, self.strides)

    def matrix(self, path: str | PathLike[str], name: str) -> "HostMatrix":
        """Open another file that is laid out as this one."""
        return HostMatrix(self.map(path), name, file=fspath(path), offset=self.offset)

    def place(self, byte: int) -> int:
        """Return where in the file a byte lies, counted through the elements row by row, all in little-endian order."""
        element, inner = divmod(byte, self.dtype.itemsize)
        row, column = divmod(element, self.shape[1])
        swapped = self.dtype != self.dtype.newbyteorder("<")
        inner = self.dtype.itemsize - 1 - inner if swapped else inner
        return self.offset + row * self.strides[0] + column * self.strides[1] + inner


class HostMatrix(Matrix):
    """A NumPy array of any strides and byte order, in memory or mapped from a file.

    Parameters
    ----------
    array : numpy.ndarray of shape (n, d)
    name : str
    file : str, optional
        The file that `array` maps; `read` then copies, so that the result outlives the file.
    offset : int
        Where in that file the element in row 0, column 0 begins, in bytes.
    """

    def __init__(self, array: np.ndarray, name: str, *, file: str | None = None, offset: int = 0) -> None:
        super().__init__(name, array.shape, array.dtype)
        self._array = np.asarray(array)  # an np.matrix or np.memmap would answer slices with its own kind
        self._mapped = file is not None
        if file is not None:
            rows, columns = self._array.strides
            self.stored = Stored(file, offset, self.shape, (rows, columns), self._array.dtype)

    def _blocks(self, rows: int) -> Iterator[tuple[int, np.ndarray]]:
        for start in range(0, self.shape[0], rows):
            yield start, self._plain(self._array[start : start + rows])

    def _rows(self, numbers: np.ndarray) -> np.ndarray:
        return self._plain(self._array[numbers])

    def _read(self) -> np.ndarray:
        plain = self._array.flags.c_contiguous and self._array.flags.aligned and self._array.dtype == self.dtype
        if self._mapped or not plain:
            return super()._read()
        for start, block in self.blocks(self._default_rows()):
            check_finite(block, start, self.name)
        return self._array

    def _plain(self, part: np.ndarray) -> np.ndarray:
        """Return C-contiguous, aligned rows in the machine's byte order: `part` itself where it is so already."""
        return np.require(part, self.dtype, ["C", "A"])


class GpuMatrix(Matrix):
    """A CuPy array of any strides; its blocks are CuPy arrays on the same GPU."""

    def __init__(self, array: Any, name: str) -> None:
        super().__init__(name, array.shape, np.dtype(array.dtype), int(array.device.id))
        self._array = array

    def _blocks(self, rows: int) -> Iterator[tuple[int, Any]]:
        import cupy

        for start in range(0, self.shape[0], rows):
            with self._array.device:  # not around the yield: the caller's own device must stay current there
                block = cupy.ascontiguousarray(self._array[start : start + rows])
            yield start, block

    def _rows(self, numbers: np.ndarray) -> Any:
        import cupy

        with self._array.device:
            return cupy.ascontiguousarray(self._array[cupy.asarray(numbers)])

    def _read(self) -> Any:
        if not self._array.flags.c_contiguous:
            return super()._read()
        for start, block in self.blocks(self._default_rows()):
            check_finite(block, start, self.name)
        return self._array

    def _empty(self, dtype: np.dtype) -> Any:
        import cupy

        with self._array.device:
            return cupy.empty(self.shape, dtype)
