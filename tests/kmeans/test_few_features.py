"""The kernel for few features and few clusters, its own source run on the CPU: labels against float64, exact sums."""

import numpy as np
import oracle
import pytest
from host_cuda import harness
from host_cuda.few_features import KINDS, SHAPES, FewIterations
from host_cuda.fused_kmeans import blobs
from hypothesis import given, settings
from hypothesis import strategies as st


def test_by_hand():
    X = np.array([[0.0], [1], [4], [3], [2]])
    centers = np.array([[0.5], [3.5]])
    of = FewIterations(X, 2, KINDS[0])
    # The last lies in the middle, and goes to the first.
    assert of.iterate(centers) == 5
    assert of.labels.tolist() == [0, 0, 1, 1, 0]
    assert (of.sums[:, 0] / of.scales[0]).tolist() == [3.0, 7.0]
    assert of.sums[:, 1].tolist() == [3, 2]
    assert of.iterate(centers) == 0
    assert of.iterate(np.array([[0.0], [2.5]])) == 1
    assert of.labels.tolist() == [0, 0, 1, 1, 1]
    assert (of.sums[:, 0] / of.scales[0]).tolist() == [1.0, 9.0]


@pytest.mark.parametrize("away", [0.1, 5.0, 1e4], ids=lambda away: f"{away:g} away")
@pytest.mark.parametrize(("d", "k"), SHAPES)
def test_labels_and_sums(d, k, away, rng):
    X, centers = blobs(1777, d, k, rng, apart=1.0)
    X, centers = X + away, centers + away
    mean = X.mean(axis=0)
    of = FewIterations(X, k, KINDS[0], mean)
    assert of.plan.shifts == (away == 1e4 or (away == 5.0 and of.of_mean > of.reach))
    for step, scale in enumerate((0, 0.05, 0.5)):
        now = centers - mean + scale * rng.standard_normal(centers.shape)
        before = of.labels.copy()
        moved = of.iterate(now)
        of.assert_right(now)
        assert moved == np.count_nonzero(before != of.labels)
        assert step or moved == of.n


@pytest.mark.parametrize("kind", KINDS[1:], ids=lambda kind: kind[0])
@pytest.mark.parametrize(("d", "k"), SHAPES[-8:])
def test_halves(d, k, kind, rng):
    X, centers = blobs(700, d, k, rng)
    of = FewIterations(X, k, kind, X.mean(axis=0), shifts=True)
    for now in (centers - of.mean, centers[::-1] - of.mean):
        of.iterate(now)
        of.assert_right(now)


@pytest.mark.parametrize("n", [1, 31, 32, 127, 128, 129, 768, 769])
def test_the_last_rows(n, rng):
    X, centers = blobs(n, 4, 9, rng)
    for blocks in (1, 3):
        of = FewIterations(X, 9, KINDS[0], blocks=blocks)
        assert of.iterate(centers) == n
        of.assert_right(centers)
        assert of.iterate(centers) == 0


@pytest.mark.parametrize("replicas", [32, 16])
@pytest.mark.parametrize(("d", "k"), [(4, 16), (16, 16), (4, 33)])
def test_sums_are_flushed(d, k, replicas, rng):
    X, centers = blobs(2500, d, k, rng)
    of = FewIterations(X, k, KINDS[0], replicas=replicas, flushes=True)
    for now in (centers, centers[::-1], centers + 1):
        of.iterate(now)
        of.assert_right(now)


@pytest.mark.parametrize("sign", [1, -1])
def test_digits_do_not_overflow(sign):
    # All of them add up in one place, with lower digits that are nearly the largest there are.
    X = np.full((70_000, 1), sign * (1 - 2.0**-24))
    X[0] = -sign * (1 - 2.0**-23)
    of = FewIterations(X, 1, KINDS[0], replicas=1, blocks=1)
    of.iterate(np.zeros((1, 1)))
    of.assert_right(np.zeros((1, 1)))


def test_many_moves_with_few_rows_moving_at_a_time(rng):
    # A row in forty, so that queues are filled by several tiles.
    X = np.zeros((3000, 4))
    X[:, 0] = np.where(np.arange(3000) % 40, 0.0, rng.random(3000))
    of = FewIterations(X, 2, KINDS[0])
    centers = np.array([[0.0, 0, 0, 0], [5.0, 0, 0, 0]])
    assert of.iterate(centers) == 3000
    now = np.array([[0.0, 0, 0, 0], [0.5, 0, 0, 0]])
    expected = np.count_nonzero(X[:, 0].astype(np.float32) > 0.25)
    assert 20 < expected < 75
    assert of.iterate(now) == expected
    of.assert_right(now)


@pytest.mark.parametrize(("d", "k"), [(3, 9), (16, 16), (8, 33)])
def test_far_off_centre_and_equal_centres(d, k, rng):
    X, centers = blobs(900, d, k, rng)
    X, centers = X + 1e4, centers + 1e4
    centers[5] = centers[2]
    centers[k - 1] = centers[1]  # of another chunk
    of = FewIterations(X, k, KINDS[0], mean=X.mean(axis=0))
    centers = centers.astype(np.float32) - of.mean
    of.iterate(centers)
    of.assert_right(centers)
    assert not np.isin(of.labels, (5, k - 1)).any()  # the lower of equals


