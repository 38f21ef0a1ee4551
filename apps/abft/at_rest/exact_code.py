"""The exact code of data at rest: sums of its words by which corrupted ones are found, and are as they were again.

Bytes are taken as they lie, as little-endian words of 32 bits, so that NaN payloads, negative zeros and denormals are
words like others; blocks of 512 of them are columns, as `interleave.py` deals them out. The five sums of a block of L
words x₀ … x_{L−1} are

    S_k = Σ_j C(r_j + k − 1, k) · x_j   with   r_j = L − j,   k = 0 … 3,
    S₄  = Σ_j h(r_j) · x_j,

whole numbers below 2⁶⁴; h are 22 bits of no order (`last_weight`). If some words were changed by δ_e, the differences
of the first four sums give the moments p_i = Σ δ_e r_e^i, i = 0 … 3, exactly. No four places have moments that are all
zero (Vandermonde): so up to four corrupted words are seen for certain. One is at r = p₁ / p₀; two are at the roots of
Prony's quadratic, in whole numbers. Two pairs of the same moments would be four places with moments of zero: so two
words are repaired for certain, whatever was written in their place. Three and more are refused, unless a pair has the
same moments and the same S₄.

Source: R. Prony (1795) for the nodes of a sum of powers; I. Reed and G. Solomon (1960) for codes of power sums, here in
whole numbers in place of a finite field.
"""

from collections.abc import Callable, Sequence
from math import comb, isqrt

import numpy as np

from tsapps.apps.abft.at_rest.interleave import ROWS, WORD, Layout
from tsapps.kernels.blas.threads import one_blas_thread

__all__ = ["SUMS", "ExactSums", "block_faults", "last_weight"]

#: Sums of a block.
SUMS = 5


def last_weight(r: int) -> int:
    """Return the weight in the last sum of a word of which r words are left of its block, itself included.

    A finalizer of hashes (MurmurHash3's), of which the upper 22 bits are taken: so that three words and more that are
    changed by small numbers agree with two no more often than by chance.
    """
    x = r * 0x9E3779B1 % 2**32
    x = (x ^ x >> 15) * 0x85EBCA77 % 2**32
    x = (x ^ x >> 13) * 0xC2B2AE3D % 2**32
    return (x ^ x >> 16) >> 10


# Weights of all sums, by how many words are left; products with halves of words add up exactly in float64.
_WEIGHTS = np.array(
    [
        *([comb(r + k - 1, k) if r else 0 for r in range(ROWS + 1)] for k in range(SUMS - 1)),
        [last_weight(r) for r in range(ROWS + 1)],
    ],
    np.float64,
)
# Rows and columns of words that are multiplied at a time, for what they are converted to to be in a CPU's cache.
_TOGETHER, _BESIDE = 32, 4096


class ExactSums:
    """The sums of the blocks of bytes that come in parts of any size, stripe by stripe.

    Besides one stripe's sums, one row of words is in memory.

    Parameters
    ----------
    of : Layout
    ended : callable
        Called with the number of a stripe and its sums, (5, width) uint64, once these are whole; the array is then the
        callee's.
    """

    def __init__(self, of: Layout, ended: Callable[[int, np.ndarray], None]) -> None:
        self._of, self._ended = of, ended
        self._came = self._waiting = 0
        self._row = np.zeros(of.width * WORD, np.uint8)  # of words of which more than one part has something
        self._stripe = self._done = 0
        self._sums = np.zeros((SUMS, of.width), np.uint64)

    def add(self, part: np.ndarray) -> None:
        """Add some bytes, uint8.

        Raises
        ------
        ValueError
            If there are more than were announced.
        """
        size = len(self._row)
        self._came += len(part)
        if self._came > self._of.n_bytes:
            raise ValueError(f"more than the {self._of.n_bytes} bytes that were announced")
        if self._waiting:
            here, part = part[: size - self._waiting], part[size - self._waiting :]
            self._row[self._waiting : self._waiting + len(here)] = here
            self._waiting += len(here)
            if self._waiting < size:
                return
            self._add_rows(self._row)
        self._waiting = len(part) % size
        whole = len(part) - self._waiting
        self._add_rows(part[:whole])
        self._row[: self._waiting] = part[whole:]

    def finish(self) -> None:
        """End the last stripe, the last word of which is filled up with zeros.

        Raises
        ------
        ValueError
            If fewer bytes have come than were announced.
        """
        if self._came != self._of.n_bytes:
            raise ValueError(f"{self._came} of the {self._of.n_bytes} bytes that were announced have come")
        if self._waiting:
            self._row[self._waiting :] = 0
            self._waiting = 0
            self._add_rows(self._row)

    def _add_rows(self, data: np.ndarray) -> None:
        """Add whole rows of words."""
        words = data.view("<u4").reshape(-1, self._of.width)
        while len(words):
            left = self._of.rows(self._stripe) - self._done
            here, words = words[:left], words[left:]
            _add(self._sums, here, left)
            self._done += len(here)
            if len(here) == left:
                self._ended(self._stripe, self._sums)
                self._stripe, self._done = self._stripe + 1, 0
                self._sums = np.zeros((SUMS, self._of.width), np.uint64)


