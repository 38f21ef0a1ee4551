"""Threads of BLAS and OpenMP: how many there are is the process's own, and is left as it was.

Limits that calls set by themselves end in the order that threads end in: the last may put back what another had set.
Here calls are counted: the first to come keeps the numbers of threads, and the last to go puts them back.
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
    """Return the BLAS libraries of this process; they are looked for again when more `modules` have been imported."""
    return ThreadpoolController().select(user_api="blas").lib_controllers


class _Keeper:
    """Keeps the numbers of threads of the BLAS libraries while any call needs them kept."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls = 0
        self._kept: dict[str, tuple[Any, int]] = {}
        self.forked = False

    def enter(self, limit: int | None) -> None:
        with self._lock:
            libraries = _libraries(len(sys.modules))
            for library in libraries:  # some may have been loaded since the first call came
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
        """Put back what calls of other threads have set, which a forked process does not have."""
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
    """Tell whether this process was forked after this module was imported.

    GNU's OpenMP waits for ever there, for threads that only the parent has, if the parent had any.
    """
    return _keeper.forked


@contextmanager
def threads_kept() -> Iterator[None]:
    """Within the block, whoever limits the threads of BLAS leaves them as they were before it."""
    _keeper.enter(None)
    try:
        yield
    finally:
        _keeper.leave()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Within the block, BLAS works on the calling thread alone.

    Products that are small, or of many threads at once, lose more by waiting for each other than threads gain: on two
    cores that six others wanted, too, sums of 512 MiB took 18 s by two threads, and 0.8 s by one.
    """
    _keeper.enter(1)
    try:
        yield
    finally:
        _keeper.leave()
