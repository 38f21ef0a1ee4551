"""``tsapps report``: a page on a result of ``tsapps kmeans``; also ``tsapps kmeans --report``."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tsapps import signals
from tsapps.cli.column_options import Decimal, PreparedData, open_as_model, opening_of
from tsapps.cli.help import OUTPUT
from tsapps.cli.options import AllowExternal, Header, Index, Quiet, check_input, check_output_file
from tsapps.cli.output import live_line, print_table
from tsapps.cli.result import read_labels, read_model
from tsapps.cli.verbose import Verbose, show_logs
from tsapps.errors import UsageError

if TYPE_CHECKING:
    import numpy as np

__all__ = ["ReportFile", "check_report", "report", "write_report"]

ReportFile = Annotated[
    Path | None,
    typer.Option(
        "--report",
        metavar="FILE.html",
        show_default=False,
        help="Also write a page on the result: sizes, silhouettes, a projection, centers, convergence.",
        rich_help_panel=OUTPUT,
    ),
]


def report(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL_DIR", show_default=False, help="Directory that tsapps kmeans wrote.")
    ],
    data: Annotated[
        str | None,
        typer.Argument(metavar="DATA", show_default=False, help="The data of the fit, if it is at another place now."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="FILE.html", show_default=False, help="Page to write.  [default: MODEL_DIR.html]"
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what exists.")] = False,
    allow_external: AllowExternal = False,
    decimal: Decimal = ".",
    header: Header = None,
    index: Index = None,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Write a page on a clustering: one HTML file that needs no network.

    It shows the sizes of clusters, silhouettes, a projection on two axes, the columns that tell clusters apart, and how
    the fit went. It reads the data of the fit again.
    """
    show_logs(verbose)
    out = out or Path(f"{os.path.basename(os.path.abspath(model))}.html")
    check_report(out, force=force)
    centers, trained = read_model(model)
    data = trained["input"] if data is None else data
    check_input(data, several=True)
    opening = opening_of(decimal=decimal, header=header, index=index, allow_external=allow_external)
    opened = open_as_model(data, model, trained, opening)
    labels = read_labels(model, len(centers))
    if len(labels) != opened.rows:
        raise UsageError(f"{data}: has {opened.rows} rows; expected {len(labels)}, the data that {model} was fitted to")
    with live_line(quiet=quiet) as show:
        show(f"reading {data}")
        write_report(out, opened, centers, labels if opened.kept is None else labels[opened.kept], trained)
    if not quiet:
        print_table({"written": str(out)})


def check_report(path: Path | None, *, force: bool) -> None:
    """Raise `UsageError` for a page that cannot be written."""
    if path is None:
        return
    if path.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"{path}: a report is an HTML page: name a file such as report.html")
    check_output_file(path, force=force)


def write_report(
    path: Path, data: PreparedData, centers: "np.ndarray", labels: "np.ndarray", summary: dict[str, Any]
) -> None:
    """Write a page, whole or not at all.

    Parameters
    ----------
    path : Path
    data : PreparedData
    centers : numpy.ndarray of shape (k, d)
        In the units of `data.matrix`.
    labels : numpy.ndarray of shape (rows that are kept,)
    summary : dict
        The contents of summary.json.
    """
    from tsapps.apps.kmeans.report.facts import facts_of
    from tsapps.apps.kmeans.report.page import page_of
    from tsapps.kernels.system.permissions import mode_of_result
    from tsapps.matrix import replacing

    facts = facts_of(data.matrix, centers, labels, metric=summary["metric"], seed=summary["seed"])
    page = page_of(summary, facts, data.restored(centers), data.matrix.column_names)
    mode = mode_of_result(path, [file for file, _ in data.matrix.files])
    with replacing(path, commit=signals.placing, mode=mode) as file:
        file.write(page.encode())
