"""Atomic, durable writes: a file or directory appears under its name complete, or not at all.

The content is written to a temporary in the same directory, synchronized to disk, and then renamed in one step. If the
file system supports O_TMPFILE, the temporary file has no name, so a killed process leaves nothing. Any other temporary
is named ``.NAME.<16 hex digits>.tmp``, and its writer holds a lock on it (flock) until the writer's process ends. The
next writer to the same path removes temporaries whose lock is free. On file systems without locks, such temporaries
remain.
"""

import errno
import fcntl
import os
import re
import stat
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from tsapps.kernels.system.logs import logger_of

__all__ = ["Commit", "remove_leftovers", "replacing", "replacing_directory", "taking_turns", "write_bytes"]

#: A function that returns a context manager, which is active during the rename. If the context manager exits without an
#: exception, the rename has happened.
Commit = Callable[[], AbstractContextManager[Any]]

_log = logger_of(__name__)
# Constants of renameat2, from <fcntl.h> and <linux/fs.h>.
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
_TEMPORARY = re.compile(r"\..*\.[0-9a-f]{16}\.tmp", re.DOTALL)


@contextmanager
def replacing(
    path: str | os.PathLike[str], *, commit: Commit = nullcontext, mode: int = 0o666, leftovers: bool = True
) -> Iterator[BinaryIO]:
    """Open a file that replaces `path` when the ``with`` block ends without an exception.

    After any exception, including KeyboardInterrupt, `path` is unchanged and the temporary file is removed.

    Parameters
    ----------
    path : path-like
        For a symbolic link, the target of the link is replaced.
    commit : callable
        A function that returns a context manager. `replacing` enters it when the content is on the disk, and exits it
        after the rename.
    mode : int
        Permissions of the new file from its creation on, minus those that the umask removes.
    leftovers : bool
        Whether to look for temporaries of killed processes, which reads the whole directory.

    Yields
    ------
    file : binary file
        While it is open, its attribute `name` is a path that can be opened as a second file object.

    Raises
    ------
    OSError
        If the file cannot be created, or the disk is full or fails.
    """
    target = os.path.realpath(path)
    if leftovers:
        remove_leftovers(target)
    temporary = _temporary_name(target)
    own = [None, temporary]
    try:
        with _open_temporary(temporary, mode) as file:
            own.append(file.name)
            yield file
            file.flush()
            os.fsync(file.fileno())
            with commit():
                _rename_file(file, temporary, target)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError) and error.errno is not None and error.filename in own:
            error.filename = os.fspath(path)  # the name that the user knows
        raise
    _sync_directory(os.path.dirname(target))
    if _TEMPORARY.fullmatch(os.path.basename(os.path.dirname(target))) is None:  # else `replacing_directory` says it
        _log.info("wrote %s", target)


def write_bytes(path: Path, content: bytes) -> None:
    """Replace a file by `content`, and create missing parent directories."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(content)


@contextmanager
def replacing_directory(
    path: str | os.PathLike[str], names: Collection[str], *, commit: Commit = nullcontext, mode: int = 0o777
) -> Iterator[Path]:
    """Create a directory that replaces `path` when the ``with`` block ends without an exception.

    After any exception, including KeyboardInterrupt, `path` is unchanged and the new directory is removed. If the
    system can exchange two names, `path` exists at every moment. Otherwise a process can be killed between two renames,
    and the next writer restores the old directory.

    Parameters
    ----------
    path : path-like
        A path that does not exist, or the directory to replace, whose files should all be in `names`.
    names : collection of str
        The files that the directory may contain. Other files in the old directory are not deleted.
    commit : callable
        As for `replacing`.
    mode : int
        Permissions of the new directory, minus those that the umask removes.

    Yields
    ------
    directory : Path
        The directory to write the files to.

    Raises
    ------
    OSError
        If the directory cannot be created, or the disk is full or fails.
    """
    place = os.path.realpath(path)
    remove_leftovers(place, names)
    temporary, old, descriptor = _temporary_name(place), None, None
    try:
        descriptor = _create(temporary, partial(_make_directory, mode=mode))
        yield Path(temporary)
        _sync_files(temporary)
        with commit():
            if os.path.lexists(place):
                old = _exchange(temporary, place)
            else:
                os.rename(temporary, place)
        _sync_directory(os.path.dirname(place))
        if old is not None and not _remove_directory(old, names):
            warnings.warn(f"{old}: the replaced {place} contained unexpected files: move them", stacklevel=3)
    except BaseException as error:
        _remove_directory(temporary, names)
        if isinstance(error, OSError) and error.filename is not None:
            error.filename = os.fspath(path)  # the name that the user knows
        raise
    finally:
        if descriptor is not None:
            os.close(descriptor)
    _log.info("wrote %s", place)


@contextmanager
def taking_turns(directory: str | os.PathLike[str]) -> Iterator[None]:
    """Let one process at a time read and replace a file of a directory, if the file system supports locks."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def remove_leftovers(path: str | os.PathLike[str], names: Collection[str] = ()) -> None:
    """Remove temporaries that killed processes left while writing to `path`, and warn once about them.

    Parameters
    ----------
    path : path-like
        Temporaries of other paths are kept.
    names : collection of str
        The files that a directory `path` may contain; empty for a file.
    """
    target = os.path.realpath(path)
    directory, base = os.path.split(target)
    pattern = _temporaries_of(base, "(tmp|old)" if names else "tmp")
    try:
        with os.scandir(directory) as entries:
            found = sorted(entry.name for entry in entries if pattern.fullmatch(entry.name))
    except OSError:
        return  # the later write to this directory reports the error
    removed = []
    for name in found:
        leftover = os.path.join(directory, name)
        descriptor = _lock_leftover(leftover, stat.S_ISDIR if names else stat.S_ISREG)
        if descriptor is None:
            continue
        try:
            if name.endswith(".old") and not os.path.lexists(target):
                os.rename(leftover, target)
                warnings.warn(f"{target}: restored from {name}, to which a killed process had moved it", stacklevel=3)
            elif not names:
                os.unlink(leftover)
                removed.append(name)
            elif _remove_directory(leftover, names):
                removed.append(name)
        except OSError:
            continue  # no permission, or another writer removed it
        finally:
            os.close(descriptor)
    if removed:
        warnings.warn(f"{target}: removed temporaries of killed processes: {', '.join(removed)}", stacklevel=3)


