"""Options that several commands have, and checks of files and devices that run before any data is read."""

import errno
import os
import re
import resource
from collections.abc import Callable, Iterable, Mapping
from glob import has_magic
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tsapps.cli.help import COMPUTATION, DATA, OUTPUT
from tsapps.cli.output import gigabytes
from tsapps.errors import MatrixError, UsageError
from tsapps.kernels.devices import Choice, choose_device
from tsapps.names import extension_of, split_name

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
    "check_apart",
    "check_disk_space",
    "check_input",
    "check_output_file",
    "check_writable",
    "choose",
    "is_pattern",
    "open_fitting",
    "stem",
]

# What `Devices` takes without "cuda:".
_NUMBERS = re.compile(r"all|\d+(,\d+)*")
Data = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        show_default=False,
        help="Matrix of n rows (samples) and d columns (features), in a format that tsapps kmeans --help lists; or "
        "several files as one matrix: a directory, or a quoted pattern such as 'points/*.parquet'.",
    ),
]
Device = Annotated[
    str,
    typer.Option(
        "--device",
        metavar="auto|cpu|cuda|cuda:i",
        help="Device to compute on; auto: a GPU if there is one, else the CPU.",
        rich_help_panel=COMPUTATION,
    ),
]
Devices = Annotated[
    str,
    typer.Option(
        "--device",
        "--devices",
        metavar="auto|cpu|cuda|cuda:i|cuda:i,j|all",
        callback=lambda given: f"cuda:{given}" if _NUMBERS.fullmatch(given) else given,
        help="Device to compute on; auto: a GPU if there is one, else the CPU. 'all' and 'cuda:0,1' distribute the "
        "rows over several GPUs of this machine, whose results have the bits of one GPU; they need NCCL.",
        rich_help_panel=COMPUTATION,
    ),
]
AllowExternal = Annotated[
    bool,
    typer.Option(
        "--allow-external",
        help="Allow an HDF5 file to name other files, by links or as parts of a dataset: any file of this machine.",
        rich_help_panel=DATA,
    ),
]
Header = Annotated[
    bool | None,
    typer.Option(
        "--header/--no-header",
        show_default=False,
        help="Text tables: whether the first line of DATA holds names.  [default: inferred]",
        rich_help_panel=DATA,
    ),
]
Index = Annotated[
    bool | None,
    typer.Option(
        "--index/--no-index",
        show_default=False,
        help="Text tables: whether to skip the first column of DATA.  [default: skip it if it has no name and counts "
        "the rows 0, 1, 2, …]",
        rich_help_panel=DATA,
    ),
]
Json = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print only the summary to stdout, as JSON.",
        rich_help_panel=OUTPUT,
    ),
]
Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet",
        "-q",
        help="Print only warnings, errors and the output of --json.",
        rich_help_panel=OUTPUT,
    ),
]


def stem(path: str) -> str:
    """Return the base name of outputs: ``x`` for ``some/x.npy``, ``x-train-images`` for ``x.h5:train/images``.

    For a directory it is its name. For a pattern it is what comes before the first special character, or else the name
    of the directory there: ``part`` for ``some/part-*.npy``, and ``some`` for ``some/*.npy`` and ``some/*/x.npy``.
    """
    file, name = split_name(path)
    if os.path.isdir(file):
        found = os.path.basename(os.path.abspath(file))
    elif is_pattern(path):
        before, _, after = re.split(r"([*?[])", path, maxsplit=1)
        directory, start = os.path.split(before)
        found = start.rstrip("-_. ") or os.path.basename(os.path.abspath(directory))
        name = after.rpartition(":")[2] if ":" in after else None
    else:
        found = os.path.basename(file)
        found = found[: len(found) - len(extension_of(found))]
    return "-".join([found or "matrix", *filter(None, (name or "").split("/"))])


def is_pattern(path: str) -> bool:
    """Return True if a path has characters of a pattern, and is no file."""
    return has_magic(path) and not os.path.exists(split_name(path)[0])


def check_input(path: str, *, several: bool = False) -> None:
    """Raise `UsageError` unless the file of `path`, which may be ``FILE`` or ``FILE:NAME``, exists.

    With `several`, a directory or a pattern with at least one file is accepted too.
    """
    file = split_name(path)[0]
    if several and (os.path.isdir(path) or is_pattern(path)):
        from tsapps.matrix.joined import matching_files
        from tsapps.matrix.registry import EXTENSIONS

        matching_files(path, EXTENSIONS)
    elif os.path.isdir(file):
        raise UsageError(f"{path}: is a directory: name a file in it")
    elif not os.path.exists(file):
        raise UsageError(f"{path}: no such file: check the path")


