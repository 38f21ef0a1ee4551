"""Formats that hold several named arrays in one file: .npz and safetensors. `file.npz:name` selects one array."""

import copy
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, BinaryIO, Literal

import numpy as np

from tsapps.errors import MatrixError, MatrixUsageError
from tsapps.kernels.system.host_memory import available_host_memory
from tsapps.kernels.system.printable import shown
from tsapps.kernels.system.strict_json import JsonError, parse_json
from tsapps.matrix.base import Matrix
from tsapps.matrix.binary import check_size, read_npy_header
from tsapps.matrix.checks import changed, check_dtype, check_memory, check_shape, readable
from tsapps.matrix.layout import Stored
from tsapps.matrix.optional import optional_module
from tsapps.matrix.stored import StoredMatrix
from tsapps.names import shell_spelling

__all__ = ["choose_array", "open_npz", "open_safetensors"]

# Exceptions that zipfile and its decompressors raise for damaged, encrypted or unsupported archives.
_ZIP_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    OSError,
    RuntimeError,
    ValueError,
)
# Compression methods that numpy.savez uses, with the maximum ratio of original to compressed size. The ratio of deflate
# is from zlib's FAQ.
_MOST_COMPRESSED = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: 1032}
# Element types of safetensors. Unsupported types are listed so that their error message can name them.
_SAFETENSORS_TYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "u1",
    "BOOL": "?",
    "C64": "<c8",
}

# Maximum bytes of a safetensors header. A header has about a hundred bytes per tensor; the parsed header takes some
# twenty times as much memory.
_MOST_SAFETENSORS_HEADER = 1 << 24

# Maximum bytes decompressed at a time. A large matrix in Fortran order is decompressed several times, each time for a
# group of rows that takes 1 / `_PART_OF_MEMORY` of the available memory.
_PIECE_BYTES = 1 << 24
_PART_OF_MEMORY = 4

# Maximum number of array names in a message.
_MOST_NAMES = 10
# Maximum characters of an example in a message; nobody would copy and paste a longer example.
_LONGEST_EXAMPLE = 400


def open_npz(path: str, wanted: str | None) -> Matrix:
    """Open an array of a .npz archive, compressed or not; only headers are read."""
    with readable(path, _ZIP_ERRORS), zipfile.ZipFile(path) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}

        def header(name: str) -> tuple[tuple[int, ...], Literal["C", "F"], np.dtype, int]:
            _check_member(members[name], f"{path}:{shown(name)}")
            with archive.open(members[name]) as file:
                return *read_npy_header(file, f"{path}:{shown(name)}"), file.tell()

        name = choose_array(path, wanted, list(members), lambda name: header(name)[0])
        shape, order, dtype, offset = header(name)
        full_name = f"{path}:{shown(name)}"
        check_dtype(dtype, full_name)
        check_shape(shape, full_name)
        check_size(full_name, members[name].file_size, offset, shape, dtype)
    return NpzMatrix(path, members[name].filename, full_name, shape, dtype, order, offset)


def _check_member(member: zipfile.ZipInfo, name: str) -> None:
    """Raise `MatrixError` unless a member can have the size that the archive's directory states."""
    most = _MOST_COMPRESSED.get(member.compress_type)
    if most is None:
        raise MatrixError(
            f"{name}: is compressed by method {member.compress_type}, which numpy.savez does not write: "
            f"write it again with numpy.savez_compressed"
        )
    if member.file_size > most * member.compress_size:
        raise MatrixError(
            f"{name}: is truncated or damaged: its header says {member.file_size} bytes, compressed to "
            f"{member.compress_size}: copy it again"
        )


