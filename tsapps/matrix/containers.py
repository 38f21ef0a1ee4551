"""Formats that hold several named arrays in one file: .npz, HDF5, safetensors. `file.npz:name` says which."""

import math
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, Literal

import numpy as np

from tsapps.errors import MatrixError, MatrixUsageError
from tsapps.kernels.printable import shown
from tsapps.kernels.strict_json import JsonError, parse_json
from tsapps.matrix.base import Matrix
from tsapps.matrix.binary import check_size, read_npy_header
from tsapps.matrix.checks import changed, check_dtype, check_shape, readable
from tsapps.matrix.memory import HostMatrix
from tsapps.matrix.optional import optional_module
from tsapps.matrix.stored import Stored, StoredMatrix
from tsapps.names import shell_spelling

__all__ = ["open_hdf5", "open_npz", "open_safetensors"]

# What zipfile and its decompressors raise for damaged, encrypted or exotic archives.
_ZIP_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    OSError,
    RuntimeError,
    ValueError,
)
# What numpy.savez writes, and the largest ratio by which each method can compress (zlib's FAQ says 1032 for deflate).
_MOST_COMPRESSED = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: 1032}
# What h5py raises: each error of HDF5's stack as one of these, by the tables in its _errors.pyx; names that are no
# text; types that NumPy does not have.
_HDF5_ERRORS = (LookupError, OSError, RuntimeError, TypeError, ValueError)

# safetensors' element types; those that are no numbers of ours are here to be refused with the right words.
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

# HDF5 rows that are not stored in chunks are picked out by pieces of this many bytes: a disk reads no less.
_HDF5_PIECE_BYTES = 1 << 16

_MOST_NAMES = 10
# Whoever would paste an example that is longer copies the name elsewhere.
_LONGEST_EXAMPLE = 400


def open_npz(path: str, wanted: str | None) -> Matrix:
    """Open an array of NumPy's archive format, compressed or not; only headers are read."""
    with readable(path, _ZIP_ERRORS), zipfile.ZipFile(path) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}

        def header(name: str) -> tuple[tuple[int, ...], Literal["C", "F"], np.dtype, int]:
            _check_member(members[name], f"{path}:{shown(name)}")
            with archive.open(members[name]) as file:
                return *read_npy_header(file, f"{path}:{shown(name)}"), file.tell()

        name = _choose(path, wanted, list(members), lambda name: header(name)[0])
        shape, order, dtype, offset = header(name)
        full_name = f"{path}:{shown(name)}"
        check_dtype(dtype, full_name)
        check_shape(shape, full_name)
        check_size(full_name, members[name].file_size, offset, shape, dtype)
    return NpzMatrix(path, members[name].filename, full_name, shape, dtype, order)


def _check_member(member: zipfile.ZipInfo, name: str) -> None:
    """Raise `MatrixError` unless a member can have the size that the archive's directory says."""
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
    """An array that every pass decompresses from its beginning; all of it at once if it is in Fortran order."""

    def __init__(
        self, path: str, member: str, name: str, shape: Sequence[int], dtype: np.dtype, order: Literal["C", "F"]
    ) -> None:
        super().__init__(name, shape, dtype)
        self._path = path
        self._member = member
        self._stored_dtype = dtype
        self._order = order

    def _blocks(self, rows: int) -> Iterator[tuple[int, np.ndarray]]:
        n, d = self.shape
        with (
            readable(self.name, _ZIP_ERRORS),
            zipfile.ZipFile(self._path) as archive,
            archive.open(self._member) as file,
        ):
            if read_npy_header(file, self.name) != (self.shape, self._order, self._stored_dtype):
                raise changed(self.name)
            if self._order == "F":  # a row is strewn over the whole stream
                yield from HostMatrix(self._elements(file, (d, n)).T, self.name).blocks(rows)
                return
            for start in range(0, n, rows):
                yield start, self._elements(file, (min(rows, n - start), d)).astype(self.dtype, copy=False)

    def _elements(self, file: Any, shape: tuple[int, int]) -> np.ndarray:
        size = shape[0] * shape[1] * self.dtype.itemsize
        content = file.read(size)
        if len(content) < size:
            raise EOFError(f"{size - len(content)} bytes are missing")
        return np.frombuffer(content, self._stored_dtype).reshape(shape)


