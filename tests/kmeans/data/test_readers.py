"""How blocks of host sources get into the buffers that a GPU copies them from."""

import os

import numpy as np
import pytest

from tsapps.apps.kmeans.data.rows import ArrayRows, readers
from tsapps.errors import MatrixError
from tsapps.matrix import open_matrix

X = np.arange(60.0).reshape(20, 3)


def sources(directory):
    np.save(directory / "c.npy", X)
    np.save(directory / "fortran.npy", np.asfortranarray(X, ">f8"))
    matrices = [open_matrix(directory / name) for name in ("c.npy", "fortran.npy")]
    return [ArrayRows(X), *matrices, open_matrix(directory / "c.npy", dtype="float32")]


@pytest.mark.parametrize("rows", [1, 6, 20, 50])
def test_every_row_arrives(tmp_path, rows):
    for source in sources(tmp_path):
        found, starts = np.zeros(X.shape, source.dtype), []
        for start, count, read in readers(source, rows):
            starts.append(start)
            for part in (slice(count // 2, count), slice(0, count // 2)):  # threads come in any order
                read(part, found[start + part.start : start + part.stop])
        np.testing.assert_array_equal(found, X)
        assert starts == list(range(0, 20, rows))


def test_a_change_is_noticed(tmp_path):
    matrix = sources(tmp_path)[1]
    blocks = readers(matrix, 10)
    next(blocks)
    os.truncate(tmp_path / "c.npy", 200)
    _, count, read = next(blocks)
    with pytest.raises(MatrixError, match=r"c\.npy: has changed"):
        read(slice(0, count), np.empty((count, 3)))
    with pytest.raises(MatrixError, match=r"c\.npy: has changed"):
        next(blocks)
