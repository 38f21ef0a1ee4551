"""Files that another program modifies while a command reads them: one line that names the file, exit code 1."""

import os
import struct
import subprocess
import sys

import numpy as np
import pytest

from tsapps.apps.abft import encode
from tsapps.apps.abft.at_rest import source
from tsapps.errors import ExitCode, MatrixError
from tsapps.matrix import copy, open_matrix

N, D = 20_000, 8

# Runs the command line; changes the file after the first block, or read, of pass `at` (from 0) over any matrix.
CHANGING = """
import os, sys
from contextlib import contextmanager
from tsapps.matrix import base, open_matrix, stored
how, at, path, *command = sys.argv[1:]
passes = 0
original = base.Matrix._complete

def change():
    if how == "truncated":
        os.truncate(path, 4096)
    elif how == "rewritten":
        with open(path, "r+b") as file:
            file.seek(-8, 2)
            file.write(bytes(8))
            os.utime(file.fileno(), ns=(1, 1))
    else:
        with open(path, "rb") as file, open(path + ".new", "wb") as new:
            new.write(file.read())
        os.replace(path + ".new", path)

def complete(self, blocks):
    global passes
    number, passes = passes, passes + 1
    for first, block in enumerate(original(self, blocks)):
        yield block
        if number == int(at) and not first:
            change()

@contextmanager
def bytes_reader(self):
    global passes
    with original_reader(self) as read:
        if read is None:
            yield None
            return
        number, passes, reads = passes, passes + 1, []

        def reading(begin, out, *, wait):
            done = read(begin, out, wait=wait)
            if done and not reads and number == int(at):
                reads.append(begin)
                change()
            return done

        yield reading

original_reader = stored.StoredMatrix.bytes_reader
stored.StoredMatrix.bytes_reader = bytes_reader
base.Matrix._complete = complete
base._BLOCK_BYTES = 1 << 16
sys.argv = ["tsapps", *command]
from tsapps.apps.abft.at_rest import source
source._PART_BYTES = 1 << 16
from tsapps.apps.abft.at_rest import exact_pass
exact_pass._FILE_BYTES = 1 << 16
from tsapps.apps.kmeans.data import host_data
host_data._TASK_ELEMENTS = 1 << 14
from tsapps.__main__ import main
main()
"""


def write(path, X):
    """Write a matrix in a format that stores plain bytes."""
    if path.suffix == ".npy":
        np.save(path, np.asfortranarray(X) if "fortran" in path.name else X)
    elif path.suffix == ".fbin":
        path.write_bytes(struct.pack("<II", *X.shape) + X.tobytes())
    elif path.suffix == ".fvecs":
        path.write_bytes(b"".join(struct.pack("<i", D) + row.tobytes() for row in X))
    else:
        pytest.importorskip("safetensors.numpy").save_file({"X": X}, path)


NAMES = ["x.npy", "fortran.npy", "x.fbin", "x.fvecs", "x.safetensors"]
COMMANDS = {
    "kmeans": ["kmeans", "DATA", "-k", "3", "--device", "cpu", "-q"],
    "abft-encode": ["abft-encode", "DATA", "--force", "--device", "cpu", "-q"],
    "abft-verify": ["abft-verify", "DATA", "--device", "cpu", "-q"],
    "abft-correct": ["abft-correct", "DATA", "--in-place", "-q"],
    "abft-inject": ["abft-inject", "DATA", "--out", "out.npy", "-q"],
}


@pytest.fixture
def data(directory, rng, succeed):
    def data(name):
        write(directory / name, rng.standard_normal((N, D), dtype=np.float32))
        succeed("abft-encode", name, "-q", "--device", "cpu")
        with open(directory / name, "r+b") as file:  # a fault to correct
            file.seek(-4000, 2)
            file.write(b"?")
        return directory / name

    return data


