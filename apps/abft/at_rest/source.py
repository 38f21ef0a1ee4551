"""Matrices in arrays and files as sources that are read in blocks of rows, or as single bytes at given offsets."""

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np

from tsapps.kernels.arrays import as_array, kind_of, to_host

__all__ = [
    "ArraySource",
    "Progress",
    "Source",
    "as_source",
    "bytes_at",
    "bytes_of",
    "name_of",
    "parts",
    "whole_on_gpu",
]

#: A callback: a pass over a matrix calls it with the number of bytes that the pass has read so far.
Progress = Callable[[int], None]

# Target size in bytes of a block of rows. A block of fewer than _LEAST_ROWS rows is too small for fast matrix products.
# So if rows are long, a block has up to _LEAST_ROWS rows, but at most _MOST_PART_BYTES bytes.
_PART_BYTES, _MOST_PART_BYTES, _LEAST_ROWS = 1 << 24, 1 << 26, 32
# Maximum number of elements per piece of a row longer than _MOST_PART_BYTES: a multiple of all block sizes of weighted
# sums.
_PART_COLUMNS = 1 << 20


class Source(Protocol):
    """A matrix that can be read repeatedly in blocks of rows, such as a result of `open_matrix`.

    Attributes
    ----------
    shape : tuple of int
        The shape (m, n) of the matrix.
    dtype : numpy.dtype
        The type of the elements, in the machine's byte order.
    """

    shape: tuple[int, int]
    dtype: np.dtype

    def blocks(self, rows: int) -> Iterator[tuple[int, Any]]:
        """Yield (first row, C-contiguous block of at most `rows` rows), in order."""

    def rows(self, indices: np.ndarray) -> Any:
        """Return the rows with these indices, in this order, C-contiguous."""

    def pieces(self, columns: int) -> Iterator[tuple[int, int, Any]]:
        """Yield (row, column, piece of shape (1, at most `columns`)) of every row, in order."""


class ArraySource:
    """A source that reads a NumPy or CuPy array of shape (m, n), of any strides and byte order."""

    name = "the array in memory"

    def __init__(self, array: Any) -> None:
        self.array = array
        self.shape: tuple[int, int] = (int(array.shape[0]), int(array.shape[1]))
        self.dtype = np.dtype(array.dtype).newbyteorder("=")

    def blocks(self, rows: int) -> Iterator[tuple[int, Any]]:
        """Yield (first row, C-contiguous block of at most `rows` rows), in order."""
        for start in range(0, self.shape[0], rows):
            yield start, self._plain(slice(start, start + rows))

    def rows(self, indices: np.ndarray) -> Any:
        """Return the rows with these indices, in this order, C-contiguous."""
        return self._plain(indices)

    def pieces(self, columns: int) -> Iterator[tuple[int, int, Any]]:
        """Yield (row, column, piece of shape (1, at most `columns`)) of every row, in order."""
        for row in range(self.shape[0]):
            for column in range(0, self.shape[1], columns):
                yield row, column, self._plain((slice(row, row + 1), slice(column, column + columns)))

    def in_place(self) -> Any:
        """Return the array if it is row-major and in the machine's byte order, at any address; otherwise None."""
        return self.array if self.array.flags.c_contiguous and self.array.dtype == self.dtype else None

    def _plain(self, which: Any) -> Any:
        """Return the elements at an index expression, C-contiguous and in the machine's byte order."""
        if isinstance(self.array, np.ndarray):
            return np.require(self.array[which], self.dtype, ["C", "A"])
        import cupy

        with self.array.device:
            which = cupy.asarray(which) if isinstance(which, np.ndarray) else which
            # Copy the bits as integers: CuPy transposes floating-point arrays by cuBLAS, which alters NaNs.
            bits = self.array.view(f"u{self.dtype.itemsize}")[which]
            return cupy.ascontiguousarray(bits).view(self.array.dtype)


