"""Damaged files at the command line: one line that names the file, exit 1, no output."""

import io
import json
import os
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tsapps.errors import ExitCode

X = np.arange(120, dtype=np.float32).reshape(40, 3)
DEEP = b"[" * 5000


def npy(header):
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + X.tobytes()


def names_of_several_types(path):
    path.write_bytes(npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (40, 3), 5: 6}"))


def absurd_shape(path):
    path.write_bytes(npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': " + b"(" * 300 + b")" * 300 + b"}"))


def a_bit_of_an_array(path):
    np.savez(path, X=X)
    content = bytearray(path.read_bytes())
    content[content.index(X[20].tobytes())] ^= 1
    path.write_bytes(content)


def a_header_in_an_archive(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("X.npy", npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (40, 3), 5: 6}"))


def nested_header(path):
    path.write_bytes(struct.pack("<Q", len(DEEP)) + DEEP)


def description_of_a_frame(path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = arrow.table({"a": X[:, 0], "b": X[:, 1]}).replace_schema_metadata({b"pandas": b"\xff"})
    parquet.write_table(table, path)


def fewer_rows_than_announced(path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table({"a": X[:, 0], "b": X[:, 1]}), path)
    # The file's number of rows, which precedes the list of row groups: 40 and 44 as variable-length integers.
    path.write_bytes(path.read_bytes().replace(b"\x16\x50\x19", b"\x16\x58\x19"))
    assert parquet.read_metadata(path).num_rows == 44


def damaged_group(path):
    with pytest.importorskip("h5py").File(path, "w") as file:
        file["group/X"] = X
    content = path.read_bytes()
    path.write_bytes(content.replace(b"SNOD", b"SNOE"))


def chunks_that_are_missing(path):
    with pytest.importorskip("h5py").File(path, "w") as file:
        file.create_dataset("X", (40, 3), "f4", chunks=(16, 3))[:16] = X[:16]


def a_row_of_another_length(path):
    rows = [struct.pack("<i", 3) + row.tobytes() for row in X]
    path.write_bytes(b"".join([*rows[:20], b"\x04" + rows[20][1:], *rows[21:]]))


def zero_bytes(path):
    np.savetxt(path, X, delimiter=",")
    path.write_bytes(path.read_bytes().replace(b"1.19", b"1.1\0"))


def absurd_size(path):
    path.write_bytes(struct.pack("<II", 2**32 - 1, 2**32 - 1) + X.tobytes())


FILES = [
    ("x.npy", names_of_several_types),
    ("x.npy", absurd_shape),
    ("x.npz", a_bit_of_an_array),
    ("x.npz", a_header_in_an_archive),
    ("x.safetensors", nested_header),
    ("x.parquet", description_of_a_frame),
    ("x.parquet", fewer_rows_than_announced),
    ("x.h5", damaged_group),
    ("x.h5", chunks_that_are_missing),
    ("x.fvecs", a_row_of_another_length),
    ("x.csv", zero_bytes),
    ("x.fbin", absurd_size),
]


@pytest.fixture
def model(directory):
    (directory / "model").mkdir()
    np.save("model/centers.npy", np.arange(12, dtype=np.float32).reshape(4, 3))
    summary = {"kind": "tsapps kmeans", "k": 4, "d": 3, "dtype": "float32", "metric": "euclidean"}
    (directory / "model/summary.json").write_text(json.dumps(summary))
    return directory / "model"


@pytest.mark.parametrize(("name", "damage"), FILES)
def test_matrices(refuse, model, directory, name, damage):
    if name.endswith("safetensors"):
        pytest.importorskip("safetensors")
    damage(directory / name)
    for arguments in (["kmeans", name, "--k", 2], ["abft-encode", name], ["predict", "model", name]):
        assert name in refuse(ExitCode.FAILURE, *arguments)


@pytest.mark.parametrize("damage", ["truncated", "nested", "infinite", "no text", "metric", "another kind", "centers"])
def test_models(refuse, model, iris, damage):
    summary = model / "summary.json"
    text = summary.read_bytes()
    if damage == "centers":
        os.truncate(model / "centers.npy", 100)
    else:
        summary.write_bytes(
            {
                "truncated": text[:-1],
                "nested": DEEP,
                "infinite": text.replace(b'"k": 4', b'"k": Infinity'),
                "no text": b"\xff",
                "metric": text.replace(b"euclidean", b"euclidaen"),
                "another kind": text.replace(b"tsapps kmeans", b"tsapps kmeanz"),
            }[damage]
        )
    line = refuse(ExitCode.FAILURE, "predict", "model", "iris.npy")
    assert f"model/{'centers.npy' if damage == 'centers' else 'summary.json'}" in line


def test_a_damaged_result_is_not_replaced(refuse, model, iris):
    (model / "summary.json").write_bytes(DEEP)
    assert "model: is not a kmeans result" in refuse(
        ExitCode.USAGE, "kmeans", "iris.npy", "--k", 2, "--out", "model", "--force"
    )


@pytest.mark.parametrize("header", [DEEP, b'{"__metadata__": {"format": Infinity}}', b"\xff\xff", b"{}"])
def test_sidecars(stop, succeed, iris, header):
    Path("iris.npy.abft").write_bytes(struct.pack("<Q", len(header)) + header)
    for arguments in (["abft-verify", "iris.npy"], ["abft-correct", "iris.npy", "--out", "y.npy"]):
        result = stop(*arguments)
        assert result.stderr.startswith("tsapps: the sidecar, not the matrix: iris.npy.abft: ")
        assert result.stderr.count("\n") == 1


def test_sidecars_with_an_infinite_size(stop, succeed, iris):
    """Such a sidecar may come from another program: its digest is correct."""
    from tsapps.apps.abft.at_rest.sidecar import container_digest, dump_sidecar
    from tsapps.apps.abft.at_rest.verify import encode

    file = io.BytesIO()
    dump_sidecar(file, encode(iris))
    content = file.getvalue()
    length = struct.unpack_from("<Q", content)[0]
    header, tensors = json.loads(content[8 : 8 + length]), content[8 + length :]
    metadata = header["__metadata__"] | {"shape": "[Infinity, 4]"}
    del metadata["digest"]
    arrays = {
        name: np.frombuffer(tensors[slice(*header[name]["data_offsets"])], "u1")
        for name in header.keys() - {"__metadata__"}
    }
    header["__metadata__"] = metadata | {"digest": container_digest(metadata, arrays)}
    text = json.dumps(header).encode()
    Path("iris.npy.abft").write_bytes(struct.pack("<Q", len(text)) + text + tensors)
    result = stop("abft-verify", "iris.npy")
    assert "iris.npy.abft: is no sidecar of abft-encode, or was corrupted" in result.stderr
    assert result.stderr.count("\n") == 1


def test_control_characters_of_a_file_are_not_printed(refuse, directory):
    np.savez("x.npz", **{"a\x1b[2J\nb": X[0], "c\u2028d": X[0]})
    line = refuse(ExitCode.FAILURE, "kmeans", "x.npz:a\x1b[2J\nb", "--k", 2)
    assert line.rstrip("\n").isprintable()
    assert r"x.npz:a\x1b[2J b: holds a 1-dimensional array" in line
