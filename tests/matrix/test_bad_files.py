"""Files without a valid matrix: one line that names the file, the fault and the remedy."""

import importlib
import os
import re
import struct
import zipfile

import numpy as np
import pytest

from tsapps.errors import MatrixError, UsageError
from tsapps.matrix import open_matrix

X = np.arange(12, dtype=np.float32).reshape(4, 3)


def refused(source, message, action=open_matrix):
    """Assert that `action` on `source` raises a one-line MatrixError that names the file and matches `message`."""
    with pytest.raises(MatrixError, match=message) as error:
        action(source)
    text = str(error.value)
    file = re.sub(r"(\.\w+):.*", r"\1", str(source))
    assert text.startswith(file)
    assert "\n" not in text


def read(path):
    return open_matrix(path).read()


class TestPaths:
    def test_missing(self, tmp_path):
        refused(tmp_path / "x.npy", "no such file: check the path")
        refused(f"{tmp_path}/x.npz:X", "no such file: check the path")

    def test_directory(self, tmp_path):
        refused(tmp_path, "is a directory without a matrix: name a file")

    def test_pipe(self, tmp_path):
        os.mkfifo(tmp_path / "x.npy")
        refused(tmp_path / "x.npy", "not a regular file.*save it to one first")

    @pytest.mark.parametrize("name", ["x.jpg", "x", "x.npy.gz"])
    def test_extension(self, tmp_path, name):
        (tmp_path / name).write_bytes(b"content")
        refused(tmp_path / name, r"unknown extension '(\.\w+)?'; expected one of \.npy, .*\.safetensors: convert it")

    @pytest.mark.skipif(os.geteuid() == 0, reason="root can read every file")
    def test_permissions(self, tmp_path):
        np.save(tmp_path / "x.npy", X)
        (tmp_path / "x.npy").chmod(0)
        refused(tmp_path / "x.npy", "is not readable by this user: change its permissions")

    @pytest.mark.parametrize("name", ["none.npy", ".", "x.jpg", "x.npy:X", "x.npz", "x.npz:C"])
    def test_a_path_that_names_no_matrix_is_wrong_use(self, tmp_path, name):
        np.save(tmp_path / "x.npy", X)
        np.savez(tmp_path / "x.npz", A=X, B=X)
        (tmp_path / "x.jpg").write_bytes(b"content")
        with pytest.raises(UsageError):
            open_matrix(f"{tmp_path}/{name}")

    def test_name_for_a_file_of_one_array(self, write):
        path = write("npy", X)
        refused(f"{path}:X", "a .npy file holds one matrix: omit ':X'")


