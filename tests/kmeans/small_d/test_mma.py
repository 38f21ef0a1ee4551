"""Steps for small d on tensor cores, on a HostMachine: labels against float64, sums against integers."""

import numpy as np
import pytest
from exhaustive import every
from host_cuda import harness
from kmeans.host_steps import DTYPES, blobs, place
from kmeans.small_d.steps import HALF_TYPES, MMA_SHAPES, WARPGROUP_SHAPES, assert_assigns, mma_step

from tsapps.apps.kmeans.small_d.plan import Multiplier
from tsapps.kernels.plan.mma import ELEMENT


def test_by_hand():
    X = np.array([[0.0], [1], [4], [3], [2]])
    step = mma_step(X, 1)
    assert assert_assigns(step, np.array([[7.0]])) == 5
    assert step.labels.tolist() == [0] * 5
    assert (step.buffers.sums[:, 0] / step.buffers.scales[0]).tolist() == [10.0]
    assert step.buffers.sums[:, 1].tolist() == [5]
    assert assert_assigns(step, np.array([[7.0]])) == 0


def test_by_hand_of_two_clusters():
    X = np.zeros((5, 14))
    X[:, 3] = [0, 1, 4, 3, 2]
    centers = np.zeros((2, 14))
    centers[:, 3] = 0.5, 3.5
    step = mma_step(X, 2)
    # The last lies in the middle, and goes to the first.
    assert assert_assigns(step, centers) == 5
    assert step.labels.tolist() == [0, 0, 1, 1, 0]
    assert (step.buffers.sums[:, 3] / step.buffers.scales[3]).tolist() == [3.0, 7.0]
    assert step.buffers.sums[:, 14].tolist() == [3, 2]
    centers[:, 3] = 0, 2.5
    assert assert_assigns(step, centers) == 1
    assert step.labels.tolist() == [0, 0, 1, 1, 1]
    assert (step.buffers.sums[:, 3] / step.buffers.scales[3]).tolist() == [1.0, 9.0]


@pytest.mark.each_choice
@pytest.mark.parametrize("away", [0.1, 5.0, 1e4], ids=lambda away: f"{away:g} away")
@pytest.mark.parametrize(("d", "k"), MMA_SHAPES)
def test_labels_and_sums(d, k, away, rng):
    X, centers = blobs(913, d, k, rng, apart=1.0)
    X, centers = X + away, centers + away
    mean = X.mean(axis=0)
    step = mma_step(X, k, mean=mean)
    for number, scale in enumerate((0, 0.05, 0.5)):
        n_reassigned = assert_assigns(step, centers - mean + scale * rng.standard_normal(centers.shape))
        assert number or n_reassigned == len(X)


@pytest.mark.each_choice
@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("dtype", HALF_TYPES)
@pytest.mark.parametrize(("d", "k"), every(3, [(5, 20), (16, 16), (32, 64), (64, 64)], unpacked=True))
def test_halves(d, k, dtype, centered, rng):
    X, centers = blobs(700, d, k, rng)
    step = mma_step(X, k, dtype, X.mean(axis=0) if centered else None)
    assert (step._products_of["rounding"] == 0) != centered
    for now in (centers - step.data.shift, centers[::-1] - step.data.shift):
        assert_assigns(step, now)


@pytest.mark.each_choice
@pytest.mark.parametrize("away", [0.0, 3.0, 100.0], ids=lambda away: f"{away:g} away")
@pytest.mark.parametrize("dtype", HALF_TYPES)
@pytest.mark.parametrize(("d", "k"), every(2, WARPGROUP_SHAPES, unpacked=True))
def test_warpgroups(d, k, dtype, away, rng):
    X, centers = blobs(800, d, k, rng, apart=1.0)
    X, centers = X + away, centers + away
    mean = X.mean(axis=0) if away else None
    step = mma_step(X, k, dtype, mean, warpgroups=True)
    for number, scale in enumerate((0, 0.05, 0.5)):
        now = centers - step.data.shift + scale * rng.standard_normal(centers.shape)
        n_reassigned = assert_assigns(step, now)
        assert number or n_reassigned == len(X)


