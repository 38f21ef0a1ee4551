"""Standard streams and warnings of a command, made safe for any environment.

A daemon may start a command with a closed stream, a shell may start it with a pipe that has no reader, and a test run
may turn warnings into errors. The command must work in all these cases.
"""

import io
import os
import sys
import warnings
from contextlib import suppress

__all__ = ["prepare"]

# Warnings that Python hides by default.
_SILENT = (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning)


def prepare() -> None:
    """Open closed streams, and make sure that neither failed writes to stderr nor warnings end the command."""
    _open_closed()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # file names may not be encodable for the terminal
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr = _Messages(sys.stderr.detach(), sys.stderr.encoding, "backslashreplace", line_buffering=True)
    if any(action == "error" for action, *_ in warnings.filters):
        _show_warnings()


def _open_closed() -> None:
    """Open the null device for each closed stream; otherwise the next opened file would receive the stream's output."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free descriptor, which is `number`
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 (until the end)


def _show_warnings() -> None:
    """Restore Python's default warning filters, in this process and its child processes: warnings raise no errors."""
    os.environ.pop("PYTHONWARNINGS", None)
    sys.warnoptions.clear()
    warnings.resetwarnings()
    for category in _SILENT:
        warnings.simplefilter("ignore", category)


class _Messages(io.TextIOWrapper):
    """A text stream that ignores write errors: the reader of a pipe may be gone, or a disk full."""

    def write(self, text: str, /) -> int:
        with suppress(OSError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            super().flush()
