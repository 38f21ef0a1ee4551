"""The sidecar file of a matrix's checksums, such as `A.npy.abft`: its format, and functions that read and write it.

The file is a safetensors container, which other programs can read: the length of the header in 8 bytes, the header in
JSON, then the tensors, little-endian. Version 1 has these entries:

    __metadata__   format          "tsapps-abft"
                   version         "1"
                   shape           the matrix's shape (m, n) as JSON, such as "[20480, 20480]"
                   dtype           the type of the matrix's elements, such as "float32"
                   bytes           number of bytes of the matrix's elements
                   code            "exact", "float" or "both"
                   block, weights  parameters of the float code; "0" if the sidecar does not have this code
                   digest          SHA-256 of the content, in hexadecimal
    exact          U64 (stripes, 5, width): the sums of at_rest/exact_code.py over the matrix's bytes
    rows           F64 or F32 (⌈n / block⌉, weights, m): the row sums of at_rest/float_code.py
    columns        F64 or F32 (⌈m / block⌉, weights, n): the column sums of at_rest/float_code.py
    entry          U8: in the sidecar of a whole file, the file's entry of the manifest (files/manifest.py)

A sidecar has `exact`, or `rows` and `columns`, or all three; that of an empty file, `entry` alone. The digest covers
the other metadata, as JSON with sorted keys and no spaces. Then follow the tensors in the order of their names: the
name, a zero byte, and the tensor's bytes. If the content of a sidecar does not match the digest, the sidecar is
corrupted and cannot verify the matrix.
"""

import hashlib
import json
import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from os import PathLike, fspath
from typing import Any, BinaryIO

import numpy as np

from tsapps.apps.abft.at_rest.exact_code import sums_shape
from tsapps.apps.abft.at_rest.float_code import check_weighted, columns_shape, rows_shape, sums_dtype
from tsapps.apps.abft.at_rest.interleave import layout
from tsapps.kernels.system.atomic_write import replacing
from tsapps.kernels.system.host_memory import available_host_memory
from tsapps.kernels.system.printable import OneLineError
from tsapps.kernels.system.strict_json import parse_json

__all__ = [
    "FORMAT",
    "VERSION",
    "Sidecar",
    "SidecarError",
    "container_digest",
    "dump_container",
    "dump_sidecar",
    "load_container",
    "read_sidecar",
    "sidecar_bytes",
    "sidecar_of",
    "write_sidecar",
]

FORMAT, VERSION = "tsapps-abft", "1"
_LENGTH = struct.Struct("<Q")
# Maximum accepted length of a header in bytes; headers of sidecars have some hundred bytes.
_MOST_HEADER = 1 << 20
# Bytes for which there is always memory: finding out how much there is takes longer than reading them.
_SMALL = 1 << 22
_TYPES: dict[str, np.dtype[Any]] = {
    "U64": np.dtype("<u8"),
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "U8": np.dtype("u1"),
}
_TYPE_NAMES = {dtype: name for name, dtype in _TYPES.items()}


class SidecarError(OneLineError):
    """A file is not a sidecar, or it is a sidecar that is corrupted or has an unknown version."""