def test_warpgroups_by_hand():
    # Rows lie where they are, far from zero beside how far they are from their mean.
    X = np.zeros((5, 14))
    X[:, 3] = [32, 33, 36, 35, 34]
    mean = np.zeros(14)
    mean[3] = 34
    step = mma_step(X, 2, "float16", mean, warpgroups=True)
    centers = np.zeros((2, 14))
    centers[:, 3] = -1.5, 1.5
    # The last lies in the middle, and goes to the first.
    assert assert_assigns(step, centers) == 5
    assert step.labels.tolist() == [0, 0, 1, 1, 0]
    assert (step.buffers.sums[:, 3] / step.buffers.scales[3]).tolist() == [-3.0, 3.0]
    assert step.buffers.sums[:, 14].tolist() == [3, 2]


@pytest.mark.each_choice
@pytest.mark.parametrize("dtype", HALF_TYPES)
@pytest.mark.parametrize("n", [1, 33, 64, 127, 128, 129, 500, 768, 769])
def test_the_last_rows_of_warpgroups(n, dtype, rng):
    X, centers = blobs(n, 16, 16, rng)
    for blocks in (1, 3):
        step = mma_step(X, 16, dtype, multiprocessors=blocks, warpgroups=True)
        assert assert_assigns(step, centers) == n
        assert assert_assigns(step, centers) == 0


@pytest.mark.each_choice
@pytest.mark.parametrize("dtype", HALF_TYPES)
@pytest.mark.parametrize(("d", "k"), every(2, [(40, 33), (64, 64)], unpacked=True))
def test_sums_of_warpgroups_are_flushed(d, k, dtype, rng):
    X, centers = blobs(1300, d, k, rng)
    step = mma_step(X, k, dtype, flushes=True, warpgroups=True)
    for now in (centers, centers[::-1], centers + 1):
        assert_assigns(step, now)


@pytest.mark.parametrize("dtype", HALF_TYPES)
def test_rows_at_the_borders_by_warpgroups(dtype, rng):
    # Between two centers, or a place of the data's own type beside, where scores can hardly tell: none is mistaken.
    centers = np.round(16 * rng.standard_normal((16, 16))).astype(np.float32) / 8
    middles = (centers[:, np.newaxis] + centers).reshape(-1, 16) / 2
    X = np.repeat(middles, 10, axis=0).astype(np.float32)
    X += np.abs(X) * 2.0**-9 * rng.integers(-3, 4, X.shape)
    step = mma_step(X, 16, dtype, warpgroups=True)
    for now in (centers, centers * np.float32(1 + 2.0**-20)):
        assert_assigns(step, now)


@pytest.mark.each_choice
@pytest.mark.parametrize("dtype", ["float32", *HALF_TYPES])
@pytest.mark.parametrize(("d", "k"), [(16, 16), (32, 64)])
def test_few_rows_are_in_doubt(d, k, dtype, rng):
    # What is decided in float64 is decided by other centers here, so that of two candidates the wrong one is taken.
    X, centers = blobs(3000, d, k, rng, apart=4 / np.sqrt(2 * d))
    step = mma_step(X, k, dtype)
    assert_assigns(step, centers)
    right = step.labels.copy()
    labels = step.buffers.labels
    labels[:] = -1
    for launch in step._bind_rows(-place(step, centers)):
        launch()
    assert 0 < np.count_nonzero(labels != right) < 0.05 * len(X)


