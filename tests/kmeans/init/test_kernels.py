"""Greedy k-means++ by the kernels' own source, run on the CPU, against scikit-learn's loop in float64."""

from dataclasses import replace

import numpy as np
import oracle
import pytest
from exhaustive import property_test
from host_cuda import harness
from host_cuda.plusplus import SCREENED, SHAPES, Seeding, plan_of, trials_of
from hypothesis import strategies as st
from sklearn.datasets import make_blobs

from tsapps.apps.kmeans.data.plan import padded
from tsapps.apps.kmeans.init.plan import MOST_TRIALS, first_pruned_step, plusplus_plan, pruned_plan
from tsapps.kernels.gpu_specs import KNOWN


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
    of.begin(0)
    of.step(0, np.array([0.5 / 10_001, 1.5 / 10_001]))
    assert of.sums.sum(axis=1).tolist() == [10_001, 10_001]
    assert of.chosen[0] == 0
    assert of.candidates[1].tolist() == [1, 2]
    of.step(1, None)
    # With 1 a center, 99² are left; with 100, the 1 of the point between.
    assert of.sums.sum(axis=1).tolist() == [99.0**2, 1.0]
    assert of.closest.tolist() == [0, 1, 10_000]
    assert of.chosen.tolist() == [0, 2]


def blobs(n, d, k, seed=0):
    X, _ = make_blobs(n, d, centers=max(2, k // 2), center_box=(-4, 4), random_state=seed)
    return X


@pytest.mark.each_choice
@pytest.mark.parametrize("n", [1, 67, 500])
@pytest.mark.parametrize(("d", "k", "dtype", "weighted"), SHAPES)
def test_every_step(d, k, dtype, weighted, n, rng):
    X = blobs(n, d, k).astype(dtype)
    weights = (rng.random(n) * (np.arange(n) % 3 > 0)).astype(dtype) if weighted and n > 2 else None
    weights = np.ones(n) if weighted and weights is None else weights
    of, reference = Seeding(X, k, dtype, weights), Reference(X, weights, n // 2)
    of.begin(n // 2)
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
@pytest.mark.parametrize("blocks", [1, 2, 7])
@pytest.mark.parametrize(("d", "k", "dtype", "weighted"), [SHAPES[2], SHAPES[6], SHAPES[9]])
def test_same_bits_for_any_grid(d, k, dtype, weighted, blocks, rng):
    X, weights = blobs(500, d, 6), rng.random(500) if weighted else None
    draws = rng.random((3, trials_of(k)))
    found = []
    for count in (3, blocks):
        of = Seeding(X, k, dtype, weights, blocks=count)
        of.begin(3)
        with harness.schedule(seed=blocks, threads=1 + blocks % 2):
            for step in range(3):
                of.step(step, draws[step])
        found.append((of.sums.tobytes(), of.closest.tobytes(), of.candidates[:4].tolist()))
    assert found[0] == found[1]


@pytest.mark.parametrize("shape", [SHAPES[1], SHAPES[4], SHAPES[8]])
def test_samples_that_are_all_the_same(shape):
    d, k, dtype, _ = shape
    of = Seeding(np.full((300, d), 0.1), k, dtype)
    draws = np.random.default_rng(0).random((k - 1, of.plan.trials))
    # As in scikit-learn: nothing is left to draw by, and the first sample is taken again and again.
    assert of.draw(7, draws).tolist() == [7] + [0] * (k - 1)


def test_draws_at_the_ends(rng):
    X = rng.standard_normal((500, 40))
    of = Seeding(X, 12, "float64")
    of.begin(4)
    of.step(0, np.array([0.0, 1.0, 1 + 1e-9, 5.0]))
    assert of.candidates[1].tolist() == [0, 499, 499, 499]


def test_samples_without_weight_are_never_drawn(rng):
    weights = (np.arange(700) % 7 == 3).astype(np.float32)
    of = Seeding(rng.standard_normal((700, 130)), 8, "float32", weights)
    of.begin(3)
    for step in range(6):
        of.step(step, rng.random(of.plan.trials))
        assert weights[of.candidates[step + 1]].all()
    # Not by rounding either: where a chunk's samples add up to a little less than its sum, it is the last with weight.
    of.attempt(6)
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
    of.begin(0)
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
    narrow = replace(KNOWN["H200"], shared_memory=100 << 10, shared_memory_per_block=48 << 10)
    found = []
    for plan in (plan_of(300, d, k, dtype), plan_of(300, d, k, dtype, narrow)):
        of = Seeding(X, k, dtype, weights, plan=plan)
        draws = np.random.default_rng(1).random((k - 1, plan.trials))
        # One warp at a time, as far as it can without the others.
        with harness.schedule(seed=1):
            of.draw(5, draws)
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
    of = Seeding(X, k, dtype, weights)
    # Away from the running sum's own values, where rounding of the product decides.
    draws = (rng.integers(0, 2**20, (k - 1, of.plan.trials)) + 0.5) / 2**20
    first = int(rng.integers(n))
    reference, expected = Reference(X, weights, first), [first]
    for of_step in draws:
        candidates = reference.candidates(of_step)
        best, _ = reference.keep(candidates)
        expected.append(int(candidates[best]))
    with harness.schedule(seed=seed):
        assert of.draw(first, draws).tolist() == expected


def tiled(plan, n):
    """Return the plan with chunks of whole tiles of panels."""
    return replace(plan, chunk=128, chunks=-(-n // 128))


def assert_same_by_the_copy(of, step):
    """Try a step's candidates by X's copy and by X, of which D² are the same bits; go on with X's."""
    before = of.closest.copy()
    of.screen(step)
    closest, sums = of.closest.copy(), of.sums.copy()
    of.closest[:], of.sums[:] = before, np.nan
    of.attempt(step)
    np.testing.assert_array_equal(closest, of.closest)
    np.testing.assert_allclose(sums, of.sums, rtol=1e-13)


def assert_same_draws_by_the_copy(of, steps, rng):
    """Draw from the first sample on, every step tried both ways."""
    of.begin(0)
    of.attempt(0)
    of.follow(0, rng.random(of.plan.trials))
    for step in range(1, steps):
        assert_same_by_the_copy(of, step)
        of.follow(step, rng.random(of.plan.trials))


def assert_same_of_any_candidates(of, most, rng):
    """Try three steps of candidates at random among the first `most` samples, both ways."""
    of.begin(0)
    of.attempt(0)
    for step in range(1, 4):
        of.candidates[step] = rng.integers(0, most, of.plan.trials)
        assert_same_by_the_copy(of, step)
        of.chosen[step] = of.candidates[step, 0]


@pytest.mark.each_choice
@pytest.mark.parametrize("n", [1, 67, 700])
@pytest.mark.parametrize("panels", [0, 1])
@pytest.mark.parametrize(("d", "k", "dtype", "weighted"), SCREENED)
def test_steps_by_the_copy_are_as_exact(d, k, dtype, weighted, panels, n, rng):
    X = blobs(n, d, k).astype(dtype) + 100  # far from the origin
    plan = tiled(plan_of(n, d, k, dtype), n) if panels else None
    of = Seeding(X, k, dtype, rng.random(n) if weighted else None, plan=plan, blocks=1 + n % 3)
    of.make_copy(panels, stages=2 if n % 2 else None)
    of.begin(n // 2)
    for step in range(min(k, 6)):
        draws = rng.random(of.plan.trials)
        if step == 0:
            of.attempt(step)
        else:
            with harness.schedule(seed=step, threads=1 + step % 2):
                assert_same_by_the_copy(of, step)
        of.follow(step, draws if step < k - 1 else None)


def test_rows_that_the_copy_tells_are_not_read(rng):
    d, k, dtype, _ = SHAPES[6]
    of = Seeding(rng.standard_normal((600, d)), k, dtype)
    of.make_copy()
    of.begin(0)
    of.attempt(0)
    # No candidate is nearer to any row than half of what it is; but of one row nothing is known.
    of.closest *= 0.5
    of.closest[:10] = 0
    of.norms[310] = np.inf
    of.candidates[1] = np.arange(1, 1 + of.plan.trials)
    near, of.X[10:] = of.closest.copy(), of.X[0]
    of.screen(1)
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
    of = Seeding(X, k, dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        of.make_copy(raised=range(0, 200, 3) if what == "raised" else ())
    assert_same_draws_by_the_copy(of, 8, rng)


@pytest.mark.parametrize(("dtype", "power"), [("float64", -150), ("float64", 120), ("float64", -30), ("float32", -23)])
def test_data_of_any_magnitude(dtype, power, rng):
    # Squares of float64 may be zero in float32, or infinite; those of float32 may be next to zero.
    d, k, _, _ = SHAPES[4] if dtype == "float64" else SHAPES[6]
    of = Seeding(blobs(500, d, k) * 10.0**power * (1 if dtype == "float64" else 3), k, dtype)
    of.make_copy()
    assert_same_draws_by_the_copy(of, 6, rng)


@pytest.mark.parametrize("small", [1e-19, 1e-20, 1e-22, 1e-30])
def test_rows_that_are_nothing_beside_others(small, rng):
    # The copy has zeros of them, and so are their norms, as the squares of what they lost are.
    d, k, dtype, _ = SHAPES[6]
    large = 1e6 * rng.standard_normal((50, d)).astype(dtype)
    X = np.vstack([small * rng.standard_normal((200, d)), large, -large])
    of = Seeding(X, k, dtype)
    of.make_copy()
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
    of = Seeding(X, k, dtype, rng.integers(0, 4, n) if weighted else None, plan=tiled(plan, n) if seed % 2 else plan)
    of.make_copy(seed % 2)
    assert_same_of_any_candidates(of, n, rng)


@pytest.mark.parametrize("n", [1, 1000, 10**7, 2**31 + 5])
@pytest.mark.parametrize("trials", [2, 6, 7, 8, 12])
@pytest.mark.parametrize("d", [1, 3, 4, 16, 128, 511, 512, 5000, 300_000])
def test_plans(n, d, trials):
    for device in ("A100", "H200"):
        for itemsize in (4, 8):
            plan = plusplus_plan(n, d, trials, itemsize, aligned=d % 4 == 0, device=KNOWN[device])
            assert plan.chunks <= 2**14
            assert (plan.chunks - 1) * plan.chunk < n <= plan.chunks * plan.chunk
            assert plan.shared_bytes == plan.window * (trials + 1) * itemsize
            assert plan.shared_bytes <= KNOWN[device].shared_memory_per_block
            assert plan.window >= d or (plan.window % 1024 == 0 and plan.lanes == 32)


@pytest.mark.parametrize("panels", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("itemsize", [4, 8])
def test_plans_of_screens(itemsize, weighted, panels):
    assert first_pruned_step(6) == 7
    for d in (1, 16, 100, 128, 256, 511, 512, 768, 1500, 5000):
        for n in (1000, 600_000, 2**20, 10**7):
            plan = plusplus_plan(n, d, 6, itemsize, aligned=True, device=KNOWN["H200"])
            screen = pruned_plan(plan, d, padded(d), itemsize, panels=panels, weighted=weighted, device=KNOWN["H200"])
            if d == 1 or (plan.chunk % 64 and panels):
                assert d == 1 or n < 2**20
                assert screen is None
                continue
            assert screen is None or d < 1500
            assert screen is not None or d >= (1500 if itemsize == 4 else 511)
            if screen is not None:
                assert screen.shared_bytes <= 113 << 10
                assert screen.stages == 3 if d <= 100 and not panels else screen.stages >= 2


def test_no_plan_for_more_trials_than_there_are_registers_for():
    assert plusplus_plan(1000, 4, MOST_TRIALS + 1, 4, aligned=True, device=KNOWN["H200"]) is None
