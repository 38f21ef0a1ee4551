"""Steps for small d by multiply-adds on a HostMachine: labels against float64, sums against integers."""

import numpy as np
import pytest
from kmeans.host_steps import blobs
from kmeans.small_d.steps import FMA_SHAPES, HALF_TYPES, assert_assigns, fma_step


def test_by_hand():
    X = np.array([[0.0], [1], [4], [3], [2]])
    centers = np.array([[0.5], [3.5]])
    step = fma_step(X, 2)
    sums, scales = step.buffers.sums, step.buffers.scales
    # The last lies in the middle, and goes to the first.
    assert assert_assigns(step, centers) == 5
    assert step.labels.tolist() == [0, 0, 1, 1, 0]
    assert (sums[:, 0] / scales[0]).tolist() == [3.0, 7.0]
    assert sums[:, 1].tolist() == [3, 2]
    assert assert_assigns(step, centers) == 0
    assert assert_assigns(step, np.array([[0.0], [2.5]])) == 1
    assert step.labels.tolist() == [0, 0, 1, 1, 1]
    assert (sums[:, 0] / scales[0]).tolist() == [1.0, 9.0]


@pytest.mark.each_choice
@pytest.mark.parametrize("away", [0.1, 5.0, 1e4], ids=lambda away: f"{away:g} away")
@pytest.mark.parametrize(("d", "k"), FMA_SHAPES)
def test_labels_and_sums(d, k, away, rng):
    X, centers = blobs(1777, d, k, rng, apart=1.0)
    X, centers = X + away, centers + away
    mean = X.mean(axis=0)
    step = fma_step(X, k, mean=mean)
    assert step._plan.shifts == (away == 1e4 or (away == 5.0 and step._mean_norm > step._norm))
    for number, scale in enumerate((0, 0.05, 0.5)):
        n_reassigned = assert_assigns(step, centers - mean + scale * rng.standard_normal(centers.shape))
        assert number or n_reassigned == step.data.n_samples


@pytest.mark.each_choice
@pytest.mark.parametrize("dtype", HALF_TYPES)
@pytest.mark.parametrize(("d", "k"), FMA_SHAPES[-8:])
def test_halves(d, k, dtype, rng):
    X, centers = blobs(700, d, k, rng)
    step = fma_step(X, k, dtype, X.mean(axis=0), shifts=True)
    for now in (centers - step.data.shift, centers[::-1] - step.data.shift):
        assert_assigns(step, now)


@pytest.mark.parametrize("n", [1, 31, 32, 255, 256, 257, 1536, 1537])
def test_the_last_rows(n, rng):
    X, centers = blobs(n, 4, 9, rng)
    for blocks in (1, 3):
        step = fma_step(X, 9, multiprocessors=blocks)
        assert assert_assigns(step, centers) == n
        assert assert_assigns(step, centers) == 0


@pytest.mark.each_choice
@pytest.mark.parametrize("replicas", [32, 16])
@pytest.mark.parametrize(("d", "k"), [(4, 16), (16, 16), (4, 33)])
def test_sums_are_flushed(d, k, replicas, rng):
    X, centers = blobs(2500, d, k, rng)
    step = fma_step(X, k, replicas=replicas, flushes=True)
    for now in (centers, centers[::-1], centers + 1):
        assert_assigns(step, now)


@pytest.mark.parametrize("sign", [1, -1])
def test_digits_do_not_overflow(sign):
    # All of them add up in one place, with lower digits that are nearly the largest there are.
    X = np.full((70_000, 1), sign * (1 - 2.0**-24))
    X[1] = -sign * (1 - 2.0**-23)
    X[0] = 0.0  # which ranges are about
    step = fma_step(X, 1, replicas=1, multiprocessors=1)
    assert step.buffers.scales[0] == 2.0**30
    assert_assigns(step, np.zeros((1, 1)))


@pytest.mark.parametrize("shifts", [False, True])
def test_rows_at_the_borders(shifts, rng):
    # Between two centers but for some last places, where scores in float32 cannot tell.
    centers = rng.standard_normal((16, 4)).astype(np.float32)
    middles = (centers[:, np.newaxis] + centers).reshape(-1, 4) / 2
    X = np.repeat(middles, 20, axis=0).astype(np.float32)
    X += np.spacing(X) * rng.integers(-3, 4, X.shape)
    step = fma_step(X, 16, mean=np.full(4, 2.0**-30), shifts=shifts)
    for now in (centers, centers * np.float32(1 + 2.0**-22)):
        assert_assigns(step, now)


def test_a_score_next_to_the_threshold():
    # The best score is twice the bound, so that the threshold is zero; and another is above it by less than 1 / kLarge,
    # three quarters of its bit, which must not carry into the best one's.
    hits = 0
    for power in range(-12, -4):
        c, square = 2.0**power, 2.0**18  # the data's scale, 2⁹, squared
        # Scores are less the first center's, which is zero.
        centers = np.zeros((4, 2), np.float32)
        centers[1, 0], centers[2, 1], centers[3, 0] = c, 0.75 * 2.0**-100 / square, -1.0
        rounded_up = float(np.float32(1 + 2.0**-20))
        error = 1.01 * 8 / 2**24 * square * rounded_up * (1.000001 * 2**0.5 + 0.5) + 2.0**-40
        wanted = np.float32((2 * error / square + c * c / 2) / c)  # has that score
        x = (wanted.view(np.int32) + np.arange(-400, 400, dtype=np.int32)).view(np.float32)
        scores = np.float32((x.astype(np.float64) * c - c * c / 2) * square)
        hits += int((scores == np.float32(2 * error)).any())
        # Ranges are about the first.
        X = np.concatenate([np.zeros((1, 2)), np.column_stack([x, np.ones_like(x)]), [[-1.0, 0.0]]])
        step = fma_step(X, 4, shifts=False)
        assert step._scale == 2.0**9
        assert_assigns(step, centers)
    assert hits
