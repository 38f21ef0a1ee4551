"""Sums of the exact code by loops that numba compiles; importing this module imports numba and compiles them.

S₀ … S₃ are prefix sums of prefix sums: word after word, S₀ += x, S₁ += S₀, S₂ += S₁, S₃ += S₂. After the last word of
the block, S_k has counted word x C(r + k − 1, k) times, where r is the number of words from x to the end. With
S₄ += h(r) · x, a word takes five additions of 64 bits and one multiplication of 32 × 32 bits.

    columns of words   0 … 511 | 512 … 1023 | …     one tile of columns after the other;
    rows 0 … 7           j →   |            |       the loop over j, which LLVM vectorizes, reads a column's five sums
    rows 8 … 15          j →   |            |       from the level-1 cache, adds eight words, and stores the sums again;
    …                          |            |       memory is read as eight streams at a time

The sums of a tile are copied to a buffer with offsets known to the compiler. In the caller's array, it would have to
prove at run time that no store changes a value loaded later, by more comparisons than LLVM accepts; it would not
vectorize the loop. For the same reason the eight rows are written out.
"""

import numpy as np
from numba import njit, types
from numpy.lib.stride_tricks import as_strided

from tsapps.apps.abft.at_rest.interleave import ROWS
from tsapps.apps.abft.at_rest.word_sums import SUMS, last_weight
from tsapps.kernels.jit.numba_cache import compile_function

__all__ = ["add_compiled"]

# Columns of a tile, whose sums take 20 KiB.
_TILE = 512
_LAST_WEIGHTS = np.array([last_weight(r) for r in range(ROWS + 1)], np.uint32)


@njit
def _plus(s, x, h):
    """Return the five sums of a column after one more word x, whose weight in S₄ is h."""
    s0 = s[0] + np.uint64(x)
    s1 = s[1] + s0
    s2 = s[2] + s1
    return s0, s1, s2, s[3] + s2, s[4] + np.uint64(x) * np.uint64(h)


def _add_rows(sums, words, stride, rows, left, weights):
    """Add `rows` rows of words to `sums`, (5, columns); row i begins at words[i · stride], and its r is left − i."""
    tile = np.empty(SUMS * _TILE, np.uint64)
    for column in range(0, sums.shape[1], _TILE):
        n = min(_TILE, sums.shape[1] - column)
        for k in range(SUMS):
            for j in range(n):
                tile[k * _TILE + j] = sums[k, column + j]
        i = 0
        while i + 8 <= rows:
            x0, x1, x2, x3 = (
                words[i * stride + column :],
                words[(i + 1) * stride + column :],
                words[(i + 2) * stride + column :],
                words[(i + 3) * stride + column :],
            )
            x4, x5, x6, x7 = (
                words[(i + 4) * stride + column :],
                words[(i + 5) * stride + column :],
                words[(i + 6) * stride + column :],
                words[(i + 7) * stride + column :],
            )
            r = left - i
            h0, h1, h2, h3 = weights[r], weights[r - 1], weights[r - 2], weights[r - 3]
            h4, h5, h6, h7 = weights[r - 4], weights[r - 5], weights[r - 6], weights[r - 7]
            for j in range(n):
                s = tile[j], tile[_TILE + j], tile[2 * _TILE + j], tile[3 * _TILE + j], tile[4 * _TILE + j]
                s = _plus(s, x0[j], h0)
                s = _plus(s, x1[j], h1)
                s = _plus(s, x2[j], h2)
                s = _plus(s, x3[j], h3)
                s = _plus(s, x4[j], h4)
                s = _plus(s, x5[j], h5)
                s = _plus(s, x6[j], h6)
                s = _plus(s, x7[j], h7)
                tile[j], tile[_TILE + j], tile[2 * _TILE + j], tile[3 * _TILE + j], tile[4 * _TILE + j] = s
            i += 8
        while i < rows:
            x = words[i * stride + column :]
            h = weights[left - i]
            for j in range(n):
                s = tile[j], tile[_TILE + j], tile[2 * _TILE + j], tile[3 * _TILE + j], tile[4 * _TILE + j]
                s = _plus(s, x[j], h)
                tile[j], tile[_TILE + j], tile[2 * _TILE + j], tile[3 * _TILE + j], tile[4 * _TILE + j] = s
            i += 1
        for k in range(SUMS):
            for j in range(n):
                sums[k, column + j] = tile[k * _TILE + j]


_SIGNATURE = types.void(
    types.Array(types.uint64, 2, "A"),
    types.Array(types.uint32, 1, "C", readonly=True, aligned=False),
    types.int64,
    types.int64,
    types.int64,
    types.Array(types.uint32, 1, "C", readonly=True),
)
_compiled = compile_function(_add_rows, _SIGNATURE)


def add_compiled(sums: np.ndarray, words: np.ndarray, left: int) -> None:
    """Add rows of words to the sums of their columns; see `AddRows` in word_sums.py."""
    rows, columns = words.shape
    if not rows or not columns:
        return
    stride = words.strides[0] // words.itemsize
    # All words from the first to the last in one array, with those between the rows; to compiled code, rows are
    # contiguous only in an array of one dimension.
    flat = as_strided(words, ((rows - 1) * stride + columns,), words.strides[1:], writeable=False)
    _compiled(sums, flat, stride, rows, left, _LAST_WEIGHTS)
