"""Fits of X in host memory or in a file, which kernels read in place: the same bits as of X on the GPU."""

import mmap
from multiprocessing.shared_memory import SharedMemory

import numpy as np
import pytest
from exhaustive import every
from host_cuda.machine import HostMachine
from kmeans.engines.test_device_engine import MOST_EXHAUSTIVE, Case, engine_of

import tsapps
from tsapps.apps.kmeans import lloyd
from tsapps.apps.kmeans.data import gpu_rows, pinned_rows
from tsapps.apps.kmeans.data.device_data import DeviceData
from tsapps.apps.kmeans.data.rows import ArrayRows
from tsapps.apps.kmeans.engines.device_engine import DeviceEngine
from tsapps.apps.kmeans.engines.large_k_step import LargeKStep
from tsapps.apps.kmeans.engines.select_step import Options
from tsapps.apps.kmeans.engines.small_k_step import SmallKStep
from tsapps.errors import MatrixError
from tsapps.kernels.runtime.pin_in_place import PinningError


@pytest.fixture(autouse=True)
def apart(monkeypatch):
    """Take host memory for other than that of the HostMachine."""
    borrow = DeviceData._borrow
    monkeypatch.setattr(DeviceData, "_borrow", lambda data: None if data.source.device is None else borrow(data))


@pytest.fixture
def full(monkeypatch):
    """A GPU without memory for a copy of X."""
    monkeypatch.setattr(DeviceData, "copies", lambda data: False)


# The memory of a fit of 300 samples of 100 numbers beside X and its copies: two blocks, and three numbers per sample.
_OTHERS = (1 << 30) + 3 * 4 * 300


class Pinning(HostMachine):
    """A machine that keeps what was pinned, or that cannot pin."""

    def __init__(self, error=None, memory=1 << 34):
        super().__init__(memory=memory)
        self.pinned_arrays, self.error = [], error

    def pin_in_place(self, array):
        if self.error is not None:
            raise type(self.error)(*self.error.args)  # its traceback refers to the data
        self.pinned_arrays.append(array)
        return super().pin_in_place(array)


def engine_over(source, case, weights=None, machine=None):
    options = Options(always=True, bounds=case.bounds)
    return DeviceEngine(source, case.work, weights, machine or Pinning(), options)


def fitted(engine, case, **options):
    given = {"n_init": 1, "max_iter": 6, "random_state": np.random.RandomState(0), **options}
    return lloyd.fit(engine, case.k, **given)


def same_bits(found, expected):
    np.testing.assert_array_equal(found.labels, expected.labels)
    np.testing.assert_array_equal(found.centers.view(np.uint8), expected.centers.view(np.uint8))
    np.testing.assert_array_equal(found.cluster_sizes, expected.cluster_sizes)
    assert (found.n_iter, found.converged, found.inertia) == (expected.n_iter, expected.converged, expected.inertia)


@pytest.mark.each_choice
@pytest.mark.parametrize("subtracted", [0, 2])
@pytest.mark.parametrize("case", MOST_EXHAUSTIVE)
def test_the_bits_are_those_of_rows_on_the_gpu(case, subtracted, rng, full):
    X, weights = case.data(rng)
    X -= X.dtype.type(subtracted)  # the data are then about zero, and 16-bit X is not centered
    X.flags.writeable = False
    init = X[: case.k].astype(np.float64)
    engine = engine_over(ArrayRows(X), case, weights)
    found, expected = (fitted(one, case, init=init) for one in (engine, engine_of(case, X, weights)))
    assert engine.data.machine.pinned_arrays[0] is X
    # Kernels for few features would read X itself in every iteration.
    assert found.step == ("large_k" if case.step is LargeKStep else "small_k")
    if case.step in (SmallKStep, LargeKStep):
        same_bits(found, expected)
    else:
        np.testing.assert_array_equal(found.labels, expected.labels)
        np.testing.assert_array_equal(found.centers, expected.centers)


@pytest.mark.each_choice
@pytest.mark.parametrize("init", ["k-means++", "k-means||", "random"])
@pytest.mark.parametrize("case", [Case(SmallKStep, 300, 100, 9), Case(LargeKStep, 200, 20, 66)], ids=str)
def test_drawn_centers_are_those_of_rows_on_the_gpu(case, init, rng, full):
    X, _ = case.data(rng)
    engines = engine_over(ArrayRows(X), case), engine_of(case, X, None)
    same_bits(*(fitted(one, case, init=init) for one in engines))


