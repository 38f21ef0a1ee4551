"""Text tables (.csv, .tsv, .txt, also compressed), with or without a header line, read in blocks of lines."""

import bz2
import csv
import gzip
import lzma
import os
import re
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, TextIO

import numpy as np

from tsapps.errors import MatrixError, MatrixUsageError
from tsapps.kernels.system.printable import one_line, shown
from tsapps.matrix.base import Matrix
from tsapps.matrix.checks import changed, check_shape
from tsapps.matrix.columns import Column, ColumnChoice, choose_columns
from tsapps.matrix.table_form import AmbiguousTableError, FirstLine, Form, are_numbered, is_number, may_be_names
from tsapps.matrix.text_block import BOOLEANS, MISSING, CellForm, numbers_in

__all__ = ["TextMatrix"]

# Functions that open a compressed file, by its extension.
_OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}

# Delimiters in order of precedence: no number contains a tab, and cells between semicolons may contain decimal commas.
_DELIMITERS = "\t;,|"

# Maximum characters of a line. A block ends with the line by which it has at least `_MOST_BLOCK` characters. A number
# has about ten characters.
_MOST_LINE, _MOST_BLOCK = 1 << 24, 1 << 26

# Of a cell, for the csv module.
csv.field_size_limit(_MOST_LINE)

_DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+(?:[eE][+-]?\d+)?")
# Beginnings of lines whose first cell has no value.
_MISSING_MARKS = tuple(cell for cell in MISSING if cell.startswith("#"))


