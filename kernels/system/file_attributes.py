"""Copies of a file's owner, permissions and extended attributes."""

import errno
import os
import warnings

__all__ = ["copy_attributes"]

# Extended attributes in which Linux file systems store access control lists.
_ACCESS_LISTS = ("system.posix_acl_access", "system.nfs4_acl")


def copy_attributes(path: str, original: int, copy: int) -> None:
    """Set the owner, the extended attributes and, last, the permissions of a copy to those of the original.

    Warns of extended attributes that could not be copied.

    Parameters
    ----------
    path : str
        The name of the original in warnings.
    original, copy : int
        File descriptors.

    Raises
    ------
    OSError
        If the owner of the copy cannot be set.
    """
    found, has = os.fstat(original), os.fstat(copy)
    if (found.st_uid, found.st_gid) != (has.st_uid, has.st_gid):
        os.fchown(copy, found.st_uid, found.st_gid)
    if hasattr(os, "listxattr"):
        _copy_extended_attributes(path, original, copy)
    os.fchmod(copy, found.st_mode & 0o7777)


def _copy_extended_attributes(path: str, original: int, copy: int) -> None:
    """Copy the extended attributes of the original; warn of attributes that could not be copied."""
    try:
        wanted, inherited = os.listxattr(original), os.listxattr(copy)
    except OSError as error:
        if error.errno == errno.ENOTSUP:
            return
        raise
    for name in inherited:
        if name in _ACCESS_LISTS and name not in wanted:  # inherited from the directory: may grant access to more users
            os.removexattr(copy, name)
    for name in wanted:
        value = os.getxattr(original, name)
        if name in inherited and os.getxattr(copy, name) == value:
            continue
        try:
            os.setxattr(copy, name, value)
        except OSError as error:
            warnings.warn(
                f"{path}: the copy does not keep the extended attribute {name}: {error.strerror}: set it again",
                stacklevel=4,
            )
