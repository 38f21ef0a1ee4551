"""SIGINT and SIGTERM at the command line: one line on stderr and exit code 130 or 143, at whatever moment they come.

Handlers are installed before anything large is imported. What they do depends on how far the command is:

starting
    Nothing is written yet: they write the line and end the process.
working
    They raise `Stopped`, so that temporaries are removed; `finish` then writes the line.
placing, placed
    A result takes its place, or has it: the command finishes, with its own exit code.
ending
    The last line is being written: they do nothing.
ended
    The exit code is settled, and what is printed is printed: they end the process with it.

A second signal within `GRACE_SECONDS` is taken for the first one, which programs that start others pass on twice. One
that comes later ends the process at once; the next writer to the same path removes what then may be left.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import time
from contextlib import contextmanager, suppress

TYPE_CHECKING = False  # without the import of typing, which takes longer than all others here
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, NoReturn

__all__ = ["Stopped", "begin", "check", "end", "end_with", "finish", "install", "placed", "placing"]

GRACE_SECONDS = 1.0
_LINES = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}


class Stopped(BaseException):
    """A signal asks the command to stop. Not KeyboardInterrupt, for which typer has words of its own."""


class _State:
    """How far the command is; `stopped`: the first signal, and when it came."""

    phase = "starting"
    stopped: tuple[int, float] | None = None
    code = 0


def install() -> None:
    """Install the handlers; a signal that the process was started to ignore stays ignored."""
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
    """End the process at once, with the line."""
    after = " after the result was written" if _State.phase == "placed" else ""
    _State.phase = "ending"  # a signal that comes now is ignored
    with suppress(OSError):  # nobody reads stderr
        os.write(2, f"tsapps: {_LINES[signal.Signals(number)]}{after}\n".encode())
    os._exit(128 + number)


def _unraisable(found: Any) -> None:
    """Python may run a handler where no exception can leave, as while an object is deleted."""
    if isinstance(found.exc_value, Stopped) and _State.stopped is not None:
        _leave(_State.stopped[0])
    sys.__unraisablehook__(found)


def _ignore() -> None:
    """Ignore signals from here on: Python restores the default handlers when it is about to end."""
    for number in _LINES:
        signal.signal(number, signal.SIG_IGN)


def begin() -> None:
    """From here on, there may be something to remove: handlers raise `Stopped`."""
    _State.phase = "working"


@contextmanager
def placing(*, last: bool = True) -> Iterator[None]:
    """Hold signals back while a result takes its place; if it is the `last` one, the command finishes then."""
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
    """All results are in place: the command finishes."""
    _State.phase = "placed"


def check() -> None:
    """Raise `Stopped` if a signal came and was held back, or was lost in code that ends with another error."""
    if _State.stopped is not None and _State.phase == "working":
        raise Stopped


def end_with(message: str, code: int) -> None:
    """Write one line to stderr as the command's last; the exit code is settled."""
    _State.phase = "ending"
    print(f"tsapps: {message}", file=sys.stderr, flush=True)
    end(code)


def end(code: int) -> None:
    """Settle the exit code; everything is printed."""
    _State.code, _State.phase = code, "ended"


def finish() -> None:
    """Write the line and exit, if the command was stopped by a signal."""
    if _State.stopped is not None and _State.phase == "working":
        number = _State.stopped[0]
        end_with(_LINES[signal.Signals(number)], 128 + number)
        raise SystemExit(128 + number)
