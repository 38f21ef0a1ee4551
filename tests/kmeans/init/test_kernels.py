"""Greedy k-means++ by its launcher on the CPU, against scikit-learn's loop in float64."""

from dataclasses import replace

import numpy as np
import oracle
import pytest
from exhaustive import property_test
from host_cuda import harness
from host_cuda.machine import HostMachine, placed
from hypothesis import strategies as st
from kmeans.init.host_draw import H200, SHAPES, Seeding, blobs, data_of, drawn, plan_of, trials_of

from tsapps.apps.kmeans.data.device_data import DeviceData
from tsapps.apps.kmeans.data.rows import ArrayRows
from tsapps.apps.kmeans.init.plan import first_pruned_step, prunes
from tsapps.apps.kmeans.init.plusplus_launch import BegunDraw, draw_plus_plus


def potentials(closest, weights, distances):
    """Return D² and Σ w·D² were each candidate a center: shapes (trials, n) and (trials,)."""
    lower = np.minimum(closest, distances)
    return lower, lower @ weights


class Reference:
    """scikit-learn's steps in float64."""

    def __init__(self, X, weights, first):
        self.X, self.weights = X.astype(np.float64), np.ones(len(X)) if weights is None else weights.astype(np.float64)
        self.closest = self.distances([first])[0]
        self.potential = self.closest @ self.weights

    def distances(self, samples):
        return oracle.square_distances(self.X, self.X[samples]).T

    def candidates(self, draws):
        running = np.cumsum(self.weights * self.closest)
        return np.minimum(np.searchsorted(running, draws * self.potential), len(self.X) - 1)

    def keep(self, candidates):
        """Keep the best candidate; return how much worse each is."""
        lower, found = potentials(self.closest, self.weights, self.distances(candidates))
        best = int(found.argmin())
        self.closest, self.potential = lower[best], found[best]
        return best, found


def test_three_points_by_hand():
    # Points 0, 1 and 100 on a line, weights 2, 1 and 1, the first as the first center: Σ w·D² = 0 + 1 + 10,000.
    of = Seeding(np.array([[0.0], [1], [100]]), 2, "float64", np.array([2.0, 1, 1]))
    of.step(0, np.array([0.5 / 10_001, 1.5 / 10_001]))
    assert of.sums.sum(axis=1).tolist() == [10_001, 10_001]
    assert of.chosen[0] == 0
    assert of.candidates[1].tolist() == [1, 2]
    of.step(1)
    # With 1 a center, 99² are left; with 100, the 1 of the point between.
    assert of.sums.sum(axis=1).tolist() == [99.0**2, 1.0]
    assert of.closest.tolist() == [0, 1, 10_000]
    assert of.chosen.tolist() == [0, 2]


