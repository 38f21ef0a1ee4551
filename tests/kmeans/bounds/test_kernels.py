"""Steps for k <= 64 with bounds on a HostMachine: against float64, and against those without, to the bit."""

from functools import cache
from math import prod

import numpy as np
import oracle
import pytest
from exhaustive import every
from host_cuda import harness
from hypothesis import given, settings
from hypothesis import strategies as st
from kmeans.bounded_steps import (
    ACTIVE,
    PLAIN,
    SELECT,
    WITH_BOUNDS,
    RecordedBounds,
    assert_same,
    assert_same_bits,
    gaps,
    run,
)
from kmeans.host_steps import KINDS, assert_right, blobs, centered, data_on_host

from tsapps.apps.kmeans.assign.plan import ARGMIN, assign_plan
from tsapps.apps.kmeans.bounds.plan import BOUNDED, BOUNDS_STATE, FRESH_BYTES, fresh_bounds_state, most_listed
from tsapps.apps.kmeans.engines.small_k_step import SmallKStep

#: Features and clusters: short rows, rows of one and a half steps of `assign_active_rows`, and long ones in pieces.
SHAPES = [(3, 2), (16, 9), (40, 33), (130, 64), (300, 5)]


def plain_step(X, k, kind, weights=None, mean=None, *, bounds=False, **data_options):
    """Return a step with no sample in any cluster."""
    data = data_on_host(X, kind, weights, mean, **data_options)
    plan = assign_plan(10**7, data.n_features, k, data.gpu, bounds=bounds)
    step = SmallKStep(data, plan, k, bounds=bounds, certifies=True)
    step.reset()
    return step


def bounded_step(*arguments, **data_options):
    """Return a step with bounds, with no sample in any cluster, and its `RecordedBounds`."""
    step = plain_step(*arguments, bounds=True, **data_options)
    return step, RecordedBounds(step)


@cache
def state_functions():
    """Return the functions of bounds/state.cuh that are no kernels."""
    return harness.build("""
#include "apps/kmeans/bounds/state.cuh"
extern "C" void choose(kmeans::BoundsState* state, long long found, long long capacity) {
  state->choose((unsigned)found, (unsigned)capacity);
}
extern "C" void plan_next(kmeans::BoundsState* state, double movement, long long may_begin, long long is_next) {
  state->plan_next(movement, may_begin != 0, is_next != 0);
}
extern "C" void limit_of(double drift, double most, float* limits) {
  limits[0] = kmeans::limit_of(drift, most);
  limits[1] = kmeans::below_limit(limits[0]);
}
""")


def test_sizes():
    assert BOUNDED.itemsize == ARGMIN.itemsize + 24
    assert BOUNDS_STATE.fields["screened"][1] == FRESH_BYTES
    assert BOUNDS_STATE.itemsize == 64


