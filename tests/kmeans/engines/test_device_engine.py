"""Whole fits of DeviceEngine on a HostMachine: against Lloyd in float64, and against the engine of the CPU."""

from typing import NamedTuple

import numpy as np
import oracle
import pytest
from host_cuda.machine import HostMachine
from kmeans.host_steps import DTYPES, RowsOnMachine, work_of

from tsapps.apps.kmeans import lloyd
from tsapps.apps.kmeans.data.rows import ArrayRows
from tsapps.apps.kmeans.engines.device_engine import DeviceEngine
from tsapps.apps.kmeans.engines.device_step import DeviceStep
from tsapps.apps.kmeans.engines.engine import HostEngine
from tsapps.apps.kmeans.engines.large_k_step import LargeKStep
from tsapps.apps.kmeans.engines.select_step import Options
from tsapps.apps.kmeans.engines.small_d_step import SmallDFmaStep, SmallDMmaStep
from tsapps.apps.kmeans.engines.small_k_step import SmallKStep
from tsapps.kernels.gpu_specs import KNOWN


class Case(NamedTuple):
    """A problem, and the step that it is for."""

    step: type
    n: int
    d: int
    k: int
    dtype: str = "float32"
    weighted: bool = False
    bounds: bool = False
    gpu: str = "H200"

    def __str__(self):
        flags = [name for name in ("weighted", "bounds") if getattr(self, name)]
        gpu = () if self.gpu == "H200" else (self.gpu,)
        return "-".join(map(str, (self.step.__name__, self.n, self.d, self.k, self.dtype, *flags, *gpu)))

    @property
    def work(self):
        return work_of(self.dtype)

    def data(self, rng):
        """Return samples of clusters that overlap, not about zero, and their weights or None."""
        middles = 2 + 3 * rng.standard_normal((self.k, self.d)) / self.d**0.5
        X = middles[np.arange(self.n) % self.k] + rng.standard_normal((self.n, self.d))
        return X.astype(DTYPES[self.dtype]), rng.random(self.n) + 0.5 if self.weighted else None


CASES = [
    Case(SmallDFmaStep, 400, 3, 5),
    Case(SmallDFmaStep, 400, 8, 12, "bfloat16"),
    Case(SmallDFmaStep, 1000, 16, 8, bounds=True),
    Case(SmallDMmaStep, 400, 32, 10, "float16"),
    Case(SmallDMmaStep, 400, 16, 24),
    Case(SmallDMmaStep, 1000, 32, 8, bounds=True),
    Case(SmallKStep, 300, 100, 9),
    Case(SmallKStep, 300, 20, 33, weighted=True),
    Case(SmallKStep, 300, 70, 6, "float64"),
    Case(SmallKStep, 300, 70, 6, "bfloat16"),
    Case(SmallKStep, 400, 1100, 4),
    Case(SmallKStep, 2000, 80, 7, bounds=True),
    Case(LargeKStep, 400, 20, 70),
    Case(LargeKStep, 400, 90, 80, "float64", weighted=True),
]
#: For tests of what no kernel decides: other than these are exhaustive.
FEW = {CASES[number] for number in (1, 5, 7, 9, 11, 13)}
MOST_EXHAUSTIVE = [
    pytest.param(case, marks=() if case in FEW else pytest.mark.exhaustive, id=str(case)) for case in CASES
]


def engine_of(case, X, weights):
    options = Options(always=True, bounds=case.bounds)
    return DeviceEngine(RowsOnMachine(X), case.work, weights, HostMachine(gpu=KNOWN[case.gpu]), options)


def lloyd_in_float64(X, centers, weights):
    """Return labels, centers and the number of iterations, the last of which changes no label; no cluster is empty."""
    labels = np.full(len(X), -1)
    for n_iter in range(1, 100):
        before = labels
        labels, centers = oracle.lloyd_step(X, centers, weights)
        assert len(set(labels.tolist())) == len(centers), "choose data that leaves no cluster empty"
        if (labels == before).all():
            return labels, centers, n_iter
    raise AssertionError("choose data that takes fewer iterations")


def center_tolerance(X, work, digits):
    """Return the bound of a center's error where labels are right.

    Rows less the mean, their mean, and that plus the mean are rounded once each; elements of sums to 31 or 47 bits, of
    which n and a power of two that exceeds the largest may take some.
    """
    wide = X.astype(np.float64)
    spread, largest = abs(wide - wide.mean(axis=0)).max(), abs(wide).max()
    return np.finfo(work).eps / 2 * (2 * spread + largest) + 2.0 ** (-29 if digits == 2 else -44) * spread