class TestSizes:
    @pytest.mark.parametrize("kind", ["npy", "fbin", "fvecs"])
    @pytest.mark.parametrize("bytes_less", [1, 4, 15])
    def test_truncated(self, write, kind, bytes_less):
        path = write(kind, X)
        os.truncate(path, path.stat().st_size - bytes_less)
        refused(path, "is truncated: .*: copy it again")

    @pytest.mark.parametrize("kind", ["npz", "parquet", "hdf5", "safetensors"])
    def test_truncated_container(self, write, kind):
        path = write(kind, X)
        os.truncate(path, path.stat().st_size - 20)
        refused(path, r"cannot be read \(.*\): it is truncated, damaged or of another format: copy it again")

    @pytest.mark.parametrize("kind", ["npy", "fbin"])
    def test_bytes_too_many(self, write, kind):
        path = write(kind, X)
        path.write_bytes(path.read_bytes() + b"extra")
        refused(path, "has 5 bytes too many: its header says 4 × 3 float32, .*: write it again")

    @pytest.mark.parametrize("kind", ["npy", "fbin", "fvecs", "npz", "csv", "parquet", "hdf5", "safetensors"])
    def test_no_bytes_at_all(self, write, kind):
        path = write(kind, X)
        os.truncate(path, 0)
        refused(path, "is truncated|is not valid .npy data|is empty|cannot be read")

    @pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
    @pytest.mark.parametrize("kind", ["npy", "npz", "fbin", "hdf5", "safetensors"])
    def test_empty(self, write, kind, shape):
        refused(
            write(kind, np.zeros(shape, "f4")), f"is empty, {shape[0]} × {shape[1]}; expected .*: check what wrote it"
        )

    def test_empty_parquet(self, write):
        refused(write("parquet", np.zeros((0, 3))), "is empty, 0 × 3")

    @pytest.mark.parametrize(("n", "d"), [(2**32 - 1, 2**32 - 1), (2**31, 3), (4, 2**32 - 1)])
    def test_absurd_bin_header(self, tmp_path, n, d):
        (tmp_path / "x.fbin").write_bytes(struct.pack("<II", n, d) + X.tobytes())
        refused(tmp_path / "x.fbin", f"its header says {n} × {d} float32, .*: copy it again, or check its format")

    @pytest.mark.parametrize("d", [-1, 0, 2**31 - 1, 100])
    def test_absurd_vecs_header(self, tmp_path, d):
        (tmp_path / "x.fvecs").write_bytes(struct.pack("<i", d) + X.tobytes())
        refused(tmp_path / "x.fvecs", f"row 0 says that it has {d} values, .*: it is truncated or of another format")

    @pytest.mark.parametrize(("kind", "size"), [("fbin", 7), ("fvecs", 3)])
    def test_half_a_header(self, write, kind, size):
        path = write(kind, X)
        os.truncate(path, size)
        refused(path, f"is truncated: it has {size} bytes, .*: copy it again")


class TestNpy:
    @staticmethod
    def with_header(path, header):
        text = header.ljust(117).encode() + b"\n"
        path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + X.tobytes())
        return path

    def test_magic(self, tmp_path):
        (tmp_path / "x.npy").write_bytes(b"PK\x03\x04" + bytes(100))
        refused(tmp_path / "x.npy", r"is not valid .npy data \(the magic string .*\): write it again with numpy.save")

    @pytest.mark.parametrize(
        ("header", "message"),
        [
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (-4, 3)}", "-4 × 3; a size cannot be negative: write"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (4000000000000, 3000000000)}", "is truncated"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': 4}", "is not valid .npy data .*shape"),
            ("{'descr': '<f4', 'fortran_order': False}", "is not valid .npy data .*keys"),
            ("{'descr': 'nonsense', 'fortran_order': False, 'shape': (4, 3)}", "is not valid .npy data .*descr"),
            ("{'descr': '<f4', 'fortran_order': __import__('os'), 'shape': (4, 3)}", "is not valid .npy data"),
            ("{'descr': (", "is not valid .npy data"),
            ("", "is not valid .npy data"),
        ],
    )
    def test_header(self, tmp_path, header, message):
        refused(self.with_header(tmp_path / "x.npy", header), message)

    def test_version(self, tmp_path):
        array = np.zeros((2, 2), [("длина", "f4")])
        with pytest.warns(UserWarning, match="format 3.0"):
            np.save(tmp_path / "x.npy", array)
        refused(tmp_path / "x.npy", "version 3.0, used for records; .*save the fields as columns")

    @pytest.mark.parametrize(
        ("array", "message"),
        [
            (np.ones(3), "1-dimensional array .*reshape it"),
            (np.ones((2, 3, 4)), "3-dimensional array .*reshape it"),
            (np.float32(3), "0-dimensional array .*reshape it"),
            (np.array([[1, None]]), "type object.*Python objects are never unpickled; convert"),
            (np.array([["a"]]), "type <U1.*keep numeric columns only"),
            (np.ones((2, 2), complex), "type complex128.*save the real and the imaginary parts"),
            (np.ones((2, 2), bool), "type bool.*: convert it"),
            (np.zeros((2, 2), "V2"), "if it was bfloat16, save it as .safetensors or as float32"),
            (np.zeros((2, 2), [("x", "f4"), ("y", "f4")]), "fields x, y; .*: save them as columns"),
        ],
    )
    @pytest.mark.parametrize("kind", ["npy", "npz"])
    def test_no_matrix_of_numbers(self, write, kind, array, message):
        refused(write(kind, array), message)