@pytest.mark.parametrize("magnitude", [1e-27, 1e-20, 1e-10, 1e10, 1e18, 1e27])
def test_any_magnitude(magnitude, rng):
    X, centers = blobs(900, 4, 16, rng)
    of = FewIterations(X * magnitude, 16, KINDS[0])
    for now in (centers * magnitude, centers[::-1] * magnitude):
        of.iterate(now)
        of.assert_right(now)


@pytest.mark.parametrize("away", [30.0, 1e4, 1e30])
def test_a_centre_far_away(away, rng):
    X, centers = blobs(900, 4, 16, rng)
    X[5], centers[7] = 100.0, 100.0  # an outlier, and its cluster
    centers[3] = away
    of = FewIterations(X, 16, KINDS[0])
    of.iterate(centers)
    of.assert_right(centers)
    assert of.labels[5] == 7 or away == 30.0


def test_no_centre_is_near(rng):
    X, centers = blobs(500, 3, 2, rng)
    of = FewIterations(X, 2, KINDS[0])
    for away in (1e3, 1e6, 1e12):
        now = centers + np.array([away, 0, 0])
        of.iterate(now)
        of.assert_right(now)


@pytest.mark.parametrize("shifts", [False, True])
def test_rows_at_the_borders(shifts, rng):
    # Between two centres but for some last places, where scores in float32 cannot tell.
    centers = rng.standard_normal((16, 4)).astype(np.float32)
    middles = (centers[:, np.newaxis] + centers).reshape(-1, 4) / 2
    X = np.repeat(middles, 20, axis=0).astype(np.float32)
    X += np.spacing(X) * rng.integers(-3, 4, X.shape)
    of = FewIterations(X, 16, KINDS[0], mean=np.full(4, 2.0**-30), shifts=shifts)
    for now in (centers, centers * np.float32(1 + 2.0**-22)):
        of.iterate(now)
        of.assert_right(now)


def test_a_score_next_to_the_threshold():
    # The best score is twice the bound, so that the threshold is zero; and another is above it by less than 1 / kLarge,
    # three quarters of its bit, which must not carry into the best one's.
    hits = 0
    for power in range(-12, -4):
        c, square = 2.0**power, 2.0**18  # the data's scale, 2⁹, squared
        centers = np.zeros((3, 2), np.float32)
        # Its score is x·c, and what all offsets have: as much for each of the largest row's norm.
        centers[0, 0], centers[1, 1], centers[2, 0] = c, 0.75 * 2.0**-100 / square / (1 + 1.000001 * 2**0.5), -1.0
        error = 1.01 * 6 / 2**24 * 1.000001 * square * (1.000001 * 2**0.5 + 0.5) + 2.0**-40
        wanted = np.float32((2 * error / square + c * c / 2) / c)  # has that score
        x = (wanted.view(np.int32) + np.arange(-400, 400, dtype=np.int32)).view(np.float32)
        scores = np.float32((x.astype(np.float64) * c - c * c / 2) * square)
        hits += int((scores == np.float32(2 * error)).any())
        X = np.concatenate([np.column_stack([x, np.ones_like(x)]), [[-1.0, 0.0]]])
        of = FewIterations(X, 3, KINDS[0], shifts=False)
        assert of.scale == 2.0**9
        of.iterate(centers)
        of.assert_right(centers)
    assert hits


@pytest.mark.parametrize(("d", "k"), [(3, 2), (4, 16), (16, 9)])
def test_iterations_without_the_host(d, k, rng):
    n = 900
    X, centers = blobs(n, d, k, rng, apart=1.0)
    of = FewIterations(X, k, KINDS[0], X.mean(axis=0))
    centers = (centers - X.mean(axis=0)).astype(np.float32)
    moved = of.iterate(centers)
    for _ in range(3):
        outcome, following = of.advance(centers, moved)
        if outcome["empty"]:
            assert len(set(of.labels.tolist())) < k
            return
        _, expected = oracle.lloyd_step(of.centred, centers, np.ones(n))
        tolerance = 4 * np.finfo(np.float32).eps * abs(of.centred).max()
        np.testing.assert_allclose(following, expected, rtol=0, atol=tolerance)
        assert outcome["moved"] == moved
        centers = following
        moved = of.move_rows(centers)
        of.assert_right(centers)


def test_stops(rng):
    X, centers = blobs(400, 4, 16, rng)
    of = FewIterations(X, 16, KINDS[0])
    of.iterate(centers)
    labels, sums = of.labels.copy(), of.sums.copy()
    assert of.move_rows(centers.astype(np.float32) + 5, stopped=1) == 0
    assert (of.labels == labels).all()
    assert (of.sums == sums).all()


@settings(max_examples=40, deadline=None)
@given(
    shape=st.sampled_from(SHAPES),
    shifts=st.booleans(),
    n=st.integers(1, 500),
    grain=st.sampled_from([None, 1.0, 0.25]),
    seed=st.integers(0, 2**16),
)
def test_any_data(shape, shifts, n, grain, seed):
    d, k = shape
    rng = np.random.default_rng(seed)
    X, centers = blobs(n, d, k, rng, apart=rng.choice([0.1, 1.0, 30.0]))
    if grain:  # many ties
        X, centers = np.round(X / grain) * grain, np.round(centers / grain) * grain
    of = FewIterations(X, k, KINDS[0], shifts=shifts)
    with harness.schedule(seed=seed, copies="early" if seed % 2 else "late"):
        for now in (centers, centers[::-1].copy()):
            of.iterate(now)
            of.assert_right(now)
