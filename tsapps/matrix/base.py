"""Base class of matrices: name, shape, dtype and blocks of rows; conversion to another dtype."""

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

__all__ = ["ConvertedMatrix", "DerivedMatrix", "Matrix", "trimmed"]

T = TypeVar("T")

# Maximum bytes of a block of several rows, if the caller does not choose: it fits in the last-level cache of a CPU.
_BLOCK_BYTES = 1 << 24


class Matrix(ABC):
    """n rows (samples) of d numbers (features), read in blocks of rows; every pass can be repeated.

    Attributes
    ----------
    name : str
        Name in messages: the path, or "the array in memory". Always printable, even if the file's name is not.
    shape : tuple of int
        (n, d), both at least 1.
    dtype : numpy.dtype
        An integer or floating-point type, or bfloat16, in the machine's byte order.
    device : int or None
        Index of the GPU that holds the elements; None for host memory and files.
    stored : Stored or None
        Position of the elements in a file. None for arrays in memory, and for files that store elements as text,
        compressed or in chunks.
    file_state : FileState or None
        The state of the file when it was opened; None for arrays in memory.
    column_names : tuple of str or None
        Names of the columns in a Parquet file, or in the header of a text table.
    """

    stored: Stored | None = None
    file_state: "FileState | None" = None
    column_names: tuple[str, ...] | None = None
    #: The numbers of the columns that are features, if columns have no names and others are no features.
    numbers: tuple[int, ...] | None = None
    #: Whether `blocks_between` reads only these rows, not those before them.
    begins_anywhere = False

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
        """Size of the whole matrix in memory, in bytes."""
        return self.shape[0] * self.shape[1] * self.dtype.itemsize

    def blocks(self, rows: int) -> Iterator[tuple[int, Any]]:
        """Yield the matrix in blocks of rows, from the first row to the last; each call starts from row 0.

        Parameters
        ----------
        rows : int
            Maximum number of rows in a block, at least 1.

        Yields
        ------
        start : int
            Index of the block's first row.
        block : numpy.ndarray or cupy.ndarray of shape (at most rows, d)
            C-contiguous, in the matrix's dtype, not checked for NaN. It may be a view: do not write to it.

        Raises
        ------
        ValueError
            If `rows` is less than 1.
        MatrixError
            If the file does not hold the rows and columns that its header announces, or if the file has changed since
            it was opened. A change is detected at the end of the pass at the latest.
        """
        if rows < 1:
            raise ValueError(f"rows must be at least 1, got {rows}")
        return self._unchanged(self._complete(self._blocks(rows)))

    def blocks_between(self, first: int, end: int, rows: int) -> Iterator[tuple[int, Any]]:
        """Yield the rows from row `first` to before row `end`, in blocks; see `blocks`.

        Where the format allows it, only these rows are read: of Parquet files, the row groups that have them.

        Raises
        ------
        IndexError
            Unless 0 ≤ first ≤ end ≤ n.
        """
        if not 0 <= first <= end <= self.shape[0]:
            raise IndexError(f"{self.name}: expected rows between 0 and {self.shape[0]}, got {first} to {end}")
        if rows < 1:
            raise ValueError(f"rows must be at least 1, got {rows}")
        blocks = self._between(first, end, rows) if first < end else iter(())
        return self._unchanged(self._complete(blocks, first, end))

    def _between(self, first: int, end: int, rows: int) -> Iterator[tuple[int, Any]]:
        """Yield the blocks of `blocks_between`; formats that are read from any row on override this method."""
        return trimmed(self._blocks(rows), first, end)

    @property
    def files(self) -> list[tuple[str, int]]:
        """Return the path and the number of rows of each file; none for arrays in memory."""
        return [] if self.file_state is None else [(self.file_state.path, self.shape[0])]

    def row_name(self, row: int) -> str:
        """Return what messages call a row."""
        return f"row {row}"

    def check_unchanged(self) -> None:
        """Raise `MatrixError` if the file has changed since it was opened. Arrays in memory are not checked."""
        if self.file_state is not None:
            self.file_state.check(self.name)

    def in_place(self) -> np.ndarray | None:
        """Return all elements as an array that refers to the matrix's memory or maps its file into memory.

        Of a file, only a GPU may read the array, and only pages that are pinned: if another program truncates the file,
        SIGBUS kills a process that reads.

        Returns
        -------
        numpy.ndarray of shape (n, d) or None
            Row-major and aligned, in the machine's byte order; not to be written. None if the matrix is stored in
            another way, or in GPU memory.
        """
        return None

    @contextmanager
    def held(self) -> "Iterator[Matrix]":
        """Yield the matrix itself; `StoredMatrix` yields one that is unaffected if its file is replaced meanwhile."""
        yield self

    def _unchanged(self, blocks: Iterator[T]) -> Iterator[T]:
        """Yield the blocks read from the file; raise `MatrixError` if it has changed since it was opened."""
        self.check_unchanged()
        try:
            yield from blocks
        except MatrixError:
            self.check_unchanged()  # a changed file explains invalid elements, so report the change instead
            raise
        self.check_unchanged()

    def _complete(
        self, blocks: Iterator[tuple[int, Any]], first: int = 0, end: int | None = None
    ) -> Iterator[tuple[int, Any]]:
        """Yield a reader's blocks; raise `MatrixError` unless they cover rows `first` to before `end`, and all columns.

        By default, all announced rows.
        """
        done, end = first, self.shape[0] if end is None else end
        for start, block in blocks:
            last = start + len(block)
            if start != done or last > end or block.shape[1:] != self.shape[1:] or block.dtype != self.dtype:
                raise damaged(self.name, self.shape, f"rows {start} to {last - 1} of shape {block.shape} {block.dtype}")
            done = last
            yield start, block
            del block  # free the memory for the next block
        if done != end:
            raise damaged(self.name, self.shape, f"{done} rows")

    @abstractmethod
    def _blocks(self, rows: int) -> Iterator[tuple[int, Any]]:
        """Yield the blocks. Only `blocks` calls this: it checks `rows`, and that the blocks are complete."""

    def rows(self, indices: Any) -> Any:
        """Return the rows with these indices, in this order; an index may occur more than once.

        Parameters
        ----------
        indices : array-like of int, shape (m,)
            Row indices from 0 to n - 1.

        Returns
        -------
        numpy.ndarray or cupy.ndarray of shape (m, d)
            A C-contiguous copy in the matrix's dtype.

        Raises
        ------
        IndexError
            If an index is out of range, or `indices` is not a one-dimensional array of integers.
        """
        numbers = check_indices(indices, self.shape[0], self.name)
        (found,) = self._unchanged(self._rows(numbers) for _ in range(1))
        return found

    def pieces(self, columns: int) -> Iterator[tuple[int, int, Any]]:
        """Yield every row in pieces of at most `columns` elements, for rows that are too long for memory.

        Parameters
        ----------
        columns : int
            Maximum number of columns in a piece, at least 1.

        Yields
        ------
        row, column : int
            Index of the first element.
        elements : numpy.ndarray or cupy.ndarray of shape (1, at most columns)
            Like a block of `blocks`.
        """
        for row, block in self.blocks(1):
            for column in range(0, self.shape[1], columns):
                yield row, column, block[:, column : column + columns]

    def _rows(self, numbers: np.ndarray) -> Any:
        """Return the rows with these valid indices, by one pass; formats with random access override this method."""
        return self._gather(self.blocks(self._default_rows()), numbers)

    def _gather(self, blocks: Iterator[tuple[int, np.ndarray]], numbers: np.ndarray) -> np.ndarray:
        """Return the rows `numbers` from `blocks` in host memory, which ascend; stop after the last block needed."""
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
        """Return the whole matrix; check that every element is finite.

        Parameters
        ----------
        dtype : numpy dtype, optional
            Dtype of the result, as for `open_matrix`.

        Returns
        -------
        numpy.ndarray or cupy.ndarray of shape (n, d)
            C-contiguous. An array in memory that already is C-contiguous is returned itself, not copied.

        Raises
        ------
        MatrixError
            If an element is NaN or infinite in the file or after conversion to `dtype`.
        """
        if dtype is not None and np.dtype(dtype) != self.dtype:
            return ConvertedMatrix(self, np.dtype(dtype)).read()
        return self._read()

    def _read(self) -> Any:
        """Return the whole matrix in its own dtype, after checking that every element is finite."""
        whole = self._empty(self.dtype)
        with current_device(whole):
            for start, block in self.blocks(self._default_rows()):
                check_finite(block, start, self.name, self.row_name)
                whole[start : start + len(block)] = block
        return whole

    def _empty(self, dtype: np.dtype) -> Any:
        """Return an uninitialized array of the matrix's shape, on the device of its elements."""
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