@dataclass(frozen=True, eq=False)
class Sidecar:
    """The checksums of a matrix, as read-only arrays.

    Attributes
    ----------
    shape : tuple of int
        The shape (m, n) of the matrix.
    dtype : str
        The name of the type of the matrix's elements.
    n_bytes : int
        Number of bytes of all elements.
    exact : numpy.ndarray of shape (stripes, 5, width), uint64, or None
        The sums of `at_rest/exact_code.py`.
    rows : numpy.ndarray of shape (⌈n / block⌉, weights, m), float64 or float32, or None
        The row sums of `at_rest/float_code.py`.
    columns : numpy.ndarray of shape (⌈m / block⌉, weights, n), float64 or float32, or None
        The column sums of `at_rest/float_code.py`.
    block, weights : int
        Parameters of the float code; 0 if the sidecar has no sums of the float code.

    Raises
    ------
    ValueError
        If the attributes are inconsistent.
    """

    shape: tuple[int, int]
    dtype: str
    n_bytes: int
    exact: np.ndarray | None = None
    rows: np.ndarray | None = None
    columns: np.ndarray | None = None
    block: int = 0
    weights: int = 0

    def __post_init__(self) -> None:
        elements = self.shape[0] * self.shape[1]
        if min(self.shape) < 1 or self.n_bytes < 1 or self.n_bytes % elements:
            raise ValueError(f"{self.shape[0]} × {self.shape[1]} elements cannot have {self.n_bytes} bytes")
        if (self.rows is None) != (self.columns is None):
            raise ValueError("the float code has sums along rows and along columns: one of both is missing")
        if self.exact is None and self.rows is None:
            raise ValueError("there are no sums of either code")
        if self.rows is not None:
            check_weighted(self.weights, self.block)
        elif (self.block, self.weights) != (0, 0):
            raise ValueError(f"there is no float code that has blocks of {self.block} and {self.weights} weights")
        expected = _sums(self.shape, self.itemsize, self.dtype, self.code, self.weights, self.block)
        for name, (dtype, shape) in expected.items():
            found = getattr(self, name)
            if found.shape != shape or found.dtype != dtype:
                raise ValueError(
                    f"the {name} sums of {self.shape[0]} × {self.shape[1]} {self.dtype} are {dtype} of shape {shape}, "
                    f"got {found.dtype} of shape {found.shape}"
                )
            # Read-only, because a GPU may hold a copy, which must remain equal to this array.
            found = found.view()
            found.flags.writeable = False
            object.__setattr__(self, name, found)

    def __repr__(self) -> str:
        sizes = [array.nbytes for array in (self.exact, self.rows, self.columns) if array is not None]
        weighted = f", {self.weights} weights, blocks of {self.block}" if self.weights else ""
        return (
            f"<Sidecar of {self.shape[0]} × {self.shape[1]} {self.dtype}: code {self.code!r}{weighted}, "
            f"{sum(sizes)} bytes of checksums>"
        )

    @property
    def itemsize(self) -> int:
        """Number of bytes of an element."""
        return self.n_bytes // (self.shape[0] * self.shape[1])

    @property
    def code(self) -> str:
        """The codes whose sums the sidecar has: "exact", "float" or "both"."""
        if self.rows is None:
            return "exact"
        return "float" if self.exact is None else "both"

    @property
    def metadata(self) -> dict[str, str]:
        """The metadata of the header, without the digest."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "shape": json.dumps(list(self.shape)),
            "dtype": self.dtype,
            "bytes": str(self.n_bytes),
            "code": self.code,
            "block": str(self.block),
            "weights": str(self.weights),
        }

    @property
    def tensors(self) -> dict[str, np.ndarray]:
        """The little-endian arrays of sums, by their names in the file: "exact", "rows" and "columns"."""
        arrays = {"exact": self.exact, "rows": self.rows, "columns": self.columns}
        return {
            name: np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
            for name, array in arrays.items()
            if array is not None
        }


def _sums(
    shape: tuple[int, int], itemsize: int, dtype: str, code: str, weights: int, block: int
) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
    """Return the type and the shape of each array of sums in the sidecar of a matrix, by name."""
    sums: dict[str, tuple[np.dtype, tuple[int, ...]]] = {}
    if code != "float":
        of = layout(shape, itemsize)
        sums["exact"] = np.dtype(np.uint64), sums_shape(of)
    if code != "exact":
        kind = sums_dtype(dtype)
        sums["rows"] = kind, rows_shape(shape, weights, block)
        sums["columns"] = kind, columns_shape(shape, weights, block)
    return sums


def sidecar_bytes(shape: tuple[int, int], dtype: np.dtype, code: str, weights: int, block: int) -> int:
    """Return the number of bytes of all arrays of a sidecar, without the header of some hundred bytes.

    Parameters
    ----------
    shape, dtype
        The shape of the matrix, and the type of its elements.
    code, weights, block
        As for `encode`.
    """
    sums = _sums(shape, dtype.itemsize, dtype.name, code, weights, block)
    return sum(prod(shape) * kind.itemsize for kind, shape in sums.values())


def container_digest(metadata: dict[str, str], contents: Mapping[str, Any]) -> str:
    """Return the digest of metadata and of tensors (arrays or their bytes), as the head of this module defines it."""
    digest = hashlib.sha256(json.dumps(metadata, sort_keys=True, separators=(",", ":")).encode())
    for name in sorted(contents):
        digest.update(name.encode() + b"\0")
        digest.update(contents[name])
    return digest.hexdigest()


def dump_sidecar(file: BinaryIO, sidecar: Sidecar) -> None:
    """Write a sidecar to a binary file, beginning at the current position of the file."""
    dump_container(file, sidecar.metadata, sidecar.tensors)


def dump_container(file: BinaryIO, metadata: dict[str, str], tensors: dict[str, np.ndarray]) -> None:
    """Write metadata and little-endian tensors to a binary file, with the digest of both."""
    header: dict[str, Any] = {"__metadata__": {**metadata, "digest": container_digest(metadata, tensors)}}
    begin = 0
    for name in sorted(tensors):
        end, kind = begin + tensors[name].nbytes, _TYPE_NAMES[tensors[name].dtype]
        header[name] = {"dtype": kind, "shape": list(tensors[name].shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(_LENGTH.pack(len(text)) + text)
    for name in sorted(tensors):
        file.write(tensors[name].data)


def write_sidecar(path: str | PathLike[str], sidecar: Sidecar) -> None:
    """Write a sidecar to a file atomically; replace an existing file.

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    with replacing(path) as file:
        dump_sidecar(file, sidecar)


