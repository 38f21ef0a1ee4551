"""Damaged files by hand: readers check announced sizes, and report every error of a library in one line."""

import json
import os
import struct
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tsapps.errors import CorruptionError, MatrixError, UsageError
from tsapps.kernels.system.strict_json import JsonError, parse_json, read_json
from tsapps.matrix import open_matrix
from tsapps.matrix.base import Matrix

X = np.arange(120, dtype=np.float32).reshape(40, 3)


def refused(path, message):
    with pytest.raises(MatrixError, match=message) as error:
        open_matrix(path).read()
    assert str(error.value).startswith(str(path).partition(":")[0])
    assert str(error.value).isprintable()


class TestJson:
    @pytest.mark.parametrize("text", ["null", "[1, -2, 0.5, 1e308]", '{"a": {"b": [true, "١"]}}', str(2**64 - 1)])
    def test_as_json_loads(self, text):
        assert parse_json(text) == parse_json(text.encode()) == json.loads(text)

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ("", "Expecting value"),
            ("{", "Expecting property name"),
            (b"\xff", "can't decode byte 0xff"),
            ("NaN", "the number NaN is not finite"),
            ('{"a": [-Infinity]}', "the number -Infinity is not finite"),
            ("1e999", "the number 1e999 is not finite"),
            (str(2**64), "has more than 64 bits"),
            ("-" + "9" * 5000, "the number -99999999999999999999999 has more than 64 bits"),
            ('{"a": 1, "b": 2, "a": 1}', "the name 'a' occurs twice"),
            ("[" * 5000, "nested too deeply"),
            ("[" * 5000 + "]" * 5000, "nested too deeply"),
            ("[" * 65 + "]" * 65, "nested too deeply"),
            ('{"a":' * 65 + "1" + "}" * 65, "nested too deeply"),
        ],
    )
    def test_refused(self, text, reason, tmp_path):
        with pytest.raises(JsonError, match=reason) as error:
            parse_json(text)
        assert str(error.value).isprintable()
        path = tmp_path / "x.json"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(JsonError, match=f"x.json: is not valid JSON .*{reason}"):
            read_json(path)

    def test_nested_as_deep_as_may_be(self):
        assert parse_json("[" * 64 + "]" * 64)


class Announced(Matrix):
    """A reader that delivers given blocks, whatever it announced."""

    def __init__(self, *blocks):
        super().__init__("x.any", (10, 3), np.dtype("f4"))
        self.given = blocks

    def _blocks(self, rows):
        yield from self.given


def block(rows, columns=3, dtype="f4"):
    return np.ones((rows, columns), dtype)


class TestWhatIsAnnounced:
    @pytest.mark.parametrize(
        ("blocks", "found"),
        [
            ([], "0 rows"),
            ([(0, block(4)), (4, block(5))], "9 rows"),
            ([(0, block(4)), (4, block(7))], "rows 4 to 10 of shape"),
            ([(0, block(4)), (5, block(5))], "rows 5 to 9 of shape"),
            ([(0, block(10, 2))], r"of shape \(10, 2\)"),
            ([(0, block(10, 3, "f8"))], "float64"),
        ],
    )
    def test_is_delivered_or_an_error(self, blocks, found):
        message = rf"x.any: has changed or is damaged: its header says 10 × 3, .*{found}.*: copy it again"
        for read in (
            lambda matrix: list(matrix.blocks(5)),
            lambda matrix: matrix.read(),
            lambda matrix: matrix.read("f8"),
            lambda matrix: matrix.rows([9, 0]),
            lambda matrix: open_matrix(matrix, dtype="f8").rows([9]),
        ):
            with pytest.raises(MatrixError, match=message):
                read(Announced(*blocks))

    def test_right_blocks_pass(self):
        matrix = Announced((0, block(4)), (4, block(6)))
        assert [start for start, _ in matrix.blocks(6)] == [0, 4]
        assert matrix.rows([9, 0]).shape == (2, 3)

    def test_no_machine_holds_it(self, tmp_path):
        header = json.dumps({"X": {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 4]}}).encode()
        (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
        if pytest.importorskip("safetensors"):
            refused(tmp_path / "x.safetensors", "cannot be read")
        with pytest.raises(MatrixError, match="more than any machine can hold"):
            Announced.__mro__[1].__init__(Announced(), "x", (2**31, 2**31), np.dtype("f8"))


class TestNpy:
    @pytest.mark.parametrize(
        "header",
        [
            "{'descr': '<f4', 'fortran_order': False, 'shape': (40, 3), 5: 6}",  # keys of several types
            "{'descr': '<f4', 'fortran_order': False, 'shape': " + "(" * 300 + ")" * 300 + "}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': " + "-" * 9000 + "1}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (" + "9" * 4300 + ", 3)}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (" + "9" * 4000 + ", " + "9" * 4000 + ")}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (" + "1, " * 2000 + ")}",
            "{'descr': ('<f4', (1000000000000000000000,)), 'fortran_order': False, 'shape': (40, 3)}",
            "{'descr': (), 'fortran_order': False, 'shape': (40, 3)}",
            "{'descr': [5], 'fortran_order': False, 'shape': (40, 3)}",
            "{'descr': {'names': 5}, 'fortran_order': False, 'shape': (40, 3)}",
            "{'descr': '<M8[s]', 'fortran_order': False, 'shape': (40, 3)}",
            "[" * 200,
            "{[]: 1}",
        ],
    )
    def test_headers(self, tmp_path, header):
        text = header.encode()
        (tmp_path / "x.npy").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + X.tobytes())
        refused(tmp_path / "x.npy", "npy")

    def test_a_header_longer_than_any_is_not_read(self, tmp_path):
        path = tmp_path / "x.npz"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("X.npy", "w") as file:
            file.write(b"\x93NUMPY\x02\x00" + struct.pack("<I", 1 << 31))
            for _ in range(64):
                file.write(b" " * (1 << 20))
        refused(path, "a header of 2147483648 bytes, expected at most 10000")


