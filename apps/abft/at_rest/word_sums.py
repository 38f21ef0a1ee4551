"""Sums of the exact code on the CPU: rows of words are added to the sums of their columns (exact_code.py defines them).

Here NumPy multiplies weights and words by BLAS. compiled_sums.py has loops with the same results that numba compiles.
"""

from collections.abc import Callable
from math import comb

import numpy as np

from tsapps.apps.abft.at_rest.interleave import ROWS
from tsapps.kernels.blas.threads import one_blas_thread

__all__ = ["SUMS", "AddRows", "add_by_blas", "last_weight"]

#: Number of sums of a block.
SUMS = 5

#: A function add(sums, words, left) that adds rows of words to the sums of their columns, in place. The same function
#: adds all rows of a block, in order: only after the last one do the sums have the values of their definition.
#:
#: sums : (5, columns), uint64; each row contiguous
#: words : (at most `left` rows, columns), little-endian uint32; each row contiguous, at any address
#: left : the number of rows from the first of these to the end of their blocks, at most 512
AddRows = Callable[[np.ndarray, np.ndarray, int], None]


def last_weight(r: int) -> int:
    """Return h(r), the weight in S₄ of a word; r is 1 for the last word of its block.

    h is the upper 22 bits of a hash finalizer (MurmurHash3). With these weights, a change of three or more words
    changes S₄ by the same amount as a change of two words only by chance.
    """
    x = r * 0x9E3779B1 % 2**32
    x = (x ^ x >> 15) * 0x85EBCA77 % 2**32
    x = (x ^ x >> 13) * 0xC2B2AE3D % 2**32
    return (x ^ x >> 16) >> 10


# Weight of a word in each sum, (5, 513), indexed by r, in float64. Words are split into 16-bit halves, so that sums of
# weights times halves are exact in float64.
_WEIGHTS = np.array(
    [
        *([comb(r + k - 1, k) if r else 0 for r in range(ROWS + 1)] for k in range(SUMS - 1)),
        [last_weight(r) for r in range(ROWS + 1)],
    ],
    np.float64,
)
# Maximum number of rows and of columns of words per matrix product, so that the converted words fit in a CPU's cache.
_TOGETHER, _BESIDE = 32, 4096


def add_by_blas(sums: np.ndarray, words: np.ndarray, left: int) -> None:
    """Add rows of words to the sums of their columns by NumPy; see `AddRows`."""
    with one_blas_thread():
        for column in range(0, words.shape[1], _BESIDE):
            to = sums[:, column : column + _BESIDE]
            for begin in range(0, len(words), _TOGETHER):
                some = words[begin : begin + _TOGETHER, column : column + _BESIDE]
                # Exact in float64: S₀ … S₃ of the 16-bit halves are at most C(515, 4) · 2¹⁶, and S₄ is at most
                # 512 · 2²² · 2¹⁶; both limits are below 2⁵³.
                digits = some.view("<u2").astype(np.float64)
                products = (_WEIGHTS[:, left - begin : left - begin - len(some) : -1] @ digits).astype(np.uint64)
                to += products[:, 0::2] + (products[:, 1::2] << np.uint64(16))
