"""What the engines read: a matrix as blocks of rows, whatever holds it.

Anything with the members of `Rows` will do; `tsapps.open_matrix` gives one for a file of any size.
"""

from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

import numpy as np

__all__ = ["ArrayRows", "Rows", "SparseRows"]


@runtime_checkable
class Rows(Protocol):
    """A matrix of shape (n, d) that is read in blocks of rows, as often as needed.

    Attributes
    ----------
    name : str
        What error messages call it.
    shape : tuple of int
    dtype : numpy.dtype
    device : int or None
        The GPU that the blocks lie on; None for host memory.
    """

    name: str
    shape: tuple[int, int]
    dtype: np.dtype
    device: int | None

    def blocks(self, rows: int) -> Iterator[tuple[int, Any]]:
        """Yield (first row, block of at most `rows` rows), in order."""

    def rows(self, indices: np.ndarray) -> Any:
        """Return the rows with these indices, in the order asked for."""


class ArrayRows:
    """A NumPy or CuPy array of shape (n, d)."""

    def __init__(self, array: Any, name: str = "X") -> None:
        self.array = array
        self.name = name
        self.shape = array.shape
        self.dtype = array.dtype
        self.device = None if isinstance(array, np.ndarray) else int(array.device.id)

    def blocks(self, rows: int) -> Iterator[tuple[int, Any]]:
        """Yield (first row, view of at most `rows` rows), in order."""
        for start in range(0, self.shape[0], rows):
            yield start, self.array[start : start + rows]

    def rows(self, indices: np.ndarray) -> Any:
        """Return the rows with these indices, in the order asked for."""
        if self.device is not None:
            import cupy

            indices = cupy.asarray(indices)
        return self.array[indices]


class SparseRows:
    """A SciPy or CuPy CSR matrix of shape (n, d), made dense one block at a time."""

    def __init__(self, matrix: Any, name: str = "X") -> None:
        self.matrix = matrix
        self.name = name
        self.shape = matrix.shape
        self.dtype = matrix.dtype
        self.device = None if isinstance(matrix.data, np.ndarray) else int(matrix.data.device.id)

    def blocks(self, rows: int) -> Iterator[tuple[int, Any]]:
        """Yield (first row, dense block of at most `rows` rows), in order."""
        for start in range(0, self.shape[0], rows):
            yield start, self.matrix[start : start + rows].toarray()

    def rows(self, indices: np.ndarray) -> Any:
        """Return the rows with these indices, dense, in the order asked for."""
        return self.matrix[indices].toarray()
