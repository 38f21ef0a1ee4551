"""The exact code of data at rest: sums of its words by which corrupted ones are found, and are as they were again.

Bytes are taken as they lie, as little-endian words of 32 bits, the last filled up with zeros: NaN payloads, negative
zeros and denormals are words like others. The words are dealt out to `width` *columns* in turn, and of every column,
512 words one after the other are a *block*:

              column 0   column 1   …   column width − 1
    row 0     word 0     word 1         word width − 1        512 rows are a *stripe*: width blocks of 512 words,
    row 1     word width …                                    the last stripe's of fewer
    …

So a run of `width` words that were overwritten (a sector, a page) is one word of as many blocks. The five sums of a
block of L words x₀ … x_{L−1} are

    S_k = Σ_j C(r_j + k − 1, k) · x_j   with   r_j = L − j,   k = 0 … 4,

which is adding up k + 1 times: S₀ += x, S₁ += S₀, S₂ += S₁, and so on, for one word after the other. S₀ … S₃ are whole
numbers below 2⁶⁴; S₄ is kept modulo 2⁶⁴. If some words were changed by δ_e, the differences of the sums give the
moments p_i = Σ δ_e r_e^i, i = 0 … 3, exactly. No four places have moments that are all zero (Vandermonde): so up to
four corrupted words are seen for certain. One is at r = p₁ / p₀; two are at the roots of Prony's quadratic, in whole
numbers. Two pairs of the same moments would be four places with moments of zero: so two words are repaired for certain,
whatever was written in their place. Three and more are refused, unless a pair has the same moments and, modulo 2⁶⁴, the
same S₄.

Source: R. Prony (1795) for the nodes of a sum of powers; I. Reed and G. Solomon (1960) for codes of power sums, here in
whole numbers in place of a finite field.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import comb, isqrt

import numpy as np

__all__ = [
    "ROWS",
    "SUMS",
    "WORD",
    "Fault",
    "Layout",
    "block_faults",
    "exact_sums",
    "in_stripes",
    "layout",
    "stripe_faults",
]

#: Words of a block; sums of one; bytes of a word.
ROWS, SUMS, WORD = 512, 5, 4
# The most columns: a run of 16 KiB is repaired.
_WIDTH = 4096
_MODULUS = 1 << 64
# The weight of a word in the last sum, by how many words are left of its block, itself included.
_LAST_WEIGHTS = [comb(r + SUMS - 2, SUMS - 1) if r else 0 for r in range(ROWS + 1)]
# Such of all sums, of which products with halves of words add up exactly in float64: the last sum's by halves.
_WEIGHTS = np.array(
    [
        *([comb(r + k - 1, k) if r else 0 for r in range(ROWS + 1)] for k in range(SUMS - 1)),
        [weight % 2**16 for weight in _LAST_WEIGHTS],
        [weight >> 16 for weight in _LAST_WEIGHTS],
    ],
    np.float64,
)
# Rows that are multiplied at a time, for what they are converted to to be in a CPU's cache.
_TOGETHER = 32


@dataclass(frozen=True)
class Layout:
    """How so many bytes are dealt out.

    Attributes
    ----------
    n_bytes : int
    width : int
        Columns.
    """

    n_bytes: int
    width: int

    @property
    def n_words(self) -> int:
        """Words, the last of which may be filled up."""
        return -(-self.n_bytes // WORD)

    @property
    def stripes(self) -> int:
        """Stripes of 512 rows, the last of which may have fewer."""
        return -(-self.n_words // (self.width * ROWS))

    def rows(self, stripe: int) -> int:
        """Return the rows of a stripe; words past the last are zero."""
        left = self.n_words - stripe * self.width * ROWS
        return min(ROWS, -(-left // self.width))

    def stripe_bytes(self, stripe: int) -> tuple[int, int]:
        """Return where the bytes of a stripe begin and end."""
        begin = stripe * ROWS * self.width * WORD
        return begin, min(self.n_bytes, begin + ROWS * self.width * WORD)


def layout(n_bytes: int) -> Layout:
    """Return how so many bytes are dealt out: in as many columns as have full blocks, 4096 at most.

    Raises
    ------
    ValueError
        If there are none.
    """
    if n_bytes < 1:
        raise ValueError(f"there is nothing to encode: {n_bytes} bytes")
    return Layout(n_bytes, min(_WIDTH, max(1, -(-n_bytes // WORD) // ROWS)))


def in_stripes(parts: Iterable[memoryview], of: Layout) -> Iterator[memoryview]:
    """Yield bytes that come in parts of any size stripe by stripe; one is there until the next is asked for.

    Raises
    ------
    ValueError
        If there are more or fewer than were announced.
    """
    size, came, waiting = ROWS * of.width * WORD, 0, 0
    pieces = memoryview(bytearray(size))  # of a stripe that more than one part has something of
    for some in parts:
        part = some.cast("B")
        came += len(part)
        if came > of.n_bytes:
            raise ValueError(f"more than the {of.n_bytes} bytes that were announced")
        while len(part):
            here = part[: size - waiting]
            part = part[len(here) :]
            if len(here) == size:
                yield here
                continue
            pieces[waiting : waiting + len(here)] = here
            waiting += len(here)
            if waiting == size:
                yield pieces
                waiting = 0
    if came != of.n_bytes:
        raise ValueError(f"{came} of the {of.n_bytes} bytes that were announced have come")
    if waiting:
        yield pieces[:waiting]


def exact_sums(parts: Iterable[memoryview], of: Layout) -> np.ndarray:
    """Return the sums of all blocks of bytes that come in parts of any size, (stripes, 5, width) uint64.

    Raises
    ------
    ValueError
        If there are more or fewer than were announced.
    """
    sums = np.empty((of.stripes, SUMS, of.width), np.uint64)
    for stripe, data in enumerate(in_stripes(parts, of)):
        sums[stripe] = _sums(_words(data, stripe, of))
    return sums


def _words(data: memoryview, stripe: int, of: Layout) -> np.ndarray:
    """Return the bytes of a stripe as rows of words, (rows, width) uint32, the last filled up with zeros."""
    rows = of.rows(stripe)
    if len(data) < rows * of.width * WORD:
        filled = np.zeros(rows * of.width * WORD, np.uint8)
        filled[: len(data)] = data
        data = filled.data
    return np.frombuffer(data, "<u4").reshape(rows, of.width)


def _sums(words: np.ndarray) -> np.ndarray:
    """Return the sums of the blocks of a stripe's words, (5, width) uint64."""
    sums = np.zeros((SUMS, words.shape[1]), np.uint64)
    for begin in range(0, len(words), _TOGETHER):
        some, left = words[begin : begin + _TOGETHER], len(words) - begin
        # Below 2⁵³, as C(515, 4) · 2¹⁶ is: exact.
        halves = some.view("<u2").astype(np.float64)
        products = (_WEIGHTS[:, left : left - len(some) : -1] @ halves).astype(np.uint64)
        products[SUMS - 1] += products[SUMS] << np.uint64(16)
        sums += products[:SUMS, 0::2] + (products[:SUMS, 1::2] << np.uint64(16))
    return sums


