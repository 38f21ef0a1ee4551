"""A directory with the labels of each file of a matrix, written whole or not at all."""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tsapps.cli.output_directory import check_output_directory, written_whole
from tsapps.errors import UsageError

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
    if directory.is_dir() and any(
        os.path.samefile(os.path.dirname(os.path.abspath(file)), directory) for file in files
    ):
        raise UsageError(f"{directory}: has files of DATA: choose another --out")
    what = "is not a file of labels: --force replaces only such files"
    check_output_directory(directory, label_names(files), lambda name: name.endswith(_ENDING), what, force=force)


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

    check = partial(check_directory, directory, paths, force=force)
    with written_whole(directory, {*names, *old}, check, mode) as temporary:
        start = 0
        for name, (_, rows) in zip(names, files, strict=True):
            save_npy(temporary / name, labels[start : start + rows], mode=mode)
            start += rows