def check_output_file(path: Path, *, force: bool) -> None:
    """Raise `UsageError` unless a file may be written at `path`."""
    if path.is_dir():
        raise UsageError(f"{path}: is a directory: name a file in it")
    if os.path.lexists(path) and not force:
        raise UsageError(f"{path}: already exists: choose another name, or replace it with --force")
    check_writable(path)


def check_apart(
    outputs: Mapping[str, Path | None], *, files: Iterable[str], directories: Mapping[str, Path | None]
) -> None:
    """Raise `UsageError` if an output would replace a file that is read, another output, or a part of a directory.

    Parameters
    ----------
    outputs : mapping of str to Path or None
        By option.
    files : iterable of str
        The files that are read.
    directories : mapping of str to Path or None
        Directories that are written or read as a whole, by option.
    """
    inputs, taken = {os.path.realpath(file) for file in files}, dict[Path, str]()
    for option, path in outputs.items():
        if path is None:
            continue
        place = Path(os.path.realpath(path))
        if os.fspath(place) in inputs:
            raise UsageError(f"{option} {path}: is a file that this command reads: name another file")
        if place in taken:
            raise UsageError(f"{option} {path}: is the file of {taken[place]}, too: name another file")
        taken[place] = option
        for name, directory in directories.items():
            if directory is not None and Path(os.path.realpath(directory)) in (place, *place.parents):
                raise UsageError(f"{option} {path}: lies in {name} {directory}: name a file elsewhere")


def check_writable(path: Path) -> None:
    """Raise `UsageError` unless the parent directory of `path` exists and is writable."""
    parent = Path(os.path.realpath(path)).parent
    if not parent.is_dir():
        raise UsageError(f"{path}: there is no directory {parent}: create it first (mkdir -p)")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise UsageError(f"{path}: the directory {parent} is not writable: choose another one")


def check_disk_space(path: Path, *sizes: int) -> None:
    """Raise `OSError` unless the file system of `path` has space for files of these sizes in bytes.

    Commands call this before they compute, because a full disk after hours of work would lose the result. `os.statvfs`
    does not know quotas; if a quota is exceeded, writing the file raises an error.
    """
    parent = os.path.dirname(os.path.realpath(path))
    system = os.statvfs(parent)
    free = system.f_bavail * system.f_frsize
    if system.f_blocks and sum(sizes) > free:  # some network file systems report a size of 0
        raise OSError(
            errno.ENOSPC,
            f"the output takes {gigabytes(sum(sizes))}, but its disk has {gigabytes(free)} free: free some space, or "
            f"choose another disk",
            os.fspath(path),
        )
    most = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if most != resource.RLIM_INFINITY and max(sizes) > most:
        raise OSError(
            errno.EFBIG,
            f"the output takes {gigabytes(max(sizes))}, but this process may only write files of {gigabytes(most)}: "
            f"raise ulimit -f",
            os.fspath(path),
        )


def choose(device: str, *, resident: int | None = None, several: bool = False) -> Choice:
    """Choose the device as `choose_device` does; raise `UsageError` for an unknown name.

    Raises
    ------
    UsageError
        If `device` is not the name of a device.
    NoDeviceError
        If the requested GPU is not available.
    """
    try:
        return choose_device(device, resident=resident, several=several)
    except ValueError as error:
        raise UsageError(f"--{error}") from error


def open_fitting(path: str, fits: Callable[[tuple[int, int]], bool], *, allow_external: bool = False) -> "Matrix":
    """Open a matrix of known shape; the shape decides how to read a text table with an ambiguous header or index.

    Parameters
    ----------
    path : str
    fits : callable
        Takes a shape (n, d), and returns True if it is the expected shape.
    allow_external : bool
        As for `open_matrix`.

    Raises
    ------
    MatrixError
        As `open_matrix`; also if a table is ambiguous and no choice of header and index gives the expected shape.
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
                continue  # for example, because it parses column names as numbers
            if fits(matrix.shape):
                return matrix
        raise ambiguous