def as_source(X: Any) -> Source:
    """View an array of any library as a source; return a source unchanged.

    Parameters
    ----------
    X : array of any library, or Source
        One-dimensional arrays become a matrix of one row.

    Raises
    ------
    TypeError
        If X is neither an array nor a source, or its dtype is not an integer or floating-point type.
    ValueError
        If X is empty, or has more than two dimensions.
    """
    if kind_of(X) is None and hasattr(X, "blocks") and hasattr(X, "rows"):
        return X
    array = as_array(X)
    if array.ndim not in (1, 2) or array.size == 0:
        raise ValueError(
            f"an array of shape {tuple(array.shape)} has no checksums; expected one or two dimensions and at least one "
            f"element: reshape it, for example with X.reshape(len(X), -1)"
        )
    if np.dtype(array.dtype).kind not in "iuf" and np.dtype(array.dtype).name != "bfloat16":
        raise TypeError(
            f"an array of {array.dtype} has no checksums; expected integers or floating-point numbers: "
            f"view it as such, for example with X.view('uint8')"
        )
    return ArraySource(array if array.ndim == 2 else array[None, :])


def whole_on_gpu(source: Any) -> Any | None:
    """Return the CuPy array that holds the whole matrix of a source; None if there is no such array."""
    array = getattr(source, "array", None)
    return None if array is None or isinstance(array, np.ndarray) or not hasattr(array, "device") else array


def name_of(source: Any) -> str:
    """Return the name by which messages call a source."""
    return getattr(source, "name", "the matrix")


def bytes_of(source: Source) -> int:
    """Return the number of bytes of a source's elements."""
    return source.shape[0] * source.shape[1] * source.dtype.itemsize


def parts(source: Source, progress: Progress | None = None) -> Iterator[tuple[int, int, np.ndarray]]:
    """Read a source once: yield (row, column, elements) in row-major order, in host memory, some MiB at a time.

    Parameters
    ----------
    source : Source
    progress : callable, optional
        Called with the number of bytes that the caller has processed so far.

    Yields
    ------
    row, column : int
        Indices of the first of the elements; the column is 0 or a multiple of 2²⁰.
    elements : numpy.ndarray of two dimensions
        Whole rows, or a piece of one row; C-contiguous.
    """
    row_bytes = source.shape[1] * source.dtype.itemsize
    pieces: Iterator[tuple[int, int, Any]]
    if row_bytes > _MOST_PART_BYTES:
        pieces = source.pieces(_PART_COLUMNS)
    else:
        rows = max(1, _PART_BYTES // row_bytes, min(_LEAST_ROWS, _MOST_PART_BYTES // row_bytes))
        pieces = ((start, 0, block) for start, block in source.blocks(rows))
    done = 0
    for row, column, piece in pieces:
        elements = to_host(piece)
        yield row, column, elements
        done += elements.nbytes
        if progress is not None:
            progress(done)


def bytes_at(source: Source, offsets: np.ndarray) -> np.ndarray:
    """Return the bytes of a source at ascending offsets.

    A source that has `bytes_at` reads them itself. Otherwise, only the rows that contain these bytes are read if they
    have at most `_PART_BYTES` bytes; if they have more, all rows are.

    Returns
    -------
    numpy.ndarray of shape (k,), uint8
    """
    if hasattr(source, "bytes_at"):
        return source.bytes_at(offsets)
    row_bytes = source.shape[1] * source.dtype.itemsize
    rows, places = np.divmod(offsets, row_bytes)
    wanted = np.unique(rows)
    if len(wanted) * row_bytes <= _PART_BYTES:
        content = to_host(source.rows(wanted)).reshape(-1).view(np.uint8)
        return content[np.searchsorted(wanted, rows) * row_bytes + places]
    found = np.empty(len(offsets), np.uint8)
    begin = first = 0
    for _, _, elements in parts(source):
        last = int(np.searchsorted(offsets, begin + elements.nbytes))
        found[first:last] = elements.reshape(-1).view(np.uint8)[offsets[first:last] - begin]
        begin, first = begin + elements.nbytes, last
    return found
