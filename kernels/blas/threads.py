"""Thread counts of BLAS: temporary limits that are safe when several threads set them at once.

If each call restored the thread count that it found, concurrent calls could restore each other's limit. Instead, the
first of several concurrent calls saves the thread counts, and the last call to end restores them.
"""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from threadpoolctl import ThreadpoolController

__all__ = ["is_forked", "one_blas_thread", "threads_kept"]


@lru_cache(maxsize=1)
def _libraries(modules: int) -> list[Any]:  # noqa: ARG001
    """Return the BLAS libraries of this process; cached by the number of imported modules, which can load libraries."""
    return ThreadpoolController().select(user_api="blas").lib_controllers


class _Keeper:
    """Saves the thread counts of the BLAS libraries while calls are active, and restores them afterwards."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls = 0
        self._kept: dict[str, tuple[Any, int]] = {}
        self.forked = False

    def enter(self, limit: int | None) -> None:
        with self._lock:
            libraries = _libraries(len(sys.modules))
            for library in libraries:  # some may have been loaded since the first call
                self._kept.setdefault(library.filepath, (library, library.num_threads))
            self._calls += 1
            if limit is not None:
                for library in libraries:
                    library.set_num_threads(limit)

    def leave(self) -> None:
        with self._lock:
            self._calls -= 1
            if self._calls == 0:
                self._put_back()

    def begin_forked(self) -> None:
        """Restore the thread counts in a forked process: only its parent has the threads whose calls would do so."""
        self.forked = True
        self._lock = threading.Lock()
        if self._calls:
            self._calls = 0
            self._put_back()

    def _put_back(self) -> None:
        for library, number in self._kept.values():
            if library.num_threads != number:
                library.set_num_threads(number)
        self._kept.clear()


_keeper = _Keeper()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_keeper.begin_forked)


def is_forked() -> bool:
    """Return True if this process was forked after its parent imported this module.

    In such a process GNU OpenMP can wait forever for threads that exist only in the parent.
    """
    return _keeper.forked


@contextmanager
def threads_kept() -> Iterator[None]:
    """Restore the thread counts of BLAS at the end of the ``with`` block, whatever code in the block changes them."""
    _keeper.enter(None)
    try:
        yield
    finally:
        _keeper.leave()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to the calling thread within the ``with`` block.

    For small products, and for products computed by many threads at once, synchronization costs more than further
    threads gain. On two cores with six other processes, sums over 512 MiB took 18 s with two threads and 0.8 s with
    one.
    """
    _keeper.enter(1)
    try:
        yield
    finally:
        _keeper.leave()
