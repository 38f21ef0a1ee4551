"""A directory with the labels of each file of a matrix, written whole or not at all."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tsapps import signals
from tsapps.cli.options import check_writable
from tsapps.errors import UsageError
from tsapps.kernels.system.atomic_write import remove_leftovers, replacing_directory
from tsapps.permissions import directory_mode

if TYPE_CHECKING:
    import numpy as np

__all__ = ["check_directory", "label_names", "save_labels"]

_ENDING = "-labels.npy"


def label_names(files: Sequence[str]) -> list[str]:
    """Return the name of the labels of each file: ``x-labels.npy`` for ``some/x.npy``.

    Files in several directories have the path from their common directory in the name: ``a-x-labels.npy`` for
    ``some/a/x.npy`` beside ``some/b/x.npy``.

    Raises
    ------
    UsageError
        If two names are the same.
    """
    common = os.path.commonpath([os.path.dirname(os.path.abspath(file)) for file in files])
    found: dict[str, str] = {}
    for file in files:
        path = os.path.relpath(os.path.abspath(file), common)
        name = os.path.splitext(path)[0].replace(os.sep, "-") + _ENDING
        if name in found:
            raise UsageError(f"--by-file: the labels of {found[name]} and {file} would both be {name}: rename one")
        found[name] = file
    return list(found)


def check_directory(directory: Path, files: Sequence[str], *, force: bool) -> None:
    """Raise `UsageError` unless a directory of the labels of files may be written at `directory`."""
    check_writable(directory)
    remove_leftovers(directory, label_names(files))  # also restores a directory that a killed run had moved away
    if not os.path.lexists(directory):
        return
    if not directory.is_dir():
        raise UsageError(f"{directory}: exists and is not a directory, which --by-file writes: choose another --out")
    if any(os.path.samefile(os.path.dirname(os.path.abspath(file)), directory) for file in files):
        raise UsageError(f"{directory}: has files of DATA: choose another --out")
    if not force:
        raise UsageError(f"{directory}: already exists: choose another --out, or replace it with --force")
    if os.path.samefile(directory, os.curdir):
        raise UsageError(f"{directory}: is the current directory, which cannot be replaced: choose another --out")
    if foreign := sorted(name for name in os.listdir(directory) if not name.endswith(_ENDING)):
        raise UsageError(
            f"{directory}: holds {foreign[0]!r}, which is not a file of labels: --force replaces only such files; "
            "choose another --out"
        )


def save_labels(
    directory: Path, files: Sequence[tuple[str, int]], labels: "np.ndarray", *, force: bool, mode: int
) -> None:
    """Write the labels of each file, in the order of the files.

    Parameters
    ----------
    directory : Path
        Is created, or replaced with `force`.
    files : sequence of (str, int)
        The path and the number of rows of each file.
    labels : numpy.ndarray of shape (n,)
    force : bool
    mode : int
        Permissions of the files.

    Raises
    ------
    UsageError
        By `check_directory`, which is called again before the directory gets its name.
    OSError
        If the disk is full or fails.
    """
    from tsapps.matrix import save_npy

    paths = [path for path, _ in files]
    names = label_names(paths)
    old = os.listdir(directory) if directory.is_dir() else []

    @contextmanager
    def commit() -> Iterator[None]:
        check_directory(directory, paths, force=force)
        with signals.placing():
            yield

    with replacing_directory(directory, {*names, *old}, commit=commit, mode=directory_mode(mode)) as temporary:
        start = 0
        for name, (_, rows) in zip(names, files, strict=True):
            save_npy(temporary / name, labels[start : start + rows], mode=mode)
            start += rows
