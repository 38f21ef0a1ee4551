"""Steps for small d with bounds on a HostMachine: against float64, and against those without, to the bit."""

import numpy as np
import oracle
import pytest
from exhaustive import every, property_test
from host_cuda import harness
from hypothesis import strategies as st
from kmeans.bounded_steps import (
    ACTIVE,
    PLAIN,
    SELECT,
    WITH_BOUNDS,
    assert_same,
    assert_same_bits,
    gaps,
    labels_of,
    run,
)
from kmeans.host_steps import KINDS, assert_right, blobs, centered, data_on_host
from kmeans.small_d.steps import bounded_step, mma_step

from tsapps.apps.kmeans.bounds.launch import Bounds
from tsapps.apps.kmeans.bounds.plan import BOUNDS_STATE, ROW_BOUNDS, most_listed_small_d

#: Features, clusters, dtype, whether warpgroups score all rows: rows of two units of 16 bytes to eight, whole products
#: and part of one, centers in registers and in shared memory.
SHAPES = [
    (16, 16, "float32", False),
    (16, 2, "float32", False),
    (20, 40, "float32", False),
    (32, 64, "float32", False),
    (16, 16, "bfloat16", False),
    (40, 33, "float16", True),
    (64, 64, "bfloat16", True),
]


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
    step, recorded = bounded_step(X, 16)
    of, bounds = step.buffers, recorded.bounds
    recorded.next_is(WITH_BOUNDS)
    assert recorded.assign(centers) == 400
    assert step.labels.tolist() == [0, 0, 1, 1] * 100
    assert (of.sums[:2, 0] / of.scales[0]).tolist() == [-800, 800]
    # The other center is 9 or 7 away, the own 1; what norms and scores are rounded by makes it a little less.
    scale = step.layout.placement.scale
    expected = np.tile([8.0, 6.0, 6.0, 8.0], 100) * scale
    assert (bounds.row_bounds <= expected).all()
    assert (bounds.row_bounds > 0.95 * expected).all()
    recorded.assert_selects(of.labels, expected, {5.6: 400, 6.5: 200, 8.5: 0})


