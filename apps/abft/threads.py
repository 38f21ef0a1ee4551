"""BLAS on one thread: products of checksums are small, and threads that wait for each other cost more."""

from contextlib import AbstractContextManager
from functools import cache
from typing import Any

from threadpoolctl import ThreadpoolController

__all__ = ["one_thread"]


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()  # looks through all libraries that are loaded: once is enough


def one_thread() -> AbstractContextManager[Any]:
    """Return a context in which BLAS works on the caller's thread alone.

    On two cores that six others wanted, too, sums of 512 MiB took 18 s by two threads, and 0.8 s by one.
    """
    return _controller().limit(limits=1, user_api="blas")
