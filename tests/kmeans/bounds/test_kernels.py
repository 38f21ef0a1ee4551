"""Bounds of the fused engine: their kernels' own source run on the CPU, against float64 and against no bounds."""

import numpy as np
import oracle
import pytest
from exhaustive import every
from host_cuda import harness
from host_cuda.bounded_kmeans import (
    ACTIVE,
    PLAIN,
    SCREEN,
    SHAPES,
    UNTIL_PASS,
    BoundedIterations,
    assert_nothing_is_done,
    assert_same,
    assert_same_bits,
    bounded,
    gaps,
    run,
)
from host_cuda.fused_kmeans import KINDS, Iterations, blobs
from hypothesis import given, settings
from hypothesis import strategies as st

from tsapps.apps.kmeans.assign.plan import ARGMIN
from tsapps.apps.kmeans.bounds.plan import BOUNDED, BOUNDS_STATE, FRESH_BYTES, fresh_bounds_state, most_listed


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
    of = BoundedIterations(X, 2, KINDS[3])
    of.next_is(UNTIL_PASS)
    of.iterate(centers)
    assert of.labels.tolist() == [0, 0, 1, 1] * 100
    # The other center is 9 or 7 away, the own 1; what norms and scores are rounded by makes it a little less.
    expected = np.tile([8.0, 6.0, 6.0, 8.0], 100) * of.scale
    assert (of.row_bounds <= expected).all()
    assert (of.row_bounds > 0.97 * expected).all()
    for n_reassigned, safe in ((5.7, 400), (6.5, 200), (8.5, 0)):
        of.limits[:] = n_reassigned * of.scale
        of.next_is(SCREEN)
        of.state["active"] = 0
        active = of.select_active_rows(400)
        assert of.state["active"] == 400 - safe
        assert sorted(active[: 400 - safe]) == [i for i in range(400) if expected[i] < n_reassigned * of.scale]