def changed(how, at, path, command):
    arguments = [path.name if word == "DATA" else word for word in COMMANDS[command]]
    script = [sys.executable, "-c", CHANGING, how, str(at), path.name, *arguments]
    return subprocess.run(script, capture_output=True, text=True, check=False)


def refused(found, name):
    assert (found.returncode, found.stdout) == (ExitCode.FAILURE, ""), found.stderr
    assert found.stderr.startswith("tsapps: ")
    assert found.stderr.count("\n") == 1
    assert name in found.stderr
    assert "has changed" in found.stderr


# Each command, format and kind of change at least once; all pairs of these are `exhaustive`.
CASES = [
    ("kmeans", "x.npy", "truncated", 0),
    ("abft-encode", "fortran.npy", "truncated", 0),
    ("abft-verify", "x.fvecs", "truncated", 0),
    ("abft-correct", "x.fbin", "truncated", 0),
    ("abft-inject", "x.safetensors", "rewritten", 0),
    ("abft-correct", "x.npy", "replaced", 1),
]


@pytest.mark.parametrize(("command", "name", "how", "at"), CASES)
def test_a_change_is_reported(data, directory, command, name, how, at):
    path = data(name)
    sidecar = (directory / f"{name}.abft").read_bytes()
    refused(changed(how, at, path, command), name)
    assert (directory / f"{name}.abft").read_bytes() == sidecar
    assert {entry.name for entry in directory.iterdir()} == {name, f"{name}.abft"}


HOW = ["truncated", "rewritten", "replaced"]
# All pairs of command and kind of change, and of format and kind of change.
PAIRS = [(one, NAMES[(i + j) % 5], how) for i, one in enumerate(COMMANDS) for j, how in enumerate(HOW)]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("command", "name", "how"), PAIRS)
def test_every_change_is_reported(data, command, name, how):
    refused(changed(how, 0, data(name), command), name)


