"""What the commands about checksums share: options, where a sidecar lies, and how it is read."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tsapps import signals
from tsapps.cli.options import check_input, check_output_file, check_room, check_writable, open_fitting
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
    "check_copy_room",
    "check_target",
    "mode_of_copy",
    "open_protected",
    "placing_unless_changed",
    "same_file",
    "sidecar_path",
]

AnyData = Annotated[
    str,
    typer.Argument(metavar="DATA", show_default=False, help="Matrix in a file, as tsapps kmeans --help says."),
]
SeveralData = Annotated[
    list[str],
    typer.Argument(
        metavar="DATA", show_default=False, help="Matrices in files, as tsapps kmeans --help says, one or several."
    ),
]
SidecarFile = Annotated[
    Path | None,
    typer.Option("--sidecar", metavar="FILE", help="File with its checksums.  [default: DATA.abft, beside DATA]"),
]
OutNpy = Annotated[Path | None, typer.Option("--out", metavar="FILE.npy", help="File to write, a copy of DATA.")]
InPlace = Annotated[
    bool,
    typer.Option(
        "--in-place",
        help="Replace DATA by a copy of the whole file: .npy, .safetensors, .fbin, .fvecs and their kin.",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace FILE.npy if it exists.")]
JsonLines = Annotated[
    bool, typer.Option("--json", help="Print lines of JSON to stdout, a summary the last, and nothing else there.")
]


def sidecar_path(data: str) -> Path:
    """Return where checksums lie: ``x.npy.abft`` for ``x.npy``, ``x.h5-a-b.abft`` for ``x.h5:a/b``."""
    file, name = split_name(data)
    return Path("-".join([file, *filter(None, (name or "").split("/"))]) + ".abft")


def same_file(one: Path, other: str) -> bool:
    """Return whether two paths are those of one file."""
    return one.exists() and os.path.exists(other) and os.path.samefile(one, other)


def check_target(data: str, out: Path | None, *, in_place: bool, force: bool) -> None:
    """Raise `UsageError` unless a copy of DATA may be written where it was asked for."""
    if (out is not None) == in_place:
        raise UsageError("give --out FILE.npy for a copy, or --in-place to replace DATA: one of the two")
    if out is None:
        if force:
            raise UsageError("--force is for --out: --in-place replaces DATA without it")
        check_writable(Path(split_name(data)[0]))
        return
    if same_file(out, split_name(data)[0]):
        raise UsageError(f"{out}: is DATA itself: give --in-place to replace it")
    if out.suffix.lower() != ".npy":
        raise UsageError(f"{out}: expected a name that ends in .npy, the format that is written")
    check_output_file(out, force=force)


@contextmanager
def placing_unless_changed(matrix: "Matrix") -> Iterator[None]:
    """Hold signals back while a result takes its place, unless another program wrote to DATA meanwhile."""
    matrix.check_unchanged()
    with signals.placing():
        yield


def mode_of_copy(data: str, out: Path | None, sidecar: Path | None = None) -> int:
    """Return the permissions that a copy of DATA is written with: private, where it is to get those of DATA itself."""
    from tsapps.permissions import PRIVATE, mode_of_result

    return PRIVATE if out is None else mode_of_result(out, [split_name(data)[0], *filter(None, [sidecar])])


def check_copy(data: str, matrix: "Matrix", out: Path | None) -> None:
    """Raise `UsageError` unless a copy of the matrix can be made: as .npy, or of its own file."""
    if out is None and matrix.stored is None:
        raise UsageError(
            f"{data}: does not hold its elements as plain bytes that could be replaced one by one: give --out FILE.npy "
            f"in place of --in-place"
        )
    if out is not None and matrix.dtype.name == "bfloat16":
        raise UsageError(f"{out}: .npy holds no bfloat16: give --in-place in place of --out")


def check_copy_room(data: str, matrix: "Matrix", out: Path | None) -> None:
    """Raise `OSError` unless the disk has room for a copy of the matrix: as .npy, or of its own file beside it."""
    target = out or Path(split_name(data)[0])
    check_room(target, os.path.getsize(target) if out is None else matrix.nbytes)


def open_protected(
    data: str, path: Path, header: bool | None = None, index: bool | None = None, *, allow_external: bool
) -> tuple["Matrix", "Sidecar"]:
    """Open a matrix and read its sidecar.

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
            f"{path}: no such file, which would hold the checksums of {data}: name it with --sidecar; or write it with "
            f"tsapps abft-encode, if {data} is known to be right"
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