class TestNpz:
    def test_a_size_that_no_compression_gives(self, tmp_path):
        path = tmp_path / "x.npz"
        np.savez_compressed(path, X=X)
        content = bytearray(path.read_bytes())
        entry = content.rindex(b"PK\x01\x02")
        struct.pack_into("<I", content, entry + 24, 1 << 30)
        path.write_bytes(content)
        refused(path, "its header says 1073741824 bytes, compressed to [0-9]+: copy it again")

    def test_another_method(self, tmp_path):
        np.save(tmp_path / "x.npy", X)
        with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_LZMA) as archive:
            archive.write(tmp_path / "x.npy", "X.npy")
        refused(tmp_path / "x.npz", "is compressed by method 14, .*: write it again with numpy.savez_compressed")

    def test_names_that_are_no_line(self, tmp_path):
        np.savez(tmp_path / "x.npz", **{"a\nb": X, "c\x1b[2J": X})
        refused(tmp_path / "x.npz", r"a b, c\\x1b\[2J: name one")


class TestHdf5:
    @pytest.fixture
    def file(self, tmp_path):
        with pytest.importorskip("h5py").File(tmp_path / "x.h5", "w") as file:
            yield file

    def test_rows_that_were_never_written(self, file):
        dataset = file.create_dataset("X", (10**12, 3), "f4", chunks=(16, 3))
        dataset[:32] = 1
        path = file.filename
        file.close()
        refused(path, "which take 62500000000 chunks, and the file holds 2: it was not completely written, or is")

    def test_nothing_was_written(self, file):
        file.create_dataset("X", (40, 3), "f4")
        path = file.filename
        file.close()
        refused(path, "which take 480 bytes, and the file holds 0")

    def test_all_chunks(self, file):
        file.create_dataset("X", data=X, chunks=(16, 2), maxshape=(None, 3))
        path = file.filename
        file.close()
        assert open_matrix(path).read().tobytes() == X.tobytes()

    def test_elements_that_are_narrower_in_the_file(self, file):
        h5py = pytest.importorskip("h5py")
        kind = h5py.h5t.IEEE_F32LE.copy()  # bfloat16, which h5py converts to another type
        kind.set_fields(15, 7, 8, 0, 7)
        kind.set_size(2)
        kind.set_ebias(127)
        space = h5py.h5s.create_simple((40, 3))
        h5py.h5d.create(file.id, b"X", kind, space).write(h5py.h5s.ALL, h5py.h5s.ALL, X)
        path = file.filename
        file.close()
        np.testing.assert_array_equal(open_matrix(path).read().astype("f4"), X)

    def test_elements_in_other_files(self, file, tmp_path):
        h5py = pytest.importorskip("h5py")
        layout = h5py.VirtualLayout((40, 3), "f4")
        layout[:] = h5py.VirtualSource("missing.h5", "X", (40, 3))
        file.create_virtual_dataset("V", layout)
        file.create_dataset("E", (40, 3), "f4", external=[(str(tmp_path / "missing.raw"), 0, 480)])
        path = file.filename
        file.close()
        refused(f"{path}:V", "stores elements in other files")
        refused(f"{path}:E", "stores elements in other files")

    @pytest.mark.parametrize("name", ["loop", "missing", "elsewhere", "reference", "compound", "bits"])
    def test_no_matrix(self, file, name):
        h5py = pytest.importorskip("h5py")
        file["loop"] = h5py.SoftLink("/loop")
        file["missing"] = h5py.SoftLink("/nothing")
        file["elsewhere"] = h5py.ExternalLink("nothing.h5", "X")
        file["reference"] = np.array([[file.ref]], h5py.ref_dtype)
        file["compound"] = np.zeros((2, 2), [("a", "f4")])
        file["bits"] = np.zeros((2, 2), bool)
        path = file.filename
        file.close()
        refused(
            f"{path}:{name}",
            "holds no array|holds elements of type|holds records|cannot be read|is a link to |is a chain of ",
        )