class TestVecs:
    def test_differing_d(self, tmp_path):
        rows = [struct.pack("<i3f", 3, 1, 2, 3)] * 5
        rows[2] = struct.pack("<i3f", 4, 1, 2, 3)
        path = tmp_path / "x.fvecs"
        path.write_bytes(b"".join(rows))
        matrix = open_matrix(path)  # the size is right, so only reading row 2 can detect it
        message = "row 2 says that it has 4 values, row 0 has 3; all rows .*: write it again"
        refused(path, message, read)
        with pytest.raises(MatrixError, match=message):
            matrix.rows([0, 2])
        assert matrix.rows([0, 1]).tolist() == [[1, 2, 3]] * 2

    def test_differing_length(self, tmp_path):
        path = tmp_path / "x.fvecs"
        path.write_bytes(
            struct.pack("<i3f", 3, 1, 2, 3) + struct.pack("<i2f", 2, 1, 2) + struct.pack("<i3f", 3, 1, 2, 3)
        )
        refused(path, "row 1 says that it has 2 values, row 0 has 3")


class TestSeveralArrays:
    @pytest.fixture(params=["npz", "h5", "safetensors"])
    def path(self, request, tmp_path):
        path = tmp_path / f"x.{request.param}"
        arrays = {f"X{number}": X for number in range(12)}
        if request.param == "npz":
            np.savez(path, **arrays)
        elif request.param == "safetensors":
            pytest.importorskip("safetensors.numpy").save_file(arrays, path)
        else:
            with pytest.importorskip("h5py").File(path, "w") as file:
                file.update(arrays)
        return path

    def test_none_named(self, path):
        refused(path, "holds several arrays, X.*, X.* and 2 more: name one, for example .*:X")

    def test_an_absent_one(self, path):
        refused(f"{path}:labels", "holds no array 'labels': name one of X.*, X.* and 2 more")

    def test_no_array(self, tmp_path):
        zipfile.ZipFile(tmp_path / "x.npz", "w").close()
        refused(tmp_path / "x.npz", "holds no array: check what wrote it")
        with pytest.importorskip("h5py").File(tmp_path / "x.h5", "w") as file:
            file.create_group("empty")
        refused(tmp_path / "x.h5", "holds no array: check what wrote it")

    def test_group_is_no_array(self, tmp_path):
        with pytest.importorskip("h5py").File(tmp_path / "x.h5", "w") as file:
            file["group/X"] = X
        refused(f"{tmp_path}/x.h5:group", "holds no array 'group': name one of group/X")