@pytest.mark.each_choice
# With flushes, those that are compiled with few digits.
@pytest.mark.parametrize("away", [0.0, 3.0], ids=lambda away: f"{away:g} away")
@pytest.mark.parametrize(
    ("d", "k", "dtype", "warpgroups", "flushes"),
    [*((*shape, False) for shape in SHAPES), (*SHAPES[0], True), (*SHAPES[-1], True)],
)
def test_row_bounds_are_below_gaps(d, k, dtype, warpgroups, away, flushes, rng):
    n = 1101
    X, centers = blobs(n, d, k, rng, apart=1.0)
    X, mean = X + away, X.mean(axis=0) + away if away else None
    step, recorded = bounded_step(X, k, dtype, mean, warpgroups=warpgroups, flushes=flushes)
    row_bounds, labels = recorded.bounds.row_bounds, labels_of(step)
    centers = centers + away - step.data.shift
    recorded.next_is(WITH_BOUNDS)
    assert recorded.assign(centers) == n
    assert_right(step, centers)
    gap = gaps(step, centers)
    assert (row_bounds <= gap).all()
    assert np.median(row_bounds) > 0.5 * np.median(gap)
    # The same of rows that are listed, in the order in which they are, and of a last tile that is not full.
    first, chosen = labels.copy(), np.zeros(n, bool)
    chosen[rng.permutation(n)[: n // 4 - 7]] = True
    recorded.next_is(SELECT)
    row_bounds[chosen] = np.nan
    row_bounds[~chosen] = np.inf
    centers = np.roll(centers, 1, axis=0) + 0.3 * rng.standard_normal(centers.shape)
    n_reassigned = recorded.assign(centers)
    assert recorded.passes[-1] == ACTIVE
    assert recorded.state["examined"] == np.count_nonzero(chosen)
    distances = oracle.square_distances(centered(step.data), centers.astype(step.data.dtype))
    expected = np.where(chosen, distances.argmin(axis=1), first)
    np.testing.assert_array_equal(labels, expected)
    assert n_reassigned == np.count_nonzero(expected != first) > 0
    assert np.isinf(row_bounds[~chosen]).all()
    assert (row_bounds[chosen] <= gaps(step, centers)[chosen]).all()
    assert (step.buffers.labels[n:] == -1).all()


@pytest.mark.each_choice
@pytest.mark.parametrize("apart", [0.0, 0.4])
@pytest.mark.parametrize(("d", "k", "dtype", "warpgroups"), every(2, SHAPES, unpacked=True))
def test_the_same_bits_as_without(d, k, dtype, warpgroups, apart, rng):
    X, _ = blobs(400, d, k, rng, apart=apart)
    mean = X.mean(axis=0)
    plain = mma_step(X, k, dtype, mean, warpgroups=warpgroups)
    bounded, _ = bounded_step(X, k, dtype, mean, warpgroups=warpgroups)
    assert_same_bits(bounded, plain, X[:k] - mean)


def test_rows_are_left_out(rng):
    """Once few rows move, only those near a border are looked at."""
    n, d, k = 4000, 16, 16
    X, _ = blobs(n, d, k, rng, apart=0.8)
    step, recorded = bounded_step(X, k)
    recorded.begins_below(n // 10 + 1)
    found, passes = run(step, X[:k], 100), recorded.passes[:-1]  # without that of an iteration that was stopped
    assert found[-1][2]["stop"]
    assert not found[-1][2]["empty"]
    begun = passes.index(WITH_BOUNDS)
    assert passes[:begun] == begun * [PLAIN]
    assert found[begun - 1][2]["n_reassigned"] <= n // 10 < found[begun - 2][2]["n_reassigned"]
    screened = passes.count(ACTIVE)
    assert screened > 3
    assert recorded.state["screened"] == screened
    assert recorded.state["examined"] < 0.3 * n * screened  # of more than 0.6 all are scored
    assert_right(step, found[-2][3])


def assert_bounded(X, centers):
    """Labels and sums of all rows are right, and no row bound is above its gap."""
    step, recorded = bounded_step(X, len(centers))
    recorded.next_is(WITH_BOUNDS)
    recorded.assign(centers)
    assert_right(step, centers)
    assert (recorded.bounds.row_bounds <= gaps(step, centers)).all()


@pytest.mark.parametrize("away", every(3, [1e3, 30.0, 1e7]))
def test_a_center_far_away(away, rng):
    X, centers = blobs(700, 16, 16, rng)
    centers[7] = away * centers[6]
    for now in (centers, np.repeat(centers[:1], 16, axis=0)):
        assert_bounded(X, now)


def test_next_to_zero(rng):
    # Rows of which float16 has few bits, or none, as they lie beside one that is large.
    X, centers = blobs(900, 16, 16, rng)
    X, centers = X * 2.0**-30, centers * 2.0**-30
    X[7], X[8:20] = 1.0, 0.0
    assert_bounded(X, centers)


def test_a_center_that_is_left_out():
    # Rows as far away as any, on the way to it, of which scores would tell more of a gap than there is.
    X = np.zeros((200, 16))
    X[:100, 0], X[100:, 0] = 1.0, -1.0
    centers = np.zeros((2, 16))
    for away in (4.005, 4.02, 4.5):
        centers[:, 0] = -2.0, away
        assert_bounded(X, centers)


@pytest.mark.each_choice
@pytest.mark.parametrize("n", [1, 6143, 6144, 6145, 12_289, 60_003])
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
    data, stopped = data_on_host(np.zeros((n, 1)), KINDS[0], multiprocessors=1), np.zeros(1, np.int32)
    for room in {max(1, int(0.3 * n)), max(1, len(expected)), n}:
        bounds, active = Bounds(data, k, room, "kmeans::Label"), np.full(room + 1, 2**32 - 1, np.uint32)
        bounds.row_bounds[:], bounds.limits[:], bounds.active = row_bounds, limits, active[:room]
        state = bounds.state.view(BOUNDS_STATE)
        state["pass"], state["skip_full_assign"] = SELECT, 1
        bounds.bind_select(words, stopped)()
        assert active[room] == 2**32 - 1
        assert not bounds._arrived.any()
        if len(expected) <= room:
            assert state["pass"] == ACTIVE
            assert sorted(active[: state["active"][0]]) == expected.tolist()
        else:
            assert (state["pass"], state["skip_full_assign"]) == (PLAIN, 0)


def test_nothing_is_done_once_it_stops(rng):
    X, centers = blobs(300, 16, 16, rng)
    _, recorded = bounded_step(X, 16)
    recorded.assign(centers)
    recorded.assert_idle_once_stopped(centers + 5)


@property_test(
    2,
    30,
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
    plain = mma_step(X, k, dtype, warpgroups=warpgroups)
    bounded, _ = bounded_step(X, k, dtype, warpgroups=warpgroups)
    with harness.schedule(seed=seed, copies="early" if seed % 2 else "late"):
        ours = run(bounded, centers, 6, seed % 2)  # with bounds at once, or after the first iterations
    assert_same(ours, run(plain, centers, 6))
