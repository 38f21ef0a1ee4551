"""Copies of a matrix that are to be changed in some places: as a .npy file, or of its own file byte for byte."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO

import numpy as np

from tsapps.errors import UsageError
from tsapps.matrix.base import Matrix
from tsapps.matrix.checks import changed
from tsapps.matrix.memory import Stored

__all__ = ["copy_as_npy", "copy_file", "unchanged"]

_PIECE_BYTES = 1 << 24


def copy_as_npy(matrix: Matrix, file: BinaryIO, progress: Callable[[int], None]) -> Stored:
    """Write a matrix as .npy, in C order and the machine's byte order.

    Parameters
    ----------
    matrix : Matrix
        In host memory or a file; its elements are taken bit by bit.
    file : binary file
        Open for writing, at its beginning, by a name.
    progress : callable
        Is told how many bytes of elements have been written.

    Returns
    -------
    Stored
        Where the elements lie in `file`, all of which have been given to the system.

    Raises
    ------
    UsageError
        If the format has no such dtype (bfloat16).
    OSError
        If the disk is full or fails.
    """
    if matrix.dtype.kind == "V":
        raise UsageError(f"{matrix.name}: .npy holds no {matrix.dtype}: copy the file as it is")
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
    """Yield the elements of a matrix row by row, some MiB at a time, however long a row is."""
    row_bytes = matrix.shape[1] * matrix.dtype.itemsize
    if row_bytes > _PIECE_BYTES:
        for *_, piece in matrix.pieces(_PIECE_BYTES // matrix.dtype.itemsize):
            yield np.ascontiguousarray(piece)
    else:
        for _, block in matrix.blocks(_PIECE_BYTES // row_bytes):
            yield block


def copy_file(matrix: Matrix, file: BinaryIO, progress: Callable[[int], None]) -> Stored:
    """Copy the whole file in which a matrix is stored, with its owner and its permissions.

    Parameters
    ----------
    matrix : Matrix
        Whose file holds its elements as plain bytes.
    file : binary file
        Open for writing, at its beginning.
    progress : callable
        Is told how many bytes have been written.

    Returns
    -------
    Stored
        Where the elements lie in `file`, all of which have been given to the system.

    Raises
    ------
    UsageError
        If the file holds elements in another way.
    OSError
        If the disk is full or fails, or the copy may not be given to the owner of the original.
    """
    if matrix.stored is None:
        raise UsageError(f"{matrix.name}: does not hold its elements as plain bytes: write a copy as .npy")
    done = 0
    with open(matrix.stored.path, "rb", buffering=0) as source:
        while piece := source.read(_PIECE_BYTES):
            file.write(piece)
            done += len(piece)
            progress(done)
        original, copy = os.fstat(source.fileno()), os.fstat(file.fileno())
    file.flush()
    if (original.st_uid, original.st_gid) != (copy.st_uid, copy.st_gid):
        os.fchown(file.fileno(), original.st_uid, original.st_gid)
    os.fchmod(file.fileno(), original.st_mode & 0o7777)
    return matrix.stored


@contextmanager
def unchanged(path: str) -> Iterator[None]:
    """Raise `MatrixError` at the end of a ``with`` block if a file was written to or replaced since its beginning."""
    before = _state(path)
    yield
    if _state(path) != before:
        raise changed(path)


def _state(path: str) -> tuple[int, ...]:
    found = os.stat(path)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