class TestParquet:
    @pytest.mark.parametrize(
        ("description", "message"),
        [
            (b"{", "cannot be read .*Expecting property name"),
            (b"\xff", "cannot be read .*can't decode"),
            (b"[" * 5000, "cannot be read .*nested too deeply"),
            (b"[]", "its description by pandas names no index columns"),
            (b'{"index_columns": 5}', "its description by pandas names no index columns"),
        ],
    )
    def test_descriptions_of_a_frame(self, tmp_path, description, message):
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        table = arrow.table({"a": [1.0], "b": [2.0]}).replace_schema_metadata({b"pandas": description})
        parquet.write_table(table, tmp_path / "x.parquet")
        refused(tmp_path / "x.parquet", message)

    def test_a_page_whose_checksum_is_another(self, tmp_path):
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        table = arrow.table({"a": np.arange(1000.0)})
        path = tmp_path / "x.parquet"
        parquet.write_table(table, path, write_page_checksum=True, compression=None, use_dictionary=False)
        content = bytearray(path.read_bytes())
        content[content.index(np.float64(500).tobytes())] ^= 1
        path.write_bytes(content)
        refused(path, "cannot be read .*checksum")


class TestText:
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("1,2\n3\0,4\n", "line 2, cell 1 is .*; expected a number"),
            ("1,2\n3\x004,4\n", "line 2, cell 1 is .*; expected a number"),
            ('1,2\n3,"4\n5,6\n', "line 2 opens a quoted cell that does not end"),
            ("1,2\n3,1e999\n", "row 1, column 1 is inf"),
            ("1,2\n١,2\n", "line 2, cell 1 is '١'; expected a number"),
            ("1,2\n" + "3" * 200_000 + ",4\n5,x\n", "line 3, cell 2 is 'x'; expected a number"),
            (b"1,2\n\xed\xa0\x80,4\n", "is not UTF-8 text"),
        ],
    )
    def test_lines(self, tmp_path, text, message):
        (tmp_path / "x.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
        refused(tmp_path / "x.csv", message)

    @pytest.mark.parametrize("names", ["١,٢", "1_0,2_0", "a,b"])
    def test_names_are_what_numpy_takes_for_no_numbers(self, tmp_path, names):
        (tmp_path / "x.csv").write_text(f"{names}\n3,4\n")
        assert open_matrix(tmp_path / "x.csv").read().tolist() == [[3, 4]]


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited as Linux does")
def test_memory_errors_name_the_file(tmp_path):
    resource = pytest.importorskip("resource")
    path = tmp_path / "x.fbin"
    with path.open("wb") as file:
        file.write(struct.pack("<II", 1 << 20, 1 << 10))
        os.truncate(path, 8 + (1 << 32))
    matrix = open_matrix(path)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), hard))
    try:
        with pytest.raises(MemoryError, match=r"x\.fbin: 1048576 × 1024 float32 takes 4,294,967,296 bytes"):
            matrix.read()
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.mark.parametrize("kind", [CorruptionError, MatrixError, UsageError])
@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("x.npy: is no matrix", "x.npy: is no matrix"),
        ("naïve 1\u00a0×\u202f2: 行", "naïve 1\u00a0×\u202f2: 行"),
        ("one\ntwo\r\nthree\u2028four\x85five", "one two three four five"),
        ("a\x1b[2J\x00\t\udcff\u202eb", r"a\x1b[2J\x00\t\udcff\u202eb"),
    ],
)
def test_messages_are_one_line_without_control_characters(kind, text, line):
    assert str(kind(text)) == line
