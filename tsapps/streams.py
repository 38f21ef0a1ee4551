"""The standard streams of a command, and its warnings, whatever the process was started with.

A daemon may start a command with a stream closed, a shell with a pipe that nobody reads, and a test run with warnings
made errors. None of these is a reason not to do the work.
"""

import io
import os
import sys
import warnings
from contextlib import suppress

__all__ = ["prepare"]

# Those that Python does not show, unless it is asked to.
_SILENT = (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning)


def prepare() -> None:
    """Open closed streams, and see to it that neither what is printed to stderr nor a warning ends the command."""
    _open_closed()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a file's name may hold what the terminal's encoding lacks
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr = _Messages(sys.stderr.detach(), sys.stderr.encoding, "backslashreplace", line_buffering=True)
    if any(action == "error" for action, *_ in warnings.filters):
        _show_warnings()


def _open_closed() -> None:
    """Open the null device where a stream is closed; else the next file that is opened would get its messages."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 (until the end)


def _show_warnings() -> None:
    """Restore Python's own treatment of warnings, for this process and those that it starts."""
    os.environ.pop("PYTHONWARNINGS", None)
    sys.warnoptions.clear()
    warnings.resetwarnings()
    for category in _SILENT:
        warnings.simplefilter("ignore", category)


class _Messages(io.TextIOWrapper):
    """A stream for messages that may be lost: its reader may have gone, or its disk be full."""

    def write(self, text: str, /) -> int:
        with suppress(OSError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            super().flush()
