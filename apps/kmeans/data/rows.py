"""`Rows`: a matrix that is read in blocks of rows; implementations for arrays, sparse matrices and rescaled rows.

Any object with the members of `Rows` is accepted; `tsapps.open_matrix` returns one for a file of any size.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from importlib import import_module
from typing import Any, Protocol, runtime_checkable

import numpy as np

from tsapps.kernels.arrays import as_array, is_sparse, kind_of, refuse_masked, to_host

__all__ = [
    "ArrayRows",
    "Reader",
    "RescaledRows",
    "Rows",
    "SparseRows",
    "UnitRows",
    "as_numbers",
    "as_rows",
    "check_finite",
    "check_real",
    "in_place",
    "is_plain",
    "readers",
    "row_name",
    "unit",
    "unscaled",
]

#: A function that copies a slice of a block's rows into an array; several threads may call it at the same time.
Reader = Callable[[slice, np.ndarray], None]


def check_real(dtype: np.dtype, name: str) -> None:
    """Raise ValueError if a dtype is complex or a float wider than float64; `name` is the array in the message."""
    if dtype.kind == "c":
        raise ValueError(  # scikit-learn's estimator checks expect the words in parentheses
            f"{name} has dtype {dtype}; expected real numbers (Complex data not supported): use its real part, or "
            f"both parts as columns"
        )
    if dtype.kind == "f" and dtype.itemsize > 8:
        raise ValueError(
            f"{name} has dtype {dtype}; expected float64 or narrower: convert it, for example with astype('float64')"
        )


def is_plain(X: Any, name: str = "X") -> bool:
    """Return True if X is an array of real numbers in native byte order, which engines read without conversion.

    Raises
    ------
    ValueError
        If X is masked, complex or wider than float64; `name` is the array in the message.
    """
    if kind_of(X) in (None, "frame"):
        refuse_masked(X)
        return False
    dtype = as_array(X).dtype
    check_real(dtype, name)
    return dtype.isnative and (dtype.kind in "fiub" or dtype.name == "bfloat16")


def as_numbers(X: Any, name: str = "X") -> Any:
    """Return X as an array that engines can read; if conversion is needed, scikit-learn's `check_array` does it.

    Parameters
    ----------
    X : array of any library, frame, or list of any depth
    name : str
        Name of X in error messages.

    Returns
    -------
    numpy.ndarray or cupy.ndarray
        X without a copy if ``is_plain(X)``. Otherwise a float32 array for a frame of float32, and a float64 array for
        other frames, lists, Python objects, text and numbers in another byte order.

    Raises
    ------
    ValueError
        If X is masked, complex or wider than float64, or an element is not a number.
    """
    if is_plain(X, name):
        return as_array(X)
    from sklearn.utils import check_array

    # These checks of scikit-learn are off, because the callers check NaN, shapes and sizes.
    checks = {"ensure_all_finite": False, "ensure_2d": False, "allow_nd": True}
    least = {"ensure_min_samples": 0, "ensure_min_features": 0}
    return check_array(X, dtype=[np.float64, np.float32], input_name=name, **checks, **least)


@runtime_checkable
class Rows(Protocol):
    """A matrix of shape (n, d) that can be read in blocks of rows any number of times.

    Attributes
    ----------
    name : str
        Name of the matrix in error messages.
    shape : tuple of int
        (n, d).
    dtype : numpy.dtype
        The type of the elements, in native byte order.
    device : int or None
        Index of the GPU that holds the blocks; None if they are in host memory.
    """

    name: str
    shape: tuple[int, int]
    dtype: np.dtype
    device: int | None

    def blocks(self, rows: int) -> Iterator[tuple[int, Any]]:
        """Yield (first row, block of at most `rows` rows), in row order.

        Blocks on a GPU have `rows` rows each, except the last.
        """

    def rows(self, indices: np.ndarray) -> Any:
        """Return the rows with these indices, in the order of the indices."""


def readers(source: Any, rows: int) -> Iterator[tuple[int, int, Reader]]:
    """Yield (first row, number of rows, `Reader`) for each block of a host matrix.

    If `source` has a method ``read_into``, a reader reads the file directly into the caller's array. This saves a copy,
    and several threads can read a block in parallel.

    Parameters
    ----------
    source : Rows
        The matrix, in host memory or in a file.
    rows : int
        Maximum number of rows per block.
    """
    if not hasattr(source, "read_into"):
        for start, block in source.blocks(rows):
            yield start, len(block), partial(_copy_rows, block)
        return
    source.check_unchanged()
    for start in range(0, source.shape[0], rows):
        count = min(rows, source.shape[0] - start)
        yield start, count, partial(_read_rows, source, start)
    source.check_unchanged()


def _copy_rows(block: np.ndarray, part: slice, out: np.ndarray) -> None:
    np.copyto(out, block[part])


def _read_rows(source: Any, start: int, part: slice, out: np.ndarray) -> None:
    source.read_into(start + part.start, out)


def in_place(source: Any) -> np.ndarray | None:
    """Return a host matrix as one array, if it has a method ``in_place``; see `tsapps.matrix.base.Matrix.in_place`."""
    array: np.ndarray | None = source.in_place() if hasattr(source, "in_place") else None
    return array


def row_name(rows: Any, row: int) -> str:
    """Return what messages call a row: its number, or what a matrix with a method ``row_name`` calls it."""
    return str(rows.row_name(row)) if hasattr(rows, "row_name") else f"row {row}"


def check_finite(block: Any, source: Rows, start: int = 0) -> None:
    """Raise ValueError if a block has a NaN or an infinity; the message names the row and column of the first.

    Parameters
    ----------
    block : array of shape (m, d), on a CPU or a GPU
        Rows of `source` from row `start` on.
    source : Rows
    start : int
    """
    finite = np.isfinite(block)  # by CuPy for its arrays
    if not bool(finite.all()):
        row, column = np.argwhere(~to_host(finite))[0]
        where = f"{source.name}: {row_name(source, start + int(row))}, column {column}"
        found = f"is {to_host(block)[row, column]}"
        raise ValueError(f"{where} {found}: K-means needs finite numbers; remove or replace such rows first")


class ArrayRows:
    """A NumPy or CuPy array of shape (n, d)."""

    def __init__(self, array: Any, name: str = "X") -> None:
        self.array = array
        self.name = name
        self.shape = array.shape
        self.dtype = array.dtype
        self.device = None if isinstance(array, np.ndarray) else int(array.device.id)

    @cached_property
    def on_host(self) -> np.ndarray:
        """The array in host memory; if it is on a GPU, it is copied on first use."""
        return to_host(self.array)

    def in_place(self) -> np.ndarray | None:
        """Return the array if it is row-major and in host memory; else None."""
        plain = self.device is None and self.array.flags.c_contiguous and self.array.flags.aligned
        return self.array if plain else None

    def blocks(self, rows: int) -> Iterator[tuple[int, Any]]:
        """Yield (first row, view of at most `rows` rows), in row order."""
        for start in range(0, self.shape[0], rows):
            yield start, self.array[start : start + rows]

    def rows(self, indices: np.ndarray) -> Any:
        """Return the rows with these indices, in the order of the indices; a view if there is one index."""
        if len(indices) == 1:
            return self.array[indices[0] : indices[0] + 1]
        if not isinstance(self.array, np.ndarray):
            import cupy

            indices = cupy.asarray(indices)
        return self.array[indices]


class SparseRows:
    """A SciPy or CuPy CSR matrix of shape (n, d), converted to dense blocks."""

    def __init__(self, matrix: Any, name: str = "X") -> None:
        self.matrix = matrix
        self.name = name
        self.shape = matrix.shape
        self.dtype = matrix.dtype
        self.device = None if isinstance(matrix.data, np.ndarray) else int(matrix.data.device.id)

    def blocks(self, rows: int) -> Iterator[tuple[int, Any]]:
        """Yield (first row, dense block of at most `rows` rows), in row order."""
        for start in range(0, self.shape[0], rows):
            yield start, self.matrix[start : start + rows].toarray()

    def rows(self, indices: np.ndarray) -> Any:
        """Return the rows with these indices, dense, in the order of the indices."""
        return self.matrix[indices].toarray()


class RescaledRows(ABC):
    """The rows of another matrix, rescaled on every read; the other matrix is never written.

    Parameters
    ----------
    source : Rows
        The other matrix.
    dtype : numpy.dtype
        The type of the rescaled rows.
    """

    def __init__(self, source: Rows, dtype: np.dtype) -> None:
        self.source = source
        self.name = source.name
        self.shape = source.shape
        self.dtype = np.dtype(dtype)
        self.device = source.device

    def blocks(self, rows: int) -> Iterator[tuple[int, Any]]:
        """Yield (first row, block of at most `rows` rescaled rows), in row order."""
        return self.scaled(self.source.blocks(rows))

    def scaled(self, blocks: Iterator[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
        """Yield (first row, rescaled block) for each block of the other matrix, on the device that holds the block."""
        for start, block in blocks:
            yield start, self._scaled(self._own(block), range(start, start + len(block)))

    def row_name(self, row: int) -> str:
        """Return what messages call a row; see `row_name`."""
        return row_name(self.source, row)

    def rows(self, indices: np.ndarray) -> Any:
        """Return the rows with these indices, rescaled, in the order of the indices."""
        return self._scaled(self._own(self.source.rows(indices)), indices)

    def _own(self, block: Any) -> Any:
        return block.astype(self.dtype, order="C", copy=False)

    @abstractmethod
    def _scaled(self, block: Any, indices: Sequence[int] | np.ndarray) -> Any:
        """Rescale a block of type `dtype`; `indices` are the indices of its rows."""


class UnitRows(RescaledRows):
    """The rows of another matrix, each scaled to norm 1.

    Reading raises ValueError if a row is zero, or has a NaN or an infinity; the message names the first such row.
    """

    def _scaled(self, block: Any, indices: Sequence[int] | np.ndarray) -> Any:
        largest = abs(block).max(axis=1)
        usable = (largest > 0) & (largest < np.inf)
        if not bool(usable.all()):
            first = int(np.flatnonzero(~to_host(usable))[0])
            self._refuse(int(indices[first]), to_host(block[first]))
        return unit(block)

    def _refuse(self, index: int, row: np.ndarray) -> None:
        if not row.any():
            raise ValueError(
                f"{self.name}: {self.row_name(index)} is zero, and has no direction: metric='cosine' needs nonzero "
                "rows; remove such rows first"
            )
        column = int(np.flatnonzero(~np.isfinite(row))[0])
        raise ValueError(
            f"{self.name}: {self.row_name(index)}, column {column} is {row[column]}: K-means needs finite numbers; "
            "remove or replace such rows first"
        )


def unscaled(rows: Rows) -> Rows:
    """Return the matrix whose rows `RescaledRows` rescale; other rows themselves."""
    return rows.source if isinstance(rows, RescaledRows) else rows


def unit(vectors: Any) -> Any:
    """Return nonzero vectors, a NumPy or CuPy array of shape (n, d), scaled to norm 1."""
    xp: Any = np if isinstance(vectors, np.ndarray) else import_module("cupy")
    # Vectors are scaled by a power of two first: this is exact, and prevents overflow of the squares.
    _, exponents = xp.frexp(abs(vectors).max(axis=1))
    scaled = xp.ldexp(vectors, -exponents[:, np.newaxis])
    norms = xp.sqrt(_sum_of_each(scaled * scaled))
    scaled /= norms.astype(vectors.dtype)[:, np.newaxis]
    return scaled


def _sum_of_each(terms: Any) -> Any:
    """Return the sum of each row of (n, d), float64, in an order that NumPy and CuPy share, unlike that of their sums.

    The halves of a row are added element by element until one number is left.
    """
    terms = terms.astype(np.float64) if terms.shape[1] == 1 else terms
    while terms.shape[1] > 1:
        half, odd = terms.shape[1] // 2, terms.shape[1] % 2
        last = terms[:, -1:]
        terms = terms[:, :half].astype(np.float64, copy=False) + terms[:, half : 2 * half]
        if odd:
            terms[:, :1] += last
    return terms[:, 0]


def as_rows(X: Any) -> Rows:
    """Return X as a `Rows`, a matrix that is read in blocks of rows.

    Parameters
    ----------
    X : Rows, array of any library, frame, list or sparse matrix

    Returns
    -------
    Rows
        X itself if it is a `Rows`.

    Raises
    ------
    ValueError
        If X is not two-dimensional, is empty, or does not hold real numbers in native byte order.
    """
    rows: Rows
    if isinstance(X, Rows):
        rows = X
    elif is_sparse(X):
        rows = SparseRows(X.tocsr())
    else:
        rows = ArrayRows(as_numbers(X))
    if len(rows.shape) != 2:
        raise ValueError(f"X has shape {rows.shape}; expected a matrix of shape (n_samples, n_features)")
    if 0 in rows.shape:
        raise ValueError(f"X has shape {rows.shape}; expected at least one sample and one feature")
    check_real(rows.dtype, rows.name)
    if not rows.dtype.isnative or (rows.dtype.kind not in "fiub" and rows.dtype.name != "bfloat16"):
        raise ValueError(f"{rows.name} has dtype {rows.dtype}; expected real numbers in the machine's byte order")
    return rows
