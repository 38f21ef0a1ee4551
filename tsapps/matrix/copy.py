"""Copies of a matrix that are to be changed in some places: as a .npy file, or of its own file byte for byte."""

import errno
import os
import warnings
from collections.abc import Callable, Iterator
from typing import BinaryIO

import numpy as np

from tsapps.errors import UsageError
from tsapps.matrix.base import Matrix
from tsapps.matrix.layout import Stored

__all__ = ["copy_as_npy", "copy_file"]

_PIECE_BYTES = 1 << 24
# Extended attributes by which file systems of Linux keep lists of who may read a file.
_ACCESS_LISTS = ("system.posix_acl_access", "system.nfs4_acl")


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
    """Copy the whole file in which a matrix is stored, with its owner, permissions and extended attributes.

    What of these the copy cannot have is said in a warning.

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
    MatrixError
        If the file has changed since the matrix was opened.
    OSError
        If the disk is full or fails, or the copy may not be given to the owner of the original.
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
        _copy_attributes(matrix.stored.path, source.fileno(), file.fileno())
    return matrix.stored


def _copy_attributes(path: str, original: int, copy: int) -> None:
    """Give a copy the owner, the extended attributes and, last, the permissions of the original.

    Raises
    ------
    OSError
        If the copy may not be given to the owner of the original.
    """
    found, has = os.fstat(original), os.fstat(copy)
    if (found.st_uid, found.st_gid) != (has.st_uid, has.st_gid):
        os.fchown(copy, found.st_uid, found.st_gid)
    if hasattr(os, "listxattr"):
        _copy_extended_attributes(path, original, copy)
    os.fchmod(copy, found.st_mode & 0o7777)


def _copy_extended_attributes(path: str, original: int, copy: int) -> None:
    """Give a copy the extended attributes of the original, and warn of those that it cannot have."""
    try:
        wanted, inherited = os.listxattr(original), os.listxattr(copy)
    except OSError as error:
        if error.errno == errno.ENOTSUP:
            return
        raise
    for name in inherited:
        if name in _ACCESS_LISTS and name not in wanted:  # of the directory: it may let more people in
            os.removexattr(copy, name)
    for name in wanted:
        value = os.getxattr(original, name)
        if name in inherited and os.getxattr(copy, name) == value:
            continue
        try:
            os.setxattr(copy, name, value)
        except OSError as error:
            warnings.warn(
                f"{path}: the copy does not keep the extended attribute {name}: {error.strerror}: set it again",
                stacklevel=4,
            )