@pytest.mark.each_choice
@pytest.mark.parametrize("options", [{"protect": True}, {"n_init": 2, "max_iter": 4, "init": "random"}], ids=str)
@pytest.mark.parametrize("case", [Case(SmallKStep, 300, 100, 9), Case(LargeKStep, 200, 20, 66)], ids=str)
def test_runs_begin_again_in_windows(case, options, rng, full):
    """A protected fit labels all rows again at its end, and each of several runs begins with labels −1."""
    X, _ = case.data(rng)
    given = {"init": X[: case.k].astype(np.float64), **options}
    engines = engine_over(ArrayRows(X), case), engine_of(case, X, None)
    same_bits(*(fitted(one, case, **given) for one in engines))


@pytest.mark.parametrize(
    "case", every(2, [Case(SmallKStep, 1600, 100, 9), Case(LargeKStep, 1600, 20, 66, "float64")]), ids=str
)
def test_sums_are_checked_against_the_rows_of_all_blocks(case, rng, full, monkeypatch):
    """The rows of each block count once, and the sums once."""
    monkeypatch.setattr(gpu_rows, "_BLOCK_BYTES", 1)
    X, _ = case.data(rng)
    init, engine = X[: case.k].astype(np.float64), engine_over(ArrayRows(X), case)
    assert engine.data.block_rows(0) == engine.data.chunk < case.n // 3
    found = fitted(engine, case, init=init, max_iter=5, protect=True)
    same_bits(found, fitted(engine_of(case, X, None), case, init=init, max_iter=5))
    assert found.faults == 0
    with engine.fitting(case.k, draws=False):
        engine.center(engine.data.moments()[0], case.k)
        step, centers = engine.step_for(case.k), (init - engine.data.host_mean()).astype(case.work)
        step.assign(centers)
        assert step.checked_inertia(centers)[1] is None
        step.labels[-1] = (step.labels[-1] + 1) % case.k  # in the last block
        assert step.checked_inertia(centers)[1] == "the cluster sums were not those of the labels"


def test_empty_clusters_are_relocated_alike(rng, full):
    case = Case(SmallKStep, 400, 70, 6)
    X, _ = case.data(rng)
    init = np.concatenate([X[:4], X[:1] + 1e3, X[:1] - 1e3]).astype(np.float64)
    engines = engine_over(ArrayRows(X), case), engine_of(case, X, None)
    found, expected = (fitted(one, case, init=init) for one in engines)
    same_bits(found, expected)
    assert (found.cluster_sizes > 0).all()


@pytest.mark.parametrize("suffix", [".npy", ".fbin"])
def test_files_are_read_in_place(suffix, rng, tmp_path):
    case = Case(SmallKStep, 300, 100, 9)
    X, _ = case.data(rng)
    path = tmp_path / f"X{suffix}"
    _write(path, X)
    machines = Pinning(), Pinning(memory=_OTHERS + int(1.4 * X.nbytes))
    init = X[:9].astype(np.float64)
    same_bits(*(fitted(engine_over(tsapps.open_matrix(path), case, machine=one), case, init=init) for one in machines))
    assert [len(one.pinned_arrays) for one in machines] == [0, 1]


def test_a_file_that_changes_during_the_fit(rng, tmp_path):
    case = Case(SmallKStep, 300, 100, 9)
    X, _ = case.data(rng)
    np.save(tmp_path / "X.npy", X)

    def change(_):
        np.save(tmp_path / "X.npy", X + 1)

    machine = Pinning(memory=_OTHERS + int(1.4 * X.nbytes))
    engine = engine_over(tsapps.open_matrix(tmp_path / "X.npy"), case, machine=machine)
    with pytest.raises(MatrixError, match="changed"):
        fitted(engine, case, init=X[:9].astype(np.float64), progress=change)
    assert len(machine.pinned_arrays) == 1


def _write(path, X):
    if path.suffix == ".npy":
        np.save(path, X)
    else:
        path.write_bytes(np.array(X.shape, "<u4").tobytes() + X.astype("<f4").tobytes())


@pytest.mark.parametrize("fault", [None, "not finite"])
def test_pages_are_released_when_the_fit_ends(fault, rng, full):
    case = Case(SmallKStep, 300, 100, 9)
    X, _ = case.data(rng)
    engine = engine_over(ArrayRows(X), case)
    if fault is None:
        fitted(engine, case, init=X[:9].astype(np.float64))
    else:
        X[7, 3] = np.nan
        with pytest.raises(ValueError, match="row 7, column 3 is nan"):
            fitted(engine, case)
    assert len(engine.data.machine.pinned_arrays) == 1
    assert not engine.data.over_link
    assert engine.data.rows_on_gpu is None


def test_a_fit_says_why_x_is_streamed(rng, full):
    case = Case(SmallKStep, 300, 100, 9)
    X, _ = case.data(rng)
    machine = Pinning(PinningError("its pages cannot be pinned: out of memory"), _OTHERS)
    found = fitted(engine_over(ArrayRows(X), case, machine=machine), case, init=X[:9].astype(np.float64))
    expected = "X does not fit in GPU memory, and its pages cannot be pinned: out of memory"
    assert found.step == "small_k"
    assert found.step_reason.endswith(f"X is read in windows: {expected}")


