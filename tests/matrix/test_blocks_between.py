"""Consecutive rows of a matrix, of which no others are read if the format allows it."""

import numpy as np
import pytest

from tsapps.errors import MatrixError
from tsapps.matrix import open_matrix

X = np.arange(60, dtype=np.float32).reshape(20, 3)


def npy(path):
    np.save(f"{path}.npy", X)
    return f"{path}.npy"


def fortran(path):
    np.save(f"{path}.npy", np.asfortranarray(X))
    return f"{path}.npy"


def fbin(path):
    with open(f"{path}.fbin", "wb") as file:
        file.write(np.array(X.shape, "<u4").tobytes() + X.tobytes())
    return f"{path}.fbin"


def npz(path):
    np.savez_compressed(f"{path}.npz", X=X)
    return f"{path}.npz"


def csv(path):
    np.savetxt(f"{path}.csv", X, delimiter=",")
    return f"{path}.csv"


def parquet(path, rows=X, size=6):
    table = pytest.importorskip("pyarrow").table({name: rows[:, i] for i, name in enumerate("xyz")})
    pytest.importorskip("pyarrow.parquet").write_table(table, f"{path}.parquet", row_group_size=size)
    return f"{path}.parquet"


def hdf5(path):
    with pytest.importorskip("h5py").File(f"{path}.h5", "w") as file:
        file.create_dataset("X", data=X, chunks=(7, 2))
    return f"{path}.h5"


def several(path):
    for number, (first, end) in enumerate(((0, 1), (1, 9), (9, 20))):
        parquet(f"{path}{number}", X[first:end], 4)
    return f"{path}?.parquet"


def several_npy(path):
    for number, (first, end) in enumerate(((0, 1), (1, 9), (9, 20))):
        np.save(f"{path}{number}.npy", X[first:end])
    return f"{path}?.npy"


def memory(_):
    return X


FORMATS = [npy, fortran, fbin, npz, csv, parquet, hdf5, several, several_npy, memory]


@pytest.fixture(scope="module")
def matrices(tmp_path_factory):
    folder = tmp_path_factory.mktemp("matrices")
    return {make.__name__: open_matrix(make(str(folder / make.__name__))) for make in FORMATS}


def check(matrix, first, end, rows):
    starts, blocks = [first], [np.empty((0, 3), np.float32)]
    for start, block in matrix.blocks_between(first, end, rows):
        assert start == starts[-1]
        assert 0 < len(block) <= rows
        starts.append(start + len(block))
        blocks.append(block)
    np.testing.assert_array_equal(np.concatenate(blocks), X[first:end])


@pytest.mark.parametrize("name", [make.__name__ for make in FORMATS])
def test_any_rows(name, matrices):
    for first, end in ((0, 20), (0, 0), (20, 20), (3, 4), (5, 17), (6, 12), (19, 20), (1, 9)):
        for rows in (1, 4, 7, 30):
            check(matrices[name], first, end, rows)


def test_a_converted_matrix(matrices, tmp_path):
    check(open_matrix(parquet(str(tmp_path / "X")), dtype=np.float64), 5, 17, 4)


@pytest.mark.parametrize(
    ("first", "end", "groups"), [(0, 20, [0, 1, 2, 3]), (6, 12, [1]), (5, 13, [0, 1, 2]), (19, 20, [3])]
)
def test_other_row_groups_are_not_read(first, end, groups, tmp_path, monkeypatch):
    matrix, seen = open_matrix(parquet(str(tmp_path / "X"))), []
    batches = type(matrix)._read_batches

    def recorded(self, file, start, rows, wanted):
        seen.append(wanted)
        return batches(self, file, start, rows, wanted)

    monkeypatch.setattr(type(matrix), "_read_batches", recorded)
    check(matrix, first, end, 4)
    assert seen == [groups]


@pytest.mark.parametrize(("first", "end"), [(-1, 3), (4, 3), (0, 21)])
def test_rows_that_do_not_exist(first, end, matrices):
    for matrix in matrices.values():
        with pytest.raises(IndexError, match=f"expected rows between 0 and 20, got {first} to {end}"):
            matrix.blocks_between(first, end, 5)


def test_blocks_of_no_rows(matrices):
    with pytest.raises(ValueError, match="rows must be at least 1, got 0"):
        matrices["npy"].blocks_between(0, 3, 0)


@pytest.mark.parametrize("make", [npy, parquet])
def test_a_file_that_has_changed(make, tmp_path):
    path = make(str(tmp_path / "X"))
    matrix = open_matrix(path)
    with open(path, "ab") as file:
        file.write(b"more")
    with pytest.raises(MatrixError, match="has changed since it was opened"):
        list(matrix.blocks_between(3, 9, 4))


def test_a_format_that_gives_fewer_rows(matrices, monkeypatch):
    matrix = matrices["hdf5"]
    monkeypatch.setattr(type(matrix), "_between", lambda self, first, end, rows: iter([(first, X[first : end - 1])]))
    with pytest.raises(MatrixError, match="8 rows"):
        list(matrix.blocks_between(3, 9, 9))