# Without wgmma, and with so little shared memory that it does not hold the centers.
OTHER_GPUS = [
    Case(LargeKStep, 400, 20, 70, gpu="A100"),
    Case(LargeKStep, 400, 90, 80, "float64", weighted=True, gpu="B200"),
    Case(LargeKStep, 300, 300, 9, gpu="RTX 5090"),
]


@pytest.mark.parametrize("case", [*CASES, *OTHER_GPUS], ids=str)
def test_fits_are_those_of_float64(case, rng):
    X, weights = case.data(rng)
    first = X[: case.k].astype(np.float64)
    labels, centers, n_iter = lloyd_in_float64(X, first, weights)
    assert n_iter > 2, "choose data that takes more iterations"
    engine = engine_of(case, X, weights)
    found = lloyd.fit(engine, case.k, init=first, n_init=1, tol=0, random_state=np.random.RandomState(0))
    np.testing.assert_array_equal(found.labels, labels)
    assert (found.n_iter, found.converged) == (n_iter, True)
    step = engine.step_for(case.k)
    assert type(step) is case.step
    np.testing.assert_allclose(
        found.centers, centers, rtol=0, atol=center_tolerance(X, case.work, step.integers.digits)
    )
    np.testing.assert_array_equal(found.cluster_sizes, np.bincount(labels, minlength=case.k))
    distances = oracle.square_distances(X, centers)[np.arange(case.n), labels]
    inertia = distances.sum() if weights is None else weights @ distances
    assert found.inertia == pytest.approx(inertia, rel=float(oracle.gamma(case.d + 8, case.work)))
    screened, examined = step.examined()
    assert (screened > 0) == case.bounds
    assert examined < screened * case.n or not case.bounds


@pytest.mark.each_choice
@pytest.mark.parametrize(("max_iter", "tol"), [(2, 0.0), (100, 1e6)], ids=["max_iter", "tol"])
@pytest.mark.parametrize("case", MOST_EXHAUSTIVE)
def test_final_labels_need_no_preparation_of_centers(case, max_iter, tol, rng, monkeypatch):
    begin, begun = DeviceStep.begin, []

    def counted(step, centers):
        begun.append(centers)
        begin(step, centers)

    monkeypatch.setattr(DeviceStep, "begin", counted)
    X, weights = case.data(rng)
    options = {"n_init": 1, "max_iter": max_iter, "tol": tol, "random_state": np.random.RandomState(0)}
    found = lloyd.fit(engine_of(case, X, weights), case.k, init=X[: case.k].astype(np.float64), **options)
    assert found.n_iter == (2 if tol == 0 else 1)
    assert len(begun) == 1
    distances = oracle.square_distances(X, found.centers)
    np.testing.assert_array_equal(found.labels, distances.argmin(axis=1))
    np.testing.assert_array_equal(found.cluster_sizes, np.bincount(found.labels, minlength=case.k))
    least = distances.min(axis=1)
    inertia = least.sum() if weights is None else weights @ least
    assert found.inertia == pytest.approx(inertia, rel=float(oracle.gamma(case.d + 8, case.work)))


@pytest.mark.parametrize(
    ("case", "init"),
    [
        (Case(SmallDFmaStep, 400, 3, 5), "k-means++"),
        (Case(SmallDFmaStep, 400, 3, 5), "k-means||"),
        (Case(SmallKStep, 300, 100, 9), "k-means++"),
        (Case(SmallKStep, 300, 20, 9, weighted=True), "random"),
        (Case(LargeKStep, 500, 20, 70), "random"),
    ],
    ids=str,
)
def test_fits_are_those_of_the_cpu(case, init, rng):
    """Several runs from drawn centers, some of which are cut short: the same draws, iterations and best run."""
    X, weights = case.data(rng)
    both = []
    for engine in (engine_of(case, X, weights), HostEngine(ArrayRows(X), case.work, weights)):
        seen = []
        found = lloyd.fit(
            engine,
            case.k,
            init=init,
            n_init=2,
            max_iter=5,
            random_state=np.random.RandomState(3),
            progress=seen.append,
        )
        both.append((found, seen))
    (found, seen), (expected, expected_seen) = both
    np.testing.assert_array_equal(found.labels, expected.labels)
    assert (found.n_iter, found.converged) == (expected.n_iter, expected.converged)
    np.testing.assert_allclose(found.centers, expected.centers, rtol=0, atol=2 * center_tolerance(X, case.work, 2))
    assert found.inertia == pytest.approx(expected.inertia, rel=float(oracle.gamma(case.d + 8, case.work)))
    told = [[(one.run, one.iteration, one.n_reassigned) for one in some] for some in (seen, expected_seen)]
    assert told[0] == told[1]
    inertias = [[one.inertia for one in some] for some in (seen, expected_seen)]
    np.testing.assert_allclose(*inertias, rtol=1e-5)
