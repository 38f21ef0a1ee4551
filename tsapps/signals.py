"""Handling of SIGINT and SIGTERM: the command ends with one line on stderr and exit code 130 or 143.

Handlers are installed before any large import. Their action depends on the phase of the command:

starting
    Nothing is written yet: print the line, "interrupted" or "terminated", and end the process.
working
    Raise `Stopped`, so that temporary files are removed; `finish` then prints the line.
placing, placed
    A result is being renamed to its path, or has been renamed: let the command finish as without the signal.
ending
    The last line is being printed: do nothing.
ended
    The exit code is final and all output is printed: end the process with that code.

A second signal within `GRACE_SECONDS` of the first is ignored, because process managers may pass a signal on twice. A
later signal ends the process at once, except in the phase placing; the next command that writes to the same path
removes leftover temporary files.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import time
from contextlib import contextmanager, suppress

TYPE_CHECKING = False  # importing typing would take longer than all other imports of this module
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, NoReturn

__all__ = ["Stopped", "begin", "check", "end", "end_with", "finish", "install", "placed", "placing"]

GRACE_SECONDS = 1.0
_LINES = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}


class Stopped(BaseException):
    """Raised by the handlers to stop the command; no KeyboardInterrupt, for which typer prints another message."""


class _State:
    """Phase and exit code of the command; `stopped` is the number and the time of the first signal, if any."""

    phase = "starting"
    stopped: tuple[int, float] | None = None
    code = 0


def install() -> None:
    """Install the handlers, except for signals that the parent process set to be ignored."""
    for number in _LINES:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _handle)
    sys.unraisablehook = _unraisable
    atexit.register(_ignore)  # registered first, so called last


def _handle(number: int, _frame: object) -> None:
    phase, now = _State.phase, time.monotonic()
    if phase == "starting":
        _leave(number)
    elif phase == "ended":
        os._exit(_State.code)
    elif phase in ("working", "placed", "placing"):
        if _State.stopped is None:
            _State.stopped = number, now
            if phase == "working":
                raise Stopped
        elif phase != "placing" and now - _State.stopped[1] > GRACE_SECONDS:
            _leave(number)


def _leave(number: int) -> NoReturn:
    """Print the line for signal `number` and end the process at once."""
    after = " after the result was written" if _State.phase == "placed" else ""
    _State.phase = "ending"  # a signal that comes now is ignored
    with suppress(OSError):  # stderr may have no reader
        os.write(2, f"tsapps: {_LINES[signal.Signals(number)]}{after}\n".encode())
    os._exit(128 + number)


def _unraisable(found: Any) -> None:
    """End the process if `Stopped` was raised where Python cannot propagate it, such as while an object is deleted."""
    if isinstance(found.exc_value, Stopped) and _State.stopped is not None:
        _leave(_State.stopped[0])
    sys.__unraisablehook__(found)


def _ignore() -> None:
    """Ignore signals from now on: Python restores the default handlers just before it exits."""
    for number in _LINES:
        signal.signal(number, signal.SIG_IGN)


def begin() -> None:
    """Start the phase in which temporary files may exist: handlers raise `Stopped`."""
    _State.phase = "working"


@contextmanager
def placing(*, last: bool = True) -> Iterator[None]:
    """Delay signals while a result is renamed to its path; after the `last` result, they no longer stop the command."""
    _State.phase = "placing"
    try:
        yield
    except BaseException:
        _State.phase = "working"
        raise
    _State.phase = "placed" if last else "working"
    if not last:
        check()


def placed() -> None:
    """Mark all results as written: signals no longer stop the command."""
    _State.phase = "placed"


def check() -> None:
    """Raise `Stopped` if `placing` delayed a signal, or if another error replaced the `Stopped` of a signal."""
    if _State.stopped is not None and _State.phase == "working":
        raise Stopped


def end_with(message: str, code: int) -> None:
    """Print the last line of the command to stderr and make the exit code final."""
    _State.phase = "ending"
    print(f"tsapps: {message}", file=sys.stderr, flush=True)
    end(code)


def end(code: int) -> None:
    """Make the exit code final; to be called after all output is printed."""
    _State.code, _State.phase = code, "ended"


def finish() -> None:
    """Print the line for the signal that stopped the command, if any, and exit with its code."""
    if _State.stopped is not None and _State.phase == "working":
        number = _State.stopped[0]
        end_with(_LINES[signal.Signals(number)], 128 + number)
        raise SystemExit(128 + number)