class NpzMatrix(Matrix):
    """An array in a .npz archive.

    Each pass decompresses the array from the beginning; large arrays in Fortran order several times.
    """

    def __init__(
        self,
        path: str,
        member: str,
        name: str,
        shape: Sequence[int],
        dtype: np.dtype,
        order: Literal["C", "F"],
        offset: int,
    ) -> None:
        super().__init__(name, shape, dtype)
        self._path = path
        self._member = member
        self._stored_dtype = dtype
        self._order = order
        self._size = offset + self.nbytes

    def _blocks(self, rows: int) -> Iterator[tuple[int, np.ndarray]]:
        n, d = self.shape
        rows = min(rows, n)
        check_memory(self.name, rows * d * self.dtype.itemsize, "a block of rows")
        if self._order == "F" and min(n, d) > 1:
            yield from self._transposed(rows)
            return
        with self._opened() as file:
            for start in range(0, n, rows):
                stop = min(n, start + rows)
                block = self._elements(file, (stop - start) * d).reshape(stop - start, d)
                if stop == n:
                    _check_end(file)
                yield start, block

    def pieces(self, columns: int) -> Iterator[tuple[int, int, np.ndarray]]:
        """Yield (row, column, piece of that row); see `Matrix.pieces`."""
        n, d = self.shape
        if self._order == "F" and min(n, d) > 1:
            yield from super().pieces(columns)
            return
        with self._opened() as file:
            for row in range(n):
                for column in range(0, d, columns):
                    piece = self._elements(file, min(columns, d - column))
                    if (row, column + len(piece)) == (n - 1, d):
                        _check_end(file)
                    yield row, column, piece.reshape(1, -1)

    def _transposed(self, rows: int) -> Iterator[tuple[int, np.ndarray]]:
        """Yield blocks of rows of an array in Fortran order, in one pass if memory is large enough."""
        n, d = self.shape
        most = available_host_memory() // _PART_OF_MEMORY
        together = min(n, max(rows, most // (d * self.dtype.itemsize)))
        for first in range(0, n, together):
            stop = min(n, first + together)
            with self._opened() as file:
                if stop - first == n:
                    part = self._elements(file, n * d).reshape(d, n)
                else:
                    part = np.empty((d, stop - first), self.dtype)
                    for column in part:
                        self._skip(file, first)
                        column[:] = self._elements(file, stop - first)
                        self._skip(file, n - stop)
                _check_end(file)
            yield from (
                (first + start, np.ascontiguousarray(part[:, start : start + rows].T))
                for start in range(0, stop - first, rows)
            )

    @contextmanager
    def _opened(self) -> Iterator[IO[bytes]]:
        """Open the member at its first element; one byte past the last element is readable, for `_check_end`."""
        with readable(self.name, _ZIP_ERRORS), zipfile.ZipFile(self._path) as archive:
            member = copy.copy(archive.getinfo(self._member))
            member.file_size = self._size + 1
            with archive.open(member) as file:
                if read_npy_header(file, self.name) != (self.shape, self._order, self._stored_dtype):
                    raise changed(self.name)
                yield file

    def _elements(self, file: IO[bytes], count: int) -> np.ndarray:
        """Read `count` elements and convert them to the machine's byte order."""
        size = count * self.dtype.itemsize
        if size <= _PIECE_BYTES:
            return np.frombuffer(_read(file, size), self._stored_dtype).astype(self.dtype, copy=False)
        elements = np.empty(count, self._stored_dtype)
        content = elements.view(np.uint8)
        for start in range(0, size, _PIECE_BYTES):
            part = content[start : start + _PIECE_BYTES]
            part[:] = np.frombuffer(_read(file, len(part)), np.uint8)
        return elements.astype(self.dtype, copy=False)

    def _skip(self, file: IO[bytes], count: int) -> None:
        """Read and drop `count` elements, so that the archive's CRC is checked over all elements."""
        left = count * self.dtype.itemsize
        while left:
            left -= len(_read(file, min(left, _PIECE_BYTES)))


def _read(file: IO[bytes], size: int) -> bytes:
    """Read exactly `size` bytes; raise `EOFError` if fewer are left."""
    content = file.read(size)
    if len(content) < size:
        raise EOFError(f"{size - len(content)} bytes are missing")
    return content


def _check_end(file: IO[bytes]) -> None:
    """Raise `ValueError` unless the member ends at the present position."""
    if file.read(1):
        raise ValueError("it holds more than its header says")


def open_safetensors(path: str, wanted: str | None) -> Matrix:
    """Open a tensor of a safetensors file.

    The safetensors library checks the file. This module reads the elements itself, because the library maps files and
    cannot select rows by index.
    """
    safetensors = optional_module("safetensors", path)
    with open(path, "rb") as file:
        _check_header_length(file, path)
    errors = (safetensors.SafetensorError, OSError, ValueError)
    with readable(path, errors), safetensors.safe_open(path, framework="numpy") as file:
        name = choose_array(path, wanted, list(file.keys()), lambda name: tuple(file.get_slice(name).get_shape()))
        shape = tuple(file.get_slice(name).get_shape())
        kind = file.get_slice(name).get_dtype()
    full_name = f"{path}:{shown(name)}"
    if kind == "BF16":
        dtype = np.dtype(optional_module("ml_dtypes", path).bfloat16)
    elif kind in _SAFETENSORS_TYPES:
        dtype = np.dtype(_SAFETENSORS_TYPES[kind])
    else:
        raise MatrixError(f"{full_name}: holds elements of type {kind}: convert it to float16, bfloat16 or float32")
    check_dtype(dtype, full_name)
    check_shape(shape, full_name)
    with readable(path, (JsonError,)), open(path, "rb") as file:
        offset = _safetensors_offset(file, name)
    strides = (shape[1] * dtype.itemsize, dtype.itemsize)
    return StoredMatrix(Stored(path, offset, shape, strides, dtype), full_name)


def _check_header_length(file: BinaryIO, path: str) -> None:
    """Raise `MatrixError` if the header is longer than can be parsed in a reasonable amount of memory."""
    length = int.from_bytes(file.read(8), "little")
    if length > _MOST_SAFETENSORS_HEADER:
        raise MatrixError(
            f"{path}: its header says that it is {length} bytes long; expected at most {_MOST_SAFETENSORS_HEADER}: it "
            f"is damaged or of another format: copy it again"
        )


def _safetensors_offset(file: BinaryIO, name: str) -> int:
    """Return the offset of a tensor in the file: 8 bytes of header length, the JSON header, then the elements."""
    (length,) = struct.unpack("<Q", file.read(8))
    header = parse_json(file.read(length))
    return 8 + length + int(header[name]["data_offsets"][0])


def choose_array(
    path: str, wanted: str | None, names: Sequence[str], shape_of: Callable[[str], tuple[int, ...]]
) -> str:
    """Return the name of the requested array; without a request, the name of the only matrix among the arrays."""
    if not names:
        raise MatrixError(f"{path}: holds no array: check what wrote it")
    if wanted is not None:
        if wanted not in names:
            raise MatrixUsageError(f"{path}: holds no array '{shown(wanted)}': name one of {_listing(names)}")
        return wanted
    matrices = [name for name in names if len(shape_of(name)) == 2]
    candidates = matrices or names
    if len(candidates) > 1:
        spellings = (shell_spelling(f"{path}:{name}") for name in candidates)
        example = next((one for one in spellings if one is not None and len(one) <= _LONGEST_EXAMPLE), None)
        raise MatrixUsageError(
            f"{path}: holds several arrays, {_listing(candidates)}: name one"
            + (f", for example {example}" if example else f", as {path}:NAME")
        )
    return candidates[0]


def _listing(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(shown(name) or "one without a name" for name in names[:_MOST_NAMES]) + more