@pytest.mark.each_choice
@pytest.mark.parametrize("changed", [{}, {"multiplier": Multiplier.WARPS}, {"stages": 2}], ids=str)
@pytest.mark.parametrize("n", [1, 31, 32, 33, 64, 127, 128, 129, 768, 769])
def test_the_last_rows(n, changed, rng):
    X, centers = blobs(n, 16, 16, rng)
    for blocks in (1, 3):
        step = mma_step(X, 16, multiprocessors=blocks, **changed)
        assert assert_assigns(step, centers) == n
        assert assert_assigns(step, centers) == 0


# The products of single warps are in test_the_last_rows too.
@pytest.mark.parametrize("changed", every(2, [{"stages": 4}, {"multiplier": Multiplier.WARPS}, {"stages": 3}]), ids=str)
def test_every_plan(changed, rng):
    X, centers = blobs(1100, 32, 64, rng)
    step = mma_step(X, 64, **changed)
    for now in (centers, centers[::-1]):
        assert_assigns(step, now)


@pytest.mark.parametrize(("d", "k"), every(2, [(3, 9), (16, 16), (64, 64)], unpacked=True))
def test_sums_are_flushed(d, k, rng):
    X, centers = blobs(1300, d, k, rng)
    step = mma_step(X, k, flushes=True)
    for now in (centers, centers[::-1], centers + 1):
        assert_assigns(step, now)


@pytest.mark.parametrize("sign", every(2, [-1, 1]))
def test_digits_do_not_overflow(sign):
    # All of them add up in one place, with lower digits that are nearly the largest there are. 33 elements take all
    # lanes.
    X = np.full((40_000, 33), sign * (1 - 2.0**-24))
    X[0] = 0.0  # which ranges are about
    X[1] = -sign * (1 - 2.0**-23)
    centers = np.zeros((16, 33))
    centers[1:] = 2 * X[1]
    step = mma_step(X, 16, multiprocessors=1)
    assert step.buffers.scales[0] == 2.0**30
    assert_assigns(step, centers)


def test_all_centers_are_equal(rng):
    X, _ = blobs(500, 32, 64, rng)
    step = mma_step(X, 64)
    assert_assigns(step, np.ones((64, 32)))
    assert not step.labels.any()


def test_all_rows_are_equal():
    for value in (0.0, 3.0):
        X = np.full((300, 16), value)
        step = mma_step(X, 16)
        centers = np.full((16, 16), value) + np.arange(16)[::-1, np.newaxis]
        assert_assigns(step, centers)
        assert (step.labels == 15).all()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_next_to_zero_in_float16(dtype, rng):
    # An outlier leaves the other rows where float16 has few bits, or none, and float16 itself its least numbers.
    X, centers = blobs(900, 16, 16, rng)
    X, centers = X * 2.0**-17, centers * 2.0**-17
    X[7] = 1.0
    step = mma_step(X, 16, dtype)
    for now in (centers, centers[::-1]):
        assert_assigns(step, now)


@pytest.mark.parametrize(("d", "k"), [(16, 16), (64, 64)])
def test_rows_at_the_borders(d, k, rng):
    # Between two centers but for some last places, where scores in float16 cannot tell.
    centers = rng.standard_normal((k, d)).astype(np.float32)
    middles = (centers[:16, np.newaxis] + centers[:16]).reshape(-1, d) / 2
    X = np.repeat(middles, 10, axis=0).astype(np.float32)
    X += np.spacing(X) * rng.integers(-3, 4, X.shape)
    step = mma_step(X, k)
    for now in (centers, centers * np.float32(1 + 2.0**-12)):
        assert_assigns(step, now)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("small", [False, True], ids=["of ones", "of what is next to zero"])
