"""Compilation of Python functions by numba, whose machine code is kept in the user's cache directory.

By default, numba keeps it next to the source file, and raises an error where it may not write. A cache that cannot be
read or written costs only the time of compiling again.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pickle import UnpicklingError
from typing import Any

from tsapps.kernels.system.cache import cache_directory, private_directory

__all__ = ["compile_function", "numba_version"]

# What numba raises if there is no directory for its files, if one cannot be written, or if it holds damaged data.
_CACHE_ERRORS = (
    *(OSError, RuntimeError, UnpicklingError, EOFError, AttributeError, ImportError, LookupError, TypeError),
    ValueError,
)


def numba_version() -> str | None:
    """Return the version of numba that is installed, if any; numba is not imported."""
    try:
        return version("numba")
    except PackageNotFoundError:
        return None


def compile_function(function: Callable[..., Any], signature: Any) -> Any:
    """Compile a function for this CPU, for one signature; while it runs, other threads of Python run too."""
    from numba import njit

    try:
        with _kept_in_cache():
            return njit(signature, nogil=True, cache=True)(function)
    except _CACHE_ERRORS:
        return njit(signature, nogil=True)(function)


@contextmanager
def _kept_in_cache() -> Iterator[None]:
    """Let numba keep machine code in the user's cache directory, unless the user has set NUMBA_CACHE_DIR."""
    import numba

    before = numba.config.CACHE_DIR
    if not before:
        numba.config.CACHE_DIR = str(private_directory(cache_directory() / "numba"))
    try:
        yield
    finally:
        numba.config.CACHE_DIR = before
