"""Fits of several numbers of clusters by one engine: each has the bits of a fit alone, and X is copied once."""

import gc
import weakref

import numpy as np
import pytest
from host_cuda.machine import HostMachine
from kmeans.host_steps import DTYPES, RowsOnMachine, work_of
from scipy.sparse import random as random_sparse

from tsapps.apps.kmeans import lloyd
from tsapps.apps.kmeans.data.rows import ArrayRows
from tsapps.apps.kmeans.engines.device_engine import DeviceEngine
from tsapps.apps.kmeans.engines.engine import HostEngine
from tsapps.apps.kmeans.engines.select_step import Options
from tsapps.apps.kmeans.number_of_clusters import choose_k
from tsapps.apps.kmeans.open_engine import open_engine
from tsapps.apps.kmeans.shared_copy import SharedCopy, fit_each

# 1 and 2 clusters have candidates by twos, 3 to 7 by threes, and 8 to 20 by fours.
NUMBERS = (13, 1, 2, 3, 5, 8)


def fit(engine, k, **options):
    return lloyd.fit(engine, k, random_state=np.random.RandomState(3), max_iter=6, **options)


def assert_same_bits(found, expected):
    np.testing.assert_array_equal(found.labels, expected.labels)
    np.testing.assert_array_equal(found.centers, expected.centers)
    np.testing.assert_array_equal(found.cluster_sizes, expected.cluster_sizes)
    assert found.centers.dtype == expected.centers.dtype
    assert (found.inertia, found.n_iter, found.converged) == (expected.inertia, expected.n_iter, expected.converged)
    assert (found.step, found.step_reason) == (expected.step, expected.step_reason)


def assert_as_alone(opened, numbers, **options):
    """Fit with one `SharedCopy` and with a new engine for each number; return how often the first opened X."""
    count = []

    def counted():
        count.append(1)
        return opened()

    found = fit_each(SharedCopy(counted), numbers, lambda engine, k: fit(engine, k, **options))
    assert list(found) == sorted(numbers)
    for k, one in found.items():
        assert_same_bits(one, fit(opened(), k, **options))
    return len(count)


def overlapping(n, d, k, rng):
    """Return samples of clusters that overlap, far from zero compared with their spread."""
    return 20 + 3 * rng.standard_normal((k, d))[np.arange(n) % k] / d**0.5 + rng.standard_normal((n, d))


@pytest.mark.parametrize("options", [{}, {"n_init": 2}, {"init": "k-means||"}, {"init": "random"}], ids=str)
@pytest.mark.parametrize("engine", ["auto", "fused"])  # scikit-learn's rounding, and that of the kernels
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_on_the_cpu(dtype, engine, options, rng):
    X = overlapping(400, 6, 7, rng).astype(dtype)
    assert assert_as_alone(lambda: open_engine(X, device="cpu", engine=engine), NUMBERS, **options) == 1


@pytest.mark.parametrize("kind", ["cosine", "sparse", "streamed", "scaled", "float16"])
def test_other_data_on_the_cpu(kind, rng, monkeypatch):
    X, metric = overlapping(300, 5, 4, rng), "euclidean"
    if kind == "sparse":
        X = random_sparse(300, 20, 0.3, format="csr", random_state=1)
    elif kind == "streamed":
        monkeypatch.setattr("tsapps.apps.kmeans.data.host_data.HostData.fits", lambda *_: False)
        monkeypatch.setattr("tsapps.apps.kmeans.data.host_data.HostData._borrow", lambda _: None)
    elif kind == "scaled":
        X *= 1e160  # squares overflow
    elif kind == "float16":
        X = X.astype(np.float16)
    else:
        metric = "cosine"
    assert assert_as_alone(lambda: open_engine(X, device="cpu", metric=metric), NUMBERS) == 1


@pytest.mark.parametrize(
    ("n", "d", "dtype", "numbers"),
    [
        # Steps for small d, small k and large k.
        pytest.param(400, 20, "float32", (6, 33, 70), marks=pytest.mark.exhaustive),
        (300, 70, "bfloat16", (4, 6)),
    ],
)
def test_on_a_gpu_that_holds_it(n, d, dtype, numbers, rng):
    X = overlapping(n, d, 7, rng).astype(DTYPES[dtype])
    before = X.copy()

    def opened():
        return DeviceEngine(RowsOnMachine(X), work_of(dtype), None, HostMachine(), Options(always=True))

    assert assert_as_alone(opened, numbers) == 1
    np.testing.assert_array_equal(X, before)
    shared = SharedCopy(opened)
    fit_each(shared, numbers[:1], fit)
    with shared.rows() as rows:
        assert rows.array is X


