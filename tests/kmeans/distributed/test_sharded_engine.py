"""Fits of X on several HostMachines: the bits of one machine, however the rows are distributed."""

from functools import partial

import numpy as np
import pytest
from exhaustive import every, property_test
from host_cuda import machine
from host_cuda.machine import HostMachine
from hypothesis import strategies as st
from kmeans.engines.test_device_engine import CASES, Case

from tsapps.apps.kmeans import lloyd
from tsapps.apps.kmeans.data import blocks
from tsapps.apps.kmeans.data.frame import ScaledRows
from tsapps.apps.kmeans.data.gpu_rows import GpuRows
from tsapps.apps.kmeans.data.rows import ArrayRows, UnitRows
from tsapps.apps.kmeans.distributed import deadline
from tsapps.apps.kmeans.distributed.sharded_engine import ShardedEngine
from tsapps.apps.kmeans.engines.device_engine import DeviceEngine
from tsapps.apps.kmeans.engines.device_step import DeviceStep
from tsapps.apps.kmeans.engines.large_k_step import LargeKStep
from tsapps.apps.kmeans.engines.select_step import Options
from tsapps.apps.kmeans.engines.small_d_step import SmallDFmaStep
from tsapps.apps.kmeans.engines.small_k_step import SmallKStep
from tsapps.apps.kmeans.init import oversampling_chunks
from tsapps.kernels.devices import NoDeviceError
from tsapps.kernels.gpu_specs import KNOWN


def add_up(own, total):
    """The all-reduce of HostMachines."""
    found = np.sum(own, axis=0)
    for array in total:
        array[...] = found


class AllReduce:
    """The all-reduce of as many HostMachines."""

    def __init__(self, machines):
        self.count, self.aborted = len(machines), False

    def __call__(self, own, total):
        assert len(own) == len(total) == self.count > 1
        add_up(own, total)

    def abort(self):
        self.aborted = True


@pytest.fixture(autouse=True)
def not_small(monkeypatch):
    """No X is small, or has fewer chunks of k-means‖ than of other sums."""
    monkeypatch.setattr(blocks, "SMALL", 0)
    monkeypatch.setattr(oversampling_chunks, "_CHUNK_ELEMENTS", 1)


def engines(case, X, weights, shares, source=ArrayRows):
    """Return the engine of one machine, and that of several."""
    options, n = Options(always=True, bounds=case.bounds), len(shares)

    def over(rows):
        return ShardedEngine(
            rows, case.work, weights, [HostMachine(1 + i) for i in range(n)], options, AllReduce, shares
        )

    def alone(rows):
        return DeviceEngine(rows, case.work, weights, HostMachine(), options)

    one, several = alone(on_machine(source(X))), over(source(X))
    one.over, several.over = alone, over
    return one, several


def on_machine(rows):
    """Have rows of an array read from the memory of a HostMachine."""
    base = getattr(rows, "source", rows)
    base.device = rows.device = HostMachine.index
    return rows


def fitted(engine, case, **options):
    given = {"n_init": 1, "max_iter": 4, "tol": 0.0, "random_state": np.random.RandomState(0), **options}
    return lloyd.fit(engine, case.k, **given)


def same_bits(found, expected):
    np.testing.assert_array_equal(found.labels, expected.labels)
    assert found.labels.dtype == np.int32
    assert found.centers.dtype == expected.centers.dtype
    np.testing.assert_array_equal(found.centers, expected.centers)
    np.testing.assert_array_equal(found.cluster_sizes, expected.cluster_sizes)
    assert (found.n_iter, found.converged, found.inertia) == (expected.n_iter, expected.converged, expected.inertia)
    assert (found.step, found.step_reason) == (expected.step, expected.step_reason)


SHARES = [(1, 1), (9, 1), (1, 2, 1)]


def many(case):
    """Return a case with as many samples as several shards need, and no more of those that take long on a CPU."""
    few = 1300 if case.d > 1000 or case.step is LargeKStep else 2100
    return case._replace(n=4200 if case.d <= 16 else few)


MANY = [many(case) for case in CASES]
LONG = {case for case in MANY if case.d > 85} | {MANY[1], MANY[4], MANY[5], MANY[9], MANY[11]}
MANY = [pytest.param(case, marks=pytest.mark.exhaustive if case in LONG else (), id=str(case)) for case in MANY]


