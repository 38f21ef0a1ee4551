"""Matrix formats for fuzzing: how to write a valid file, and the expected content of an accepted one."""

import ast
import io
import json
import struct
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tsapps.errors import MatrixError, UsageError
from tsapps.matrix import open_matrix

__all__ = ["MATRICES", "MatrixFormat"]

_SHAPE = 40, 3
# Larger matrices are only streamed.
_MOST_BYTES = 1 << 24


def _data(dtype: str) -> np.ndarray:
    return (100 * np.random.default_rng(5).standard_normal(_SHAPE)).astype(dtype)


@dataclass(frozen=True)
class MatrixFormat:
    """A matrix format.

    Attributes
    ----------
    suffix : str
    write : callable
        Writes an array to a path.
    expected : callable
        Reads a file independently: takes the bytes of the valid file and of the damaged one; returns an array, or None
        if nothing can be said.
    split, join : callable
        Split the file into the part to mutate and the rest, and join them with corrected lengths and checksums.
    dtype : str
    library : str
        Library that the format needs.
    """

    suffix: str
    write: Callable[[Path, np.ndarray], None]
    expected: Callable[[bytes, bytes], np.ndarray | None]
    split: Callable[[bytes], tuple[bytes, Any]] = lambda content: (content, None)
    join: Callable[[bytes, Any], bytes] = lambda part, _: part
    dtype: str = "<f4"
    library: str = ""

    refusals = (MatrixError, UsageError)

    def make(self, directory: Path) -> bytes:
        """Return the bytes of a valid file."""
        path = directory / f"valid{self.suffix}"
        self.write(path, _data(self.dtype))
        return path.read_bytes()

    def place(self, directory: Path, content: bytes) -> Path:
        """Write a damaged file and return its path."""
        path = directory / f"x{self.suffix}"
        path.write_bytes(content)
        return path

    def examine(self, path: Path, valid: bytes, content: bytes) -> str:
        """Read a file in every way; return an error description, or an empty string."""
        matrix = open_matrix(path)
        n, d = matrix.shape
        small, delivered, rows = matrix.nbytes <= _MOST_BYTES, [], 0
        for start, block in matrix.blocks(7 if small else 1 << 16):
            if start != rows or block.shape[1:] != (d,) or block.dtype != matrix.dtype:
                return f"block {start}, {block.shape}, {block.dtype} of {n} × {d} {matrix.dtype}"
            rows += len(block)
            if small:
                delivered.append(np.array(block))
        if rows != n:
            return f"{rows} rows of {n}"
        if not small:
            return ""
        whole = np.concatenate(delivered)
        picked = matrix.rows([n - 1, 0, n // 2])
        if picked.tobytes() != whole[[n - 1, 0, n // 2]].tobytes():
            return "rows that are picked are others"
        with suppress(MatrixError):  # NaN
            if matrix.read().tobytes() != whole.tobytes():
                return "the whole is another"
        right = self.expected(valid, content)
        if right is None:
            return ""
        if right.shape != whole.shape:
            return f"{n} × {d} where {right.shape} was expected"
        same = right.astype(whole.dtype).tobytes() == whole.tobytes()
        return "" if same else "other values than the file's bytes say"


def _npy(path: Path, array: np.ndarray) -> None:
    with path.open("wb") as file:
        np.save(file, array)


def _npy_header_split(content: bytes) -> tuple[bytes, Any]:
    length = struct.unpack_from("<H", content, 8)[0]
    return content[10 : 10 + length], content[10 + length :]


def _npy_header_join(part: bytes, rest: Any) -> bytes:
    part = part[:0xFFFF]
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(part)) + part + rest


def _expected_npy(valid: bytes, content: bytes) -> np.ndarray | None:
    size, kind = (2, "<H") if content[6] == 1 else (4, "<I")
    begin = 8 + size + struct.unpack_from(kind, content, 8)[0]
    header = ast.literal_eval(content[8 + size : begin].decode("latin1").strip())
    elements = np.frombuffer(content[begin:], header["descr"])
    return elements.reshape(header["shape"], order="F" if header["fortran_order"] else "C")


def _npz(compress: bool) -> Callable[[Path, np.ndarray], None]:
    def write(path: Path, array: np.ndarray) -> None:
        (np.savez_compressed if compress else np.savez)(path, X=array)

    return write


def _inner_split(content: bytes) -> tuple[bytes, Any]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return archive.read("X.npy"), None


def _inner_join(part: bytes, _: Any) -> bytes:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("X.npy", part)
    return whole.getvalue()


def _expected_inner(valid: bytes, content: bytes) -> np.ndarray | None:
    return _expected_npy(b"", _inner_split(content)[0])


def _expected_valid_npz(valid: bytes, content: bytes) -> np.ndarray | None:
    return _expected_inner(b"", valid)  # the CRC covers the whole content


def _bin(path: Path, array: np.ndarray) -> None:
    path.write_bytes(struct.pack("<II", *array.shape) + array.tobytes())


def _expected_bin(dtype: str) -> Callable[[bytes, bytes], np.ndarray]:
    return lambda valid, content: np.frombuffer(content[8:], dtype).reshape(struct.unpack_from("<II", content))


def _vecs(path: Path, array: np.ndarray) -> None:
    path.write_bytes(b"".join(struct.pack("<i", array.shape[1]) + row.tobytes() for row in array))


def _expected_vecs(dtype: str) -> Callable[[bytes, bytes], np.ndarray | None]:
    def expected(valid: bytes, content: bytes) -> np.ndarray | None:
        rows = []
        while content:
            (d,) = struct.unpack_from("<i", content)
            rows.append(np.frombuffer(content, dtype, d, 4))
            content = content[4 + d * np.dtype(dtype).itemsize :]
        return np.stack(rows)

    return expected


def _text(delimiter: str, names: str) -> Callable[[Path, np.ndarray], None]:
    def write(path: Path, array: np.ndarray) -> None:
        lines = [delimiter.join(map(repr, row)) for row in array.tolist()]
        path.write_text("\n".join([*([names] if names else []), *lines, ""]))

    return write


def _expected_text(delimiter: str | None) -> Callable[[bytes, bytes], np.ndarray | None]:
    def expected(valid: bytes, content: bytes) -> np.ndarray | None:
        text = content.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
        lines = [line for line in text.split("\n") if line.strip() and not line.startswith("#")]
        if '"' in text or any(mark in lines[min(1, len(lines) - 1)] for mark in "\t;," if mark != delimiter):
            return None
        rows = []
        for number, line in enumerate(lines):
            cells = [cell.strip() for cell in (line.split(delimiter) if delimiter else line.split())]
            try:
                rows.append([float(cell) for cell in cells])
            except ValueError:
                if number or any(_is_float(cell) for cell in cells):
                    return np.empty((0, 0))  # a cell that is not a number: must be rejected
        return np.array(rows)

    return expected


def _is_float(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _safetensors(path: Path, array: np.ndarray) -> None:
    from safetensors.numpy import save_file

    save_file({"X": np.ascontiguousarray(array)}, path)


def _bf16(path: Path, array: np.ndarray) -> None:
    import ml_dtypes

    _safetensors(path, array.astype(ml_dtypes.bfloat16))


def _safetensors_split(content: bytes) -> tuple[bytes, Any]:
    length = struct.unpack_from("<Q", content)[0]
    return content[8 : 8 + length], content[8 + length :]


def _safetensors_join(part: bytes, rest: Any) -> bytes:
    return struct.pack("<Q", len(part)) + part + rest


def _expected_safetensors(valid: bytes, content: bytes) -> np.ndarray | None:
    import ml_dtypes

    header, data = _safetensors_split(content)
    tensors = {name: one for name, one in json.loads(header).items() if name != "__metadata__"}
    if len(tensors) != 1:
        return None
    ((_, one),) = tensors.items()
    types = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": ml_dtypes.bfloat16}
    types |= {f"{sign}{bits}": f"<{sign.lower()}{bits // 8}" for sign in "IU" for bits in (8, 16, 32, 64)}
    begin, end = one["data_offsets"]
    return np.frombuffer(data[begin:end], types[one["dtype"]]).reshape(one["shape"])


def _parquet(path: Path, array: np.ndarray, **options: Any) -> None:
    import pandas

    frame = pandas.DataFrame(array, columns=["a", "b", "c"])
    frame.index = [f"row {number}" for number in range(len(frame))]
    frame.to_parquet(path, row_group_size=16, write_page_checksum=True, **options)


def _plain_parquet(path: Path, array: np.ndarray) -> None:
    _parquet(path, array, compression=None, use_dictionary=False)


def _footer_split(content: bytes) -> tuple[bytes, Any]:
    (length,) = struct.unpack_from("<I", content, len(content) - 8)
    return content[-8 - length : -8], content[: -8 - length]


def _footer_join(part: bytes, rest: Any) -> bytes:
    return rest + part + struct.pack("<I", len(part)) + b"PAR1"


def _expected_parquet(valid: bytes, content: bytes) -> np.ndarray | None:
    (length,) = struct.unpack_from("<I", valid, len(valid) - 8)
    return _data("<f4") if content[-8 - length :] == valid[-8 - length :] and len(content) == len(valid) else None


def _hdf5(**options: Any) -> Callable[[Path, np.ndarray], None]:
    def write(path: Path, array: np.ndarray) -> None:
        import h5py

        with h5py.File(path, "w", libver=options.get("libver", "earliest")) as file:
            group = file.create_group("group")
            group.attrs["text"] = "what it is"
            group.create_dataset("X", data=array, **{name: one for name, one in options.items() if name != "libver"})
            file["labels"] = np.arange(len(array))
            file["link"] = h5py.SoftLink("/group/X")

    return write


@cache
def _hdf5_storage(valid: bytes) -> tuple[bool, list[tuple[int, int]]]:
    """Return whether a file's dataset is chunked, and the offset and size of each piece of its elements."""
    import h5py

    with h5py.File(io.BytesIO(valid)) as file:
        dataset = file["group/X"]
        if not dataset.chunks:
            return False, [(dataset.id.get_offset(), dataset.id.get_storage_size())]
        chunks = [dataset.id.get_chunk_info(number) for number in range(dataset.id.get_num_chunks())]
        return True, [(chunk.byte_offset, chunk.size) for chunk in chunks]


def _expected_hdf5(valid: bytes, content: bytes) -> np.ndarray | None:
    """Return the content of the bytes if only elements were damaged; impossible for compressed or checked elements."""
    chunked, places = _hdf5_storage(valid)
    if len(valid) != len(content):
        return None
    elements = np.zeros(len(valid), bool)
    for begin, size in places:
        elements[begin : begin + size] = True
    mismatch = np.frombuffer(valid, np.uint8) != np.frombuffer(content, np.uint8)
    if (mismatch & ~elements).any():
        return None
    if chunked:
        return _data("<f4")
    return np.frombuffer(content[places[0][0] :][: places[0][1]], "<f4").reshape(_SHAPE)


_NPZ = {"suffix": ".npz"}
_PARQUET = {"suffix": ".parquet", "expected": _expected_parquet, "library": "pyarrow"}
_HDF5 = {"suffix": ".h5", "expected": _expected_hdf5, "library": "h5py"}
_TENSORS = {"suffix": ".safetensors", "expected": _expected_safetensors, "library": "safetensors"}

MATRICES: dict[str, MatrixFormat] = {
    "npy": MatrixFormat(".npy", _npy, _expected_npy),
    "npy-fortran": MatrixFormat(".npy", lambda path, x: _npy(path, np.asfortranarray(x)), _expected_npy, dtype=">f8"),
    "npy-header": MatrixFormat(".npy", _npy, _expected_npy, _npy_header_split, _npy_header_join),
    "npz": MatrixFormat(write=_npz(False), expected=_expected_valid_npz, **_NPZ),
    "npz-compressed": MatrixFormat(write=_npz(True), expected=_expected_valid_npz, **_NPZ),
    "npz-inner": MatrixFormat(".npz", _npz(True), _expected_inner, _inner_split, _inner_join),
    "fbin": MatrixFormat(".fbin", _bin, _expected_bin("<f4")),
    "u8bin": MatrixFormat(".u8bin", _bin, _expected_bin("u1"), dtype="u1"),
    "fvecs": MatrixFormat(".fvecs", _vecs, _expected_vecs("<f4")),
    "bvecs": MatrixFormat(".bvecs", _vecs, _expected_vecs("u1"), dtype="u1"),
    "csv": MatrixFormat(".csv", _text(",", "a,b,c"), _expected_text(","), dtype="<f8"),
    "tsv": MatrixFormat(".tsv", _text("\t", ""), _expected_text("\t"), dtype="<f8"),
    "txt": MatrixFormat(".txt", _text(" ", "# text"), _expected_text(None), dtype="<f8"),
    "safetensors": MatrixFormat(write=_safetensors, **_TENSORS),
    "safetensors-bf16": MatrixFormat(write=_bf16, **_TENSORS),
    "safetensors-header": MatrixFormat(
        write=_safetensors, split=_safetensors_split, join=_safetensors_join, **_TENSORS
    ),
    "parquet": MatrixFormat(write=_parquet, **_PARQUET),
    "parquet-plain": MatrixFormat(write=_plain_parquet, **_PARQUET),
    "parquet-footer": MatrixFormat(write=_parquet, split=_footer_split, join=_footer_join, **_PARQUET),
    "hdf5": MatrixFormat(write=_hdf5(), **_HDF5),
    "hdf5-latest": MatrixFormat(write=_hdf5(libver="latest"), **_HDF5),
    "hdf5-chunked": MatrixFormat(write=_hdf5(chunks=(16, 2), compression="gzip", shuffle=True), **_HDF5),
    "hdf5-checked": MatrixFormat(write=_hdf5(chunks=(16, 3), fletcher32=True, libver="latest"), **_HDF5),
}
