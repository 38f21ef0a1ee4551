"""``tsapps bench report``: one HTML page of figures and tables from records."""

from pathlib import Path
from typing import Annotated

import typer

from tsapps.cli.bench_options import DEFAULT_OUT
from tsapps.cli.options import Json, Quiet, check_output_file
from tsapps.cli.output import print_json, print_text
from tsapps.errors import UsageError
from tsapps.kernels.system.atomic_write import write_bytes

__all__ = ["report"]

Inputs = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="RECORDS",
        show_default=False,
        help=f"Files of records, or directories with such .json files at any depth.  [default: {DEFAULT_OUT}]",
    ),
]


def report(
    inputs: Inputs = None,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE.html", help="Page to write.")] = Path("report.html"),
    force: Annotated[bool, typer.Option("--force", help="Replace FILE.html if it exists.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write one HTML page with the figures and tables of records, of any benchmark and of several machines.

    The page needs no network and no other file. Of a measurement that was repeated, the newest record counts. Records
    without a section of their own are printed as tables. The same records always give the same page.
    """
    from tsapps.bench.report import page, records

    check_output_file(out, force=force)
    try:
        files = records.files_of(inputs or [DEFAULT_OUT])
        found = records.read(files)
    except ValueError as error:
        raise UsageError(str(error)) from error
    if out.exists() and any(path.samefile(out) for path in files):
        raise UsageError(f"{out}: is a file of records: choose another --out")
    write_bytes(out, page.html(found).encode())
    if as_json:
        print_json({"file": str(out), "records": len(found), "inputs": [str(path) for path in files]})
    elif not quiet:
        print_text(f"{out}: {len(found):,} records of {len(files):,} file{'' if len(files) == 1 else 's'}")
