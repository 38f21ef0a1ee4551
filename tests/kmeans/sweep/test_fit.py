"""Fits of several numbers of clusters in common launches, on a HostMachine: each has the bits of a fit alone."""

import numpy as np
import pytest
from exhaustive import every
from host_cuda.machine import HostMachine
from kmeans.host_steps import DTYPES, RowsOnMachine, work_of

from tsapps.apps.kmeans import lloyd
from tsapps.apps.kmeans.assign.plan import MOST_CLUSTERS
from tsapps.apps.kmeans.engines.device_engine import DeviceEngine
from tsapps.apps.kmeans.engines.select_step import Options
from tsapps.apps.kmeans.sweep.fit import fit_together
from tsapps.apps.kmeans.sweep.plan import fits_plan, groups_of


def opened(X, weights=None, multiprocessors=3, **options):
    work = work_of(X.dtype.name)
    return DeviceEngine(RowsOnMachine(X), work, weights, HostMachine(multiprocessors), Options(always=True, **options))


def overlapping(n, d, k, rng):
    """Return samples of clusters that overlap, far from zero compared with their spread."""
    return 20 + 3 * rng.standard_normal((k, d))[np.arange(n) % k] / d**0.5 + rng.standard_normal((n, d))


def served(numbers):
    """Return those numbers of clusters whose fits can share launches."""
    return [k for k in numbers if k <= MOST_CLUSTERS]


def assert_as_alone(X, numbers, weights=None, *, expected=None, **options):
    """Fit together, and each alone: those of `expected`, or all, are fitted together, with the same bits."""
    options = {"max_iter": 30} | options
    found = fit_together(opened(X, weights), numbers, seed=3, **options)
    assert sorted(found) == sorted(numbers if expected is None else expected)
    for k, one in found.items():
        alone = lloyd.fit(opened(X, weights), k, random_state=np.random.RandomState(3), **options)
        np.testing.assert_array_equal(one.labels, alone.labels)
        np.testing.assert_array_equal(one.centers, alone.centers)
        np.testing.assert_array_equal(one.cluster_sizes, alone.cluster_sizes)
        assert one.centers.dtype == alone.centers.dtype
        assert (one.inertia, one.n_iter, one.converged) == (alone.inertia, alone.n_iter, alone.converged)
        assert (one.step, one.step_reason) == (alone.step, alone.step_reason)
    return found


@pytest.mark.parametrize(
    ("n", "d", "dtype", "numbers"),
    every(
        3,
        [
            (300, 20, "float32", (20, 9, 8, 2)),
            (1000, 3, "float32", (5, 4, 3, 2, 1)),
            (257, 64, "float64", (17, 16, 3)),
            (300, 70, "float16", (65, 33, 6, 4)),
            (100, 130, "bfloat16", (12, 2)),
            (80, 256, "float32", (64, 33, 3)),
            (2600, 4, "float32", (9, 8, 2)),
        ],
        unpacked=True,
    ),
)
def test_bits(n, d, dtype, numbers, rng):
    found = assert_as_alone(overlapping(n, d, 7, rng).astype(DTYPES[dtype]), numbers, expected=served(numbers))
    assert len(found) > 1


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.exhaustive)])
def test_weights(dtype, rng):
    X = overlapping(300, 20, 5, rng).astype(dtype)
    assert_as_alone(X, (9, 4, 2), weights=rng.integers(0, 4, 300).astype(dtype))


@pytest.mark.parametrize("init", ["random", "k-means||"])
def test_other_initial_centers(init, rng):
    assert_as_alone(overlapping(300, 20, 6, rng).astype(np.float32), (9, 3), init=init, n_init=1)


@pytest.mark.parametrize(("max_iter", "tol"), [(1, 1e-4), (2, 0), (3, 1e9)])
def test_where_fits_end(max_iter, tol, rng):
    found = assert_as_alone(overlapping(300, 20, 9, rng).astype(np.float32), (9, 6, 2), max_iter=max_iter, tol=tol)
    assert {one.n_iter for one in found.values()} == {1 if tol > 1 else max_iter}


def test_ties():
    """Rows at equal distances from centers take the center of lowest index."""
    grid = np.stack(np.meshgrid(*[np.arange(7.0)] * 3), axis=-1).reshape(-1, 3)
    assert_as_alone(np.concatenate([grid, np.zeros((len(grid), 17))], axis=1).astype(np.float32), (9, 5, 4, 2))


