"""Matrices in memory: host arrays and GPU arrays."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from tsapps.errors import MatrixError
from tsapps.kernels.arrays import as_array, columns_without_numbers, kind_of, refuse_masked
from tsapps.kernels.system.printable import shown
from tsapps.matrix.base import Matrix
from tsapps.matrix.checks import check_finite

__all__ = ["GpuMatrix", "HostMatrix", "open_array"]


def open_array(array: Any) -> Matrix:
    """View an array or data frame as a matrix, without a copy where its library allows that.

    Raises
    ------
    TypeError
        If the type of `array` is unknown.
    MatrixError
        If `array` is not a numeric matrix.
    """
    name = "the data frame in memory" if kind_of(array) == "frame" else "the array in memory"
    try:
        refuse_masked(array, f"{name}:")
    except ValueError as error:
        raise MatrixError(str(error)) from error
    if kind_of(array) == "frame" and (wrong := columns_without_numbers(array)):
        raise MatrixError(f"{name}: has columns without numbers: {shown(', '.join(wrong))}: keep numeric columns only")
    array = as_array(array)
    return HostMatrix(array, name) if isinstance(array, np.ndarray) else GpuMatrix(array, name)


class HostMatrix(Matrix):
    """A NumPy array with any strides and byte order."""

    begins_anywhere = True

    def __init__(self, array: np.ndarray, name: str) -> None:
        super().__init__(name, array.shape, array.dtype)
        self._array = np.asarray(array)  # slices of np.matrix or np.memmap would have these classes

    def _blocks(self, rows: int) -> Iterator[tuple[int, np.ndarray]]:
        for start in range(0, self.shape[0], rows):
            yield start, self._plain(self._array[start : start + rows])

    def _rows(self, numbers: np.ndarray) -> np.ndarray:
        return self._plain(self._array[numbers])

    def in_place(self) -> np.ndarray | None:
        """Return the array itself if it is row-major, aligned and in native byte order; see `Matrix.in_place`."""
        plain = self._array.flags.c_contiguous and self._array.flags.aligned and self._array.dtype == self.dtype
        return self._array if plain else None

    def _read(self) -> np.ndarray:
        array = self.in_place()
        if array is None:
            return super()._read()
        for start, block in self.blocks(self._default_rows()):
            check_finite(block, start, self.name)
        return array

    def _plain(self, part: np.ndarray) -> np.ndarray:
        """Return the rows as a C-contiguous, aligned array in the machine's byte order; `part` itself if it is one."""
        return np.require(part, self.dtype, ["C", "A"])


class GpuMatrix(Matrix):
    """A CuPy array with any strides; its blocks are CuPy arrays on the same GPU."""

    def __init__(self, array: Any, name: str) -> None:
        super().__init__(name, array.shape, np.dtype(array.dtype), int(array.device.id))
        self._array = array

    def _blocks(self, rows: int) -> Iterator[tuple[int, Any]]:
        import cupy

        for start in range(0, self.shape[0], rows):
            with self._array.device:  # ends before the yield, which must not change the caller's current device
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
