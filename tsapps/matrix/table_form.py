"""Detection of a text table's header line and index column, from its cells.

The first line is a header if no cell of it is a number, or if only this line is quoted. A first line 0, 1, 2, …, as
pandas numbers columns, is also a header under two conditions: some columns hold numbers with a decimal point or an
exponent, and no column mixes such numbers with integers. The first column is an index if it has no name and counts the
rows 0, 1, 2, …. Ambiguous tables are rejected: the caller must say how to read them.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tsapps.errors import MatrixUsageError

__all__ = ["AmbiguousTableError", "FirstLine", "Form", "are_numbered", "is_number", "may_be_names"]

# Integers that can be column names: no sign, no leading zero, and at most 18 digits.
_PLAIN_INTEGER = re.compile(r"0|[1-9][0-9]{,17}")
_INTEGER = re.compile(r"[+-]?[0-9]+")
# An integer in a line, between any delimiters.
_ANY_INTEGER = re.compile(r'(?<![^,;\t "])[+-]?[0-9]+(?![^,;\t "\n])')

# First cells of a header above a column without a name: empty, or the name that pandas gives to such a column when it
# reads a table.
_UNNAMED = ("", "Unnamed: 0")

_INDEX = (
    "it may be an index or a feature: skip it with --index, or keep it with --no-index "
    "(in Python: open_matrix with index=True or index=False)"
)
_HEADER = "give --header for names, --no-header for numbers (in Python: header=True or header=False)"


class AmbiguousTableError(MatrixUsageError):
    """A text table is ambiguous: the caller must say whether it has a header or an index."""


class Form(NamedTuple):
    """Detected form of a table.

    Attributes
    ----------
    named : bool
        True if the first line is a header.
    indexed : bool
        True if the first column is an index, which is skipped.
    """

    named: bool
    indexed: bool


@dataclass(frozen=True)
class FirstLine:
    """The first line of a table, with the options that the caller gave.

    Attributes
    ----------
    where : str
        File and line number, for messages.
    cells : list of str
    delimiter : str or None
        None for spaces.
    split : callable
        Splits a line into cells.
    quoted : bool
        True if all cells of this line are quoted and none of the second line is.
    header, index : bool or None
        Values that the caller gave for header and index; None to infer them.
    """

    where: str
    cells: list[str]
    delimiter: str | None
    split: Callable[[str], list[str]]
    quoted: bool
    header: bool | None
    index: bool | None

    def form(self, below: Callable[[], Iterator[str]]) -> Form:
        """Infer the form of the table.

        Parameters
        ----------
        below : callable
            Returns an iterator over all lines after the first. It may be called several times, and each iterator is
            read only as far as needed.

        Raises
        ------
        AmbiguousTableError
            If the table is ambiguous.
        """
        unnamed = len(self.cells) > 1 and self.cells[0] in _UNNAMED
        names = self.cells[1:] if self.index or unnamed else self.cells
        if unnamed and self.header is not False and self.index is not False:
            if self.header or may_be_names(names):
                if self.index is None and not self._count(below(), 0):
                    raise self._ambiguous("the first column has no name and does not count the rows 0, 1, 2, …", _INDEX)
                return Form(named=True, indexed=True)
            if self.index:
                raise self._ambiguous("it begins with an empty cell, and numbers follow", _HEADER)
        header = self._are_names(names, below) if self.header is None else self.header
        may_count = self.index is None and len(self.cells) > 1 and self.cells[0] == "0" and not header
        if may_count and self._count(below(), 1):
            raise self._ambiguous("the first column counts the rows 0, 1, 2, …", _INDEX)
        return Form(named=header, indexed=bool(self.index))

    def _count(self, lines: Iterator[str], start: int) -> bool:
        """Return whether the first cells of `lines` are the consecutive integers from `start` on."""
        mark = self.delimiter
        firsts = (
            line.partition(mark)[0].strip(' "\n') if mark else line.split(None, 1)[0].strip('"') for line in lines
        )
        return all(cell == str(number) for number, cell in enumerate(firsts, start))

    def _are_names(self, names: Sequence[str], below: Callable[[], Iterator[str]]) -> bool:
        """Return whether the cells `names` of the first line, without a cell above an index, are column names."""
        if self.quoted or not any(map(is_number, names)):
            return True
        if not _increase(names):
            return False
        # pandas writes all numbers of a column in one form: an integer above numbers with a decimal point is a name.
        numbered = are_numbered(names)
        integers, decimals = [False] * len(names), [False] * len(names)
        for line in below():
            if all(decimals) and not any(integers) and not _ANY_INTEGER.search(line):
                continue  # a line without integers adds no information; skipping it saves time
            for column, cell in enumerate(self.split(line)[len(self.cells) - len(names) : len(self.cells)]):
                if _INTEGER.fullmatch(cell):
                    integers[column] = True
                elif is_number(cell):
                    decimals[column] = True
            if any(map(bool.__and__, integers, decimals)) or (any(integers) and not numbered):
                break
        else:
            if numbered and any(decimals):
                return True
            numbered = numbered or all(decimals)
        if numbered:
            raise self._ambiguous("it may be names of columns or numbers", _HEADER)
        return False

    def _ambiguous(self, why: str, options: str) -> AmbiguousTableError:
        return AmbiguousTableError(f"{self.where}: {why}: {options}")


def are_numbered(cells: Sequence[str]) -> bool:
    """Return whether cells are 0, 1, 2, …, as pandas numbers columns."""
    return list(cells) == [str(number) for number in range(len(cells))]


def is_number(cell: str) -> bool:
    """Return whether NumPy's text reader accepts `cell` as a number: Python syntax in ASCII, without underscores."""
    try:
        float(cell)
    except ValueError:
        return False
    return cell.isascii() and "_" not in cell


def _increase(cells: Sequence[str]) -> bool:
    """Return whether cells are increasing integers, as names of numbered columns are; a single cell must be 0."""
    if not all(map(_PLAIN_INTEGER.fullmatch, cells)):
        return False
    numbers = [int(cell) for cell in cells]
    return numbers == sorted(set(numbers)) and (len(cells) > 1 or numbers == [0])


def may_be_names(cells: Sequence[str]) -> bool:
    """Return whether cells can be column names: each is text or an unsigned integer, and no number occurs twice."""
    numbers = [cell for cell in cells if is_number(cell)]
    return all(map(_PLAIN_INTEGER.fullmatch, numbers)) and len(set(numbers)) == len(numbers)
