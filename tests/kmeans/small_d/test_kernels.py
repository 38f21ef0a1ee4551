"""What steps for small d do alike, on a HostMachine: by multiply-adds, by warps and by warpgroups."""

from functools import partial

import numpy as np
import pytest
from exhaustive import property_test
from host_cuda import harness
from hypothesis import strategies as st
from kmeans.host_steps import assert_iterated, assert_right, blobs, centered, iterate_once, place
from kmeans.small_d.steps import (
    FMA_SHAPES,
    HALF_TYPES,
    MMA_SHAPES,
    WARPGROUP_SHAPES,
    assert_assigns,
    fma_step,
    mma_step,
)

_WARPGROUPS = {dtype: partial(mma_step, dtype=dtype, warpgroups=True) for dtype in HALF_TYPES}


def kernels(many):
    """Return every kernel, with 4 features or as many as are given."""
    kinds = {"multiply-adds": fma_step, "products": mma_step} | {f"warpgroups, {k}": v for k, v in _WARPGROUPS.items()}
    return [pytest.param(made, 4 if made is fma_step else many, id=kind) for kind, made in kinds.items()]


KERNELS = kernels(16)
_OF_SINGLES = [1e-27, 1e-20, 1e-10, 1e10, 1e18, 1e27]
_OF_HALVES = [2.0**-20, 2.0**-10, 1.0, 2.0**10]
_OF_BFLOAT16 = [*_OF_HALVES, 1e-27, 1e-18, 1e10, 1e18]
MAGNITUDES = [
    pytest.param(*kernel.values, magnitude, id=f"{kernel.id}, {magnitude:g}")
    for kernel, of_kernel in zip(KERNELS, (_OF_SINGLES, _OF_SINGLES, _OF_HALVES, _OF_BFLOAT16), strict=True)
    for magnitude in of_kernel
]
SHAPES = [
    *((fma_step, d, k) for d, k in FMA_SHAPES),
    *((mma_step, d, k) for d, k in MMA_SHAPES),
    *((made, d, k) for made in _WARPGROUPS.values() for d, k in WARPGROUP_SHAPES),
]


@pytest.mark.each_choice
@pytest.mark.parametrize(("made", "d", "magnitude"), MAGNITUDES)
def test_any_magnitude(made, d, magnitude, rng):
    X, centers = blobs(900, d, 16, rng)
    step = made(X * magnitude, 16)
    for now in (centers * magnitude, centers[::-1] * magnitude):
        assert_assigns(step, now)


@pytest.mark.each_choice
@pytest.mark.parametrize("which", [0, 3])
@pytest.mark.parametrize("away", [30.0, 1e4, 1e30])
@pytest.mark.parametrize(("made", "d"), KERNELS)
def test_a_center_far_away(made, d, away, which, rng):
    X, centers = blobs(900, d, 16, rng)
    X[5], centers[7] = 100.0, 100.0  # an outlier, and its cluster
    step = made(X, 16)
    for now in (away, 0.0, away):  # at first no row has a label
        centers[which] = now
        assert_assigns(step, centers)
        assert step.labels[5] == 7


@pytest.mark.parametrize(("made", "d"), kernels(14))
def test_no_center_is_near(made, d, rng):
    X, centers = blobs(500, d, 2, rng)
    step = made(X, 2)
    for away in (1e3, 1e6, 1e12):
        now = centers + away * np.eye(d)[0]
        assert_assigns(step, now)


@pytest.mark.parametrize(
    ("made", "d", "k"),
    [
        *((fma_step, d, k) for d, k in ((3, 9), (16, 16), (8, 33))),
        *((mma_step, d, k) for d, k in ((3, 9), (16, 16), (20, 40), (64, 64))),
    ],
)
def test_far_off_center_and_equal_centers(made, d, k, rng):
    X, centers = blobs(900, d, k, rng)
    X, centers = X + 1e4, centers + 1e4
    centers[5] = centers[2]
    centers[k - 1] = centers[1]  # of another chunk, or block
    step = made(X, k, mean=X.mean(axis=0))
    centers = centers.astype(np.float32) - step.data.shift
    assert_assigns(step, centers)
    assert not np.isin(step.labels, (5, k - 1)).any()  # the lower of equals


@pytest.mark.parametrize(("made", "d"), kernels(14))
def test_many_moves_with_few_rows_moving_at_a_time(made, d, rng):
    # A row in forty, so that queues are filled by several tiles.
    X = np.zeros((3000, d))
    X[:, d // 2] = np.where(np.arange(3000) % 40, 0.0, rng.random(3000))
    step = made(X, 2)
    centers = np.zeros((2, d))
    centers[1, d // 2] = 5
    assert assert_assigns(step, centers) == 3000
    centers[1, d // 2] = 0.5
    expected = np.count_nonzero(centered(step.data)[:, d // 2] > 0.25)
    assert 20 < expected < 75
    assert assert_assigns(step, centers) == expected


@pytest.mark.parametrize(
    ("made", "d", "k"),
    [
        *((fma_step, d, k) for d, k in ((3, 2), (4, 16), (16, 9))),
        *((mma_step, d, k) for d, k in ((14, 2), (16, 16), (32, 64))),
    ],
)
def test_iterations_without_the_host(made, d, k, rng):
    X, centers = blobs(900, d, k, rng, apart=1.0)
    step = made(X, k, mean=X.mean(axis=0))
    place(step, centers - X.mean(axis=0))
    for count in range(4):
        before = step.labels.copy()
        now, outcome, following = iterate_once(step, count)
        step._labels_are_current = False  # as of a fit that has ended
        assert_right(step, now)
        n_reassigned = np.count_nonzero(before != step.labels)
        if outcome["empty"]:
            assert outcome["n_reassigned"] == n_reassigned
            assert len(set(step.labels.tolist())) < k
            return
        assert_iterated(step, now, outcome, following, n_reassigned)
        if outcome["stop"]:
            return


@pytest.mark.parametrize(("made", "d"), KERNELS)
def test_stops(made, d, rng):
    X, centers = blobs(400, d, 16, rng)
    step = made(X, 16)
    assert_assigns(step, centers)
    of = step.buffers
    labels, sums = of.labels.copy(), of.sums.copy()
    placed = place(step, centers + 5)
    of.stopped[0] = 1
    for launch in step._bind_rows(placed):
        launch()
    assert of.n_reassigned[0] == 0
    np.testing.assert_array_equal(of.labels, labels)
    np.testing.assert_array_equal(of.sums, sums)


@property_test(
    3,
    120,
    shape=st.sampled_from(SHAPES),
    shifts=st.booleans(),
    n=st.integers(1, 500),
    grain=st.sampled_from([None, 1.0, 0.25]),
    seed=st.integers(0, 2**16),
)
def test_any_data(shape, shifts, n, grain, seed):
    made, d, k = shape
    rng = np.random.default_rng(seed)
    X, centers = blobs(n, d, k, rng, apart=rng.choice([0.1, 1.0, 30.0]))
    if grain:  # many ties
        X, centers = np.round(X / grain) * grain, np.round(centers / grain) * grain
    step = made(X, k, shifts=shifts) if made is fma_step else made(X, k)
    with harness.schedule(seed=seed, copies="early" if seed % 2 else "late"):
        for now in (centers, centers[::-1].copy()):
            assert_assigns(step, now)
