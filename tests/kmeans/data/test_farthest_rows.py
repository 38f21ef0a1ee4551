"""The farthest samples, by the launches of data/farthest_rows.cuh on the CPU, against NumPy and the general path."""

from pathlib import Path

import numpy as np
import pytest
from exhaustive import every, property_test
from host_cuda.machine import HostMachine, build_together, placed
from hypothesis import strategies as st
from kmeans.host_steps import DTYPES, RowsOnMachine

from tsapps.apps.kmeans import empty_clusters
from tsapps.apps.kmeans.data import device_data
from tsapps.apps.kmeans.data import farthest_rows as module
from tsapps.apps.kmeans.data.device_data import DeviceData
from tsapps.apps.kmeans.data.farthest_rows import MOST_FARTHEST, farthest_rows, holds_rows
from tsapps.apps.kmeans.data.frame import ScaledRows
from tsapps.apps.kmeans.data.rows import ArrayRows, UnitRows
from tsapps.apps.kmeans.results import Assignment
from tsapps.kernels.jit.compiler import build
from tsapps.kernels.plan.mma import ELEMENT

WORK = {"float32": np.float32, "float64": np.float64, "float16": np.float32, "bfloat16": np.float32}
PASSES, FARTHEST = (Path(device_data.__file__).with_name(name) for name in ("passes.cuh", "farthest_rows.cuh"))
KERNELS = {each: f"kmeans::farthest_rows<{ELEMENT[each]}, {ELEMENT[np.dtype(WORK[each]).name]}>" for each in WORK}
for each, kernel in KERNELS.items():
    types = f"{ELEMENT[each]}, {ELEMENT[np.dtype(WORK[each]).name]}"
    build_together([(PASSES, [f"own_distances<{types}, {v}>"]) for v in ("true", "false")])
    build_together([(FARTHEST, [kernel])])


def data_of(X, dtype="float32", weights=None, *, mean=None, on_read=True, multiprocessors=3, offset=0):
    """Return X in `dtype` on a machine, centered about `mean` or zero."""
    rows = RowsOnMachine(placed(X.astype(DTYPES[dtype]), offset))
    data = DeviceData(rows, np.dtype(WORK[dtype]), weights, HostMachine(multiprocessors), takes_16_bit=on_read)
    data.center(np.zeros(X.shape[1]) if mean is None else mean, on_read=on_read)
    return data


def expected_of(data, centers, labels, count):
    """Return the indices that NumPy finds, and the distances that it sorts."""
    distances = data.own_distances(centers, labels)
    return np.lexsort((np.arange(len(distances)), -distances))[:count], distances


def check(data, centers, labels, count):
    indices, distances = expected_of(data, centers, labels, count)
    found = farthest_rows(data, centers, labels, count)
    if distances.max() == 0:
        assert found is None
        return
    np.testing.assert_array_equal(found.indices, indices)
    np.testing.assert_array_equal(found.labels, labels[indices])
    weights = np.ones(count) if data.sample_weight is None else data.sample_weight[indices].astype(np.float64)
    np.testing.assert_array_equal(found.weights, weights)
    np.testing.assert_array_equal(found.rows, data.rows(indices).astype(np.float64))
    assert {array.dtype for array in (found.rows, found.weights)} == {np.dtype(np.float64)}


def test_five_rows_by_hand():
    # Distances to the centers (0, 0) and (10, 0), after (1, 1) is subtracted: 1, 4, 0, 4, 9.
    X = np.array([[2.0, 1], [1, 3], [11, 1], [13, 1], [1, 4]])
    centers, labels = np.array([[0.0, 0], [10, 0]]), np.array([0, 0, 1, 1, 0], np.int32)
    data = data_of(X, weights=np.array([1.0, 2, 3, 4, 5]), mean=np.ones(2))
    found = farthest_rows(data, centers, labels, 3)
    assert found.indices.tolist() == [4, 1, 3]
    assert found.labels.tolist() == [0, 0, 1]
    assert found.weights.tolist() == [5, 2, 4]
    assert found.rows.tolist() == [[0, 3], [0, 2], [12, 0]]