@pytest.mark.each_choice
@pytest.mark.parametrize("init", ["array", "random", "k-means||", "k-means++"])
@pytest.mark.parametrize("shares", SHARES, ids=str)
@pytest.mark.parametrize("case", MANY)
def test_the_bits_are_those_of_one_machine(case, shares, init, rng):
    X, weights = case.data(rng)
    one, several = engines(case, X, weights, shares)
    assert len(several.data.shards) == len(shares)
    given = X[:: len(X) // case.k][: case.k].astype(np.float64) if init == "array" else init
    expected = fitted(one, case, init=given)
    assert isinstance(one.step_for(case.k), case.step)
    same_bits(fitted(several, case, init=given), expected)
    assert several.data.device == ",".join(["cuda:0", *["0"] * (len(shares) - 1)])


@pytest.mark.parametrize(
    "case",
    [
        Case(SmallDFmaStep, 4200, 4, 9),
        pytest.param(Case(LargeKStep, 1300, 20, 70, weighted=True), marks=pytest.mark.exhaustive),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_empty_clusters(case, rng):
    values = rng.standard_normal((case.k + 20, case.d)).astype(np.float32)
    X = values[rng.integers(0, len(values), case.n)]
    init = X[rng.integers(0, len(X), case.k)].astype(np.float64)
    init[1::2] = init[0]
    weights = rng.random(case.n) + 0.5 if case.weighted else None
    for shares in SHARES[1:]:
        one, several = engines(case, X, weights, shares)
        same_bits(fitted(several, case, init=init, max_iter=3), fitted(one, case, init=init, max_iter=3))


@property_test(2, 10, st.lists(st.floats(0.05, 1), min_size=2, max_size=6))
def test_any_shares(shares):
    case = Case(SmallKStep, 2600, 20, 5)
    X, _ = case.data(np.random.default_rng(len(shares)))
    one, several = engines(case, X, None, shares)
    same_bits(fitted(several, case, max_iter=4), fitted(one, case, max_iter=4))


@pytest.mark.parametrize("shares", every(2, SHARES), ids=str)
def test_several_runs_progress_and_results_in_between(shares, rng):
    case = Case(SmallKStep, 2100, 20, 9)
    X, _ = case.data(rng)
    one, several = engines(case, X, None, shares)
    told = [], []
    expected = fitted(one, case, init="random", n_init=2, max_iter=3, progress=told[0].append)
    same_bits(fitted(several, case, init="random", n_init=2, max_iter=3, progress=told[1].append), expected)
    assert told[0] == told[1]
    assert len(told[0]) == 6


def test_the_cosine_metric(rng):
    case = Case(SmallKStep, 2100, 20, 9)
    X, _ = case.data(rng)
    one, several = engines(case, X, None, (9, 1), lambda X: UnitRows(ArrayRows(X), np.dtype(np.float32)))
    same_bits(fitted(several, case), fitted(one, case))


@pytest.mark.parametrize("scale", [2.0**-80, 2.0**70])
def test_data_whose_squares_are_out_of_range(scale, rng):
    case = Case(SmallKStep, 2100, 20, 9)
    X, _ = case.data(rng)
    one, several = engines(case, (X * scale).astype(np.float32), None, (9, 1))
    expected = fitted(one, case, max_iter=3)
    assert expected.fitted.frame.exponent != 0
    same_bits(fitted(several, case, max_iter=3), expected)
    assert isinstance(several.over(ScaledRows(several.data.source, 3, case.work)).data.source, ScaledRows)


@pytest.mark.parametrize("shares", every(2, SHARES), ids=str)
def test_single_passes(shares, rng):
    """What predict, transform and score compute."""
    case = Case(SmallKStep, 2100, 20, 9, weighted=True)
    X, weights = case.data(rng)
    centers, mean, found = rng.standard_normal((9, 20)), np.full(20, 2, np.float32), []
    for engine in engines(case, X, weights, shares):
        with engine:
            placed = engine.place(centers, mean)
            step = engine.step_for(9)
            step.assign(placed, update=False)
            sizes, distances = step.cluster_sizes(step.labels, 9), engine.data.distances(placed)
            found.append((step.labels, distances, sizes, engine.data.inertia(placed, step.labels)))
    for mine, expected in zip(*found, strict=True):
        np.testing.assert_array_equal(mine, expected)


def test_a_row_that_is_not_finite_is_named_by_its_number_in_x(rng):
    case = Case(SmallKStep, 2100, 20, 9)
    X, _ = case.data(rng)
    X[2099, 3] = np.nan
    _, several = engines(case, X, None, (1, 1))
    with pytest.raises(ValueError, match="X: row 2099, column 3 is nan: K-means needs finite numbers"):
        fitted(several, case)


def test_what_runs_on_one_gpu_only(rng):
    case = Case(SmallKStep, 2100, 20, 9)
    X, _ = case.data(rng)
    _, several = engines(case, X, None, (1, 1))
    options = Options(kernels=False)
    several = ShardedEngine(ArrayRows(X), case.work, None, [HostMachine()] * 2, options, AllReduce)
    with pytest.raises(NoDeviceError, match="on cuda:0 engine='cublas' was asked for; use one GPU"):
        fitted(several, case)


def test_gpus_of_several_kinds(rng):
    X = rng.standard_normal((2100, 20)).astype(np.float32)
    machines = [HostMachine(), HostMachine(gpu=KNOWN["A100"])]
    with pytest.raises(NoDeviceError, match=r"9.0 \(cuda:0\), 8.0 \(cuda:0\); expected GPUs of one kind"):
        ShardedEngine(ArrayRows(X), np.dtype(np.float32), None, machines, Options(), AllReduce)


def test_a_callable_gets_all_centered_rows(rng):
    case = Case(SmallKStep, 2100, 20, 9)
    X, _ = case.data(rng)
    one, several = engines(case, X, None, (9, 1))
    given = []

    def init(X, k, random_state):
        given.append(X)
        return X[:k]

    expected = fitted(one, case, init=init)
    same_bits(fitted(several, case, init=init), expected)
    np.testing.assert_array_equal(given[1], given[0])


@pytest.mark.parametrize(("n", "shards"), every(2, [(300, 1), (1000, 2), (2000, 4)], unpacked=True))
def test_fewer_chunks_than_machines(n, shards, rng):
    case = Case(SmallKStep, n, 20, 9)
    X, _ = case.data(rng)
    one, several = engines(case, X, None, (1,) * 8)
    assert len(several.data.shards) == shards
    same_bits(fitted(several, case), fitted(one, case))


@pytest.mark.parametrize("where", ["iteration 1 of a run on cuda:0,0", "k-means\\+\\+ on cuda:0,0", "an assignment"])
def test_a_gpu_that_does_not_answer(where, rng, monkeypatch):
    case = Case(SmallKStep, 2100, 20, 9)
    X, _ = case.data(rng)
    _, several = engines(case, X, None, (1, 1))
    monkeypatch.setattr(deadline, "_SECONDS", 0.0)
    monkeypatch.setattr(DeviceStep, "has_outcome", lambda step, count: not where.startswith("iteration"))
    monkeypatch.setattr(machine._Done, "done", where.startswith("iteration"))
    init = "k-means++" if where.startswith("k") else X[:9].astype(np.float64)
    call = partial(fitted, several, case, init=init)
    if where == "an assignment":
        call = partial(several.step_for(9).assign, X[:9] - 2)
    with pytest.raises(TimeoutError, match=f"{where} has not ended"):
        call()
    assert several._all_reduce.aborted


def test_an_error_during_iterations_aborts_the_all_reduce(rng, monkeypatch):
    case = Case(SmallKStep, 2100, 20, 9)
    X, _ = case.data(rng)
    _, several = engines(case, X, None, (1, 1))
    failed, synchronized = [], []

    def failing(step, count):
        failed.append(1)
        raise RuntimeError("a GPU failed")

    def synchronize(self):
        if failed:
            synchronized.append(1)
            raise RuntimeError("and says so again")

    monkeypatch.setattr(DeviceStep, "outcome", failing)
    monkeypatch.setattr(machine._Done, "synchronize", synchronize)
    with pytest.raises(RuntimeError, match=r"^a GPU failed$"):
        fitted(several, case, init=X[:9].astype(np.float64))
    assert several._all_reduce.aborted
    assert synchronized


def test_rows_that_kernels_cannot_read(rng, monkeypatch):
    """A GPU without memory for the scaled rows: an error that says so."""
    case = Case(SmallKStep, 2100, 20, 9)
    X, _ = case.data(rng)
    monkeypatch.setattr(GpuRows, "fits", lambda data, size: False)
    _, several = engines(case, X, None, (1, 1), lambda X: UnitRows(ArrayRows(X), np.dtype(np.float32)))
    with pytest.raises(
        NoDeviceError, match=r"several GPUs need the kernels of this package, but .* in windows: X is not"
    ):
        fitted(several, case, init=X[:9].astype(np.float64))


def test_more_rows_than_indices_have_bits():
    X = np.broadcast_to(np.float32(0), (1 << 32, 1))
    with pytest.raises(NoDeviceError, match="X has 4294967296 rows; expected less than 4294967168 on several GPUs"):
        ShardedEngine(ArrayRows(X), np.dtype(np.float32), None, [HostMachine()] * 2, Options(), AllReduce)


# --- Protected fits ---------------------------------------------------------------------------------------------------

PROTECTED = [
    Case(SmallDFmaStep, 4200, 8, 12),
    Case(SmallKStep, 2100, 20, 33, weighted=True),
    Case(SmallKStep, 2100, 40, 7, "float64"),
    pytest.param(Case(LargeKStep, 1300, 20, 70), marks=pytest.mark.exhaustive),
]


@pytest.mark.each_choice
@pytest.mark.parametrize("init", ["k-means++", "array", "far"])
@pytest.mark.parametrize("shares", SHARES, ids=str)
@pytest.mark.parametrize("case", PROTECTED, ids=str)
def test_protection_changes_no_bit(case, shares, init, rng):
    """Also if clusters are empty."""
    X, weights = case.data(rng)
    one, several = engines(case, X, weights, shares)
    given = init
    if init != "k-means++":
        given = X[:: len(X) // case.k][: case.k].astype(np.float64)
        given[case.k // 2] += 1e4 * (init == "far")
    found = fitted(several, case, init=given, protect=True)
    same_bits(found, fitted(one, case, init=given))
    assert found.faults == 0


@pytest.mark.parametrize("weighted", [pytest.param(False, marks=pytest.mark.exhaustive), True])
def test_a_protected_fit_by_cosine(weighted, rng):
    case = Case(SmallKStep, 2100, 20, 9, weighted=weighted)
    X, weights = case.data(rng)
    one, several = engines(case, X, weights, (1, 2), source=partial(unit_rows))
    found = fitted(several, case, init=X[:9].astype(np.float64), protect=True)
    same_bits(found, fitted(one, case, init=X[:9].astype(np.float64)))
    assert found.faults == 0


def unit_rows(X):
    return UnitRows(ArrayRows(X), np.float32)


def wrong_sum(step):
    step.buffers.sums[2, 3] += 1 << 20


def wrong_sum_of_all(step):
    step.buffers.total_sums[1, 0] += 1 << 20


def wrong_labels(step):
    step.buffers.labels[: step.data.n_samples // 2] ^= 1


def wrong_centers(step):
    for centers in step.buffers.centers:
        centers[1, 1] += 1


FAULTS = {
    "sum": (wrong_sum, "launch_rows"),
    "sum of all": (wrong_sum_of_all, "launch_centers"),
    "labels": (wrong_labels, "launch_rows"),
    "centers": (wrong_centers, "launch_rows"),
    "new centers": (wrong_centers, "launch_check"),
}


@pytest.mark.each_choice
@pytest.mark.parametrize("gpu", [0, 1, 2])
@pytest.mark.parametrize("iteration", [1, 4])
@pytest.mark.parametrize("fault", every(2, ["sum of all", "sum", "labels", "centers", "new centers"]))
def test_a_fault_on_one_gpu_is_repaired(fault, iteration, gpu, rng, monkeypatch):
    """In the first iteration, whose sums are those that later ones are compared with, and in one of the middle."""
    case = Case(SmallKStep, 2100, 20, 9)
    X, _ = case.data(rng)
    one, several = engines(case, X, None, (2, 1, 1))
    options = {"init": X[:9].astype(np.float64), "max_iter": 5}
    expected = fitted(one, case, **options)
    assert expected.n_iter == 5
    made, where = FAULTS[fault]
    called, shard, launches = getattr(DeviceStep, where), several.data.shards[gpu], 0

    def once(step, *arguments, **given):
        nonlocal launches
        launches += step.data is shard
        happens = step.data is shard and launches == iteration
        if happens and where != "launch_rows":
            made(step)
        called(step, *arguments, **given)
        if happens and where == "launch_rows":
            made(step)

    monkeypatch.setattr(DeviceStep, where, once)
    found = fitted(several, case, protect=True, **options)
    same_bits(found, expected)
    assert launches > iteration
    assert found.faults > 0
