"""The form of a text table, by its cells: whether its first line is names, and its first column an index.

A first line is names if no cell of it is a number, or if it alone stands in quotation marks. It also is if it reads
0, 1, 2, …, as pandas names columns, and of the columns below some hold numbers with a decimal point or an exponent, and
none holds both these and integers. A first column is an index if it has no name and counts the rows 0, 1, 2, ….
Tables that can be read in two ways are refused: the caller has to say which.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tsapps.errors import MatrixUsageError

__all__ = ["AmbiguousTableError", "FirstLine", "Form", "are_numbered", "is_number"]

# Integers as names are written: no sign, no zero in front; and few digits, so that they can be compared.
_PLAIN_INTEGER = re.compile(r"0|[1-9][0-9]{,17}")
_INTEGER = re.compile(r"[+-]?[0-9]+")
# In a line, between any delimiters.
_ANY_INTEGER = re.compile(r'(?<![^,;\t "])[+-]?[0-9]+(?![^,;\t "\n])')

# What pandas calls a column without a name when it reads, and writes again.
_UNNAMED = ("", "Unnamed: 0")

_INDEX = (
    "it may be an index or a feature: leave it out with --index, or keep it with --no-index "
    "(in Python: open_matrix with index=True or index=False)"
)
_HEADER = "say that it is names with --header, or numbers with --no-header (in Python: header=True or header=False)"


class AmbiguousTableError(MatrixUsageError):
    """A text table can be read in two ways, and the caller has to say which."""


class Form(NamedTuple):
    """How a table is read.

    Attributes
    ----------
    named : bool
        Whether the first line is names.
    indexed : bool
        Whether the first column is left out.
    """

    named: bool
    indexed: bool


@dataclass(frozen=True)
class FirstLine:
    """The first line of a table, and what the caller says of the table.

    Attributes
    ----------
    where : str
        The file and the line, for messages.
    cells : list of str
    delimiter : str or None
        None for spaces.
    split : callable
        Takes a line apart.
    quoted : bool
        Whether its cells stand in quotation marks, and none of the second line does.
    header, index : bool or None
        Whether it is names, and whether the first column is an index; None for what is to be told by the cells.
    """

    where: str
    cells: list[str]
    delimiter: str | None
    split: Callable[[str], list[str]]
    quoted: bool
    header: bool | None
    index: bool | None

    def form(self, below: Callable[[], Iterator[str]]) -> Form:
        """Tell the form of the table.

        Parameters
        ----------
        below : callable
            Yields the lines below, as often as it is called; they are read only as far as they matter.

        Raises
        ------
        AmbiguousTableError
            If there are two.
        """
        unnamed = len(self.cells) > 1 and self.cells[0] in _UNNAMED
        names = self.cells[1:] if self.index or unnamed else self.cells
        if unnamed and self.header is not False and self.index is not False:
            if self.header or _may_be_names(names):
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
        """Return whether the first cells of lines are `start`, `start` + 1, …."""
        mark = self.delimiter
        firsts = (
            line.partition(mark)[0].strip(' "\n') if mark else line.split(None, 1)[0].strip('"') for line in lines
        )
        return all(cell == str(number) for number, cell in enumerate(firsts, start))

    def _are_names(self, names: Sequence[str], below: Callable[[], Iterator[str]]) -> bool:
        """Tell whether the cells, all of the first line but what is above an index, are names."""
        if self.quoted or not any(map(is_number, names)):
            return True
        if not _increase(names):
            return False
        # pandas writes every number of a column in one form: above a column of decimals, an integer is no number.
        numbered = are_numbered(names)
        integers, decimals = [False] * len(names), [False] * len(names)
        for line in below():
            if all(decimals) and not any(integers) and not _ANY_INTEGER.search(line):
                continue  # as most lines are, which need not be taken apart
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
    """Return whether cells are 0, 1, 2, …, as pandas names columns."""
    return list(cells) == [str(number) for number in range(len(cells))]


def is_number(cell: str) -> bool:
    """Return whether NumPy's text reader takes `cell` for a number: Python's rule, in ASCII, without underscores."""
    try:
        float(cell)
    except ValueError:
        return False
    return cell.isascii() and "_" not in cell


def _increase(cells: Sequence[str]) -> bool:
    """Return whether cells are integers in order, as names of numbered columns are; one alone, whether it is 0."""
    if not all(map(_PLAIN_INTEGER.fullmatch, cells)):
        return False
    numbers = [int(cell) for cell in cells]
    return numbers == sorted(set(numbers)) and (len(cells) > 1 or numbers == [0])


def _may_be_names(cells: Sequence[str]) -> bool:
    """Return whether cells may be names of columns: text, or integers of which no two are equal."""
    numbers = [cell for cell in cells if is_number(cell)]
    return all(map(_PLAIN_INTEGER.fullmatch, numbers)) and len(set(numbers)) == len(numbers)
