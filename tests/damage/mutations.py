"""Mutations of a file's bytes: bit flips, overwritten numbers, truncation, splices, and swapped words of its text."""

import json
import re
import struct
from contextlib import suppress
from typing import Any

import numpy as np

__all__ = ["mutate"]

# Values that often break sizes, counts and offsets.
_INTEGERS = (0, 1, 2, 3, 7, 255, 256, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
_NUMBERS = (
    *map(str, _INTEGERS),
    *("-1", "1e999", "-1e999", "1e308", "1e-320", "NaN", "Infinity", "0.5", "1_0", "0x10", "007", "٣", "1" + "0" * 400),
    *(
        "9" * 5000,
        "null",
        "true",
        '"1"',
        "[1]",
        "{}",
        "[" * 5000 + "]" * 5000,
        "(" * 300 + ")" * 300,
        "[" * 900 + "]" * 900,
    ),
)
_VALUES = (None, True, 0, 1, -1, 2**31, 2**63, 2**64, 10**400, 0.5, 1e308, float("inf"), "", "1", "word", [], [1], {})
_WORD = re.compile(rb"[A-Za-z_]\w*|-?\d+(?:\.\d+)?(?:e-?\d+)?|\"[^\"]*\"|'[^']*'")
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:e-?\d+)?")
# Headers are at the beginning or the end.
_HEADER = 200


def mutate(rng: np.random.Generator, content: bytes) -> bytes:
    """Return mutated content: one to four mutations, most often one."""
    found = bytearray(content)
    for _ in range(min(4, int(rng.geometric(0.5)))):
        if not found:
            break
        _MUTATIONS[rng.integers(len(_MUTATIONS))](rng, found)
    return bytes(found)


def _place(rng: np.random.Generator, content: bytearray) -> int:
    near = min(len(content), _HEADER)
    where = rng.integers(4)
    if where == 0:
        return int(rng.integers(near))
    if where == 1:
        return len(content) - 1 - int(rng.integers(near))
    return int(rng.integers(len(content)))


def _length(rng: np.random.Generator) -> int:
    return int(rng.integers(1, 1 << rng.integers(1, 8)))


def _flip(rng: np.random.Generator, content: bytearray) -> None:
    content[_place(rng, content)] ^= 1 << int(rng.integers(8))


def _byte(rng: np.random.Generator, content: bytearray) -> None:
    content[_place(rng, content)] = int(rng.integers(256))


def _zeros(rng: np.random.Generator, content: bytearray) -> None:
    begin = _place(rng, content)
    end = min(len(content), begin + _length(rng))
    content[begin:end] = bytes([int(rng.choice([0, 0, 255]))]) * (end - begin)


def _integer(rng: np.random.Generator, content: bytearray) -> None:
    begin, size = _place(rng, content), int(rng.choice([2, 4, 8]))
    value = _INTEGERS[rng.integers(len(_INTEGERS))] % 256**size
    content[begin : begin + size] = value.to_bytes(size, str(rng.choice(["little", "big"])))


def _nearby(rng: np.random.Generator, content: bytearray) -> None:
    kind = str(rng.choice(["<B", "<H", "<I", "<Q"]))
    size = struct.calcsize(kind)
    if len(content) < size:
        return
    begin = min(_place(rng, content), len(content) - size)
    (value,) = struct.unpack_from(kind, content, begin)
    struct.pack_into(kind, content, begin, (value + int(rng.integers(-16, 17))) % 256**size)


def _truncate(rng: np.random.Generator, content: bytearray) -> None:
    del content[_place(rng, content) :]


def _append(rng: np.random.Generator, content: bytearray) -> None:
    content += rng.bytes(_length(rng)) if rng.integers(2) else content[-_length(rng) :]


def _remove(rng: np.random.Generator, content: bytearray) -> None:
    begin = _place(rng, content)
    del content[begin : begin + _length(rng)]


def _insert(rng: np.random.Generator, content: bytearray) -> None:
    begin, source = _place(rng, content), _place(rng, content)
    content[begin:begin] = content[source : source + _length(rng)] if rng.integers(2) else rng.bytes(_length(rng))


def _copy(rng: np.random.Generator, content: bytearray) -> None:
    begin, source = _place(rng, content), _place(rng, content)
    interval = content[source : source + _length(rng)]
    interval = interval[: len(content) - begin]
    content[begin : begin + len(interval)] = interval


def _number(rng: np.random.Generator, content: bytearray) -> None:
    """Replace a decimal number by another one."""
    words = list(_NUMBER.finditer(content))
    if words:
        begin, end = words[rng.integers(len(words))].span()
        content[begin:end] = _NUMBERS[rng.integers(len(_NUMBERS))].encode()


def _word(rng: np.random.Generator, content: bytearray) -> None:
    """Replace a word of the text by another one or delete it."""
    words = list(_WORD.finditer(content))
    if words:
        begin, end = words[rng.integers(len(words))].span()
        content[begin:end] = words[rng.integers(len(words))][0] if rng.integers(8) else b""


def _node(rng: np.random.Generator, content: bytearray) -> None:
    """Replace a value anywhere in JSON."""
    try:
        whole = json.loads(content)
    except (ValueError, RecursionError):
        return
    places: list[tuple[Any, Any]] = []
    waiting = [whole]
    while waiting:
        one = waiting.pop()
        items = one.items() if isinstance(one, dict) else enumerate(one) if isinstance(one, list) else ()
        for key, value in items:
            places.append((one, key))
            waiting.append(value)
    if places:
        holder, key = places[rng.integers(len(places))]
        other, name = places[rng.integers(len(places))]
        holder[key] = (*_VALUES, other[name])[rng.integers(len(_VALUES) + 1)]
        with suppress(ValueError, RecursionError):  # it may now contain itself
            content[:] = json.dumps(whole).encode()


_MUTATIONS = (
    *(_flip, _flip, _byte, _zeros, _integer, _integer, _nearby, _nearby),
    *(_truncate, _append, _remove, _insert, _copy, _number, _number, _word),
    *(_node, _node, _node),
)
