"""Whole fits of the step with certified labels on the CPU: the bits of the kernels, which run on a HostMachine."""

import numpy as np
import oracle
import pytest
from exhaustive import property_test
from host_cuda.machine import HostMachine
from hypothesis import strategies as st
from kmeans.assign.test_host_labels import on_bisectors, whole_distances
from kmeans.engines.test_device_engine import MOST_EXHAUSTIVE, Case
from kmeans.host_steps import DTYPES, RowsOnMachine, fixed_point_sums, iterate_once, work_of

import tsapps
from tsapps.apps.kmeans import lloyd
from tsapps.apps.kmeans.data import blocks, host_data
from tsapps.apps.kmeans.data.host_data import HostData
from tsapps.apps.kmeans.data.rows import ArrayRows, UnitRows
from tsapps.apps.kmeans.engines.device_engine import DeviceEngine
from tsapps.apps.kmeans.engines.engine import HostEngine
from tsapps.apps.kmeans.engines.exact_host_step import ExactHostStep
from tsapps.apps.kmeans.engines.large_k_step import LargeKStep
from tsapps.apps.kmeans.engines.select_step import Options
from tsapps.apps.kmeans.engines.small_d_step import SmallDFmaStep
from tsapps.apps.kmeans.engines.small_k_step import SmallKStep
from tsapps.apps.kmeans.results import square_shift
from tsapps.apps.kmeans.update import relocation

FOUR = np.array([[0.0], [1.0], [10.0], [11.0]])
#: One of each step.
STEPS = [
    Case(SmallDFmaStep, 400, 3, 5),
    Case(SmallKStep, 300, 20, 33, weighted=True),
    Case(SmallKStep, 300, 70, 6, "float64"),
    Case(LargeKStep, 200, 20, 70),
]


def host_engine(X, weights=None, **options):
    rows = X if hasattr(X, "blocks") else ArrayRows(np.asarray(X))
    work = work_of(rows.dtype.name)
    return HostEngine(rows, work, weights, as_kernels=True, **options)


def device_engine(X, weights=None, *, bounds=False):
    rows = X if hasattr(X, "blocks") else RowsOnMachine(X)
    return DeviceEngine(rows, work_of(rows.dtype.name), weights, HostMachine(3), Options(always=True, bounds=bounds))


def fit(engine, k, init, **options):
    """Fit from given centers or, by the name of an initialisation, from random numbers of one seed."""
    given = init if isinstance(init, str) else init.copy()
    options = {"tol": 0.0, "max_iter": 8, "random_state": np.random.RandomState(5)} | options
    return lloyd.fit(engine, k, init=given, **options)


def digest(found):
    """Return everything of a clustering that the bits of its arithmetic determine."""
    arrays = found.labels, found.centers, found.cluster_sizes
    return *((one.dtype, one.tobytes()) for one in arrays), found.inertia, found.n_iter, found.converged


def assert_same(found, expected):
    np.testing.assert_array_equal(found.labels, expected.labels)
    np.testing.assert_array_equal(found.centers, expected.centers)
    assert (found.inertia, found.n_iter) == (expected.inertia, expected.n_iter)
    assert digest(found) == digest(expected)


def test_by_hand():
    engine = host_engine(FOUR)
    found = fit(engine, 2, np.array([[0.0], [10]]))
    assert found.labels.tolist() == [0, 0, 1, 1]
    assert found.centers.tolist() == [[0.5], [10.5]]
    assert (found.inertia, found.n_iter, found.converged) == (1.0, 2, True)
    assert engine.data.host_mean().tolist() == [5.5]
    step = engine.step_for(2)
    # Two rows 5.5 less 0.5 before the mean, and two after it.
    assert (step.sums * step.sums_units).tolist() == [[-10, 2], [10, 2]]
    step.reset()
    assert step.labels.tolist() == [-1] * 4
    assert not step.sums.any()
    found = step.assign(np.array([[0.0], [4]]))
    assert step.labels.tolist() == [0, 0, 1, 1]
    assert (found.n_reassigned, found.weights.tolist(), found.sums.tolist()) == (4, [2, 2], [[-10], [10]])
    # Σ w·‖c‖² − 2·Σ c·s
    assert found.potential == 2 * 16 - 2 * 4 * 10
    found = step.assign(np.array([[-5.0], [-4.5]]))
    assert step.labels.tolist() == [0, 1, 1, 1]
    assert (found.n_reassigned, found.weights.tolist(), found.sums.tolist()) == (1, [1, 3], [[-5.5], [5.5]])
    assert step.inertia(np.array([[-5.0], [-4.5]])) == 0.25 + 0 + 81 + 100