def _add(sums: np.ndarray, words: np.ndarray, left: int) -> None:
    """Add rows of words to the sums of their blocks, (5, width), of which `left` rows are left, these included."""
    with one_blas_thread():
        for column in range(0, words.shape[1], _BESIDE):
            to = sums[:, column : column + _BESIDE]
            for begin in range(0, len(words), _TOGETHER):
                some = words[begin : begin + _TOGETHER, column : column + _BESIDE]
                # Below 2⁵³, as C(515, 4) · 2¹⁶ and 512 · 2²² · 2¹⁶ are: exact.
                digits = some.view("<u2").astype(np.float64)
                products = (_WEIGHTS[:, left - begin : left - begin - len(some) : -1] @ digits).astype(np.uint64)
                to += products[:, 0::2] + (products[:, 1::2] << np.uint64(16))


def block_faults(found: Sequence[int], expected: Sequence[int], length: int) -> list[tuple[int, int]] | None:
    """Return which words of a block are not what they were, by its sums.

    Parameters
    ----------
    found, expected : sequence of 5 ints
        The sums as they are, and as they were.
    length : int
        Words of the block.

    Returns
    -------
    list of (row, difference) or None
        No, one or two words, and what is to be subtracted from them; None where these do not explain the sums.
    """
    d = [int(now) - int(then) for now, then in zip(found, expected, strict=True)]
    if not any(d):
        return []
    # Moments Σ δ r^i, from Σ δ r(r + 1)/2 and Σ δ r(r + 1)(r + 2)/6.
    p0, p1, p2 = d[0], d[1], 2 * d[2] - d[1]
    moments = p0, p1, p2, 6 * d[3] - 3 * p2 - 2 * p1
    for nodes in (_one(p0, p1), _two(*moments)):
        if nodes is None or not all(1 <= r <= length for r, _ in nodes):
            continue
        if all(sum(delta * r**i for r, delta in nodes) == moment for i, moment in enumerate(moments)) and (
            sum(delta * last_weight(r) for r, delta in nodes) == d[4]
        ):
            return [(length - r, delta) for r, delta in nodes]
    return None


def _one(p0: int, p1: int) -> list[tuple[int, int]] | None:
    """Return the one (r, δ) with the first two moments, if there is one in whole numbers."""
    return [(p1 // p0, p0)] if p0 and p1 % p0 == 0 else None


def _two(p0: int, p1: int, p2: int, p3: int) -> list[tuple[int, int]] | None:
    """Return the two (r, δ) with these moments, if there are such in whole numbers: the roots of r² − s r + t."""
    det = p0 * p2 - p1 * p1
    if det == 0:
        return None
    s, rest_s = divmod(p0 * p3 - p1 * p2, det)
    t, rest_t = divmod(p1 * p3 - p2 * p2, det)
    square = s * s - 4 * t
    if rest_s or rest_t or square <= 0 or isqrt(square) ** 2 != square:
        return None
    distance = isqrt(square)
    if (s + distance) % 2:
        return None
    high, low = (s + distance) // 2, (s - distance) // 2
    delta, rest = divmod(p1 - low * p0, distance)
    if rest or delta == 0 or delta == p0:
        return None
    return [(high, delta), (low, p0 - delta)]