@pytest.mark.each_choice
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(map(str, kind)))
@pytest.mark.parametrize(("d", "k"), every(2, SHAPES, unpacked=True))
def test_expiries_are_below_gaps(d, k, kind, rng):
    n = 700
    X, centers = blobs(n, d, k, rng)
    weights = rng.random(n) * 3 if kind[2] else None
    of = BoundedIterations(X, k, kind, weights, X.mean(axis=0))
    centers = centers - X.mean(axis=0)
    of.next_is(UNTIL_PASS)
    of.iterate(centers)
    of.assert_right(centers)
    gap = gaps(of, centers)
    assert (of.row_bounds <= gap).all()
    # Blobs lie apart: most gaps are of use.
    assert np.median(of.row_bounds) > 0.5 * np.median(gap)
    # The same by `assign_active_rows`, of the rows of one cluster, and of a last tile that is not full.
    before, first = of.row_bounds.copy(), of.labels.copy()
    chosen = first == first[0]
    of.next_is(SCREEN)
    of.row_bounds[chosen] = np.nan
    centers = centers + 0.05 * rng.standard_normal(centers.shape)
    if np.count_nonzero(chosen) > n // 4:
        chosen[np.flatnonzero(chosen)[n // 4 :]] = False
        of.row_bounds[:] = np.where(chosen, np.nan, before)
    _, n_reassigned = of.iterate(centers)
    assert of.passes[-1] == ACTIVE
    assert of.state["examined"] == np.count_nonzero(chosen)
    expected = np.where(chosen, oracle.square_distances(of.centered, centers.astype(of.work)).argmin(axis=1), first)
    assert (of.labels == expected).all()
    assert n_reassigned == np.count_nonzero(expected != first)
    assert (of.row_bounds[~chosen] == before[~chosen]).all()
    assert (of.row_bounds[chosen] <= gaps(of, centers)[chosen]).all()


def test_a_warp_examines_several_tiles(rng):
    n, d, k = 4001, 40, 33
    X, centers = blobs(n, d, k, rng)
    of = BoundedIterations(X, k, KINDS[0])
    of.iterate(centers)
    expected, expired = of.labels.copy(), rng.permutation(n)[:1000]
    assert len(expired) > 3 * 2 * 4 * 32  # lists, blocks of a list, warps, rows of a tile
    of.labels[expired] = (expected[expired] + 1) % k
    of.row_bounds[:], of.row_bounds[expired] = np.inf, -np.inf
    of.next_is(SCREEN)
    _, n_reassigned = of.iterate(centers)
    assert of.passes[-1] == ACTIVE
    assert n_reassigned == of.state["examined"] == 1000
    np.testing.assert_array_equal(of.labels, expected)
    assert np.isfinite(of.row_bounds).sum() > 900


@pytest.mark.each_choice
@pytest.mark.parametrize(
    ("kind", "apart"),
    [(KINDS[0], 0.0), *((kind, 0.4) for kind in KINDS), (KINDS[3], 3.0)],
    ids=lambda one: "-".join(map(str, one)) if isinstance(one, tuple) else None,
)
@pytest.mark.parametrize(("d", "k"), every(2, SHAPES, unpacked=True))
def test_the_same_bits_as_without(d, k, apart, kind, rng):
    n = 900 if d * k < 5000 else 400
    X, _ = blobs(n, d, k, rng, apart=apart)
    weights = rng.random(n) + 0.5 if kind[2] else None
    arguments = X, k, kind, weights, X.mean(axis=0)
    plain, bounds = Iterations(*arguments), BoundedIterations(*arguments)
    centers = (X[:k] - X.mean(axis=0)).astype(plain.work)
    assert_same_bits(bounds, plain, centers)


def test_rows_are_left_out(rng):
    """Once labels have settled, only rows near a border are looked at."""
    n, d, k = 4000, 16, 9
    X, _ = blobs(n, d, k, rng, apart=0.8)
    of = BoundedIterations(X, k, KINDS[0])
    found = run(of, X[:k].astype(np.float32), 100)
    assert found[-1][2]["stop"]
    assert not found[-1][2]["empty"]
    assert ACTIVE in of.passes
    assert of.passes[:2] == [PLAIN, UNTIL_PASS]
    screened = of.passes.count(ACTIVE)
    assert of.state["screened"] == screened
    assert of.state["examined"] < 0.15 * n * screened
    of.assert_right(found[-2][3])


def test_what_float16_cannot_hold(rng):
    X, centers = blobs(600, 16, 9, rng)
    X[7] *= 1e9  # infinite in float16
    X[8:40] *= 1e-9
    X[40:80] = X[40]
    X[80:90] = (centers[0] + centers[1]) / 2
    plain, bounds = Iterations(X, 9, KINDS[3]), BoundedIterations(X, 9, KINDS[3])
    assert_same(run(bounds, centers, 10), run(plain, centers, 10))


@pytest.mark.parametrize("away", every(3, [1e3, 30.0, 1e7]))
def test_a_center_far_away(away, rng):
    X, centers = blobs(700, 40, 33, rng)
    X -= X.mean(axis=0)
    X[5] = away * X[6]
    centers[7] = X[5]
    X = np.concatenate([X, -X])
    scale = float(16 / 2 ** np.round(np.log2(np.sqrt((X[:5] ** 2).mean()))))
    plain, bounds = Iterations(X, 33, KINDS[3]), BoundedIterations(X, 33, KINDS[3])
    for of in (plain, bounds):
        of.make_half_copy(scale)
    bounds.next_is(UNTIL_PASS)
    bounds.iterate(centers)
    assert (bounds.row_bounds <= gaps(bounds, centers)).all()
    bounds.labels[:], bounds.sums[:] = -1, 0
    bounds.begin()
    assert_same(run(bounds, centers, 8), run(plain, centers, 8))


def test_nothing_is_done_once_it_stops(rng):
    X, centers = blobs(300, 40, 33, rng)
    of = BoundedIterations(X, 33, KINDS[0])
    of.iterate(centers)
    assert_nothing_is_done(of, centers + 5)


def passes_of(found, movements, capacity=100):
    """Return what iterations do if the screen of iteration i finds found(i) rows, and how it went on."""
    state, library, passes = fresh_bounds_state().reshape(1), bounded()[SHAPES[0]], []
    for i, movement in enumerate(movements):
        if state["pass"] == SCREEN:
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
    tries = [i for i, one in enumerate(passes) if one == UNTIL_PASS]
    assert passes.count(ACTIVE) == 0
    assert tries == [1, 4, 9, 18, 35, 68]
    # Nor are they tried again while centers move as much as before.
    assert passes_of(lambda _: 10**6, np.ones(100)).count(UNTIL_PASS) == 1


def test_nothing_is_left_to_do_where_nothing_follows():
    state, library = fresh_bounds_state().reshape(1), bounded()[SHAPES[0]]
    for may_begin, is_next, skip_full_assign in ((0, 1, 0), (0, 0, 1), (1, 1, 1)):
        library.call("plan_next", state, 1.0, may_begin, is_next)
        assert state["skip_full_assign"] == skip_full_assign
    assert state["pass"] == UNTIL_PASS


def test_bounds_that_pay_stay():
    passes = passes_of(lambda i: 1000 if i in (2, 19) else 50, 0.7 ** np.arange(30))
    # The first screen finds too many rows, and bounds are tried again; later on, expiries are renewed.
    assert passes[:7] == [PLAIN, UNTIL_PASS, PLAIN, PLAIN, UNTIL_PASS, ACTIVE, ACTIVE]
    assert passes[19] == UNTIL_PASS
    assert passes[7:19] + passes[20:] == [ACTIVE] * 22


@settings(max_examples=200)
@given(n_reassigned=st.floats(1e-18, 1e12), most=st.floats(1e-18, 1e12))
def test_limits_are_rounded_up(n_reassigned, most):
    limits = np.zeros(2, np.float32)
    bounded()[SHAPES[0]].call("limit_of", n_reassigned, most, limits)
    exact = n_reassigned + most
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
    plain, bounds = Iterations(X, k, kind, weights), BoundedIterations(X, k, kind, weights)
    bounds.next_is(seed % 2)  # at once, or after the first iterations
    with harness.schedule(seed=seed, copies="early" if seed % 2 else "late"):
        ours = run(bounds, centers.astype(plain.work), 6)
    assert_same(ours, run(plain, centers.astype(plain.work), 6))
