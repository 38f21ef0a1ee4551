"""Matrices of files that other processes open for themselves, to read some of the rows."""

import os
import socket
from dataclasses import dataclass

import numpy as np

from tsapps.errors import MatrixError
from tsapps.matrix.base import Matrix
from tsapps.matrix.prepared import Learned, prepared
from tsapps.matrix.registry import Opening, open_columns

__all__ = ["Reopened", "read_rows"]

# Rows that are read at a time.
_ROWS = 1 << 16


@dataclass(frozen=True)
class Reopened:
    """How another process opens a matrix, and what it must find.

    Attributes
    ----------
    data : str
        Absolute path, pattern or ``FILE:NAME``, as `open_matrix` takes it.
    opening : Opening
    learned : Learned
        How its rows are prepared.
    kept : numpy.ndarray of bool or None
        The rows that are kept; None for all.
    shape : tuple of int
    dtype : str
    stamps : tuple of tuple of int
        Size in bytes and time of the last write, in nanoseconds, of each file.
    """

    data: str
    opening: Opening
    learned: Learned
    kept: np.ndarray | None
    shape: tuple[int, int]
    dtype: str
    stamps: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, matrix: Matrix, data: str, opening: Opening, learned: Learned, kept: np.ndarray | None) -> "Reopened":
        """Return how to open `matrix`, which `open_columns` opened and `prepared` prepared with these arguments."""
        given = os.path.abspath(data), opening, learned, kept
        return cls(*given, matrix.shape, matrix.dtype.name, _stamps(matrix))

    def opened(self) -> Matrix:
        """Return the matrix, opened in this process."""
        return prepared(open_columns(self.data, self.opening)[0], self.learned, self.kept)


def read_rows(source: Reopened, first: int, end: int) -> np.ndarray:
    """Open a matrix in this process, and return its rows from `first` to before `end`.

    Raises
    ------
    MatrixError
        If the matrix is not the one that the other process has opened, or cannot be read.
    """
    matrix = source.opened()
    found = matrix.shape, matrix.dtype.name, _stamps(matrix)
    if found != (source.shape, source.dtype, source.stamps):
        raise MatrixError(
            f"{source.data}: on {socket.gethostname()} it is {matrix.shape[0]} × {matrix.shape[1]} {matrix.dtype} in "
            f"files of {[size for size, _ in found[2]]} bytes; expected {source.shape[0]} × {source.shape[1]} "
            f"{source.dtype}, {[size for size, _ in source.stamps]} bytes, and the same times of the last write: give "
            "all machines the same files"
        )
    rows = np.empty((end - first, matrix.shape[1]), matrix.dtype)
    for start, block in matrix.blocks_between(first, end, _ROWS):
        rows[start - first : start - first + len(block)] = block
    return rows


def _stamps(matrix: Matrix) -> tuple[tuple[int, int], ...]:
    states = [os.stat(path) for path, _ in matrix.files]
    return tuple((state.st_size, state.st_mtime_ns) for state in states)
