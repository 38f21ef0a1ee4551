"""Fits on several HostMachines that do not hold X together: the bits of one process on a CPU."""

import time

import ml_dtypes
import numpy as np
import pytest
import scipy.sparse
from exhaustive import every
from host_cuda.machine import HostMachine
from kmeans.distributed.cut_fits import fitted, host_engine, same_bits, samples, stored
from kmeans.engines.test_pinned_rows import Pinning

from tsapps.apps.kmeans.data import blocks
from tsapps.apps.kmeans.data.device_data import DeviceData
from tsapps.apps.kmeans.data.frame import ScaledRows
from tsapps.apps.kmeans.data.rows import ArrayRows, SparseRows, UnitRows, as_rows
from tsapps.apps.kmeans.distributed import part_engines
from tsapps.apps.kmeans.distributed.local_parts import LocalPartsEngine, parts_of_gpus
from tsapps.apps.kmeans.distributed.part import Part, PartState
from tsapps.apps.kmeans.engines.device_engine import DeviceEngine
from tsapps.apps.kmeans.engines.running_sums_step import RunningSumsStep
from tsapps.apps.kmeans.engines.select_step import Options
from tsapps.apps.kmeans.engines.window_pass import WindowPass
from tsapps.apps.kmeans.init import oversampling_chunks
from tsapps.apps.kmeans.open_engine import compute_dtype
from tsapps.kernels.devices import NoDeviceError
from tsapps.kernels.gpu_specs import KNOWN
from tsapps.kernels.runtime.pin_in_place import PinningError

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.fixture(autouse=True)
def apart(monkeypatch):
    """Take host memory for other than that of the HostMachines; no X is small, and has as many chunks as it can."""
    borrow = DeviceData._borrow
    monkeypatch.setattr(DeviceData, "_borrow", lambda data: None if data.source.device is None else borrow(data))
    monkeypatch.setattr(DeviceData, "copies", lambda data: False)
    monkeypatch.setattr(blocks, "SMALL", 0)
    monkeypatch.setattr(oversampling_chunks, "_CHUNK_ELEMENTS", 1)


@pytest.fixture
def over(monkeypatch):
    """Return a function that makes the engine of X on GPUs, where rows are in `place`."""

    def made(X, weights=None, place="copied", count=2, source=ArrayRows):
        error = PinningError("its pages cannot be pinned") if place == "streamed" else None
        memory = 1 << 34 if place == "copied" else (1 << 30) + 12 * len(X)
        machines = [Pinning(error, memory) for _ in range(count)]
        monkeypatch.setattr(part_engines, "gpu_of", _in_turn(machines))
        rows, dtype = source(X), compute_dtype(X.dtype, on_gpu=True)
        with monkeypatch.context() as full:
            full.setattr(HostMachine, "free_bytes", lambda machine: 0)
            parts = parts_of_gpus(getattr(rows, "source", rows), dtype, machines)
        return LocalPartsEngine(rows, parts, dtype, weights, machines)

    return made


def _in_turn(machines):
    """Return each machine once for each part that is made."""
    turns = iter(machines * 100)
    return lambda device: next(turns)


PLACES = ["copied", "windows", "streamed"]


