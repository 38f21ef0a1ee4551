"""Formats that are a header and the elements as they lie in memory: .npy, the .fbin family, the .fvecs family.

All of them are mapped into memory: opening reads the header alone, and a block reads its own pages.
"""

import io
import os
import struct
import warnings
from collections.abc import Iterator, Sequence
from tokenize import TokenError
from typing import IO, Literal

import numpy as np

from tsapps.errors import MatrixError
from tsapps.matrix.checks import check_dtype, check_shape
from tsapps.matrix.memory import HostMatrix

__all__ = ["BIN_TYPES", "VECS_TYPES", "check_size", "map_file", "open_bin", "open_npy", "open_vecs", "read_npy_header"]

# Element types by extension, little-endian. big-ann-benchmarks: https://big-ann-benchmarks.com/neurips21.html;
# TEXMEX: http://corpus-texmex.irisa.fr
BIN_TYPES = {".fbin": "<f4", ".f16bin": "<f2", ".u8bin": "u1", ".i8bin": "i1", ".ibin": "<i4"}
VECS_TYPES = {".fvecs": "<f4", ".bvecs": "u1", ".ivecs": "<i4"}

_VECS_ROWS_AT_ONCE = 1 << 16

# Of the .npy versions that hold plain numbers: how the header's length is written, and what parses it. NumPy refuses
# longer headers too, but reads them first.
_NPY_VERSIONS = {
    (1, 0): (struct.Struct("<H"), np.lib.format.read_array_header_1_0),
    (2, 0): (struct.Struct("<I"), np.lib.format.read_array_header_2_0),
}
_MOST_NPY_HEADER = 10_000

# What ast.literal_eval, tokenize and numpy.dtype raise for headers that are damaged.
_NPY_ERRORS = (
    LookupError,
    MemoryError,
    RecursionError,
    SyntaxError,
    TokenError,
    TypeError,
    ValueError,
)


def open_npy(path: str) -> HostMatrix:
    """Open NumPy's own format, in C or Fortran order and either byte order."""
    with open(path, "rb") as file:
        shape, order, dtype = read_npy_header(file, path)
        offset = file.tell()
    return map_file(path, offset, shape, dtype, order)


def open_bin(path: str) -> HostMatrix:
    """Open a file of big-ann-benchmarks: n and d as 32-bit integers, then the rows."""
    with open(path, "rb") as file:
        header = file.read(8)
    if len(header) < 8:
        raise MatrixError(
            f"{path}: is truncated: it has {len(header)} bytes, and its header alone takes 8: copy it again"
        )
    dtype = np.dtype(BIN_TYPES[os.path.splitext(path)[1].lower()])
    return map_file(path, 8, struct.unpack("<II", header), dtype)


def open_vecs(path: str) -> HostMatrix:
    """Open a file of TEXMEX: every row is d as a 32-bit integer, then d values."""
    with open(path, "rb") as file:
        header = file.read(4)
        size = os.fstat(file.fileno()).st_size
    if len(header) < 4:
        raise MatrixError(
            f"{path}: is truncated: it has {len(header)} bytes, and a row's header takes 4: copy it again"
        )
    (d,) = struct.unpack("<i", header)
    element = np.dtype(VECS_TYPES[os.path.splitext(path)[1].lower()])
    row_bytes = 4 + d * element.itemsize
    if d < 1 or row_bytes > size:
        raise MatrixError(
            f"{path}: row 0 says that it has {d} values, which a file of {size} bytes cannot hold: "
            f"it is truncated or of another format"
        )
    n = size // row_bytes
    content = np.memmap(path, np.uint8, "r").view(np.ndarray)
    row_headers = np.ndarray((n,), "<i4", content, 0, (row_bytes,))
    values = np.ndarray((n, d), element, content, 4, (row_bytes, element.itemsize))
    if size % row_bytes:
        for start in range(0, n, _VECS_ROWS_AT_ONCE):  # it may be a row of another d that makes the size odd
            found = row_headers[start : start + _VECS_ROWS_AT_ONCE]
            _check_row_headers(found, range(start, start + len(found)), d, path)
        raise MatrixError(
            f"{path}: is truncated: {size % row_bytes} bytes are left after {n} rows of {d} values: copy it again"
        )
    return VecsMatrix(values, row_headers, path)