@pytest.mark.parametrize("case", MOST_EXHAUSTIVE)
def test_fits_have_the_bits_of_the_kernels(case, rng):
    X, weights = case.data(rng)
    first = X[: case.k].astype(np.float64)
    device = device_engine(X, weights, bounds=case.bounds)
    expected = fit(device, case.k, first)
    assert type(device.step_for(case.k)) is case.step
    engine = host_engine(X, weights)
    found = fit(engine, case.k, first)
    assert type(engine.step_for(case.k)) is ExactHostStep
    assert (found.step, found.step_reason) == ("exact_host", "the device is the CPU")
    assert expected.n_iter > 2, "choose data that takes more iterations"
    assert_same(found, expected)


@pytest.mark.each_choice
@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("init", ["random", "k-means++", "k-means||"])
@pytest.mark.parametrize("case", STEPS, ids=str)
def test_runs_from_drawn_centers_have_the_bits_of_the_kernels(case, init, small, rng, monkeypatch):
    """Several, some of which `tol` or `max_iter` ends."""
    if not small:
        monkeypatch.setattr(blocks, "SMALL", 0)
    X, weights = case.data(rng)
    seen, both = [], []
    for engine in (host_engine(X, weights), device_engine(X, weights)):
        seen.append([])
        options = {"n_init": 2, "max_iter": 6, "tol": 1e-3, "progress": seen[-1].append}
        both.append(fit(engine, case.k, init, **options))
    assert_same(*both)
    told = [[(one.run, one.iteration, one.n_reassigned) for one in some] for some in seen]
    assert told[0] == told[1]
    assert {run for run, *_ in told[0]} == {0, 1}
    np.testing.assert_allclose(*([one.inertia for one in some] for some in seen), rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_fits_of_many_chunks_have_the_bits_of_the_kernels(dtype, rng):
    X = (5 + rng.standard_normal((9000, 3)) + 4 * rng.integers(0, 2, (9000, 3))).astype(DTYPES[dtype])
    found = host_engine(X)
    assert -(-9000 // found.data.chunk) > 5
    assert_same(fit(found, 5, X[:5]), fit(device_engine(X), 5, X[:5]))


def test_fits_about_another_point_than_the_mean_have_the_bits_of_the_kernels(rng):
    """About zero, for nearly centered 16-bit X; about the median, if outliers dominate the mean."""
    X, _ = Case(SmallDFmaStep, 400, 8, 12).data(rng)
    nearly, outliers = (X - X.mean(axis=0) + 0.1).astype(np.float16), X.copy()
    outliers[[5, 300]] *= 1e8
    for some, expected in ((nearly, np.zeros(8)), (outliers, None)):
        engine = host_engine(some)
        assert_same(fit(engine, 12, some[:12]), fit(device_engine(some), 12, some[:12]))
        mean = some.astype(np.float64).mean(axis=0)
        assert abs(mean).all()
        if expected is None:
            expected = np.median(some[::3][:128], axis=0)
            assert (abs(mean) > 1e4).all()
        np.testing.assert_array_equal(engine.data.host_mean(), expected.astype(np.float32))


@pytest.mark.parametrize("init", ["array", "random", "k-means++", "k-means||"])
def test_fits_by_cosine_have_the_bits_of_the_kernels(init, rng, monkeypatch):
    monkeypatch.setattr(blocks, "SMALL", 0)
    X, _ = STEPS[0].data(rng)
    engines = host_engine(UnitRows(ArrayRows(X), np.float32)), device_engine(UnitRows(RowsOnMachine(X), np.float32))
    both = [fit(engine, 5, X[:5] if init == "array" else init) for engine in engines]
    assert_same(*both)
    np.testing.assert_allclose(np.linalg.norm(both[0].centers, axis=1), 1, rtol=1e-6)


def with_far_center(X, k):
    """Return centers of which one is nearest to no row."""
    first = X[:k].astype(np.float64)
    first[k // 2] += 1e4
    return first


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.each_choice
@pytest.mark.parametrize("by_launches", [False, True])
@pytest.mark.parametrize("case", STEPS, ids=str)
def test_empty_clusters_have_the_bits_of_the_kernels(case, by_launches, rng, monkeypatch):
    """Relocated by the host, in the order of scikit-learn or by distance as launches do; and too few distinct rows."""
    if by_launches:
        monkeypatch.setattr(relocation, "MOST_ORDERED", 0)
    X, weights = case.data(rng)
    first = with_far_center(X, case.k)
    found = fit(host_engine(X, weights), case.k, first)
    assert_same(found, fit(device_engine(X, weights), case.k, first))
    assert (found.cluster_sizes > 0).all(), "no cluster was relocated"
    some = np.ascontiguousarray(X[np.arange(case.n) % (case.k - 2)])
    found = fit(host_engine(some, weights), case.k, some[: case.k].astype(np.float64))
    assert_same(found, fit(device_engine(some, weights), case.k, some[: case.k].astype(np.float64)))
    assert np.count_nonzero(found.cluster_sizes) == case.k - 2


@pytest.mark.parametrize("case", STEPS, ids=str)
def test_protection_changes_no_bit(case, rng):
    X, weights = case.data(rng)
    for first in (X[: case.k].astype(np.float64), with_far_center(X, case.k)):
        expected = fit(host_engine(X, weights), case.k, first)
        for options in ({}, {"max_iter": 2}):
            plain, protected = (
                fit(host_engine(X, weights), case.k, first, protect=p, **options) for p in (False, True)
            )
            assert protected.faults == 0
            assert_same(protected, plain)
        assert plain.n_iter == 2 < expected.n_iter


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@property_test(
    5,
    200,
    case=st.sampled_from(STEPS[:3]),
    n=st.integers(33, 300),
    kind=st.sampled_from(["blobs", "duplicates", "away", "whole numbers", "wide range", "an outlier"]),
    init=st.sampled_from(["rows", "a far center", "random", "k-means++", "k-means||"]),
    small=st.booleans(),
    some_zero=st.booleans(),
    options=st.sampled_from([{"max_iter": 4}, {"protect": True, "max_iter": 3}, {"tol": 1e-3}, {"max_iter": 1}]),
    seed=st.integers(0, 2**16),
)
def test_any_fits_have_the_bits_of_the_kernels(case, n, kind, init, small, some_zero, options, seed):
    rng = np.random.default_rng(seed)
    X, weights = case._replace(n=n).data(rng)
    if kind == "duplicates":
        X = X[rng.integers(0, max(2, case.k // 2), n)]
    elif kind == "away":
        X = X + 100
    elif kind == "whole numbers":
        X = np.rint(X)
    elif kind == "wide range":
        X = X * 10.0 ** rng.integers(-3, 2, (1, case.d))
    elif kind == "an outlier":
        X[0] *= 1e4
    X = X.astype(DTYPES[case.dtype])
    if weights is not None and some_zero:
        weights[case.k :] *= rng.random(n - case.k) < 0.8
    first = X[: case.k] if init == "rows" else with_far_center(X, case.k) if init == "a far center" else init
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lloyd, "_warn_of_duplicates", lambda *_: None)
        if not small:
            patch.setattr(blocks, "SMALL", 0)
        found, expected = (fit(make(X, weights), case.k, first, **options) for make in (host_engine, device_engine))
    assert (found.faults, expected.faults) == (0, 0)
    assert_same(found, expected)
    assert np.count_nonzero(found.cluster_sizes) <= len(np.unique(X, axis=0))


@pytest.mark.parametrize("case", STEPS, ids=str)
def test_center_shift_has_the_bits_of_the_kernel(case, rng):
    X, weights = case.data(rng)
    engine = device_engine(X, weights)
    mean, _ = engine.data.moments()
    engine.center(mean, case.k)
    step = engine.step_for(case.k)
    centers = (X[: case.k] - engine.data.host_mean()).astype(case.work)
    step.begin(centers)
    for count in range(2):
        now, outcome, following = iterate_once(step, count)
        assert outcome["shift"] == square_shift(now, following) > 0


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize("d", [1, 3, 16, 33, 130])
def test_distances_by_which_clusters_are_relocated_are_those_of_the_kernel(d, dtype, rng):
    X = (3 + rng.standard_normal((500, d))).astype(dtype)
    centers, labels = rng.standard_normal((4, d)).astype(work_of(dtype)), rng.integers(0, 4, 500).astype(np.int32)
    engines, found = (host_engine(X), device_engine(X)), []
    for engine in engines:
        engine.center(X.astype(np.float64).mean(axis=0), 4)
        found.append(engine.data.own_distances(centers, labels))
    # Float64 distances have the roundings of d additions, in other orders.
    error = oracle.gamma(d, np.float64) if dtype == "float64" else 0
    np.testing.assert_allclose(found[0], found[1], rtol=2 * error, atol=0)
    in_float32 = ((engines[0].data.centered() - centers[labels]) ** 2).sum(axis=1)
    assert dtype == "float64" or d == 1 or (in_float32 != found[0]).any()


# However the rows are cut, read and distributed over threads.


@pytest.mark.parametrize("case", [*STEPS, Case(SmallDFmaStep, 400, 8, 12, "bfloat16")], ids=str)
def test_fits_depend_neither_on_threads_nor_on_blocks_nor_on_memory(case, rng, monkeypatch):
    case = case._replace(n=3000)
    X, weights = case.data(rng)
    first = with_far_center(X, case.k)
    expected = fit(host_engine(X, weights, threads=1), case.k, first, max_iter=5)
    for threads, elements, copies in ((3, 1, True), (2, 700 * case.d, True), (2, 1, False)):
        monkeypatch.setattr(host_data, "available_cores", lambda threads=threads: threads)
        monkeypatch.setattr(host_data, "_TASK_ELEMENTS", elements)
        monkeypatch.setattr(HostData, "fits", lambda data, size, copies=copies: copies)
        engine = host_engine(X, weights)
        assert engine.data.threads == threads
        assert len(list(engine.data.blocks(case.d))) >= (2 if elements > 1 else 3000 // 256)
        assert_same(fit(engine, case.k, first, max_iter=5, protect=not copies), expected)


@pytest.mark.parametrize("form", ["npy", "h5", "parquet", "several npy"])
def test_fits_of_files_have_the_bits_of_arrays(form, tmp_path, rng, monkeypatch):
    """Also if every pass reads the file, in blocks that begin where its parts do not.

    The mean of a small array has NumPy's rounding, and that of a small file has not.
    """
    monkeypatch.setattr(HostData, "is_small", False)
    case = Case(SmallDFmaStep, 3000, 3, 5)
    X, _ = case.data(rng)
    expected = fit(host_engine(X), case.k, X[: case.k])
    if form == "npy":
        np.save(tmp_path / "X.npy", X)
    elif form == "h5":
        h5py = pytest.importorskip("h5py", reason="needs the extra io: h5py is not installed")
        with h5py.File(tmp_path / "X.h5", "w") as file:
            file["X"] = X
    elif form == "parquet":
        pyarrow = pytest.importorskip("pyarrow", reason="needs the extra io: pyarrow is not installed")
        parquet = pytest.importorskip("pyarrow.parquet", reason="needs the extra io: pyarrow is not installed")
        table = pyarrow.table({f"x{feature}": X[:, feature] for feature in range(3)})
        parquet.write_table(table, tmp_path / "X.parquet", row_group_size=700)
    else:
        for number, part in enumerate(np.split(X, [1, 700, 2100])):
            np.save(tmp_path / f"{number}.npy", part)
    matrix = tsapps.open_matrix(str(tmp_path if form == "several npy" else next(tmp_path.iterdir())))
    assert matrix.shape == X.shape
    assert_same(fit(host_engine(matrix), case.k, X[: case.k]), expected)
    monkeypatch.setattr(host_data, "_TASK_ELEMENTS", 1)
    monkeypatch.setattr(HostData, "fits", lambda data, size: False)
    engine = host_engine(matrix)
    assert_same(fit(engine, case.k, X[: case.k]), expected)
    assert engine.data.held is None


def test_large_x_of_a_narrow_type_is_converted_on_every_pass(rng, monkeypatch):
    X = (20 + rng.standard_normal((3000, 3))).astype(np.float16)
    expected = fit(host_engine(X), 4, X[:4])
    assert_same(expected, fit(device_engine(X), 4, X[:4]))
    monkeypatch.setattr(host_data, "_MOST_CONVERTED", 0)
    engine = host_engine(X)
    assert engine.data.held is None
    assert_same(fit(engine, 4, X[:4]), expected)


def test_each_block_has_its_own_error_bounds(rng, monkeypatch):
    """A first block of small rows, and later ones whose scores decide little."""
    monkeypatch.setattr(host_data, "_TASK_ELEMENTS", 1)
    centers = (1000 + rng.standard_normal((6, 3))).astype(np.float32)
    X = np.concatenate([rng.standard_normal((256, 3)), on_bisectors(1000, centers, np.float32, rng)]).astype(np.float32)
    centers = np.insert(centers, 3, 0, axis=0)
    engine = host_engine(X, threads=1)
    engine.center(np.zeros(3), 7)
    assert not engine.data.host_mean().any()
    step = engine.step_for(7)
    for some in (centers, centers[::-1].copy()):
        step.assign(some)
        np.testing.assert_array_equal(step.labels, whole_distances(X, some).argmin(axis=1))


# The sums of the step.


@pytest.mark.parametrize("protect", [False, True])
@pytest.mark.parametrize("case", STEPS, ids=str)
def test_sums_are_those_of_the_labels_after_any_assignments(case, protect, rng):
    X, weights = case.data(rng)
    engine = host_engine(X, weights)
    mean, _ = engine.data.moments()
    engine.center(engine.data.subtracted(mean), case.k)
    step, data = engine.step_for(case.k), engine.data
    step.protection = True if protect else None
    assert engine.step_for(case.k) is step
    data.rows_on_gpu, data.shift = X, data.host_mean()  # names of `fixed_point_sums`
    rows, before = X.astype(case.work) - data.host_mean(), np.full(case.n, -1)
    were_summed = True
    for update in (True, True, False, True, False, False, True):
        centers = rows[rng.choice(case.n, case.k, replace=False)]
        found = step.assign(centers, update=update)
        labels = oracle.square_distances(rows, centers).argmin(axis=1)
        np.testing.assert_array_equal(step.labels, labels)
        # The labels of an assignment without sums are forgotten before the next sums.
        assert found.n_reassigned == np.count_nonzero(labels != before) if were_summed or not update else case.n
        assert step.inertia(centers) == pytest.approx(data.inertia(centers, step.labels), rel=2.0**-19)
        before, were_summed = labels, update
        if update:
            sums = fixed_point_sums(data, step.integers.scales, labels, case.k)
            np.testing.assert_array_equal(step.sums, sums)
            np.testing.assert_array_equal(found.sums, sums[:, :-1] / step.integers.scales[:-1])
            np.testing.assert_array_equal(found.weights, sums[:, -1] / step.integers.scales[-1])
            assert (found.again is not None) == protect
            assert not protect or found.again.sums.tobytes() == found.sums.tobytes()
            assert not found.changed


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_is_not_a_number_is_refused(dtype, rng):
    X = rng.standard_normal((300, 3)).astype(dtype)
    for value in (np.nan, np.inf):
        X[123, 1] = value
        with pytest.raises(ValueError, match=r"X: row 123, column 1 is (nan|inf): K-means needs finite numbers"):
            fit(host_engine(X), 2, X[:2])


def test_weights_of_many_orders_of_magnitude_are_summed_in_float64(rng):
    X, weights = rng.standard_normal((300, 3)), np.ones(300)
    weights[7] = 2.0**-17
    found = fit(host_engine(X, weights), 3, X[:3])
    assert (found.step, "orders of magnitude" in found.step_reason) == ("host", True)
    weights[7] = 2.0**-16
    assert fit(host_engine(X, weights), 3, X[:3]).step == "exact_host"


def test_small_data_has_the_arithmetic_of_scikit_learn_by_default(rng):
    X = rng.standard_normal((300, 3))
    found = fit(HostEngine(ArrayRows(X), X.dtype, None), 3, X[:3])
    assert (found.step, found.step_reason) == ("host", "small data follows scikit-learn's rounding")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HostData, "is_small", False)
        assert fit(HostEngine(ArrayRows(X), X.dtype, None), 3, X[:3]).step == "exact_host"
