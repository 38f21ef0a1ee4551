"""Numbers of blocks of lines of a text table: by pyarrow where it is installed, else by `numpy.loadtxt`.

Both parsers round correctly, so that they give the same numbers. What pyarrow refuses is parsed by NumPy, whose
refusals count.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

__all__ = ["BOOLEANS", "MISSING", "CellForm", "numbers_in"]

# Bytes that pyarrow parses at a time, in parallel.
_ARROW_BYTES = 1 << 22

#: Cells without a value, as pandas reads them.
MISSING = frozenset(
    {"", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA"}
    | {"NULL", "NaN", "None", "n/a", "nan", "null"}
)
#: Cells of columns of booleans, in lower case, and their values.
BOOLEANS = {"true": 1.0, "false": 0.0}


class CellForm(NamedTuple):
    """How cells are written.

    Attributes
    ----------
    delimiter : str or None
        What separates cells; None for spaces.
    decimal : {".", ","}
    missing : bool
        Whether cells of `MISSING` are read as NaN.
    """

    delimiter: str | None
    decimal: str
    missing: bool


def numbers_in(
    lines: Sequence[str], cells: Sequence[int], n_cells: int, form: CellForm, booleans: frozenset[int] = frozenset()
) -> tuple[np.ndarray | None, str]:
    """Return some cells of each line as numbers.

    Parameters
    ----------
    lines : sequence of str
    cells : sequence of int
        Numbers of the cells in a line, from 0 on.
    n_cells : int
        The number of cells that each line must have.
    form : CellForm
    booleans : frozenset of int
        Those of the cells that are true or false, which are read as 1 and 0.

    Returns
    -------
    numbers : numpy.ndarray of float64, shape (lines, cells), or None
        C-contiguous; None if a cell is no number, or a line has another number of cells.
    reason : str
        Why there are no numbers.
    """
    found = _by_arrow(lines, cells, n_cells, form, booleans)
    return _by_numpy(lines, cells, n_cells, form, booleans) if found is None else (found, "")


@cache
def _arrow() -> Any:
    """Return pyarrow with its reader of text tables, or None if it is not installed."""
    try:
        import pyarrow.csv
    except ModuleNotFoundError:
        return None
    return pyarrow


def _by_arrow(
    lines: Sequence[str], cells: Sequence[int], n_cells: int, form: CellForm, booleans: frozenset[int]
) -> np.ndarray | None:
    """Return the numbers by pyarrow; None if it is not installed, or cannot read them."""
    arrow = None if form.delimiter is None else _arrow()
    if arrow is None:
        return None
    text, names = "".join(lines), [str(cell) for cell in range(n_cells)]
    types = {names[cell]: arrow.bool_() if cell in booleans else arrow.float64() for cell in cells}
    parse = arrow.csv.ParseOptions(delimiter=form.delimiter, newlines_in_values='"' in text)
    convert = arrow.csv.ConvertOptions(
        column_types=types,
        include_columns=list(types),
        null_values=sorted(MISSING) if form.missing else [],
        decimal_point=form.decimal,
        true_values=["true", "True", "TRUE"],
        false_values=["false", "False", "FALSE"],
    )
    read = arrow.csv.ReadOptions(column_names=names, block_size=_ARROW_BYTES)
    try:
        table = arrow.csv.read_csv(arrow.BufferReader(text.encode()), read, parse, convert)
    except arrow.ArrowException:
        return None
    if table.num_rows != len(lines):
        return None
    block = np.empty((len(lines), len(cells)))
    for feature, column in enumerate(table.columns):
        block[:, feature] = column.cast(arrow.float64()).to_numpy()
    return block


def _by_numpy(
    lines: Sequence[str], cells: Sequence[int], n_cells: int, form: CellForm, booleans: frozenset[int]
) -> tuple[np.ndarray | None, str]:
    """Return the numbers by `numpy.loadtxt`, or the reason why there are none."""
    converters: dict[int, Callable[[str], float]] = dict.fromkeys(set(range(n_cells)) - set(cells), _nothing)
    if form.missing or form.decimal != ".":
        converters |= dict.fromkeys(cells, partial(_number, form))
    converters |= dict.fromkeys(booleans.intersection(cells), partial(_boolean, form))
    how: Any = {"comments": None, "delimiter": form.delimiter, "converters": converters or None, "quotechar": '"'}
    try:
        block = np.loadtxt(lines, np.float64, ndmin=2, **how)
    except ValueError as error:
        return None, str(error)
    if block.shape != (len(lines), n_cells):
        return None, f"it has the shape {block.shape}"
    return np.ascontiguousarray(block[:, list(cells)]), ""


def _nothing(_: str) -> float:
    return 0.0


def _number(form: CellForm, cell: str) -> float:
    """Return a cell as a number, as `numpy.loadtxt` does without a converter."""
    text = cell.strip()
    if form.missing and text in MISSING:
        return np.nan
    written = text
    if form.decimal == ",":
        written = "" if "." in text else text.replace(",", ".")
    if "_" in written or not written.isascii():
        raise ValueError(f"{text!r} is no number")
    return float(written)


def _boolean(form: CellForm, cell: str) -> float:
    text = cell.strip()
    if form.missing and text in MISSING:
        return np.nan
    if text.lower() not in BOOLEANS:
        raise ValueError(f"{text!r} is neither true nor false")
    return BOOLEANS[text.lower()]
