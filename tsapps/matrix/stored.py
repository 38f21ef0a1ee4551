"""Matrices that a file holds as plain bytes, read block by block into buffers.

The CPU never reads a mapped file: if another program truncates it, SIGBUS kills the process.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from mmap import PROT_READ, mmap
from os import PathLike, fspath

import numpy as np

from tsapps.kernels.system.task_pool import TaskPool
from tsapps.matrix.base import Matrix
from tsapps.matrix.checks import changed
from tsapps.matrix.layout import Stored

__all__ = ["LEAST_AHEAD", "BytesReader", "StoredMatrix", "matrix_of", "read_ahead"]

# Fortran order: columns are read whole if a column has at most `_SHORT_COLUMN_BYTES`, or if at least half of its
# elements are needed. One read covers several columns of at most `_COLUMNS_BYTES` together, or a single column.
_SHORT_COLUMN_BYTES, _COLUMNS_BYTES = 1 << 16, 1 << 24
#: Minimum bytes of a block that a thread reads ahead: passing a smaller block between threads costs more than it saves.
LEAST_AHEAD = 1 << 20
# Selected rows are read one by one if that takes at most `_FEW_READS` reads, or at most one read per `_BYTES_PER_READ`
# bytes of the matrix. Otherwise one pass reads the whole matrix.
_BYTES_PER_READ, _FEW_READS = 1 << 13, 64


class StoredMatrix(Matrix):
    """A matrix stored in a file as plain bytes; each pass opens the file.

    Parameters
    ----------
    stored : Stored
    name : str
    """

    stored: Stored
    begins_anywhere = True

    def __init__(self, stored: Stored, name: str) -> None:
        super().__init__(name, stored.shape, stored.dtype)
        self.stored = stored

    def _blocks(self, rows: int) -> Iterator[tuple[int, np.ndarray]]:
        n = self.shape[0]
        with self._opened() as file:
            blocks: Iterator[np.ndarray] = (self._block(file, start, rows) for start in range(0, n, rows))
            if rows < n and rows * self.shape[1] * self.dtype.itemsize >= LEAST_AHEAD:
                blocks = read_ahead(blocks)
            yield from zip(range(0, n, rows), blocks, strict=True)

    def _between(self, first: int, end: int, rows: int) -> Iterator[tuple[int, np.ndarray]]:
        with self._opened() as file:
            for start in range(first, end, rows):
                yield start, self._block(file, start, min(rows, end - start))

    def _block(self, file: int, start: int, rows: int) -> np.ndarray:
        """Return the block of at most `rows` rows that begins at row `start`."""
        block = np.empty((min(rows, self.shape[0] - start), self.shape[1]), self.dtype)
        self._read_rows(file, start, block)
        return block

    def _rows(self, numbers: np.ndarray) -> np.ndarray:
        # One read covers the rows of consecutive indices.
        ends = np.append(np.flatnonzero(np.diff(numbers) != 1) + 1, len(numbers)).tolist()
        reads = len(ends) * (1 if self.stored.by_rows else self.shape[1])
        if reads > _FEW_READS and reads * _BYTES_PER_READ > self.nbytes:
            return super()._rows(numbers)
        out = np.empty((len(numbers), self.shape[1]), self.dtype)
        with self._opened() as file:
            for first, end in zip([0, *ends], ends, strict=False):
                if first < end:
                    self._read_rows(file, int(numbers[first]), out[first:end])
        return out

    def read_into(self, start: int, out: np.ndarray) -> None:
        """Read len(out) rows from row `start` on into `out`, C-contiguous and of the matrix's dtype; thread-safe."""
        with self._opened() as file:
            self._read_rows(file, start, out)

    def in_place(self) -> np.ndarray | None:
        """Map the file into memory if its rows follow each other in native byte order; see `Matrix.in_place`."""
        stored, end = self.stored, self.stored.offset + self.nbytes
        if not self._gapless or stored.offset % self.dtype.alignment:
            return None
        with self._opened() as file:
            if os.fstat(file).st_size < end:
                raise changed(self.name)
            content = mmap(file, end, prot=PROT_READ)
        return np.ndarray(self.shape, self.dtype, content, stored.offset)

    @property
    def _gapless(self) -> bool:
        """True if the rows follow each other in native byte order."""
        stored = self.stored
        row_bytes = self.shape[1] * self.dtype.itemsize
        return stored.by_rows and stored.strides[0] == row_bytes and stored.dtype == self.dtype

    @contextmanager
    def bytes_reader(self) -> Iterator["BytesReader | None"]:
        """Open the file, and yield a reader of the matrix's bytes that several threads may use at once.

        It is None unless the rows follow each other in native byte order.
        """
        if not self._gapless:
            yield None
            return
        self.check_unchanged()
        with self._opened() as file:
            yield BytesReader(self, file)
        self.check_unchanged()

    def pieces(self, columns: int) -> Iterator[tuple[int, int, np.ndarray]]:
        """Yield (row, first column, elements of shape (1, at most `columns`)), for rows too long to read at once."""
        self.check_unchanged()
        with self._opened() as file:
            for row in range(self.shape[0]):
                for column in range(0, self.shape[1], columns):
                    piece = np.empty((1, min(columns, self.shape[1] - column)), self.dtype)
                    self._read_piece(file, row, column, piece)
                    yield row, column, piece
        self.check_unchanged()

    @contextmanager
    def held(self) -> Iterator[Matrix]:
        """Yield a matrix that reads the present file, even if another file is renamed to the same path meanwhile."""
        with self._opened() as file:
            yield matrix_of(self.stored, f"/dev/fd/{file}", self.name)

    @contextmanager
    def _opened(self) -> Iterator[int]:
        """Open the file and yield the descriptor; raise `MatrixError` if the file differs from the matrix's state."""
        file = os.open(self.stored.path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        try:
            if self.file_state is not None:
                self.file_state.check_open(file, self.name)
            yield file
        finally:
            os.close(file)

    def _read_rows(self, file: int, start: int, out: np.ndarray) -> None:
        """Read len(out) rows from row `start` on into `out`, a C-contiguous array of the matrix's dtype."""
        if not self.stored.by_rows:
            self._gather_columns(file, start, 0, out)
            return
        row_bytes, gap = self.stored.strides[0], self.stored.strides[0] - self.shape[1] * self.dtype.itemsize
        place = self.stored.offset + start * row_bytes
        if gap:
            content = np.empty(len(out) * row_bytes - gap, np.uint8)
            self._fill(file, place, content)
            out[:] = np.ndarray(out.shape, self.dtype, content, 0, self.stored.strides)
        else:
            self._fill(file, place, out)
        self._to_native(out)

    def _read_piece(self, file: int, row: int, column: int, out: np.ndarray) -> None:
        """Read the elements of a row from `column` on into `out`, of shape (1, columns)."""
        if not self.stored.by_rows:
            self._gather_columns(file, row, column, out)
            return
        place = row * self.stored.strides[0] + column * self.stored.strides[1]
        self._fill(file, self.stored.offset + place, out)
        self._to_native(out)

    def _gather_columns(self, file: int, start: int, column: int, out: np.ndarray) -> None:
        """Fill `out` from row `start` and `column` on, in Fortran order; short columns are read whole."""
        n, size = self.shape[0], self.dtype.itemsize
        rows, columns = out.shape
        if 2 * rows >= n or n * size <= _SHORT_COLUMN_BYTES:
            step = max(1, _COLUMNS_BYTES // (n * size))
            for first in range(0, columns, step):
                whole = np.empty((min(step, columns - first), n), self.dtype)
                self._fill(file, self.stored.offset + (column + first) * n * size, whole)
                out[:, first : first + step] = whole[:, start : start + rows].T
        else:
            part = np.empty((columns, rows), self.dtype)
            for number in range(columns):
                self._fill(file, self.stored.offset + ((column + number) * n + start) * size, part[number])
            out[:] = part.T
        self._to_native(out)

    def _to_native(self, out: np.ndarray) -> None:
        """Swap the bytes of elements read from the file, unless they are in the machine's order."""
        if self.stored.dtype != self.dtype:
            out.byteswap(inplace=True)

    def _fill(self, file: int, place: int, out: np.ndarray) -> None:
        """Fill a C-contiguous array with the bytes of the file from `place` on.

        Raises
        ------
        MatrixError
            If the file ends too early.
        OSError
            If the file cannot be read; the error names it.
        """
        buffer = out.reshape(-1).view(np.uint8).data
        try:
            while buffer:
                count = os.preadv(file, [buffer], place)
                if count == 0:
                    raise changed(self.name)
                buffer, place = buffer[count:], place + count
        except OSError as error:
            error.filename = self.stored.path
            raise


class BytesReader:
    """Reads bytes of a matrix whose rows follow each other in a file."""

    def __init__(self, matrix: StoredMatrix, file: int) -> None:
        self._matrix, self._file = matrix, file
        self._knows_cache = hasattr(os, "RWF_NOWAIT")

    def __call__(self, begin: int, out: np.ndarray, *, wait: bool) -> bool:
        """Fill `out`, an array of bytes, from byte `begin` of the matrix on.

        Returns
        -------
        bool
            Without `wait`, False if the file system knows that the page cache lacks some of the bytes; no thread then
            waits for the disk. Otherwise True.
        """
        place = self._matrix.stored.offset + begin
        if not wait and self._knows_cache:
            try:
                return os.preadv(self._file, [out.data], place, os.RWF_NOWAIT) == len(out)
            except BlockingIOError:
                return False
            except OSError:  # not supported by the file system, or an error that the ordinary read reports
                self._knows_cache = False
        self._matrix._fill(self._file, place, out)
        return True


def read_ahead(blocks: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
    """Yield blocks; a thread reads the next block while the caller uses the current block."""
    with TaskPool(1, "tsapps-reader") as reader:
        following = reader.submit(next, blocks, None)
        while (block := following.result()) is not None:
            following = reader.submit(next, blocks, None)
            yield block
            del block  # so that the block's memory is freed as soon as the caller releases the block


def matrix_of(layout: Stored, path: str | PathLike[str], name: str) -> StoredMatrix:
    """Return the matrix in the file `path`, which has the layout of another file."""
    return StoredMatrix(replace(layout, path=fspath(path)), name)
