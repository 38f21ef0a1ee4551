"""Terminal output of commands: a progress line or bar during work, then a table or JSON."""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tsapps.kernels.system.printable import one_line

__all__ = [
    "byte_bar",
    "duration",
    "gibibytes",
    "gigabytes",
    "live_line",
    "print_json",
    "print_table",
    "print_text",
    "seconds_by_phase",
]

# Minimum seconds between progress lines if stderr is not a terminal, so that a short run adds no line to a log.
_LOG_SECONDS = 10.0


@contextmanager
def live_line(*, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows a text on stderr: on a terminal as one rewritten line, else as lines of a log."""
    if quiet:
        yield lambda _: None
    elif not sys.stderr.isatty():
        yield _log()
    else:
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.table import Column

        text_column = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True))
        console = Console(stderr=True, highlight=False)
        with Progress(SpinnerColumn(), TimeElapsedColumn(), text_column, console=console, transient=True) as progress:
            task = progress.add_task("", total=None)
            yield lambda text: progress.update(task, description=one_line(text))


@contextmanager
def byte_bar(*, quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """Yield a function (what, bytes done, bytes in total) that shows progress on stderr: a bar, or lines of a log."""
    if quiet:
        yield lambda *_: None
    elif not sys.stderr.isatty():
        show = _log()
        yield lambda what, done, total: show(f"{what}: {gigabytes(done)} of {gigabytes(total)}")
    else:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.progress import TransferSpeedColumn as RateColumn

        console = Console(stderr=True, highlight=False)
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), RateColumn())
        with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as progress:
            task = progress.add_task("", total=None)

            def update(what: str, done: int, total: int) -> None:
                what = one_line(what)
                if progress.tasks[0].description != what:  # a new phase, whose transfer rate starts anew
                    progress.reset(task, description=what, total=total)
                progress.update(task, completed=done)

            yield update


def _log() -> Callable[[str], None]:
    last = time.monotonic()

    def show(text: str) -> None:
        nonlocal last
        if time.monotonic() - last >= _LOG_SECONDS:
            last = time.monotonic()
            print(f"tsapps: {one_line(text)}", file=sys.stderr, flush=True)

    return show


def print_json(summary: Mapping[str, Any]) -> None:
    """Print a summary to stdout as JSON."""
    print(json.dumps(summary, indent=2, allow_nan=False))


def print_text(line: object) -> None:
    """Print a line to stdout, with names from files and users escaped."""
    print(one_line(line))


def print_table(rows: Mapping[str, str]) -> None:
    """Print a table of two columns, name and value, to stdout."""
    width = max(map(len, rows))
    for what, value in rows.items():
        print_text(f"{what:{width}}  {value}")


def seconds_by_phase(seconds: Mapping[str, float]) -> str:
    """Format the total seconds and those of each phase, for example ``1.52 (read 0.01, iterate 1.51)``."""
    phases = ", ".join(f"{phase} {value:.2f}" for phase, value in seconds.items() if phase != "total")
    return f"{seconds['total']:.2f} ({phases})"


def duration(seconds: float) -> str:
    """Format a time by its two largest units: ``8 s``, ``3 min 56 s``, ``2 h 5 min``."""
    whole = max(1, round(seconds))
    minutes, hours = whole // 60, whole // 3600
    if hours:
        return f"{hours:,} h {minutes % 60} min"
    return f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"


def gigabytes(count: int) -> str:
    """Format a file size in decimal units: ``20.48 GB``, ``1.3 MB``, ``512 bytes``."""
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if count >= unit:
            return f"{count / unit:,.2f} {name}"
    return f"{count} bytes"


def gibibytes(count: int) -> str:
    """Format a memory size in GiB."""
    return f"{count / 2**30:,.1f} GiB"
