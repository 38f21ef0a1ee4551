"""Error classes of tsapps, and the exit codes of its commands."""

from enum import IntEnum
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tsapps.kernels.devices import NoDeviceError
from tsapps.kernels.system.printable import OneLineError, one_line

if TYPE_CHECKING:
    from tsapps.apps.kmeans import ClusterError, FaultError

__all__ = [
    "ClusterError",
    "CorruptionError",
    "EmptyMatrixError",
    "ExitCode",
    "FaultError",
    "MatrixError",
    "MatrixUsageError",
    "NoDeviceError",
    "UsageError",
    "one_line",
]


class ExitCode(IntEnum):
    """Exit code of a `tsapps` command."""

    DONE = 0
    FAILURE = 1
    USAGE = 2
    CORRUPTION = 3
    NO_DEVICE = 4


class MatrixError(OneLineError):
    """A file or array does not hold the matrix that it claims to hold (truncated, wrong header, NaN, …)."""


class EmptyMatrixError(MatrixError):
    """A file or array holds a matrix without rows."""


class CorruptionError(OneLineError):
    """Data or checksums are corrupted, or a computation is wrong, and the error cannot be repaired."""


class UsageError(OneLineError):
    """The request cannot be met with the given inputs (an existing output, k larger than n, …)."""


class MatrixUsageError(MatrixError, UsageError):
    """A path does not name a matrix: the file is missing, or its extension or the array's name is unknown."""


def __getattr__(name: str) -> Any:
    if name in ("ClusterError", "FaultError"):  # imported on first use, because their modules import NumPy
        return getattr(import_module("tsapps.apps.kmeans"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
