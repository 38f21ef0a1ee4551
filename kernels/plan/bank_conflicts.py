"""Shared-memory bank conflicts of an operand layout: the cost of a warp's reads in operand.cuh. Pure.

Shared memory has 32 banks. A bank delivers one 4-byte word per *turn*. So the number of turns of a warp's read is the
largest number of different words that the read needs from one bank. operand.cuh defines lines, outer and depth.
"""

from collections import defaultdict
from functools import cache

__all__ = ["STRIDES", "turns"]

#: The allowed values of kStride in operand.cuh: the distance in words between the words of neighboring lanes.
STRIDES = (1, 2, 4, 8)
_BANKS, _BANK_BYTES = 32, 4


@cache
def turns(size: int, along_depth: bool, outer: int, depth: int, packed: bool, stride: int) -> float:
    """Return the mean cost in turns of a warp's read of one fragment: 8 words of depth at each of 16 outer indices.

    Parameters
    ----------
    size : int
        Bytes per element.
    along_depth : bool
        True if the lines of the operand run along the depth.
    outer, depth : int
        Number of outer indices and number of depths in a tile.
    packed : bool
        True if a tile is one contiguous piece of memory (kPacked in operand.cuh), whose lines are not permuted.
    stride : int
        One of `STRIDES`.

    Returns
    -------
    float
        Number of turns, plus a quarter of a turn for each load instruction.
    """
    per_word, line = 2 if size == 2 else 1, (depth if along_depth else outer) * size
    whole = line % 16 == 0 and (along_depth or (size == 2 and depth % 8 == 0))
    if size < 8 and stride == 1 and whole:
        return 4 + 0.25  # one ldmatrix
    words = -(-depth // per_word)
    in_blocks = words // (4 * stride) * stride  # words per lane with this stride; the remaining words have stride 1
    rest = -(-(words - 4 * in_blocks) // 4)
    firsts = [4 * (in_blocks + i) * per_word for i in range(rest)]
    found = [_turns_of_a_word(size, along_depth, line, (at, per_word, depth), packed, stride) for at in firsts]
    if in_blocks:  # all words with this stride cost the same
        found += [_turns_of_a_word(size, along_depth, line, (0, per_word * stride, depth), packed, stride)] * in_blocks
    return 4 * sum(found) / len(found)


def _turns_of_a_word(
    size: int, along_depth: bool, line: int, depths: tuple[int, int, int], packed: bool, stride: int
) -> float:
    """Return the number of turns in which a warp reads one word per lane, plus 0.25 for each load instruction.

    `depths` is (first, step, depth of the tile). The word of lane (g = lane / 4, t = lane % 4) is at outer index g and
    begins at depth first + t · step.
    """
    first, step, depth = depths
    # A word of two 16-bit elements needs two reads, unless the elements are adjacent and aligned to four bytes.
    reads = 2 if size == 2 and (not along_depth or line % 4) else 1
    found = 0.0
    for half in range(reads):
        banks = defaultdict(set)
        for lane in range(32):
            outer, at = lane // 4, first + lane % 4 * step + half
            if at >= depth:
                continue
            row, element = (outer, at) if along_depth else (at, outer)
            rotated = element * size ^ (0 if packed else _rotation(size, along_depth, line, row, stride))
            word = (row * line + rotated) // _BANK_BYTES
            for one in range(word, word + max(1, size // _BANK_BYTES)):
                banks[one % _BANKS].add(one)
        found += max(map(len, banks.values()), default=0) + 0.25
    # If 32 lanes read eight bytes each, the read takes at least two turns.
    return max(found, 2.25 if size == 8 else 0)


def _rotation(size: int, along_depth: bool, line: int, row: int, stride: int) -> int:
    """Return the value that permutes line `row` by exclusive or with its byte offsets, as Operand::rotation does."""
    eight = size == 2 or (along_depth and size == 4)
    apart = 1 if eight or along_depth else stride
    period = 1
    while period < _BANKS and line // _BANK_BYTES * apart % (2 * period) == 0:
        period *= 2
    if line % (_BANK_BYTES * period):
        return 0
    return row % 8 * period // 32 * 16 if eight else row // apart % 4 * period // 32 * 32
