"""Writers of every format, independent of the readers under test."""

import struct
from pathlib import Path

import numpy as np
import pytest


def _npz(path, array):
    np.savez(path, X=array)


def _npz_compressed(path, array):
    np.savez_compressed(path, X=array)


def _bin(path, array):
    path.write_bytes(struct.pack("<II", *array.shape) + array.tobytes("C"))


def _vecs(path, array):
    path.write_bytes(b"".join(struct.pack("<i", array.shape[1]) + row.tobytes() for row in array))


def _csv(path, array):
    # repr gives the shortest text that reads back as the same number.
    path.write_text("".join(",".join(repr(value) for value in row) + "\n" for row in array.tolist()))


def _parquet(path, array):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = arrow.table({f"feature {j}": np.ascontiguousarray(array[:, j]) for j in range(array.shape[1])})
    parquet.write_table(table, path, row_group_size=4)


def _hdf5(path, array):
    with pytest.importorskip("h5py").File(path, "w") as file:
        file["X"] = array


def _hdf5_chunked(path, array):
    with pytest.importorskip("h5py").File(path, "w") as file:
        file.create_dataset("X", data=array, chunks=(min(3, array.shape[0]), 1), compression="gzip")


def _safetensors(path, array):
    pytest.importorskip("safetensors.numpy").save_file({"X": np.ascontiguousarray(array)}, path)


WRITERS = {
    "npy": (".npy", np.save),
    "npz": (".npz", _npz),
    "npz-compressed": (".npz", _npz_compressed),
    "fbin": (".fbin", _bin),
    "f16bin": (".f16bin", _bin),
    "u8bin": (".u8bin", _bin),
    "i8bin": (".i8bin", _bin),
    "ibin": (".ibin", _bin),
    "fvecs": (".fvecs", _vecs),
    "bvecs": (".bvecs", _vecs),
    "ivecs": (".ivecs", _vecs),
    "csv": (".csv", _csv),
    "parquet": (".parquet", _parquet),
    "hdf5": (".h5", _hdf5),
    "hdf5-chunked": (".hdf5", _hdf5_chunked),
    "safetensors": (".safetensors", _safetensors),
}


@pytest.fixture
def write(tmp_path):
    """Write an array in a format of `WRITERS`; return the path."""

    def write(kind: str, array: np.ndarray) -> Path:
        suffix, writer = WRITERS[kind]
        path = tmp_path / f"data{suffix}"
        writer(path, array)
        return path

    return write