def _temporary_name(target: str) -> str:
    # The name is truncated, so that the temporary's name is valid for the longest `base` that the file system allows.
    directory, base = os.path.split(target)
    return os.path.join(directory, f".{base[:40]}.{os.urandom(8).hex()}.tmp")


def _temporaries_of(base: str, suffix: str) -> re.Pattern[str]:
    return re.compile(rf"\.{re.escape(base[:40])}\.[0-9a-f]{{16}}\.{suffix}", re.DOTALL)


def _open_temporary(name: str, mode: int) -> BinaryIO:
    """Open and lock a temporary file for writing: without a name if that is supported, else as `name`."""
    descriptor = _open_unnamed(os.path.dirname(name), mode)
    if descriptor is None:
        descriptor = _create(name, partial(_make_file, mode=mode))
    else:
        name = f"/proc/self/fd/{descriptor}"
    return open(name, "wb", opener=lambda *_: descriptor)


def _open_unnamed(directory: str, mode: int = 0o666) -> int | None:
    """Open a file without a name, or return None if the system or the file system does not support that."""
    flag = getattr(os, "O_TMPFILE", None)
    if flag is None or not os.path.isdir("/proc/self/fd"):  # linkat needs this path to name the file
        return None
    try:
        descriptor = os.open(directory, os.O_RDWR | flag, mode)
    except OSError:
        return None  # if the directory is the cause, opening by name reports it
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # so that no other writer removes the file once it has a name
    return descriptor


def _make_file(name: str, mode: int) -> int:
    return os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)


def _make_directory(name: str, mode: int) -> int:
    while True:
        os.mkdir(name, mode)
        with suppress(FileNotFoundError):  # another writer removed it as a leftover
            return os.open(name, os.O_RDONLY)


def _create(name: str, make: Callable[[str], int]) -> int:
    """Create and lock a temporary; retry if another writer removed it as a leftover before it was locked."""
    while True:
        descriptor = make(name)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # waits only if another writer is removing this temporary
        except OSError:
            return descriptor  # without locks, no other writer removes the temporary
        if _has_name(descriptor, name):
            return descriptor
        os.close(descriptor)


def _has_name(descriptor: int, name: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(name, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _lock_leftover(name: str, is_kind: Callable[[int], bool]) -> int | None:
    """Open and lock a leftover; return None if its writer runs, another user owns it, or locks are not supported."""
    for access in (os.O_RDWR, os.O_RDONLY):  # NFS locks only writable files; the leftover may be read-only
        try:
            descriptor = os.open(name, access | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            continue
        try:
            found = os.fstat(descriptor)
            if is_kind(found.st_mode) and found.st_uid == os.geteuid():
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _has_name(descriptor, name):
                    return descriptor
        except OSError:
            pass
        os.close(descriptor)
        return None
    return None


def _rename_file(file: BinaryIO, temporary: str, target: str) -> None:
    if file.name != temporary:  # the temporary has no name yet
        # With src_dir_fd, Python calls linkat, which follows the symbolic link in /proc. The descriptor has no other
        # effect, because the path is absolute.
        link = partial(os.link, file.name, src_dir_fd=file.fileno(), follow_symlinks=True)
        try:
            link(target)
        except FileExistsError:
            link(temporary)
        else:
            return
    os.replace(temporary, target)


def _exchange(new: str, place: str) -> str:
    """Replace an existing directory by `new`, and return the path to which the old directory was moved."""
    if _swap(new, place):
        return new
    old = new.removesuffix(".tmp") + ".old"
    descriptor = os.open(place, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # so that no other writer restores `old`
        os.rename(place, old)
        os.rename(new, place)
    except BaseException:
        if os.path.lexists(old) and not os.path.lexists(place):
            os.rename(old, place)
        raise
    finally:
        os.close(descriptor)
    return old


def _swap(one: str, other: str) -> bool:
    """Exchange two names atomically; return False if the system or the file system does not support that."""
    import ctypes  # imported here, because only replacing a directory needs it

    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return False
    if call(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP):
        return False
    raise OSError(number, os.strerror(number), other)


def _remove_directory(directory: str, names: Collection[str]) -> bool:
    """Remove the files in `names` and their temporaries, then the directory; return True if the directory is gone."""
    try:
        for entry in os.listdir(directory):
            if entry in names or any(_temporaries_of(name, "tmp").fullmatch(entry) for name in names):
                with suppress(FileNotFoundError):
                    os.unlink(os.path.join(directory, entry))
        os.rmdir(directory)
    except OSError:
        return not os.path.lexists(directory)
    return True


def _sync_files(directory: str) -> None:
    """Synchronize a directory and its files to the disk."""
    for entry in os.listdir(directory):
        descriptor = os.open(os.path.join(directory, entry), os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    _sync_directory(directory)


def _sync_directory(directory: str) -> None:
    """Synchronize the entries of a directory to the disk, if the file system supports that."""
    with suppress(OSError):  # fails for unreadable directories and some network file systems; the files are on the disk
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
