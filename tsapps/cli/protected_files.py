"""Common parts of ``tsapps protect``, ``verify`` and ``repair``: options, status lines, the summary and exit codes."""

import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tsapps import signals
from tsapps.cli.abft_report import print_line
from tsapps.cli.failures import print_error
from tsapps.cli.help import OUTPUT
from tsapps.cli.output import byte_bar, gigabytes, print_text
from tsapps.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from tsapps.apps.abft.files.report import FileReport
    from tsapps.apps.abft.files.run import Progress

__all__ = ["Jobs", "JsonLines", "Paths", "Sidecars", "counting", "end", "print_reports"]

Paths = Annotated[
    list[str],
    typer.Argument(
        metavar="PATH", show_default=False, help="Files of any kind, globs, and directories with all in them"
    ),
]
Sidecars = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Directory for the sidecars and manifests of one PATH, such as one that is read-only.  [default: beside "
        "the files]",
    ),
]
Jobs = Annotated[int | None, typer.Option(min=1, help="Files to read at a time.  [default: number of cores]")]
JsonLines = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print only lines of JSON to stdout, one per file; the last one is a summary.",
        rich_help_panel=OUTPUT,
    ),
]
# States that are no trouble.
_GOOD = ("protected", "unchanged", "ok", "forgotten", "unprotected", "skipped")


@contextmanager
def counting(what: str, paths: Iterable[str], *, quiet: bool) -> Iterator["Progress"]:
    """Yield a function that counts bytes and shows the progress on stderr; turn errors of paths into `UsageError`."""
    from tsapps.apps.abft.files.parity import ParityError
    from tsapps.apps.abft.files.places import PlaceError, targets_of

    done = 0
    try:
        total = 0 if quiet else sum(target.n_bytes for target in targets_of(paths, exist=False))
        with byte_bar(quiet=quiet) as show:

            def count(n_bytes: int) -> None:
                nonlocal done
                done += n_bytes
                show(what, done, max(done, total))

            yield count
    except (PlaceError, ParityError) as error:
        raise UsageError(str(error)) from error


def print_reports(reports: Iterable["FileReport"], *, as_json: bool, quiet: bool) -> tuple[Counter[str], int]:
    """Print a line for each report as it comes; return the number of files by state, and the bytes of all files."""
    states: Counter[str] = Counter()
    n_bytes = 0
    for report in reports:
        states[report.state] += 1
        n_bytes += report.n_bytes
        if as_json:
            print_line(_as_json(report))
        elif not quiet:
            size = f"  {gigabytes(report.n_bytes)}" if report.n_bytes and not report.message else ""
            print_text(f"{report.state:11}  {report.path}{size}{f': {report.message}' if report.message else ''}")
        elif report.state not in _GOOD:
            print_error(f"{report.path}: {report.state}: {report.message}")
    return states, n_bytes


def _as_json(report: "FileReport") -> dict[str, Any]:
    line: dict[str, Any] = {
        "what": report.kind,
        "path": os.path.abspath(report.path),
        "state": report.state,
        "bytes": report.n_bytes,
    }
    if report.message:
        line |= {"message": report.message, "words": report.words, "tensors": list(report.tensors)}
    return line


def end(states: Counter[str], n_bytes: int, began: float, *, as_json: bool, quiet: bool) -> None:
    """Print the summary, and exit with the code that belongs to the states, unless it is 0."""
    from tsapps.apps.abft.files.report import BAD

    signals.placed()
    seconds = time.perf_counter() - began
    code = ExitCode.DONE
    if any(states[state] for state in BAD):
        code = ExitCode.CORRUPTION
    elif states["failed"]:
        code = ExitCode.FAILURE
    if as_json:
        print_line({"what": "summary", "states": dict(states), "bytes": n_bytes, "seconds": seconds, "code": int(code)})
    elif not quiet:
        counts = ", ".join(f"{count:,} {state}" for state, count in sorted(states.items())) or "no files"
        print_text(f"{counts}; {gigabytes(n_bytes)} in {seconds:.2f} s ({gigabytes(int(n_bytes / seconds))} a second)")
    if code:
        sys.stdout.flush()  # raises BrokenPipeError for a closed pipe, as other commands do
        raise typer.Exit(code)