def trimmed(blocks: Iterator[tuple[int, Any]], first: int, end: int) -> Iterator[tuple[int, Any]]:
    """Yield the rows from `first` to before `end` of blocks that ascend; read no block after those."""
    for start, block in blocks:
        here, there = max(first, start), min(end, start + len(block))
        if here < there:
            yield here, block[here - start : there - start]
        if there == end:
            return


class DerivedMatrix(Matrix):
    """The rows of another matrix, changed one by one by `_convert`; by default, it has as many columns."""

    def __init__(self, source: Matrix, dtype: np.dtype, columns: int | None = None) -> None:
        shape = source.shape[0], source.shape[1] if columns is None else columns
        super().__init__(source.name, shape, dtype, source.device)
        self.file_state, self.column_names, self.numbers = source.file_state, source.column_names, source.numbers
        self.begins_anywhere = source.begins_anywhere
        self._source = source

    @property
    def files(self) -> list[tuple[str, int]]:
        """Return the path and the number of rows of each file of the source."""
        return self._source.files

    def row_name(self, row: int) -> str:
        """Return what messages call a row; see `Matrix.row_name`."""
        return self._source.row_name(row)

    def check_unchanged(self) -> None:
        """Raise `MatrixError` if a file of the source has changed since it was opened."""
        self._source.check_unchanged()

    def _blocks(self, rows: int) -> Iterator[tuple[int, Any]]:
        for start, block in self._source.blocks(rows):
            yield start, self._convert(block, range(start, start + len(block)))

    def _between(self, first: int, end: int, rows: int) -> Iterator[tuple[int, Any]]:
        for start, block in self._source.blocks_between(first, end, rows):
            yield start, self._convert(block, range(start, start + len(block)))

    def _rows(self, numbers: np.ndarray) -> Any:
        return self._convert(self._source._rows(numbers), numbers)

    @abstractmethod
    def _convert(self, block: Any, numbers: Sequence[int] | np.ndarray) -> Any:
        """Return rows `numbers` of this matrix from those of the source."""