@pytest.mark.parametrize("name", [*NAMES, "x.npz", "x.csv", "x.parquet", "x.h5"])
@pytest.mark.parametrize("how", ["truncated", "rewritten", "replaced"])
def test_between_two_passes(directory, rng, name, how):
    path, X = directory / name, rng.standard_normal((50, D), dtype=np.float32)
    if name in NAMES:
        write(path, X)
    elif name == "x.npz":
        np.savez(path, X=X)
    elif name == "x.csv":
        np.savetxt(path, X, delimiter=",")
    elif name == "x.parquet":
        pytest.importorskip("pandas").DataFrame(X, columns=list("abcdefgh")).to_parquet(path)
    else:
        with pytest.importorskip("h5py").File(path, "w") as file:
            file["X"] = X
    matrix = open_matrix(path)
    np.testing.assert_allclose(matrix.read(), X)
    content = path.read_bytes()
    if how == "truncated":
        os.truncate(path, len(content) // 2)
    elif how == "rewritten":
        path.write_bytes(content[:-1] + b"\0")
        os.utime(path, ns=(1, 1))
    else:
        path.unlink()
        path.write_bytes(content)
    for read in (matrix.read, lambda: matrix.rows([0]), lambda: list(matrix.blocks(7))):
        with pytest.raises(MatrixError, match=r"x\.\w+.* has changed since it was opened|fortran.npy: has changed"):
            read()


def test_a_write_before_the_rename_is_kept(data, directory, run, monkeypatch):
    path = data("x.npy")
    original = os.fsync

    def write_then_sync(descriptor):
        if not written:
            written.append(path.read_bytes()[:-8] + b"precious")
            path.write_bytes(written[0])
        original(descriptor)

    written = []
    monkeypatch.setattr(os, "fsync", write_then_sync)  # the copy is complete and verified
    result = run("abft-correct", "x.npy", "--in-place")
    assert result.exit_code == ExitCode.FAILURE
    assert "x.npy: has changed since it was opened" in result.stderr
    assert path.read_bytes() == written[0]
    assert {entry.name for entry in directory.iterdir()} == {"x.npy", "x.npy.abft"}


def test_a_file_truncated_during_the_copy(data, directory, monkeypatch):
    path = data("x.npy")
    monkeypatch.setattr(copy, "_PIECE_BYTES", 1 << 16)
    matrix = open_matrix(path)
    with (
        open(directory / "copy", "wb") as file,
        pytest.raises(MatrixError, match=r"x\.npy: has changed since it was opened"),
    ):
        copy.copy_file(matrix, file, lambda done: os.truncate(path, 1 << 16))


def test_rows_longer_than_memory(directory, rng, monkeypatch):
    # Rows of more than 64 MiB are read in pieces, according to the layout of each format.
    monkeypatch.setattr(source, "_PART_BYTES", 1 << 10)
    monkeypatch.setattr(source, "_MOST_PART_BYTES", 1 << 12)
    monkeypatch.setattr(source, "_PART_COLUMNS", 256)
    monkeypatch.setattr(copy, "_PIECE_BYTES", 1 << 10)
    for array in (rng.standard_normal((3, 1000)), np.asfortranarray(rng.standard_normal((3, 1000)), ">f8")):
        np.save(directory / "x.npy", array)
        matrix = open_matrix("x.npy")
        pieces = [(row, column, part.copy()) for row, column, part in source.parts(matrix)]
        assert [(row, column) for row, column, _ in pieces[:5]] == [(0, 0), (0, 256), (0, 512), (0, 768), (1, 0)]
        assert b"".join(part.tobytes() for *_, part in pieces) == array.astype("<f8").tobytes("C")
        np.testing.assert_array_equal(encode(matrix, code="exact").exact, encode(array, code="exact").exact)
        with open(directory / "copy.npy", "wb") as file:
            copy.copy_as_npy(matrix, file, lambda done: None)
        np.testing.assert_array_equal(np.load(directory / "copy.npy"), array)


@pytest.mark.parametrize("n", [1, 7, 30_000])
@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("dtype", ["<f4", ">f8", "u1"])
def test_any_rows_of_any_layout(directory, rng, n, order, dtype):
    X = np.asarray(rng.integers(0, 250, (n, 5)), dtype, order=order)
    np.save(directory / "x.npy", X)
    matrix = open_matrix("x.npy")
    for rows in {1 if n < 10 else 999, 3 if n < 10 else 14_999, n}:
        blocks = list(matrix.blocks(rows))
        assert [start for start, _ in blocks] == list(range(0, n, rows))
        np.testing.assert_array_equal(np.concatenate([block for _, block in blocks]), X)
        assert all(block.flags.c_contiguous and block.dtype.isnative for _, block in blocks)
    for numbers in ([0], [n - 1, 0, 0], rng.integers(0, n, 200), np.arange(n // 2, n), []):
        np.testing.assert_array_equal(matrix.rows(numbers), X[np.asarray(numbers, int)])
    out = np.empty((n - n // 2, 5), matrix.dtype)
    matrix.read_into(n // 2, out)
    np.testing.assert_array_equal(out, X[n // 2 :])


def test_a_shape_of_true(directory, refuse):
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (True, True), }".ljust(117) + b"\n"
    content = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(4)
    (directory / "x.npy").write_bytes(content)
    assert "x.npy: is not valid .npy data (the shape (True, True)" in refuse(1, "kmeans", "x.npy", "-k", "1")


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="open files are not listed here")
def test_an_abandoned_pass_closes_the_file(directory):
    np.save("x.npy", np.zeros((1 << 16, 8), np.float32))
    before = len(os.listdir("/proc/self/fd"))
    blocks = open_matrix("x.npy").blocks(1 << 15)
    next(blocks)
    assert len(os.listdir("/proc/self/fd")) == before + 1
    blocks.close()
    assert len(os.listdir("/proc/self/fd")) == before
