"""Choice of the columns of a table: which are features, which one names the rows, and which are left out."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import NamedTuple

from tsapps.errors import MatrixError, MatrixUsageError
from tsapps.kernels.system.printable import shown

__all__ = ["Chosen", "Column", "ColumnChoice", "choose_columns", "names_in", "phrase", "place_of"]

# Maximum number of columns that a message names.
_MOST_NAMED = 12


class Column(NamedTuple):
    """A column of a table.

    Attributes
    ----------
    name : str
        Its name; in a table without names, its number from 0 on.
    kind : str
        "numbers", "booleans", "text", "no values", or what a file calls the type.
    example : str
        Where a message can point to: "line 2 is 'Adelie'"; may be empty.
    """

    name: str
    kind: str
    example: str = ""


@dataclass(frozen=True)
class ColumnChoice:
    """What a caller wants of a table's columns.

    Attributes
    ----------
    columns : tuple of str or None
        Names of the features, in this order; None for all columns of numbers.
    exclude : tuple of str
        Names of columns that are no features.
    identifier : str or None
        The name of the column that identifies rows; it is no feature.
    leaves_out : bool
        Whether columns without numbers are left out if `columns` is None; otherwise they are errors.
    by_position : bool
        Whether `columns` are names alone, never numbers, and do not count for tables without names: the features of
        these are all columns of numbers.
    numbers : tuple of int or None
        The features by number, instead of `columns`.
    missing : bool
        Whether features may lack values: a named column without any is one, too.
    """

    columns: tuple[str, ...] | None = None
    exclude: tuple[str, ...] = ()
    identifier: str | None = None
    leaves_out: bool = False
    by_position: bool = False
    numbers: tuple[int, ...] | None = None
    missing: bool = False

    @property
    def for_tables_without_names(self) -> "ColumnChoice":
        """The choice in a table whose columns have no names."""
        return replace(self, columns=None, by_position=False, leaves_out=True) if self.by_position else self


class Chosen(NamedTuple):
    """Columns of a table by number: features, the identifier or None, and the columns left out for what they hold."""

    features: list[int]
    identifier: int | None
    left_out: list[Column]


def names_in(text: str) -> tuple[str, ...]:
    """Return the names in a list such as ``a,b,"c, d"``.

    Raises
    ------
    ValueError
        If quotes are not closed, or there is more than one line.
    """
    try:
        (names,) = list(csv.reader([text], skipinitialspace=True, strict=True)) or [[]]
    except csv.Error as error:
        raise ValueError(str(error)) from error
    return tuple(name.strip() for name in names if name.strip())


def choose_columns(available: Sequence[Column], choice: ColumnChoice, where: str) -> Chosen:
    """Return the columns of a table that a choice selects.

    Parameters
    ----------
    available : sequence of Column
    choice : ColumnChoice
    where : str
        The name of the table, for messages.

    Raises
    ------
    MatrixUsageError
        If a name is not that of one column, or if no column is left.
    MatrixError
        If a feature does not hold numbers.
    """
    identifier = None if choice.identifier is None else place_of(choice.identifier, available, where, "id")
    exclude = {place_of(name, available, where, "exclude") for name in choice.exclude}
    left_out: list[Column] = []
    if choice.numbers is not None:
        features = [number for number in choice.numbers if 0 <= number < len(available)]
        if len(features) < len(choice.numbers):
            raise MatrixUsageError(f"{where}: has {len(available)} columns, not one of number {max(choice.numbers)}")
    elif choice.columns is None:
        features = [number for number in range(len(available)) if number not in exclude and number != identifier]
        if choice.leaves_out:
            left_out = [available[number] for number in features if available[number].kind != "numbers"]
            features = [number for number in features if available[number].kind == "numbers"]
    else:
        exactly = choice.by_position
        places = (place_of(name, available, where, "columns", by_name=exactly) for name in choice.columns)
        features = list(dict.fromkeys(places))
        if identifier in features:
            raise MatrixUsageError(
                f"{where}: column {shown(choice.identifier)} identifies rows and is a feature: name it in one place"
            )
        features = [number for number in features if number not in exclude]
    for number in features:
        _check_kind(available[number], where, choice)
    if not features:
        why = f": {phrase(left_out)}" if left_out else ""
        raise MatrixUsageError(f"{where}: no column of numbers is left{why}; expected at least one feature")
    return Chosen(features, identifier, left_out)


def place_of(name: str, available: Sequence[Column], where: str, option: str, *, by_name: bool = False) -> int:
    """Return the number of the column with a name, which an option gives.

    A number that is no name counts columns from 0, unless `by_name` is set.

    Raises
    ------
    MatrixUsageError
        If no column has this name, or several have.
    """
    places = [number for number, column in enumerate(available) if column.name == name]
    if len(places) == 1:
        return places[0]
    if places:
        raise MatrixUsageError(f"{where}: {len(places)} columns are named {shown(name)}: rename them")
    if not by_name and name.isascii() and name.isdecimal() and int(name) < len(available):
        return int(name)
    names = [column.name for column in available]
    close = get_close_matches(name, names, 1)
    advice = f"did you mean {shown(close[0])}?" if close else f"its columns are {_listed(names)}"
    raise MatrixUsageError(f"{where}: has no column {shown(name)}, which --{option} names; {advice}")


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(map(shown, names[:_MOST_NAMED])) + more


def _check_kind(column: Column, where: str, choice: ColumnChoice) -> None:
    if column.kind == "numbers":
        return
    is_chosen = choice.columns is not None or choice.numbers is not None
    if is_chosen and (column.kind == "booleans" or (column.kind == "no values" and choice.missing)):
        return
    example = f" ({column.example})" if column.example else ""
    raise MatrixError(
        f"{where}: column {shown(column.name)} holds {column.kind}{example}; expected numbers: keep numeric columns "
        f"only"
    )


def phrase(columns: Sequence[Column]) -> str:
    """Return columns and what they hold, for a line such as "species, island (text)"."""
    kinds = dict.fromkeys(column.kind for column in columns)
    groups = ([column.name for column in columns if column.kind == kind] for kind in kinds)
    return "; ".join(f"{_listed(names)} ({kind})" for names, kind in zip(groups, kinds, strict=True))
