"""One pass over the bytes of a file: its hash, the hashes of its tensors, and the sums of the exact code.

Functions that take a list `unread` read around the parts of a file that the disk has lost: these count as zeros, and
their intervals (begin, end) of offsets are appended. Without the list, an error of the disk is raised.
"""

import errno
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from io import FileIO
from itertools import pairwise
from os import PathLike, fspath
from typing import NamedTuple

import numpy as np

from tsapps.apps.abft.at_rest.exact_code import ExactSums, sums_shape
from tsapps.apps.abft.at_rest.interleave import Layout, layout
from tsapps.apps.abft.at_rest.sidecar import Sidecar
from tsapps.apps.abft.files.manifest import FileEntry, Tensor, hasher
from tsapps.apps.abft.files.tensors import tensors_of
from tsapps.kernels.system.logs import logger_of
from tsapps.kernels.system.printable import OneLineError

__all__ = [
    "PIECE_BYTES",
    "ChangedFileError",
    "FileBytes",
    "Scan",
    "Step",
    "TensorHashes",
    "Unread",
    "file_layout",
    "hash_of",
    "pieces_of",
    "read_at",
    "read_into",
    "scan",
    "stamp_of",
]

_log = logger_of(__name__)
#: Called with a number of bytes that were read since the last call; may raise to stop a pass.
Step = Callable[[int], None]
#: Intervals (begin, end) of offsets of the bytes that could not be read.
Unread = list[tuple[int, int]]

#: Bytes read at a time. The pieces of longer files are summed by another thread, while the next one is read and hashed.
PIECE_BYTES = 1 << 22
# Maximum number of pieces that wait for that thread.
_MOST_WAITING = 2
# Bytes read at a time around a lost part: those that one error of a disk loses, as a rule.
_SECTOR_BYTES = 4096


class ChangedFileError(OneLineError):
    """A file changed while it was read."""

    def __init__(self, path: str | PathLike[str]) -> None:
        super().__init__(f"{fspath(path)}: changed while it was read: stop other writers, and run this again")


class Scan(NamedTuple):
    """What a pass over a file found: its entry of the manifest, and its sidecar; None for an empty file."""

    entry: FileEntry
    sidecar: Sidecar | None


class FileBytes:
    """The bytes of a file as a matrix of one row, which functions of `at_rest` read; those that are lost are zeros.

    Parameters
    ----------
    path : path-like
    n_bytes : int
        The number of columns: bytes beyond the end of the file are zeros, and bytes after this number are ignored.
    step : callable, optional
    """

    def __init__(self, path: str | PathLike[str], n_bytes: int, step: Step | None = None) -> None:
        self.name, self.shape, self.dtype = fspath(path), (1, n_bytes), np.dtype(np.uint8)
        self._step = step

    def pieces(self, columns: int) -> Iterator[tuple[int, int, np.ndarray]]:
        """Yield (0, column, piece of shape (1, at most `columns`)), in order."""
        begin = 0
        for piece in pieces_of(self.name, self.shape[1], columns, self._step, []):
            yield 0, begin, piece[np.newaxis]
            begin += len(piece)

    def blocks(self, _rows: int) -> Iterator[tuple[int, np.ndarray]]:
        """Yield (0, the whole row), for short files."""
        yield 0, self.rows(np.zeros(1, np.intp))

    def rows(self, _indices: np.ndarray) -> np.ndarray:
        """Return the whole row, shape (1, n_bytes)."""
        return np.concatenate([piece for *_, piece in self.pieces(PIECE_BYTES)], axis=1)

    def bytes_at(self, offsets: np.ndarray) -> np.ndarray:
        """Return the bytes at ascending offsets."""
        runs = np.split(offsets, np.flatnonzero(np.diff(offsets) != 1) + 1)
        with open(self.name, "rb", buffering=0) as file:
            found = []
            for run in runs:
                file.seek(int(run[0]))
                found.append(_read(file, len(run), []))
        return np.concatenate(found)


def file_layout(n_bytes: int) -> Layout:
    """Return the interleaving of a file's bytes: those of a matrix of one row."""
    return layout((1, n_bytes), 1)


def pieces_of(
    path: str | PathLike[str], n_bytes: int, size: int, step: Step | None = None, unread: Unread | None = None
) -> Iterator[np.ndarray]:
    """Yield the first `n_bytes` bytes of a file, zeros beyond its end, in new arrays of at most `size` bytes."""
    with open(path, "rb", buffering=0) as file:
        for begin in range(0, n_bytes, size):
            yield _read(file, min(size, n_bytes - begin), unread)
            if step is not None:
                step(min(size, n_bytes - begin))


def read_at(path: str | PathLike[str], begin: int, size: int, unread: Unread | None = None) -> np.ndarray:
    """Return `size` bytes of a file from offset `begin` on, zeros beyond its end."""
    with open(path, "rb", buffering=0) as file:
        file.seek(begin)
        return _read(file, size, unread)


def _read(file: FileIO, size: int, unread: Unread | None = None) -> np.ndarray:
    piece = np.empty(size, np.uint8)
    piece[_fill(file, piece) if unread is None else _fill_around(file, piece, unread) :] = 0
    return piece


