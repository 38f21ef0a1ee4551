"""``--verbose``: lines on stderr about what the package logs (kernels/system/logs.py)."""

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, TextIO

import typer

from tsapps.cli.help import OUTPUT
from tsapps.kernels.system.logs import PACKAGE
from tsapps.kernels.system.printable import one_line

__all__ = ["Verbose", "show_logs", "showing_logs"]

Verbose = Annotated[
    int,
    typer.Option(
        "--verbose",
        "-v",
        count=True,
        show_default=False,
        help="Say on stderr what is read and written, which device and kernels are chosen and why, and how long stages "
        "take; -vv: with details.",
        rich_help_panel=OUTPUT,
    ),
]

_package = logging.getLogger(PACKAGE)


class _Lines(logging.StreamHandler[TextIO]):
    """Writes each record as one line, with the seconds since the first request; with the logger's name for DEBUG."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)
        self.count, self._began = 0, time.perf_counter()

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        """The stderr of now: a progress line replaces it, so that other lines appear above."""
        return sys.stderr

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        name = f"{record.name.removeprefix(f'{PACKAGE}.')}: " if self.count > 1 else ""
        level = "" if record.levelno < logging.WARNING else f"{record.levelname.lower()}: "
        return one_line(f"tsapps: [{time.perf_counter() - self._began:.2f} s] {name}{level}{super().format(record)}")


def show_logs(count: int) -> None:
    """Show what the package logs: nothing for a count of 0, INFO for 1, DEBUG for more; counts of a command add up."""
    if count == 0:
        return
    lines = next((one for one in _package.handlers if isinstance(one, _Lines)), None)
    if lines is None:
        lines = _Lines()
        _package.addHandler(lines)
    lines.count += count
    _package.setLevel(logging.INFO if lines.count == 1 else logging.DEBUG)


@contextmanager
def showing_logs() -> Iterator[None]:
    """Undo at the end of the ``with`` block what `show_logs` did in it."""
    level = _package.level
    try:
        yield
    finally:
        for one in [one for one in _package.handlers if isinstance(one, _Lines)]:
            _package.removeHandler(one)
        _package.setLevel(level)
