"""Atomic writes: a file is replaced as a whole or left unchanged."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, BinaryIO

import numpy as np

from tsapps.errors import UsageError
from tsapps.kernels.arrays import as_array, to_host
from tsapps.kernels.system import atomic_write

__all__ = ["replacing", "save_npy"]


@contextmanager
def replacing(
    path: str | os.PathLike[str], *, commit: atomic_write.Commit = nullcontext, mode: int = 0o666
) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces `path` when the ``with`` block ends without an exception.

    The bytes go to a temporary file next to `path` and are flushed to the disk. Only then is the file renamed to
    `path`. After any exception, Ctrl-C included, `path` is unchanged and the temporary file is removed.

    Parameters
    ----------
    path : path-like
        A symbolic link is followed: its target is replaced.
    commit : callable, optional
        Returns a context manager that is entered once the bytes are on the disk, and exited as soon as the file is
        renamed.
    mode : int, optional
        Permissions of the file before the umask; `permissions.mode_of_result` gives those of results.

    Yields
    ------
    file : binary file

    Raises
    ------
    UsageError
        If `path` is a directory or a device, or its directory is missing or not writable.
    OSError
        If the disk is full or fails.

    Examples
    --------
    >>> with replacing("notes.txt") as file:  # doctest: +SKIP
    ...     file.write("the whole text".encode())
    """
    target = os.path.realpath(path)
    if os.path.isdir(target):
        raise UsageError(f"{os.fspath(path)}: is a directory: name a file in it")
    if os.path.exists(target) and not os.path.isfile(target):
        raise UsageError(f"{os.fspath(path)}: is not a regular file: name one")
    with ExitStack() as stack:
        try:
            file = stack.enter_context(atomic_write.replacing(path, commit=commit, mode=mode))
        except OSError as error:
            raise UsageError(f"{os.fspath(path)}: cannot be written: {error.strerror}") from error
        yield file


def save_npy(
    path: str | os.PathLike[str], array: Any, *, commit: atomic_write.Commit = nullcontext, mode: int = 0o666
) -> None:
    """Write an array to a .npy file atomically.

    Parameters
    ----------
    path : path-like
        Used unchanged: no extension is added.
    array : array of any library
        Numbers in any shape; an array on a GPU is copied to the host.
    commit, mode : optional
        As for `replacing`.

    Raises
    ------
    UsageError
        If .npy does not support the dtype (bfloat16, Python objects), or `path` cannot be written.
    TypeError
        If the type of `array` is unknown.
    OSError
        If the disk is full or fails.
    """
    host = to_host(as_array(array))
    if host.dtype.kind in "OV":
        raise UsageError(
            f"{os.fspath(path)}: .npy does not support {host.dtype}: convert it, for example with astype('float32')"
        )
    if not (host.flags.c_contiguous or host.flags.f_contiguous):
        host = np.ascontiguousarray(host)
    elements = host if host.flags.c_contiguous else host.T
    with replacing(path, commit=commit, mode=mode) as file:
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(host))
        # numpy's write_array raises an error without errno for a full disk: it names neither the file nor the reason.
        file.write(elements.reshape(-1).view(np.uint8).data)
