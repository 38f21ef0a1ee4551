"""How long a warp takes to read an operand's words from shared memory: operand.cuh's addresses, and their banks. Pure.

Shared memory answers 32 banks of 4 bytes at a time: a read takes as many turns as one bank has different words of it.
"""

from collections import defaultdict
from functools import cache

__all__ = ["STRIDES", "turns"]

#: Strides in which depths can be dealt to lanes.
STRIDES = (1, 2, 4, 8)
_BANKS, _BANK_BYTES = 32, 4


@cache
def turns(size: int, along_depth: bool, outer: int, depth: int, packed: bool, stride: int) -> float:
    """Return how long a warp takes to read the words of 16 outer indices and two words of each lane's depths.

    Parameters
    ----------
    size : int
        Bytes of an element.
    along_depth : bool
        Whether the operand's lines run along the depth.
    outer, depth : int
        Of a tile.
    packed : bool
        Whether its lines follow each other without a gap.
    stride : int
        In which depths are dealt to lanes.

    Returns
    -------
    float
        Turns of shared memory, and a quarter more for each instruction that reads.
    """
    per_word, line = 2 if size == 2 else 1, (depth if along_depth else outer) * size
    whole = line % 16 == 0 and (along_depth or (size == 2 and depth % 8 == 0))
    if size < 8 and stride == 1 and whole:
        return 4 + 0.25  # one ldmatrix
    words = -(-depth // per_word)
    in_blocks = words // (4 * stride) * stride  # of a lane, dealt by the stride; the others one by one
    rest = -(-(words - 4 * in_blocks) // 4)
    firsts = [4 * (in_blocks + i) * per_word for i in range(rest)]
    found = [_turns_of_a_word(size, along_depth, line, (at, per_word, depth), packed, stride) for at in firsts]
    if in_blocks:  # which are all alike
        found += [_turns_of_a_word(size, along_depth, line, (0, per_word * stride, depth), packed, stride)] * in_blocks
    return 4 * sum(found) / len(found)


def _turns_of_a_word(
    size: int, along_depth: bool, line: int, depths: tuple[int, int, int], packed: bool, stride: int
) -> float:
    """Return the turns for one word of every lane; lane t begins at first + t · step of the `depths`."""
    first, step, depth = depths
    # Halves that are not beside each other at a multiple of four bytes come one at a time.
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
    # 32 lanes of eight bytes are two turns at the least.
    return max(found, 2.25 if size == 8 else 0)


def _rotation(size: int, along_depth: bool, line: int, row: int, stride: int) -> int:
    """Return by how many bytes, as an exclusive or, a line is rotated: Operand::rotation."""
    eight = size == 2 or (along_depth and size == 4)
    apart = 1 if eight or along_depth else stride
    period = 1
    while period < _BANKS and line // _BANK_BYTES * apart % (2 * period) == 0:
        period *= 2
    if line % (_BANK_BYTES * period):
        return 0
    return row % 8 * period // 32 * 16 if eight else row // apart % 4 * period // 32 * 32
