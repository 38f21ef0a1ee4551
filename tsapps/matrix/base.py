"""What every matrix offers, whatever holds its elements: a name, a shape, a dtype, and its rows; in any dtype."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from tsapps.errors import MatrixError, UsageError
from tsapps.kernels.system.printable import one_line
from tsapps.matrix.checks import (
    check_dtype,
    check_finite,
    check_indices,
    check_memory,
    check_shape,
    current_device,
    damaged,
    is_floating,
)
from tsapps.matrix.layout import Stored

if TYPE_CHECKING:
    from tsapps.matrix.watch import FileState

__all__ = ["ConvertedMatrix", "Matrix"]

T = TypeVar("T")

# Rows are read this many bytes at a time where the caller does not say how many: it fits a CPU's last-level cache.
_BLOCK_BYTES = 1 << 24


class Matrix(ABC):
    """n rows (samples) of d numbers (features), read as blocks of rows as often as one likes.

    Attributes
    ----------
    name : str
        What messages call it: the path, or "the array in memory"; printable, whatever the file's name is.
    shape : tuple of int
        (n, d), both at least 1.
    dtype : numpy.dtype
        An integer or floating-point type, or bfloat16, in the machine's byte order.
    device : int or None
        The GPU on which the elements lie; None for host memory and files.
    stored : Stored or None
        Where the elements lie in a file; None for memory, and for files that do not hold them as plain bytes (but as
        text, compressed, in pieces).
    file_state : FileState or None
        The state of the file when it was opened; None for memory.
    """

    stored: Stored | None = None
    file_state: "FileState | None" = None

    def __init__(self, name: str, shape: Sequence[int], dtype: np.dtype, device: int | None = None) -> None:
        check_dtype(dtype, name)
        check_shape(shape, name)
        self.name = one_line(name)
        self.shape: tuple[int, int] = (int(shape[0]), int(shape[1]))
        self.dtype = dtype.newbyteorder("=")
        self.device = device
        if self.nbytes >= 1 << 63:
            raise MatrixError(
                f"{name}: is truncated or damaged: its header says {shape[0]} × {shape[1]} {dtype}, more than any "
                f"machine can hold: copy it again, or check its format"
            )

    @property
    def nbytes(self) -> int:
        """The bytes that the whole matrix takes in memory."""
        return self.shape[0] * self.shape[1] * self.dtype.itemsize

    def blocks(self, rows: int) -> Iterator[tuple[int, Any]]:
        """Yield the matrix from its first row to its last, some rows at a time; each call begins afresh.

        Parameters
        ----------
        rows : int
            The most rows in one block, at least 1.

        Yields
        ------
        start : int
            The number of the block's first row.
        block : numpy.ndarray or cupy.ndarray of shape (at most rows, d)
            C-contiguous, of the matrix's own dtype, not checked for NaN. It may be a view: do not write to it.

        Raises
        ------
        ValueError
            If `rows` is less than 1.
        MatrixError
            If the file turns out, on reading, not to hold what it claims: rows or columns too few or too many. If it
            has changed since it was opened, which is found out at the end of the pass at the latest.
        """
        if rows < 1:
            raise ValueError(f"rows must be at least 1, got {rows}")
        return self._unchanged(self._complete(self._blocks(rows)))

    def check_unchanged(self) -> None:
        """Raise `MatrixError` if the file has changed since it was opened; memory is not looked at."""
        if self.file_state is not None:
            self.file_state.check(self.name)

    @contextmanager
    def held(self) -> "Iterator[Matrix]":
        """Lend the matrix as it is now, also when another file takes the name of its own."""
        yield self

    def _unchanged(self, blocks: Iterator[T]) -> Iterator[T]:
        """Yield what is read of the file; raise `MatrixError` if it has changed since it was opened."""
        self.check_unchanged()
        try:
            yield from blocks
        except MatrixError:
            self.check_unchanged()  # which says more than that the elements make no sense
            raise
        self.check_unchanged()

    def _complete(self, blocks: Iterator[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
        """Yield a reader's blocks, and raise `MatrixError` unless they are the rows and columns that it announced."""
        n, d = self.shape
        done = 0
        for start, block in blocks:
            end = start + len(block)
            if start != done or end > n or block.shape[1:] != (d,) or block.dtype != self.dtype:
                raise damaged(self.name, self.shape, f"rows {start} to {end - 1} of shape {block.shape} {block.dtype}")
            done = end
            yield start, block
            del block  # the reader may need the memory for the next one
        if done != n:
            raise damaged(self.name, self.shape, f"{done} rows")

    @abstractmethod
    def _blocks(self, rows: int) -> Iterator[tuple[int, Any]]:
        """Read the blocks; `rows` has been checked. Only `blocks` calls it, which checks that nothing is missing."""

    def rows(self, indices: Any) -> Any:
        """Return the rows with these numbers, in this order; a number may stand there more than once.

        Parameters
        ----------
        indices : array-like of int, shape (m,)
            Row numbers from 0 to n - 1.

        Returns
        -------
        numpy.ndarray or cupy.ndarray of shape (m, d)
            A C-contiguous copy in the matrix's own dtype.

        Raises
        ------
        IndexError
            If a number is no row's, or `indices` is no one-dimensional array of integers.
        """
        numbers = check_indices(indices, self.shape[0], self.name)
        (found,) = self._unchanged(self._rows(numbers) for _ in range(1))
        return found

    def pieces(self, columns: int) -> Iterator[tuple[int, int, Any]]:
        """Yield (row, column, elements) of every row in pieces: for rows that memory should not hold whole.

        Parameters
        ----------
        columns : int
            The most columns in one piece, at least 1.

        Yields
        ------
        row, column : int
            Of the first element.
        elements : numpy.ndarray or cupy.ndarray of shape (1, at most columns)
            As a block of `blocks`.
        """
        for row, block in self.blocks(1):
            for column in range(0, self.shape[1], columns):
                yield row, column, block[:, column : column + columns]

    def _rows(self, numbers: np.ndarray) -> Any:
        """Return the rows; `numbers` has been checked. Here by one pass, for those that cannot go to a row at once."""
        return self._gather(self.blocks(self._default_rows()), numbers)

    def _gather(self, blocks: Iterator[tuple[int, np.ndarray]], numbers: np.ndarray) -> np.ndarray:
        """Pick rows out of ascending host blocks that hold them, not a block further than the last of them."""
        out = np.empty((len(numbers), self.shape[1]), self.dtype)
        order = np.argsort(numbers, kind="stable")
        ascending = numbers[order]
        first = 0
        while first < len(numbers):
            start, block = next(blocks, (self.shape[0], None))
            if block is None:
                raise damaged(self.name, self.shape, f"no row {ascending[first]}")
            last = int(np.searchsorted(ascending, start + len(block)))
            out[order[first:last]] = block[ascending[first:last] - start]
            first = last
        return out

    def read(self, dtype: DTypeLike | None = None) -> Any:
        """Return the whole matrix, having checked that every element is finite.

        Parameters
        ----------
        dtype : numpy dtype, optional
            Another dtype for the result, as for `open_matrix`.

        Returns
        -------
        numpy.ndarray or cupy.ndarray of shape (n, d)
            C-contiguous. For an array in memory that is so already, that array itself.

        Raises
        ------
        MatrixError
            If an element is NaN or infinite, in the file or in `dtype`.
        """
        if dtype is not None and np.dtype(dtype) != self.dtype:
            return ConvertedMatrix(self, np.dtype(dtype)).read()
        return self._read()

    def _read(self) -> Any:
        """Return the whole in the matrix's own dtype, checked."""
        whole = self._empty(self.dtype)
        with current_device(whole):
            for start, block in self.blocks(self._default_rows()):
                check_finite(block, start, self.name)
                whole[start : start + len(block)] = block
        return whole

    def _empty(self, dtype: np.dtype) -> Any:
        """Return an array of the matrix's shape, where its elements lie."""
        n, d = self.shape
        check_memory(self.name, n * d * dtype.itemsize, f"{n} × {d} {dtype}")
        try:
            return np.empty(self.shape, dtype)
        except MemoryError as error:
            raise MemoryError(
                f"{self.name}: {self.shape[0]} × {self.shape[1]} {dtype} take {self.nbytes} bytes"
            ) from error

    def _default_rows(self) -> int:
        return max(1, _BLOCK_BYTES // (self.shape[1] * self.dtype.itemsize))

    def __repr__(self) -> str:
        where = "" if self.device is None else f" on GPU {self.device}"
        return f"<Matrix {self.name}: {self.shape[0]} × {self.shape[1]} {self.dtype}{where}>"


class ConvertedMatrix(Matrix):
    """Another matrix's elements in `dtype`.

    Raises
    ------
    UsageError
        If `dtype` is neither floating-point nor wide enough for every value of the source's dtype.
    """

    def __init__(self, source: Matrix, dtype: np.dtype) -> None:
        if not (is_floating(dtype) or (dtype.kind in "iu" and np.can_cast(source.dtype, dtype, "safe"))):
            raise UsageError(
                f"{source.name}: its {source.dtype} elements cannot be read as {dtype} without loss: "
                f"ask for a floating-point type, such as float32"
            )
        super().__init__(source.name, source.shape, dtype, source.device)
        self.file_state = source.file_state
        self._source = source

    def _blocks(self, rows: int) -> Iterator[tuple[int, Any]]:
        for start, block in self._source.blocks(rows):
            yield start, self._convert(block, range(start, start + len(block)))

    def pieces(self, columns: int) -> Iterator[tuple[int, int, Any]]:
        """Yield (row, column, piece of that row); see `Matrix.pieces`."""
        for row, column, piece in self._source.pieces(columns):
            yield row, column, self._convert(piece, [row])

    def _rows(self, numbers: np.ndarray) -> Any:
        return self._convert(self._source._rows(numbers), numbers)

    def _empty(self, dtype: np.dtype) -> Any:
        return self._source._empty(dtype)

    def _convert(self, block: Any, numbers: Sequence[int] | np.ndarray) -> Any:
        """Return the block in `dtype`; `numbers` are its rows' numbers, for the message."""
        with current_device(block), np.errstate(over="ignore"):  # numbers too large are refused below, by name
            converted = block.astype(self.dtype)
            if np.can_cast(block.dtype, self.dtype, "safe"):
                return converted
            overflown = np.isfinite(block) & ~np.isfinite(converted)
            if not bool(overflown.any()):
                return converted
            row, column = divmod(int(overflown.argmax()), block.shape[1])
            value = float(block[row, column])
        raise MatrixError(
            f"{self.name}: row {int(numbers[row])}, column {column} is {value:g} (counted from 0), "
            f"too large for {self.dtype}: ask for a wider type, or scale the data"
        )
