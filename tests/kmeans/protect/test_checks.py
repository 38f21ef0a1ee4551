"""Protected fits: faults are found and made good, and where there are none nothing is found and nothing changes."""

from typing import ClassVar

import numpy as np
import pytest
from exhaustive import property_test
from hypothesis import strategies as st

from tsapps import TSKMeans
from tsapps.apps.kmeans import lloyd
from tsapps.apps.kmeans.data.rows import ArrayRows
from tsapps.apps.kmeans.engines.engine import HostEngine
from tsapps.apps.kmeans.engines.host_step import HostStep
from tsapps.apps.kmeans.open_engine import open_engine
from tsapps.apps.kmeans.protect.checks import MOST_AGAIN, stride_of
from tsapps.apps.kmeans.protect.plan import CENTERS, COLUMNS, ROWS, THREADS, check_plan
from tsapps.errors import FaultError

FOUR = np.array([[0.0], [1.0], [10.0], [11.0]])


class FaultyStep(HostStep):
    """A step whose assignments number `faulty`, from 0, go wrong."""

    faulty: ClassVar[dict] = {}
    made = 0

    def assign(self, centers, *, update=True, potential=False):
        found = super().assign(centers, update=update, potential=potential)
        if (fault := self.faulty.get(self.made)) is not None:
            fault(self, found)
        self.made += 1
        return found


def engine_of(step, X, weights=None):
    """Return an engine whose step is of another class."""
    engine = HostEngine(X, X.dtype, weights)
    engine.blocks = step(engine.data)
    return engine


def fitted(X, k, faulty=None, weights=None, dtype=None, **options):
    """Fit X, protected where `faulty` says which assignments go wrong."""
    X = ArrayRows(np.asarray(X) if dtype is None else np.asarray(X, dtype))
    if faulty is None:
        engine = open_engine(X, sample_weight=weights, device="cpu")
    else:
        engine = engine_of(FaultyStep, X, weights)
        engine.blocks.faulty = faulty
    options = {"init": X.array[:k], "random_state": np.random.RandomState(0)} | options
    return lloyd.fit(engine, k, protect=faulty is not None, **options)


def assert_same(found, expected):
    """The same clustering to the bit."""
    np.testing.assert_array_equal(found.labels, expected.labels)
    np.testing.assert_array_equal(found.centers, expected.centers)
    np.testing.assert_array_equal(found.cluster_sizes, expected.cluster_sizes)
    assert found.inertia == expected.inertia


def wrong_label(engine, step):
    engine.labels[0] = 1 - engine.labels[0]


def no_label(engine, step):
    engine.labels[-1] = -1


def lost_sample(engine, step):
    step.weights[0] -= 1


def wrong_sum(engine, step):
    step.sums[1, 0] += 3


def no_number(engine, step):
    step.sums[0, 0] = np.nan


def moved_sum(engine, step):
    """What adds up to the same, but not of the samples that have the labels."""
    step.sums[0, 0] += 1
    step.sums[1, 0] -= 1


FAULTS = [wrong_label, no_label, lost_sample, wrong_sum, no_number]


@pytest.mark.parametrize("fault", FAULTS)
def test_by_hand(fault):
    # Labels 0 0 1 1 at centers 0 and 10, and again at 0.5 and 10.5; each is checked by all four samples.
    options = {"init": np.array([[0.0], [10.0]]), "tol": 0}
    expected = fitted(FOUR, 2, **options)
    assert expected.centers.tolist() == [[0.5], [10.5]]
    for when in (0, 1):
        found = fitted(FOUR, 2, {when: fault}, **options)
        assert found.faults == 1
        assert_same(found, expected)
    found = fitted(FOUR, 2, {0: fault, 1: fault, 3: fault}, **options)
    assert found.faults == 3
    assert_same(found, expected)


def of_the_second_sums(fault):
    """Return a fault of the sums that were added up a second time."""
    return lambda engine, step: fault(engine, step.again)


@pytest.mark.parametrize("fault", [moved_sum, of_the_second_sums(moved_sum), of_the_second_sums(no_number)])
def test_sums_of_other_samples_are_found_in_their_iteration(fault):
    options = {"init": np.array([[0.0], [10.0]]), "tol": 0}
    expected = fitted(FOUR, 2, **options)
    for when in (0, 1):
        engine = engine_of(FaultyStep, ArrayRows(FOUR))
        engine.blocks.faulty = {when: fault}
        found = lloyd.fit(engine, 2, protect=True, random_state=np.random.RandomState(0), **options)
        # Three assignments, and one once more. Where labels were forgotten, the last says that all changed, and the
        # result takes two more: its labels at the final centers, and those a second time.
        assert (found.faults, engine.blocks.made) == (1, 4 if when == 0 else 6)
        assert_same(found, expected)


