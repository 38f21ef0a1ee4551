"""Several files as one matrix: the rows of the first file, then those of the next one, and so on."""

import os
from collections.abc import Iterator, Sequence
from glob import escape, glob, has_magic
from typing import Any

import numpy as np

from tsapps.errors import MatrixError, MatrixUsageError
from tsapps.kernels.system.printable import shown
from tsapps.matrix.base import Matrix
from tsapps.matrix.checks import check_finite, check_indices
from tsapps.matrix.stored import LEAST_AHEAD, StoredMatrix, read_ahead
from tsapps.matrix.table_form import is_number
from tsapps.names import COMPRESSED_TEXT, extension_of, shell_spelling, split_name

__all__ = ["JoinedMatrix", "joined", "matching_files"]


def matching_files(path: str, extensions: Sequence[str]) -> list[str] | None:
    """Return the files of a directory, or those that match a pattern; None if `path` is neither.

    Parameters
    ----------
    path : str
        A directory, of which the files with known extensions count; or a pattern with ``*``, ``?``, ``[…]``, where
        ``**`` also matches directories. ``:NAME`` at the end of a pattern names an array of every file. A file that
        exists under such a name is no pattern.
    extensions : sequence of str
        The known extensions, in lower case.

    Returns
    -------
    list of str or None
        Sorted by code points. Hidden files are left out.

    Raises
    ------
    MatrixUsageError
        If there is no such file, a directory has files of several formats or cannot be read, or a file matches twice.
    """
    if os.path.isdir(path):
        return _files_in(path, extensions)
    if os.path.exists(split_name(path)[0]) or not has_magic(path):
        return None
    found = _matches(path, "")
    place = path.rfind(":")
    while not found and place > 0:
        found = _matches(path[:place], path[place:]) if has_magic(path[:place]) else []
        place = path.rfind(":", 0, place)
    if not found:
        raise MatrixUsageError(f"{path}: no such file, and none matches this pattern: check it")
    return found


def _matches(pattern: str, name: str) -> list[str]:
    found = sorted({path for path in glob(pattern, recursive=True) if not os.path.isdir(path)})
    seen: dict[tuple[int, int], str] = {}
    for path in filter(os.path.exists, found):
        state = os.stat(path)
        first = seen.setdefault((state.st_dev, state.st_ino), path)
        if first != path:
            same = f"{shown(first)} and {shown(path)}"
            raise MatrixUsageError(f"{pattern}: matches {same}, which are one file: narrow the pattern")
    return [f"{path}{name}" for path in found]


def _files_in(directory: str, extensions: Sequence[str]) -> list[str]:
    files: dict[str, list[str]] = {}
    try:
        entries = list(os.scandir(directory))
    except PermissionError as error:
        raise MatrixUsageError(f"{directory}: is not readable by this user: change its permissions") from error
    for entry in entries:
        extension = extension_of(entry.name)
        if (
            (extension in extensions or extension in COMPRESSED_TEXT)
            and not entry.name.startswith(".")
            and not entry.is_dir()
        ):
            files.setdefault(".h5" if extension == ".hdf5" else extension, []).append(entry.path)
    if not files:
        raise MatrixUsageError(
            f"{directory}: is a directory without a matrix: name a file ({', '.join(extensions)}), or a directory of "
            f"such files"
        )
    if len(files) > 1:
        example = shell_spelling(os.path.join(escape(directory), f"*{min(files)}"))
        raise MatrixUsageError(
            f"{directory}: has files of several formats ({', '.join(sorted(files))}): name those of one matrix by a "
            f"pattern, such as {example}"
        )
    (found,) = files.values()
    return sorted(found)


def joined(parts: Sequence[Matrix], name: str) -> Matrix:
    """Return the rows of several matrices as one matrix; a single one is returned itself.

    Raises
    ------
    MatrixError
        If the matrices do not have the same columns and the same dtype.
    MatrixUsageError
        If only some of several text tables have a first line of names, and these may be numbers.
    """
    if len(parts) == 1:
        return parts[0]
    _check_columns(parts)
    stored = [part for part in parts if isinstance(part, StoredMatrix)]
    return _JoinedStored(stored, name) if len(stored) == len(parts) else JoinedMatrix(parts, name)


def _check_columns(parts: Sequence[Matrix]) -> None:
    first = parts[0]
    named = next((part for part in parts if part.column_names is not None), first)
    for part in parts:
        if part.column_names not in (None, named.column_names):
            raise MatrixError(
                f"{part.name}: its columns of numbers are {_listed(part)}, but those of {named.name} are "
                f"{_listed(named)}: choose columns that all files have, in one order (tsapps kmeans: --columns)"
            )
        if (part.shape[1], part.dtype) != (first.shape[1], first.dtype):
            raise MatrixError(
                f"{part.name}: has {part.shape[1]} columns of {part.dtype}, but {first.name} has {first.shape[1]} of "
                f"{first.dtype}: files of one matrix need the same columns and the same type: convert one of them (in "
                f"Python, open_matrix with dtype converts all)"
            )
    without = next((part for part in parts if part.column_names is None), None)
    if without is not None and named.column_names is not None and all(map(is_number, named.column_names)):
        raise MatrixUsageError(
            f"{named.name}: its first line may be names or numbers, and {without.name} has no names: give --header or "
            f"--no-header (in Python: header=True or header=False)"
        )


def _listed(matrix: Matrix) -> str:
    return shown(", ".join(matrix.column_names or ()))


