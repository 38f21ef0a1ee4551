"""The farthest samples, by the launches of update/farthest_rows.cuh on a HostMachine, against NumPy."""

from pathlib import Path

import numpy as np
import pytest
from exhaustive import every, property_test
from host_cuda.machine import HostMachine, build_together, placed
from hypothesis import strategies as st
from kmeans.host_steps import DTYPES, RowsOnMachine, work_of

from tsapps.apps.kmeans.data import device_data
from tsapps.apps.kmeans.data.device_data import DeviceData
from tsapps.apps.kmeans.data.rows import ArrayRows
from tsapps.apps.kmeans.update import relocation as module
from tsapps.apps.kmeans.update.plan import MOST_RELOCATED
from tsapps.apps.kmeans.update.relocation import FAR_ROW, FarthestRows
from tsapps.kernels.jit.compiler import build
from tsapps.kernels.plan.mma import ELEMENT

PASSES, FARTHEST = (
    Path(device_data.__file__).with_name("passes.cuh"),
    Path(module.__file__).with_name("farthest_rows.cuh"),
)
KERNELS = [f"kmeans::{name}<{work}>" for work in ("float", "double") for name in ("select_digit", "list_farthest_rows")]
for each in DTYPES:
    types = f"{ELEMENT[each]}, {ELEMENT[work_of(each).name]}"
    build_together([(PASSES, [f"own_distances<{types}, {v}>"]) for v in ("true", "false")])


def data_of(X, dtype="float32", *, mean=None, multiprocessors=3, offset=0):
    """Return X in `dtype` on a machine, centered about `mean` or zero."""
    rows = RowsOnMachine(placed(X.astype(DTYPES[dtype]), offset))
    data = DeviceData(rows, work_of(dtype), None, HostMachine(multiprocessors), takes_16_bit=True)
    data.center(np.zeros(X.shape[1]) if mean is None else mean, on_read=True)
    return data


def found_of(data, centers, labels, count, search=None, stopped=None):
    """Return the rows and distances that launches find for `count` empty clusters, or if `stopped` is another word."""
    search = search or FarthestRows(data, labels)
    word = data.machine.on_gpu(np.array([1 + count if stopped is None else stopped], np.uint32))
    for launch in (search.bind_distances(data.on_device(centers), word), *search.bind_search(word)):
        launch()
    found = search.found if isinstance(search.found, np.ndarray) else search.found.get()
    found = found.view(FAR_ROW)[:count]
    return found["row"].copy(), found["distance"].copy()


def check(data, centers, labels, count):
    rows, distances = found_of(data, centers, labels, count)
    every_distance = data.own_distances(centers, labels)
    expected = np.lexsort((np.arange(len(labels)), -every_distance))[:count]
    np.testing.assert_array_equal(rows, expected)
    np.testing.assert_array_equal(distances, every_distance[expected])


def test_five_rows_by_hand():
    # Distances to the centers (0, 0) and (10, 0), after (1, 1) is subtracted: 1, 4, 0, 4, 9.
    X = np.array([[2.0, 1], [1, 3], [11, 1], [13, 1], [1, 4]])
    centers, labels = np.array([[0.0, 0], [10, 0]]), np.array([0, 0, 1, 1, 0], np.int32)
    rows, distances = found_of(data_of(X, mean=np.ones(2)), centers, labels, 3)
    assert rows.tolist() == [4, 1, 3]
    assert distances.tolist() == [9, 4, 4]


