"""The places of the tensors in a GGUF file, version 2 or 3, from its header alone.

Source: the GGUF specification (github.com/ggml-org/ggml, docs/gguf.md).
"""

import struct
from collections.abc import Iterator
from itertools import pairwise
from math import prod
from typing import Any, BinaryIO

from tsapps.apps.abft.files.manifest import Tensor

__all__ = ["gguf_tensors"]

# Formats of the types of metadata values, by their numbers; 8 is a string and 9 an array.
_SCALARS = ("B", "b", "H", "h", "I", "i", "f", "?", "", "", "Q", "q", "d")
_STRING, _ARRAY = 8, 9
# Maximum numbers of tensors and of metadata entries, and of bytes of a name.
_MOST, _MOST_NAME = 1 << 20, 1 << 16
# Types of tensors by number: the name, the elements of a block, and its bytes.
_TYPES = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 36),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
}


def gguf_tensors(file: BinaryIO) -> Iterator[tuple[str, Tensor]]:
    """Yield the name and the place of each tensor.

    A tensor of an unknown type has neither dtype nor shape, and ends where the next one begins.

    Raises
    ------
    ValueError
        If the file is not GGUF, or its header is damaged.
    struct.error
        If the header is truncated.
    """
    magic, version, count, n_metadata = _read(file, "<4sIQQ")
    if magic != b"GGUF" or version not in (2, 3) or max(count, n_metadata) > _MOST:
        raise ValueError("not GGUF of version 2 or 3")
    alignment = 32
    for _ in range(n_metadata):
        key = _string(file)
        value = _value(file, _read(file, "<I")[0])
        if key == "general.alignment":
            alignment = int(value)
    tensors = []
    for _ in range(count):
        name = _string(file)
        (n_dims,) = _read(file, "<I")
        if n_dims > 8:
            raise ValueError(f"{n_dims} dimensions")
        *sizes, kind, offset = _read(file, f"<{n_dims}QIQ")
        tensors.append((offset, name, kind, tuple(reversed(sizes))))
    begin = -(-file.tell() // alignment) * alignment
    ends = sorted({offset for offset, *_ in tensors} | {file.seek(0, 2) - begin})
    following = dict(pairwise(ends))
    for offset, name, kind, shape in tensors:
        dtype, per_block, block_bytes = _TYPES.get(kind, (None, 1, 0))
        end = following.get(offset, offset) if dtype is None else offset + prod(shape) // per_block * block_bytes
        yield name, Tensor(begin + offset, begin + end, dtype, None if dtype is None else shape)


def _read(file: BinaryIO, form: str) -> tuple[Any, ...]:
    return struct.unpack(form, file.read(struct.calcsize(form)))


def _string(file: BinaryIO) -> str:
    (size,) = _read(file, "<Q")
    if size > _MOST_NAME:
        raise ValueError(f"a name of {size} bytes")
    return file.read(size).decode()


def _value(file: BinaryIO, kind: int) -> Any:
    """Read a metadata value; return it if it is a scalar, and None for strings and arrays, which are skipped."""
    if kind == _STRING:
        file.seek(_read(file, "<Q")[0], 1)
        return None
    if kind == _ARRAY:
        kind, count = _read(file, "<IQ")
        if kind in (_STRING, _ARRAY):
            for _ in range(count):
                _value(file, kind)
        else:
            file.seek(count * struct.calcsize(_SCALARS[kind]), 1)
        return None
    return _read(file, "<" + _SCALARS[kind])[0]
