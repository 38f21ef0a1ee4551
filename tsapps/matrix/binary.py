"""Binary formats that are a header and the raw elements: .npy, the .fbin family, the .fvecs family.

Opening a file reads only its header; reading a block reads only the bytes of that block.
"""

import io
import os
import struct
import warnings
from collections.abc import Sequence
from tokenize import TokenError
from typing import IO, Literal

import numpy as np

from tsapps.errors import MatrixError
from tsapps.matrix.checks import check_dtype, check_shape
from tsapps.matrix.layout import Stored
from tsapps.matrix.stored import StoredMatrix

__all__ = [
    "BIN_TYPES",
    "VECS_TYPES",
    "check_size",
    "open_bin",
    "open_elements",
    "open_npy",
    "open_vecs",
    "read_npy_header",
]

# Element types by extension, little-endian. big-ann-benchmarks: https://big-ann-benchmarks.com/neurips21.html;
# TEXMEX: http://corpus-texmex.irisa.fr
BIN_TYPES = {".fbin": "<f4", ".f16bin": "<f2", ".u8bin": "u1", ".i8bin": "i1", ".ibin": "<i4"}
VECS_TYPES = {".fvecs": "<f4", ".bvecs": "u1", ".ivecs": "<i4"}

# Rows per block while a file of the .fvecs family with an impossible size is searched for a row with another d.
_VECS_ROWS_AT_ONCE = 1 << 16

# Supported .npy versions: the struct format of the header's length, and the header's parser.
_NPY_VERSIONS = {
    (1, 0): (struct.Struct("<H"), np.lib.format.read_array_header_1_0),
    (2, 0): (struct.Struct("<I"), np.lib.format.read_array_header_2_0),
}
# Maximum bytes of a .npy header. NumPy has the same limit, but applies it only after it has read the header.
_MOST_NPY_HEADER = 10_000

# Exceptions that ast.literal_eval, tokenize and numpy.dtype raise for damaged headers.
_NPY_ERRORS = (
    LookupError,
    MemoryError,
    RecursionError,
    SyntaxError,
    TokenError,
    TypeError,
    ValueError,
)


def open_npy(path: str) -> StoredMatrix:
    """Open a .npy file, in C or Fortran order and either byte order."""
    with open(path, "rb") as file:
        shape, order, dtype = read_npy_header(file, path)
        offset = file.tell()
    return open_elements(path, offset, shape, dtype, order)


def open_bin(path: str) -> StoredMatrix:
    """Open a file in the big-ann-benchmarks format: n and d as 32-bit integers, then the rows."""
    with open(path, "rb") as file:
        header = file.read(8)
    if len(header) < 8:
        raise MatrixError(
            f"{path}: is truncated: it has {len(header)} bytes, and its header alone takes 8: copy it again"
        )
    dtype = np.dtype(BIN_TYPES[os.path.splitext(path)[1].lower()])
    return open_elements(path, 8, struct.unpack("<II", header), dtype)


def open_vecs(path: str) -> StoredMatrix:
    """Open a file in the TEXMEX format: each row is d as a 32-bit integer, then d values."""
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
    matrix = VecsMatrix(Stored(path, 4, (n, d), (row_bytes, element.itemsize), element), path)
    if size % row_bytes:
        for _ in matrix.blocks(_VECS_ROWS_AT_ONCE):  # raises the better error if a row has another d
            pass
        raise MatrixError(
            f"{path}: is truncated: {size % row_bytes} bytes are left after {n} rows of {d} values: copy it again"
        )
    return matrix


class VecsMatrix(StoredMatrix):
    """A matrix whose file stores d in front of every row; every read checks that all rows have the same d."""

    def _read_rows(self, file: int, start: int, out: np.ndarray) -> None:
        row_bytes = self.stored.strides[0]
        content = np.empty((len(out), row_bytes), np.uint8)
        self._fill(file, start * row_bytes, content)
        numbers = range(start, start + len(out))
        _check_row_headers(content[:, :4].copy().view("<i4")[:, 0], numbers, self.shape[1], self.name)
        out.view(np.uint8)[:] = content[:, 4:]
        self._to_native(out)

    def _read_piece(self, file: int, row: int, column: int, out: np.ndarray) -> None:
        header = np.empty((1,), "<i4")
        self._fill(file, row * self.stored.strides[0], header)
        _check_row_headers(header, range(row, row + 1), self.shape[1], self.name)
        super()._read_piece(file, row, column, out)


