"""`open_matrix`: opens a path or an array with the reader for its format."""

import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from tsapps.errors import EmptyMatrixError, MatrixError, MatrixUsageError, UsageError
from tsapps.kernels.system.logs import logger_of
from tsapps.kernels.system.printable import shown
from tsapps.matrix.base import ConvertedMatrix, Matrix
from tsapps.matrix.binary import BIN_TYPES, VECS_TYPES, open_bin, open_npy, open_vecs
from tsapps.matrix.columns import Column, ColumnChoice, choose_columns, place_of
from tsapps.matrix.containers import open_npz, open_safetensors
from tsapps.matrix.hdf5 import open_hdf5
from tsapps.matrix.joined import joined, matching_files
from tsapps.matrix.memory import open_array
from tsapps.matrix.parquet import ParquetMatrix
from tsapps.matrix.prepared import PickedColumns
from tsapps.matrix.text import TextMatrix
from tsapps.matrix.watch import FileState
from tsapps.names import COMPRESSED_TEXT, TEXT, extension_of, split_name

__all__ = ["EXTENSIONS", "Identifiers", "Opening", "open_columns", "open_matrix"]

_log = logger_of(__name__)
# Readers by extension. A reader takes a path; readers of files with several arrays also take the name of an array, or
# None. A reader reads only the header, or counts the lines of a text file. It raises MatrixError or OSError.
_SINGLE: dict[str, Callable[[str], Matrix]] = {
    ".npy": open_npy,
    **dict.fromkeys(BIN_TYPES, open_bin),
    **dict.fromkeys(VECS_TYPES, open_vecs),
    ".parquet": ParquetMatrix,
}
_SEVERAL: dict[str, Callable[..., Matrix]] = {
    ".npz": open_npz,
    ".h5": open_hdf5,
    ".hdf5": open_hdf5,
    ".safetensors": open_safetensors,
}

EXTENSIONS: tuple[str, ...] = (*_SINGLE, *TEXT, *_SEVERAL)
"""Extensions that `open_matrix` supports; text tables may also be compressed, as .gz, .bz2 or .xz."""
_ALL = (*EXTENSIONS, *COMPRESSED_TEXT)


@dataclass(frozen=True)
class Opening:
    """How files are opened.

    Attributes
    ----------
    header, index, allow_external
        As for `open_matrix`.
    choice : ColumnChoice or None
        The columns that are features; None for all, which must be numbers. Files without names of columns have
        numbers, from 0 on.
    missing : bool
        Whether elements without a value are read as NaN; otherwise they are errors.
    decimal : {".", ","}
        The decimal point of text tables.
    """

    header: bool | None = None
    index: bool | None = None
    allow_external: bool = False
    choice: ColumnChoice | None = None
    missing: bool = False
    decimal: str = "."


def open_matrix(
    source: Any,
    *,
    dtype: DTypeLike | None = None,
    header: bool | None = None,
    index: bool | None = None,
    allow_external: bool = False,
) -> Matrix:
    """Open a file, several files or an array as a matrix.

    Parameters
    ----------
    source : path-like, list of path-like, array or Matrix
        A file, whose extension selects the format (`EXTENSIONS`). For .npz, HDF5 and safetensors the path may end in
        ``:name``, which selects an array; this is optional if only one array is a matrix. Several files are one matrix,
        the rows of one file after those of the other: a directory, or a pattern such as ``points/*.parquet``, of which
        files are sorted by name; or a list of paths, in its order. All files must have the same number of columns, and
        the same dtype unless `dtype` is given; those without rows are left out. Or an array in memory: NumPy, CuPy,
        torch, an object with ``__cuda_array_interface__`` or DLPack, a pandas or polars frame of numbers and bools
        (missing values become NaN). Masked arrays are rejected, even if no element is masked.
    dtype : numpy dtype, optional
        Dtype to convert the elements to; by default the dtype of the source (float64 for text). It must be
        floating-point, or able to hold every value of the source's dtype.
    allow_external : bool
        If True, read other files that an HDF5 file names in external links or as storage of its datasets. The author
        of the file may name any file on the machine.
    header : bool, optional
        True if the first line of a text table holds column names. By default the reader infers it: names are text, or
        0, 1, 2, … above numbers with a decimal point.
    index : bool, optional
        True to skip the first column of a text table: row numbers or labels. By default, a first column without a name
        that counts the rows 0, 1, 2, … is skipped with a warning.

    Returns
    -------
    Matrix
        Rows are read on request, not when the file is opened.

    Raises
    ------
    MatrixUsageError
        If the path does not name a matrix: the file is missing, the extension is unknown, or the array's name is
        missing or ambiguous. Also if a text table is ambiguous and the `header` or `index` that decides is not given.
        This error is both a `MatrixError` and a `UsageError`.
    MatrixError
        If the file does not hold a numeric matrix. The message names the file and says what to do.
    UsageError
        If the elements cannot be converted to `dtype`, or `header` or `index` is given for a file that is not text.
    TypeError
        If `source` is neither a path nor a supported array.

    Examples
    --------
    >>> import numpy as np
    >>> matrix = open_matrix(np.arange(6.0).reshape(3, 2))
    >>> matrix.shape
    (3, 2)
    >>> [(start, block.tolist()) for start, block in matrix.blocks(2)]
    [(0, [[0.0, 1.0], [2.0, 3.0]]), (2, [[4.0, 5.0]])]
    """
    paths = _paths_of(source)
    if paths is None:
        matrix = source if isinstance(source, Matrix) else open_array(source)
        _check_is_text(matrix, header, index, is_text=False)
        return _converted(matrix, dtype)
    began, how = time.perf_counter(), Opening(header, index, allow_external)
    opened = _open_paths(_files_of(paths), how)
    return _as_one([_converted(part, dtype) for part in opened], opened, paths, began)


