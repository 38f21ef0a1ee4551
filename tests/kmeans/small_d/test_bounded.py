"""Bounds for few features: their kernels' own source run on the CPU, against float64 and against no bounds."""

import numpy as np
import oracle
import pytest
from exhaustive import every, property_test
from host_cuda import harness
from host_cuda.bounded_kmeans import (
    ACTIVE,
    PLAIN,
    SCREEN,
    UNTIL_PASS,
    assert_nothing_is_done,
    assert_same,
    assert_same_bits,
    gaps,
    run,
)
from host_cuda.few_products import ProductsIterations
from host_cuda.few_until import SHAPES, UntilIterations, libraries
from host_cuda.fused_kmeans import blobs
from hypothesis import strategies as st

from tsapps.apps.kmeans.bounds.plan import ROW_BOUNDS, fresh_bounds_state, most_listed_small_d


def kind_of(dtype):
    return dtype, 2, False


def test_sizes():
    assert ROW_BOUNDS.itemsize == 32
    assert [most_listed_small_d(n) for n in (1, 4, 10**7)] == [1, 2, 6_000_000]


def test_by_hand():
    """Centers 8 apart on a line: a row between them and 1 off its own is left out until both moved by 6 together."""
    X = np.zeros((400, 16))
    X[:, 0] = np.tile([-5.0, -3.0, 3.0, 5.0], 100)
    centers = np.zeros((16, 16))
    centers[:, 0] = 100.0
    centers[:2, 0] = -4.0, 4.0
    of = UntilIterations(X, 16, kind_of("float32"))
    of.next_is(UNTIL_PASS)
    assert of.iterate(centers) == 400
    assert of.labels.tolist() == [0, 0, 1, 1] * 100
    assert (of.sums[:2, 0] / of.scales[0]).tolist() == [-800, 800]
    # The other center is 9 or 7 away, the own 1; what norms and scores are rounded by makes it a little less.
    expected = np.tile([8.0, 6.0, 6.0, 8.0], 100) * of.scale
    assert (of.row_bounds <= expected).all()
    assert (of.row_bounds > 0.95 * expected).all()
    for n_reassigned, safe in ((5.6, 400), (6.5, 200), (8.5, 0)):
        of.limits[:] = n_reassigned * of.scale
        of.next_is(SCREEN)
        of.state["active"] = 0
        active = of.screen(400)
        assert of.state["active"] == 400 - safe
        assert sorted(active[: 400 - safe]) == [i for i in range(400) if expected[i] < n_reassigned * of.scale]


