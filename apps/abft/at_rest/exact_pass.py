"""One pass of the exact code over a matrix on the CPU: several threads compute the sums of different stripes.

A thread has a stripe, or some columns of a wide one, and reads it a few rows of words at a time, so that they are still
in the core's cache when they are added. Of a file, threads read at once what is in the page cache; a thread that has to
wait for the disk holds a lock until the end of its stripe, so that a disk reads one stripe after the other.

Matrices whose bytes cannot be read from any place on (text, compressed files, other orders of elements) are read by one
thread in parts (`source.parts`), and so are files with very long rows.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
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

__all__ = ["FileReader", "exact_pass"]

# Maximum number of threads, and least number of bytes per thread.
_MOST_THREADS, _THREAD_BYTES = 32, 1 << 22
# Bytes that a thread adds at once: of a file, what fits in a core's level-2 cache.
_FILE_BYTES, _MEMORY_BYTES = 1 << 20, 1 << 24
# Least number of columns of a part of a stripe, and number of bytes from which on a stripe is divided.
_LEAST_COLUMNS, _MOST_STRIPE_BYTES = 1 << 12, 1 << 26
# Maximum number of stripes per thread that are computed before their turn.
_AHEAD = 2


class FileReader(Protocol):
    """Reads the bytes of a matrix in a file; several threads may call it at once."""

    def __call__(self, begin: int, out: np.ndarray, *, wait: bool) -> bool:
        """Fill `out` from byte `begin` of the matrix on; without `wait`, return False instead of waiting for a disk."""


class _Unit(NamedTuple):
    """Columns `first` to before `end` of a stripe."""

    stripe: int
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
        """Yield what threads compute: stripes, or parts of them if they are large or too few."""
        of = self.of
        wanted = max(-(-ROWS * of.width * WORD // _MOST_STRIPE_BYTES), -(-4 * threads // of.stripes))
        number = max(1, min(wanted, of.width // _LEAST_COLUMNS))
        edges = [of.width * i // number for i in range(number + 1)]
        for stripe in range(of.stripes):
            for first, end in pairwise(edges):
                yield _Unit(stripe, first, end)

    def words(self, unit: _Unit) -> Generator[np.ndarray, None, None]:
        """Yield the words of a unit, some rows at a time."""
        begin, end = self.of.stripe_bytes(unit.stripe)
        size = _rows_within(_MEMORY_BYTES, unit.end - unit.first) * self.of.width * WORD
        for start in range(begin, end, size):
            part = self._content[start : min(end, start + size)]
            yield _words(part, self.of.width)[:, unit.first : unit.end]


class _File:
    """Stripes of a matrix in a file."""

    def __init__(self, of: Layout, reader: FileReader) -> None:
        self.of, self._read, self._disk = of, reader, Lock()
        self._buffers: list[np.ndarray] = []  # those that no thread uses now

    def units(self, _threads: int) -> Iterator[_Unit]:
        """Yield what threads compute: stripes."""
        return (_Unit(stripe, 0, self.of.width) for stripe in range(self.of.stripes))

    def words(self, unit: _Unit) -> Generator[np.ndarray, None, None]:
        """Yield the words of a unit, some rows at a time; close the iterator in the end."""
        begin, end = self.of.stripe_bytes(unit.stripe)
        try:
            buffer = self._buffers.pop()
        except IndexError:
            buffer = np.empty(_rows_within(_FILE_BYTES, self.of.width) * self.of.width * WORD, np.uint8)
        waits = False
        try:
            for start in range(begin, end, len(buffer)):
                part = buffer[: end - start]
                if not waits and not self._read(start, part, wait=False):
                    waits = self._disk.acquire()
                if waits:
                    self._read(start, part, wait=True)
                yield _words(part, self.of.width)
        finally:
            self._buffers.append(buffer)
            if waits:
                self._disk.release()


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
    """Yield the sums of units, in order, computed by several threads; close the iterator in the end."""
    stop = Event()

    def sums_of(unit: _Unit) -> np.ndarray:
        sums = np.zeros((SUMS, unit.end - unit.first), np.uint64)
        left = stripes.of.rows(unit.stripe)
        with closing(stripes.words(unit)) as parts_of_unit:
            for words in parts_of_unit:
                add(sums, words, left)
                left -= len(words)
                if stop.is_set():
                    break
        return sums

    if threads == 1:
        yield from ((unit, sums_of(unit)) for unit in units)
        return
    waiting: deque[tuple[_Unit, Future[np.ndarray]]] = deque()
    with ThreadPoolExecutor(threads, "tsapps-sums") as pool:
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
            pool.shutdown(wait=False, cancel_futures=True)


def _join(
    computed: Iterator[tuple[_Unit, np.ndarray]],
    of: Layout,
    ended: Callable[[int, np.ndarray], None],
    progress: Progress | None,
) -> None:
    """Join the sums of units to those of stripes."""
    stripe = np.empty((SUMS, of.width), np.uint64)
    for unit, sums in computed:
        stripe[:, unit.first : unit.end] = sums
        if unit.end == of.width:
            ended(unit.stripe, stripe)
            stripe = np.empty((SUMS, of.width), np.uint64)
        if progress is not None:
            begin, end = of.stripe_bytes(unit.stripe)
            progress(begin + (end - begin) * unit.end // of.width)
