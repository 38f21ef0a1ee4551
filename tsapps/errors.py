"""The errors that users see at the command line, and the exit code of each."""

from enum import IntEnum

from tsapps.kernels.devices import NoDeviceError
from tsapps.kernels.system.printable import OneLineError, one_line

__all__ = [
    "CorruptionError",
    "ExitCode",
    "MatrixError",
    "MatrixUsageError",
    "NoDeviceError",
    "UsageError",
    "one_line",
]


class ExitCode(IntEnum):
    """What a `tsapps` command tells the shell."""

    DONE = 0
    FAILURE = 1
    USAGE = 2
    CORRUPTION = 3
    NO_DEVICE = 4


class MatrixError(OneLineError):
    """A file or array does not hold the matrix that it claims to hold (truncated, wrong header, NaN, …)."""


class CorruptionError(OneLineError):
    """Data or checksums are not what they were, or computations are wrong, and what is right is not known."""


class UsageError(OneLineError):
    """What was asked for cannot be done with what was given (an existing output, k larger than n, …)."""


class MatrixUsageError(MatrixError, UsageError):
    """A path names no matrix: there is no such file, its extension is unknown, it has no array of that name, …."""
