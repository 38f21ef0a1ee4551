"""Round trips of every format: in blocks, by row indices and as a whole."""

import json
import os
import struct
import time

import numpy as np
import pytest

from tsapps.matrix import EXTENSIONS, open_matrix

FLOATS = ["<f2", "<f4", "<f8"]
INTEGERS = ["i1", "u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8"]
CASES = [
    *[
        (kind, dtype)
        for kind in ("npy", "npz", "npz-compressed", "hdf5", "hdf5-chunked")
        for dtype in FLOATS + INTEGERS
    ],
    *[(kind, dtype) for kind in ("npy", "npz", "hdf5") for dtype in (">f4", ">f8", ">i4")],
    *[(kind, dtype) for kind in ("safetensors", "parquet") for dtype in FLOATS + INTEGERS],
    *[("fbin", "<f4"), ("f16bin", "<f2"), ("u8bin", "u1"), ("i8bin", "i1"), ("ibin", "<i4")],
    *[("fvecs", "<f4"), ("bvecs", "u1"), ("ivecs", "<i4"), ("csv", "<f8")],
]


def assert_is(matrix, expected):
    """Assert that every way of reading `matrix` gives `expected`, twice."""
    n, d = expected.shape
    dtype = expected.dtype.newbyteorder("=")
    assert matrix.shape == (n, d)
    assert matrix.dtype == dtype
    assert matrix.dtype.isnative
    assert matrix.nbytes == expected.nbytes
    assert matrix.device is None
    for rows in (1, 3, n, n + 5):
        following = 0
        for start, block in matrix.blocks(rows):
            assert start == following
            assert 1 <= len(block) <= rows
            assert block.dtype == dtype
            assert block.dtype.isnative
            assert block.flags.c_contiguous
            assert block.flags.aligned
            np.testing.assert_array_equal(block, expected[start : start + len(block)])
            following += len(block)
        assert following == n
    numbers = [n - 1, 0, n // 2, n - 1]
    picked = matrix.rows(numbers)
    assert picked.dtype == dtype
    assert picked.flags.c_contiguous
    np.testing.assert_array_equal(picked, expected[numbers])
    whole = matrix.read()
    assert whole.dtype == dtype
    assert whole.flags.c_contiguous
    np.testing.assert_array_equal(whole, expected)


# Two rows and three columns, 1 2 3 / 4 5 6, byte by byte.
ONE_TO_SIX_F4 = bytes.fromhex("0000803f 00000040 00004040 00008040 0000a040 0000c040")
NPY_HEADER = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }"

SAFETENSORS_HEADER = b'{"X":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}'


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.npy", b"\x93NUMPY\x01\x00\x76\x00" + NPY_HEADER.ljust(117).encode() + b"\n" + ONE_TO_SIX_F4),
        ("x.fbin", bytes.fromhex("02000000 03000000") + ONE_TO_SIX_F4),
        ("x.f16bin", bytes.fromhex("02000000 03000000 003c 0040 0042 0044 0045 0046")),
        ("x.u8bin", bytes.fromhex("02000000 03000000 01 02 03 04 05 06")),
        ("x.i8bin", bytes.fromhex("02000000 03000000 01 02 03 04 05 06")),
        ("x.ibin", bytes.fromhex("02000000 03000000 01000000 02000000 03000000 04000000 05000000 06000000")),
        ("x.fvecs", bytes.fromhex("03000000 0000803f 00000040 00004040 03000000 00008040 0000a040 0000c040")),
        ("x.bvecs", bytes.fromhex("03000000 01 02 03 03000000 04 05 06")),
        ("x.ivecs", bytes.fromhex("03000000 01000000 02000000 03000000 03000000 04000000 05000000 06000000")),
        ("x.csv", b"1,2,3\n4,5,6\n"),
        ("x.CSV", b"a,b,c\r\n1,2,3\r\n4,5,6"),
        ("x.tsv", b"1\t2\t3\n4\t5\t6\n"),
        ("x.txt", b"# made by hand\n1 2 3\n\n4 5 6\n"),
        ("x.safetensors", struct.pack("<Q", len(SAFETENSORS_HEADER)) + SAFETENSORS_HEADER + ONE_TO_SIX_F4),
    ],
)
def test_by_hand(tmp_path, name, content):
    if name == "x.safetensors":
        pytest.importorskip("safetensors")
    path = tmp_path / name
    path.write_bytes(content)
    matrix = open_matrix(path)
    assert matrix.shape == (2, 3)
    assert matrix.read().tolist() == [[1, 2, 3], [4, 5, 6]]
    assert matrix.rows([1, 1]).tolist() == [[4, 5, 6], [4, 5, 6]]
    assert str(path) in matrix.name


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(("kind", "dtype"), CASES)
def test_round_trip(write, kind, dtype, order):
    array = np.arange(-9, 24).reshape(11, 3) % 120
    expected = np.asarray(array.astype(dtype), order=order)
    assert_is(open_matrix(write(kind, expected)), expected)


@pytest.mark.parametrize("shape", [(1, 1), (1, 4), (7, 1)])
@pytest.mark.parametrize("kind", ["npy", "npz", "fbin", "fvecs", "csv", "parquet", "hdf5", "safetensors"])
def test_single_rows_and_columns(write, kind, shape):
    dtype = "f8" if kind == "csv" else "f4"
    expected = np.arange(np.prod(shape), dtype=dtype).reshape(shape)
    assert_is(open_matrix(write(kind, expected)), expected)


def test_bfloat16_of_safetensors(write):
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    expected = np.arange(12).reshape(4, 3).astype(bfloat16)
    path = write("safetensors", expected)
    assert_is(open_matrix(path), expected)
    np.testing.assert_array_equal(open_matrix(path, dtype=np.float32).read(), np.float32(expected))


