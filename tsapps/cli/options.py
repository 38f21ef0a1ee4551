"""Options that commands share, and the checks of files and devices that come before any data is read."""

import errno
import os
import resource
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tsapps.cli.output import gigabytes
from tsapps.errors import MatrixError, UsageError
from tsapps.kernels.devices import Choice, choose_device
from tsapps.names import split_name

if TYPE_CHECKING:
    from tsapps.matrix import Matrix

__all__ = [
    "AllowExternal",
    "Data",
    "Device",
    "Header",
    "Index",
    "Json",
    "Quiet",
    "check_input",
    "check_output_file",
    "check_room",
    "check_writable",
    "choose",
    "open_fitting",
    "stem",
]

Data = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        show_default=False,
        help="Matrix of n rows (samples) and d columns (features), as tsapps kmeans --help says.",
    ),
]
Device = Annotated[
    str,
    typer.Option(
        "--device",
        metavar="auto|cpu|cuda|cuda:i",
        help="Where to compute; auto takes a GPU if there is one, else the CPU.",
    ),
]
AllowExternal = Annotated[
    bool,
    typer.Option(
        "--allow-external",
        help="Read other files that an HDF5 file names, by links or as parts of a dataset: any file of this machine.",
    ),
]
Header = Annotated[
    bool | None,
    typer.Option(
        "--header/--no-header",
        show_default=False,
        help="Text tables: the first line of DATA is names, or numbers.  [default: as its form says]",
    ),
]
Index = Annotated[
    bool | None,
    typer.Option(
        "--index/--no-index",
        show_default=False,
        help="Text tables: leave out the first column of DATA, or keep it.  [default: leave it out if it has no name "
        "and counts the rows 0, 1, 2, …]",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the summary as JSON to stdout, and nothing else there.")]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print no progress and no table; warnings, errors and --json still are.")
]


def stem(path: str) -> str:
    """Return what outputs are named after: ``x`` for ``some/x.npy``, ``x-train-images`` for ``x.h5:train/images``."""
    file, name = split_name(path)
    return "-".join([Path(file).stem, *filter(None, (name or "").split("/"))])


def check_input(path: str) -> None:
    """Raise `UsageError` unless there is such a file."""
    if not os.path.exists(split_name(path)[0]):
        raise UsageError(f"{path}: no such file: check the path")


def check_output_file(path: Path, *, force: bool) -> None:
    """Raise `UsageError` unless a file may be written there."""
    if path.is_dir():
        raise UsageError(f"{path}: is a directory: name a file in it")
    if os.path.lexists(path) and not force:
        raise UsageError(f"{path}: already exists: choose another name, or replace it with --force")
    check_writable(path)


def check_writable(path: Path) -> None:
    """Raise `UsageError` unless the directory that `path` is to lie in can be written to."""
    parent = Path(os.path.realpath(path)).parent
    if not parent.is_dir():
        raise UsageError(f"{path}: there is no directory {parent}: make it first (mkdir -p)")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise UsageError(f"{path}: the directory {parent} may not be written to: choose another place")


def check_room(path: Path, *sizes: int) -> None:
    """Raise `OSError` unless files of these bytes have room on the file system that `path` is to lie on.

    Commands call it before the work: an output that finds no room would cost hours. `os.statvfs` knows nothing of
    quotas; writing still says so.
    """
    parent = os.path.dirname(os.path.realpath(path))
    system = os.statvfs(parent)
    free = system.f_bavail * system.f_frsize
    if system.f_blocks and sum(sizes) > free:  # some network file systems tell neither
        raise OSError(
            errno.ENOSPC,
            f"{gigabytes(sum(sizes))} are to be written there, and its disk has {gigabytes(free)} free: make room, or "
            f"choose another place",
            os.fspath(path),
        )
    most = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if most != resource.RLIM_INFINITY and max(sizes) > most:
        raise OSError(
            errno.EFBIG,
            f"{gigabytes(max(sizes))} are to be written there, and this process may write files of {gigabytes(most)}: "
            f"raise ulimit -f",
            os.fspath(path),
        )


def choose(device: str, *, resident: int | None = None) -> Choice:
    """Choose the device as `choose_device` does; what is no device is wrong use.

    Raises
    ------
    UsageError
        If `device` is no device's name.
    NoDeviceError
        If a GPU is asked for that is not there.
    """
    try:
        return choose_device(device, resident=resident)
    except ValueError as error:
        raise UsageError(f"--{error}") from error


def open_fitting(path: str, fits: Callable[[tuple[int, int]], bool], *, allow_external: bool = False) -> "Matrix":
    """Open a matrix whose shape is known; of a text table that can be read in two ways, the shape says which.

    Parameters
    ----------
    path : str
    fits : callable
        Returns whether a shape is the one that is expected.
    allow_external : bool
        As for `open_matrix`.

    Raises
    ------
    MatrixError
        As `open_matrix`; if a table can be read in several ways, and none fits.
    """
    from tsapps.matrix import open_matrix
    from tsapps.matrix.table_form import AmbiguousTableError

    try:
        return open_matrix(path, allow_external=allow_external)
    except AmbiguousTableError as ambiguous:
        for header, index in product((False, True), repeat=2):
            try:
                matrix = open_matrix(path, header=header, index=index)
            except MatrixError:
                continue  # names that are read as numbers, for example
            if fits(matrix.shape):
                return matrix
        raise ambiguous
