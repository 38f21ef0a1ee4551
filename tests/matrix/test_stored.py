"""Positions of elements in files of plain bytes."""

import errno
import os

import numpy as np
import pytest

from tsapps.errors import MatrixError
from tsapps.matrix import open_matrix
from tsapps.matrix import stored as module
from tsapps.matrix.stored import matrix_of

X = np.arange(12, dtype=np.float32).reshape(4, 3)


def write_vecs(path, array, dtype):
    with open(path, "wb") as file:
        for row in array:
            file.write(np.int32(len(row)).tobytes() + row.astype(dtype).tobytes())


def test_by_hand(tmp_path):
    write_vecs(tmp_path / "x.fvecs", X, "<f4")
    stored = open_matrix(tmp_path / "x.fvecs").stored
    assert (stored.offset, stored.shape, stored.strides) == (4, (4, 3), (16, 4))
    # Row 1 follows two headers and three elements; its column 2 is the sixth element.
    assert [stored.place(byte) for byte in (0, 11, 12, 20)] == [4, 15, 20, 28]
    np.save(tmp_path / "swapped.npy", X.astype(">f4"))
    stored = open_matrix(tmp_path / "swapped.npy").stored
    # Byte 0 of an element is the least significant one; big-endian files store it last.
    assert [stored.place(byte) - stored.offset for byte in (0, 3, 4)] == [3, 0, 7]


def files(directory, rng):
    """Write one file of each format of plain bytes; return them with their contents."""
    A = rng.standard_normal((7, 5))
    np.save(directory / "c.npy", A)
    np.save(directory / "fortran.npy", np.asfortranarray(A))
    np.save(directory / "swapped.npy", A.astype(">f8"))
    np.save(directory / "both.npy", np.asfortranarray(A.astype(">f8")))
    np.save(directory / "bytes.npy", rng.integers(-128, 128, (7, 5), np.int8))
    (directory / "x.fbin").write_bytes(np.array([7, 5], "<u4").tobytes() + A.astype("<f4").tobytes())
    write_vecs(directory / "x.ivecs", rng.integers(-1000, 1000, (7, 5)), "<i4")
    safetensors = pytest.importorskip("safetensors.numpy")
    safetensors.save_file({"other": A[:2], "A": A}, directory / "x.safetensors")
    half = pytest.importorskip("ml_dtypes").bfloat16
    safetensors.save_file({"A": A.astype(half)}, directory / "half.safetensors")
    names = ["c.npy", "fortran.npy", "swapped.npy", "both.npy", "bytes.npy", "x.fbin", "x.ivecs"]
    return [directory / name for name in names] + [f"{directory}/x.safetensors:A", directory / "half.safetensors"]


def test_position_of_every_byte(tmp_path, rng):
    for path in files(tmp_path, rng):
        matrix = open_matrix(path)
        logical = np.concatenate([block for _, block in matrix.blocks(3)]).tobytes()
        content = (tmp_path / matrix.stored.path).read_bytes()
        assert bytes(content[matrix.stored.place(byte)] for byte in range(len(logical))) == logical, path


def test_another_file_of_the_same_layout(tmp_path, rng):
    for path in files(tmp_path, rng):
        matrix = open_matrix(path)
        copy = tmp_path / ".copy.tmp"
        copy.write_bytes((tmp_path / matrix.stored.path).read_bytes())
        matrix.stored.map(copy)[2, 3] = 7
        found = matrix_of(matrix.stored, copy, "the copy")
        assert (found.name, found.shape, found.dtype) == ("the copy", matrix.shape, matrix.dtype)
        expected = np.concatenate([block for _, block in matrix.blocks(100)]).copy()
        expected[2, 3] = 7
        np.testing.assert_array_equal(np.concatenate([block for _, block in found.blocks(2)]), expected)


def test_other_matrices_are_not_stored(tmp_path):
    np.savez_compressed(tmp_path / "x.npz", X=X)
    np.savetxt(tmp_path / "x.csv", X, delimiter=",")
    for source in (X, tmp_path / "x.npz", tmp_path / "x.csv"):
        assert open_matrix(source).stored is None
    assert open_matrix(X, dtype="float64").stored is None


def test_files_in_place(tmp_path, rng):
    others = ["fortran.npy", "swapped.npy", "both.npy", "x.ivecs"]  # not row-major, not native, or with gaps
    for path in files(tmp_path, rng):
        matrix = open_matrix(path)
        mapped = matrix.in_place()
        if matrix.stored.path in [str(tmp_path / name) for name in others]:
            assert mapped is None, path
            continue
        assert (mapped.dtype, mapped.flags.writeable) == (matrix.dtype, False)
        np.testing.assert_array_equal(mapped, matrix.rows(np.arange(7)))


@pytest.mark.parametrize("cached", ["as it is", "not supported", "none", "some"])
def test_reader_of_bytes(tmp_path, rng, monkeypatch, cached):
    """Of files whose elements are in order; without `wait`, the reader says whether it has read all bytes."""

    def preadv(file, buffers, place, flags=0):
        if flags and cached == "not supported":
            raise OSError(errno.EOPNOTSUPP, "not supported")
        if flags and cached == "none":
            raise BlockingIOError
        if flags and cached == "some":
            return right(file, [buffers[0][:9]], place)
        return right(file, buffers, place, flags)

    right = os.preadv
    monkeypatch.setattr(module.os, "preadv", preadv)
    others = ["fortran.npy", "swapped.npy", "both.npy", "x.ivecs"]
    for path in files(tmp_path, rng):
        matrix = open_matrix(path)
        with matrix.bytes_reader() as read:
            if matrix.stored.path in [str(tmp_path / name) for name in others]:
                assert read is None, path
                continue
            content = matrix.rows(np.arange(7)).reshape(-1).view(np.uint8)
            for wait in (False, True):
                out = np.zeros(20, np.uint8)
                done = read(13, out, wait=wait)
                if cached != "as it is":
                    assert done == (wait or cached == "not supported")
                if done:
                    np.testing.assert_array_equal(out, content[13:33])
            with pytest.raises(MatrixError, match="changed"):
                assert read(10**6, out, wait=False) or read(10**6, out, wait=True)


def test_a_file_that_has_become_shorter_is_not_mapped(tmp_path):
    np.save(tmp_path / "x.npy", X)
    matrix = open_matrix(tmp_path / "x.npy")
    with open(tmp_path / "x.npy", "r+b") as file:
        file.truncate(150)
    with pytest.raises(MatrixError, match="changed"):
        matrix.in_place()


def test_arrays_in_place():
    assert open_matrix(X).in_place() is X
    for array in (np.asfortranarray(X), X.astype(">f4"), X[:, :2]):
        assert open_matrix(array).in_place() is None
    assert open_matrix(X, dtype="float64").in_place() is None
