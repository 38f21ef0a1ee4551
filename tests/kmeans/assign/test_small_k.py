"""Steps for k <= 64 on a HostMachine: labels against float64, sums against integers."""

from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import pytest
from exhaustive import property_test
from host_cuda import harness
from hypothesis import strategies as st
from kmeans.host_steps import (
    DTYPES,
    FAR_KINDS,
    KINDS,
    SHAPES,
    assert_iterated,
    assert_right,
    assign_placed,
    away_of,
    blobs,
    centered,
    data_on_host,
    float16_scores,
    iterate_once,
    place,
)

from tsapps.apps.kmeans.assign.plan import assign_plan, error_coefficients_of, parts_of
from tsapps.apps.kmeans.engines import small_k_step
from tsapps.apps.kmeans.engines.small_k_step import SmallKStep


@contextmanager
def sorting(rows):
    """Within the block, reassigned rows are sorted or not, whatever their number."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(small_k_step, "sorts_rows", lambda *_: rows)
        yield


def step_of(X, k, kind, weights=None, mean=None, *, certifies=True, **data_options):
    """Return a step that may sort rows or not, with no sample in any cluster."""
    data = data_on_host(X, kind, weights, mean, **data_options)
    with sorting(True):
        plan = assign_plan(*data.source.shape, k, data.gpu)
        step = SmallKStep(data, plan, k, bounds=False, certifies=certifies)
    step.reset()
    return step


def ambiguous_rows(step):
    """Return the number of listed rows with more than one candidate, before they are rescored."""
    counts = step.buffers.counts
    entries = step._entries.view(np.uint32).reshape(len(counts), -1, 4)
    assert (counts <= entries.shape[1]).all()
    masks = [mask for some, count in zip(entries, counts, strict=True) for mask in some[:count, 2:].tolist()]
    candidates = [low.bit_count() + high.bit_count() for low, high in masks]
    listed, every = sum(count > 1 for count in candidates), candidates.count(0)
    assert step.ambiguous_counts().tolist() == [listed, every]
    return listed + every


def assign(step, centers, *, sorts=False):
    """Assign samples to centers; return the numbers of ambiguous and of reassigned rows."""
    with sorting(sorts):
        return assign_placed(step, place(step, centers), ambiguous_rows)


def test_by_hand():
    X = np.array([[0.0, 0, 0], [1, 0, 0], [4, 0, 0], [3, 0, 0], [2, 0, 0]])
    centers = np.array([[0.5, 0, 0], [3.5, 0, 0]])
    step = step_of(X, 2, KINDS[0])
    sums, scales = step.buffers.sums, step.buffers.scales
    _, n_reassigned = assign(step, centers)
    # The last lies in the middle, and goes to the first.
    assert step.labels.tolist() == [0, 0, 1, 1, 0]
    assert n_reassigned == 5
    assert (sums[:, 0] / scales[0]).tolist() == [3.0, 7.0]
    assert sums[:, 3].tolist() == [3, 2]
    assert assign(step, centers) == (1, 0)  # the one in the middle
    assert assign(step, np.array([[0.0, 0, 0], [2.5, 0, 0]])) == (0, 1)
    assert step.labels.tolist() == [0, 0, 1, 1, 1]
    assert (sums[:, 0] / scales[0]).tolist() == [1.0, 9.0]


@pytest.mark.each_choice
# Fewer rows than a warp has groups of lanes, and than a tile; one more than some tiles; more than the grid at once.
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 17, 33, 64, 129, 700])
@pytest.mark.parametrize("kind", [KINDS[0], *KINDS[3:], *FAR_KINDS], ids=lambda kind: "-".join(map(str, kind)))
@pytest.mark.parametrize(("d", "k"), SHAPES)
def test_half_copy(d, k, kind, n, rng):
    X = blobs(n, d, k, rng)[0] + away_of(kind)
    data = data_on_host(X, kind, mean=X.mean(axis=0), multiprocessors=1)
    half_copy = data.half_copy(0, certifies=True)
    wanted = centered(data) * data.dtype.type(half_copy.scale)
    found = half_copy.rows[:, :d].astype(np.float64)
    # To float16 by way of float32.
    np.testing.assert_array_equal(half_copy.rows[:, :d], wanted.astype(np.float32).astype(np.float16))
    assert not half_copy.rows[:, d:].any()
    norms, lost = np.linalg.norm(found, axis=1), np.linalg.norm(wanted.astype(np.float64) - found, axis=1)
    least = np.maximum(norms, lost / half_copy.rounding)
    assert (half_copy.norms >= least).all()
    assert (half_copy.norms <= least * 1.0005).all()


@pytest.mark.each_choice
@pytest.mark.parametrize("sorts", [False, True], ids=["n_reassigned", "sorted"])
@pytest.mark.parametrize("kind", [*KINDS, *FAR_KINDS], ids=lambda kind: "-".join(map(str, kind)))
@pytest.mark.parametrize(("d", "k"), SHAPES)
def test_labels_and_sums(d, k, kind, sorts, rng):
    n, away = 400, away_of(kind)
    X, centers = blobs(n, d, k, rng)
    weights = rng.random(n) * 3 if kind[2] else None
    X = (X + away).astype(DTYPES[kind[0]]).astype(np.float64)
    step = step_of(X, k, kind, weights, X.mean(axis=0))
    assert step.integers.digits == kind[1]
    assert step.data.shift.any() or not away
    centers = centers + away - step.data.shift
    later = [centers + scale * rng.standard_normal(centers.shape) for scale in (0, 0.05, 0.5)]
    for number, now in enumerate(later):
        before = step.labels.copy()
        ambiguous, n_reassigned = assign(step, now, sorts=sorts)
        assert_right(step, now)
        assert n_reassigned == np.count_nonzero(before != step.labels)
        assert number or n_reassigned == n
        # The bound leaves few rows undecided where features are many; one feature has float16's whole error.
        assert ambiguous <= n // 4
    assert all((earlier != now).any() for earlier, now in pairwise(later))


def test_without_certification_by_hand():
    # The middle is at 1 + 0.8·2⁻¹⁰, past the sample, whose copy in float16 is 1 + 2⁻¹⁰, past the middle.
    centers = np.array([[1.6 * 2**-10, 0, 0], [2, 0, 0]])
    X = np.array([[1 + 0.7 * 2**-10, 0, 0], [0, 0, 0], [2, 0, 0]])
    certified, step = (step_of(X, 2, KINDS[0], certifies=certifies) for certifies in (True, False))
    ambiguous, _ = assign(certified, centers)
    assert (ambiguous, certified.labels.tolist()) == (1, [0, 0, 1])
    step.labels[:], step.buffers.sums[:] = certified.labels, certified.buffers.sums
    assert assign(step, centers) == (0, 1)
    assert step.labels.tolist() == [1, 0, 1]
    np.testing.assert_array_equal(step.buffers.sums[:, 3], [1, 2])
    assert step.buffers.sums[1, 0] / step.buffers.scales[0] == X[[0, 2], 0].astype(np.float32).sum(dtype=np.float64)


@pytest.mark.parametrize(("d", "k"), SHAPES)
def test_without_certification_labels_are_the_best_float16_scores(d, k, rng):
    n = 400
    X, centers = blobs(n, d, k, rng)
    step = step_of(X, k, KINDS[0], mean=X.mean(axis=0), certifies=False)
    centers = centers - X.mean(axis=0)
    ambiguous, _ = assign(step, centers)
    assert ambiguous < 10
    scores = float16_scores(step, centers)
    lost = scores.max(axis=1) - scores[np.arange(n), step.labels]
    # The sum of d products in float32, and of ‖c‖²/2.
    assert lost.max() <= (d + 2) * 2**-23 * abs(scores).max()


@pytest.mark.parametrize(("d", "k"), [(3, 2), (40, 33)])
def test_lists_that_warps_rescore_in_several_turns(d, k, rng):
    X, centers = blobs(6000, d, k, rng, apart=0.5)
    X[::3] = (centers[0] + centers[1]) / 2  # undecided, among others that are not
    step = step_of(X, k, KINDS[0], multiprocessors=1)
    for now in (centers, centers[::-1].copy()):
        ambiguous, _ = assign(step, now)
        assert ambiguous >= 1000
        assert_right(step, now)


@pytest.mark.parametrize("kind", [KINDS[0], KINDS[3]], ids=["float32", "float64"])
def test_what_float16_cannot_hold(kind, rng):
    X, centers = blobs(300, 16, 9, rng)
    X[7] *= 1e9  # infinite in float16
    X[8:40] *= 1e-9  # zero, nearly
    X[40:80] = X[40]  # the same sample
    X[80:90] = (centers[0] + centers[1]) / 2  # between two centers, but for rounding
    # Scaled by what most rows are like.
    step = step_of(X, 9, KINDS[2] if kind[0] == "float32" else kind, middle=float(np.sqrt((X[90:] ** 2).mean())))
    assign(step, centers)
    assert_right(step, centers)


@pytest.mark.parametrize("away", [30.0, 1e3, 1e7])
def test_without_certification_a_sample_far_away_keeps_its_center(away, rng):
    X, centers = blobs(300, 40, 33, rng)
    X[5] = away * X[6]
    centers[7] = X[5]
    step = step_of(X, 33, KINDS[3], certifies=False, middle=float(np.sqrt((X[:5] ** 2).mean())))
    assign(step, centers)
    assert step.labels[5] == 7


@pytest.mark.parametrize("near", [1e-5, 1e-6, 1e-7])
def test_centers_next_to_the_mean(near, rng):
    """Elements of centers are subnormal in float16: their error is absolute, and large relative to the centers."""
    X, centers = rng.standard_normal((400, 100)), near * rng.standard_normal((33, 100))
    step = step_of(X, 33, KINDS[0])
    assign(step, centers)
    assert_right(step, centers)


@pytest.mark.parametrize("away", [30.0, 1e3, 1e7])
def test_a_center_far_away_widens_no_bound(away, rng):
    X, centers = blobs(700, 40, 33, rng)
    X -= X.mean(axis=0)
    X[5] = away * X[6]  # its cluster
    centers[7] = X[5]
    # With −X the outliers leave the mean where it is. Scaled by what most rows are like.
    step = step_of(np.concatenate([X, -X]), 33, KINDS[3], middle=float(np.sqrt((X[:5] ** 2).mean())))
    ambiguous, _ = assign(step, centers)
    assert_right(step, centers)
    assert step.labels[5] == 7
    assert ambiguous < len(step.labels) // 10


def test_second_parts_of_centers(rng):
    """Two parts leave 2⁻²² of each element, or what is next to zero in float16, and `lost` says how much in all."""
    X, centers = blobs(50, 2050, 9, rng)
    centers[3, :7] = 0, 1e-9, 2.0**-24, 1, 1 / 3, -1e3, 4e3
    centers[4] = 1e6  # infinite in float16
    step = step_of(X, 9, KINDS[3])
    place(step, centers)
    scaled, halves = centers * float(step.half_copy.scale), step.buffers.centers_half
    first, second = halves[:9, :2050].astype(np.float64), halves[16:25, :2050].astype(np.float64)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(halves[:9, :2050], scaled.astype(np.float32).astype(np.float16))
    finite = np.isfinite(first)
    assert not second[~finite].any()
    lost = np.where(finite, scaled - first - second / 2048, np.inf)
    assert (abs(lost[finite]) <= np.maximum(abs(scaled[finite]) * 2.0**-22, 2.0**-36)).all()
    np.testing.assert_allclose(step.buffers.found[:, 1], (lost * lost).sum(axis=1), rtol=1e-12)
    assert not halves[9:16].any()
    assert not halves[:, 2050:].any()


def scaled_naturally(X, k):
    """Return a step over float64 data whose half copy is 16 times the data."""
    step = step_of(X, k, KINDS[3], middle=1.0)
    assert step.half_copy.scale == 16
    return step


def of_shape(X, centers, d, k):
    """Return the same samples and centers with more features, which are all 0, and the last center again and again."""
    X, centers = (np.pad(one, ((0, 0), (0, d - one.shape[1]))) for one in (X, centers))
    return X, np.pad(centers, ((0, k - len(centers)), (0, 0)), mode="edge")


@pytest.mark.parametrize(("d", "k"), [(3, 2), (300, 5), pytest.param(2050, 9, marks=pytest.mark.exhaustive)])
def test_products_that_would_overflow(d, k):
    X = np.zeros((400, 1))
    X[:, 0] = 1000 + np.linspace(-0.1, 0.1, 400)  # about the middle of two centers, both far away
    X, centers = of_shape(X, np.array([[750.0], [1250]]), d, k)
    step = scaled_naturally(X, k)
    assign(step, centers)
    assert_right(step, centers)


@pytest.mark.parametrize(("d", "k"), [(3, 2), (300, 5), pytest.param(2050, 9, marks=pytest.mark.exhaustive)])
def test_centers_that_float16_cannot_hold(d, k, rng):
    centers = np.array([[-5, -65000, -20000], [66000, 0, 0]]) / 16
    X, centers = of_shape(rng.standard_normal((500, 3)), centers, d, k)
    step = scaled_naturally(X, k)
    assign(step, centers)
    assert_right(step, centers)


@pytest.mark.parametrize(("d", "k"), [(300, 5), (2050, 9)])
def test_of_long_rows_each_center_has_a_bound_of_its_own(d, k, rng):
    """A center of one sample is as long as a sample; the others are means, much nearer to zero and to each other."""
    X, centers = rng.standard_normal((700, d)), rng.standard_normal((k, d)) / np.sqrt(d)
    centers[0] = X[5]
    step = step_of(X, k, KINDS[0])
    ambiguous, _ = assign(step, centers)
    assert_right(step, centers)
    half_copy, plan = step.half_copy, assign_plan(700, d, k, step.data.gpu)
    scaled = centers.astype(np.float32).astype(np.float64) * float(half_copy.scale)
    parts = scaled.astype(np.float16).astype(np.float64)
    if parts_of(plan, k) > 1:
        parts += ((scaled - parts) * 2048).astype(np.float16).astype(np.float64) / 2048
    of_norm, of_lost = error_coefficients_of(plan, d, k, float(half_copy.rounding))
    norms, lost = (np.linalg.norm(some, axis=1) for some in (scaled, scaled - parts))
    expected = of_norm * norms + of_lost * lost
    coefficients = step.buffers.offsets[step.layout.columns_of(k) :]
    assert (coefficients[:k] >= expected).all()
    np.testing.assert_allclose(coefficients[:k], expected, rtol=1e-3)
    assert not coefficients[k:].any()
    # What cannot be told apart by so much, and with the longest center's bound for all.
    scores = (float(half_copy.scale) * centered(step.data).astype(np.float64)) @ scaled.T - norms**2 / 2
    own, longest = (
        np.count_nonzero((scores + errors >= (scores - errors).max(axis=1)[:, np.newaxis]).sum(axis=1) > 1)
        for errors in (half_copy.norms[:, np.newaxis] * some for some in (expected, np.full(k, expected.max())))
    )
    assert longest > 3 * own + 20
    assert own // 2 <= ambiguous <= own + own // 4 + 5


def test_far_off_center_and_equal_centers(rng):
    X, centers = blobs(400, 40, 33, rng)
    X, centers = X + 1e4, centers + 1e4
    centers[5] = centers[2]
    step = step_of(X, 33, KINDS[0], mean=X.mean(axis=0))
    centers = centers.astype(np.float32) - step.data.shift
    assign(step, centers)
    assert_right(step, centers)
    assert not (step.labels == 5).any()  # the lower of equals


@pytest.mark.each_choice
@pytest.mark.parametrize("sorts", [False, True], ids=["n_reassigned", "sorted"])
@pytest.mark.parametrize("kind", [KINDS[0], KINDS[1], KINDS[3]], ids=lambda kind: "-".join(map(str, kind)))
@pytest.mark.parametrize(("d", "k"), [(3, 2), (40, 33), (300, 5)])
def test_iterations_without_the_host(d, k, kind, sorts, rng):
    n = 400
    X, _ = blobs(n, d, k, rng, apart=1.0)
    weights = rng.random(n) + 0.5 if kind[2] else None
    step = step_of(X, k, kind, weights, X.mean(axis=0))
    place(step, centered(step.data)[:k])  # no cluster is empty
    for count in range(4):
        before = step.labels.copy()
        with sorting(sorts):
            centers, outcome, following = iterate_once(step, count)
        assert_right(step, centers)
        n_reassigned = np.count_nonzero(before != step.labels)
        assert_iterated(step, centers, outcome, following, n_reassigned)
        assert not step.buffers.counts.any()
        assert not step.buffers.n_reassigned.any()
        if outcome["stop"]:
            break


def test_an_empty_cluster_stops_iterations(rng):
    X, _ = blobs(200, 16, 9, rng)
    step = step_of(X, 9, KINDS[0])
    place(step, np.concatenate([X[:8], np.full((1, 16), 1e3)]))
    _, outcome, _ = iterate_once(step, 0)
    assert outcome["empty"]
    assert outcome["stop"]
    assert step.buffers.stopped[0]
    assert sorted(set(step.labels.tolist())) == list(range(8))


def test_stops(rng):
    X, _ = blobs(200, 40, 33, rng)
    step = step_of(X, 33, KINDS[0])
    place(step, X[:33])
    _, outcome, following = iterate_once(step, 0, tolerance=np.inf)
    assert not outcome["empty"]
    assert outcome["stop"] == 1
    assert step.buffers.stopped[0] == 1
    labels, sums = step.labels.copy(), step.buffers.sums.copy()
    # What follows does nothing.
    for sorts in (False, True):
        with sorting(sorts):
            assert assign_placed(step, following + 5, ambiguous_rows) == (0, 0)
        assert (step.labels == labels).all()
        assert (step.buffers.sums == sums).all()


@pytest.mark.exhaustive
def test_more_rows_of_a_block_than_digits_add_up_in_32_bits():
    n = 420_000
    X = np.full((n, 1), np.nextafter(np.float32(1), np.float32(0)))
    step = step_of(X, 1, KINDS[0])
    assert assign(step, np.ones((1, 1))) == (0, n)
    assert step.buffers.sums.tolist() == [[n * (2**30 - 64), n]]


@property_test(
    3,
    40,
    shape=st.sampled_from(SHAPES),
    kind=st.sampled_from([kind for kind in KINDS if not kind[2]]),
    n=st.integers(1, 300),
    grain=st.sampled_from([None, 1.0, 0.25]),
    sorts=st.lists(st.booleans(), min_size=2, max_size=2),
    seed=st.integers(0, 2**16),
)
def test_any_data(shape, kind, n, grain, sorts, seed):
    d, k = shape
    rng = np.random.default_rng(seed)
    X, centers = blobs(n, d, k, rng, apart=rng.choice([0.1, 1.0, 30.0]))
    if grain:  # many ties
        X, centers = np.round(X / grain) * grain, np.round(centers / grain) * grain
    step = step_of(X, k, kind)
    with harness.schedule(seed=seed, copies="early" if seed % 2 else "late"):
        for now, sorted_ in zip((centers, centers[::-1].copy()), sorts, strict=True):
            assign(step, now, sorts=sorted_)
            assert_right(step, now)
