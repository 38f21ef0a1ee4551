"""Several files as one matrix: the rows of the first file, then those of the next one, and so on."""

import os
from collections.abc import Iterator, Sequence
from glob import glob, has_magic
from typing import Any

import numpy as np

from tsapps.errors import MatrixError, MatrixUsageError
from tsapps.kernels.system.printable import shown
from tsapps.matrix.base import Matrix
from tsapps.matrix.checks import check_finite
from tsapps.matrix.stored import LEAST_AHEAD, StoredMatrix, read_ahead
from tsapps.names import split_name

__all__ = ["JoinedMatrix", "files_of", "joined"]


def files_of(path: str, extensions: Sequence[str]) -> list[str] | None:
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
        If there is no such file, or a directory has files of several formats.
    """
    if os.path.isdir(path):
        return _files_in(path, extensions)
    if os.path.exists(split_name(path)[0]) or not has_magic(path):
        return None
    pattern, colon, name = path.rpartition(":")
    found = _matches(path)
    if not found and colon and has_magic(pattern):
        found = [f"{file}:{name}" for file in _matches(pattern)]
    if not found:
        raise MatrixUsageError(f"{path}: no file matches this pattern: check it, and quote it for the shell")
    return found


def _matches(pattern: str) -> list[str]:
    return sorted(path for path in glob(pattern, recursive=True) if os.path.isfile(path))


def _files_in(directory: str, extensions: Sequence[str]) -> list[str]:
    files: dict[str, list[str]] = {}
    for entry in os.scandir(directory):
        extension = os.path.splitext(entry.name)[1].lower()
        if extension in extensions and not entry.name.startswith(".") and entry.is_file():
            files.setdefault(extension, []).append(entry.path)
    if not files:
        raise MatrixUsageError(
            f"{directory}: is a directory without a matrix: name a file ({', '.join(extensions)}), or a directory of "
            f"such files"
        )
    if len(files) > 1:
        example = os.path.join(directory, f"*{min(files)}")
        raise MatrixUsageError(
            f"{directory}: has files of several formats ({', '.join(sorted(files))}): name those of one matrix by a "
            f"pattern, such as '{shown(example)}'"
        )
    (found,) = files.values()
    return sorted(found)


def joined(parts: Sequence[Matrix], name: str) -> Matrix:
    """Return the rows of several matrices as one matrix; a single one is returned itself.

    Raises
    ------
    MatrixError
        If the matrices do not have the same columns and the same dtype.
    """
    if len(parts) == 1:
        return parts[0]
    stored = [part for part in parts if isinstance(part, StoredMatrix)]
    return _JoinedStored(stored, name) if len(stored) == len(parts) else JoinedMatrix(parts, name)


class JoinedMatrix(Matrix):
    """The rows of several matrices in host memory or files, one matrix after the other.

    The blocks are those of one file with all rows, so that no result depends on how the rows are cut into files.

    Attributes
    ----------
    parts : tuple of Matrix
    starts : numpy.ndarray of int64, shape (parts + 1,)
        The first row of each matrix, and the number of all rows.
    """

    def __init__(self, parts: Sequence[Matrix], name: str) -> None:
        first = parts[0]
        for part in parts[1:]:
            if (part.shape[1], part.dtype) != (first.shape[1], first.dtype):
                raise MatrixError(
                    f"{part.name}: has {part.shape[1]} columns of {part.dtype}, but {first.name} has "
                    f"{first.shape[1]} of {first.dtype}: files of one matrix need the same columns and the same type"
                )
        self.parts = tuple(parts)
        self.starts = np.cumsum([0, *(part.shape[0] for part in parts)])
        super().__init__(name, (int(self.starts[-1]), first.shape[1]), first.dtype)

    @property
    def files(self) -> list[tuple[str, int]]:
        """Return the path and the number of rows of each file."""
        return [(part.file_state.path, part.shape[0]) for part in self.parts if part.file_state is not None]

    def check_unchanged(self) -> None:
        """Raise `MatrixError` if a file has changed since it was opened."""
        for part in self.parts:
            part.check_unchanged()

    def row_name(self, row: int) -> str:
        """Return what messages call a row: its number in the matrix, and in its file."""
        part = self._part_of(row)
        return f"row {row} (row {row - int(self.starts[part])} of {self.parts[part].name})"

    def pieces(self, columns: int) -> Iterator[tuple[int, int, Any]]:
        """Yield (row, first column, elements of shape (1, at most `columns`)); see `Matrix.pieces`."""
        for start, part in zip(self.starts.tolist(), self.parts, strict=False):
            for row, column, piece in part.pieces(columns):
                yield start + row, column, piece

    def _part_of(self, row: int) -> int:
        return int(np.searchsorted(self.starts, row, side="right")) - 1

    def _blocks(self, rows: int) -> Iterator[tuple[int, np.ndarray]]:
        n = self.shape[0]
        pending = _Rows(block for part in self.parts for _, block in part.blocks(min(rows, part.shape[0])))
        for start in range(0, n, rows):
            yield start, pending.take(min(rows, n - start))

    def _rows(self, numbers: np.ndarray) -> np.ndarray:
        out = np.empty((len(numbers), self.shape[1]), self.dtype)
        owners = np.searchsorted(self.starts, numbers, side="right") - 1
        for owner in np.unique(owners).tolist():
            mine = owners == owner
            out[mine] = self.parts[owner]._rows(numbers[mine] - self.starts[owner])
        return out

    def _read(self) -> np.ndarray:
        whole: np.ndarray = self._empty(self.dtype)
        for begin, part in zip(self.starts.tolist(), self.parts, strict=False):
            for start, block in part.blocks(part._default_rows()):
                check_finite(block, start, part.name)
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
        """Return the next `count` rows, a view if they are in one block; fewer if there are no more."""
        taken: list[np.ndarray] = []
        missing = count
        while missing:
            left = next(self._blocks, None) if self._left is None else self._left
            if left is None:
                break
            taken.append(left[:missing])
            self._left = left[missing:] if len(left) > missing else None
            missing -= len(taken[-1])
        return taken[0] if len(taken) == 1 else np.concatenate(taken)
