"""Work on several files at a time, by threads: hashes and sums release the interpreter lock."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from itertools import islice
from threading import Event, Lock
from typing import TypeVar

from tsapps.apps.abft.files.scan import Step
from tsapps.kernels.devices import available_cores
from tsapps.kernels.system.task_pool import TaskPool

__all__ = ["Progress", "Workers"]

_T = TypeVar("_T")
_R = TypeVar("_R")
#: Called with the number of bytes that were read since the last call, by one thread at a time.
Progress = Callable[[int], None]
# Maximum number of files for each thread that wait or whose results wait.
_AHEAD = 16


class _StoppedError(Exception):
    """Raised in the threads if the caller stops early."""


class Workers:
    """Threads that work on files.

    Parameters
    ----------
    count : int or None
        Number of threads; by default, that of the cores that this process may use.
    progress : callable, optional
    """

    def __init__(self, count: int | None = None, progress: Progress | None = None) -> None:
        self.count = count or available_cores()
        self._progress, self._lock, self._stopped = progress, Lock(), Event()

    def step(self, n_bytes: int) -> None:
        """Count bytes; raise an exception in a thread whose result is no longer wanted."""
        if self._stopped.is_set():
            raise _StoppedError
        if self._progress is not None:
            with self._lock:
                self._progress(n_bytes)

    def map(self, function: Callable[[_T, Step], _R], items: Iterable[_T]) -> Iterator[_R]:
        """Yield ``function(item, step)`` of every item, in their order. An exception stops the other threads."""
        waiting: deque[Future[_R]] = deque()
        left = iter(items)
        with TaskPool(self.count) as pool:
            try:
                while True:
                    for item in islice(left, self.count * _AHEAD - len(waiting)):
                        waiting.append(pool.submit(function, item, self.step))
                    if not waiting:
                        break
                    yield waiting.popleft().result()
            except BaseException:
                self._stopped.set()
                raise
