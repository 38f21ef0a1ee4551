"""The exact code of data at rest: integer checksums that locate and correct corrupted words.

The bytes of the data are treated as little-endian words of 32 bits, so NaN payloads, negative zeros and denormals need
no special case. `interleave.py` arranges the words in blocks of at most 512 words. The five sums of a block of L words
x₀ … x_{L−1} are

    S_k = Σ_j C(r_j + k − 1, k) · x_j   with   r_j = L − j,   k = 0 … 3,
    S₄  = Σ_j h(r_j) · x_j,

integers below 2⁶⁴; h is a hash of 22 bits (`last_weight`). The *syndrome* of a block is the current sums minus the
original sums. Let δ_e be the change of corrupted word number e, and r_e the value of r for that word. The syndrome of
S₀ … S₃ then gives the moments p_i = Σ_e δ_e r_e^i, i = 0 … 3, exactly.

- Changes of up to four words never have four zero moments, because their Vandermonde matrix is invertible. So up to
  four corrupted words are always detected.
- One corrupted word is at r = p₁ / p₀; two are at the integer roots of Prony's quadratic (`_two`). If two different
  pairs of words had the same moments, their difference would change up to four words and have zero moments. So two
  corrupted words are always corrected, whatever their new values.
- Three or more corrupted words are reported but not corrected. The exception: if a change of at most two words has the
  same moments and the same change of S₄, the decoder mistakes the corruption for that change.

Source: R. Prony (1795) for the nodes of a sum of powers; I. Reed and G. Solomon (1960) for codes of power sums, here
over integers instead of a finite field.
"""

from collections.abc import Callable, Sequence
from math import isqrt

import numpy as np

from tsapps.apps.abft.at_rest.interleave import WORD, Layout
from tsapps.apps.abft.at_rest.select_adder import adder
from tsapps.apps.abft.at_rest.word_sums import SUMS, last_weight

__all__ = ["SUMS", "ExactSums", "block_faults", "last_weight", "sums_shape"]


def sums_shape(of: Layout) -> tuple[int, int, int]:
    """Return the shape of the array of exact sums of a layout: (stripes, 5, width)."""
    return of.stripes, SUMS, of.width


class ExactSums:
    """Accumulator of the sums of all blocks; the bytes of the matrix are added in parts of any size.

    It holds the sums of the current stripe and one row of words, and passes the sums of complete stripes to `ended`.

    Parameters
    ----------
    of : Layout
        The interleaving of the bytes over blocks (`interleave.py`, which defines stripe and width).
    ended : callable
        Called once per complete stripe with the index and the sums of the stripe; the sums are a new array (5, width)
        of uint64.
    """

    def __init__(self, of: Layout, ended: Callable[[int, np.ndarray], None]) -> None:
        self._of, self._ended, self._add = of, ended, adder(of.n_bytes)
        self._came = self._waiting = 0
        self._row = np.zeros(of.width * WORD, np.uint8)  # the bytes of an incomplete row of words
        self._stripe = self._done = 0
        self._sums = np.zeros((SUMS, of.width), np.uint64)

    def add(self, part: np.ndarray) -> None:
        """Add the next bytes of the matrix, an array of uint8.

        Raises
        ------
        ValueError
            If more bytes were added than the layout has.
        """
        size = len(self._row)
        self._came += len(part)
        if self._came > self._of.n_bytes:
            raise ValueError(f"got {self._came} bytes; expected the {self._of.n_bytes} bytes of the layout")
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
        """Pad the last word with zeros, and complete the last stripe.

        Raises
        ------
        ValueError
            If bytes are missing.
        """
        if self._came != self._of.n_bytes:
            raise ValueError(f"got {self._came} bytes; expected the {self._of.n_bytes} bytes of the layout")
        if self._waiting:
            self._row[self._waiting :] = 0
            self._waiting = 0
            self._add_rows(self._row)

    def _add_rows(self, data: np.ndarray) -> None:
        """Add the bytes of whole rows of words."""
        words = data.view("<u4").reshape(-1, self._of.width)
        while len(words):
            left = self._of.rows(self._stripe) - self._done
            here, words = words[:left], words[left:]
            self._add(self._sums, here, left)
            self._done += len(here)
            if len(here) == left:
                self._ended(self._stripe, self._sums)
                self._stripe, self._done = self._stripe + 1, 0
                self._sums = np.zeros((SUMS, self._of.width), np.uint64)


def block_faults(found: Sequence[int], expected: Sequence[int], length: int) -> list[tuple[int, int]] | None:
    """Decode the syndrome of a block: locate its corrupted words.

    Parameters
    ----------
    found, expected : sequence of 5 ints
        The current and the original sums.
    length : int
        Number of words in the block.

    Returns
    -------
    list of (row, difference) or None
        Up to two words: the index of each in the block, and the difference to subtract from it. None if no change of up
        to two words explains the syndrome.
    """
    d = [int(now) - int(then) for now, then in zip(found, expected, strict=True)]
    if not any(d):
        return []
    # The moments p_i = Σ δ r^i follow from d[2] = Σ δ r(r + 1)/2 and d[3] = Σ δ r(r + 1)(r + 2)/6.
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
    """Return the change (r, δ) of one word with moments p0 and p1; None if p0 is 0 or r = p1 / p0 is not an integer."""
    return [(p1 // p0, p0)] if p0 and p1 % p0 == 0 else None


def _two(p0: int, p1: int, p2: int, p3: int) -> list[tuple[int, int]] | None:
    """Return the changes (r, δ) of two words with these moments; None if there are no such integers.

    The two values of r are the roots of r² − s r + t (Prony's quadratic).
    """
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