def _check_row_headers(found: np.ndarray, numbers: Sequence[int] | np.ndarray, d: int, name: str) -> None:
    """Raise `MatrixError` unless all row headers in `found` are d; `numbers` are the indices of these rows."""
    differing = np.flatnonzero(found != d)
    if len(differing):
        first = int(differing[0])
        raise MatrixError(
            f"{name}: row {int(numbers[first])} says that it has {found[first]} values, row 0 has {d}; "
            f"all rows (counted from 0) must be equally long: write it again"
        )


def read_npy_header(file: IO[bytes], name: str) -> tuple[tuple[int, ...], Literal["C", "F"], np.dtype]:
    """Read the header of a .npy file or .npz member; leave `file` positioned at the first element.

    Returns
    -------
    shape : tuple of int
    order : {"C", "F"}
    dtype : numpy.dtype
        In the file's byte order.

    Raises
    ------
    MatrixError
        If the file does not begin with a valid .npy header. Shape and dtype are not checked here.
    """
    try:
        version = np.lib.format.read_magic(file)
        if version not in _NPY_VERSIONS:
            # Version 3 differs from version 2 only in that names of record fields may be any Unicode text.
            raise MatrixError(
                f"{name}: is .npy version {version[0]}.{version[1]}, used for records; expected plain numbers: "
                f"save the fields as columns"
            )
        length, parse = _NPY_VERSIONS[version]
        size = file.read(length.size)
        if len(size) == length.size and length.unpack(size)[0] > _MOST_NPY_HEADER:
            raise ValueError(f"a header of {length.unpack(size)[0]} bytes, expected at most {_MOST_NPY_HEADER}")
        text = file.read(length.unpack(size)[0]) if len(size) == length.size else b""
        with warnings.catch_warnings():  # SyntaxWarning for text that is rejected anyway
            warnings.simplefilter("ignore", SyntaxWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            shape, fortran, dtype = parse(io.BytesIO(size + text))
        if any(type(count) is not int for count in shape):  # NumPy's parser accepts True as an integer
            raise ValueError(f"the shape {shape}, expected whole numbers")
    except MatrixError:
        raise
    except _NPY_ERRORS as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise MatrixError(f"{name}: is not valid .npy data ({reason}): write it again with numpy.save") from error
    return shape, "F" if fortran else "C", dtype


def open_elements(
    path: str, offset: int, shape: tuple[int, ...], dtype: np.dtype, order: Literal["C", "F"] = "C"
) -> StoredMatrix:
    """Open a matrix whose elements fill the file from byte `offset` to its end."""
    check_dtype(dtype, path)  # before the size check, which has no meaning for Python objects
    check_shape(shape, path)
    check_size(path, os.path.getsize(path), offset, shape, dtype)
    n, d = shape
    strides = (d * dtype.itemsize, dtype.itemsize) if order == "C" else (dtype.itemsize, n * dtype.itemsize)
    return StoredMatrix(Stored(path, offset, (n, d), strides, dtype), path)


def check_size(name: str, found: int, header: int, shape: tuple[int, ...], dtype: np.dtype) -> None:
    """Raise `MatrixError` unless `found` bytes are exactly the header and the elements of `shape`."""
    # Python integers: n·d of a corrupted header cannot overflow.
    expected = header + shape[0] * shape[1] * dtype.itemsize
    claim = f"its header says {shape[0]} × {shape[1]} {dtype}, {expected} bytes in all, and it has {found}"
    if found < expected:
        raise MatrixError(f"{name}: is truncated: {claim}: copy it again, or check its format")
    if found > expected:
        raise MatrixError(
            f"{name}: has {found - expected} bytes too many: {claim}: write it again, or check its format"
        )