def open_hdf5(path: str, wanted: str | None) -> Matrix:
    """Open a dataset of an HDF5 file; `wanted` is its path in there."""
    h5py = optional_module("h5py", path)
    with readable(path, _HDF5_ERRORS), h5py.File(path, "r") as file:
        names: list[str] = []
        file.visititems(lambda name, thing: names.append(name) if isinstance(thing, h5py.Dataset) else None)
        if wanted is not None:
            wanted = wanted.strip("/")
            if wanted and isinstance(file.get(wanted), h5py.Dataset):
                names.append(wanted)  # links are not visited
        name = _choose(path, wanted, names, lambda name: file[name].shape or ())
        matrix = Hdf5Matrix(path, name, file[name].shape or (), file[name].dtype)
        _check_stored(file[name], matrix)
        return matrix


def _check_stored(dataset: Any, matrix: "Hdf5Matrix") -> None:
    """Raise `MatrixError` unless a dataset's file holds every one of its elements.

    HDF5 gives a fill value for elements that it finds nowhere: chunks that were never written, or whose index is
    damaged, and other files that are missing or short.
    """
    if dataset.is_virtual or dataset.external:
        raise MatrixError(
            f"{matrix.name}: has its elements in other files, and HDF5 fills up what is missing there: "
            f"copy them into a dataset of one file"
        )
    if dataset.chunks:
        what, found = "chunks", dataset.id.get_num_chunks()
        expected = math.prod(-(-size // chunk) for size, chunk in zip(dataset.shape, dataset.chunks, strict=True))
    else:
        what, found = "bytes", dataset.id.get_storage_size()
        expected = math.prod(dataset.shape) * dataset.id.get_type().get_size()  # which may be narrower than the dtype
    if found != expected:
        n, d = matrix.shape
        raise MatrixError(
            f"{matrix.name}: is {n} × {d} {matrix.dtype}, which take {expected} {what}, and "
            f"the file holds {found}: it was never written to the end, or is damaged: write it again"
        )


class Hdf5Matrix(Matrix):
    """A dataset of an HDF5 file, which is open only while it is read."""

    def __init__(self, path: str, member: str, shape: Sequence[int], dtype: np.dtype) -> None:
        super().__init__(f"{path}:/{shown(member)}", shape, dtype)
        self._path = path
        self._member = member

    def _blocks(self, rows: int) -> Iterator[tuple[int, np.ndarray]]:
        return self._pieces(rows, range(0, self.shape[0], rows))

    def _rows(self, numbers: np.ndarray) -> np.ndarray:
        h5py = optional_module("h5py", self._path)
        with readable(self.name, _HDF5_ERRORS), h5py.File(self._path, "r") as file:
            chunks = file[self._member].chunks
        step = chunks[0] if chunks else max(1, _HDF5_PIECE_BYTES // (self.shape[1] * self.dtype.itemsize))
        starts = np.unique(numbers // step) * step  # HDF5's own selection by numbers is slow for more than a few
        return self._gather(self._pieces(step, starts.tolist()), numbers)

    def _pieces(self, rows: int, starts: Sequence[int]) -> Iterator[tuple[int, np.ndarray]]:
        h5py = optional_module("h5py", self._path)
        with readable(self.name, _HDF5_ERRORS), h5py.File(self._path, "r") as file:
            dataset = file[self._member]
            if dataset.shape != self.shape:
                raise changed(self.name)
            for start in starts:
                yield start, np.require(dataset[start : start + rows], self.dtype, ["C", "A"])


def open_safetensors(path: str, wanted: str | None) -> Matrix:
    """Open a tensor of a safetensors file.

    The library checks the file; its own slices take no row numbers, and it maps files, so the elements are read here.
    """
    safetensors = optional_module("safetensors", path)
    errors = (safetensors.SafetensorError, OSError, ValueError)
    with readable(path, errors), safetensors.safe_open(path, framework="numpy") as file:
        name = _choose(path, wanted, list(file.keys()), lambda name: tuple(file.get_slice(name).get_shape()))
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


def _safetensors_offset(file: BinaryIO, name: str) -> int:
    """Return where a tensor begins: the file is a length in 8 bytes, as much JSON, and then the elements."""
    (length,) = struct.unpack("<Q", file.read(8))
    header = parse_json(file.read(length))
    return 8 + length + int(header[name]["data_offsets"][0])


def _choose(path: str, wanted: str | None, names: Sequence[str], shape_of: Callable[[str], tuple[int, ...]]) -> str:
    """Return the name of the array that was asked for: without a name, the only matrix among the arrays."""
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