class ConvertedMatrix(DerivedMatrix):
    """The elements of another matrix, converted to `dtype`.

    Raises
    ------
    UsageError
        If `dtype` is not floating-point and cannot hold every value of the source's dtype.
    """

    def __init__(self, source: Matrix, dtype: np.dtype) -> None:
        if not (is_floating(dtype) or (dtype.kind in "iu" and np.can_cast(source.dtype, dtype, "safe"))):
            raise UsageError(
                f"{source.name}: its {source.dtype} elements cannot be read as {dtype} without loss: "
                f"ask for a floating-point type, such as float32"
            )
        super().__init__(source, dtype)

    def pieces(self, columns: int) -> Iterator[tuple[int, int, Any]]:
        """Yield (row, column, piece of that row); see `Matrix.pieces`."""
        for row, column, piece in self._source.pieces(columns):
            yield row, column, self._convert(piece, [row])

    def _empty(self, dtype: np.dtype) -> Any:
        return self._source._empty(dtype)

    def _convert(self, block: Any, numbers: Sequence[int] | np.ndarray) -> Any:
        """Return the block in `dtype`; error messages name rows by `numbers`."""
        with current_device(block), np.errstate(over="ignore"):  # overflow is reported below, by row and column
            converted = block.astype(self.dtype)
            if np.can_cast(block.dtype, self.dtype, "safe"):
                return converted
            overflown = np.isfinite(block) & ~np.isfinite(converted)
            if not bool(overflown.any()):
                return converted
            row, column = divmod(int(overflown.argmax()), block.shape[1])
            value = float(block[row, column])
        raise MatrixError(
            f"{self.name}: {self.row_name(int(numbers[row]))}, column {column} is {value:g} (counted from 0), "
            f"too large for {self.dtype}: ask for a wider type, or scale the data"
        )