class TestContainers:
    def test_npz_with_a_damaged_stream(self, tmp_path):
        path = tmp_path / "x.npz"
        np.savez(path, X=np.random.default_rng(0).random((100, 100)))
        content = bytearray(path.read_bytes())
        content[40_000] ^= 1
        path.write_bytes(content)
        assert open_matrix(path).shape == (100, 100)
        refused(path, "cannot be read .*CRC.*: copy it again", read)

    def test_npz_whose_header_promises_more(self, write, tmp_path):
        content = write("npy", X).read_bytes()
        for name, changed, message in [
            ("a.npz", content[:-4], "is truncated"),
            ("b.npz", content + b"1", "1 bytes too many"),
        ]:
            with zipfile.ZipFile(tmp_path / name, "w") as archive:
                archive.writestr("X.npy", changed)
            refused(tmp_path / name, message)

    def test_npz_that_is_no_archive(self, tmp_path):
        np.save(tmp_path / "x.npy", X)
        os.rename(tmp_path / "x.npy", tmp_path / "x.npz")
        refused(tmp_path / "x.npz", "cannot be read .*not a zip file.*another format")

    @pytest.mark.parametrize(
        ("columns", "message"),
        [
            (
                {"a": [1.0], "city": ["Oslo"]},
                r"column 1 \('city'\) is string; expected numbers: keep numeric columns only",
            ),
            ({"a": [True]}, r"column 0 \('a'\) is bool; expected numbers"),
            ({"a": [[1.0, 2.0]]}, r"column 0 \('a'\) is list.*; expected numbers: .*one for each feature"),
        ],
    )
    def test_parquet_with_other_columns(self, tmp_path, columns, message):
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.table(columns), tmp_path / "x.parquet")
        refused(tmp_path / "x.parquet", message)

    def test_parquet_with_a_null(self, tmp_path):
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        table = arrow.table({"a": [1, 2, 3, 4, 5], "b": [1, 2, 3, None, 5]})
        parquet.write_table(table, tmp_path / "x.parquet", row_group_size=2)
        refused(tmp_path / "x.parquet", r"row 3, column 1 \('b'\) is null .*: drop such rows, or fill them in", read)

    def test_hdf5_of_other_shapes_and_types(self, tmp_path):
        h5py = pytest.importorskip("h5py")
        with h5py.File(tmp_path / "x.h5", "w") as file:
            file.update({"vector": np.ones(3), "text": [["a", "b"]], "flags": np.ones((2, 2), bool)})
            file["nothing"] = h5py.Empty("f4")
        refused(f"{tmp_path}/x.h5:vector", "1-dimensional array .*reshape it")
        refused(f"{tmp_path}/x.h5:nothing", "0-dimensional array .*reshape it")
        refused(f"{tmp_path}/x.h5:text", "type object; expected integers or floating-point numbers: .*convert it")
        refused(f"{tmp_path}/x.h5:flags", "type bool.*: convert it")

    def test_safetensors_of_other_types(self, tmp_path):
        pytest.importorskip("safetensors")
        header = b'{"X":{"dtype":"F8_E4M3","shape":[2,3],"data_offsets":[0,6]}}'
        (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(6))
        refused(tmp_path / "x.safetensors", "type F8_E4M3: convert it to float16, bfloat16 or float32")

    def test_safetensors_of_booleans(self, write):
        refused(write("safetensors", np.ones((2, 2), bool)), "type bool.*: convert it")

    @pytest.mark.parametrize(
        ("kind", "library"), [("parquet", "pyarrow"), ("hdf5", "h5py"), ("safetensors", "safetensors")]
    )
    def test_library_is_missing(self, write, monkeypatch, kind, library):
        path = write(kind, X)

        def import_module(name):
            if name.partition(".")[0] == library:
                raise ModuleNotFoundError(f"No module named {library!r}", name=library)
            return importlib.import_module(name)

        monkeypatch.setattr("tsapps.matrix.optional.import_module", import_module)
        refused(path, rf"needs {library}, which is not installed: pip install {library}$")


class TestNotFinite:
    @pytest.mark.parametrize("kind", ["npy", "npz", "fbin", "fvecs", "csv", "parquet", "hdf5", "safetensors"])
    @pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
    def test_row_and_column(self, write, kind, value):
        array = np.ones((30, 4), "f8" if kind == "csv" else "f4")
        array[17, 3] = float(value)
        array[20, 0] = float("nan")
        refused(write(kind, array), f"row 17, column 3 is {value} .*: drop such rows, or fill them in", read)


class TestFilesThatChange:
    @pytest.mark.parametrize("kind", ["npz", "csv", "parquet", "hdf5"])
    def test_between_two_passes(self, write, kind):
        path = write(kind, np.ones((20, 3)))
        matrix = open_matrix(path)
        path.unlink()
        write(kind, np.ones((10, 3)))
        with pytest.raises(MatrixError, match="has changed since it was opened"):
            matrix.read()