@pytest.mark.parametrize(("distance", "spread"), [(3e2, 1), (3e4, 1), (1e7, 1e-3)])
def test_distant_rows(distance, spread, rng):
    """Centers of distant rows have a large norm; rows near the mean have a norm of almost zero."""
    X = spread * rng.standard_normal((400, 20))
    X[:7] += distance * rng.standard_normal((7, 20))
    X[200:203] = X[7:].mean(axis=0)
    assert_as_alone(X.astype(np.float32), (12, 6, 3))


def test_fits_that_leave_a_cluster_empty_are_left_out(rng):
    """So are those of fewer distinct rows than clusters; the others go on."""
    X = np.repeat(rng.standard_normal((6, 20)), 50, axis=0).astype(np.float32)
    found = assert_as_alone(X, (9, 7, 6, 3, 2), expected=(6, 3, 2))
    assert found[6].inertia == pytest.approx(0, abs=1e-9)


def test_progress(rng):
    X, numbers, told = overlapping(300, 20, 6, rng).astype(np.float32), (9, 3), {9: [], 3: []}
    chosen = []
    fit_together(
        opened(X),
        numbers,
        seed=3,
        progress=lambda k, one: told[k].append(one),
        choosing=lambda *done: chosen.append(done),
    )
    for k in numbers:
        alone = []
        lloyd.fit(opened(X), k, random_state=np.random.RandomState(3), progress=alone.append)
        assert told[k] == alone
    assert (9, 0, 9, 9) in chosen


def test_a_block_adds_more_rows_than_its_sums_hold_at_once(rng):
    """After 32,768 rows, sums of limbs in shared memory are added to those in global memory."""
    X = rng.standard_normal((34_000, 3)).astype(np.float32)
    found = fit_together(opened(X, multiprocessors=1), (3, 2), seed=3, max_iter=1)
    for k, one in found.items():
        alone = lloyd.fit(opened(X), k, random_state=np.random.RandomState(3), max_iter=1)
        np.testing.assert_array_equal(one.centers, alone.centers)
    assert len(found) == 2


def test_groups():
    """Fits beyond the memory for lists, or beyond the number of fits, are in another group; a single one is alone."""
    of_fit = fits_plan(500, 20, (4,), HostMachine(3).gpu).list_bytes + 500 * 4
    plans = list(groups_of(500, 20, (6, 5, 4, 3, 2), HostMachine(3).gpu, 2 * of_fit + 5 * 500 * 4))
    assert [plan.numbers for plan in plans] == [(6, 5), (4, 3)]
    many = tuple(range(40, 0, -1))
    assert [len(plan.numbers) for plan in groups_of(500, 20, many, HostMachine(3).gpu, 1 << 40)] == [32, 8]


@pytest.mark.parametrize(
    ("numbers", "options"),
    [((5,), {}), ((5, 2), {"n_init": 2}), ((5, 2), {"init": "random"}), ((301, 5), {})],
)
def test_what_cannot_share_launches(numbers, options, rng):
    X = overlapping(300, 20, 5, rng).astype(np.float32)
    assert fit_together(opened(X), numbers, seed=3, **options) == {}


def test_long_rows_are_fitted_alone(rng):
    assert fit_together(opened(overlapping(300, 257, 5, rng).astype(np.float32)), (5, 2), seed=3) == {}


def test_labels_that_are_not_certified(rng):
    X = overlapping(300, 20, 5, rng).astype(np.float32)
    assert fit_together(opened(X, precision="tf32"), (5, 2), seed=3) == {}


def test_numbers_that_are_not_finite(rng):
    X = overlapping(300, 20, 5, rng).astype(np.float32)
    X[7, 3] = np.nan
    with pytest.raises(ValueError, match="row 7"):
        fit_together(opened(X), (5, 2), seed=3)


def test_where_no_fits_share_launches_the_copy_stays_as_it_is(rng):
    """cuBLAS centers the copy, so that the next engine would have to make another."""
    X = overlapping(300, 20, 5, rng)
    engine = DeviceEngine(RowsOnMachine(X), X.dtype, None, HostMachine(), Options(kernels=False))
    before = X.copy()
    assert fit_together(engine, (5, 2), seed=3) == {}
    assert engine.is_reusable
    np.testing.assert_array_equal(X, before)