def test_a_fit_that_centers_the_copy_leaves_no_engine(rng):
    """Where cuBLAS iterates: then each fit opens X, when the memory of the engine before it is free."""
    X, engines = overlapping(200, 6, 4, rng), []

    def opened():
        gc.collect()
        assert all(engine() is None for engine in engines)
        made = DeviceEngine(ArrayRows(X), np.dtype(np.float64), None, HostMachine(), Options(kernels=False))
        engines.append(weakref.ref(made))
        return made

    shared = SharedCopy(opened)
    found = fit_each(shared, (2, 5, 4), fit)
    assert len(engines) == 3
    with shared.rows() as rows:
        assert rows.array is X
    for k, one in found.items():
        assert one.step == "cublas"
        alone = DeviceEngine(ArrayRows(X), np.dtype(np.float64), None, HostMachine(), Options(kernels=False))
        assert_same_bits(one, fit(alone, k))


def test_kernels_then_cublas_then_kernels(rng, monkeypatch):
    """Fewer clusters may need another step: samples drawn from rows as they are read serve no centered copy."""
    from tsapps.apps.kmeans.engines import device_engine
    from tsapps.apps.kmeans.engines.select_step import StepPlan, select_step

    monkeypatch.setattr(
        device_engine,
        "select_step",
        lambda facts, k, *given: StepPlan("cublas", "a test") if k == 5 else select_step(facts, k, *given),
    )
    X = overlapping(300, 20, 7, rng).astype(np.float32)

    def opened():
        return DeviceEngine(ArrayRows(X.copy()), np.dtype(np.float32), None, HostMachine(), Options(always=True))

    assert assert_as_alone(opened, (7, 5, 4)) == 2


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize(("n_init", "draws"), [(1, 3), (2, 3 + len(NUMBERS))])
def test_samples_are_drawn_once_for_numbers_with_as_many_candidates(n_init, draws, large, rng, monkeypatch):
    from tsapps.apps.kmeans.init import plusplus, plusplus_host

    module, name = (plusplus_host, "draw_samples") if large else (plusplus, "_draw")
    draw, steps = getattr(module, name), []

    def counted(data, first, draws, *rest, **how):
        steps.append(len(draws))
        return draw(data, first, draws, *rest, **how)

    monkeypatch.setattr(module, name, counted)
    if large:
        monkeypatch.setattr("tsapps.apps.kmeans.data.blocks.SMALL", 0)
    X = overlapping(300, 4, 5, rng).astype(np.float32)
    opened = SharedCopy(lambda: open_engine(X, device="cpu"))
    fit_each(opened, NUMBERS, lambda engine, k: fit(engine, k, n_init=n_init))
    assert len(steps) == draws
    assert steps[0] == max(NUMBERS) - 1


class CountedRows:
    """Rows that count how often all of them are read."""

    name, device, dtype = "counted", None, np.dtype(np.float64)

    def __init__(self, array):
        self.array, self.shape, self.passes = array, array.shape, 0

    def blocks(self, rows):
        self.passes += 1
        return ArrayRows(self.array).blocks(rows)

    def rows(self, indices):
        return self.array[indices]


@pytest.mark.parametrize("ks", [(3,), (2, 3, 4, 5, 9)])
def test_a_file_is_read_as_often_for_many_numbers_as_for_one(ks, rng):
    rows = CountedRows(overlapping(500, 5, 4, rng))
    choose_k(rows, ks, device="cpu", sample=50)
    assert rows.passes == 3  # to memory, and for scores


def test_the_scores_of_large_data_are_computed_from_the_copy(rng, monkeypatch):
    monkeypatch.setattr("tsapps.apps.kmeans.data.blocks.SMALL", 0)
    rows = CountedRows(overlapping(500, 5, 4, rng))
    choose_k(rows, (2, 3, 4), device="cpu", sample=50)
    assert rows.passes == 1


def test_a_caller_that_fits_with_one_engine_twice(rng):
    X = overlapping(300, 4, 5, rng)
    engine = HostEngine(ArrayRows(X), np.dtype(np.float64), None)
    first = fit(engine, 5).centers
    np.testing.assert_array_equal(fit(engine, 5).centers, first)