def test_parquet_with_columns_of_several_types(tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pandas.DataFrame({"a": np.int32([1, 2]), "b.c": np.float32([3, 4])}, index=["first", "second"])
    frame.to_parquet(tmp_path / "x.parquet")
    matrix = open_matrix(tmp_path / "x.parquet")  # the index is skipped
    assert matrix.dtype == np.float64
    assert matrix.read().tolist() == [[1, 3], [2, 4]]


def test_parquet_streams_row_groups(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    expected = np.arange(1000.0)
    parquet.write_table(arrow.table({"a": expected}), tmp_path / "x.parquet", row_group_size=100)
    starts = [start for start, _ in open_matrix(tmp_path / "x.parquet").blocks(64)]
    assert len(starts) >= 1000 / 64
    assert starts[0] == 0


class TestSeveralArrays:
    @pytest.fixture
    def arrays(self):
        return {"X": np.arange(6.0).reshape(3, 2), "labels": np.arange(3), "Y": np.ones((2, 2), "f4")}

    @pytest.fixture(params=["npz", "h5", "safetensors"])
    def path(self, request, tmp_path, arrays):
        path = tmp_path / f"x.{request.param}"
        if request.param == "npz":
            np.savez(path, **arrays)
        elif request.param == "safetensors":
            pytest.importorskip("safetensors.numpy").save_file(arrays, path)
        else:
            with pytest.importorskip("h5py").File(path, "w") as file:
                for name, array in arrays.items():
                    file[name] = array
        return path

    @pytest.mark.parametrize("name", ["X", "Y"])
    def test_by_name(self, path, arrays, name):
        assert_is(open_matrix(f"{path}:{name}"), arrays[name])

    def test_name_that_opens_it_again(self, path, arrays):
        assert_is(open_matrix(open_matrix(f"{path}:Y").name), arrays["Y"])

    def test_the_only_matrix_needs_no_name(self, tmp_path, arrays):
        del arrays["Y"]
        np.savez(tmp_path / "x.npz", **arrays)
        assert_is(open_matrix(tmp_path / "x.npz"), arrays["X"])

    def test_groups_and_links_of_hdf5(self, tmp_path, arrays):
        h5py = pytest.importorskip("h5py")
        with h5py.File(tmp_path / "x.h5", "w") as file:
            file["deep/down/X"] = arrays["X"]
            file["link"] = h5py.SoftLink("/deep/down/X")
        for name in ("", ":/deep/down/X", ":deep/down/X", ":link"):
            assert_is(open_matrix(f"{tmp_path}/x.h5{name}"), arrays["X"])


class TestColonsInPaths:
    def test_in_the_files_own_name(self, tmp_path):
        np.save(tmp_path / "a:b.npy", np.ones((2, 2)))
        assert open_matrix(tmp_path / "a:b.npy").shape == (2, 2)

    def test_in_both(self, tmp_path):
        np.savez(tmp_path / "a:b.npz", X=np.ones((2, 2)), Y=np.ones((3, 3)))
        assert open_matrix(f"{tmp_path}/a:b.npz:Y").shape == (3, 3)

    def test_in_the_arrays_name(self, tmp_path):
        np.savez(tmp_path / "a.npz", **{"X:1": np.ones((2, 2)), "X:2": np.ones((3, 3))})
        assert open_matrix(f"{tmp_path}/a.npz:X:2").shape == (3, 3)


class TestOnlyHeadersAreReadAtOpening:
    """A sparse file of 100 GB opens at once, and its first block is read at once."""

    N, D = 250_000_000, 100

    @pytest.fixture(params=["npy", "fbin", "fvecs", "safetensors"])
    def path(self, request, tmp_path):
        kind = request.param
        path = tmp_path / f"x.{kind}"
        with open(path, "wb") as file:
            row = 4 * self.D
            if kind == "npy":
                header = {"descr": "<f4", "fortran_order": False, "shape": (self.N, self.D)}
                np.lib.format.write_array_header_1_0(file, header)
            elif kind == "fbin":
                file.write(struct.pack("<II", self.N, self.D))
            elif kind == "fvecs":
                row += 4
                for number in range(3):
                    file.seek(number * row)
                    file.write(struct.pack("<i", self.D))
                file.seek(0)
            else:
                pytest.importorskip("safetensors")
                entry = {"dtype": "F32", "shape": [self.N, self.D], "data_offsets": [0, self.N * row]}
                header = json.dumps({"X": entry}).encode()
                file.write(struct.pack("<Q", len(header)) + header)
            try:
                file.truncate(file.tell() + self.N * row)
            except OSError as error:
                pytest.skip(f"this file system does not support sparse files of 100 GB: {error}")
        return path

    def test_instant(self, path):
        begin = time.perf_counter()
        matrix = open_matrix(path)
        assert time.perf_counter() - begin < 1
        start, block = next(matrix.blocks(3))
        assert matrix.shape == (self.N, self.D)
        assert matrix.nbytes == 10**11
        assert (start, block.shape) == (0, (3, self.D))
        assert os.stat(path).st_blocks * 512 < 10**8


def test_every_extension_is_tested():
    from_writers = {".npy", ".npz", ".csv", ".tsv", ".txt", ".parquet", ".h5", ".hdf5", ".safetensors"}
    assert set(EXTENSIONS) == from_writers | {f".{kind}" for kind, _ in CASES if kind.endswith(("bin", "vecs"))}


def test_read_outlives_the_file(tmp_path):
    np.save(tmp_path / "x.npy", np.ones((2, 2)))
    whole = open_matrix(tmp_path / "x.npy").read()
    assert whole.base is None
    assert whole.flags.writeable
