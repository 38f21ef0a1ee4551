"""The user's cache directory: private, and never trusted with what another user may have written.

It holds compiled kernels (cubin/), tuning tables (tuned/) and calibrations (abft/). A file in it is used only if it,
its directory and the cache directory belong to this user or to root, and nobody else may write to them. Directories are
made with the mode 0700 and files with 0600. A directory of this user that others may write to loses that permission
before anything is written to it. Everything in the cache can be made again.
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

__all__ = ["cache_directory", "check_cache_writable", "process_directory", "read_cached", "warn_once", "write_cached"]

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def cache_directory() -> Path:
    """Return where files that can be made again are kept for this user; it need not exist.

    Raises
    ------
    OSError
        If neither XDG_CACHE_HOME nor a home directory says where.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):  # the XDG specification has relative paths ignored
        return Path(base) / "tsapps"
    try:
        home = Path.home()
    except RuntimeError as error:
        raise OSError(errno.ENOENT, "there is no home directory for a cache: set HOME or XDG_CACHE_HOME") from error
    if not home.is_absolute():
        raise OSError(errno.ENOENT, f"the home directory {str(home)!r} is no absolute path: set HOME or XDG_CACHE_HOME")
    return home / ".cache" / "tsapps"


def read_cached(path: Path) -> bytes:
    """Return the content of a file in the cache.

    Raises
    ------
    FileNotFoundError
        If there is none.
    PermissionError
        If it, or a directory of the cache that it lies in, is another user's or may be written to by others.
    OSError
        If it cannot be read.
    """
    for directory in _own_directories(path):
        _check_trusted(os.stat(directory), directory)
    with open(path, "rb", opener=_open) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "is no regular file: remove it", str(path))
        _check_trusted(found, path)
        return file.read()


def write_cached(path: Path, content: bytes) -> None:
    """Replace a file in the cache; make its directories, private, if there are none.

    Raises
    ------
    PermissionError
        If a directory of the cache that it lies in is another user's.
    OSError
        If it cannot be written.
    """
    _make_private(path)
    if path.is_symlink() and path.lstat().st_uid != os.geteuid():
        path.unlink()  # somebody else says where to write
    with replacing(path, mode=0o600) as file:
        file.write(content)


def check_cache_writable(path: Path) -> None:
    """Raise `OSError`, with the reason, if `write_cached` cannot write a small file there now."""
    _make_private(path)
    try:
        with tempfile.TemporaryFile(dir=path.parent) as file:
            file.write(bytes(1 << 16))
    except OSError as error:
        error.filename = str(path)
        raise


def process_directory() -> Path:
    """Return a private directory that lasts as long as this process, for those that have no cache."""
    with _lock:
        if not _kept:
            _kept.append(tempfile.TemporaryDirectory(prefix="tsapps-"))  # it is removed with this object
    return Path(_kept[0].name)


_kept: list["tempfile.TemporaryDirectory[str]"] = []
_lock = Lock()


@cache
def warn_once(message: str) -> None:
    """Warn, the first time in a process."""
    warnings.warn(message, stacklevel=3)


def _own_directories(path: Path) -> list[Path]:
    """Return the directories of the cache that a path lies in, the outermost first; elsewhere, its own."""
    if _kept and path.parent == process_directory():
        return [path.parent]
    top = cache_directory()
    found = [directory for directory in reversed(path.parents) if directory == top or top in directory.parents]
    return found or [path.parent]


def _make_private(path: Path) -> None:
    """Make the directories of the cache that a path lies in, for this user alone."""
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
    """Raise `PermissionError` unless only this user or root may have written to a file."""
    if found.st_uid not in (os.geteuid(), 0):
        raise PermissionError(errno.EPERM, f"belongs to another user ({found.st_uid}): remove it", str(path))
    if found.st_mode & _OTHERS_WRITE:
        raise PermissionError(errno.EPERM, "may be written to by others: remove it, or chmod go-w it", str(path))


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a pipe would wait for its writer
