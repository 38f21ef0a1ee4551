"""Where the tensors of a file lie, for a hash of each: safetensors, .npy, GGUF, zip (.npz, .pt), Parquet and HDF5.

Only headers are read, and nothing is unpickled. A file whose format is unknown, or whose header is damaged, has no
tensors: all its bytes are protected all the same. The tensors of HDF5 are its contiguous datasets, and need h5py; those
of Parquet are its column chunks, and need pyarrow.
"""

import struct
import tokenize
import zipfile
from collections.abc import Callable, Iterator
from os import PathLike, fspath
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from tsapps.apps.abft.files.gguf import gguf_tensors
from tsapps.apps.abft.files.manifest import Tensor
from tsapps.apps.abft.files.safetensors_header import tensors_in

__all__ = ["tensors_of"]

# Maximum length of a safetensors header in bytes, as in the library of that name.
_MOST_HEADER = 100_000_000
# What readers raise if a header is damaged or of an unknown version. An OSError of the disk comes again when all bytes
# are read.
_DAMAGED = (
    *(ValueError, TypeError, KeyError, IndexError, AttributeError, EOFError, RuntimeError, OverflowError, MemoryError),
    *(OSError, SyntaxError, struct.error, tokenize.TokenError, zipfile.BadZipFile),
)
# Length of a local file header of a zip file, and the position in it of the lengths of the name and the extra field.
_ZIP_HEADER, _ZIP_LENGTHS = 30, 26


def tensors_of(path: str | PathLike[str], n_bytes: int) -> dict[str, Tensor]:
    """Return the tensors of a file, by name, without hashes.

    Parameters
    ----------
    path : path-like
    n_bytes : int
        The size of the file.

    Returns
    -------
    dict of str to Tensor
        In the order of their offsets; they do not overlap.

    """
    reader = _READERS.get(Path(fspath(path)).suffix.lower())
    if reader is None:
        return {}
    try:
        with open(path, "rb") as file:
            found = dict(reader(file))
    except _DAMAGED:
        return {}
    ordered = dict(sorted(found.items(), key=lambda item: (item[1].begin, item[1].end)))
    end = 0
    for tensor in ordered.values():
        if not end <= tensor.begin <= tensor.end <= n_bytes or not all(
            0 <= one < 1 << 63 for one in tensor.shape or ()
        ):
            return {}
        end = tensor.end
    return ordered


def _safetensors(file: BinaryIO) -> Iterator[tuple[str, Tensor]]:
    (size,) = struct.unpack("<Q", file.read(8))
    if size <= _MOST_HEADER:
        header = struct.pack("<Q", size) + file.read(size)
        yield from tensors_in(header, file.seek(0, 2)).items()


def _npy(file: BinaryIO) -> Iterator[tuple[str, Tensor]]:
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    begin, end = file.tell(), file.seek(0, 2)
    if not dtype.hasobject:
        yield "array", Tensor(begin, end, dtype.str, tuple(shape))


def _zip(file: BinaryIO) -> Iterator[tuple[str, Tensor]]:
    """Yield the members of a zip file: .npy arrays of .npz, storages of .pt; their bytes as stored."""
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
    for member in members:
        file.seek(member.header_offset + _ZIP_LENGTHS)
        name, extra = struct.unpack("<HH", file.read(4))
        begin = member.header_offset + _ZIP_HEADER + name + extra
        if member.compress_size:
            yield member.filename, Tensor(begin, begin + member.compress_size)


def _parquet(file: BinaryIO) -> Iterator[tuple[str, Tensor]]:
    try:
        from pyarrow.lib import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError:
        return
    try:
        metadata = ParquetFile(file).metadata
    except (ArrowException, OSError):
        return
    for group in range(metadata.num_row_groups):
        for column in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(column)
            begin = chunk.dictionary_page_offset or chunk.data_page_offset
            name = f"{chunk.path_in_schema}/{group}"
            yield name, Tensor(begin, begin + chunk.total_compressed_size)


def _hdf5(file: BinaryIO) -> Iterator[tuple[str, Tensor]]:
    try:
        import h5py
    except ImportError:
        return
    found: dict[str, Tensor] = {}

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and item.chunks is None and (begin := item.id.get_offset()) is not None:
            found[name] = Tensor(begin, begin + item.id.get_storage_size(), item.dtype.str, tuple(item.shape))

    try:
        with h5py.File(file, "r") as content:
            content.visititems(visit)
    except OSError:
        return
    yield from found.items()


_READERS: dict[str, Callable[[BinaryIO], Iterator[tuple[str, Tensor]]]] = {
    ".safetensors": _safetensors,
    ".npy": _npy,
    ".gguf": gguf_tensors,
    **dict.fromkeys((".npz", ".pt", ".pth", ".ckpt", ".zip"), _zip),
    **dict.fromkeys((".parquet", ".pq"), _parquet),
    **dict.fromkeys((".h5", ".hdf5"), _hdf5),
}
