"""What the commands of ``tsapps bench`` share: options, the file of records, and a table that grows."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from tsapps import signals
from tsapps.cli.options import check_output_file
from tsapps.cli.output import print_json, print_text
from tsapps.errors import UsageError, one_line

__all__ = ["DEFAULT_OUT", "Columns", "Findings", "Limit", "ListShapes", "Out", "check_records", "number", "split_names"]

Out = Annotated[
    Path,
    typer.Option(
        "--out",
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
