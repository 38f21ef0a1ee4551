"""Choice between the two functions that add words on the CPU; their results have the same bits.

compiled_sums.py is several times as fast as NumPy, but numba must be installed, and importing it takes time.
"""

import sys
from threading import Lock

import numpy as np

from tsapps.apps.abft.at_rest.word_sums import SUMS, AddRows, add_by_blas
from tsapps.kernels.jit.numba_cache import numba_version
from tsapps.kernels.system.cache import warn_once
from tsapps.kernels.system.logs import logger_of

__all__ = ["COMPILED_FROM", "adder", "compiled_adder"]

_log = logger_of(__name__)
#: Bytes from which on the compiled function is used. Importing numba and loading the function takes as long as NumPy's
#: sums of that many bytes: 0.8 s on one core or two.
COMPILED_FROM = 1 << 28


class _Compiled:
    """The compiled function, or the reason why there is none; and how many bytes this process wanted to add so far."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._tried = False
        self._add: AddRows | None = None
        self._bytes = 0

    def wanted(self, n_bytes: int) -> bool:
        """Return True if the sums of another `n_bytes` bytes, with those before, pay for the import of numba."""
        with self._lock:
            self._bytes += n_bytes
            return self._tried or self._bytes >= COMPILED_FROM

    def get(self) -> AddRows | None:
        with self._lock:
            if not self._tried:
                self._add = _compiled()
                self._tried = True
            return self._add


_function = _Compiled()


def adder(n_bytes: int) -> AddRows:
    """Return the function that adds the rows of words of `n_bytes` bytes in the least time."""
    return (_function.get() if _function.wanted(n_bytes) else None) or add_by_blas


def compiled_adder() -> AddRows | None:
    """Return the compiled function, or None if it cannot be used."""
    return _function.get()


def _compiled() -> AddRows | None:
    """Return the compiled function if numba is installed and the function is right, otherwise None."""
    if sys.byteorder != "little":
        return None
    try:
        from tsapps.apps.abft.at_rest.compiled_sums import add_compiled
    except ImportError as error:
        if numba_version() is not None:
            warn_once(f"numba cannot be used, so that checksums take longer: {error}")
        return None
    if not _agrees(add_compiled):
        warn_once("the sums that numba compiled are wrong, so NumPy computes them: remove numba's files in the cache")
        return None
    _log.info("sums of words on the CPU: by numba")
    return add_compiled


def _agrees(add: AddRows) -> bool:
    """Return True if a function computes the sums of 100 blocks of 20 words as `add_by_blas` does."""
    words = (np.arange(2000, dtype=np.uint32) * np.uint32(0x9E3779B1)).reshape(20, 100)
    found, expected = np.zeros((SUMS, 100), np.uint64), np.zeros((SUMS, 100), np.uint64)
    add(found, words[:11], 20)
    add(found, words[11:], 9)
    add_by_blas(expected, words, 20)
    return np.array_equal(found, expected)