@pytest.mark.each_choice
@pytest.mark.parametrize("n", [1, 67, 500])
@pytest.mark.parametrize(("d", "k", "dtype", "weighted"), SHAPES)
def test_every_step(d, k, dtype, weighted, n, rng):
    X = blobs(n, d, k).astype(dtype)
    weights = (rng.random(n) * (np.arange(n) % 3 > 0)).astype(dtype) if weighted and n > 2 else None
    weights = np.ones(n) if weighted and weights is None else weights
    of, reference = Seeding(X, k, dtype, weights, first=n // 2), Reference(X, weights, n // 2)
    tolerance = 4 * oracle.gamma(70, dtype)
    for step in range(min(k, 6)):
        draws = rng.random(of.plan.trials)
        of.step(step, draws if step < k - 1 else None)
        np.testing.assert_allclose(of.closest, reference.closest, rtol=tolerance)
        candidates = of.candidates[step]
        best, expected = (0, [reference.potential]) if step == 0 else reference.keep(candidates)
        np.testing.assert_allclose(of.sums.sum(axis=1), np.resize(expected, of.plan.trials), rtol=tolerance)
        chosen = int(of.chosen[step])
        assert chosen in candidates
        if step:
            # The best, or one as good but for rounding.
            mine = expected[int(np.flatnonzero(candidates == chosen)[0])]
            assert mine <= expected[best] * (1 + 2 * tolerance)
            if mine != expected[best]:
                return
        if step == k - 1:
            return
        # Where a draw falls on the running sum, to rounding.
        running = np.cumsum(reference.weights * reference.closest)
        slack, targets = 2 * tolerance * running[-1], draws * running[-1]
        for at, target in zip(of.candidates[step + 1], targets, strict=True):
            assert running[at] >= target - slack
            assert at == 0 or running[at - 1] <= target + slack
        if dtype == "float64":
            assert of.candidates[step + 1].tolist() == reference.candidates(draws).tolist()


@pytest.mark.each_choice
@pytest.mark.parametrize("multiprocessors", [1, 2, 7])
@pytest.mark.parametrize(("d", "k", "dtype", "weighted"), [SHAPES[2], SHAPES[6], SHAPES[9]])
def test_same_bits_for_any_grid(d, k, dtype, weighted, multiprocessors, rng):
    X, weights = blobs(500, d, 6), rng.random(500) if weighted else None
    draws = rng.random((3, trials_of(k)))
    found = []
    for count in (3, multiprocessors):
        of = Seeding(X, k, dtype, weights, first=3, multiprocessors=count)
        with harness.schedule(seed=multiprocessors, threads=1 + multiprocessors % 2):
            for step in range(min(3, k - 1)):
                of.step(step, draws[step])
        found.append((of.sums.tobytes(), of.closest.tobytes(), of.candidates[:4].tolist()))
    assert found[0] == found[1]


@pytest.mark.parametrize("shape", [SHAPES[1], SHAPES[4], SHAPES[8]])
def test_samples_that_are_all_the_same(shape):
    d, k, dtype, _ = shape
    draws = np.random.default_rng(0).random((k - 1, trials_of(k)))
    # As in scikit-learn: nothing is left to draw by, and the first sample is taken again and again.
    assert drawn(data_of(np.full((300, d), 0.1), dtype), 7, draws) == [7] + [0] * (k - 1)


def test_draws_at_the_ends(rng):
    X = rng.standard_normal((500, 40))
    of = Seeding(X, 12, "float64", first=4)
    of.step(0, np.array([0.0, 1.0, 1 + 1e-9, 5.0]))
    assert of.candidates[1].tolist() == [0, 499, 499, 499]


def test_samples_without_weight_are_never_drawn(rng):
    weights = (np.arange(700) % 7 == 3).astype(np.float32)
    of = Seeding(rng.standard_normal((700, 130)), 8, "float32", weights, first=3)
    for step in range(6):
        of.step(step, rng.random(of.plan.trials))
        assert weights[of.candidates[step + 1]].all()
    # Not by rounding either: where a chunk's samples add up to a little less than its sum, it is the last with weight.
    of.evaluate(6)
    of.sums *= 1 + 1e-12
    of.follow(6, np.array([0.1, 0.5, 1 - 2.0**-53, 1.0]))
    assert weights[of.candidates[7]].all()
    assert of.candidates[7, 3] == 696


@pytest.mark.parametrize("chunk", [None, 1280])
def test_many_chunks_and_long_ones(chunk, rng):
    d, k, dtype, _ = SHAPES[4]
    n = 10_000
    plan = plan_of(n, d, k, dtype)
    # More than there are threads to look through them; and more rows than a block looks through at a time.
    assert plan.chunks > 512
    plan = plan if chunk is None else replace(plan, chunk=chunk, chunks=-(-n // chunk))
    X = rng.standard_normal((n, d))
    of, reference = Seeding(X, k, dtype, plan=plan), Reference(X, None, 0)
    for step in range(3):
        if step:
            reference.keep(of.candidates[step])
        draws = rng.random(plan.trials)
        of.step(step, draws)
        assert of.candidates[step + 1].tolist() == reference.candidates(draws).tolist()


def test_columns_that_do_not_fit_shared_memory(rng):
    # 2500 columns of 4 candidates and a center, in windows of 1024: the same bits as with all of them.
    d, k, dtype, weighted = SHAPES[10]
    assert weighted
    X, weights = rng.standard_normal((300, d)), rng.random(300)
    narrow, found = replace(H200, shared_memory=100 << 10, shared_memory_per_block=48 << 10), []
    draws = rng.random((k - 1, trials_of(k)))
    for gpu in (H200, narrow):
        plan = plan_of(300, d, k, dtype, gpu)
        of = Seeding(X, k, dtype, weights, first=5, plan=plan, gpu=gpu)
        # One warp at a time, as far as it can without the others.
        with harness.schedule(seed=1):
            for step in range(k):
                of.step(step, draws[step] if step < k - 1 else None)
        found.append((plan.window, of.sums.tobytes(), of.chosen.tolist()))
    assert [one[0] for one in found] == [2500, 1024]
    assert found[0][1:] == found[1][1:]


@property_test(
    6,
    25,
    shape=st.sampled_from([SHAPES[0], SHAPES[1], SHAPES[4]]),
    n=st.integers(1, 300),
    grain=st.sampled_from([1.0, 0.25]),
    seed=st.integers(0, 2**16),
)
def test_whole_seeding_of_grains(shape, n, grain, seed):
    # Multiples of a power of two: every distance and sum is exact, so that ties and all are scikit-learn's.
    d, k, dtype, weighted = shape
    rng = np.random.default_rng(seed)
    X = np.round(3 * rng.standard_normal((n, d)) / grain) * grain
    weights = rng.integers(0, 4, n).astype(dtype) if weighted else None
    # Away from the running sum's own values, where rounding of the product decides.
    draws = (rng.integers(0, 2**20, (k - 1, trials_of(k))) + 0.5) / 2**20
    first = int(rng.integers(n))
    reference, expected = Reference(X, weights, first), [first]
    for of_step in draws:
        candidates = reference.candidates(of_step)
        best, _ = reference.keep(candidates)
        expected.append(int(candidates[best]))
    with harness.schedule(seed=seed):
        assert drawn(data_of(X, dtype, weights), first, draws) == expected


@pytest.mark.parametrize(
    ("n", "k", "dtype", "draws", "small"),
    [
        (1 << 19, 64, "float32", True, True),
        (1 << 19, 65, "float32", False, True),
        ((1 << 19) + 1, 2, "float32", False, False),
        (1000, 300, "float32", True, True),
        (1000, 300, "float64", False, True),
    ],
)
def test_few_samples_and_clusters_are_drawn_as_scikit_learn_rounds(n, k, dtype, draws, small):
    data = data_of(np.zeros((n, 1)), dtype)
    assert (data.rounds_draws(k), data.is_small) == (draws, small)


def test_an_array_that_passes_center_in_blocks_is_drawn_from_in_place(rng):
    """Without memory for a centered copy, passes subtract the mean; the draws are those of the array itself."""
    X, draws = blobs(400, 16, 30) + 5, rng.random((29, trials_of(30)))
    data, other = (data_of(X, "float32") for _ in range(2))
    expected = drawn(other, 3, draws)
    data.fits = lambda size: False
    data.center(X.mean(axis=0))
    assert data.held is None
    assert drawn(data, 3, draws) == expected


def test_draws_begun_together_are_those_of_each(rng):
    X = rng.standard_normal((500, 12)) + 5 * rng.integers(0, 2, (500, 12))
    numbers = [(7, rng.random((5, 3))), (7, rng.random((11, 4))), (9, rng.random((1, 2)))]
    begun = BegunDraw.begin(data_of(X, "float32"), numbers)
    for one, (first, draws) in zip(begun, numbers, strict=True):
        assert one.first == first
        assert one.draws is draws
        np.testing.assert_array_equal(one.samples(), draw_plus_plus(data_of(X, "float32"), first, draws))


def test_draws_that_are_not_begun(rng):
    X = rng.standard_normal((300, 12))
    steps = first_pruned_step(4)
    while not prunes(steps, 4):
        steps += 1
    # Of the first, steps are pruned; the second has none.
    numbers = [(0, rng.random((steps, 4))), (0, np.empty((0, 2))), (0, rng.random((3, 2)))]
    assert [one.draws.shape for one in BegunDraw.begin(data_of(X, "float32"), numbers)] == [(3, 2)]
    # Rows of a 16-bit type would be copied.
    rows = ArrayRows(placed(X.astype(np.float16)))
    of_16_bit = DeviceData(rows, np.dtype(np.float32), None, HostMachine(), takes_16_bit=True)
    assert BegunDraw.begin(of_16_bit, numbers) == []