class TextMatrix(Matrix):
    """A text table of float64 numbers, one row per line; a quoted cell may have several lines.

    Cells are separated by tabs, semicolons, commas or spaces: the first of these in the second line. Empty lines and
    lines that begin with ``#`` are skipped. `table_form` detects a header line and an index column. Opening the file
    counts its lines without storing them; every pass parses the lines again.

    The first cell of a column that has a value tells what the column holds.

    Parameters
    ----------
    path : str
    header : bool, optional
        True if the first line is a header; None to infer it.
    index : bool, optional
        True to skip the first column; None to infer it.
    choice : ColumnChoice, optional
        The columns that are features; by default, all, and they must be numbers.
    missing : bool
        Whether cells without a value, and NaN, are read as NaN; otherwise they are errors.
    decimal : {".", ","}
        The decimal point.

    Attributes
    ----------
    inferred_index : bool
        True if the first column is skipped although `index` was None.
    left_out : list of Column
        Columns that are no features because of what they hold.

    Raises
    ------
    AmbiguousTableError
        If the table is ambiguous and `header` or `index` is needed.
    """

    def __init__(
        self,
        path: str,
        header: bool | None = None,
        index: bool | None = None,
        *,
        choice: ColumnChoice | None = None,
        missing: bool = False,
        decimal: str = ".",
    ) -> None:
        self._path, self.name, self._missing, self._decimal = path, one_line(path), missing, decimal
        self._is_chosen = choice is not None
        self._delimiter: str | None = None
        with self._lines() as lines:
            beginning = list(islice(lines, 2))
        if not beginning:
            raise MatrixError(f"{path}: is empty; expected lines of numbers: check what wrote it")
        self._delimiter = _delimiter_of([line for _, line in beginning])
        first_number = beginning[0][0]
        named, self._index = self._form(beginning, header, index)
        self._names = int(named)
        self.inferred_index = self._index and index is None
        first = int(self._index)
        if self._n_cells == first:
            raise MatrixUsageError(f"{path}: has a single column, which --index skips: give --no-index (index=False)")
        like_rows: list[int] = []
        with self._lines(like_rows) as lines:
            rows = sum(1 for _ in lines) - self._names
        if like_rows := [number for number in like_rows if number > first_number]:  # not the names above the rows
            warnings.warn(
                f"{self.name}: {len(like_rows)} lines begin with # and are left out, the first is line {like_rows[0]}; "
                'quote the first cell of those that are rows ("#1")',
                stacklevel=2,
            )
        check_shape((rows, self._n_cells - first), path)
        names = self._cells(beginning[0][1])[first - self._n_cells :] if named else None
        self._features, self._booleans = list(range(first, self._n_cells)), frozenset[int]()
        self._identifier: int | None = None
        self.left_out: list[Column] = []
        if choice is not None:
            if names is None and header is None and choice.leaves_out:
                self._refuse_ambiguous([self._cells(line)[first:] for _, line in beginning], first_number)
            self._choose(choice, names)
        super().__init__(path, (rows, len(self._features)), np.dtype(np.float64))
        if names is not None:
            self.column_names = tuple(names[cell - first] for cell in self._features)
        for number, line in beginning[self._names :]:  # detects a header and a row with different numbers of cells
            self._check_line(number, line, first_number)

    def _choose(self, choice: ColumnChoice, names: list[str] | None) -> None:
        """Set the cells of a line that are features, and the one that identifies rows."""
        first, kinds = int(self._index), self._kinds()
        given = names is not None
        names = [str(number) for number in range(len(kinds))] if names is None else names
        columns = [Column(name, *kind) for name, kind in zip(names, kinds, strict=True)]
        choice = choice if given else choice.for_tables_without_names
        features, identifier, self.left_out = choose_columns(columns, choice, self.name)
        if not given and features != list(range(len(kinds))):
            self.numbers = tuple(features)
        self._features = [first + number for number in features]
        self._booleans = frozenset(first + number for number in features if columns[number].kind == "booleans")
        self._identifier = None if identifier is None else first + identifier

    def _refuse_ambiguous(self, lines: list[list[str]], first: int) -> None:
        """Raise `AmbiguousTableError` for a first line of text and numbers that may be names of columns."""
        cells, below = lines[0], lines[-1]
        numeric = [self._is_number(cell) for cell in cells]
        below_numeric = [self._is_number(cell) for cell in below]
        mixed = any(numeric) and not all(numeric)
        differs = len(cells) == len(below) and any(not a and b for a, b in zip(numeric, below_numeric, strict=True))
        if len(lines) > 1 and mixed and (may_be_names(cells) or differs):
            raise AmbiguousTableError(
                f"{self.name}: line {first}: it may be names of columns or a row: give --header for names, --no-header "
                f"for a row"
            )

    def _kinds(self) -> list[tuple[str, str]]:
        """Return what each column but the index holds, by its first cell with a value, and where that is."""
        first = int(self._index)
        found: list[tuple[str, str] | None] = [None] * (self._n_cells - first)
        with self._lines() as lines:
            for number, line in islice(lines, self._names, None):
                for column, cell in enumerate(self._cells(line)[first : self._n_cells]):
                    if found[column] is None and cell not in MISSING:
                        found[column] = self._kind(cell), f"line {number} is {cell[:40]!r}"
                if None not in found:
                    break
        return [("no values", "") if one is None else one for one in found]

    def _kind(self, cell: str) -> str:
        return "numbers" if self._is_number(cell) else "booleans" if cell.lower() in BOOLEANS else "text"

    def _is_number(self, cell: str) -> bool:
        if self._decimal == ",":
            return is_number(cell.replace(",", ".")) and "." not in cell
        return is_number(cell)

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
        if self._decimal == ",":
            if self._delimiter == ",":
                raise MatrixUsageError(f"{where}: commas separate its cells: omit --decimal")
            cells = [self._with_point(cell) for cell in cells]
        split = self._cells if self._decimal == "." else self._with_points
        return FirstLine(where, cells, self._delimiter, split, quoted, header, index).form(below)

    def _with_points(self, line: str) -> list[str]:
        """Return the cells of a line with decimal points in place of decimal commas."""
        return [self._with_point(cell) for cell in self._cells(line)]

    def _with_point(self, cell: str) -> str:
        return cell.replace(",", ".") if self._is_number(cell) else cell

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

    def identifiers(self) -> Iterator[list[str]]:
        """Yield the cells of the column that identifies rows, in blocks of rows, as they are in the file."""
        with self._lines() as numbered:
            lines = (line for _, line in islice(numbered, self._names, None))
            while block := _taken(lines, _MOST_BLOCK):
                assert self._identifier is not None  # of a table that was opened with an identifier
                yield [self._cells(line)[self._identifier] for line in block]

    def _parse(self, lines: list[str], start: int) -> np.ndarray:
        form = CellForm(self._delimiter, self._decimal, self._missing)
        block, reason = numbers_in(lines, self._features, self._n_cells, form, self._booleans)
        if block is not None:
            return block
        with self._lines() as numbered:  # a slower pass, to name the line and the cell in the error
            for number, line in islice(numbered, self._names + start, self._names + start + len(lines)):
                self._check_line(number, line)
        raise MatrixError(
            f"{self.name}: rows {start} to {start + len(lines) - 1} cannot be read ({reason}): write them again"
        )

    @contextmanager
    def _lines(self, like_rows: list[int] | None = None) -> Iterator[Iterator[tuple[int, str]]]:
        """Open the file as an iterator of its non-empty, non-comment lines with their line numbers (from 1).

        The numbers of comments that have as many cells as a row are appended to `like_rows`.
        """
        opener = _OPENERS.get(os.path.splitext(self._path)[1].lower(), open)
        try:
            with opener(self._path, "rt", encoding="utf-8-sig") as file:
                yield (
                    (number, line)
                    for number, line in self._records(file)
                    if not self._is_blank(line) and not self._is_left_out(number, line, like_rows)
                )
        except UnicodeDecodeError as error:
            raise MatrixError(f"{self.name}: is not UTF-8 text ({error.reason}): save it as UTF-8") from error
        except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # not from a decompressor
            raise MatrixError(f"{self.name}: is truncated or damaged ({error}): copy it again") from error

    def _is_blank(self, line: str) -> bool:
        """Return whether a line has no cells; one of tabs has empty cells if these separate cells."""
        return line.isspace() and not (self._delimiter == "\t" and "\t" in line)

    def _is_left_out(self, number: int, line: str, like_rows: list[int] | None) -> bool:
        if not _is_comment(line):
            return False
        mark = self._delimiter
        if like_rows is not None and mark is not None and _count_of_cells(line, mark) == self._n_cells > 1:
            like_rows.append(number)
        return True

    def _records(self, file: TextIO) -> Iterator[tuple[int, str]]:
        """Yield the lines of a file with their numbers; those of a quoted cell are one line, with its first number."""
        lines = enumerate(self._bounded(file), start=1)
        for number, line in lines:
            if '"' in line and not _is_comment(line):
                while self._is_open(line):
                    line += self._rest_of(number, len(line), lines)
            yield number, line

    def _rest_of(self, first: int, size: int, lines: Iterator[tuple[int, str]]) -> str:
        """Return the lines up to one by which a quoted cell may end: an odd number of quotes is in it."""
        taken = []
        for _, line in lines:
            taken.append(line)
            size += len(line)
            if size > _MOST_LINE:
                break
            if line.count('"') % 2:
                return "".join(taken)
        raise MatrixError(f"{self.name}: line {first} opens a quoted cell that does not end: close the quotes")

    def _is_open(self, line: str) -> bool:
        """Return whether a line ends within a quoted cell."""
        mark = self._delimiter or next((mark for mark in _DELIMITERS if mark in line), " ")
        try:
            next(csv.reader([line], delimiter=mark, skipinitialspace=mark == " ", strict=True), None)
        except csv.Error as error:
            return "unexpected end of data" in str(error)
        return False

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
            return [cell.strip() for cell in _split(line, mark)]
        except csv.Error as error:
            raise MatrixError(
                f"{self.name}: the line {line[:40]!r}… is not a text table ({error}): save it again"
            ) from error

    def _check_line(self, number: int, line: str, first: int | None = None) -> None:
        cells = self._cells(line)
        for feature, place in enumerate(self._features):
            if place < len(cells) and not self._is_valid(cells[place], place):
                self._refuse(number, place, cells[place], feature, is_first=number == first)
        if len(cells) != self._n_cells:
            raise MatrixError(
                f"{self.name}: line {number} has {len(cells)} cells; expected {self._n_cells}, as in the first line: "
                f"correct or drop it"
            )

    def _is_valid(self, cell: str, place: int) -> bool:
        if self._missing and cell in MISSING:
            return True
        return cell.lower() in BOOLEANS if place in self._booleans else self._is_number(cell)

    def _refuse(self, number: int, place: int, cell: str, feature: int, *, is_first: bool) -> None:
        """Raise `MatrixError` for a cell that is no number."""
        where = f"{self.name}: line {number}, cell {place + 1}"
        if self._is_chosen and self.column_names is not None:
            where += f" ({shown(self.column_names[feature])})"
        if cell in MISSING:
            what = repr(cell) if cell else "empty"
            more = " (tsapps kmeans has --missing drop and --missing mean)" if self._is_chosen else ""
            raise MatrixError(f"{where} is {what}; expected a number: fill it in, or drop the line{more}")
        if self._decimal == "." and _DECIMAL_COMMA.fullmatch(cell):
            raise MatrixError(f"{where} is {cell!r}: write numbers with a decimal point, or give --decimal ,")
        advice = " (only a line without numbers is detected as a header: give --header for this one)"
        advice = advice if is_first else ""
        keep = "correct it, or leave the column out by --exclude" if self._is_chosen else "keep numeric columns only"
        raise MatrixError(f"{where} is {cell[:40]!r}; expected a number{advice}: {keep}")


