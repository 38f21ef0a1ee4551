"""The door: which reader a path or an array goes to."""

import os
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from tsapps.errors import MatrixError, MatrixUsageError, UsageError
from tsapps.kernels.system.printable import shown
from tsapps.matrix.base import ConvertedMatrix, Matrix
from tsapps.matrix.binary import BIN_TYPES, VECS_TYPES, open_bin, open_npy, open_vecs
from tsapps.matrix.containers import open_npz, open_safetensors
from tsapps.matrix.hdf5 import open_hdf5
from tsapps.matrix.memory import open_array
from tsapps.matrix.parquet import ParquetMatrix
from tsapps.matrix.text import TextMatrix
from tsapps.matrix.watch import FileState
from tsapps.names import split_name

__all__ = ["EXTENSIONS", "open_matrix"]

# A reader of a format takes a path, and for files of several arrays the wanted one's name or None. It reads no more
# than the header (a text file has none: its lines are counted) and raises MatrixError or OSError.
_SINGLE: dict[str, Callable[[str], Matrix]] = {
    ".npy": open_npy,
    **dict.fromkeys(BIN_TYPES, open_bin),
    **dict.fromkeys(VECS_TYPES, open_vecs),
    ".parquet": ParquetMatrix,
}
_TEXT = (".csv", ".tsv", ".txt")
_SEVERAL: dict[str, Callable[..., Matrix]] = {
    ".npz": open_npz,
    ".h5": open_hdf5,
    ".hdf5": open_hdf5,
    ".safetensors": open_safetensors,
}

EXTENSIONS: tuple[str, ...] = (*_SINGLE, *_TEXT, *_SEVERAL)
"""The extensions that `open_matrix` knows."""


def open_matrix(
    source: Any,
    *,
    dtype: DTypeLike | None = None,
    header: bool | None = None,
    index: bool | None = None,
    allow_external: bool = False,
) -> Matrix:
    """Open a file or an array as a matrix.

    Parameters
    ----------
    source : path-like, array or Matrix
        A file, its format told by its extension (`EXTENSIONS`); for .npz, HDF5 and safetensors the path may end in
        ``:name``, which says which array, and need not where only one array is a matrix. Or an array in memory: NumPy,
        CuPy, torch, an object with ``__cuda_array_interface__`` or DLPack, a pandas or polars frame of numbers
        and bools (missing values are NaN). Masked arrays are refused, even where nothing is masked.
    dtype : numpy dtype, optional
        The dtype that the elements are given in; by default the one they have (float64 for text). Floating-point, or
        wide enough for every value of the dtype that they have.
    allow_external : bool
        Whether to read other files that an HDF5 file names: by external links, and for elements of its datasets. Its
        author may name any file of the machine.
    header : bool, optional
        Whether the first line of a text table is names. By default its form says so: text, or 0, 1, 2, … above numbers
        with a decimal point.
    index : bool, optional
        Whether to leave out the first column of a text table: row numbers or labels. By default it is left out, with a
        warning, if it has no name and counts the rows 0, 1, 2, ….

    Returns
    -------
    Matrix
        Files are read when their rows are asked for, not before.

    Raises
    ------
    MatrixUsageError
        If the path names no matrix: no such file, an unknown extension, no such array in the file, several and no name.
        If a text table can be read in two ways, and `header` or `index` does not say which. It is both a `MatrixError`
        and a `UsageError`.
    MatrixError
        If the file holds no matrix of numbers. Both messages name the file and say what to do.
    UsageError
        If the elements cannot be given in `dtype`, or `header` or `index` is given for anything but a text table.
    TypeError
        If `source` is neither a path nor an array of a known kind.

    Examples
    --------
    >>> import numpy as np
    >>> matrix = open_matrix(np.arange(6.0).reshape(3, 2))
    >>> matrix.shape
    (3, 2)
    >>> [(start, block.tolist()) for start, block in matrix.blocks(2)]
    [(0, [[0.0, 1.0], [2.0, 3.0]]), (2, [[4.0, 5.0]])]
    """
    if isinstance(source, Matrix):
        matrix = source
    elif isinstance(source, (str, os.PathLike)):
        matrix = _open_path(os.fspath(source), header, index, allow_external=allow_external)
    else:
        matrix = open_array(source)
    if (header, index) != (None, None) and (matrix is source or not isinstance(matrix, TextMatrix)):
        raise UsageError(
            f"{matrix.name}: is no file of text; --header and --index are for {', '.join(_TEXT)}: leave them out"
        )
    if dtype is None or np.dtype(dtype) == matrix.dtype:
        return matrix
    return ConvertedMatrix(matrix, np.dtype(dtype))


def _open_path(path: str, header: bool | None, index: bool | None, *, allow_external: bool) -> Matrix:
    file, wanted = split_name(path)
    extension = os.path.splitext(file)[1].lower()
    known = ", ".join(EXTENSIONS)
    if not os.path.exists(file):
        raise MatrixUsageError(f"{path}: no such file: check the path")
    if os.path.isdir(file):
        raise MatrixUsageError(f"{path}: is a directory: name a file in it ({known})")
    if not os.path.isfile(file):
        raise MatrixUsageError(f"{path}: is no regular file: matrices are read more than once, so save it to one first")
    if not os.access(file, os.R_OK):
        raise MatrixUsageError(f"{path}: may not be read by this user: change its permissions")
    if extension not in EXTENSIONS:
        raise MatrixUsageError(f"{path}: has the unknown extension {extension!r}; expected one of {known}: convert it")
    if extension not in _SEVERAL and wanted is not None:
        raise MatrixUsageError(f"{path}: a {extension} file holds one matrix: leave out ':{shown(wanted)}'")
    try:
        state = FileState.of(file)  # before anything is read of it
        if extension in _SEVERAL:
            options = {"allow_external": allow_external} if _SEVERAL[extension] is open_hdf5 else {}
            matrix = _SEVERAL[extension](file, wanted, **options)
        elif extension in _TEXT:
            matrix = TextMatrix(file, header, index)
        else:
            matrix = _SINGLE[extension](file)
        matrix.file_state = state
        return matrix
    except OSError as error:
        raise MatrixError(
            f"{path}: cannot be read: {error.strerror or error}: check the file and its permissions"
        ) from error