def test_roundings_that_add_up(small, sign):
    # Elements lie next to the middle between two numbers of float16, on that side that all errors have one sign: nearly
    # the bound itself, which is what keeps the farther center from being taken for the nearer.
    d, scale = 14, 2.0**10 if small else 2.0**8
    base, half_place, center = (0.0, 2.0**-25, 0.0025) if small else (scale, scale * 2.0**-11, scale)
    low, high = base + half_place * (1 - 2.0**-9), base + half_place * (1 + 2.0**-9)
    X = np.repeat(sign * np.where(np.arange(d) % 2, -high, low)[np.newaxis], 64, axis=0)
    X[:, 0] += sign * half_place * np.arange(64) / 32
    if small:
        X = np.concatenate([X, [[0.9 * scale] + (d - 1) * [0]]])
    step = mma_step(X / scale, 2)
    assert step._scale == scale
    centers = np.array([d * [center / scale], d * [-center / scale]])
    assert_assigns(step, centers)
    assert step.labels[:64].tolist() == [int(sign > 0)] + 63 * [int(sign < 0)]


# --- A few rows in doubt, by the lanes that share them ----------------------------------------------------------------


def in_doubt_source():
    def of(dtype, d):
        T = ELEMENT[dtype]
        return f"""
extern "C" void decide_{dtype}_{d}(const void* X, const float* mean, const float* centers, long long k,
                                   kmeans::AmbiguousRow* entries, long long count) {{
  cuda_host::launch(dim3(1), 32, 64 * sizeof(kmeans::AmbiguousRow), [=] {{
    auto* here = simt::dynamic_shared<kmeans::AmbiguousRow>() + 16;
    for (int i = threadIdx.x; i < count; i += 32) here[i] = entries[i];
    __syncwarp();
    kmeans::CooperativeRescore<{T}, {d}>::rescore(static_cast<const {T}*>(X), mean, centers, (int)k,
    kmeans::shared_place(here),
                                         (int)count);
    for (int i = threadIdx.x; i < count; i += 32) entries[i] = here[i];
  }});
}}"""

    return '#include "apps/kmeans/small_d/rescore.cuh"\n' + "".join(of(*shape) for shape in IN_DOUBT)


IN_DOUBT = [(dtype, d) for dtype in ("float32", "float16", "bfloat16") for d in (1, 5, 8, 30, 64)]


@pytest.fixture(scope="module", name="in_doubt")
def _in_doubt():
    return harness.build(in_doubt_source())


@pytest.mark.each_choice
@pytest.mark.parametrize("k", [1, 9, 64])
@pytest.mark.parametrize(("dtype", "d"), IN_DOUBT)
def test_the_nearest_of_a_few_rows_candidates(in_doubt, dtype, d, k, rng):
    """Of the first of equals, and of all centers where a row has no candidates."""
    X = (8 * rng.standard_normal((40, d))).round().astype(DTYPES[dtype])  # whole numbers, for there to be ties
    mean = rng.integers(-2, 3, d).astype(np.float32)
    centers = (8 * rng.standard_normal((k, d))).round().astype(np.float32)
    centers[k // 2] = centers[0]
    distances = ((X.astype(np.float64) - mean)[:, np.newaxis] - centers) ** 2
    for count in (1, 2, 5, 31, 32):
        rows, masks = rng.integers(0, 40, count), rng.random((count, k)) < 3 / k
        masks[::7] = False
        entries = np.zeros((count, 4), np.uint32)
        entries[:, 0], entries[:, 1] = rows, rng.integers(0, k, count)
        for j in range(k):  # bit 16·s + p is center 8·(p / 2) + 2·s + p % 2
            bit = j % 8 // 2 * 16 + j // 8 * 2 + j % 2
            entries[:, 2 + bit // 32] |= np.where(masks[:, j], np.uint32(1 << bit % 32), np.uint32(0))
        given = entries.copy()
        in_doubt.call(f"decide_{dtype}_{d}", X, mean, centers, k, entries, count)
        of_rows = distances.sum(axis=2)[rows]
        wanted = np.where(masks | ~masks.any(axis=1, keepdims=True), of_rows, np.inf).argmin(axis=1)
        np.testing.assert_array_equal(entries[:, 2], wanted)
        np.testing.assert_array_equal(entries[:, [0, 1, 3]], given[:, [0, 1, 3]])
