"""One pass of the exact code over a matrix on the CPU: several threads compute the sums of different stripes.

A thread has some stripes, or some columns of a wide one, and reads a few rows of words at a time, so that they are
still in the core's cache when they are added. Of a file, threads read at once what is in the page cache; a thread that
has to wait for the disk holds a lock until the end of its stripes, so that a disk reads them one after the other.

Matrices whose bytes cannot be read from any place on (text, compressed files, other orders of elements) are read by one
thread in parts (`source.parts`), and so are files with very long rows.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, closing, nullcontext
from itertools import pairwise
from threading import Event, Lock
from typing import Any, NamedTuple, Protocol

import numpy as np

from tsapps.apps.abft.at_rest.exact_code import ExactSums
from tsapps.apps.abft.at_rest.interleave import ROWS, WORD, Layout
from tsapps.apps.abft.at_rest.select_adder import adder
from tsapps.apps.abft.at_rest.source import Progress, Source, parts
from tsapps.apps.abft.at_rest.word_sums import SUMS, AddRows, add_by_blas
from tsapps.kernels.blas.threads import one_blas_thread
from tsapps.kernels.devices import available_cores
from tsapps.kernels.system.task_pool import TaskPool

__all__ = ["FileReader", "exact_pass"]

# Maximum number of threads, and least number of bytes per thread.
_MOST_THREADS, _THREAD_BYTES = 32, 1 << 22
# Bytes that a thread adds at once: of a file, what fits in a core's level-2 cache.
_FILE_BYTES, _MEMORY_BYTES = 1 << 20, 1 << 24
# Bytes of stripes that a thread has at once, if stripes are smaller: the interpreter, which one thread uses at a time,
# then takes little time. Least number of columns of a part of a stripe; bytes from which on a stripe is divided.
_UNIT_BYTES, _LEAST_COLUMNS, _MOST_STRIPE_BYTES = 1 << 24, 1 << 12, 1 << 26
# Number of units per thread: the maximum that are computed before their turn, and the least to divide a matrix into.
_AHEAD, _UNITS = 2, 4


class FileReader(Protocol):
    """Reads the bytes of a matrix in a file; several threads may call it at once."""

    def __call__(self, begin: int, out: np.ndarray, *, wait: bool) -> bool:
        """Fill `out` from byte `begin` of the matrix on; without `wait`, return False instead of waiting for a disk."""


class _Unit(NamedTuple):
    """Columns `first` to before `end` of some stripes."""

    stripes: range
    first: int
    end: int


def exact_pass(
    source: Source, of: Layout, ended: Callable[[int, np.ndarray], None], progress: Progress | None = None
) -> None:
    """Compute the exact sums of a matrix.

    Parameters
    ----------
    source : Source
    of : Layout
        The interleaving of the matrix's bytes.
    ended : callable
        As for `ExactSums`: called by the thread of the caller, once per stripe, in order.
    progress : callable, optional
        Called by the thread of the caller with the number of bytes whose sums are done.
    """
    memory = _bytes_in_memory(source)
    with _reader(source, of) if memory is None else nullcontext() as reader:
        if memory is not None:
            stripes: _Memory | _File = _Memory(of, memory)
        elif reader is not None:
            stripes = _File(of, reader)
        else:
            sums = ExactSums(of, ended)
            for _, _, elements in parts(source, progress):
                sums.add(elements.reshape(-1).view(np.uint8))
            sums.finish()
            return
        number = min(available_cores(), _MOST_THREADS, -(-of.n_bytes // _THREAD_BYTES))
        add = adder(of.n_bytes)
        # If calls of BLAS set and reset its number of threads in turn, it ends and starts threads all the time.
        with (
            one_blas_thread() if add is add_by_blas else nullcontext(),
            closing(_computed(stripes, stripes.units(number), add, number)) as computed,
        ):
            _join(computed, of, ended, progress)


def _bytes_in_memory(source: Any) -> np.ndarray | None:
    """Return the bytes of a matrix if host memory holds them in row-major order and native byte order."""
    # `in_place` of a matrix in a file would map the file into memory.
    if not hasattr(source, "in_place") or getattr(source, "stored", None) is not None:
        return None
    array = source.in_place()
    return array.reshape(-1).view(np.uint8) if isinstance(array, np.ndarray) else None


def _reader(source: Any, of: Layout) -> AbstractContextManager[FileReader | None]:
    """Open the file of a matrix; the reader is None if the file is not read by several threads."""
    if ROWS * of.width * WORD > _MOST_STRIPE_BYTES or not hasattr(source, "bytes_reader"):
        return nullcontext()
    return source.bytes_reader()


class _Memory:
    """Stripes of a matrix in memory, whose bytes are `content`."""

    def __init__(self, of: Layout, content: np.ndarray) -> None:
        self.of, self._content = of, content

    def units(self, threads: int) -> Iterator[_Unit]:
        """Yield what threads compute: stripes, or parts of them if they are large or few."""
        of = self.of
        wanted = max(-(-ROWS * of.width * WORD // _MOST_STRIPE_BYTES), -(-_UNITS * threads // of.stripes))
        number = max(1, min(wanted, of.width // _LEAST_COLUMNS))
        if number == 1:
            yield from _whole_stripes(of, threads)
            return
        edges = [of.width * i // number for i in range(number + 1)]
        for stripe in range(of.stripes):
            for first, end in pairwise(edges):
                yield _Unit(range(stripe, stripe + 1), first, end)

    def words(self, unit: _Unit) -> Generator[tuple[int, int, np.ndarray], None, None]:
        """Yield (stripe, index of the first row in it, some rows of words) of a unit."""
        of, step = self.of, _rows_within(_MEMORY_BYTES, unit.end - unit.first)
        for stripe in unit.stripes:
            begin, end = of.stripe_bytes(stripe)
            for row in range(0, of.rows(stripe), step):
                start = begin + row * of.width * WORD
                part = self._content[start : min(end, start + step * of.width * WORD)]
                yield stripe, row, _words(part, of.width)[:, unit.first : unit.end]


class _File:
    """Stripes of a matrix in a file."""

    def __init__(self, of: Layout, reader: FileReader) -> None:
        self.of, self._read, self._disk = of, reader, Lock()
        self._buffers: list[np.ndarray] = []  # those that no thread uses now

    def units(self, threads: int) -> Iterator[_Unit]:
        """Yield what threads compute: stripes."""
        return _whole_stripes(self.of, threads)

    def words(self, unit: _Unit) -> Generator[tuple[int, int, np.ndarray], None, None]:
        """Yield (stripe, index of the first row in it, some rows of words) of a unit; close the iterator in the end."""
        of, step = self.of, _rows_within(_FILE_BYTES, self.of.width)
        try:
            buffer = self._buffers.pop()
        except IndexError:
            buffer = np.empty(step * of.width * WORD, np.uint8)
        waits = False
        try:
            for stripe in unit.stripes:
                begin, end = of.stripe_bytes(stripe)
                for row in range(0, of.rows(stripe), step):
                    start = begin + row * of.width * WORD
                    part = buffer[: end - start]
                    if not waits and not self._read(start, part, wait=False):
                        waits = self._disk.acquire()
                    if waits:
                        self._read(start, part, wait=True)
                    yield stripe, row, _words(part, of.width)
        finally:
            self._buffers.append(buffer)
            if waits:
                self._disk.release()


def _whole_stripes(of: Layout, threads: int) -> Iterator[_Unit]:
    """Yield units of one stripe, or of several small ones."""
    size = max(1, min(_UNIT_BYTES // (ROWS * of.width * WORD), of.stripes // (_UNITS * threads)))
    for first in range(0, of.stripes, size):
        yield _Unit(range(first, min(of.stripes, first + size)), 0, of.width)


def _rows_within(n_bytes: int, columns: int) -> int:
    """Return how many rows of `columns` words have `n_bytes` bytes: a multiple of eight, which are added fastest."""
    return max(8, n_bytes // (columns * WORD) // 8 * 8)


def _words(part: np.ndarray, width: int) -> np.ndarray:
    """Return bytes as rows of words, with zeros at the end of the last row."""
    if len(part) % (width * WORD):
        part = np.concatenate([part, np.zeros(-len(part) % (width * WORD), np.uint8)])
    return part.view("<u4").reshape(-1, width)


def _computed(
    stripes: _Memory | _File, units: Iterator[_Unit], add: AddRows, threads: int
) -> Generator[tuple[_Unit, np.ndarray], None, None]:
    """Yield the sums of units, in order, (stripes, 5, columns), by several threads; close the iterator in the end."""
    stop = Event()

    def sums_of(unit: _Unit) -> np.ndarray:
        found = np.zeros((len(unit.stripes), SUMS, unit.end - unit.first), np.uint64)
        with closing(stripes.words(unit)) as parts_of_unit:
            for stripe, row, words in parts_of_unit:
                add(found[stripe - unit.stripes.start], words, stripes.of.rows(stripe) - row)
                if stop.is_set():
                    break
        return found

    if threads == 1:
        yield from ((unit, sums_of(unit)) for unit in units)
        return
    waiting: deque[tuple[_Unit, Future[np.ndarray]]] = deque()
    with TaskPool(threads, "tsapps-sums") as pool:
        try:
            for unit in units:
                waiting.append((unit, pool.submit(sums_of, unit)))
                if len(waiting) == _AHEAD * threads:
                    unit, future = waiting.popleft()
                    yield unit, future.result()
            for unit, future in waiting:
                yield unit, future.result()
        finally:  # also after an error or a signal, which arrive in the caller's thread
            stop.set()


def _join(
    computed: Iterator[tuple[_Unit, np.ndarray]],
    of: Layout,
    ended: Callable[[int, np.ndarray], None],
    progress: Progress | None,
) -> None:
    """Pass on the sums of whole stripes, and join those of parts of a stripe."""
    joined = np.empty((SUMS, of.width), np.uint64)
    for unit, found in computed:
        for stripe, sums in zip(unit.stripes, found, strict=True):
            if sums.shape == joined.shape:
                ended(stripe, sums)
            else:
                joined[:, unit.first : unit.end] = sums
                if unit.end == of.width:
                    ended(stripe, joined)
                    joined = np.empty((SUMS, of.width), np.uint64)
        if progress is not None:
            begin, end = of.stripe_bytes(unit.stripes[-1])
            progress(begin + (end - begin) * unit.end // of.width)
