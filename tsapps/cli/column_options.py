"""Options that choose and prepare the columns of a table, and what a model keeps of them."""

import re
import warnings
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tsapps.cli.help import DATA
from tsapps.errors import MatrixError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from tsapps.matrix import Matrix
    from tsapps.matrix.columns import Column
    from tsapps.matrix.prepared import Learned
    from tsapps.matrix.registry import Identifiers, Opening

__all__ = [
    "Columns",
    "Decimal",
    "Exclude",
    "Identifier",
    "Missing",
    "MissingOption",
    "PreparedData",
    "Scale",
    "ScaleOption",
    "open_as_model",
    "open_data",
    "opening_of",
]

#: The label of a row that is left out.
LEFT_OUT = -1


class Scale(StrEnum):
    """How columns are scaled."""

    none = "none"
    standard = "standard"
    minmax = "minmax"
    robust = "robust"


class Missing(StrEnum):
    """What is done with missing values."""

    error = "error"
    drop = "drop"
    mean = "mean"


Columns = Annotated[
    str | None,
    typer.Option(
        metavar="NAME,…",
        help="Columns that are features, by name, or by number from 0 on.  [default: all columns of numbers]",
        rich_help_panel=DATA,
    ),
]
Exclude = Annotated[
    str | None,
    typer.Option(
        metavar="NAME,…",
        help="Columns that are no features.",
        rich_help_panel=DATA,
    ),
]
Identifier = Annotated[
    str | None,
    typer.Option(
        "--id",
        metavar="NAME",
        help="Column that identifies rows: no feature; --labels writes it again.",
        rich_help_panel=DATA,
    ),
]
ScaleOption = Annotated[
    Scale,
    typer.Option(
        help="Scale every column: to mean 0 and deviation 1 (standard), to 0 … 1 (minmax), or by its median and "
        "quartiles (robust).",
        rich_help_panel=DATA,
    ),
]
MissingOption = Annotated[
    Missing,
    typer.Option(
        help="Empty cells, NA, null and NaN: an error; drop the row (its label is -1); or take the column's mean.",
        rich_help_panel=DATA,
    ),
]
Decimal = Annotated[
    str,
    typer.Option(
        metavar=".|,",
        help="Text tables: the decimal point; tables with commas need other separators.",
        rich_help_panel=DATA,
    ),
]


def opening_of(
    *,
    columns: str | None = None,
    exclude: str | None = None,
    identifier: str | None = None,
    missing: Missing = Missing.error,
    decimal: str = ".",
    header: bool | None = None,
    index: bool | None = None,
    allow_external: bool = False,
) -> "Opening":
    """Return how DATA is opened with these options; columns without numbers are left out if none are named.

    Raises
    ------
    UsageError
        If a list of names is empty, or the decimal point is unknown.
    """
    from tsapps.matrix.columns import ColumnChoice, names_in
    from tsapps.matrix.registry import Opening

    if decimal not in (".", ","):
        raise UsageError(f"--decimal {decimal}: expected a point or a comma")
    names: dict[str, tuple[str, ...] | None] = {}
    for option, given in (("columns", columns), ("exclude", exclude)):
        try:
            names[option] = None if given is None else names_in(given)
        except ValueError as error:
            raise UsageError(f"--{option} {given}: {error}; expected names separated by commas") from error
        if names[option] == ():
            raise UsageError(f"--{option}: names no column; expected names separated by commas")
    choice = ColumnChoice(
        names["columns"],
        names["exclude"] or (),
        identifier,
        leaves_out=columns is None,
        missing=missing != Missing.error,
    )
    return Opening(header, index, allow_external, choice, missing=missing != Missing.error, decimal=decimal)


@dataclass(frozen=True)
class PreparedData:
    """DATA as it is clustered.

    Attributes
    ----------
    matrix : Matrix
        Its features, without the rows that are dropped, filled and scaled.
    rows : int
        The number of all rows.
    kept : numpy.ndarray of bool, shape (rows,), or None
        The rows that are not dropped; None for all.
    learned : Learned
    opening : Opening
    left_out : list of Column
        Columns that are no features because of what they hold.
    identifiers : Identifiers or None
    """

    matrix: "Matrix"
    rows: int
    kept: "np.ndarray | None"
    learned: "Learned"
    opening: "Opening"
    left_out: "list[Column]"
    identifiers: "Identifiers | None"

    def spread(self, values: "np.ndarray", others: float = LEFT_OUT) -> "np.ndarray":
        """Return values of all rows, from those of the rows that are kept, such as labels; the rest get `others`."""
        import numpy as np

        if self.kept is None:
            return values
        found = np.full(self.rows, others, values.dtype)
        found[self.kept] = values
        return found

    def scaled(self, points: "np.ndarray") -> "np.ndarray":
        """Return points in the units of the data as points in those of `matrix`."""
        import numpy as np

        if self.learned.shift is None or self.learned.divisor is None:
            return points
        return (points - np.array(self.learned.shift)) / np.array(self.learned.divisor)

    def restored(self, points: "np.ndarray") -> "np.ndarray":
        """Return points in the units of `matrix` as points in those of the data: the inverse of `scaled`."""
        import numpy as np

        if self.learned.shift is None or self.learned.divisor is None:
            return points
        return points * np.array(self.learned.divisor) + np.array(self.learned.shift)

    def record(self, scale: str, missing: str) -> dict[str, Any]:
        """Return what a model keeps, so that ``tsapps predict`` can prepare other data alike."""
        choice, learned = self.opening.choice, self.learned
        names = self.matrix.column_names
        return {
            "columns": None if names is None else list(names),
            "numbers": None if self.matrix.numbers is None else list(self.matrix.numbers),
            "left_out": [column.name for column in self.left_out],
            "id": None if choice is None else choice.identifier,
            "missing": {"how": missing, "rows_dropped": self.rows - self.matrix.shape[0], "means": learned.fill},
            "scale": {"how": scale, "shift": learned.shift, "divisor": learned.divisor},
        }


