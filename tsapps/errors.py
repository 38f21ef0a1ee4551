"""The errors that users see at the command line, and the exit code of each."""

from enum import IntEnum
from unicodedata import category

from tsapps.kernels.backend import NoDeviceError

__all__ = [
    "CorruptionError",
    "ExitCode",
    "MatrixError",
    "MatrixUsageError",
    "NoDeviceError",
    "UsageError",
    "one_line",
]


def one_line(text: object) -> str:
    """Return text in one line, control characters escaped: names and bytes of files may hold anything."""
    line = " ".join(str(text).splitlines())
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() or category(c) == "Zs" else ascii(c)[1:-1] for c in line)


class ExitCode(IntEnum):
    """What a `tsapps` command tells the shell."""

    DONE = 0
    FAILURE = 1
    USAGE = 2
    CORRUPTION = 3
    NO_DEVICE = 4


class _OneLineError(ValueError):
    """An error whose message is one line, whatever the bytes of a file are that it quotes."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


class MatrixError(_OneLineError):
    """A file or array does not hold the matrix that it claims to hold (truncated, wrong header, NaN, …)."""


class CorruptionError(_OneLineError):
    """Data or checksums are not what they were, or computations are wrong, and what is right is not known."""


class UsageError(_OneLineError):
    """What was asked for cannot be done with what was given (an existing output, k larger than n, …)."""


class MatrixUsageError(MatrixError, UsageError):
    """A path names no matrix: there is no such file, its extension is unknown, it has no array of that name, …."""
