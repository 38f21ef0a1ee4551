"""Validation of matrices: each check raises a `MatrixError` that says how to fix the input."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np

from tsapps.errors import EmptyMatrixError, MatrixError, UsageError
from tsapps.kernels.arrays import as_array, kind_of, to_host
from tsapps.kernels.system.host_memory import available_host_memory
from tsapps.kernels.system.printable import shown

__all__ = [
    "changed",
    "check_dtype",
    "check_finite",
    "check_indices",
    "check_memory",
    "check_shape",
    "current_device",
    "damaged",
    "is_floating",
    "readable",
    "unreadable",
]


# Maximum number of record fields that a message names.
_MOST_FIELDS = 10


def is_floating(dtype: np.dtype) -> bool:
    """Return whether `dtype` is a floating-point type of NumPy or bfloat16: the types that can hold NaN."""
    return dtype.kind == "f" or dtype.name == "bfloat16"


def check_dtype(dtype: np.dtype, name: str) -> None:
    """Raise `MatrixError` unless `dtype` is an integer or floating-point type."""
    if dtype.names is not None:
        fields = ", ".join(map(shown, dtype.names[:_MOST_FIELDS])) + (", …" if len(dtype.names) > _MOST_FIELDS else "")
        raise MatrixError(
            f"{name}: holds records with the fields {fields}; expected plain numbers: save them as columns"
        )
    if dtype.kind in "iu" or is_floating(dtype):
        return
    advice = {
        "b": "convert it, for example with X.astype('uint8')",
        "c": "save the real and the imaginary parts as columns",
        "O": "Python objects are never unpickled; convert it with X.astype('float64'), or keep numeric columns only",
        "V": "if it was bfloat16, save it as .safetensors or as float32",
    }.get(dtype.kind, "keep numeric columns only")
    raise MatrixError(
        f"{name}: holds elements of type {shown(dtype)}; expected integers or floating-point numbers: {advice}"
    )


def check_shape(shape: Sequence[int], name: str) -> None:
    """Raise `MatrixError` unless `shape` is (n, d) with both at least 1; `EmptyMatrixError` if only n is 0."""
    if len(shape) != 2:
        raise MatrixError(
            f"{name}: holds a {len(shape)}-dimensional array of shape {str(tuple(shape))[:80]}; expected two "
            f"dimensions, (samples, features): reshape it, for example with X.reshape(len(X), -1)"
        )
    if min(shape) < 0:
        raise MatrixError(f"{name}: its header says {shape[0]} × {shape[1]}; a size cannot be negative: write it again")
    if min(shape) == 0:
        error = EmptyMatrixError if shape[1] else MatrixError
        raise error(
            f"{name}: is empty, {shape[0]} × {shape[1]}; expected at least one row and one column: check what wrote it"
        )
    if max(shape) >= 1 << 63:
        raise MatrixError(
            f"{name}: is truncated or damaged: its header says {str(shape[0])[:24]} × {str(shape[1])[:24]}, more than "
            f"any machine can hold: copy it again, or check its format"
        )


def check_finite(block: Any, start: int, name: str, row_name: Callable[[int], str] = "row {}".format) -> None:
    """Raise `MatrixError` for the first NaN or infinity in a block.

    Parameters
    ----------
    block : numpy.ndarray or cupy.ndarray of shape (m, d)
        Integer blocks pass without being read.
    start : int
        Index of the block's first row in the matrix.
    name : str
        Name of the matrix in the message.
    row_name : callable
        Returns what the message calls a row, from its index.

    Raises
    ------
    MatrixError
        Names the row and the column, both counted from 0.
    """
    if not is_floating(block.dtype):
        return
    with current_device(block):
        finite = np.isfinite(block)  # dispatches to CuPy for CuPy arrays
        if bool(finite.all()):
            return
        row, column = divmod(int(finite.argmin()), block.shape[1])
        value = float(block[row, column])
    raise MatrixError(
        f"{name}: {row_name(start + row)}, column {column} is {value} (counted from 0); "
        f"every element must be a finite number: drop such rows, or fill them in"
    )


def current_device(block: Any) -> AbstractContextManager[Any]:
    """Return a context that makes the GPU of a CuPy block current; for host blocks, a context without effect."""
    return nullcontext() if isinstance(block, np.ndarray) else block.device


def check_indices(indices: Any, n: int, name: str) -> np.ndarray:
    """Return row indices as a one-dimensional NumPy array; raise unless they lie in 0 to n - 1."""
    numbers = np.asarray(indices) if kind_of(indices) is None else to_host(as_array(indices))
    if numbers.ndim == 1 and numbers.size == 0:
        return np.empty(0, np.intp)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        raise IndexError(
            f"row numbers must be a one-dimensional array of integers, got {numbers.ndim} dimensions of {numbers.dtype}"
        )
    for number in (int(numbers.min()), int(numbers.max())):
        if not 0 <= number < n:
            raise IndexError(f"{name}: row {number} is out of range: expected 0 to {n - 1}")
    return numbers.astype(np.intp, copy=False)


def check_memory(name: str, size: int, what: str) -> None:
    """Raise `MemoryError` if `size` bytes for `what` are not available: otherwise the system might kill the process."""
    available = available_host_memory()
    if size > available:
        raise MemoryError(f"{name}: {what} takes {size:,} bytes of memory, and {available:,} are available")


def unreadable(name: str, error: Exception) -> MatrixError:
    """Return the error for a file that the format's library rejects; the message quotes the library's reason."""
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    return MatrixError(
        f"{name}: cannot be read ({reason}): it is truncated, damaged or of another format: copy it again"
    )


@contextmanager
def readable(name: str, errors: tuple[type[Exception], ...]) -> Iterator[None]:
    """Convert the exceptions of a format's library to the error of `unreadable`; errors of tsapps pass unchanged.

    Parameters
    ----------
    name : str
        Name of the file in the message.
    errors : tuple of exception types
        Exceptions that the library is known to raise for damaged bytes.
    """
    try:
        yield
    except (MatrixError, UsageError):
        raise
    except errors as error:
        raise unreadable(name, error) from error


def changed(name: str) -> MatrixError:
    """Return the error for a file that another program rewrote between two passes."""
    return MatrixError(f"{name}: has changed since it was opened: do not write to it while tsapps reads it")


def damaged(name: str, shape: tuple[int, int], found: str) -> MatrixError:
    """Return the error for a file that does not contain the rows and columns that it announced."""
    return MatrixError(
        f"{name}: has changed or is damaged: its header says {shape[0]} × {shape[1]}, and reading it gave {found}: "
        f"copy it again"
    )