class VecsMatrix(HostMatrix):
    """Rows that each carry their own d, which is checked as they are read."""

    def __init__(self, values: np.ndarray, row_headers: np.ndarray, name: str) -> None:
        super().__init__(values, name, file=name, offset=4)
        self._row_headers = row_headers

    def _blocks(self, rows: int) -> Iterator[tuple[int, np.ndarray]]:
        for start, block in super()._blocks(rows):
            numbers = range(start, start + len(block))
            _check_row_headers(self._row_headers[numbers.start : numbers.stop], numbers, self.shape[1], self.name)
            yield start, block

    def _rows(self, numbers: np.ndarray) -> np.ndarray:
        _check_row_headers(self._row_headers[numbers], numbers, self.shape[1], self.name)
        return super()._rows(numbers)


def _check_row_headers(found: np.ndarray, numbers: Sequence[int] | np.ndarray, d: int, name: str) -> None:
    """Raise `MatrixError` unless the rows with these `numbers`, whose headers are `found`, all have d values."""
    differing = np.flatnonzero(found != d)
    if len(differing):
        first = int(differing[0])
        raise MatrixError(
            f"{name}: row {int(numbers[first])} says that it has {found[first]} values, row 0 has {d}; "
            f"all rows (counted from 0) must be equally long: write it again"
        )


def read_npy_header(file: IO[bytes], name: str) -> tuple[tuple[int, ...], Literal["C", "F"], np.dtype]:
    """Read the header of a .npy file or .npz member, leaving `file` at the first element.

    Returns
    -------
    shape : tuple of int
    order : {"C", "F"}
    dtype : numpy.dtype
        In the file's byte order.

    Raises
    ------
    MatrixError
        If it is no such header. What it says is not judged here.
    """
    try:
        version = np.lib.format.read_magic(file)
        if version not in _NPY_VERSIONS:
            # Version 3 differs only in allowing any letter in the names of record fields.
            raise MatrixError(
                f"{name}: is .npy version {version[0]}.{version[1]}, used for records; expected plain numbers: "
                f"save the fields as columns"
            )
        length, parse = _NPY_VERSIONS[version]
        size = file.read(length.size)
        if len(size) == length.size and length.unpack(size)[0] > _MOST_NPY_HEADER:
            raise ValueError(f"a header of {length.unpack(size)[0]} bytes, expected at most {_MOST_NPY_HEADER}")
        text = file.read(length.unpack(size)[0]) if len(size) == length.size else b""
        with warnings.catch_warnings():  # of Python's compiler, of text that is then refused
            warnings.simplefilter("ignore", SyntaxWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            shape, fortran, dtype = parse(io.BytesIO(size + text))
    except MatrixError:
        raise
    except _NPY_ERRORS as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise MatrixError(f"{name}: is no valid .npy data ({reason}): write it again with numpy.save") from error
    return shape, "F" if fortran else "C", dtype


def map_file(
    path: str, offset: int, shape: tuple[int, ...], dtype: np.dtype, order: Literal["C", "F"] = "C"
) -> HostMatrix:
    """Map the elements of a file that start at `offset` and are its last bytes."""
    check_dtype(dtype, path)  # before the size, which tells nothing for Python objects
    check_shape(shape, path)
    check_size(path, os.path.getsize(path), offset, shape, dtype)
    elements = np.memmap(path, dtype, "r", offset, (shape[0], shape[1]), order)
    return HostMatrix(elements.view(np.ndarray), path, file=path, offset=offset)


def check_size(name: str, found: int, header: int, shape: tuple[int, ...], dtype: np.dtype) -> None:
    """Raise `MatrixError` unless `found` bytes are a header and the elements of `shape`, no less and no more."""
    # Python's integers: n·d of a nonsensical header overflows no machine word here.
    expected = header + shape[0] * shape[1] * dtype.itemsize
    claim = f"its header says {shape[0]} × {shape[1]} {dtype}, {expected} bytes in all, and it has {found}"
    if found < expected:
        raise MatrixError(f"{name}: is truncated: {claim}: copy it again, or check its format")
    if found > expected:
        raise MatrixError(
            f"{name}: has {found - expected} bytes too many: {claim}: write it again, or check its format"
        )
