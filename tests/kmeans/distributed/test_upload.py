"""Distribution of a matrix over the memory of several HostMachines."""

import os

import ml_dtypes
import numpy as np
import pytest
import scipy.sparse
from host_cuda.machine import HostMachine

import tsapps
from tsapps.apps.kmeans.data.rows import ArrayRows, SparseRows
from tsapps.apps.kmeans.distributed import upload
from tsapps.apps.kmeans.distributed.upload import distribute
from tsapps.errors import MatrixError
from tsapps.kernels.devices import NoDeviceError

PARTS = [range(300), range(300, 310), range(310, 1000)]


def distributed(source, dtype=np.float32):
    copies = distribute(source, PARTS, [HostMachine() for _ in PARTS], np.dtype(dtype))
    assert [len(copy) for copy in copies] == [len(part) for part in PARTS]
    assert all(copy.flags.c_contiguous for copy in copies)
    return np.concatenate(copies)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(upload, "_BLOCK_BYTES", 4 * 7 * 64)


@pytest.mark.parametrize(
    ("x_dtype", "dtype", "kept"),
    [
        ("float32", "float32", "float32"),
        ("float64", "float64", "float64"),
        ("float16", "float32", "float16"),
        (ml_dtypes.bfloat16, "float32", ml_dtypes.bfloat16),
        ("float16", "float64", "float64"),
        ("int32", "float64", "float64"),
        ("bool", "float64", "float64"),
    ],
)
def test_arrays(x_dtype, dtype, kept, rng):
    X = (9 * rng.standard_normal((1000, 7))).astype(x_dtype)
    found = distributed(ArrayRows(X), dtype)
    assert found.dtype == kept
    np.testing.assert_array_equal(found, X.astype(kept))


@pytest.mark.parametrize("layout", ["columns", "every other", "read only"])
def test_other_layouts(layout, rng):
    X = rng.standard_normal((1000, 7)).astype(np.float32)
    if layout == "columns":
        given = np.asfortranarray(X)
    elif layout == "every other":
        given = np.repeat(X, 2, axis=0)[::2]
    else:
        given = X.copy()
        given.flags.writeable = False
    np.testing.assert_array_equal(distributed(ArrayRows(given)), X)


@pytest.mark.parametrize("suffix", [".npy", ".csv", ".parquet"])
def test_files(suffix, rng, tmp_path):
    X, path = rng.integers(-99, 99, (1000, 7)).astype(np.float32), tmp_path / f"X{suffix}"
    if suffix == ".npy":
        np.save(path, X)
    elif suffix == ".csv":
        np.savetxt(path, X, delimiter=",")
    else:
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        table = pyarrow.table({f"c{i}": X[:, i] for i in range(7)})
        parquet.write_table(table, path, row_group_size=77)
    np.testing.assert_array_equal(distributed(tsapps.open_matrix(path)), X)


def test_a_sparse_matrix(rng):
    X = rng.standard_normal((1000, 7)) * (rng.random((1000, 7)) < 0.2)
    np.testing.assert_array_equal(distributed(SparseRows(scipy.sparse.csr_matrix(X)), np.float64), X)


def test_a_gpu_without_memory_for_its_rows(rng):
    X, machines = rng.standard_normal((1000, 7)).astype(np.float32), [HostMachine(memory=9000) for _ in PARTS]
    expected = r"cuda:0: 690 of 1000 rows take 0.00 GiB, but 0.00 GiB are free: use more GPUs, or one GPU"
    with pytest.raises(NoDeviceError, match=expected):
        distribute(ArrayRows(X), PARTS, machines, np.dtype("float32"))


def test_a_file_that_changes_meanwhile(rng, tmp_path, monkeypatch):
    X, path = rng.standard_normal((1000, 7)).astype(np.float32), tmp_path / "X.npy"
    np.save(path, X)
    source, stream = tsapps.open_matrix(path), upload.stream_to_gpu

    def writing(*arguments):
        for number, block in enumerate(stream(*arguments)):
            yield block
            if number == 0:
                os.utime(path, (0, 0))  # as if another program had written the file

    monkeypatch.setattr(upload, "stream_to_gpu", writing)
    with pytest.raises(MatrixError, match="has changed since it was opened"):
        distributed(source)