def test_labels_that_are_not_counted_do_not_end_a_run():
    def not_counted(engine, step):
        step.n_reassigned = 0

    # From 0 and 1: labels 0 1 1 1, means 0 and 22/3; then 0 0 1 1, which are the last.
    options = {"init": FOUR[:2], "tol": 0}
    expected = fitted(FOUR, 2, **options)
    for when in (0, 1):
        found = fitted(FOUR, 2, {when: not_counted}, **options)
        assert found.faults == 1
        assert_same(found, expected)


@pytest.mark.parametrize("fault", [wrong_label, no_label])
@pytest.mark.parametrize("when", [2, 4])
def test_labels_of_the_result(fault, when):
    # Ended by max_iter: the third assignment is of the final centers, the fourth makes the second once more, and the
    # fifth the third.
    options = {"init": np.array([[0.0], [1.0]]), "tol": 0, "max_iter": 2}
    expected = fitted(FOUR, 2, **options)
    assert not expected.converged
    found = fitted(FOUR, 2, {when: fault}, **options)
    assert found.faults == 1
    assert_same(found, expected)


class KeepingStep(FaultyStep):
    """A step that is asked as one is that keeps its sums, and says what is wrong with those of run `faulty_run`."""

    keeps_sums, faulty_run, runs = True, -1, 0

    def checked_inertia(self, centers):
        fault = "the sums are wrong" if self.runs == self.faulty_run else None
        self.runs += 1
        return self.inertia(centers), fault


def kept(faulty, faulty_run=-1, **options):
    engine = engine_of(KeepingStep, ArrayRows(FOUR))
    engine.blocks.faulty, engine.blocks.faulty_run = faulty, faulty_run
    options = {"tol": 0, "random_state": np.random.RandomState(0)} | options
    return engine.blocks, lloyd.fit(engine, 2, protect=True, **options)


@pytest.mark.parametrize("options", [{"init": np.array([[0.0], [10.0]])}, {"init": FOUR[:2], "max_iter": 2}])
def test_where_sums_are_kept(options):
    expected = fitted(FOUR, 2, **{"tol": 0} | options)
    # Ended by itself after two iterations, or by max_iter, with the labels of the final centers: then labels once more.
    last = 3 if expected.converged else 4
    step, found = kept({}, **options)
    assert (step.made, found.faults) == (last, 0)
    assert_same(found, expected)
    # A final label that is wrong; sums that make other centers, which are asked for where no label changed.
    for when, fault in [(2, moved_sum)] if expected.converged else [(2, wrong_label), (2, no_label)]:
        step, found = kept({when: fault}, **options)
        assert (step.made, found.faults) == (2 * last, 1)
        assert_same(found, expected)
    step, found = kept({}, faulty_run=0, **options)
    assert (step.made, found.faults) == (2 * last, 1)
    assert_same(found, expected)


def test_a_fault_that_persists_is_an_error():
    always = dict.fromkeys(range(100), wrong_sum)
    with pytest.raises(FaultError, match=rf"iteration 1 went wrong {MOST_AGAIN + 1} times, .* cluster sums differed"):
        fitted(FOUR, 2, always)
    with pytest.raises(FaultError, match=rf"iteration 1 went wrong {MOST_AGAIN + 1} times, .* computed twice"):
        fitted(FOUR, 2, dict.fromkeys(range(100), moved_sum))


def test_a_result_that_never_comes_out_the_same_is_an_error():
    class Step(HostStep):
        inertias = 0

        def checked_inertia(self, centers):
            self.inertias += 1
            wrong = self.data.inertia
            self.data.inertia = lambda *of: wrong(*of) + self.again()
            return super().checked_inertia(centers)

        def again(self):
            self.inertias += 1
            return self.inertias

    with pytest.raises(FaultError, match=rf"the result of a run went wrong {MOST_AGAIN + 1} times, .* inertia"):
        lloyd.fit(engine_of(Step, ArrayRows(FOUR)), 2, protect=True, random_state=np.random.RandomState(0))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gross_faults_of_many_samples(dtype, weighted, rng):
    X = rng.standard_normal((30_000, 5)) + 100
    weights = rng.random(30_000) if weighted else None

    def labels_of_a_range(engine, step):
        engine.labels[5000:9000] = 6

    def lost_rows(engine, step):
        step.sums[2] *= 0.5

    def lost_weight(engine, step):
        step.weights[3] *= 0.9

    expected = fitted(X, 7, weights=weights, dtype=dtype, max_iter=5)
    faulty = {0: lost_weight, 2: labels_of_a_range, 4: lost_rows}
    found = fitted(X, 7, faulty, weights=weights, dtype=dtype, max_iter=5)
    assert found.faults == 3
    assert_same(found, expected)
    assert found.n_iter == expected.n_iter