@pytest.mark.each_choice
@pytest.mark.parametrize("label", [np.int32, np.int8])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "d", "offset"), [(40, 1, 0), (777, 3, 1), (20_011, 4, 0), (5003, 8, 1), (601, 37, 0)])
@pytest.mark.parametrize("count", [1, 2, 33])
def test_same_samples_as_numpy(count, n, d, offset, dtype, label, rng):
    X = 3 + rng.standard_normal((n, d))
    X[n // 3 : n // 2] = X[n // 3]
    centers, labels = rng.standard_normal((5, d)), rng.integers(0, 5, n)
    check(data_of(X, dtype, mean=X.mean(axis=0), offset=offset), centers, labels.astype(label), count)


# A thread of one block takes a second turn of eight rows; of nine, at most one row.
@pytest.mark.parametrize("multiprocessors", [1, 2, 9])
@pytest.mark.parametrize("count", every(2, [1, 70, MOST_RELOCATED]))
def test_of_equal_distances_the_first(count, multiprocessors):
    data, labels = data_of(np.ones((9000, 2)), multiprocessors=multiprocessors), np.zeros(9000, np.int32)
    rows, distances = found_of(data, np.zeros((1, 2)), labels, count)
    assert rows.tolist() == list(range(count))
    assert (distances == 2).all()
    assert (found_of(data, np.ones((1, 2)), labels, count)[1] == 0).all()


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(("n", "count"), every(2, [(13_000, 70), (30_000, MOST_RELOCATED)], unpacked=True))
def test_distances_in_order(n, count, order):
    data = data_of(np.arange(float(n))[::order, np.newaxis])
    check(data, np.zeros((1, 1)), np.zeros(n, np.int32), count)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_distances_that_differ_in_the_last_bit(dtype, rng):
    """Rows are 1 + i units of the last place, whose squares are exact in no type: the order is that of distances."""
    n, eps = 3000, np.finfo(dtype).eps
    check(data_of((1 + eps * rng.permutation(n))[:, np.newaxis], dtype), np.zeros((1, 1)), np.zeros(n, np.int32), 500)


def test_distances_of_any_magnitude(rng):
    X = 10.0 ** rng.uniform(-22, 19, (4000, 1))
    check(data_of(X), np.zeros((1, 1)), np.zeros(4000, np.int32), 700)


def test_infinite_distances(rng):
    X = rng.standard_normal((5000, 3))
    X[[17, 4000]] = 1e30
    with np.errstate(over="ignore"):
        check(data_of(X), np.zeros((1, 3)), np.zeros(5000, np.int32), 4)


def test_as_many_samples_as_there_are(rng):
    check(data_of(rng.standard_normal((7, 2))), np.zeros((1, 2)), np.zeros(7, np.int32), 7)


@pytest.mark.parametrize(("stopped", "count"), [(0, 0), (1, 0), (2, 1), (41, 40), (1025, 1024), (1026, 0)])
def test_as_many_as_there_are_empty_clusters(stopped, count, rng):
    data, labels = data_of(rng.standard_normal((2000, 2))), np.zeros(2000, np.int32)
    search, centers = FarthestRows(data, labels), np.zeros((1, 2))
    search.found.view(FAR_ROW)["row"] = -1
    rows, _ = found_of(data, centers, labels, MOST_RELOCATED, search, stopped)
    expected = np.argsort(-data.own_distances(centers, labels), kind="stable")[:count]
    assert rows[:count].tolist() == expected.tolist()
    assert (rows[count:] == -1).all()


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


@pytest.mark.compile
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
def test_compiles_without_spills(arch):
    used = build(FARTHEST.read_text(encoding="utf-8"), KERNELS, arch).resources
    for kernel in KERNELS:
        one = used[kernel]
        assert one.stack == one.spill_stores == one.spill_loads == 0, kernel
        assert one.registers * module._SEARCH_THREADS <= 65_536 // 2, kernel


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("count", [1, 3, MOST_RELOCATED])
@pytest.mark.parametrize("values", [2, 1000, 0])
def test_same_samples_on_a_gpu(values, count, dtype):
    cupy = pytest.importorskip("cupy", reason="needs a GPU: CuPy is not installed")
    from tsapps.kernels.runtime.machine import cuda_machine

    n, d, rng = 1_000_003, 4, np.random.default_rng(1)
    X = rng.integers(0, values, (n, d)).astype(float) if values else rng.standard_normal((n, d))
    data = DeviceData(
        ArrayRows(cupy.asarray(X.astype(dtype))), work_of(dtype), None, cuda_machine(0), takes_16_bit=True
    )
    data.center(X.mean(axis=0), on_read=True)
    for _ in range(3):
        check(data, rng.standard_normal((7, d)), cupy.asarray(rng.integers(0, 7, n).astype(np.int32)), count)