def read_into(file: str | FileIO, piece: np.ndarray) -> None:
    """Fill an array with the next bytes of a file, or the first ones of the file of a name.

    Raises
    ------
    ChangedFileError
        If there are fewer.
    """
    if isinstance(file, str):
        with open(file, "rb", buffering=0) as opened:
            return read_into(opened, piece)
    if _fill(file, piece) < len(piece):
        raise ChangedFileError(str(file.name))
    return None


def _fill(file: FileIO, piece: np.ndarray) -> int:
    """Fill an array with the next bytes of a file, and return how many there were."""
    view, done = piece.data, 0
    while done < len(piece) and (count := file.readinto(view[done:])):
        done += count
    return done


def _fill_around(file: FileIO, piece: np.ndarray, unread: Unread) -> int:
    """Fill an array as `_fill` does, sector by sector if the disk has lost some of the bytes: these become zeros."""
    first = file.tell()
    try:
        return _fill(file, piece)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
    last = first + len(piece)
    ends = [*range(first - first % _SECTOR_BYTES + _SECTOR_BYTES, last, _SECTOR_BYTES), last]
    for begin, end in pairwise([first, *ends]):
        sector = piece[begin - first : end - first]
        sector[:] = 0
        file.seek(begin)
        try:
            _fill(file, sector)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            sector[:] = 0
            unread.append((begin, end))
    return len(piece)


def stamp_of(status: os.stat_result) -> tuple[int, int, int]:
    """Return what changes if a file is written to or replaced: its size, inode and time of modification."""
    return status.st_size, status.st_ino, status.st_mtime_ns


def hash_of(path: str | PathLike[str], hash_name: str, step: Step | None = None, unread: Unread | None = None) -> str:
    """Return the hash of a file, in hexadecimal."""
    digest = hasher(hash_name)
    for piece in pieces_of(path, os.path.getsize(path), PIECE_BYTES, step, unread):
        digest.update(piece.data)
    return str(digest.hexdigest())


def scan(path: str | PathLike[str], hash_name: str, step: Step | None = None) -> Scan:
    """Read a file once; return its entry of the manifest, and its sidecar.

    Raises
    ------
    ChangedFileError
        If the file was written to during the pass.
    OSError
        If the file cannot be read.
    """
    before = os.stat(path)
    n_bytes = before.st_size
    tensors = tensors_of(path, n_bytes)
    whole, hashes = hasher(hash_name), TensorHashes(tensors, hash_name)
    sums = _BackgroundSums(n_bytes)
    with sums:
        for piece in pieces_of(path, n_bytes, PIECE_BYTES, step):
            sums.add(piece)
            whole.update(piece.data)
            hashes.update(piece)
    after = os.stat(path)
    if stamp_of(before) != stamp_of(after):
        raise ChangedFileError(path)
    entry = FileEntry(n_bytes, before.st_mtime_ns, str(whole.hexdigest()), hashes.finish())
    _log.debug("read %s: %s bytes, %s", path, f"{n_bytes:,}", hash_name)
    if sums.exact is None:
        return Scan(entry, None)
    return Scan(entry, Sidecar((1, n_bytes), "uint8", n_bytes, exact=sums.exact))


class _BackgroundSums:
    """The exact sums of a file, `exact`; long files are summed by a thread of their own. A context manager."""

    def __init__(self, n_bytes: int) -> None:
        self.exact: np.ndarray | None = None
        self._thread = ThreadPoolExecutor(1) if n_bytes > PIECE_BYTES else None
        self._waiting: deque[Future[None]] = deque()
        if n_bytes:
            of = file_layout(n_bytes)
            self.exact = np.empty(sums_shape(of), np.uint64)
            self._sums = ExactSums(of, self.exact.__setitem__)

    def __enter__(self) -> "_BackgroundSums":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=kind is not None)
        if kind is None and self.exact is not None:
            for done in self._waiting:
                done.result()
            self._sums.finish()

    def add(self, piece: np.ndarray) -> None:
        if self._thread is None:
            self._sums.add(piece)
            return
        self._waiting.append(self._thread.submit(self._sums.add, piece))
        if len(self._waiting) > _MOST_WAITING:
            self._waiting.popleft().result()


class TensorHashes:
    """The hashes of the tensors of a file, whose bytes are added in order."""

    def __init__(self, tensors: Mapping[str, Tensor], hash_name: str) -> None:
        self._tensors, self._hash_name = tensors, hash_name
        self._left = iter(tensors.items())
        self._found: dict[str, Tensor] = {}
        self._at = 0
        self._next()

    def _next(self) -> None:
        self._now = next(self._left, None)
        self._hash = hasher(self._hash_name)

    def update(self, piece: np.ndarray) -> None:
        """Add the next bytes of the file."""
        begin, end = self._at, self._at + len(piece)
        while self._now is not None and self._now[1].begin < end:
            name, tensor = self._now
            self._hash.update(piece[max(0, tensor.begin - begin) : max(0, tensor.end - begin)].data)
            if tensor.end > end:
                break
            self._found[name] = tensor._replace(hash=str(self._hash.hexdigest()))
            self._next()
        self._at = end

    def finish(self) -> dict[str, Tensor]:
        """Return the tensors with their hashes; those without bytes at the end of the file too."""
        while self._now is not None:
            self._found[self._now[0]] = self._now[1]._replace(hash=str(self._hash.hexdigest()))
            self._next()
        return self._found
