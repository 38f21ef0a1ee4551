"""Copies of a matrix in which elements will be replaced: as .npy, or as a byte-for-byte copy of the file."""

import os
from collections.abc import Callable, Iterator
from typing import BinaryIO

import numpy as np

from tsapps.errors import UsageError
from tsapps.kernels.system.file_attributes import copy_attributes
from tsapps.matrix.base import Matrix
from tsapps.matrix.layout import Stored

__all__ = ["copy_as_npy", "copy_file"]

# Maximum bytes copied at a time.
_PIECE_BYTES = 1 << 24


def copy_as_npy(matrix: Matrix, file: BinaryIO, progress: Callable[[int], None]) -> Stored:
    """Write a matrix as .npy, in C order and the machine's byte order.

    Parameters
    ----------
    matrix : Matrix
        In host memory or a file; elements are copied bit by bit.
    file : binary file
        A named file, open for writing, at its beginning.
    progress : callable
        Called with the number of bytes of elements written so far.

    Returns
    -------
    Stored
        Position of the elements in `file`; all of them have been flushed to the system.

    Raises
    ------
    UsageError
        If .npy does not support the dtype (bfloat16).
    OSError
        If the disk is full or fails.
    """
    if matrix.dtype.kind == "V":
        raise UsageError(f"{matrix.name}: .npy does not support {matrix.dtype}: copy the file instead")
    header = {"descr": np.lib.format.dtype_to_descr(matrix.dtype), "fortran_order": False, "shape": matrix.shape}
    np.lib.format.write_array_header_1_0(file, header)
    offset, size = file.tell(), matrix.dtype.itemsize
    strides = (matrix.shape[1] * size, size)
    done = 0
    for elements in _pieces(matrix):
        file.write(elements.reshape(-1).view(np.uint8).data)
        done += elements.nbytes
        progress(done)
    file.flush()
    return Stored(os.fspath(file.name), offset, matrix.shape, strides, matrix.dtype)


def _pieces(matrix: Matrix) -> Iterator[np.ndarray]:
    """Yield the elements of a matrix row by row, a few MiB at a time, whatever the length of a row."""
    row_bytes = matrix.shape[1] * matrix.dtype.itemsize
    if row_bytes > _PIECE_BYTES:
        for *_, piece in matrix.pieces(_PIECE_BYTES // matrix.dtype.itemsize):
            yield np.ascontiguousarray(piece)
    else:
        for _, block in matrix.blocks(_PIECE_BYTES // row_bytes):
            yield block


def copy_file(matrix: Matrix, file: BinaryIO, progress: Callable[[int], None]) -> Stored:
    """Copy the file of a matrix with its owner, permissions and extended attributes.

    Warns of attributes that could not be copied.

    Parameters
    ----------
    matrix : Matrix
        A matrix whose file holds its elements as plain bytes.
    file : binary file
        Open for writing, at its beginning.
    progress : callable
        Called with the number of bytes written so far.

    Returns
    -------
    Stored
        Position of the elements in `file`; all of them have been flushed to the system.

    Raises
    ------
    UsageError
        If the file does not hold its elements as plain bytes.
    MatrixError
        If the file has changed since the matrix was opened.
    OSError
        If the disk is full or fails, or the owner of the copy cannot be set to that of the original.
    """
    if matrix.stored is None:
        raise UsageError(f"{matrix.name}: does not hold its elements as plain bytes: write a copy as .npy")
    done = 0
    matrix.check_unchanged()
    with open(matrix.stored.path, "rb", buffering=0) as source:
        while piece := source.read(_PIECE_BYTES):
            file.write(piece)
            done += len(piece)
            progress(done)
        file.flush()
        matrix.check_unchanged()
        copy_attributes(matrix.stored.path, source.fileno(), file.fileno())
    return matrix.stored