def test_a_file_larger_than_the_memory_is_streamed(rng, full, tmp_path, monkeypatch):
    case = Case(SmallKStep, 300, 100, 9)
    X, _ = case.data(rng)
    np.save(tmp_path / "X.npy", X)
    monkeypatch.setattr(pinned_rows, "available_host_memory", lambda: X.nbytes)
    for source in (tsapps.open_matrix(tmp_path / "X.npy"), ArrayRows(np.load(tmp_path / "X.npy", mmap_mode="r"))):
        engine = engine_over(source, case, machine=Pinning(memory=_OTHERS))
        found = fitted(engine, case, init=X[:9].astype(np.float64))
        assert found.step_reason.endswith(f"its file has {X.nbytes} bytes, of which {X.nbytes} fit in host memory")
    found = fitted(engine_over(ArrayRows(X), case), case, init=X[:9].astype(np.float64))
    assert found.step == "small_k"  # X is in memory already


@pytest.mark.parametrize(("mode", "reason"), [("c", "for writing"), ("r+", "for writing"), (None, "privately")])
def test_a_file_that_is_mapped_privately_or_for_writing_is_streamed(mode, reason, rng, full, tmp_path):
    case, path = Case(SmallKStep, 300, 100, 9), tmp_path / "X.npy"
    X, _ = case.data(rng)
    np.save(path, X)
    if mode is None:
        with path.open("rb") as file:
            held = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
        mapped = np.frombuffer(held, X.dtype, X.size, offset=path.stat().st_size - X.nbytes).reshape(X.shape)
    else:
        mapped = np.load(path, mmap_mode=mode)
    engine = engine_over(ArrayRows(mapped), case, machine=Pinning(memory=_OTHERS))
    found = fitted(engine, case, init=X[:9].astype(np.float64))
    assert found.step_reason.endswith(f"X.npy is mapped {reason}: map it for reading, as open_matrix does")
    assert engine.data.machine.pinned_arrays == []


def test_shared_memory_is_not_limited_as_files_are(rng, full, monkeypatch):
    """Its pages are in memory already."""
    case = Case(SmallKStep, 300, 100, 9)
    X, _ = case.data(rng)
    held = SharedMemory(create=True, size=X.nbytes)
    try:
        shared = np.ndarray(X.shape, X.dtype, held.buf)
        shared[...] = X
        monkeypatch.setattr(pinned_rows, "available_host_memory", lambda: 1)
        engine = engine_over(ArrayRows(shared), case)
        found = fitted(engine, case, init=X[:9].astype(np.float64))
        assert found.step == "small_k"
        engine.data.machine.pinned_arrays.clear()
        del shared, engine
    finally:
        held.close()
        held.unlink()


def test_rows_that_fit_beside_their_copy_are_held(rng):
    """Not if that leaves no memory for the half-precision copy, unless they cannot be pinned."""
    case = Case(SmallKStep, 300, 100, 9)
    X, _ = case.data(rng)
    init = X[:9].astype(np.float64)
    for memory, error, held in ((1.6, None, True), (1.4, None, False), (1.4, PinningError("no"), True)):
        machine = Pinning(error, _OTHERS + int(memory * X.nbytes))
        engine = engine_over(ArrayRows(X), case, machine=machine)
        fitted(engine, case, init=init)
        assert (engine.data.held is not None) == held


def test_single_passes_pin_nothing(rng, full):
    case = Case(SmallKStep, 300, 100, 9)
    X, _ = case.data(rng)
    engine = engine_over(ArrayRows(X), case)
    with engine:
        placed = engine.place(np.zeros((9, 100)), np.zeros(100))
        engine.step_for(9).assign(placed, update=False)
    assert engine.data.machine.pinned_arrays == []


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bit_rows_are_copied_in_their_own_type(dtype, rng):
    case = Case(SmallKStep, 300, 70, 6, dtype)
    X, _ = case.data(rng)
    engine, machine = engine_over(ArrayRows(X), case), Pinning(memory=_OTHERS + int(1.9 * X.nbytes))
    assert engine.data.rows_on_gpu.dtype == X.dtype
    init = X[:6].astype(np.float64)
    expected = fitted(engine_of(case, X, None), case, init=init)
    same_bits(fitted(engine, case, init=init), expected)
    same_bits(fitted(engine_over(ArrayRows(X), case, machine=machine), case, init=init), expected)
    assert (len(engine.data.machine.pinned_arrays), len(machine.pinned_arrays)) == (0, 1)