@pytest.mark.each_choice
# With flushes, those that are compiled with few digits.
@pytest.mark.parametrize("away", [0.0, 3.0], ids=lambda away: f"{away:g} away")
@pytest.mark.parametrize(
    ("d", "k", "dtype", "warpgroups", "flushes"),
    [*((*shape, False) for shape in SHAPES), (*SHAPES[0], True), (*SHAPES[-1], True)],
)
def test_expiries_are_below_gaps(d, k, dtype, warpgroups, away, flushes, rng):
    n = 1101
    X, centers = blobs(n, d, k, rng, apart=1.0)
    mean = X.mean(axis=0) + away if away else None
    X = X + away
    of = UntilIterations(X, k, kind_of(dtype), mean, warpgroups, flushes)
    centers = centers + away - of.mean
    of.next_is(UNTIL_PASS)
    assert of.iterate(centers) == n
    of.assert_right(centers)
    gap = gaps(of, centers)
    assert (of.row_bounds <= gap).all()
    assert np.median(of.row_bounds) > 0.5 * np.median(gap)
    # The same of rows that are listed, in the order in which they are, and of a last tile that is not full.
    first, chosen = of.labels.copy(), np.zeros(n, bool)
    chosen[rng.permutation(n)[: n // 4 - 7]] = True
    of.next_is(SCREEN)
    of.row_bounds[chosen] = np.nan
    of.row_bounds[~chosen] = np.inf
    centers = np.roll(centers, 1, axis=0) + 0.3 * rng.standard_normal(centers.shape)
    n_reassigned = of.iterate(centers)
    assert of.passes[-1] == ACTIVE
    assert of.state["examined"] == np.count_nonzero(chosen)
    expected = np.where(chosen, oracle.square_distances(of.centered, centers.astype(of.work)).argmin(axis=1), first)
    np.testing.assert_array_equal(of.labels, expected)
    assert n_reassigned == np.count_nonzero(expected != first) > 0
    assert np.isinf(of.row_bounds[~chosen]).all()
    assert (of.row_bounds[chosen] <= gaps(of, centers)[chosen]).all()
    assert (of.words[n:] == -1).all()


@pytest.mark.each_choice
@pytest.mark.parametrize("apart", [0.0, 0.4])
@pytest.mark.parametrize(("d", "k", "dtype", "warpgroups"), every(2, SHAPES, unpacked=True))
def test_the_same_bits_as_without(d, k, dtype, warpgroups, apart, rng):
    X, _ = blobs(700, d, k, rng, apart=apart)
    arguments = X, k, kind_of(dtype), X.mean(axis=0)
    plain = ProductsIterations(*arguments, warpgroups=warpgroups)
    bounds = UntilIterations(*arguments, warpgroups)
    centers = (X[:k] - X.mean(axis=0)).astype(np.float32)
    assert_same_bits(bounds, plain, centers)


def test_rows_are_left_out(rng):
    """Once few rows move, only those near a border are looked at."""
    n, d, k = 4000, 16, 16
    X, _ = blobs(n, d, k, rng, apart=0.8)
    of = UntilIterations(X, k, kind_of("float32"))
    of.begins_with(n // 10)
    found = run(of, X[:k].astype(np.float32), 100)
    assert found[-1][2]["stop"]
    assert not found[-1][2]["empty"]
    begun = of.passes.index(UNTIL_PASS)
    assert of.passes[:begun] == begun * [PLAIN]
    assert found[begun - 1][2]["n_reassigned"] <= n // 10 < found[begun - 2][2]["n_reassigned"]
    screened = of.passes.count(ACTIVE)
    assert screened > 3
    assert of.state["screened"] == screened
    assert of.state["examined"] < 0.3 * n * screened  # of more than 0.6 all are scored
    of.assert_right(found[-2][3])


@pytest.mark.parametrize("away", every(3, [1e3, 30.0, 1e7]))
def test_a_center_far_away(away, rng):
    X, centers = blobs(700, 16, 16, rng)
    centers[7] = away * centers[6]
    for now in (centers, np.repeat(centers[:1], 16, axis=0)):
        of = UntilIterations(X, 16, kind_of("float32"))
        of.next_is(UNTIL_PASS)
        of.iterate(now)
        of.assert_right(now)
        assert (of.row_bounds <= gaps(of, now)).all()


def test_next_to_zero(rng):
    # Rows of which float16 has few bits, or none, as they lie beside one that is large.
    X, centers = blobs(900, 16, 16, rng)
    X, centers = X * 2.0**-30, centers * 2.0**-30
    X[7], X[8:20] = 1.0, 0.0
    of = UntilIterations(X, 16, kind_of("float32"))
    of.next_is(UNTIL_PASS)
    of.iterate(centers)
    of.assert_right(centers)
    assert (of.row_bounds <= gaps(of, centers)).all()


def test_a_center_that_is_left_out():
    # Rows as far away as any, on the way to it, of which scores would tell more of a gap than there is.
    X = np.zeros((200, 16))
    X[:100, 0], X[100:, 0] = 1.0, -1.0
    centers = np.zeros((2, 16))
    for away in (4.005, 4.02, 4.5):
        centers[:, 0] = -2.0, away
        of = UntilIterations(X, 2, kind_of("float32"))
        of.next_is(UNTIL_PASS)
        of.iterate(centers)
        of.assert_right(centers)
        assert (of.row_bounds <= gaps(of, centers)).all()


@pytest.mark.each_choice
@pytest.mark.parametrize("n", [1, 6143, 6144, 6145, 60_003])
@pytest.mark.parametrize("part", [0.0, 0.05, 0.5, 1.0])
def test_the_rows_that_are_listed(n, part, rng):
    """Of several turns of a block, and several lists of a warp."""
    k, words = 64, np.full(-(-n // 4) * 4, -1, np.int8)
    words[:n] = rng.integers(0, k, n)
    limits = rng.random(k).astype(np.float32)
    limits_of = limits[words[:n]]
    row_bounds = (limits_of + np.where(rng.random(n) < part, -0.01, 0.01)).astype(np.float32)
    row_bounds[rng.random(n) < 0.01 * part] = np.nan
    expected = np.flatnonzero(~(row_bounds > limits_of))
    for room in {max(1, int(0.3 * n)), max(1, len(expected)), n}:
        state, arrived, stopped = fresh_bounds_state().reshape(1), np.zeros(1, np.uint32), np.zeros(1, np.int32)
        state["pass"], state["skip_full_assign"] = SCREEN, 1
        active = np.full(room + 1, 2**32 - 1, np.uint32)
        given = active, room, state, arrived, stopped
        next(iter(libraries().values())).call("screen", row_bounds, words, n, limits, *given)
        assert active[room] == 2**32 - 1
        assert not arrived.any()
        if len(expected) <= room:
            assert state["pass"] == ACTIVE
            assert sorted(active[: state["active"][0]]) == expected.tolist()
        else:
            assert (state["pass"], state["skip_full_assign"]) == (PLAIN, 0)


def test_nothing_is_done_once_it_stops(rng):
    X, centers = blobs(300, 16, 16, rng)
    of = UntilIterations(X, 16, kind_of("float32"))
    of.iterate(centers)
    assert_nothing_is_done(of, centers.astype(np.float32) + 5)


@property_test(
    6,
    20,
    shape=st.sampled_from(SHAPES),
    n=st.integers(1, 400),
    grain=st.sampled_from([None, 1.0, 0.25]),
    apart=st.sampled_from([0.1, 1.0, 30.0]),
    seed=st.integers(0, 2**16),
)
def test_any_data(shape, n, grain, apart, seed):
    d, k, dtype, warpgroups = shape
    rng = np.random.default_rng(seed)
    X, centers = blobs(n, d, k, rng, apart=apart)
    if grain:  # many ties
        X, centers = np.round(X / grain) * grain, np.round(centers / grain) * grain
    plain = ProductsIterations(X, k, kind_of(dtype), warpgroups=warpgroups)
    bounds = UntilIterations(X, k, kind_of(dtype), None, warpgroups)
    bounds.next_is(seed % 2)  # at once, or after the first iterations
    with harness.schedule(seed=seed, copies="early" if seed % 2 else "late"):
        ours = run(bounds, centers.astype(np.float32), 6)
    assert_same(ours, run(plain, centers.astype(np.float32), 6))
