"""Parity of groups of files: from m parity files, any m files of a group are rebuilt.

Byte number j of a parity file is computed from bytes number j of all files of the group; shorter files count as padded
with zeros. With one parity file it is their XOR. With more, it is the Reed–Solomon code over GF(2⁸) of the library
zfec, of which any n of the n + m bytes determine the others.

    file 1     │ a₀ a₁ a₂ …            erased bytes are rebuilt by offset: a file that is lost whole, and
    file 2     │ b₀ b₁ b₂ …            pieces of several files that lie at different offsets
    parity 1   │ p₀ p₁ p₂ …            p = a ⊕ b

Source: I. Reed and G. Solomon, "Polynomial codes over certain finite fields", 1960.
"""

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

from tsapps.apps.abft.files.manifest import ParityGroup
from tsapps.apps.abft.files.places import PARITY
from tsapps.kernels.system.printable import OneLineError

__all__ = ["ParityError", "ParityRatio", "groups_of", "parity_of", "parse_ratio", "restored"]

#: (m, n): m parity files for every n files.
ParityRatio = tuple[int, int]

# Maximum number of files and parity files of a group: the elements of GF(2⁸).
_MOST = 256


class ParityError(OneLineError):
    """A parity ratio is invalid, or needs a library that is not installed."""


def parse_ratio(text: str) -> ParityRatio:
    """Parse a ratio such as "1/8": one parity file for every eight files.

    Raises
    ------
    ParityError
        If it is not a ratio, or needs zfec, which is not installed.
    """
    first, slash, second = text.partition("/")
    if not (slash and first.isdecimal() and second.isdecimal()):
        raise ParityError(f"parity {text!r}: expected parity files per files, such as 1/8")
    m, n = int(first), int(second)
    if m < 1 or n < 1 or m + n > _MOST:
        raise ParityError(f"parity {text!r}: expected at least 1 of each, and at most {_MOST} in all")
    if m > 1:
        _zfec(m)
    return m, n


def groups_of(sizes: Mapping[str, int], ratio: ParityRatio) -> list[ParityGroup]:
    """Return the groups of files: files of similar size together, because parity is as long as the longest of a group.

    Parameters
    ----------
    sizes : mapping of str to int
        The bytes of each file; empty files need no parity.
    ratio : (int, int)
    """
    m, n = ratio
    names = sorted((name for name, size in sizes.items() if size), key=lambda name: (-sizes[name], name))
    groups = []
    for number, begin in enumerate(range(0, len(names), n), 1):
        some = tuple(sorted(names[begin : begin + n]))
        groups.append(ParityGroup(some, tuple(f"{PARITY}{number:03}-{one}" for one in range(1, m + 1))))
    return groups


def parity_of(pieces: Sequence[np.ndarray], m: int) -> list[np.ndarray]:
    """Return the m parity pieces of pieces of the same length."""
    if m == 1:
        return [reduce(np.bitwise_xor, pieces, np.zeros_like(pieces[0]))]
    n = len(pieces)
    coded = _zfec(m).Encoder(n, n + m).encode([piece.tobytes() for piece in pieces], list(range(n, n + m)))
    return [np.frombuffer(one, np.uint8) for one in coded]


def restored(pieces: Mapping[int, np.ndarray], n: int, m: int, wanted: int) -> np.ndarray | None:
    """Return an erased piece of a group, from its other pieces.

    Parameters
    ----------
    pieces : mapping of int to array
        The pieces that are known, by their numbers: 0 … n − 1 are files, n … n + m − 1 are parity files.
    n, m : int
        Numbers of files and of parity files of the group.
    wanted : int

    Returns
    -------
    array or None
        None if fewer than n pieces are known.
    """
    if len(pieces) < n:
        return None
    if m == 1:
        return reduce(np.bitwise_xor, pieces.values())
    numbers = sorted(pieces)[:n]
    files = _zfec(m).Decoder(n, n + m).decode([pieces[number].tobytes() for number in numbers], numbers)
    if wanted < n:
        return np.frombuffer(files[wanted], np.uint8)
    return np.frombuffer(_zfec(m).Encoder(n, n + m).encode(files, [wanted])[0], np.uint8)


def _zfec(m: int) -> Any:
    """Return the library zfec, which computes m parity pieces."""
    try:
        import zfec
    except ImportError as error:
        raise ParityError(f"{m} parity files of a group need the library zfec: pip install zfec") from error
    return zfec