def _delimiter_of(lines: list[str]) -> str | None:
    """Return the delimiter of a table with these first lines; None for spaces.

    It divides them into the same number of cells, or one less in the header; a semicolon in the text of one does not.
    """
    for mark in _DELIMITERS:
        counts = [_count_of_cells(line, mark) for line in lines]
        if min(counts) > 1 and max(counts) - min(counts) <= 1:
            return mark
    return next((mark for mark in _DELIMITERS if mark in lines[-1]), None)


def _split(line: str, mark: str) -> list[str]:
    """Return the cells between marks, without their quotes; raise csv.Error if a cell is too long."""
    return next(csv.reader([line.strip(" \r\n")], delimiter=mark, skipinitialspace=mark == " "))


def _count_of_cells(line: str, mark: str) -> int:
    try:
        return len(_split(line, mark))
    except csv.Error:
        return 0


def _is_comment(line: str) -> bool:
    return line.startswith("#") and not line.startswith(_MISSING_MARKS)


def _taken(lines: Iterator[str], most: int) -> list[str]:
    """Return the next lines: `most`, or fewer if the lines end or reach `_MOST_BLOCK` characters together."""
    block, size = [], 0
    for line in islice(lines, most):
        block.append(line)
        size += len(line)
        if size >= _MOST_BLOCK:
            break
    return block
