"""Consecutive rows of a matrix as a matrix, whose messages name rows as those of the whole."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from tsapps.apps.kmeans.data.rows import ArrayRows, Rows, in_place, row_name

__all__ = ["ArrayRange", "row_range"]


class ArrayRange(ArrayRows):
    """An array with the rows from `first` on of a matrix.

    Parameters
    ----------
    array : array of shape (n, d)
    name : str
        Name of the matrix in messages.
    first : int
    source : Rows, optional
        The matrix; without it, messages name rows by their numbers.
    device : int, optional
        Index of the GPU that holds the array.
    """

    def __init__(
        self, array: Any, name: str, first: int, source: Rows | None = None, device: int | None = None
    ) -> None:
        super().__init__(array, name)
        self._first, self._source = first, source
        if device is not None:
            self.device = device

    def row_name(self, row: int) -> str:
        """Return what messages call a row; see `data.rows.row_name`."""
        return row_name(self._source, self._first + row)


class _MatrixRange:
    """Rows of a matrix of `tsapps.open_matrix`, which reads them without those before."""

    device: int | None = None

    def __init__(self, source: Any, part: range) -> None:
        self._source, self._part = source, part
        self.name, self.dtype, self.shape = source.name, source.dtype, (len(part), source.shape[1])

    def row_name(self, row: int) -> str:
        """Return what messages call a row; see `data.rows.row_name`."""
        return row_name(self._source, self._part.start + row)

    def blocks(self, rows: int) -> Iterator[tuple[int, np.ndarray]]:
        """Yield (first row, block of at most `rows` rows), in row order."""
        for start, block in self._source.blocks_between(self._part.start, self._part.stop, rows):
            yield start - self._part.start, block

    def rows(self, indices: np.ndarray) -> Any:
        """Return the rows with these indices, in the order of the indices."""
        return self._source.rows(np.asarray(indices) + self._part.start)

    def in_place(self) -> np.ndarray | None:
        """Return the rows as one array; see `data.rows.in_place`."""
        array = in_place(self._source)
        return None if array is None else array[self._part.start : self._part.stop]


class _FileRange(_MatrixRange):
    """Rows of a file that several threads read directly into the caller's arrays; see `data.rows.readers`."""

    def check_unchanged(self) -> None:
        """Raise an error if the file has changed since it was opened."""
        self._source.check_unchanged()

    def read_into(self, start: int, out: np.ndarray) -> None:
        """Read the rows from `start` on into an array."""
        self._source.read_into(self._part.start + start, out)


def row_range(source: Rows, part: range) -> Rows | None:
    """Return rows of a matrix in host memory or in files; None if they cannot be read without those before them."""
    if source.device is not None:
        return None
    if getattr(source, "begins_anywhere", False):  # a file is read, not mapped: if it is shortened, that is an error
        return (_FileRange if hasattr(source, "read_into") else _MatrixRange)(source, part)
    array = source.array if isinstance(source, ArrayRows) else in_place(source)
    if array is None:
        return None
    return ArrayRange(array[part.start : part.stop], source.name, part.start, source)
