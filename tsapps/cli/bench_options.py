"""What the commands of ``tsapps bench`` share: options, the file of records, and a table that grows."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from tsapps import signals
from tsapps.cli.options import check_output_file
from tsapps.cli.output import print_json, print_text
from tsapps.errors import UsageError, one_line
from tsapps.kernels.devices import Choice

__all__ = [
    "DEFAULT_OUT",
    "Columns",
    "Findings",
    "Limit",
    "ListShapes",
    "Out",
    "check_records",
    "listed_shapes",
    "number",
    "say_why_cpu",
    "shapes_of",
    "split_names",
]

T = TypeVar("T")

Out = Annotated[
    Path,
    typer.Option(
        "--out",
        "-o",
        metavar="FILE",
        help="File of records (JSON) to add the measurements to; they replace older ones of the same device.",
    ),
]
Limit = Annotated[
    float, typer.Option("--limit", metavar="SECONDS", min=0.001, help="Leave out what would take longer per call.")
]
ListShapes = Annotated[bool, typer.Option("--list", help="List what can be measured, and exit.")]

#: File of records of all commands, if none is given.
DEFAULT_OUT = Path("tsapps-bench.json")
# Least and largest width of a table that does not go to a terminal.
_WIDTH, _MOST_WIDTH = 120, 1000

# Columns of a table: headings, each with a function from a record to its text. The first is a name.
Columns = Sequence[tuple[str, Callable[[dict[str, Any]], str]]]


def check_records(path: Path) -> None:
    """Raise `UsageError` unless records can be added to a file."""
    from tsapps.bench.common import record

    check_output_file(path, force=True)
    try:
        for one in record.load(path):
            record.check(one, {})
    except ValueError as error:
        raise UsageError(f"{path} is no file of records: {error}; name another with --out") from error


def split_names(names: str | None) -> list[str] | None:
    """Return comma-separated names as a list, or None for None."""
    return None if names is None else [name.strip() for name in names.split(",")]


def shapes_of(names: str | None, named: Callable[[str], T]) -> list[T] | None:
    """Return the shapes that --shapes names, by a function from a name; None without the option.

    Raises
    ------
    UsageError
        If a name is not that of a shape.
    """
    try:
        return None if names is None else [named(name) for name in split_names(names) or ()]
    except ValueError as error:
        raise UsageError(f"--shapes: {error}") from error


def listed_shapes(on_gpu: Iterable[Any], on_cpu: Iterable[Any]) -> dict[str, str]:
    """Return the names of the default shapes on each device, as rows of a table."""
    devices = (("GPU", on_gpu), ("CPU", on_cpu))
    return {f"shapes on a {device}": ", ".join(shape.name for shape in shapes) for device, shapes in devices}


def say_why_cpu(what: str, choice: Choice, device: str, *, silent: bool) -> None:
    """Say what is measured on the CPU and why, unless the CPU was asked for."""
    if not (silent or choice.is_gpu) and device == "auto":
        print_text(f"{what} on the CPU: {choice.reason}.")


class Findings:
    """Records of a run, and lines on what has no record; shows them in tables while they come.

    Parameters
    ----------
    out : pathlib.Path
        The file that the records are in.
    quiet, as_json : bool
        Whether nothing, or only a summary as JSON, is shown.
    """

    def __init__(self, out: Path, *, quiet: bool, as_json: bool) -> None:
        self.out, self.quiet, self.as_json = out, quiet, as_json
        self.records: list[dict[str, Any]] = []
        self.left_out: list[str] = []

    def take(self, title: str, columns: Columns, found: Iterable[dict[str, Any] | str]) -> None:
        """Show records and lines in a table as they come, and keep them."""
        with growing_table(title, columns, live=not (self.quiet or self.as_json)) as add:
            for one in found:
                add(one)
                if isinstance(one, str):
                    self.left_out.append(one)
                else:
                    self.records.append(one)

    def report(self) -> None:
        """Print the summary; raise ValueError if a result was wrong."""
        from tsapps.bench.common.outcome import WRONG

        signals.placed()
        if self.as_json:
            print_json({"file": str(self.out), "records": self.records, "left_out": self.left_out})
        elif not self.quiet:
            print_text(f"{len(self.records)} records in {self.out}")
        wrong = [line for line in self.left_out if WRONG in line]
        if wrong:
            raise ValueError(f"wrong results: {len(wrong)} ({'; '.join(wrong[:3])})")


@contextmanager
def growing_table(title: str, columns: Columns, *, live: bool) -> Iterator[Callable[[dict[str, Any] | str], None]]:
    """Yield a function that adds a record, or a line on one that is missing, to a table that grows on stdout."""
    if not live:
        yield lambda _: None
        return
    from rich.console import Console
    from rich.live import Live
    from rich.markup import escape
    from rich.measure import Measurement
    from rich.table import Table

    console = Console(highlight=False)
    table = Table(title=title, title_justify="left", caption_justify="left", box=None)
    for place, (heading, _) in enumerate(columns):
        # Too wide for a terminal, a table breaks its texts: nothing is cut off.
        table.add_column(heading, justify="right" if place else "left", overflow="fold")

    def add(one: dict[str, Any] | str) -> None:
        if isinstance(one, str):
            line = escape(one_line(one))
            table.caption = f"{table.caption}\n{line}" if table.caption else line
        else:
            table.add_row(*(text(one) for _, text in columns))

    if console.is_terminal:
        with Live(table, console=console):
            yield add
        return
    try:
        yield add
    finally:  # also what was measured before Ctrl-C
        widest = console.options.update(max_width=_MOST_WIDTH)
        console.width = max(console.width, _WIDTH, Measurement.get(console, widest, table).maximum)
        console.print(table)


def number(value: float | None, form: str) -> str:
    """Return a number as text, or nothing for None."""
    return "" if value is None else format(value, form)
