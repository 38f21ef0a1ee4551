"""Tables of labels: the identifier or the number of each row, its label, and its distance from the center on demand."""

import csv
import io
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tsapps import signals
from tsapps.cli.column_options import PreparedData
from tsapps.cli.help import OUTPUT
from tsapps.cli.options import check_output_file
from tsapps.errors import MatrixError, UsageError

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Distances", "LabelFile", "check_label_file", "save_label_table", "save_named_centers"]

_FORMATS = (".csv", ".parquet", ".npy")
# Rows that are written at a time.
_ROWS = 1 << 16

LabelFile = Annotated[
    Path | None,
    typer.Option(
        "--labels",
        metavar="FILE",
        show_default=False,
        help="Also write a table of labels, .csv, .parquet or .npy: the --id column or the number of each row, and its "
        "label.",
        rich_help_panel=OUTPUT,
    ),
]
Distances = Annotated[
    bool,
    typer.Option(
        "--distances", help="With --labels: also each row's distance from its center.", rich_help_panel=OUTPUT
    ),
]


def check_label_file(path: Path | None, *, force: bool, identifier: str | None, distances: bool) -> None:
    """Raise an error for a table of labels that cannot be written.

    Raises
    ------
    UsageError
        If the file cannot be written, or has another format, or a column would have the name of another.
    MatrixError
        If a library for the format is missing.
    """
    if path is None:
        if distances:
            raise UsageError("--distances: are written to a table of labels, which --labels names")
        return
    suffix = path.suffix.lower()
    if suffix not in _FORMATS:
        raise UsageError(f"--labels {path}: has the extension {suffix!r}; expected one of {', '.join(_FORMATS)}")
    if identifier in ("label", "distance"):
        raise UsageError(f"--id {identifier}: tables of labels have a column of this name: rename it")
    if suffix == ".parquet":
        from tsapps.matrix.optional import optional_module

        optional_module("pyarrow.parquet", os.fspath(path))
    if suffix == ".npy" and (identifier is not None or distances):
        raise UsageError(f"--labels {path}: an array has labels alone; name a .csv or .parquet file for more columns")
    check_output_file(path, force=force)


def save_label_table(
    path: Path,
    data: PreparedData,
    centers: "np.ndarray",
    labels: "np.ndarray",
    *,
    distances: bool,
    metric: str,
    sources: Iterable[str | os.PathLike[str]],
) -> None:
    """Write a table of labels, whole or not at all.

    Parameters
    ----------
    path : Path
        Its extension selects the format.
    data : PreparedData
    centers : numpy.ndarray of shape (k, d)
        In the units of `data.matrix`.
    labels : numpy.ndarray of int32, shape (rows that are kept,)
    distances : bool
        Whether the table has the distance of each row from its center, NaN for rows that are dropped.
    metric : {"euclidean", "cosine"}
    sources : iterable of path-like
        Files besides those of the data that the labels come from; their permissions limit those of the table.

    Raises
    ------
    OSError
        If the disk is full or fails.
    """
    import numpy as np

    from tsapps.kernels.system.permissions import mode_of_result
    from tsapps.matrix import replacing, save_npy

    mode = mode_of_result(path, [*(file for file, _ in data.matrix.files), *sources])
    far = None
    if distances:
        from tsapps.apps.kmeans.data.distances import distances_of_labels

        found = distances_of_labels(data.matrix, centers, labels, cosine=metric == "cosine")
        far = data.spread(found, np.nan)
    suffix, labels = path.suffix.lower(), data.spread(labels)
    if suffix == ".npy":
        save_npy(path, labels, commit=signals.placing, mode=mode)
        return
    with replacing(path, commit=signals.placing, mode=mode) as file:
        (_write_csv if suffix == ".csv" else _write_parquet)(file, data, labels, far)


def save_named_centers(path: Path, data: PreparedData, centers: "np.ndarray", *, mode: int) -> None:
    """Write centers as a text table with the names of the columns, in the units of the data.

    Nothing is written if columns have no names and were not scaled: the table would only repeat the array of centers.
    """
    from tsapps.matrix import replacing

    names = data.matrix.column_names
    if names is None and data.learned.shift is None:
        return
    rows = data.restored(centers).tolist()
    with replacing(path, mode=mode) as file, _text(file) as text:
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["cluster", *(names or map(str, range(centers.shape[1])))])
        writer.writerows([number, *row] for number, row in enumerate(rows))


@contextmanager
def _text(file: Any) -> Iterator[io.TextIOWrapper]:
    """Yield a binary file as a text file; the binary file stays open."""
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    try:
        yield text
    finally:
        text.detach()


def _identifiers(data: PreparedData) -> Iterator[Any]:
    """Yield the identifiers of all rows in blocks: lists, NumPy or Arrow arrays. By default, they are row numbers."""
    import numpy as np

    if data.identifiers is not None:
        yield from data.identifiers.blocks()
        return
    for start in range(0, data.rows, _ROWS):
        yield np.arange(start, min(start + _ROWS, data.rows))


def _name(data: PreparedData) -> str:
    return "row" if data.identifiers is None else data.identifiers.name


def _write_csv(file: Any, data: PreparedData, labels: "np.ndarray", distances: "np.ndarray | None") -> None:
    names = [_name(data), "label", *(["distance"] if distances is not None else [])]
    with _text(file) as text:
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(names)
        for start, block in _placed(data):
            end = start + len(block)
            columns = [list(block) if isinstance(block, list) else block.tolist(), labels[start:end].tolist()]
            if distances is not None:
                columns.append(["" if isnan(value) else value for value in distances[start:end].tolist()])
            writer.writerows(zip(*columns, strict=True))


def _write_parquet(file: Any, data: PreparedData, labels: "np.ndarray", distances: "np.ndarray | None") -> None:
    import pyarrow
    from pyarrow import parquet

    name, blocks = _name(data), _placed(data)
    begin, block = next(blocks)
    kind = pyarrow.array(block).type
    far = [] if distances is None else [("distance", pyarrow.float64())]
    with parquet.ParquetWriter(file, pyarrow.schema([(name, kind), ("label", pyarrow.int32()), *far])) as writer:
        for start, one in chain([(begin, block)], blocks):
            end = start + len(one)
            try:
                columns = [pyarrow.array(one).cast(kind), pyarrow.array(labels[start:end])]
            except pyarrow.ArrowException as error:
                raise MatrixError(f"--id {name}: the files have identifiers of several types: {error}") from error
            if distances is not None:
                columns.append(pyarrow.array(distances[start:end], from_pandas=True))
            writer.write_table(pyarrow.table(columns, schema=writer.schema))


def _placed(data: PreparedData) -> Iterator[tuple[int, Any]]:
    """Yield the identifiers of all rows in blocks, with the numbers of their first rows.

    Raises
    ------
    MatrixError
        If there are more or fewer than rows: the file has changed.
    """
    from tsapps.matrix.checks import changed

    start = 0
    for block in _identifiers(data):
        if start + len(block) > data.rows:
            raise changed(data.matrix.name)
        yield start, block
        start += len(block)
    if start != data.rows:
        raise changed(data.matrix.name)
