"""Tensor maps of NVIDIA GPUs: descriptions of matrices whose boxes kernels copy (ptx/tensor_copy.cuh)."""

import ctypes

import numpy as np

from tsapps.kernels.arrays import address as address_of
from tsapps.kernels.runtime.launch import driver_function

__all__ = ["TENSOR_MAP", "TensorMap"]

#: The C++ class `TensorMap` (ptx/tensor_copy.cuh) as a NumPy structure.
TENSOR_MAP = np.dtype([("words", "u8", 16)])
# CUtensorMapDataType UINT16, CUtensorMapL2promotion 256B, and CUtensorMapSwizzle by the columns of a box; all other
# options are 0.
_UINT16, _PROMOTION, _SWIZZLES = 1, 3, {64: 3, 32: 2}
_ALIGNMENT = 64


class TensorMap:
    """A row-major matrix of 16-bit elements, of which kernels copy boxes.

    Its words are those of the C++ class of kernels/ptx/tensor_copy.cuh.

    Parameters
    ----------
    shape : tuple of int
        Numbers of rows and columns.
    row_stride : int
        The distance of rows in elements, a multiple of 8.
    box : tuple of int
        Numbers of rows, at most 256, and columns of a box, 64 or 32; the swizzle suits the columns.

    Raises
    ------
    RuntimeError
        By `at`, if the driver refuses the matrix.
    """

    def __init__(self, shape: tuple[int, int], row_stride: int, box: tuple[int, int]) -> None:
        room = np.zeros((TENSOR_MAP.itemsize + _ALIGNMENT) // 8, np.uint64)
        first = -address_of(room) % _ALIGNMENT // 8
        self._words = room[first : first + TENSOR_MAP.itemsize // 8]
        self._shape, self._row_stride, self._box, self._address = shape, row_stride, box, 0

    def at(self, address: int) -> np.ndarray:
        """Return the map as 16 words, for a matrix at an address, a multiple of 16. Not thread-safe."""
        if self._address == 0:
            self._encode(address)
        elif self._address != address:
            _check(driver_function("cuTensorMapReplaceAddress")(self._pointer(), ctypes.c_void_p(address)))
        self._address = address
        return self._words

    def _pointer(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(address_of(self._words))

    def _encode(self, address: int) -> None:
        (rows, columns), ones = self._shape, (ctypes.c_uint32 * 2)(1, 1)
        sizes, strides = (ctypes.c_uint64 * 2)(columns, rows), (ctypes.c_uint64 * 1)(2 * self._row_stride)
        (box_rows, box_columns), swizzle = self._box, _SWIZZLES[self._box[1]]
        box = (ctypes.c_uint32 * 2)(box_columns, box_rows)
        encode = driver_function("cuTensorMapEncodeTiled")
        at = ctypes.c_void_p(address)
        _check(encode(self._pointer(), _UINT16, 2, at, sizes, strides, box, ones, 0, swizzle, _PROMOTION, 0))


def _check(status: int) -> None:
    if status:
        raise RuntimeError(f"the CUDA driver refuses a tensor map with error {status}")
