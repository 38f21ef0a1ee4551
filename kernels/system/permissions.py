"""Permissions of output files: readable by no more users than the inputs."""

import os
import stat
from collections.abc import Iterable

__all__ = ["PRIVATE", "directory_mode", "mode_of_result"]

#: Permissions of a file that only its owner may read and write.
PRIVATE = 0o600

_ACCESS_LIST = "system.posix_acl_access"


def mode_of_result(out: str | os.PathLike[str], inputs: Iterable[str | os.PathLike[str]]) -> int:
    """Return the permissions of an output before the umask: 0o666 without users who cannot read every input.

    A file that the output replaces counts as an input. Only the owner may access the output in two cases: if an input
    has an access control list; and if an input has another group than the output will have, and is not readable by
    everybody.

    Parameters
    ----------
    out : path-like
        The output; it need not exist.
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
    """Return whether a file has an access control list, which its mode does not show."""
    try:
        return hasattr(os, "listxattr") and _ACCESS_LIST in os.listxattr(path)
    except OSError:
        return False  # this file system does not support access control lists