@dataclass(frozen=True)
class Identifiers:
    """The column that identifies the rows of a matrix: its name, and the files that have it."""

    name: str
    parts: Sequence[Matrix]

    def blocks(self) -> Iterator[Any]:
        """Yield the values in blocks of rows: lists of str, NumPy or Arrow arrays."""
        for part in self.parts:
            part.check_unchanged()
            if isinstance(part, (TextMatrix, ParquetMatrix)):
                yield from part.identifiers()
                part.check_unchanged()
            else:
                column = place_of(self.name, _columns_of(part), part.name, "id")
                yield from (block[:, column] for _, block in part.blocks(part._default_rows()))


def open_columns(source: str, opening: Opening) -> tuple[Matrix, list[Column], Identifiers | None]:
    """Open chosen columns of a file or of several; see `open_matrix`.

    Parameters
    ----------
    source : str
    opening : Opening

    Returns
    -------
    matrix : Matrix
    left_out : list of Column
        Columns that are no features because of what they hold.
    identifiers : Identifiers or None
        The column that identifies rows.

    Raises
    ------
    MatrixUsageError
        As `open_matrix`; also for names that are not those of a column.
    MatrixError
        As `open_matrix`; also if a chosen column does not hold numbers.
    """
    began, choice = time.perf_counter(), opening.choice or ColumnChoice()
    opened = _open_paths(_files_of([source]), opening)
    parts = [part if isinstance(part, (TextMatrix, ParquetMatrix)) else _picked(part, choice) for part in opened]
    identifiers = None if choice.identifier is None else Identifiers(choice.identifier, opened)
    return _as_one(parts, opened, [source], began), getattr(opened[0], "left_out", []), identifiers


def _columns_of(matrix: Matrix) -> list[Column]:
    return [Column(str(number), "numbers") for number in range(matrix.shape[1])]


def _picked(matrix: Matrix, choice: ColumnChoice) -> Matrix:
    """Return the chosen columns of a matrix without names of columns."""
    features, _, _ = choose_columns(_columns_of(matrix), choice.for_tables_without_names, matrix.name)
    return matrix if features == list(range(matrix.shape[1])) else PickedColumns(matrix, features)


def _files_of(paths: Sequence[str]) -> list[str]:
    return [file for path in paths for file in matching_files(path, EXTENSIONS) or [path]]


def _as_one(parts: Sequence[Matrix], opened: Sequence[Matrix], paths: Sequence[str], began: float) -> Matrix:
    """Return the rows of files as one matrix; `parts` are derived from the matrices `opened`, which that `began`."""
    _check_indices(opened)
    matrix = joined(parts, paths[0] if len(paths) == 1 else f"{paths[0]} and others ({len(parts)} files)")
    (n, d), seconds = matrix.shape, time.perf_counter() - began
    _log.info("opened %s: %s × %s %s in %.2f s", matrix.name, f"{n:,}", f"{d:,}", matrix.dtype, seconds)
    return matrix