class JoinedMatrix(Matrix):
    """The rows of several matrices in host memory or files, one matrix after the other.

    The blocks are those of one file with all rows, so that no result depends on how the rows are cut into files.

    Parameters
    ----------
    parts : sequence of Matrix
        Of the same number of columns and the same dtype.
    name : str

    Attributes
    ----------
    parts : tuple of Matrix
    starts : numpy.ndarray of int64, shape (parts + 1,)
        The first row of each matrix, and the number of all rows.
    """

    def __init__(self, parts: Sequence[Matrix], name: str) -> None:
        self.parts = tuple(parts)
        self.starts = np.cumsum([0, *(part.shape[0] for part in parts)])
        self.begins_anywhere = all(part.begins_anywhere for part in parts)
        super().__init__(name, (int(self.starts[-1]), parts[0].shape[1]), parts[0].dtype)

    @property
    def files(self) -> list[tuple[str, int]]:
        """Return the path and the number of rows of each file."""
        return [file for part in self.parts for file in part.files]

    def check_unchanged(self) -> None:
        """Raise `MatrixError` if a file has changed since it was opened."""
        for part in self.parts:
            part.check_unchanged()

    def row_name(self, row: int) -> str:
        """Return what messages call a row: its number in the matrix, and in its file."""
        part = self._part_of(row)
        return f"row {row} ({self.parts[part].row_name(row - int(self.starts[part]))} of {self.parts[part].name})"

    def rows(self, indices: Any) -> Any:
        """Return the rows with these indices, in this order; of unread files, no change is detected."""
        return self._rows(check_indices(indices, self.shape[0], self.name))

    def pieces(self, columns: int) -> Iterator[tuple[int, int, Any]]:
        """Yield (row, first column, elements of shape (1, at most `columns`)); see `Matrix.pieces`."""
        for start, part in self._with_starts():
            for row, column, piece in part.pieces(columns):
                yield start + row, column, piece

    def _with_starts(self) -> Iterator[tuple[int, Matrix]]:
        return zip(self.starts[:-1].tolist(), self.parts, strict=True)

    def _part_of(self, row: int) -> int:
        return int(np.searchsorted(self.starts, row, side="right")) - 1

    def _blocks(self, rows: int) -> Iterator[tuple[int, np.ndarray]]:
        n = self.shape[0]
        pending = _Rows(block for part in self.parts for _, block in part.blocks(min(rows, part.shape[0])))
        for start in range(0, n, rows):
            yield start, pending.take(min(rows, n - start))

    def _between(self, first: int, end: int, rows: int) -> Iterator[tuple[int, np.ndarray]]:
        for begin, part in self._with_starts():
            here, there = max(first - begin, 0), min(end - begin, part.shape[0])
            if here < there:
                for start, block in part.blocks_between(here, there, rows):
                    yield begin + start, block

    def _rows(self, numbers: np.ndarray) -> np.ndarray:
        out = np.empty((len(numbers), self.shape[1]), self.dtype)
        owners = np.searchsorted(self.starts, numbers, side="right") - 1
        order = np.argsort(owners, kind="stable")
        for mine in np.split(order, np.flatnonzero(np.diff(owners[order])) + 1) if len(order) else ():
            owner = int(owners[mine[0]])
            out[mine] = self.parts[owner].rows(numbers[mine] - self.starts[owner])
        return out

    def _read(self) -> np.ndarray:
        whole: np.ndarray = self._empty(self.dtype)
        for begin, part in self._with_starts():
            for start, block in part.blocks(part._default_rows()):
                check_finite(block, start, part.name, part.row_name)
                whole[begin + start : begin + start + len(block)] = block
        return whole


class _JoinedStored(JoinedMatrix):
    """The rows of files of plain bytes, which are read from any row on."""

    parts: tuple[StoredMatrix, ...]

    def read_into(self, start: int, out: np.ndarray) -> None:
        """Read len(out) rows from row `start` on into `out`, C-contiguous and of the matrix's dtype; thread-safe."""
        done, number = 0, self._part_of(start)
        while done < len(out):
            first = start + done - int(self.starts[number])
            count = min(len(out) - done, self.parts[number].shape[0] - first)
            self.parts[number].read_into(first, out[done : done + count])
            done, number = done + count, number + 1

    def _blocks(self, rows: int) -> Iterator[tuple[int, np.ndarray]]:
        starts = range(0, self.shape[0], rows)
        blocks = (self._block(start, min(rows, self.shape[0] - start)) for start in starts)
        ahead = rows < self.shape[0] and rows * self.shape[1] * self.dtype.itemsize >= LEAST_AHEAD
        yield from zip(starts, read_ahead(blocks) if ahead else blocks, strict=True)

    def _block(self, start: int, rows: int) -> np.ndarray:
        block = np.empty((rows, self.shape[1]), self.dtype)
        self.read_into(start, block)
        return block


class _Rows:
    """Consecutive rows from blocks of any sizes, taken in numbers that do not depend on those."""

    def __init__(self, blocks: Iterator[np.ndarray]) -> None:
        self._blocks = blocks
        self._left: np.ndarray | None = None

    def take(self, count: int) -> np.ndarray:
        """Return the next `count` rows; a view if they are in one block."""
        taken: list[np.ndarray] = []
        while count:
            left = next(self._blocks) if self._left is None else self._left
            taken.append(left[:count])
            self._left = left[count:] if len(left) > count else None
            count -= len(taken[-1])
        return taken[0] if len(taken) == 1 else np.concatenate(taken)
