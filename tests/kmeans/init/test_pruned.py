"""Pruned steps of greedy k-means++: from the float16 copy, their launcher on the CPU finds the bits that X gives."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from exhaustive import property_test
from host_cuda import harness
from host_cuda.machine import build_together
from hypothesis import strategies as st
from kmeans.init.host_draw import H200, SHAPES, Seeding, blobs, data_of, drawn, plan_of, trials_of

from tsapps.apps.kmeans.data.plan import padded
from tsapps.apps.kmeans.init import plusplus_launch
from tsapps.apps.kmeans.init.plan import first_pruned_step, pruned_plan
from tsapps.apps.kmeans.init.plusplus_launch import GreedyDraw
from tsapps.kernels.plan.mma import ELEMENT

#: Shapes that have pruned steps.
SCREENED = [*SHAPES[4:9], (600, 60, "float32", False)]


def tiled(plan, n):
    """Return the plan with chunks of whole tiles of panels."""
    return replace(plan, chunk=128, chunks=-(-n // 128))


def pruned_kernels(d, k, dtype, weighted):
    """Return the pruned kernels of a shape: the copy in rows and in panels, with the plan's stages and with two."""
    found, plan = set(), tiled(plan_of(1000, d, k, dtype), 1000)
    for panels, width in ((False, padded(d)), (True, -(-d // 16) * 16)):
        size = np.dtype(dtype).itemsize
        pruned = pruned_plan(plan, d, width, size, panels=panels, weighted=weighted, device=H200)
        every = pruned, replace(pruned, stages=2)
        found |= {f"kmeans::{one.kernel(ELEMENT[dtype], weighted=weighted)}" for one in every}
    return sorted(found)


for shape in SCREENED:
    build_together([(Path(plusplus_launch.__file__).with_name("plusplus_pruned.cuh"), pruned_kernels(*shape))])


def assert_same_by_the_copy(of, step):
    """Try a step's candidates by X's copy and by X, of which D² are the same bits; go on with X's."""
    before = of.closest.copy()
    of.evaluate(step, of.by_copy)
    closest, sums = of.closest.copy(), of.sums.copy()
    of.closest[:], of.sums[:] = before, np.nan
    of.evaluate(step, of.by_rows)
    np.testing.assert_array_equal(closest, of.closest)
    np.testing.assert_allclose(sums, of.sums, rtol=1e-13)


def assert_same_draws_by_the_copy(of, steps, rng):
    """Draw from the first sample on, every step tried both ways."""
    of.evaluate(0, of.by_rows)
    of.follow(0, rng.random(of.plan.trials))
    for step in range(1, steps):
        assert_same_by_the_copy(of, step)
        of.follow(step, rng.random(of.plan.trials))


def assert_same_of_any_candidates(of, most, rng):
    """Try three steps of candidates at random among the first `most` samples, both ways."""
    of.evaluate(0, of.by_rows)
    for step in range(1, 4):
        of.candidates[step] = rng.integers(0, most, of.plan.trials)
        assert_same_by_the_copy(of, step)
        of.chosen[step] = of.candidates[step, 0]


@pytest.mark.each_choice
@pytest.mark.parametrize("n", [1, 67, 700])
@pytest.mark.parametrize("panels", [False, True])
@pytest.mark.parametrize(("d", "k", "dtype", "weighted"), SCREENED)
def test_steps_by_the_copy_are_as_exact(d, k, dtype, weighted, panels, n, rng, monkeypatch):
    X = blobs(n, d, k).astype(dtype) + 100  # far from the origin
    plan = tiled(plan_of(n, d, k, dtype), n) if panels else None
    if n % 2:  # other than the plan's
        monkeypatch.setattr(plusplus_launch, "pruned_plan", lambda *a, **b: replace(pruned_plan(*a, **b), stages=2))
    weights = rng.random(n) if weighted else None
    of = Seeding(X, k, dtype, weights, first=n // 2, plan=plan, panels=panels, multiprocessors=1 + n % 3)
    for step in range(min(k, 6)):
        draws = rng.random(of.plan.trials)
        if step == 0:
            of.evaluate(step, of.by_rows)
        else:
            with harness.schedule(seed=step, threads=1 + step % 2):
                assert_same_by_the_copy(of, step)
        of.follow(step, draws if step < k - 1 else None)


def test_rows_that_the_copy_tells_are_not_read(rng):
    d, k, dtype, _ = SHAPES[6]
    of = Seeding(rng.standard_normal((600, d)), k, dtype, panels=False)
    of.evaluate(0, of.by_rows)
    # No candidate is nearer to any row than half of what it is; but of one row nothing is known.
    of.closest *= 0.5
    of.closest[:10] = 0
    of.half_copy.norms[310] = np.inf
    of.candidates[1] = np.arange(1, 1 + of.plan.trials)
    near, of.X[10:] = of.closest.copy(), of.X[0]
    of.evaluate(1, of.by_copy)
    read = np.flatnonzero(of.closest != near)
    assert read.tolist() == [310]
    assert of.closest[310] == 0
    np.testing.assert_allclose(of.sums.sum(axis=1), near.sum() - near[310], rtol=1e-6)


@pytest.mark.parametrize("what", ["overflow", "nothing", "equal", "raised"])
def test_copies_that_tell_little(what, rng):
    d, k, dtype, _ = SHAPES[6]
    X = rng.standard_normal((200, d)).astype(dtype)
    if what == "overflow":
        X[::7] *= 1e30  # what float16 cannot hold, at the scale of the others
        X[3] = 1e-30
    elif what == "nothing":
        X[:] = 0.25
    elif what == "equal":
        X[100:] = X[:100]
    of = Seeding(X, k, dtype, panels=False, raised=range(0, 200, 3) if what == "raised" else ())
    assert_same_draws_by_the_copy(of, 8, rng)


@pytest.mark.parametrize(("dtype", "power"), [("float64", -150), ("float64", 120), ("float64", -30), ("float32", -23)])
def test_data_of_any_magnitude(dtype, power, rng):
    # Squares of float64 may be zero in float32, or infinite; those of float32 may be next to zero.
    d, k, _, _ = SHAPES[4] if dtype == "float64" else SHAPES[6]
    X = blobs(500, d, k) * 10.0**power * (1 if dtype == "float64" else 3)
    of = Seeding(X, k, dtype, panels=False)
    assert_same_draws_by_the_copy(of, 6, rng)


@pytest.mark.parametrize("small", [1e-19, 1e-20, 1e-22, 1e-30])
def test_rows_that_are_nothing_beside_others(small, rng):
    # The copy has zeros of them, and so are their norms, as the squares of what they lost are.
    d, k, dtype, _ = SHAPES[6]
    large = 1e6 * rng.standard_normal((50, d)).astype(dtype)
    X = np.vstack([small * rng.standard_normal((200, d)), large, -large])
    of = Seeding(X, k, dtype, panels=False)
    assert_same_of_any_candidates(of, 250, rng)


@property_test(
    8,
    25,
    shape=st.sampled_from(SCREENED[:3]),
    n=st.integers(2, 200),
    spread=st.sampled_from([0.0, 1e-4, 0.1, 3.0]),
    seed=st.integers(0, 2**16),
)
def test_any_step_by_the_copy(shape, n, spread, seed):
    # Groups of nearly equal rows, of which the copy can tell none apart, and far ones.
    d, k, dtype, weighted = shape
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((5, d))[rng.integers(0, 5, n)] + spread * rng.standard_normal((n, d))
    plan = plan_of(n, d, k, dtype)
    weights, panels = rng.integers(0, 4, n) if weighted else None, seed % 2 == 1
    of = Seeding(X, k, dtype, weights, plan=tiled(plan, n) if panels else plan, panels=panels)
    assert_same_of_any_candidates(of, n, rng)


@pytest.mark.parametrize("panels", [False, True])
def test_draws_by_the_copy_are_those_by_the_rows(panels, monkeypatch, rng):
    d, k, dtype, _ = SHAPES[6]
    # As few chunks as leave whole tiles of panels.
    monkeypatch.setattr("tsapps.apps.kmeans.init.plan._MOST_CHUNKS", 4)
    data, draws = data_of(100 + blobs(300, d, k), dtype), rng.random((10, trials_of(k)))
    expected = drawn(data, 3, draws)
    data.center(data.moments()[0], on_read=True)
    half_copy, launched = data.half_copy(d // 16 if panels else 0, certifies=True), []
    monkeypatch.setattr(plusplus_launch, "_LEAST_PRUNED_BYTES", 0)
    evaluate = GreedyDraw.evaluate

    def recorded(draw, step, launch):
        launched.append(launch is draw.by_copy)
        evaluate(draw, step, launch)

    monkeypatch.setattr(GreedyDraw, "evaluate", recorded)
    assert drawn(data, 3, draws, half_copy) == expected
    first = first_pruned_step(trials_of(k))
    assert launched == [False] * first + [True] * (11 - first)
