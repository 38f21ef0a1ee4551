"""The user's cache directory: private, and safe against files that another user may have written.

It contains compiled kernels (cubin/, numba/), tuning tables (tuned/) and calibrations (abft/), all of which can be
recreated.
A file is read only if the file, its directory and the cache directory belong to this user or root, and no other user
may write to them. Directories are created with mode 0700 and files with mode 0600. If others may write to a cache
directory of this user, their permission is removed before the next write.
"""

import errno
import os
import stat
import tempfile
import warnings
from functools import cache
from pathlib import Path
from threading import Lock

from tsapps.kernels.system.atomic_write import replacing

__all__ = [
    "cache_directory",
    "check_cache_writable",
    "private_directory",
    "process_directory",
    "read_cached",
    "warn_once",
    "write_cached",
]

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def cache_directory() -> Path:
    """Return the path of the user's cache directory; it need not exist.

    Raises
    ------
    OSError
        If there is neither a valid XDG_CACHE_HOME nor a home directory.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):  # the XDG specification says to ignore relative paths
        return Path(base) / "tsapps"
    try:
        home = Path.home()
    except RuntimeError as error:
        raise OSError(errno.ENOENT, "there is no home directory for a cache: set HOME or XDG_CACHE_HOME") from error
    if not home.is_absolute():
        reason = f"the home directory {str(home)!r} is not an absolute path: set HOME or XDG_CACHE_HOME"
        raise OSError(errno.ENOENT, reason)
    return home / ".cache" / "tsapps"


def read_cached(path: Path) -> bytes:
    """Return the content of a file in the cache.

    Raises
    ------
    FileNotFoundError
        If the file does not exist.
    PermissionError
        If the file or one of its cache directories belongs to another user, or if
        other users may write to one of these.
    OSError
        If the file cannot be read.
    """
    for directory in _own_directories(path):
        _check_trusted(os.stat(directory), directory)
    with open(path, "rb", opener=_open) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "is not a regular file: remove it", str(path))
        _check_trusted(found, path)
        return file.read()


def write_cached(path: Path, content: bytes) -> None:
    """Replace a file in the cache, and create missing directories with private permissions.

    Raises
    ------
    PermissionError
        If one of the cache directories above the file belongs to another user.
    OSError
        If the file cannot be written.
    """
    _make_private(path)
    if path.is_symlink() and path.lstat().st_uid != os.geteuid():
        path.unlink()  # another user's link must not redirect the write
    with replacing(path, mode=0o600) as file:
        file.write(content)


def check_cache_writable(path: Path) -> None:
    """Raise `OSError` with the reason if `write_cached` could not write a small file to `path` now."""
    _make_private(path)
    try:
        with tempfile.TemporaryFile(dir=path.parent) as file:
            file.write(bytes(1 << 16))
    except OSError as error:
        error.filename = str(path)
        raise


def private_directory(path: Path) -> Path:
    """Return a directory of the cache for a library that reads and writes files itself; create it if it is missing.

    Raises
    ------
    PermissionError
        If one of the cache directories above it, or a file in it, belongs to another user, or if other users may write
        to one of them.
    OSError
        If it cannot be written.
    """
    check_cache_writable(path / "new")
    for found in path.rglob("*"):
        _check_trusted(os.lstat(found), found)
    return path


def process_directory() -> Path:
    """Return a private directory that exists as long as this process, for use when the cache cannot be written."""
    with _lock:
        if not _process_directories:
            # The directory is removed when this object is finalized, at the latest when the process exits.
            _process_directories.append(tempfile.TemporaryDirectory(prefix="tsapps-"))
    return Path(_process_directories[0].name)


_process_directories: list["tempfile.TemporaryDirectory[str]"] = []
_lock = Lock()


@cache
def warn_once(message: str) -> None:
    """Issue a warning once per process."""
    warnings.warn(message, stacklevel=3)


def _own_directories(path: Path) -> list[Path]:
    """Return the cache directories above a path, the outermost first; for a path outside the cache, its parent."""
    if _process_directories and path.parent == process_directory():
        return [path.parent]
    top = cache_directory()
    found = [directory for directory in reversed(path.parents) if directory == top or top in directory.parents]
    return found or [path.parent]


def _make_private(path: Path) -> None:
    """Create the cache directories above a path, accessible to this user only."""
    directories = _own_directories(path)
    directories[0].parent.mkdir(parents=True, exist_ok=True)
    for directory in directories:
        try:
            os.mkdir(directory, 0o700)
        except FileExistsError:
            found = os.stat(directory)
            if found.st_uid == os.geteuid() and found.st_mode & _OTHERS_WRITE:
                os.chmod(directory, stat.S_IMODE(found.st_mode) & ~_OTHERS_WRITE)
                found = os.stat(directory)
            _check_trusted(found, directory)


def _check_trusted(found: os.stat_result, path: Path) -> None:
    """Raise `PermissionError` if a user other than this one and root may have written to a file."""
    if found.st_uid not in (os.geteuid(), 0):
        raise PermissionError(errno.EPERM, f"belongs to another user ({found.st_uid}): remove it", str(path))
    if found.st_mode & _OTHERS_WRITE:
        raise PermissionError(errno.EPERM, "other users may write to it: remove it, or run chmod go-w", str(path))


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # opening a pipe would otherwise wait for its writer
