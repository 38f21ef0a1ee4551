"""Small files that announce or decompress to more than memory: bounded memory, or rejection before reading."""

import io
import json
import os
import struct
import sys
import tempfile
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from exhaustive import property_test
from hypothesis import strategies as st
from peak_memory import peak_of

from tsapps.apps.abft.at_rest.verify import encode
from tsapps.errors import MatrixError
from tsapps.kernels.system.strict_json import JsonError, read_json
from tsapps.matrix import checks, containers, open_matrix, text

MIB = 1 << 20

measured = pytest.mark.skipif(sys.platform != "linux", reason="memory measurement needs Linux")


def npy_header(shape, descr="<f4", fortran=False):
    file = io.BytesIO()
    header = {"descr": descr, "fortran_order": fortran, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue()


def zeros_npz(path, header, size):
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("X.npy", "w", force_zip64=True) as file,
    ):
        file.write(header)
        for _ in range(size // MIB):
            file.write(bytes(MIB))


def header_of_2_gib(directory):
    zeros_npz(directory / "x.npz", b"\x93NUMPY\x02\x00" + struct.pack("<I", (1 << 31) - 1), 64 * MIB)


def one_row_npz(directory):
    zeros_npz(directory / "x.npz", npy_header((1, 1 << 25)), 128 * MIB)


def one_column_in_fortran_order_npz(directory):
    zeros_npz(directory / "x.npz", npy_header((1 << 25, 1), fortran=True), 128 * MIB)


def one_row_h5(directory):
    with pytest.importorskip("h5py").File(directory / "x.h5", "w") as file:
        X = file.create_dataset("X", (1, 1 << 27), "u1", chunks=(1, MIB), compression="gzip", compression_opts=1)
        for start in range(0, 1 << 27, MIB):
            X[:, start : start + MIB] = 0


def chunk_that_expands_h5(directory):
    """Write 96 bytes of elements, stored as 64 KB that decompress to 64 MiB."""
    with pytest.importorskip("h5py").File(directory / "x.h5", "w") as file:
        X = file.create_dataset("X", (4, 3), "f8", chunks=(4, 3), compression="gzip")
        X.id.write_direct_chunk((0, 0), zlib.compress(bytes(64 * MIB), 1))


def one_row_group_parquet(directory):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    column = np.random.default_rng(0).standard_normal(1 << 23)
    parquet.write_table(
        arrow.table({"a": column}), directory / "x.parquet", row_group_size=len(column), use_dictionary=False
    )


def long_header_safetensors(directory):
    pytest.importorskip("safetensors")
    header = json.dumps({"__metadata__": {str(number): "x" * 90_000 for number in range(200)}}).encode()
    (directory / "x.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)


def endless_line_csv(directory):
    (directory / "x.csv").write_bytes(b"1,2\n")
    os.truncate(directory / "x.csv", 512 * MIB)


ENCODE = "encode(open_matrix(name), code='exact')"
# Libraries of formats, whose memory does not count.
LIBRARIES = {
    ".h5": "import h5py",
    ".parquet": "import pyarrow.parquet",
    ".safetensors": "import safetensors",
}
# File, operation, expected error, and memory limit.
BOMBS = [
    (header_of_2_gib, ENCODE, "MatrixError", 48 * MIB),
    (one_row_npz, ENCODE, None, 96 * MIB),
    (one_column_in_fortran_order_npz, ENCODE, None, 96 * MIB),
    (one_row_h5, ENCODE, None, 96 * MIB),
    (chunk_that_expands_h5, ENCODE, "MatrixError", 48 * MIB),
    (one_row_group_parquet, ENCODE, None, 56 * MIB),
    (long_header_safetensors, ENCODE, "MatrixError", 16 * MIB),
    (endless_line_csv, ENCODE, "MatrixError", 96 * MIB),
]


@measured
@pytest.mark.parametrize(("make", "work", "error", "most"), BOMBS, ids=lambda value: getattr(value, "__name__", ""))
def test_peak(tmp_path, make, work, error, most):
    make(tmp_path)
    (name,) = os.listdir(tmp_path)
    setup = f"""
import numpy as np
from tsapps.apps.abft.at_rest.verify import encode
from tsapps.matrix import open_matrix
{LIBRARIES.get(os.path.splitext(name)[1], "")}
encode(np.ones((3000, 4), np.float32))
name = {name!r}
"""
    peak, found, _ = peak_of(setup, work, tmp_path)
    assert (found and found[0]) == error
    assert found is None or name in found[1]
    assert peak < most


@property_test(
    40,
    1000,
    st.integers(1, 40),
    st.integers(1, 9),
    st.sampled_from(["<f4", ">f8", "u1", "<i2"]),
    st.sampled_from("CF"),
    st.booleans(),
    st.integers(1, 50),
    st.integers(0, 4000),
)
def test_npz_of_any_order_in_any_memory(n, d, dtype, order, compressed, rows, available):
    X = np.asarray(np.arange(n * d).reshape(n, d), dtype, order=order)
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "x.npz"
        (np.savez_compressed if compressed else np.savez)(path, X)
        patch.setattr(containers, "available_host_memory", lambda: available)
        patch.setattr(containers, "_PIECE_BYTES", 13 * X.itemsize)
        matrix = open_matrix(path)
        blocks = list(matrix.blocks(rows))
        assert [start for start, _ in blocks] == list(np.cumsum([0, *(len(block) for _, block in blocks)])[:-1])
        assert all(len(block) <= rows for _, block in blocks)
        np.testing.assert_array_equal(np.concatenate([block for _, block in blocks]), X)
        pieces = list(matrix.pieces(4))
        assert [(row, column) for row, column, _ in pieces] == [(i, j) for i in range(n) for j in range(0, d, 4)]
        np.testing.assert_array_equal(np.concatenate([piece.ravel() for *_, piece in pieces]), X.ravel())


@measured
def test_fortran_order_is_read_in_several_passes(tmp_path):
    zeros_npz(tmp_path / "x.npz", npy_header((2048, 8192), fortran=True), 64 * MIB)
    setup = """
from tsapps.matrix import containers, open_matrix
containers.available_host_memory = lambda: 64 << 20
"""
    peak, error, rows = peak_of(setup, "result = sum(len(b) for _, b in open_matrix('x.npz').blocks(64))", tmp_path)
    assert (error, rows) == (None, 2048)
    assert peak < 48 * MIB


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_member_longer_than_announced(tmp_path, method):
    """The archive's directory and the header agree on 10 rows, but the stream has 4,000."""
    content = npy_header((10, 3)) + np.arange(12_000, dtype="<f4").tobytes()
    announced = content[: len(npy_header((10, 3))) + 120]
    path = tmp_path / "x.npz"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("X.npy", content)
    forged = path.read_bytes().replace(struct.pack("<I", zlib.crc32(content)), struct.pack("<I", zlib.crc32(announced)))
    # Only the second size field of an entry; without compression, both sizes are equal.
    size, claim = struct.pack("<I", len(content)), struct.pack("<I", len(announced))
    for place in (forged.index(b"PK\x03\x04") + 22, forged.index(b"PK\x01\x02") + 24):
        assert forged[place : place + 4] == size
        forged = forged[:place] + claim + forged[place + 4 :]
    path.write_bytes(forged)
    matrix = open_matrix(path)
    with pytest.raises(MatrixError, match=r"Bad CRC-32|holds more than its header says"):
        list(matrix.blocks(4))
    with pytest.raises(MatrixError, match=r"Bad CRC-32|holds more than its header says"):
        matrix.rows([9])
    with pytest.raises(MatrixError, match=r"Bad CRC-32|holds more than its header says"):
        encode(matrix)


def test_a_chunk_larger_than_memory(tmp_path, monkeypatch):
    with pytest.importorskip("h5py").File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("X", data=np.zeros((1000, 100)), chunks=(1000, 100), compression="gzip")
    monkeypatch.setattr(checks, "available_host_memory", lambda: 1_599_999)
    with pytest.raises(MemoryError, match=r"x\.h5:/X: a chunk takes 1,600,000 bytes of memory, and 1,599,999 are"):
        open_matrix(tmp_path / "x.h5")
    monkeypatch.setattr(checks, "available_host_memory", lambda: 1_600_000)
    open_matrix(tmp_path / "x.h5")


@measured
def test_rows_of_chunks_of_all_rows(tmp_path):
    """HDF5 reads pieces of some MiB, not the whole dataset."""
    with pytest.importorskip("h5py").File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("X", data=np.full((1 << 14, 1 << 13), 7, np.uint8), chunks=(1 << 14, 64))
    setup = "import h5py\nfrom tsapps.matrix import open_matrix"
    peak, error, found = peak_of(setup, "result = int(open_matrix('x.h5').rows([5, 9]).sum())", tmp_path)
    assert (error, found) == (None, 7 << 14)
    assert peak < 96 * MIB


@pytest.mark.parametrize("work", ["read", "blocks"])
@pytest.mark.parametrize("name", ["x.npz", "x.h5"])
def test_blocks_larger_than_memory(tmp_path, monkeypatch, work, name):
    X = np.zeros((100, 10))
    if name == "x.npz":
        np.savez(tmp_path / name, X)
    else:
        with pytest.importorskip("h5py").File(tmp_path / name, "w") as file:
            file["X"] = X
    matrix = open_matrix(tmp_path / name)
    monkeypatch.setattr(checks, "available_host_memory", lambda: 7999)
    with pytest.raises(MemoryError, match=rf"{name}.* takes 8,000 bytes of memory, and 7,999 are available"):
        matrix.read() if work == "read" else next(matrix.blocks(100))
    assert next(matrix.blocks(99))[1].shape == (99, 10)


def test_float_checksums_larger_than_memory(monkeypatch):
    """For a matrix of one row, the checksums are larger than the matrix."""
    X = np.zeros((1, 10_000), np.float32)
    monkeypatch.setattr("tsapps.apps.abft.at_rest.verify.available_host_memory", lambda: 100_000)
    with pytest.raises(MemoryError, match="its checksums take 160,"):
        encode(X, code="float")
    encode(X, code="exact")


def test_blocks_of_long_lines_have_fewer_lines(tmp_path, monkeypatch):
    X = np.arange(60.0).reshape(20, 3)
    lines = [", ".join(map(str, row)) + " " * (100 * (number % 3)) for number, row in enumerate(X)]
    (tmp_path / "x.csv").write_text("\n".join(lines))
    monkeypatch.setattr(text, "_MOST_BLOCK", 200)
    blocks = list(open_matrix(tmp_path / "x.csv").blocks(20))
    assert len(blocks) > 4
    np.testing.assert_array_equal(np.concatenate([block for _, block in blocks]), X)


@pytest.mark.parametrize("ending", ["", "\n", "\r\n"])
def test_the_longest_line(tmp_path, monkeypatch, ending):
    monkeypatch.setattr(text, "_MOST_LINE", 40)
    (tmp_path / "x.csv").write_text(f"1,2\n{'3,4':38}{ending}", newline="")
    assert open_matrix(tmp_path / "x.csv").read().tolist() == [[1, 2], [3, 4]]
    (tmp_path / "x.csv").write_text(f"1,2\n{'3,4':41}{ending}", newline="")
    with pytest.raises(MatrixError, match=r"x\.csv: line 2 has 40 characters or more"):
        open_matrix(tmp_path / "x.csv")


@measured
def test_json_beyond_its_limit_is_not_read(tmp_path):
    (tmp_path / "x.json").write_text("[]")
    os.truncate(tmp_path / "x.json", 1 << 30)
    setup = "from pathlib import Path\nfrom tsapps.kernels.system.strict_json import read_json"
    peak, error, _ = peak_of(setup, "read_json(Path('x.json'))", tmp_path)
    assert error == ["JsonError", "x.json: is not valid JSON (it has more than 16777216 bytes)"]
    assert peak < 48 * MIB


def test_json_of_maximum_size(tmp_path):
    (tmp_path / "x.json").write_text("[123]")
    assert read_json(tmp_path / "x.json", 5) == [123]
    with pytest.raises(JsonError, match="more than 4 bytes"):
        read_json(tmp_path / "x.json", 4)


@measured
def test_a_sidecar_larger_than_memory(tmp_path):
    header = b'{"__metadata__": {"format": "tsapps-abft"}}'
    (tmp_path / "x.abft").write_bytes(struct.pack("<Q", len(header)) + header)
    os.truncate(tmp_path / "x.abft", 1 << 40)
    setup = "from tsapps.apps.abft.at_rest.sidecar import read_sidecar"
    peak, error, _ = peak_of(setup, "read_sidecar('x.abft')", tmp_path)
    assert error[0] == "MemoryError"
    assert error[1].startswith("x.abft: ")
    assert peak < 8 * MIB