def test_a_fault_where_clusters_are_empty(rng):
    X = rng.standard_normal((300, 3))
    init = np.concatenate([X[:3], np.full((2, 3), 1e3)])
    expected = fitted(X, 5, init=init)
    for when in range(4):
        found = fitted(X, 5, {when: wrong_sum}, init=init)
        assert found.faults == 1
        assert_same(found, expected)


def test_all_samples_are_checked_in_turn():
    sizes = 1, 128, 255, 256, 128 * 1000, 128 * 4096, 10**8
    assert [stride_of(n) for n in sizes] == [1, 1, 1, 3, 1001, 4097, 4097]


def test_checks_on_a_gpu_are_dealt_out_evenly(rng):
    assert check_plan(128, 4096, 16, 8, 132, whole=True) == (7, 4, 32 * 4 + 257)
    for _ in range(2000):
        samples, k = (int(10 ** rng.uniform(0, most)) for most in (5.5, 4.5))
        d, itemsize = int(10 ** rng.uniform(0, 4.2)), int(rng.choice([4, 8]))
        whole = d % (16 // itemsize) == 0
        vector = 16 // itemsize if whole else 1
        log2_threads, each, blocks = check_plan(samples, d, k, itemsize, 132, whole=whole)
        assert 4 <= 1 << log2_threads <= THREADS
        # A row's vectors are a lane's or several; and a row has no more threads than it has use for.
        assert 1 << log2_threads >= min(32, d // vector)
        assert log2_threads <= 5 or vector << log2_threads < 2 * d
        assert (each + ROWS) % CENTERS == 0
        groups, parts = -(-samples // (ROWS * THREADS >> log2_threads)), -(-k // each)
        assert blocks == groups * parts + -(-(d + 1) // COLUMNS)
        # No more than are resident at a time, but where groups alone are more.
        assert parts == 1 or groups * parts <= 132 * 3


KINDS = ["blobs", "far off center", "duplicates", "one feature", "wide range", "whole numbers"]


@property_test(
    25,
    60,
    kind=st.sampled_from(KINDS),
    dtype=st.sampled_from([np.float32, np.float64, np.float16, np.uint8]),
    metric=st.sampled_from(["euclidean", "cosine"]),
    weighted=st.booleans(),
    k=st.integers(1, 9),
    seed=st.integers(0, 2**31 - 1),
    options=st.sampled_from([{}, {"tol": 0}, {"max_iter": 1}, {"init": "random", "n_init": 2}, {"init": "k-means||"}]),
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_no_false_alarms_and_the_same_bits(kind, dtype, metric, weighted, k, seed, options):
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(k, 3000)), 1 if kind == "one feature" else int(rng.integers(2, 40))
    X = rng.standard_normal((n, d)) + 6 * rng.standard_normal((k, d))[rng.integers(0, k, n)]
    if kind == "far off center":
        X += 3e4 if dtype == np.float16 else 1e6
    elif kind == "duplicates":
        X = X[rng.integers(0, min(n, k + 2), n)]
    elif kind == "wide range":
        X *= 10.0 ** rng.integers(-4, 3, (1, d))
    elif kind == "whole numbers":
        X = np.rint(X)
    if dtype == np.uint8:
        X = abs(X) % 255 + 1
    X = X.astype(dtype)
    X[~X.any(axis=1), 0] = 1  # which have a direction
    weights = rng.random(n) * 10.0 ** rng.integers(-6, 1, n) if weighted else None
    fits = [
        TSKMeans(k, random_state=0, device="cpu", metric=metric, protect=protect, **options).fit(
            ArrayRows(X), sample_weight=weights
        )
        for protect in (False, True)
    ]
    plain, protected = fits
    assert (plain.faults_, protected.faults_) == (0, 0)
    np.testing.assert_array_equal(plain.labels_, protected.labels_)
    np.testing.assert_array_equal(plain.cluster_centers_, protected.cluster_centers_)
    assert plain.inertia_ == protected.inertia_
    assert plain.n_iter_ == protected.n_iter_


def test_arrays_in_memory_find_the_clustering_of_scikit_learn(data_sets):
    X, k = data_sets["digits"]
    plain, protected = (TSKMeans(k, random_state=0, device="cpu", protect=p).fit(X) for p in (False, True))
    np.testing.assert_array_equal(plain.labels_, protected.labels_)
    np.testing.assert_array_equal(plain.predict(X), protected.predict(X))
    assert (plain.faults_, protected.faults_) == (0, 0)


def test_protect_is_a_parameter():
    with pytest.raises(ValueError, match="'protect' parameter"):
        TSKMeans(2, protect="yes", device="cpu").fit(FOUR)
    assert TSKMeans(2, protect=True).get_params()["protect"] is True
    engine = open_engine(FOUR, device="cpu")
    engine.certifies = False
    with pytest.raises(ValueError, match="protect=True needs precision='exact'"):
        lloyd.fit(engine, 2, random_state=np.random.RandomState(0), protect=True)
