"""Text tables (.csv, .tsv, .txt), with or without a header line, streamed through `numpy.loadtxt`."""

import csv
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, TextIO

import numpy as np

from tsapps.errors import MatrixError, MatrixUsageError
from tsapps.kernels.system.printable import one_line
from tsapps.matrix.base import Matrix
from tsapps.matrix.checks import changed
from tsapps.matrix.table_form import FirstLine, Form, are_numbered, is_number

__all__ = ["TextMatrix"]

# Delimiters in order of precedence: no number contains a tab, and cells between semicolons may contain decimal commas.
_DELIMITERS = "\t;,"

# Maximum characters of a line. A block ends with the line by which it has at least `_MOST_BLOCK` characters. A number
# has about ten characters.
_MOST_LINE, _MOST_BLOCK = 1 << 24, 1 << 26

_DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+")


class TextMatrix(Matrix):
    """A text table of float64 numbers, one row per line.

    Cells are separated by tabs, semicolons, commas or spaces: the first of these in the second line. Empty lines and
    lines that begin with ``#`` are skipped. `table_form` detects a header line and an index column. Opening the file
    counts its lines without storing them; every pass parses the lines again.

    Parameters
    ----------
    path : str
    header : bool, optional
        True if the first line is a header; None to infer it.
    index : bool, optional
        True to skip the first column; None to infer it.

    Attributes
    ----------
    inferred_index : bool
        True if the first column is skipped although `index` was None.

    Raises
    ------
    AmbiguousTableError
        If the table is ambiguous and `header` or `index` is needed.
    """

    def __init__(self, path: str, header: bool | None = None, index: bool | None = None) -> None:
        self._path, self.name = path, one_line(path)
        with self._lines() as lines:
            beginning = list(islice(lines, 2))
        if not beginning:
            raise MatrixError(f"{path}: is empty; expected lines of numbers: check what wrote it")
        self._delimiter = next((mark for mark in _DELIMITERS if mark in beginning[-1][1]), None)
        first_number = beginning[0][0]
        named, self._index = self._form(beginning, header, index)
        self._names = int(named)
        self.inferred_index = self._index and index is None
        columns = self._n_cells - int(self._index)
        if columns == 0:
            raise MatrixUsageError(f"{path}: has a single column, which --index skips: give --no-index (index=False)")
        with self._lines() as lines:
            rows = sum(1 for _ in lines) - self._names
        super().__init__(path, (rows, columns), np.dtype(np.float64))
        if named:
            self.column_names = tuple(self._cells(beginning[0][1])[-columns:])
        for number, line in beginning[self._names :]:  # detects a header and a row with different numbers of cells
            self._check_line(number, line, first_number)

    def _form(self, beginning: list[tuple[int, str]], header: bool | None, index: bool | None) -> Form:
        """Infer header and index from the first two lines, `beginning`, and from later lines if needed."""
        (number, line), (_, second) = beginning[0], beginning[-1]
        cells = self._cells(line)
        one_less = self._delimiter is None and len(cells) == len(self._cells(second)) - 1
        if one_less and (header or are_numbered(cells) or not any(map(is_number, cells))):
            cells = ["", *cells]  # the index column's empty name, which leaves no cell if spaces are the delimiter
        self._n_cells = len(cells)
        quoted = len(beginning) > 1 and '"' not in second and line.count('"') == 2 * len(cells)

        def below() -> Iterator[str]:
            with self._lines() as lines:
                yield from (line for _, line in islice(lines, 1, None))

        where = f"{self.name}: line {number}"
        return FirstLine(where, cells, self._delimiter, self._cells, quoted, header, index).form(below)

    def _blocks(self, rows: int) -> Iterator[tuple[int, np.ndarray]]:
        n = self.shape[0]
        with self._lines() as numbered:
            lines = (line for _, line in islice(numbered, self._names, None))
            start = 0
            while start < n:
                block = _taken(lines, min(rows, n - start))
                if not block:
                    raise changed(self.name)
                yield start, self._parse(block, start)
                start += len(block)

    def _parse(self, lines: list[str], start: int) -> np.ndarray:
        rows = len(lines)
        try:
            converters: Any = {0: _zero} if self._index else None  # index cells may be text; they are not parsed
            block = np.loadtxt(
                lines,
                np.float64,
                comments=None,
                delimiter=self._delimiter,
                converters=converters,
                quotechar='"',
                ndmin=2,
            )
            reason = f"it has the shape {block.shape}"
        except ValueError as error:
            block, reason = None, str(error)
        if block is not None and block.shape == (rows, self._n_cells):
            return np.ascontiguousarray(block[:, 1:]) if self._index else block
        with self._lines() as numbered:  # a slower pass, to name the line and the cell in the error
            for number, line in islice(numbered, self._names + start, self._names + start + rows):
                self._check_line(number, line)
        raise MatrixError(
            f"{self.name}: rows {start} to {start + rows - 1} cannot be read ({reason}): write them again"
        )

    @contextmanager
    def _lines(self) -> Iterator[Iterator[tuple[int, str]]]:
        """Open the file as an iterator of its non-empty, non-comment lines with their line numbers (from 1)."""
        try:
            with open(self._path, encoding="utf-8-sig") as file:
                yield (
                    (number, line)
                    for number, line in enumerate(self._bounded(file), start=1)
                    if not line.isspace() and not line.startswith("#")
                )
        except UnicodeDecodeError as error:
            raise MatrixError(f"{self.name}: is not UTF-8 text ({error.reason}): save it as UTF-8") from error

    def _bounded(self, file: TextIO) -> Iterator[str]:
        """Yield the lines of a file; raise `MatrixError` for a line of `_MOST_LINE` or more characters."""
        number = 1
        while line := file.readline(_MOST_LINE):
            if len(line) == _MOST_LINE and not line.endswith("\n"):
                raise MatrixError(
                    f"{self.name}: line {number} has {_MOST_LINE} characters or more: save such a matrix as .npy"
                )
            yield line
            number += 1

    def _cells(self, line: str) -> list[str]:
        if self._delimiter is None and '"' not in line:
            return line.split()
        mark = self._delimiter or " "
        try:
            cells = next(csv.reader([line.strip(" \r\n")], delimiter=mark, skipinitialspace=mark == " "))
            return [cell.strip() for cell in cells]
        except csv.Error as error:
            raise MatrixError(
                f"{self.name}: the line {line[:40]!r}… is not a text table ({error}): save it again"
            ) from error

    def _check_line(self, number: int, line: str, first: int | None = None) -> None:
        cells = self._cells(line)
        for place, cell in enumerate(cells, start=1):
            if is_number(cell) or (self._index and place == 1):
                continue
            where = f"{self.name}: line {number}, cell {place}"
            if not cell:
                raise MatrixError(f"{where} is empty; expected a number: fill it in, or drop the line")
            if _DECIMAL_COMMA.fullmatch(cell):
                raise MatrixError(f"{where} is {cell!r}: write numbers with a decimal point")
            advice = " (only a line without numbers is detected as a header: give --header for this one)"
            advice = advice if number == first else ""
            raise MatrixError(f"{where} is {cell[:40]!r}; expected a number{advice}: keep numeric columns only")
        if len(cells) != self._n_cells:
            raise MatrixError(
                f"{self.name}: line {number} has {len(cells)} cells; expected {self._n_cells}, as in the first line: "
                f"correct or drop it"
            )


def _taken(lines: Iterator[str], most: int) -> list[str]:
    """Return the next lines: `most`, or fewer if the lines end or reach `_MOST_BLOCK` characters together."""
    block, size = [], 0
    for line in islice(lines, most):
        block.append(line)
        size += len(line)
        if size >= _MOST_BLOCK:
            break
    return block


def _zero(_: str) -> float:
    return 0.0