def test_rows_that_are_listed_have_room():
    assert most_listed(10**7, 132, 76_000) == 2_500_000
    for n in (1, 50, 5_000, 10**6):
        for lists in (1, 7, 132, 264):
            for room in (128, 384, 76_000):
                most = most_listed(n, lists, room)
                tiles = -(-most // 32)
                assert 1 <= most
                assert -(-tiles // lists) * 32 <= room


def test_by_hand():
    """Centers 8 apart on a line: a row between them and 1 off its own is left out until both moved by 6 together."""
    X = np.zeros((400, 3))
    X[:, 0] = np.tile([-5.0, -3.0, 3.0, 5.0], 100)
    centers = np.array([[-4.0, 0, 0], [4.0, 0, 0]])
    step, recorded = bounded_step(X, 2, KINDS[3])
    bounds, scale = recorded.bounds, step.layout.placement.scale
    recorded.next_is(WITH_BOUNDS)
    recorded.assign(centers)
    assert step.labels.tolist() == [0, 0, 1, 1] * 100
    # The other center is 9 or 7 away, the own 1; what norms and scores are rounded by makes it a little less.
    expected = np.tile([8.0, 6.0, 6.0, 8.0], 100) * scale
    assert (bounds.row_bounds <= expected).all()
    assert (bounds.row_bounds > 0.97 * expected).all()
    recorded.assert_selects(step.labels, expected, {5.7: 400, 6.5: 200, 8.5: 0})


@pytest.mark.each_choice
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(map(str, kind)))
@pytest.mark.parametrize(("d", "k"), every(2, SHAPES, unpacked=True))
def test_row_bounds_are_below_gaps(d, k, kind, rng):
    n = 700
    X, centers = blobs(n, d, k, rng)
    weights = rng.random(n) * 3 if kind[2] else None
    step, recorded = bounded_step(X, k, kind, weights, X.mean(axis=0))
    row_bounds, labels = recorded.bounds.row_bounds, step.labels
    centers = centers - X.mean(axis=0)
    recorded.next_is(WITH_BOUNDS)
    recorded.assign(centers)
    assert_right(step, centers)
    gap = gaps(step, centers)
    assert (row_bounds <= gap).all()
    # Blobs lie apart: most gaps are of use.
    assert np.median(row_bounds) > 0.5 * np.median(gap)
    # The same by `assign_active_rows`, of the rows of one cluster, and of a last tile that is not full.
    before, first = row_bounds.copy(), labels.copy()
    chosen = first == first[0]
    chosen[np.flatnonzero(chosen)[n // 4 :]] = False
    recorded.next_is(SELECT)
    row_bounds[chosen] = np.nan
    centers = centers + 0.05 * rng.standard_normal(centers.shape)
    n_reassigned = recorded.assign(centers)
    assert recorded.passes[-1] == ACTIVE
    assert recorded.state["examined"] == np.count_nonzero(chosen)
    distances = oracle.square_distances(centered(step.data), centers.astype(step.data.dtype))
    expected = np.where(chosen, distances.argmin(axis=1), first)
    np.testing.assert_array_equal(labels, expected)
    assert n_reassigned == np.count_nonzero(expected != first)
    assert (row_bounds[~chosen] == before[~chosen]).all()
    assert (row_bounds[chosen] <= gaps(step, centers)[chosen]).all()


def test_a_warp_examines_several_tiles(rng):
    n, d, k = 4001, 40, 33
    X, centers = blobs(n, d, k, rng)
    step, recorded = bounded_step(X, k, KINDS[0], multiprocessors=1)
    recorded.assign(centers)
    labels, row_bounds = step.labels, recorded.bounds.row_bounds
    expected, expired = labels.copy(), rng.permutation(n)[:1000]
    # Warps of all blocks, rows of a tile.
    assert len(expired) > 2 * prod(recorded.bounds._assign_active_grid) * 4 * 32
    labels[expired] = (expected[expired] + 1) % k
    row_bounds[:], row_bounds[expired] = np.inf, -np.inf
    recorded.next_is(SELECT)
    n_reassigned = recorded.assign(centers)
    assert recorded.passes[-1] == ACTIVE
    assert n_reassigned == recorded.state["examined"] == 1000
    np.testing.assert_array_equal(labels, expected)
    assert np.isfinite(row_bounds).sum() > 900


@pytest.mark.each_choice
@pytest.mark.parametrize(
    ("kind", "apart"),
    [(KINDS[0], 0.0), *((kind, 0.4) for kind in KINDS), (KINDS[3], 3.0)],
    ids=lambda one: "-".join(map(str, one)) if isinstance(one, tuple) else None,
)
@pytest.mark.parametrize(("d", "k"), every(2, SHAPES, unpacked=True))
def test_the_same_bits_as_without(d, k, apart, kind, rng):
    n = 400
    X, _ = blobs(n, d, k, rng, apart=apart)
    weights = rng.random(n) + 0.5 if kind[2] else None
    arguments = X, k, kind, weights, X.mean(axis=0)
    bounded, _ = bounded_step(*arguments)
    assert_same_bits(bounded, plain_step(*arguments), X[:k] - X.mean(axis=0))


def test_rows_are_left_out(rng):
    """Once labels have settled, only rows near a border are looked at."""
    n, d, k = 2000, 16, 9
    X, _ = blobs(n, d, k, rng, apart=0.8)
    step, recorded = bounded_step(X, k, KINDS[0])
    found, passes = run(step, X[:k], 100), recorded.passes[:-1]  # without that of an iteration that was stopped
    assert found[-1][2]["stop"]
    assert not found[-1][2]["empty"]
    assert ACTIVE in passes
    assert passes[:2] == [PLAIN, WITH_BOUNDS]
    screened = passes.count(ACTIVE)
    assert recorded.state["screened"] == screened
    assert recorded.state["examined"] < 0.15 * n * screened
    assert_right(step, found[-2][3])


@pytest.mark.parametrize("infinite", [False, True], ids=["next to zero", "infinite"])
def test_what_float16_cannot_hold(infinite, rng):
    X, centers = blobs(300, 16, 9, rng)
    X[7] *= 1e9
    X[8:40] *= 1e-9
    X[40:80] = X[40]
    X[80:90] = (centers[0] + centers[1]) / 2
    middle = 3.0 if infinite else float(np.sqrt((X**2).mean()))
    bounded, _ = bounded_step(X, 9, KINDS[3], middle=middle)
    assert np.isfinite(bounded.half_copy.rows).all() == (not infinite)
    assert_same(run(bounded, centers, 10), run(plain_step(X, 9, KINDS[3], middle=middle), centers, 10))


@pytest.mark.parametrize("away", every(3, [1e3, 30.0, 1e7]))
def test_a_center_far_away(away, rng):
    X, centers = blobs(350, 40, 33, rng)
    X -= X.mean(axis=0)
    X[5] = away * X[6]
    centers[7] = X[5]
    X = np.concatenate([X, -X])
    middle = float(np.sqrt((X[:5] ** 2).mean()))  # of the others
    bounded, recorded = bounded_step(X, 33, KINDS[3], middle=middle)
    recorded.next_is(WITH_BOUNDS)
    recorded.assign(centers)
    assert (recorded.bounds.row_bounds <= gaps(bounded, centers)).all()
    bounded.reset()
    assert_same(run(bounded, centers, 8), run(plain_step(X, 33, KINDS[3], middle=middle), centers, 8))


def test_nothing_is_done_once_it_stops(rng):
    X, centers = blobs(300, 40, 33, rng)
    _, recorded = bounded_step(X, 33, KINDS[0])
    recorded.assign(centers)
    recorded.assert_idle_once_stopped(centers + 5)


def passes_of(found, movements, capacity=100):
    """Return what iterations do if the screen of iteration i finds found(i) rows, and how it went on."""
    state, library, passes = fresh_bounds_state().reshape(1), state_functions(), []
    for i, movement in enumerate(movements):
        if state["pass"] == SELECT:
            library.call("choose", state, found(i), capacity)
        passes.append(int(state["pass"][0]))
        assert state["skip_full_assign"] == (passes[-1] != PLAIN)
        library.call("plan_next", state, float(movement), 1, 1)
        assert state["last_drift"] == movement
        assert state["active"] == 0
    return passes


def test_bounds_that_do_not_pay_turn_themselves_off():
    # The centers move less from iteration to iteration, but never little enough.
    passes = passes_of(lambda _: 10**6, 0.8 ** np.arange(100))
    tries = [i for i, one in enumerate(passes) if one == WITH_BOUNDS]
    assert passes.count(ACTIVE) == 0
    assert tries == [1, 4, 9, 18, 35, 68]
    # Nor are they tried again while centers move as much as before.
    assert passes_of(lambda _: 10**6, np.ones(100)).count(WITH_BOUNDS) == 1


def test_nothing_is_left_to_do_where_nothing_follows():
    state, library = fresh_bounds_state().reshape(1), state_functions()
    for may_begin, is_next, skip_full_assign in ((0, 1, 0), (0, 0, 1), (1, 1, 1)):
        library.call("plan_next", state, 1.0, may_begin, is_next)
        assert state["skip_full_assign"] == skip_full_assign
    assert state["pass"] == WITH_BOUNDS


def test_bounds_that_pay_stay():
    passes = passes_of(lambda i: 1000 if i in (2, 19) else 50, 0.7 ** np.arange(30))
    # The first screen finds too many rows, and bounds are tried again; later on, expiries are renewed.
    assert passes[:7] == [PLAIN, WITH_BOUNDS, PLAIN, PLAIN, WITH_BOUNDS, ACTIVE, ACTIVE]
    assert passes[19] == WITH_BOUNDS
    assert passes[7:19] + passes[20:] == [ACTIVE] * 22


@settings(max_examples=200)
@given(drift=st.floats(1e-18, 1e12), most=st.floats(1e-18, 1e12))
def test_limits_are_rounded_up(drift, most):
    limits = np.zeros(2, np.float32)
    state_functions().call("limit_of", drift, most, limits)
    exact = drift + most
    assert exact <= float(limits[0]) <= exact * (1 + 2.0**-21)
    assert float(limits[1]) <= exact


@pytest.mark.exhaustive
@settings(max_examples=25, deadline=None)
@given(
    shape=st.sampled_from(SHAPES),
    kind=st.sampled_from(KINDS),
    n=st.integers(1, 300),
    grain=st.sampled_from([None, 1.0, 0.25]),
    apart=st.sampled_from([0.1, 1.0, 30.0]),
    seed=st.integers(0, 2**16),
)
def test_any_data(shape, kind, n, grain, apart, seed):
    d, k = shape
    rng = np.random.default_rng(seed)
    X, centers = blobs(n, d, k, rng, apart=apart)
    weights = rng.random(n) + 0.5 if kind[2] else None
    if grain:  # many ties
        X, centers = np.round(X / grain) * grain, np.round(centers / grain) * grain
    bounded, _ = bounded_step(X, k, kind, weights)
    with harness.schedule(seed=seed, copies="early" if seed % 2 else "late"):
        ours = run(bounded, centers, 6, seed % 2)  # with bounds at once, or after the first iterations
    assert_same(ours, run(plain_step(X, k, kind, weights), centers, 6))
