"""Relocation of empty clusters by launches on a HostMachine, against Lloyd in float64 and relocation by the host."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import oracle
import pytest
from exhaustive import every, property_test
from host_cuda.machine import HostMachine, build_together
from hypothesis import strategies as st
from kmeans.host_steps import DTYPES, RowsOnMachine, assert_right, iterate_once, work_of

from tsapps.apps.kmeans import empty_clusters, lloyd
from tsapps.apps.kmeans.engines import device_step
from tsapps.apps.kmeans.engines.device_engine import DeviceEngine
from tsapps.apps.kmeans.engines.device_step import DeviceStep
from tsapps.apps.kmeans.engines.select_step import Options
from tsapps.apps.kmeans.update import relocation
from tsapps.apps.kmeans.update.relocation import Relocation
from tsapps.kernels.jit.compiler import build

RELOCATE = Path(relocation.__file__).with_name("relocate.cuh")
KERNELS = [
    f"kmeans::relocate<{element}, {work}, {digits}>"
    for element, work, digits in (("float", "float", 2), ("float", "float", 3), ("double", "double", 3))
]
build_together([(RELOCATE, KERNELS)])


@dataclass(frozen=True)
class Case:
    """A problem, and the step that iterates."""

    step: str
    d: int
    k: int
    dtype: str = "float32"
    weighted: bool = False
    bounds: bool = False

    def __str__(self):
        return "-".join(str(one) for one in vars(self).values() if one is not False)

    @property
    def work(self):
        return work_of(self.dtype)

    def engine(self, X, weights=None):
        rows = RowsOnMachine(np.ascontiguousarray(X.astype(DTYPES[self.dtype])))
        options = Options(always=True, bounds=self.bounds)
        return DeviceEngine(rows, self.work, weights, HostMachine(2), options)


CASES = [
    Case("small_d", 3, 12),
    Case("small_d", 32, 8, bounds=True),
    Case("small_d", 20, 10, "float16"),
    Case("small_k", 80, 12, bounds=True),
    Case("small_k", 70, 50, "float64"),
    Case("small_k", 20, 33, weighted=True),
    Case("large_k", 5, 80),
    Case("large_k", 40, 100, weighted=True),
]


@pytest.fixture(autouse=True)
def any_number_of_samples(monkeypatch):
    monkeypatch.setattr(relocation, "MOST_ORDERED", 0)


@pytest.fixture
def by_host(monkeypatch):
    """Count the calls that relocate clusters on the host."""
    calls, relocate = [], empty_clusters.relocate_empty_clusters

    def counted(*arguments):
        calls.append(True)
        relocate(*arguments)

    monkeypatch.setattr(empty_clusters, "relocate_empty_clusters", counted)
    return calls


def fit(case, X, init, weights=None, *, max_iter=6, tol=0.0, progress=None):
    engine, random_state = case.engine(X, weights), np.random.RandomState(0)
    options = {"n_init": 1, "max_iter": max_iter, "tol": tol, "random_state": random_state, "progress": progress}
    found = lloyd.fit(engine, case.k, init=init.astype(case.work), **options)
    assert found.step == case.step, found.step_reason
    return found


def lloyd_with_relocation(X, centers, weights, max_iter, work):
    """Iterate in float64, with centers rounded to `work`; return labels, centers, and the number of relocations.

    The farthest samples move to the empty clusters, the farthest to the first.
    """
    weights = np.ones(len(X)) if weights is None else weights.astype(np.float64)
    k, labels, relocated = len(centers), None, 0
    for _ in range(max_iter):
        before, centers = labels, centers.astype(work).astype(np.float64)
        distances = oracle.square_distances(X, centers)
        labels = distances.argmin(axis=1)
        own, of = distances.min(axis=1).astype(work), labels.copy()
        empty = np.flatnonzero(np.bincount(labels, weights, k) == 0)
        of[np.lexsort((np.arange(len(X)), -own))[: len(empty)]] = empty
        relocated += len(empty)
        counts = np.bincount(of, weights, k)
        assert (counts > 0).all()
        centers = np.stack([np.bincount(of, weights * column, k) for column in X.T], axis=1) / counts[:, np.newaxis]
        if before is not None and (labels == before).all():
            break
    centers = centers.astype(work).astype(np.float64)
    return oracle.square_distances(X, centers).argmin(axis=1), centers, relocated


def spread_out(n, d, k, far, rng):
    """Return samples about 2^d or more places, and centers of which `far` are far from all of them."""
    X = rng.standard_normal((n, d)) + 4 * rng.integers(0, 2, (n, d))
    init = X[rng.choice(n, k, replace=False)].copy()
    init[rng.choice(k, far, replace=False)] += 1000 + rng.random((far, 1))
    return X, init


@pytest.mark.each_choice
@pytest.mark.parametrize("far", [1, 5])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_as_in_float64(case, far, rng, by_host):
    X, init = spread_out(600, case.d, case.k, far, rng)
    X = X.astype(DTYPES[case.dtype]).astype(np.float64)
    weights = rng.random(600) + 0.5 if case.weighted else None
    found = fit(case, X, init, weights, max_iter=4)
    labels, centers, relocated = lloyd_with_relocation(X, init, weights, 4, case.work)
    assert relocated >= far
    assert not by_host
    np.testing.assert_array_equal(found.labels, labels)
    eps = np.finfo(case.work).eps
    np.testing.assert_allclose(found.centers, centers, rtol=0, atol=8 * eps * abs(X).max() + abs(X).max() * 2.0**-24)


def results(case, X, init, weights, monkeypatch, *, by_launches, **options):
    """Return labels, centers, number of iterations, and what `progress` is told."""
    told = []
    monkeypatch.setattr(Relocation, "serves", serves if by_launches else staticmethod(lambda _: False))
    found = fit(case, X, init, weights, progress=told.append, **options)
    return found, told


serves = Relocation.__dict__["serves"]


@pytest.mark.each_choice
@pytest.mark.parametrize("max_iter", [1, 2, 9])
@pytest.mark.parametrize("case", every(2, CASES), ids=str)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_as_on_the_host(case, max_iter, rng, monkeypatch, by_host):
    """Samples of few distinct values leave clusters empty in several iterations."""
    values = rng.standard_normal((case.k + 25, case.d))
    X = values[rng.integers(0, len(values), 500)]
    init = X[rng.integers(0, len(X), case.k)].copy()
    init[1::2] = init[0]
    weights = rng.random(500) + 0.5 if case.weighted else None
    options = {"max_iter": max_iter, "monkeypatch": monkeypatch}
    mine, told = results(case, X, init, weights, by_launches=True, **options)
    assert not by_host
    other, expected = results(case, X, init, weights, by_launches=False, **options)
    assert by_host
    assert (mine.n_iter, mine.converged) == (other.n_iter, other.converged)
    np.testing.assert_array_equal(mine.labels, other.labels)
    np.testing.assert_array_equal(mine.centers, other.centers)
    np.testing.assert_array_equal(mine.cluster_sizes, other.cluster_sizes)
    assert mine.inertia == other.inertia
    assert [(one.iteration, one.n_reassigned) for one in told] == [
        (one.iteration, one.n_reassigned) for one in expected
    ]
    assert [one.inertia for one in told] == pytest.approx([one.inertia for one in expected], rel=1e-5)


def test_many_empty_clusters(rng, by_host):
    case = Case("large_k", 4, 200)
    X, init = spread_out(2000, 4, 200, 70, rng)
    found = fit(case, X.astype(np.float32), init, max_iter=2)
    labels, _, relocated = lloyd_with_relocation(X.astype(np.float32).astype(np.float64), init, None, 2, np.float32)
    assert relocated >= 70
    assert not by_host
    np.testing.assert_array_equal(found.labels, labels)


def test_too_many_for_launches(rng, by_host, monkeypatch):
    case = Case("large_k", 4, 90)
    X, init = spread_out(900, 4, 90, 30, rng)
    monkeypatch.setattr(device_step, "MOST_RELOCATED", 20)
    found = fit(case, X.astype(np.float32), init, max_iter=3)
    labels, *_ = lloyd_with_relocation(X.astype(np.float32).astype(np.float64), init, None, 3, np.float32)
    assert by_host
    np.testing.assert_array_equal(found.labels, labels)


@pytest.mark.parametrize("case", [Case("small_d", 2, 9), Case("large_k", 2, 70)], ids=str)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_fewer_distinct_samples_than_clusters(case, rng, by_host):
    """Every empty cluster then gets the mean of the heaviest, as in scikit-learn."""
    X = np.repeat([[0.0, 0], [0, 1], [1, 0], [1, 1]], [120, 130, 150, 100], axis=0)
    init = X[:1] + 0.1 * rng.standard_normal((case.k, 2))
    found = fit(case, X, init)
    assert not by_host
    assert found.inertia == pytest.approx(0, abs=1e-5)
    places, counts = np.unique(found.centers.round(3), axis=0, return_counts=True)
    assert places.tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert counts[2] == case.k - 3


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_no_sample_is_ambiguous_because_of_equal_centers(by_host):
    """Nor in the final assignment, which follows launches that do nothing because the run has converged."""
    case = Case("large_k", 2, 70)
    X = np.repeat([[0.0, 0], [0, 1], [1, 0], [1, 1]], [120, 130, 100, 150], axis=0)
    init = np.vstack([X[:1], X[120:121], X[250:251], np.repeat(X[-1:], case.k - 3, axis=0)])
    engine = case.engine(X)
    found = lloyd.fit(engine, case.k, init=init.astype(np.float32), random_state=np.random.RandomState(0))
    assert found.n_iter == 1  # no center has moved
    assert not by_host
    assert found.labels.tolist() == np.repeat(range(4), [120, 130, 100, 150]).tolist()
    assert engine.step_for(case.k).ambiguous_counts().tolist() == [0, 0]


@pytest.mark.parametrize("case", [Case("small_d", 1, 4), Case("large_k", 1, 67)], ids=str)
def test_a_cluster_that_relocation_empties(case, by_host):
    """The only sample of cluster 1 is the farthest: it moves to cluster 0, and leaves its own to the heaviest, 3."""
    others = np.arange(case.k - 2, dtype=float)
    X = np.concatenate([[-1000.0], np.repeat(others, np.where(others == 1, 9, 5))])[:, np.newaxis]
    init = np.concatenate([[-9000.0, -500], others])[:, np.newaxis]
    engine = case.engine(X)
    engine.center(np.zeros(1), case.k)
    step = engine.step_for(case.k)
    result = step.iterate(init.astype(np.float32), 0, 1, 0.0, None)
    assert result.empty is None
    assert result.relocated
    assert result.centers[:, 0].tolist() == [-1000, 1, *others]
    assert result.shift == 8000**2 + 501**2
    assert step.sums()[1].tolist() == [0, 1, *np.where(others == 1, 9, 5)]  # the sample is back in its cluster
    assert step.labels[0] == 1


# For each number of an iteration, samples on a line and five centers, of which the middle one becomes empty in it: it
# keeps −1 and 1 until the two next to it have lost their far samples. Each side mirrors the other.
BECOMES_EMPTY = {
    2: ([1.7] * 8 + [5.38, 4.35, 2.51], [5.73, 3.18]),
    3: ([1.7] * 5 + [6.75, 5.98, 6.66, 4.04, 5.11, 4.95], [8.01, 3.13]),
}


def empty_in_iterations(numbers):
    """Return samples and centers of which one becomes empty in each iteration of `numbers`, from 0."""
    d = 10
    X, centers = [1000 * np.eye(8, d)], [np.r_[np.full(8, 125.0), 0, 0]]
    for place, number in enumerate(numbers):
        if number == 0:
            centers.append(np.r_[np.zeros(9), -50_000])
            continue
        samples, some = (np.array(side) for side in BECOMES_EMPTY[number])
        for line, to in ((np.r_[-samples, -1, 1, samples], X), (np.r_[-some, 0, some[::-1]], centers)):
            away = np.zeros((len(line), d))
            away[:, -2], away[:, -1] = line, 3000 * (place + 1)
            to.append(away)
    return np.concatenate(X), np.vstack(centers)


@pytest.mark.parametrize("numbers", [[0, 2, 3], [0, 3], [2, 3]], ids=str)
def test_clusters_become_empty_again(numbers, monkeypatch, by_host):
    """Relocation stops and begins again, while iterations with and without its launches are in flight."""
    relocated, launch = [], DeviceStep._launch_relocation

    def counted(step, count, tol):
        relocated.append(count)
        assert len(relocated) <= len(numbers), "the host relocates the same clusters again"
        launch(step, count, tol)

    monkeypatch.setattr(DeviceStep, "_launch_relocation", counted)
    X, init = empty_in_iterations(numbers)
    case = Case("small_d", 10, len(init))
    found = fit(case, X, init, max_iter=12)
    X = X.astype(np.float32).astype(np.float64)
    labels, _, n_relocated = lloyd_with_relocation(X, init, None, 12, np.float32)
    assert n_relocated == len(numbers)
    assert not by_host
    np.testing.assert_array_equal(found.labels, labels)


def test_running_sums_are_those_of_labels_again(rng):
    case = Case("large_k", 6, 80)
    X, init = spread_out(800, 6, 80, 4, rng)
    engine = case.engine(X)
    engine.center(np.zeros(6), 80)
    step = engine.step_for(80)
    assert step.iterate(init.astype(np.float32), 0, 1, 0.0, None).relocated
    rows = X.astype(np.float32)
    counts = np.bincount(step.labels, minlength=80)
    np.testing.assert_array_equal(step.sums()[1], counts)
    sums = np.stack([rows[step.labels == j].sum(axis=0, dtype=np.float64) for j in range(80)])
    np.testing.assert_allclose(step.sums()[0], sums, rtol=0, atol=1e-5 * abs(rows).max())


@pytest.mark.parametrize("case", [CASES[1], CASES[3]], ids=str)
def test_bounds_that_begin_while_clusters_are_empty(case, rng):
    """The host launches an iteration with bounds before it knows that the last one left a cluster empty."""
    X, init = spread_out(900, case.d, case.k, 2, rng)
    engine = case.engine(X)
    engine.center(np.zeros(case.d), case.k)
    step = engine.step_for(case.k)
    step.begin(init.astype(case.work))
    step._may_have_bounds = False
    step._launch(0, 0.0)
    assert step._outcomes[0]["empty"] == 2
    labels, sums = step.buffers.labels.copy(), step.buffers.sums.copy()
    step._may_have_bounds, step._expected_reassigned = True, 0
    step._launch(1, 0.0)
    assert step._bounded
    np.testing.assert_array_equal(step.buffers.labels, labels)
    np.testing.assert_array_equal(step.buffers.sums, sums)
    assert step._can_relocate(2)
    step._launch_relocation(0, 0.0)
    assert not step._bounded
    assert step._outcomes[0]["relocated"] == 2
    for count in (1, 2, 3):
        now, _, _ = iterate_once(step, count)
        step._labels_are_current = False  # those that a step for small d widens
        assert_right(step, now)
    assert step._bounded


def test_launches_that_have_nothing_to_relocate(rng):
    """Iterations with launches for relocation but no empty cluster have the same bits as those without."""
    case = Case("large_k", 6, 80)
    X = rng.standard_normal((900, 6))
    found = []
    for relocates in (False, True):
        engine = case.engine(X)
        engine.center(np.zeros(6), 80)
        step = engine.step_for(80)
        step.begin(X[:80].astype(np.float32))
        assert step._can_relocate(1)
        each = []
        for count in range(3):
            step._relocates = relocates
            each += iterate_once(step, count)
        found.append([*each, step.labels.copy(), step.buffers.sums.copy()])
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


@property_test(
    3,
    200,
    n=st.integers(80, 900),
    values=st.integers(2, 40),
    d=st.sampled_from([1, 3, 17]),
    case=st.sampled_from([Case("small_d", 0, 20), Case("small_k", 0, 20, "float64"), Case("large_k", 0, 75)]),
    seed=st.integers(0, 2**16),
)
def test_any_samples(n, values, d, case, seed):
    """Every label is that of a nearest center, whatever was relocated."""
    rng = np.random.default_rng(seed)
    X = rng.integers(0, values, (n, d)).astype(float)
    init = X[rng.integers(0, n, case.k)] + (rng.random((case.k, d)) < 0.1) * 1e3
    case = Case(case.step, d, case.k, case.dtype)
    with pytest.MonkeyPatch.context() as patch, np.errstate(all="ignore"):
        patch.setattr(relocation, "MOST_ORDERED", 0)
        patch.setattr(lloyd, "_warn_of_duplicates", lambda *_: None)
        found = fit(case, X, init, max_iter=4)
    centers = found.fitted.centered.astype(np.float64)
    oracle.assert_nearest(X - found.fitted.frame.mean, centers, found.labels, case.work)


@pytest.mark.compile
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
def test_compiles_without_spills(arch):
    used = build(RELOCATE.read_text(encoding="utf-8"), KERNELS, arch).resources
    for kernel in KERNELS:
        assert used[kernel].stack == used[kernel].spill_stores == used[kernel].spill_loads == 0, kernel


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(("d", "k", "dtype"), [(16, 256, "float32"), (3, 8, "float32"), (100, 20, "float64")])
def test_as_on_the_host_on_a_gpu(d, k, dtype, monkeypatch):
    cupy = pytest.importorskip("cupy", reason="needs a GPU: CuPy is not installed")
    from tsapps import TSKMeans

    rng = np.random.default_rng(2)
    values = rng.standard_normal((3 * k, d))
    X = cupy.asarray(values[rng.integers(0, len(values), 300_000)].astype(dtype))
    init = values[:k].astype(dtype)
    init[1::3] = init[0]
    found = []
    for by_launches in (True, True, False):
        monkeypatch.setattr(Relocation, "serves", serves if by_launches else staticmethod(lambda _: False))
        found.append(TSKMeans(k, init=init, n_init=1, max_iter=10, tol=0).fit(X))
    launched, again, host = found
    assert bool((launched.cluster_centers_ == again.cluster_centers_).all())
    assert launched.n_iter_ == host.n_iter_
    assert bool((launched.labels_ == host.labels_).all())
    np.testing.assert_allclose(
        oracle.host(launched.cluster_centers_), oracle.host(host.cluster_centers_), atol=2.0**-20
    )
