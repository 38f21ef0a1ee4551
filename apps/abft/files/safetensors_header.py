"""The header of a safetensors file, and the torch dtypes of its names."""

import json
import struct
from collections.abc import Mapping
from math import prod
from typing import Any

from tsapps.apps.abft.files.manifest import Tensor

__all__ = ["DTYPES", "header_of", "ordered", "tensors_in"]

#: Names of dtypes in safetensors, and in torch; a torch version may lack some.
DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "C64": "complex64",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
}
_NAMES = {torch_name: name for name, torch_name in DTYPES.items()}
# The tensors of written files begin at a multiple of this many bytes, as kernels on a GPU like it.
_ALIGNMENT = 256


def ordered(tensors: Mapping[str, Any]) -> list[str]:
    """Return the names of torch tensors in the order of the file: larger elements first, so that all are aligned."""
    return sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))


def header_of(tensors: Mapping[str, Any], metadata: Mapping[str, str] | None) -> bytes:
    """Return the first bytes of a safetensors file of torch tensors: the length of the header, and the header.

    Raises
    ------
    ValueError
        If safetensors has no name for a dtype, or a tensor has the reserved name ``__metadata__``.
    """
    entries: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    begin = 0
    for name in ordered(tensors):
        tensor = tensors[name]
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype not in _NAMES or name == "__metadata__":
            raise ValueError(f"{name}: safetensors has no {'tensor of this name' if dtype in _NAMES else dtype}")
        end = begin + tensor.numel() * tensor.element_size()
        entries[name] = {"dtype": _NAMES[dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    return struct.pack("<Q", len(text)) + text


def tensors_in(header: bytes, n_bytes: int) -> dict[str, Tensor]:
    """Return the places of the tensors of a safetensors file.

    Parameters
    ----------
    header : bytes
        At least the first bytes of the file, up to the end of the header.
    n_bytes : int
        The size of the file.

    Raises
    ------
    ValueError
        If the header is not one of safetensors, or places a tensor outside the file.
    """
    try:
        (size,) = struct.unpack_from("<Q", header)
        if 8 + size > len(header):
            raise ValueError("the header is longer than the file")
        found, first = {}, 8 + size
        for name, entry in json.loads(header[8:first]).items():
            if name == "__metadata__":
                continue
            begin, end = entry["data_offsets"]
            shape = tuple(entry["shape"])
            if (
                not 0 <= begin <= end <= n_bytes - first
                or (begin < end) != (prod(shape) > 0)
                or min(shape, default=0) < 0
            ):
                raise ValueError(f"the tensor {name!r} is not where the header says")
            found[name] = Tensor(first + begin, first + end, str(entry["dtype"]), shape)
    except (struct.error, KeyError, TypeError, AttributeError, RecursionError, ValueError) as error:
        raise ValueError(f"no header of safetensors: {error}") from error
    return found
