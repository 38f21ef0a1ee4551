"""Pruned steps of greedy k-means++: from the quantized copy, their launcher on the CPU finds the bits that X gives."""

from pathlib import Path

import numpy as np
import pytest
from exhaustive import property_test
from host_cuda import harness
from host_cuda.machine import build_together
from hypothesis import strategies as st
from kmeans.init.host_draw import H200, SHAPES, Seeding, blobs, data_of, drawn, plan_of, trials_of

from tsapps.apps.kmeans.init import pruned_launch
from tsapps.apps.kmeans.init.plan import first_pruned_step, pruned_plan
from tsapps.apps.kmeans.init.pruned_launch import PrunedSteps
from tsapps.kernels.plan.mma import ELEMENT

#: Shapes that have pruned steps.
PRUNED = [*SHAPES[4:9], (600, 60, "float32", False)]


def pruned_kernels(d, k, dtype, weighted):
    plan = plan_of(1000, d, k, dtype)
    pruned = pruned_plan(plan, d, np.dtype(dtype).itemsize, weighted=weighted, device=H200)
    name = plan.kernel("evaluate_candidates_pruned", ELEMENT[dtype], weighted=weighted)
    return [f"kmeans::quantize_points<{ELEMENT[dtype]}, {plan.trials + 1}>", f"kmeans::{name[:-1]}, {pruned.stages}>"]


for shape in PRUNED:
    build_together([(Path(pruned_launch.__file__).with_name("plusplus_pruned.cuh"), pruned_kernels(*shape))])


def assert_same_by_the_copy(of, step):
    """Try a step's candidates by X's copy and by X, of which D² are the same bits; go on with X's."""
    before = of.closest.copy()
    of.prune(step)
    closest, sums = of.closest.copy(), of.sums.copy()
    of.closest[:], of.sums[:] = before, np.nan
    of.evaluate(step)
    np.testing.assert_array_equal(closest, of.closest)
    np.testing.assert_allclose(sums, of.sums, rtol=1e-13)


def assert_same_draws_by_the_copy(of, steps, rng):
    """Draw from the first sample on, every step tried both ways."""
    of.evaluate(0)
    of.follow(0, rng.random(of.plan.trials))
    for step in range(1, steps):
        assert_same_by_the_copy(of, step)
        of.follow(step, rng.random(of.plan.trials))


def assert_same_of_any_candidates(of, most, rng):
    """Try three steps of candidates at random among the first `most` samples, both ways."""
    of.evaluate(0)
    center = 0
    for step in range(1, 4):
        of.place(step, rng.integers(0, most, of.plan.trials), center)
        assert_same_by_the_copy(of, step)
        center = of.candidates[step, 0]


