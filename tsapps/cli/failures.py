"""Conversion of exceptions to one line of stderr, which begins with ``tsapps:``, and an exit code."""

import sys
from typing import Any

import typer

from tsapps.errors import CorruptionError, ExitCode, NoDeviceError, UsageError, one_line

__all__ = ["REPORTED", "ParameterError", "explain", "explain_usage", "print_error"]

#: Types of exceptions that users can cause; `explain` decides which exceptions of these types are bugs.
REPORTED = (ValueError, TypeError, MemoryError, OSError, RuntimeError)

#: The base class of typer's usage errors, which typer does not export.
ParameterError: type[Exception] = typer.BadParameter.__mro__[1]


def explain(error: BaseException) -> tuple[str, ExitCode] | None:
    """Return the message and the exit code of an error; None for a bug, which needs a traceback."""
    if isinstance(error, UsageError):
        return str(error), ExitCode.USAGE
    if isinstance(error, CorruptionError):
        return str(error), ExitCode.CORRUPTION
    if isinstance(error, NoDeviceError):
        return str(error), ExitCode.NO_DEVICE
    if isinstance(error, MemoryError):
        return f"out of memory: {error}" if str(error) else "out of memory", ExitCode.FAILURE
    if isinstance(error, OSError):
        what = error.strerror or " ".join(map(str, error.args)) or type(error).__name__
        return f"{error.filename}: {what}" if error.filename is not None else what, ExitCode.FAILURE
    if isinstance(error, (ValueError, TypeError)):
        return str(error) or type(error).__name__, ExitCode.FAILURE
    if type(error).__module__.startswith("cupy"):
        return f"the GPU failed: {error}", ExitCode.FAILURE
    return None


def explain_usage(error: Any, command: str) -> str:
    """Return the message of a usage error of typer, in one line that ends with the advice to try --help.

    Parameters
    ----------
    error : ParameterError
    command : str
        The command to name in the advice if the error has no context, such as ``tsapps kmeans``.
    """
    text = " ".join(error.format_message().split()).rstrip(".")
    command = error.ctx.command_path if error.ctx is not None else command
    return f"{text[:1].lower()}{text[1:]} (try {command} --help)"


def print_error(message: object) -> None:
    """Print a message to stderr as one line."""
    print(f"tsapps: {one_line(message)}", file=sys.stderr)
