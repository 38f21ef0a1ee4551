"""Permissions of results: readable by no more people than the files that they are made from."""

import os
import stat
from collections.abc import Iterable

__all__ = ["PRIVATE", "directory_mode", "mode_of_result"]

#: Permissions of a file that is for its owner alone.
PRIVATE = 0o600

_ACCESS_LIST = "system.posix_acl_access"


def mode_of_result(out: str | os.PathLike[str], inputs: Iterable[str | os.PathLike[str]]) -> int:
    """Return the permissions of a result, before the umask: 0o666 less those who may not read every one of the inputs.

    A file that the result replaces counts as an input. The group keeps its permission only where the result gets the
    same group as the input, or where everybody may read the input; an input with an access control list gives none.

    Parameters
    ----------
    out : path-like
        The result; it need not exist.
    inputs : iterable of path-like
        Existing files.
    """
    directory = os.stat(os.path.dirname(os.path.realpath(out)))
    group = directory.st_gid if directory.st_mode & stat.S_ISGID else os.getegid()
    mode = 0o666
    for path in (*inputs, *([out] if os.path.isfile(out) else [])):
        found = os.stat(path)
        readable = found.st_mode & (stat.S_IRGRP | stat.S_IROTH)
        if _has_access_list(path) or (found.st_gid != group and readable != stat.S_IRGRP | stat.S_IROTH):
            readable = 0
        mode &= PRIVATE | readable | readable >> 1
    return mode


def directory_mode(mode: int) -> int:
    """Return the permissions of a directory for files with the permissions `mode`."""
    return mode | (mode & 0o444) >> 2


def _has_access_list(path: str | os.PathLike[str]) -> bool:
    """Return whether permissions of a file are more than its mode says."""
    try:
        return hasattr(os, "listxattr") and _ACCESS_LIST in os.listxattr(path)
    except OSError:
        return False  # this file system has no such lists
