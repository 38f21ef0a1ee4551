"""The file beside a matrix that holds its checksums, `A.npy.abft`, and knows when it is damaged itself.

A safetensors container, which other programs read too: 8 bytes that say how long the header is, the header in JSON,
then the tensors one after the other, little-endian. Version 1 has

    __metadata__   format        "tsapps-abft"
                   version       "1"
                   shape, dtype  of the matrix, as JSON: "[20480, 20480]", "float32"
                   bytes         of its elements, row by row
                   digest        SHA-256 of all that is here, in hexadecimal
    exact          U64 (stripes, 5, columns): the sums of exact.py, of those bytes

The digest is of the other metadata, as JSON with sorted keys and no spaces, and then of every tensor in the order of
their names: the name, a zero byte, and its bytes. A sidecar that does not have the digest that it says it has was
corrupted, and tells nothing of the matrix.
"""

import hashlib
import json
import struct
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any, BinaryIO

import numpy as np

from tsapps.apps.abft.exact import SUMS, layout

__all__ = ["FORMAT", "VERSION", "Sidecar", "SidecarError", "read_sidecar", "write_sidecar"]

FORMAT, VERSION = "tsapps-abft", "1"
_LENGTH = struct.Struct("<Q")
# A header is some hundred bytes; a length beyond this is no length.
_MOST_HEADER = 1 << 20


class SidecarError(ValueError):
    """A file is no sidecar, or one that was corrupted, or of a version that is not known here."""


@dataclass(frozen=True)
class Sidecar:
    """What is known of a matrix as it was.

    Attributes
    ----------
    shape : tuple of int
    dtype : str
        The name of its elements' type.
    n_bytes : int
        Of its elements.
    exact : numpy.ndarray of shape (stripes, 5, columns), uint64
        The sums of `exact.py`.
    """

    shape: tuple[int, int]
    dtype: str
    n_bytes: int
    exact: np.ndarray

    def __post_init__(self) -> None:
        of = layout(self.n_bytes)
        if self.exact.shape != (of.stripes, SUMS, of.width) or self.exact.dtype != np.uint64:
            raise ValueError(
                f"the sums of {self.n_bytes} bytes are uint64 of shape {(of.stripes, SUMS, of.width)}, "
                f"got {self.exact.dtype} of shape {self.exact.shape}"
            )

    @property
    def metadata(self) -> dict[str, str]:
        """What the header says of the matrix, the digest apart."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "shape": json.dumps(list(self.shape)),
            "dtype": self.dtype,
            "bytes": str(self.n_bytes),
        }

    @property
    def tensors(self) -> dict[str, np.ndarray]:
        """The arrays by their names, little-endian."""
        return {"exact": np.ascontiguousarray(self.exact, "<u8")}


def _digest(metadata: dict[str, str], tensors: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256(json.dumps(metadata, sort_keys=True, separators=(",", ":")).encode())
    for name in sorted(tensors):
        digest.update(name.encode() + b"\0")
        digest.update(tensors[name].data)
    return digest.hexdigest()


def write_sidecar(file: BinaryIO, sidecar: Sidecar) -> None:
    """Write a sidecar to a binary file, from where it stands."""
    tensors, metadata = sidecar.tensors, sidecar.metadata
    header: dict[str, Any] = {"__metadata__": {**metadata, "digest": _digest(metadata, tensors)}}
    begin = 0
    for name in sorted(tensors):
        end = begin + tensors[name].nbytes
        header[name] = {"dtype": "U64", "shape": list(tensors[name].shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(_LENGTH.pack(len(text)) + text)
    for name in sorted(tensors):
        file.write(tensors[name].data)


def read_sidecar(path: str | PathLike[str]) -> Sidecar:
    """Read a sidecar, and find that it is as it was written.

    Raises
    ------
    SidecarError
        If it is not, or is none, or of another version.
    OSError
        If the file cannot be read.
    """
    name = fspath(path)
    with open(path, "rb") as file:
        begin = file.read(_LENGTH.size)
        size = _LENGTH.unpack(begin)[0] if len(begin) == _LENGTH.size else 0
        if not 2 <= size <= _MOST_HEADER:
            raise SidecarError(f"{name}: is no sidecar of abft-encode: it does not begin with the length of a header")
        text, data = file.read(size), file.read()
    try:
        header = json.loads(text)
        metadata = {str(key): str(value) for key, value in header["__metadata__"].items()}
        if metadata["format"] != FORMAT:
            raise SidecarError(f"{name}: is no sidecar of abft-encode: its format is {metadata['format']!r}")
        if metadata["version"] != VERSION:
            raise SidecarError(
                f"{name}: is of version {metadata['version']}, and only {VERSION} is known: update tsapps"
            )
        digest = metadata.pop("digest")
        tensors = {key: _tensor(value, data) for key, value in header.items() if key != "__metadata__"}
        if digest != _digest(metadata, tensors):
            raise SidecarError(f"{name}: was corrupted: encode the matrix again, if it is known to be right")
        rows, columns = json.loads(metadata["shape"])
        return Sidecar((int(rows), int(columns)), metadata["dtype"], int(metadata["bytes"]), tensors["exact"])
    except SidecarError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SidecarError(
            f"{name}: is no sidecar of abft-encode, or was corrupted: its header says {error!s}"
        ) from error


def _tensor(entry: dict[str, Any], data: bytes) -> np.ndarray:
    """Return one tensor of the container."""
    begin, end = entry["data_offsets"]
    if entry["dtype"] != "U64" or not 0 <= begin <= end <= len(data):
        raise ValueError(f"a tensor of {entry['dtype']} from byte {begin} to {end} of {len(data)}")
    return np.frombuffer(data[begin:end], "<u8").reshape(entry["shape"]).astype(np.uint64)