@pytest.mark.each_choice
@pytest.mark.parametrize("n", [1, 67, 700])
@pytest.mark.parametrize(("d", "k", "dtype", "weighted"), PRUNED)
def test_steps_by_the_copy_are_as_exact(d, k, dtype, weighted, n, rng):
    X = blobs(n, d, k).astype(dtype) + 100  # far from the origin
    weights = rng.random(n) if weighted else None
    of = Seeding(X, k, dtype, weights, first=n // 2, quantized=True, multiprocessors=1 + n % 3)
    for step in range(min(k, 4)):
        draws = rng.random(of.plan.trials)
        if step == 0:
            of.evaluate(step)
        else:
            with harness.schedule(seed=step, threads=1 + step % 2):
                assert_same_by_the_copy(of, step)
        of.follow(step, draws if step < k - 1 else None)


def halve_and_place(of, n_candidates):
    """Halve every D², so that no candidate is nearer to any row than half of it; candidates are rows 1, 2, …"""
    of.evaluate(0)
    of.closest *= 0.5
    of.closest[: 1 + n_candidates] = 0
    of.place(1, np.arange(1, 1 + n_candidates), 0)


def read_by_the_copy(of):
    """Return the rows of X that are read, and the sums of D² of all rows by the candidates."""
    near = of.closest.copy()
    of.X[1 + of.plan.trials :] = of.X[0]  # a row that is read has a distance of zero to the center
    of.prune(1)
    return np.flatnonzero(of.closest != near), near


def test_rows_that_the_copy_tells_are_not_read(rng):
    d, k, dtype, _ = SHAPES[6]
    of = Seeding(rng.standard_normal((600, d)), k, dtype, quantized=True)
    halve_and_place(of, of.plan.trials)
    of.by_copy.copy.rows[310, 0] |= 0x7F80  # neither plane tells anything of this row: its errors are infinite
    of.by_copy.copy.errors[310] = np.inf
    read, near = read_by_the_copy(of)
    assert read.tolist() == [310]
    assert of.closest[310] == 0
    np.testing.assert_allclose(of.sums.sum(axis=1), near.sum() - near[310], rtol=1e-6)


def test_rows_that_only_both_planes_tell_are_not_read(rng):
    d, k, dtype, _ = SHAPES[6]
    of = Seeding(rng.standard_normal((600, d)), k, dtype, quantized=True)
    halve_and_place(of, of.plan.trials)
    of.by_copy.copy.rows[:, 0] |= 0x7F80  # the upper plane tells nothing
    of.by_copy.copy.errors[555:557] = np.inf
    read, _ = read_by_the_copy(of)
    assert read.tolist() == [555, 556]


def test_what_is_told_depends_on_both_planes(rng):
    # D² such that the margin is between the errors of both planes and those of the upper plane.
    d, k, dtype, _ = SHAPES[6]
    of = Seeding(rng.standard_normal((600, d)), k, dtype, quantized=True)
    of.evaluate(0)
    of.place(1, np.arange(1, 1 + of.plan.trials), 0)
    points = of.X[: 1 + of.plan.trials].astype("f8")
    nearest = ((of.X[:, np.newaxis].astype("f8") - points) ** 2).sum(axis=2).min(axis=1)
    of.closest[:] = nearest * 0.9
    read, _ = read_by_the_copy(of)
    assert read.tolist() == []
    of.by_copy.copy.errors[:] = 100 * of.by_copy.copy.errors  # as if the lower plane told nothing
    of.closest[:] = nearest * 0.9
    assert len(read_by_the_copy(of)[0]) > 300


@pytest.mark.parametrize("what", ["overflow", "nothing", "equal"])
def test_copies_that_tell_little(what, rng):
    d, k, dtype, _ = SHAPES[6]
    X = rng.standard_normal((200, d)).astype(dtype)
    if what == "overflow":
        X[::7] *= 1e30
        X[3] = 1e-30
    elif what == "nothing":
        X[:] = 0.25
    elif what == "equal":
        X[100:] = X[:100]
    assert_same_draws_by_the_copy(Seeding(X, k, dtype, quantized=True), 8, rng)


@pytest.mark.parametrize(("dtype", "power"), [("float64", -150), ("float64", 120), ("float64", -30), ("float32", -23)])
def test_data_of_any_magnitude(dtype, power, rng):
    # Squares of float64 may be zero in float32, or infinite; those of float32 may be next to zero.
    d, k, _, _ = SHAPES[4] if dtype == "float64" else SHAPES[6]
    X = blobs(500, d, k) * 10.0**power * (1 if dtype == "float64" else 3)
    assert_same_draws_by_the_copy(Seeding(X, k, dtype, quantized=True), 6, rng)


@pytest.mark.parametrize("small", [1e-8, 1e-19, 1e-20, 1e-22, 1e-30])
def test_rows_that_are_nothing_beside_others(small, rng):
    # Their norms may be zero in the copy, as the squares of their errors may be.
    d, k, dtype, _ = SHAPES[6]
    large = 1e6 * rng.standard_normal((50, d)).astype(dtype)
    X = np.vstack([small * rng.standard_normal((200, d)), large, -large])
    assert_same_of_any_candidates(Seeding(X, k, dtype, quantized=True), 250, rng)


@property_test(
    16,
    100,
    shape=st.sampled_from(PRUNED[:3]),
    n=st.integers(2, 200),
    spread=st.sampled_from([0.0, 1e-4, 0.1, 3.0]),
    heavy=st.booleans(),
    exponents=st.tuples(st.integers(-20, 20), st.integers(0, 12)),
    seed=st.integers(0, 2**16),
)
def test_any_step_by_the_copy(shape, n, spread, heavy, exponents, seed):
    # Groups of nearly equal rows, of which the copy can tell none apart, and far ones; rows of very different norms.
    d, k, dtype, weighted = shape
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((5, d))[rng.integers(0, 5, n)] + spread * rng.standard_normal((n, d))
    if heavy:
        X *= rng.standard_t(1, (n, 1)) * np.exp2(rng.integers(-exponents[1], exponents[1] + 1, d))
    X = np.ldexp(X, exponents[0])
    weights = rng.integers(0, 4, n) if weighted else None
    assert_same_of_any_candidates(Seeding(X, k, dtype, weights, quantized=True), n, rng)


def test_draws_by_the_copy_are_those_by_the_rows(monkeypatch, rng):
    d, k, dtype, _ = SHAPES[6]
    first = first_pruned_step(trials_of(k))
    data, draws = data_of(100 + blobs(300, d, k), dtype), rng.random((first + 9, trials_of(k)))
    expected, pruned = drawn(data, 3, draws), []
    data.center(data.moments()[0], on_read=True)
    monkeypatch.setattr(pruned_launch, "_LEAST_BYTES", 0)
    evaluate = PrunedSteps.evaluate

    def recorded(steps, *arguments):
        pruned.append(steps)
        evaluate(steps, *arguments)

    monkeypatch.setattr(PrunedSteps, "evaluate", recorded)
    assert drawn(data, 3, draws) == expected
    assert len(pruned) == 10
    pruned.clear()
    assert drawn(data, 3, draws[: first + 3]) == expected[: first + 4]
    assert not pruned  # too few steps to make the copy