@pytest.mark.each_choice
@pytest.mark.parametrize("on_read", [True, False])
@pytest.mark.parametrize("dtype", WORK)
@pytest.mark.parametrize(("n", "d", "offset"), [(40, 1, 0), (777, 3, 1), (20_011, 4, 0), (5003, 8, 1), (601, 37, 0)])
@pytest.mark.parametrize("count", [1, 2, 33])
def test_same_samples_as_numpy(count, n, d, offset, dtype, on_read, rng):
    X, weights = 3 + rng.standard_normal((n, d)), rng.random(n) + 0.5
    X[n // 3 : n // 2] = X[n // 3]
    centers, labels = rng.standard_normal((5, d)), rng.integers(0, 5, n).astype(np.int32)
    mean = X.mean(axis=0)
    data = data_of(X, dtype, weights if count == 2 else None, mean=mean, on_read=on_read, offset=offset)
    assert holds_rows(data)
    check(data, centers, labels, count)


# A thread of one block takes a second turn of eight rows; of nine, at most one row.
@pytest.mark.parametrize("multiprocessors", [1, 2, 9])
@pytest.mark.parametrize("count", every(2, [70, MOST_FARTHEST]))
def test_of_equal_distances_the_first(count, multiprocessors):
    data, labels = data_of(np.ones((4500, 2)), multiprocessors=multiprocessors), np.zeros(4500, np.int32)
    found = farthest_rows(data, np.zeros((1, 2)), labels, count)
    assert found.indices.tolist() == list(range(count))
    assert farthest_rows(data, np.ones((1, 2)), labels, count) is None


# Three launches, for which threads take a second turn of eight rows.
@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(("n", "count"), every(2, [(13_000, 70), (30_000, MOST_FARTHEST)], unpacked=True))
def test_distances_in_order(n, count, order):
    data = data_of(np.arange(float(n))[::order, np.newaxis])
    check(data, np.zeros((1, 1)), np.zeros(n, np.int32), count)


def test_infinite_distances(rng):
    X = rng.standard_normal((5000, 3))
    X[[17, 4000]] = 1e30
    with np.errstate(over="ignore"):
        check(data_of(X), np.zeros((1, 3)), np.zeros(5000, np.int32), 4)


def test_as_many_samples_as_there_are(rng):
    check(data_of(rng.standard_normal((7, 2))), np.zeros((1, 2)), np.zeros(7, np.int32), 7)


@property_test(
    20,
    300,
    n=st.integers(1, 6000),
    count=st.integers(1, 150),
    multiprocessors=st.integers(1, 4),
    values=st.integers(1, 50),
    dtype=st.sampled_from(["float32", "float64"]),
    seed=st.integers(0, 2**16),
)
def test_any_samples(n, count, multiprocessors, values, dtype, seed):
    rng = np.random.default_rng(seed)
    data = data_of(rng.integers(0, values, (n, 1)).astype(float), dtype, multiprocessors=multiprocessors)
    check(data, np.zeros((2, 1)), rng.integers(0, 2, n).astype(np.int32), min(n, count))


def test_data_whose_rows_may_have_other_bits(rng):
    X = rng.standard_normal((50, 2)).astype(np.float32)
    work, machine = np.dtype(np.float32), HostMachine()
    for rows in (UnitRows(RowsOnMachine(X), work), ScaledRows(RowsOnMachine(X), 1, work)):
        assert not holds_rows(DeviceData(rows, work, None, machine))
    # The mean is subtracted from a 16-bit X before kernels read it, as memory for a copy is missing.
    data = DeviceData(RowsOnMachine(X.astype(np.float16)), work, None, HostMachine(memory=0), takes_16_bit=True)
    data.center(np.ones(2))
    assert data.rows_on_gpu is not None
    assert not holds_rows(data)
    data.center(np.ones(2), on_read=True)
    assert holds_rows(data)
    assert not holds_rows(DeviceData(ArrayRows(X.astype(np.float64)), work, None, HostMachine(memory=0)))


def relocated(data, labels, centers, counts, monkeypatch, *, general):
    """Return the sums and weights after relocation of the empty clusters, and whether the kernel found the samples."""
    used = []

    def recorded(*arguments):
        used.append(True)
        return farthest_rows(*arguments)

    monkeypatch.setattr(empty_clusters, "farthest_rows", recorded)
    monkeypatch.setattr(empty_clusters, "_MOST_ORDERED", 0)
    monkeypatch.setattr(empty_clusters, "MOST_FARTHEST", 0 if general else MOST_FARTHEST)
    found = Assignment(0, np.arange(float(centers.size)).reshape(centers.shape), counts.copy(), float("nan"))
    empty_clusters.relocate_empty_clusters(data, labels, found, centers)
    return found.sums, found.weights, bool(used)


@pytest.mark.each_choice
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", WORK)
@pytest.mark.parametrize("empty", [1, 5, 32, MOST_FARTHEST, MOST_FARTHEST + 1])
def test_same_relocation_as_in_general(empty, dtype, weighted, rng, monkeypatch):
    n, d, k = 3000, 6, MOST_FARTHEST + 30
    X, labels = 3 + rng.standard_normal((n, d)), (empty + rng.permutation(n) % (k - empty)).astype(np.int32)
    weights = rng.random(n) + 0.5 if weighted else None
    data = data_of(X, dtype, weights, mean=X.mean(axis=0))
    centers, counts = rng.standard_normal((k, d)), np.bincount(labels, weights, k).astype(float)
    *fast, used = relocated(data, labels, centers, counts, monkeypatch, general=False)
    assert used == (empty <= MOST_FARTHEST)
    *general, used = relocated(data, labels, centers, counts, monkeypatch, general=True)
    assert not used
    np.testing.assert_array_equal(fast[0], general[0])
    np.testing.assert_array_equal(fast[1], general[1])
    assert (fast[1] > 0).all()


@pytest.mark.compile
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
def test_compiles_without_spills(arch):
    used = build(FARTHEST.read_text(encoding="utf-8"), list(KERNELS.values()), arch).resources
    for kernel in KERNELS.values():
        one = used[kernel]
        assert one.stack == one.spill_stores == one.spill_loads == 0, kernel
        assert one.registers * module._THREADS <= 65_536, kernel


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("empty", [1, 3, MOST_FARTHEST])
def test_same_relocation_on_a_gpu(empty, dtype, monkeypatch):
    cupy = pytest.importorskip("cupy", reason="needs a GPU: CuPy is not installed")
    from tsapps.kernels.runtime.machine import cuda_machine

    n, d, k, rng = 1_000_003, 16, MOST_FARTHEST + 30, np.random.default_rng(1)
    X, labels = 3 + rng.standard_normal((n, d)), (empty + rng.permutation(n) % (k - empty)).astype(np.int32)
    data = DeviceData(
        ArrayRows(cupy.asarray(X.astype(dtype))), np.dtype(WORK[dtype]), None, cuda_machine(0), takes_16_bit=True
    )
    data.center(X.mean(axis=0), on_read=True)
    centers, counts = rng.standard_normal((k, d)), np.bincount(labels, minlength=k).astype(float)
    on_gpu = cupy.asarray(labels)
    found = farthest_rows(data, centers, on_gpu, empty)
    indices, _ = expected_of(data, centers, on_gpu, empty)
    np.testing.assert_array_equal(found.indices, indices)
    np.testing.assert_array_equal(found.rows, data.rows(indices))
    for _ in range(3):
        *fast, used = relocated(data, on_gpu, centers, counts, monkeypatch, general=False)
        assert used
        *general, used = relocated(data, on_gpu, centers, counts, monkeypatch, general=True)
        assert not used
        np.testing.assert_array_equal(fast[0], general[0])
        np.testing.assert_array_equal(fast[1], general[1])


@pytest.mark.gpu
def test_of_equal_distances_the_first_on_a_gpu():
    cupy = pytest.importorskip("cupy", reason="needs a GPU: CuPy is not installed")
    from tsapps.kernels.runtime.machine import cuda_machine

    n = 1_000_003
    data = DeviceData(ArrayRows(cupy.ones((n, 3), np.float32)), np.dtype(np.float32), None, cuda_machine(0))
    labels = cupy.zeros(n, np.int32)
    found = farthest_rows(data, np.zeros((1, 3)), labels, MOST_FARTHEST)
    assert found.indices.tolist() == list(range(MOST_FARTHEST))
    assert farthest_rows(data, np.ones((1, 3)), labels, MOST_FARTHEST) is None
