"""Files written whole or not at all."""

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
    """Open a file that takes the place of `path` once the ``with`` block has ended without an exception.

    The bytes go to a temporary file beside `path`, reach the disk, and only then get its name, in one step. After any
    exception, Ctrl-C included, `path` is what it was and the temporary file is gone.

    Parameters
    ----------
    path : path-like
        A symbolic link is followed: the file that it points to is replaced.
    commit : callable, optional
        Returns a context manager that is entered after the bytes have reached the disk and left as soon as the file
        has its name.
    mode : int, optional
        Permissions of the file, less the umask; `permissions.mode_of_result` gives those of results.

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
        raise UsageError(f"{os.fspath(path)}: is no regular file: name one")
    with ExitStack() as stack:
        try:
            file = stack.enter_context(atomic_write.replacing(path, commit=commit, mode=mode))
        except OSError as error:
            raise UsageError(f"{os.fspath(path)}: cannot be written: {error.strerror}") from error
        yield file


def save_npy(
    path: str | os.PathLike[str], array: Any, *, commit: atomic_write.Commit = nullcontext, mode: int = 0o666
) -> None:
    """Write an array to a .npy file, whole or not at all.

    Parameters
    ----------
    path : path-like
        Taken as it is: no extension is added.
    array : array of any library
        Of numbers, of any shape; copied to the host if it lies on a GPU.
    commit, mode : optional
        As for `replacing`.

    Raises
    ------
    UsageError
        If the format has no such dtype (bfloat16, Python objects), or `path` cannot be written.
    TypeError
        If `array` is an array of no known kind.
    OSError
        If the disk is full or fails.
    """
    host = to_host(as_array(array))
    if host.dtype.kind in "OV":
        raise UsageError(
            f"{os.fspath(path)}: .npy holds no {host.dtype}: convert it, for example with astype('float32')"
        )
    if not (host.flags.c_contiguous or host.flags.f_contiguous):
        host = np.ascontiguousarray(host)
    elements = host if host.flags.c_contiguous else host.T
    with replacing(path, commit=commit, mode=mode) as file:
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(host))
        # Not numpy's write_array: its error for a full disk has no errno, so no name and no reason.
        file.write(elements.reshape(-1).view(np.uint8).data)