@pytest.mark.each_choice
@pytest.mark.parametrize("init", ["random", "k-means||", "k-means++"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize(
    ("n", "d", "k", "dtype", "weighted"),
    [
        (1100, 80, 5, np.float32, False),
        (1100, 17, 5, np.float32, True),
        pytest.param(700, 20, 66, np.float64, False, marks=pytest.mark.exhaustive),
        (1100, 33, 4, np.float16, True),
        (1100, 70, 4, ml_dtypes.bfloat16, False),
        (2100, 3, 5, np.float32, False),
    ],
)
def test_the_bits_are_those_of_a_cpu(n, d, k, dtype, weighted, count, place, init, rng, over):
    X = samples(rng, n, d, k, dtype)
    weights = rng.random(n) + 0.5 if weighted else None
    engine = over(X, weights, place, count)
    found, expected = (fitted(one, k, init=init) for one in (engine, host_engine(X, weights)))
    assert len(engine.data.crew.parts) == count
    same_bits(found, expected)
    assert engine.data.device == ",".join(["cuda:0", "0", "0"][:count])


@pytest.mark.parametrize("place", [pytest.param("copied", marks=pytest.mark.exhaustive), "windows"])
def test_many_clusters(place, rng, over):
    X = samples(rng, 700, 20, 66, np.float64)
    options = {"init": X[:66], "max_iter": 3}
    same_bits(fitted(over(X, place=place), 66, **options), fitted(host_engine(X), 66, **options))


@pytest.mark.parametrize(("place", "of_each_iteration"), [("copied", False), ("windows", True)])
def test_what_is_read_in_windows(place, of_each_iteration, rng, over, monkeypatch):
    """Where the half-precision copy fits, only the first iteration of a run."""
    launched, launch = [], WindowPass.launch
    monkeypatch.setattr(WindowPass, "launch", lambda *given, **options: launched.append(launch(*given, **options)))
    X = samples(rng, 1100, 80, 5)
    found = fitted(over(X, place=place), 5, init="random", max_iter=2)
    assert (found.n_iter, found.converged) == (2, False)
    assert len(launched) == 2 * (3 if of_each_iteration else 1)  # labels of the last centers, too


@pytest.mark.parametrize("place", every(2, PLACES))
def test_cosine(place, rng, over):
    X = samples(rng, 1100, 17, 4)
    found = fitted(over(X, place=place, source=lambda X: UnitRows(ArrayRows(X), X.dtype)), 4)
    same_bits(found, fitted(host_engine(X, spherical=True), 4))


@pytest.mark.parametrize("scale", every(2, [2.0**-80, 2.0**70]))
def test_data_whose_squares_are_out_of_range(scale, rng, over):
    X = (samples(rng, 1100, 20, 5) * scale).astype(np.float32)
    engine = over(X)
    engine.over = lambda rows: over(X, source=lambda _: rows)
    found = fitted(engine, 5)
    assert isinstance(found.fitted.frame.exponent, int)
    assert found.fitted.frame.exponent != 0
    same_bits(found, fitted(host_engine(X), 5))
    assert isinstance(engine.over(ScaledRows(ArrayRows(X), 3, X.dtype)).data.source, ScaledRows)


def test_empty_clusters(rng, over):
    X = samples(rng, 1100, 20, 5)
    init = X[:6].astype(np.float64)
    init[2:] += 1e3
    same_bits(fitted(over(X), 6, init=init), fitted(host_engine(X), 6, init=init))


@pytest.mark.parametrize("where", ["npy", "parts", "fortran", "every other"])
def test_where_x_is(where, rng, tmp_path, over):
    X = samples(rng, 1100, 20, 5)
    given = np.repeat(X, 2, axis=0)[::2] if where == "every other" else stored(X, where, tmp_path)
    engine = over(X, source=lambda _: as_rows(given))
    same_bits(fitted(engine, 5), fitted(host_engine(X), 5))
    pinned = [array for machine in engine._machines for array in machine.pinned_arrays]
    assert bool(pinned) == (where == "npy")


def test_pages_that_two_gpus_share_are_pinned_as_a_whole(rng, over):
    X = samples(rng, 1100, 20, 5)
    engine = over(X)
    fitted(engine, 5)
    (whole, first), (second,) = (machine.pinned_arrays for machine in engine._machines)
    assert whole is X
    assert [len(first), len(second)] == [len(part) for part in engine.data.crew.parts]
    assert np.shares_memory(first, X)


def test_single_passes(rng, over):
    """What predict, transform and score compute."""
    X, found = samples(rng, 1100, 20, 5), []
    weights = rng.random(1100) + 0.5
    centers, mean = rng.standard_normal((5, 20)), np.full(20, 2, np.float32)
    one = DeviceEngine(ArrayRows(X), X.dtype, weights.astype(X.dtype), HostMachine(), Options(always=True))
    for engine in (over(X, weights, "windows"), one):
        with engine:
            placed = engine.place(centers, mean)
            step = engine.step_for(5)
            step.assign(placed, update=False)
            sizes = step.cluster_sizes(step.labels, 5)
            found.append((step.labels, engine.data.distances(placed), sizes, engine.data.inertia(placed, step.labels)))
    for mine, expected in zip(*found, strict=True):
        np.testing.assert_array_equal(mine, expected)


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_a_row_that_is_not_finite_is_named_by_its_number_in_x(metric, rng, over):
    X = samples(rng, 1100, 20, 5)
    X[1099, 3] = np.nan
    engine = over(X, source=ArrayRows if metric == "euclidean" else lambda X: UnitRows(ArrayRows(X), X.dtype))
    with pytest.raises(ValueError, match="X: row 1099, column 3 is nan: K-means needs finite numbers"):
        fitted(engine, 5)


def test_a_callable_init(rng, over):
    with pytest.raises(ValueError, match="X is cut into parts, and not read as a whole: init must not be a callable"):
        fitted(over(samples(rng, 1100, 20, 5)), 5, init=lambda X, k, random_state: X[:k])


@pytest.mark.each_choice
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("options", [{}, {"init": "random", "n_init": 2}], ids=str)
def test_protected_fits(place, options, rng, over):
    X, weights = samples(rng, 1100, 20, 5), rng.random(1100) + 0.5
    found = fitted(over(X, weights, place), 5, protect=True, **options)
    same_bits(found, fitted(host_engine(X, weights), 5, **options))
    assert found.faults == 0


def wrong_sums(step):
    step.buffers.sums[1, 3] ^= 1 << 40


def wrong_label(step):
    step.buffers.labels[7] = (step.buffers.labels[7] + 1) % 5


@pytest.mark.parametrize(
    ("fault", "call", "faults"),
    [(wrong_sums, 0, 1), (wrong_sums, 5, 1), (wrong_sums, 7, 0), (wrong_label, 0, 1), (wrong_label, 7, 1)],
)
def test_a_fault_in_one_part(fault, call, faults, rng, over, monkeypatch):
    """It is found and repaired if the result depends on it, unlike on the sums of the last pass, which is repeated."""
    X, calls = samples(rng, 1100, 20, 5), []
    assign = RunningSumsStep.assign_own

    def faulty(step, centers):
        answer = assign(step, centers)
        calls.append(step)
        if len(calls) == 1 + call:
            fault(step)
        return answer

    expected = fitted(host_engine(X), 5, init=X[:5].astype(np.float64), max_iter=3)
    monkeypatch.setattr(RunningSumsStep, "assign_own", faulty)
    found = fitted(over(X), 5, init=X[:5].astype(np.float64), max_iter=3, protect=True)
    same_bits(found, expected)
    assert found.faults == faults


def test_gpus_that_hold_x_together_have_no_parts(rng):
    X = ArrayRows(samples(rng, 1100, 80, 5))
    needed = 550 * 80 * (4 + 2) + 550 * 4 * 3 + (1 << 30)
    for memory, expected in ((needed + 1000 * 320, None), (needed - 1000 * 320, [512, 588])):
        found = parts_of_gpus(X, np.dtype(np.float32), [HostMachine(memory=memory) for _ in range(2)])
        assert found == expected or [some.shape[0] for some in found] == expected


def test_gpus_of_several_kinds(rng):
    X = samples(rng, 1100, 20, 5)
    machines = [HostMachine(), HostMachine(gpu=KNOWN["A100"])]
    with pytest.raises(NoDeviceError, match="expected GPUs of one kind"):
        LocalPartsEngine(ArrayRows(X), [ArrayRows(X[:512]), ArrayRows(X[512:])], X.dtype, None, machines)


def test_rows_that_cannot_be_read_without_those_before(rng):
    X = scipy.sparse.csr_matrix(samples(rng, 1100, 20, 5))
    assert parts_of_gpus(SparseRows(X), np.dtype(np.float32), [HostMachine(memory=0)] * 2) is None


def test_an_error_of_one_part_is_raised_when_all_have_answered(rng, over, monkeypatch):
    """Pages must stay pinned while a GPU reads them."""
    engine, answered = over(samples(rng, 1100, 20, 5)), []

    def first_row(part):
        if part._spec.first == 0:
            raise MemoryError("no memory")
        time.sleep(0.2)
        answered.append(part)

    monkeypatch.setattr(Part, "first_row", first_row)
    with pytest.raises(MemoryError, match="no memory"):
        engine.data.crew.ask("first_row", PartState())
    assert len(answered) == 1