def _paths_of(source: Any) -> list[str] | None:
    """Return a path, or a list of at least one path, as a list of str; None for any other source."""
    if isinstance(source, (str, os.PathLike)):
        return [os.fspath(source)]
    if isinstance(source, (list, tuple)) and source and all(isinstance(one, (str, os.PathLike)) for one in source):
        return [os.fspath(one) for one in source]
    return None


def _open_paths(files: Sequence[str], how: Opening) -> list[Matrix]:
    """Open files as the parts of one matrix; leave out those without rows, unless all are."""
    parts: list[Matrix] = []
    empty: EmptyMatrixError | None = None
    for file in files:
        try:
            part = _open_path(file, how)
        except EmptyMatrixError as error:
            empty = error
            continue
        _check_is_text(part, how.header, how.index, is_text=isinstance(part, TextMatrix), decimal=how.decimal)
        parts.append(part)
    if empty is not None and not parts:
        raise empty
    return parts


def _check_indices(parts: Sequence[Matrix]) -> None:
    """Warn once of text tables whose first column is skipped as an index; raise if only some of them have one."""
    tables = [part for part in parts if isinstance(part, TextMatrix)]
    skipping = [part for part in tables if part.inferred_index]
    if not skipping:
        return
    why = "it has no name and counts the rows 0, 1, 2, …"
    first, keeping = skipping[0].name, [part.name for part in tables if not part.inferred_index]
    if keeping:
        raise MatrixUsageError(
            f"{first}: its first column looks like an index ({why}), but not that of {keeping[0]}: give --index to "
            f"skip the first column of all, or --no-index to keep it (in Python: index=True or index=False)"
        )
    which = first if len(skipping) == 1 else f"{first} and {len(skipping) - 1} more"
    warnings.warn(
        f"{which}: the first column is skipped as an index: {why}; keep it with --no-index (index=False)", stacklevel=4
    )


def _check_is_text(
    matrix: Matrix, header: bool | None, index: bool | None, *, is_text: bool, decimal: str = "."
) -> None:
    if is_text or (header, index, decimal) == (None, None, "."):
        return
    options = "--header and --index apply" if decimal == "." else "--decimal applies"
    raise UsageError(f"{matrix.name}: is not a text table; {options} to {', '.join(TEXT)}: omit them")


def _converted(matrix: Matrix, dtype: DTypeLike | None) -> Matrix:
    if dtype is None or np.dtype(dtype) == matrix.dtype:
        return matrix
    return ConvertedMatrix(matrix, np.dtype(dtype))


def _open_path(path: str, how: Opening) -> Matrix:
    file, wanted = split_name(path)
    extension = extension_of(file)
    known = ", ".join(EXTENSIONS)
    if not os.path.exists(file):
        raise MatrixUsageError(f"{path}: no such file: check the path")
    if os.path.isdir(file):  # with the name of an array
        raise MatrixUsageError(f"{path}: is a directory: name a file in it ({known})")
    if not os.path.isfile(file):
        raise MatrixUsageError(
            f"{path}: is not a regular file: matrices are read more than once, so save it to one first"
        )
    if not os.access(file, os.R_OK):
        raise MatrixUsageError(f"{path}: is not readable by this user: change its permissions")
    if extension not in _ALL:
        raise MatrixUsageError(f"{path}: has the unknown extension {extension!r}; expected one of {known}: convert it")
    if extension not in _SEVERAL and wanted is not None:
        raise MatrixUsageError(f"{path}: a {extension} file holds one matrix: omit ':{shown(wanted)}'")
    try:
        state = FileState.of(file)  # before the first read
        if extension in _SEVERAL:
            options = {"allow_external": how.allow_external} if _SEVERAL[extension] is open_hdf5 else {}
            matrix = _SEVERAL[extension](file, wanted, **options)
        elif extension in (*TEXT, *COMPRESSED_TEXT):
            given: dict[str, Any] = {"choice": how.choice, "missing": how.missing, "decimal": how.decimal}
            matrix = TextMatrix(file, how.header, how.index, **given)
        elif extension == ".parquet":
            matrix = ParquetMatrix(file, choice=how.choice, missing=how.missing)
        else:
            matrix = _SINGLE[extension](file)
        matrix.file_state = state
        return matrix
    except OSError as error:
        raise MatrixError(
            f"{path}: cannot be read: {error.strerror or error}: check the file and its permissions"
        ) from error