@dataclass(frozen=True)
class Fault:
    """A word that is not what it was.

    Attributes
    ----------
    offset : int
        Of its first byte, from the first of all.
    found, was : int
        What it is and what it was, 0 … 2³² − 1.
    """

    offset: int
    found: int
    was: int


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
    d[4] %= _MODULUS
    if not any(d):
        return []
    # Moments Σ δ r^i, from Σ δ r(r + 1)/2 and Σ δ r(r + 1)(r + 2)/6.
    p0, p1, p2 = d[0], d[1], 2 * d[2] - d[1]
    moments = p0, p1, p2, 6 * d[3] - 3 * p2 - 2 * p1
    for nodes in (_one(p0, p1), _two(*moments)):
        if nodes is None or not all(1 <= r <= length for r, _ in nodes):
            continue
        if all(sum(delta * r**i for r, delta in nodes) == moment for i, moment in enumerate(moments)) and (
            sum(delta * _LAST_WEIGHTS[r] for r, delta in nodes) % _MODULUS == d[4]
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
    apart = isqrt(square)
    if (s + apart) % 2:
        return None
    high, low = (s + apart) // 2, (s - apart) // 2
    delta, rest = divmod(p1 - low * p0, apart)
    if rest or delta == 0 or delta == p0:
        return None
    return [(high, delta), (low, p0 - delta)]


def stripe_faults(data: memoryview, stripe: int, expected: np.ndarray, of: Layout) -> tuple[list[Fault], list[int]]:
    """Return the faults of one stripe's bytes, and the columns of blocks that were changed and cannot be repaired.

    Parameters
    ----------
    data : memoryview
        The bytes of the stripe.
    stripe : int
    expected : numpy.ndarray of shape (5, width)
        Its sums, as they were.
    of : Layout

    Returns
    -------
    faults : list of Fault
        In the order of their offsets.
    refused : list of int
        Columns.
    """
    words = _words(data, stripe, of)
    sums = _sums(words)
    faults, refused = [], []
    for column in np.flatnonzero((sums != expected).any(axis=0)).tolist():
        found = block_faults(sums[:, column].tolist(), expected[:, column].tolist(), len(words))
        repaired = list(_repaired(found, words[:, column], stripe, column, of)) if found is not None else []
        if found is None or len(repaired) < len(found):
            refused.append(column)
        else:
            faults += repaired
    return sorted(faults, key=lambda fault: fault.offset), refused


def _repaired(found: list[tuple[int, int]], block: np.ndarray, stripe: int, column: int, of: Layout) -> Iterator[Fault]:
    """Yield the faults of a block whose words were words, and are not past the last byte."""
    for row, delta in found:
        offset = ((stripe * ROWS + row) * of.width + column) * WORD
        now = int(block[row])
        was = now - delta
        # Bytes that the last word was filled up with are zero, and nobody changed them.
        beyond = max(0, offset + WORD - of.n_bytes)
        if 0 <= was < 1 << 32 and offset < of.n_bytes and (beyond == 0 or was >> 8 * (WORD - beyond) == 0):
            yield Fault(offset, now, was)
