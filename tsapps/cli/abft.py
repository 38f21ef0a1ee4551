"""Common parts of the checksum commands: options, paths of sidecars, and reading a matrix with its sidecar."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tsapps import signals
from tsapps.cli.help import OUTPUT
from tsapps.cli.options import check_disk_space, check_input, check_output_file, check_writable, open_fitting
from tsapps.errors import CorruptionError, UsageError
from tsapps.names import split_name

if TYPE_CHECKING:
    from tsapps.apps.abft import Sidecar
    from tsapps.matrix import Matrix

__all__ = [
    "AnyData",
    "Force",
    "InPlace",
    "JsonLines",
    "OutNpy",
    "SeveralData",
    "SidecarFile",
    "check_copy",
    "check_copy_space",
    "check_target",
    "mode_of_copy",
    "open_protected",
    "placing_unless_changed",
    "same_file",
    "sidecar_path",
]

AnyData = Annotated[
    str,
    typer.Argument(
        metavar="DATA", show_default=False, help="File of a matrix, in a format that tsapps kmeans --help lists."
    ),
]
SeveralData = Annotated[
    list[str],
    typer.Argument(
        metavar="DATA",
        show_default=False,
        help="One or more files of matrices, in formats that tsapps kmeans --help lists.",
    ),
]
SidecarFile = Annotated[
    Path | None,
    typer.Option(
        "--sidecar", metavar="FILE", help="File with the checksums of DATA.  [default: DATA.abft, next to DATA]"
    ),
]
OutNpy = Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE.npy", help="File to write, a copy of DATA.")]
InPlace = Annotated[
    bool,
    typer.Option(
        "--in-place",
        help="Replace DATA by a changed copy of the file: .npy, .safetensors, the .fbin and .fvecs families.",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace FILE.npy if it exists.")]
JsonLines = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print only lines of JSON to stdout; the last one is a summary.",
        rich_help_panel=OUTPUT,
    ),
]


def sidecar_path(data: str) -> Path:
    """Return the default path of a sidecar: ``x.npy.abft`` for ``x.npy``, ``x.h5-a-b.abft`` for ``x.h5:a/b``."""
    file, name = split_name(data)
    return Path("-".join([file, *filter(None, (name or "").split("/"))]) + ".abft")


def same_file(one: Path, other: str) -> bool:
    """Return whether two paths lead to the same existing file."""
    return one.exists() and os.path.exists(other) and os.path.samefile(one, other)


def check_target(data: str, out: Path | None, *, in_place: bool, force: bool) -> None:
    """Raise `UsageError` unless one of --out and --in-place is given, and a copy of DATA may be written there."""
    if (out is not None) == in_place:
        raise UsageError("expected one of --out FILE.npy, to write a copy, and --in-place, to replace DATA")
    if out is None:
        if force:
            raise UsageError("--force applies to --out only: leave it out, --in-place replaces DATA without it")
        check_writable(Path(split_name(data)[0]))
        return
    if same_file(out, split_name(data)[0]):
        raise UsageError(f"{out}: is DATA itself: give --in-place to replace it")
    if out.suffix.lower() != ".npy":
        raise UsageError(f"{out}: expected a name that ends in .npy, the output format")
    check_output_file(out, force=force)


@contextmanager
def placing_unless_changed(matrix: "Matrix") -> Iterator[None]:
    """Raise `MatrixError` if another program wrote to DATA; then delay signals while a result is renamed."""
    matrix.check_unchanged()
    with signals.placing():
        yield


def mode_of_copy(data: str, out: Path | None, sidecar: Path | None = None) -> int:
    """Return the permissions of a new copy of DATA at `out`.

    For --in-place, `out` is None: the copy is private until `copy_file` gives it the permissions of DATA.
    """
    from tsapps.kernels.system.permissions import PRIVATE, mode_of_result

    return PRIVATE if out is None else mode_of_result(out, [split_name(data)[0], *filter(None, [sidecar])])


def check_copy(data: str, matrix: "Matrix", out: Path | None) -> None:
    """Raise `UsageError` unless the matrix can be copied: as .npy to `out`, or byte for byte if `out` is None."""
    if out is None and matrix.stored is None:
        raise UsageError(
            f"{data}: does not hold its elements as plain bytes, so --in-place cannot replace single elements: give "
            f"--out FILE.npy instead"
        )
    if out is not None and matrix.dtype.name == "bfloat16":
        raise UsageError(f"{out}: .npy does not support bfloat16: give --in-place instead of --out")


def check_copy_space(data: str, matrix: "Matrix", out: Path | None) -> None:
    """Raise `OSError` unless the disk has space for a copy: at `out`, or next to DATA if `out` is None."""
    target = out or Path(split_name(data)[0])
    check_disk_space(target, os.path.getsize(target) if out is None else matrix.nbytes)


def open_protected(
    data: str, path: Path, header: bool | None = None, index: bool | None = None, *, allow_external: bool
) -> tuple["Matrix", "Sidecar"]:
    """Open a matrix and read its sidecar, whose shape decides how to read a text table with an ambiguous form.

    Raises
    ------
    UsageError
        If one of the two files is missing.
    CorruptionError
        If the sidecar is damaged.
    MatrixError
        If the matrix cannot be read.
    """
    check_input(data)
    if not path.is_file():
        raise UsageError(
            f"{path}: no such file; expected the checksums of {data}: name their file with --sidecar, or, if {data} is "
            f"known to be correct, write them with tsapps abft-encode"
        )

    from tsapps.apps.abft import SidecarError, read_sidecar
    from tsapps.matrix import open_matrix

    try:
        sidecar = read_sidecar(path)
    except SidecarError as error:
        raise CorruptionError(f"the sidecar, not the matrix: {error}") from error
    if (header, index) == (None, None):
        return open_fitting(data, lambda shape: shape == sidecar.shape, allow_external=allow_external), sidecar
    return open_matrix(data, header=header, index=index, allow_external=allow_external), sidecar
