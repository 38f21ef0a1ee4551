"""Directories that commands write whole or not at all."""

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from tsapps import signals
from tsapps.cli.options import check_writable
from tsapps.errors import UsageError
from tsapps.kernels.system.atomic_write import remove_leftovers, replacing_directory
from tsapps.kernels.system.permissions import directory_mode

__all__ = ["check_output_directory", "written_whole"]


def check_output_directory(
    directory: Path, names: Collection[str], belongs: Callable[[str], bool], what: str, *, force: bool
) -> bool:
    """Check that a directory may be written at `directory`, and return whether it replaces one.

    Parameters
    ----------
    directory : Path
    names : collection of str
        The files that the new directory has.
    belongs : callable
        Returns whether a file name is one that `force` may replace.
    what : str
        What a message says of a file that does not belong, and of what is replaced.
    force : bool

    Raises
    ------
    UsageError
        If `directory` exists and `force` is not set, if it is no directory, is the current one or holds a file that
        does not belong, or if its parent is not writable.
    """
    check_writable(directory)
    remove_leftovers(directory, names)  # also restores a directory that a killed run had moved away
    if not os.path.lexists(directory):
        return False
    if not directory.is_dir():
        raise UsageError(f"{directory}: exists and is not a directory: choose another --out")
    if not force:
        raise UsageError(f"{directory}: already exists: choose another --out, or replace it with --force")
    if os.path.samefile(directory, os.curdir):
        raise UsageError(f"{directory}: is the current directory, which cannot be replaced: choose another --out")
    if foreign := sorted(name for name in os.listdir(directory) if not belongs(name)):
        raise UsageError(f"{directory}: holds {foreign[0]!r}, which {what}; choose another --out")
    return True


@contextmanager
def written_whole(directory: Path, names: Collection[str], check: Callable[[], object], mode: int) -> Iterator[Path]:
    """Create a directory that is renamed to `directory` when the ``with`` block ends without an exception.

    The new directory gets the permissions that suit files with the permissions `mode`. After any exception, Ctrl-C
    included, the new directory is removed and `directory` is unchanged.

    Parameters
    ----------
    directory : Path
    names : collection of str
        The files that the directory, or the one that it replaces, may contain.
    check : callable
        Raises `UsageError` if `directory` must not be replaced. Called before the rename, since hours may have passed.
    mode : int

    Raises
    ------
    OSError
        If the disk is full or fails.
    """

    @contextmanager
    def commit() -> Iterator[None]:
        check()
        with signals.placing():
            yield

    with replacing_directory(directory, names, commit=commit, mode=directory_mode(mode)) as temporary:
        yield temporary