def read_sidecar(path: str | PathLike[str]) -> Sidecar:
    """Read a sidecar from a file, and check that its content matches its digest.

    Raises
    ------
    SidecarError
        If the file is not a sidecar, is corrupted, or has an unknown version.
    OSError
        If the file cannot be read.
    MemoryError
        If the file is larger than the available memory.
    """
    return sidecar_of(*load_container(path), fspath(path))


def load_container(path: str | PathLike[str]) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """Return the metadata and the tensors of a sidecar file, after checking the digest; raises as `read_sidecar`."""
    name = fspath(path)
    with open(path, "rb") as file:
        begin = file.read(_LENGTH.size)
        size = _LENGTH.unpack(begin)[0] if len(begin) == _LENGTH.size else 0
        if not 2 <= size <= _MOST_HEADER:
            raise SidecarError(f"{name}: is no sidecar of abft-encode: it does not begin with the length of a header")
        text, rest = file.read(size), os.fstat(file.fileno()).st_size - len(begin) - size
        if rest > _SMALL and rest > available_host_memory():
            raise MemoryError(f"{name}: holds {rest:,} bytes of checksums, more than there is memory for")
        data = memoryview(file.read(max(0, rest)))
    with _named(name):
        header = parse_json(text)
        metadata = {str(key): str(value) for key, value in header["__metadata__"].items()}
        if metadata["format"] != FORMAT:
            raise SidecarError(f"{name}: is no sidecar of abft-encode: its format is {metadata['format'][:40]!r}")
        if metadata["version"] != VERSION:
            raise SidecarError(
                f"{name}: is of version {metadata['version'][:40]!r}, and only {VERSION} is known: update tsapps"
            )
        digest = metadata.pop("digest")
        tensors = {key: _tensor(value, data) for key, value in header.items() if key != "__metadata__"}
        if digest != container_digest(metadata, tensors):
            raise SidecarError(f"{name}: was corrupted: encode the matrix again, if it is known to be right")
        return metadata, tensors


def sidecar_of(metadata: dict[str, str], tensors: dict[str, np.ndarray], name: str) -> Sidecar:
    """Return the sidecar that metadata and tensors describe; `name` is the file's name in messages.

    Raises
    ------
    SidecarError
        If they are inconsistent.
    """
    with _named(name):
        rows, columns = _sizes(parse_json(metadata["shape"]))
        block, weights = int(metadata["block"]), int(metadata["weights"])
        sums = {key: array for key, array in tensors.items() if key != "entry"}
        return Sidecar((rows, columns), metadata["dtype"], int(metadata["bytes"]), **sums, block=block, weights=weights)


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Raise errors of inconsistent content as `SidecarError`, with the file's name."""
    try:
        yield
    except SidecarError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SidecarError(
            f"{name}: is no sidecar of abft-encode, or was corrupted: its header says {str(error)[:200]}"
        ) from error


def _sizes(found: Any) -> list[int]:
    """Return a value read from the header if it is a list of non-negative integers; otherwise raise `ValueError`."""
    if not isinstance(found, list) or any(type(size) is not int or size < 0 for size in found):
        raise ValueError(f"{str(found)[:80]}, expected a list of whole numbers")
    return found


def _tensor(entry: dict[str, Any], data: memoryview) -> np.ndarray:
    """Return a tensor as a view of the file's data.

    `entry` is the tensor's header entry, and `data` holds the bytes after the header.
    """
    begin, end = _sizes(entry["data_offsets"])
    shape = _sizes(entry["shape"])
    kind: np.dtype[Any] = _TYPES[entry["dtype"]]
    if not begin <= end <= len(data) or prod(shape) * kind.itemsize != end - begin:
        raise ValueError(f"a tensor of {shape} {kind} from byte {begin} to {end} of {len(data)}")
    array = np.frombuffer(data[begin:end], kind).reshape(shape)
    return array.astype(array.dtype.newbyteorder("="), copy=False)
