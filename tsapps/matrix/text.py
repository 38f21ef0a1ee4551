"""Text tables: .csv and its kin, with or without a line of names, streamed through `numpy.loadtxt`."""

import csv
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TextIO

import numpy as np

from tsapps.errors import MatrixError
from tsapps.matrix.base import Matrix
from tsapps.matrix.checks import changed

__all__ = ["TextMatrix"]

# In this order: a tab is part of no number, and where semicolons stand between cells, commas may stand inside them.
_DELIMITERS = "\t;,"

# Characters of a line, which has about ten for a number; and of the lines of a block, from which no more are taken.
_MOST_LINE, _MOST_BLOCK = 1 << 24, 1 << 26

_DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+")


class TextMatrix(Matrix):
    """A text table of float64 numbers, one row a line.

    Tabs, semicolons, commas or spaces stand between the cells, whichever is found first in that order. Empty lines and
    lines that begin with ``#`` do not count. The first line is names if no cell of it is a number. Opening the file
    counts its lines without keeping them; every pass parses them again.
    """

    def __init__(self, path: str) -> None:
        self.name = path
        with self._lines() as lines:
            beginning = list(islice(lines, 2))
            if not beginning:
                raise MatrixError(f"{path}: is empty; expected lines of numbers: check what wrote it")
            self._delimiter = next((mark for mark in _DELIMITERS if mark in beginning[-1][1]), None)
            first_number, first_line = beginning[0]
            cells = self._cells(first_line)
            self._names = 0 if any(_is_number(cell) for cell in cells) else 1
            rows = len(beginning) - self._names + sum(1 for _ in lines)
        super().__init__(path, (rows, len(cells)), np.dtype(np.float64))
        for number, line in beginning[self._names :]:  # names and numbers that differ in count are found here
            self._check_line(number, line, first_number)

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
            block = np.loadtxt(lines, np.float64, comments=None, delimiter=self._delimiter, quotechar='"', ndmin=2)
            reason = f"it has the shape {block.shape}"
        except ValueError as error:
            block, reason = None, str(error)
        if block is not None and block.shape == (rows, self.shape[1]):
            return block
        with self._lines() as numbered:  # a second, slower look, which knows the line and the cell
            for number, line in islice(numbered, self._names + start, self._names + start + rows):
                self._check_line(number, line)
        raise MatrixError(
            f"{self.name}: rows {start} to {start + rows - 1} cannot be read ({reason}): write them again"
        )

    @contextmanager
    def _lines(self) -> Iterator[Iterator[tuple[int, str]]]:
        """Open the file as the lines that count, each with its number as an editor counts."""
        try:
            with open(self.name, encoding="utf-8-sig") as file:
                yield (
                    (number, line)
                    for number, line in enumerate(self._bounded(file), start=1)
                    if not line.isspace() and not line.startswith("#")
                )
        except UnicodeDecodeError as error:
            raise MatrixError(f"{self.name}: is no UTF-8 text ({error.reason}): save it as UTF-8") from error

    def _bounded(self, file: TextIO) -> Iterator[str]:
        """Yield the lines of a file, none of which is read beyond the length that one may have."""
        number = 1
        while line := file.readline(_MOST_LINE):
            if len(line) == _MOST_LINE and not line.endswith("\n"):
                raise MatrixError(
                    f"{self.name}: line {number} has {_MOST_LINE} characters or more: save such a matrix as .npy"
                )
            yield line
            number += 1

    def _cells(self, line: str) -> list[str]:
        if self._delimiter is None:
            return line.split()
        try:
            return [cell.strip() for cell in next(csv.reader([line], delimiter=self._delimiter))]
        except csv.Error as error:
            raise MatrixError(
                f"{self.name}: the line {line[:40]!r}… is no text table ({error}): save it again"
            ) from error

    def _check_line(self, number: int, line: str, first: int | None = None) -> None:
        cells = self._cells(line)
        for place, cell in enumerate(cells, start=1):
            if _is_number(cell):
                continue
            where = f"{self.name}: line {number}, cell {place}"
            if not cell:
                raise MatrixError(f"{where} is empty; expected a number: fill it in, or drop the line")
            if _DECIMAL_COMMA.fullmatch(cell):
                raise MatrixError(f"{where} is {cell!r}: write numbers with a decimal point")
            advice = " (if the line is names, none of them may be a number)" if number == first else ""
            raise MatrixError(f"{where} is {cell[:40]!r}; expected a number{advice}: keep numeric columns only")
        if len(cells) != self.shape[1]:
            raise MatrixError(
                f"{self.name}: line {number} has {len(cells)} cells; expected {self.shape[1]}, as in the first line: "
                f"correct or drop it"
            )


def _taken(lines: Iterator[str], most: int) -> list[str]:
    """Take so many lines at most; fewer where they are long."""
    block, size = [], 0
    for line in islice(lines, most):
        block.append(line)
        size += len(line)
        if size >= _MOST_BLOCK:
            break
    return block


def _is_number(cell: str) -> bool:
    """Return whether NumPy's text reader takes `cell` for a number: Python's rule, in ASCII, without underscores."""
    try:
        float(cell)
    except ValueError:
        return False
    return cell.isascii() and "_" not in cell