def open_data(data: str, opening: "Opening", scale: str, missing: str) -> PreparedData:
    """Open DATA, learn from it how its columns are prepared, and say which columns are left out."""
    from tsapps.matrix.prepared import Preparation, learn, prepared
    from tsapps.matrix.registry import open_columns

    matrix, left_out, identifiers = open_columns(data, opening)
    _warn(data, left_out)
    learned, kept = learn(matrix, Preparation(missing, scale))
    found = prepared(matrix, learned, kept)
    return PreparedData(found, matrix.shape[0], kept, learned, opening, left_out, identifiers)


def _warn(data: str, left_out: "list[Column]") -> None:
    from tsapps.matrix.columns import phrase

    if left_out:
        hint = "; --decimal , reads numbers such as 1,5" if any(map(_has_decimal_comma, left_out)) else ""
        warnings.warn(f"{data}: left out: {phrase(left_out)}; --columns chooses columns{hint}", stacklevel=3)


def _has_decimal_comma(column: "Column") -> bool:
    return column.kind == "text" and re.search(r" is '[+-]?\d+,\d+'$", column.example) is not None


def open_as_model(data: str, model: Path, trained: "Mapping[str, Any]", opening: "Opening") -> PreparedData:
    """Open DATA, with the columns that a model has and prepared as its data was.

    Parameters
    ----------
    data : str
    model : Path
    trained : mapping
        The summary of the model.
    opening : Opening
        The options of the text table; its choice only says which column identifies rows.
    """
    from tsapps.matrix.columns import ColumnChoice
    from tsapps.matrix.prepared import prepared, rows_kept
    from tsapps.matrix.registry import open_columns

    names, numbers, how, learned = _learned(model, trained)
    choice = ColumnChoice(
        names,
        identifier=None if opening.choice is None else opening.choice.identifier,
        leaves_out=names is None,
        by_position=names is not None,
        numbers=numbers,
        missing=how != Missing.error,
    )
    opening = replace(opening, choice=choice, missing=how != Missing.error)
    matrix, left_out, identifiers = open_columns(data, opening)
    if matrix.shape[1] != trained["d"]:
        raise UsageError(
            f"{data}: has {matrix.shape[1]} columns; expected {trained['d']}, like the centers in {model}: name other "
            f"data or another model"
        )
    kept = rows_kept(matrix) if how == Missing.drop else None
    return PreparedData(prepared(matrix, learned, kept), matrix.shape[0], kept, learned, opening, left_out, identifiers)


def _learned(
    model: Path, trained: "Mapping[str, Any]"
) -> tuple[tuple[str, ...] | None, tuple[int, ...] | None, str, "Learned"]:
    """Return the names or the numbers of a model's columns, what is done with missing values, and what was learned.

    Models that were made before these were kept have none of them.

    Raises
    ------
    MatrixError
        If the summary is damaged.
    """
    from tsapps.matrix.prepared import Learned

    missing, scale = trained.get("missing", {"how": "error"}), trained.get("scale", {})
    names, numbers = trained.get("columns"), trained.get("numbers")
    right = isinstance(missing, dict) and isinstance(scale, dict) and missing.get("how") in list(Missing)
    if right:
        learned = Learned(missing.get("means"), scale.get("shift"), scale.get("divisor"))
        kinds = {str: [names], int: [numbers], (int, float): [learned.fill, learned.shift, learned.divisor]}
        right = all(_is_list(one, trained["d"], kind) for kind, lists in kinds.items() for one in lists)
        right = right and (learned.shift is None) == (learned.divisor is None) and 0 not in (learned.divisor or ())
    if not right:
        raise MatrixError(f"{model / 'summary.json'}: is damaged: its columns do not match: run tsapps kmeans again")
    return names and tuple(names), numbers and tuple(numbers), missing["how"], learned


def _is_list(value: Any, length: int, kind: Any) -> bool:
    """Return whether a value of a JSON file is null, or a list of so many values of a kind."""
    return value is None or (
        isinstance(value, list) and len(value) == length and all(isinstance(x, kind) for x in value)
    )
