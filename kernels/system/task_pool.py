"""Threads for generators, which garbage collection may close in any thread, whatever locks that thread holds."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from threading import get_ident
from types import TracebackType
from typing import Any, TypeVar

__all__ = ["TaskPool"]

_Result = TypeVar("_Result")


class TaskPool:
    """A thread pool whose end waits for its tasks, and joins no thread.

    A generator that was not exhausted may be closed by garbage collection, and this runs where memory is allocated:
    also in a thread that is starting, and holds the lock of `threading` without which no thread can be joined. So a
    ``with ThreadPoolExecutor()`` in a generator can wait forever.

    At the end of the context, tasks that have not begun are canceled. If it ends in one of the pool's own threads, that
    thread's task runs on.

    Parameters
    ----------
    threads : int
    name : str
        What names of threads begin with.
    """

    def __init__(self, threads: int, name: str = "") -> None:
        # Not `self`, which the pool would then keep until a collection.
        own, self._running = set[int](), set[Future[Any]]()
        self._own = own
        self._pool = ThreadPoolExecutor(threads, name, initializer=lambda: own.add(get_ident()))

    def submit(self, task: Callable[..., _Result], *arguments: Any) -> "Future[_Result]":
        """Return the future result of a task."""
        future = self._pool.submit(task, *arguments)
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        return future

    def __enter__(self) -> "TaskPool":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)  # canceled tasks are discarded
        if get_ident() not in self._own:
            wait(tuple(self._running))
