"""The fused engine's kernels, their own source run on the CPU: labels against float64, sums against integers."""

from itertools import pairwise

import numpy as np
import pytest
from exhaustive import property_test
from host_cuda import harness
from host_cuda.fused_kmeans import KINDS, SHAPES, Iterations, blobs
from host_cuda.tall_skinny import DTYPES
from hypothesis import strategies as st

from tsapps.apps.kmeans.assign.plan import error_coefficients_of
from tsapps.apps.kmeans.data.plan import half_copy_scale


def test_by_hand():
    X = np.array([[0.0, 0, 0], [1, 0, 0], [4, 0, 0], [3, 0, 0], [2, 0, 0]])
    centers = np.array([[0.5, 0, 0], [3.5, 0, 0]])
    of = Iterations(X, 2, KINDS[0])
    _, n_reassigned = of.iterate(centers)
    # The last lies in the middle, and goes to the first.
    assert of.labels.tolist() == [0, 0, 1, 1, 0]
    assert n_reassigned == 5
    assert (of.sums[:, 0] / of.scales[0]).tolist() == [3.0, 7.0]
    assert of.sums[:, 3].tolist() == [3, 2]
    ambiguous, n_reassigned = of.iterate(centers)
    assert (ambiguous, n_reassigned) == (1, 0)  # the one in the middle
    assert of.iterate(np.array([[0.0, 0, 0], [2.5, 0, 0]])) == (0, 1)
    assert of.labels.tolist() == [0, 0, 1, 1, 1]
    assert (of.sums[:, 0] / of.scales[0]).tolist() == [1.0, 9.0]


@pytest.mark.each_choice
# Fewer rows than a warp has groups of lanes, and than a tile; one more than some tiles; more than the grid at once.
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 17, 33, 64, 129, 700])
@pytest.mark.parametrize("kind", [KINDS[0], *KINDS[3:]], ids=lambda kind: "-".join(map(str, kind)))
@pytest.mark.parametrize(("d", "k"), SHAPES)
def test_shadow(d, k, kind, n, rng):
    X, _ = blobs(n, d, k, rng)
    of = Iterations(X, k, kind, mean=X.mean(axis=0))
    wanted = of.centered * of.work(of.scale)
    found = of.half_copy[:, :d].astype(np.float64)
    # To float16 by way of float32.
    np.testing.assert_array_equal(of.half_copy[:, :d], wanted.astype(np.float32).astype(np.float16))
    assert not of.half_copy[:, d:].any()
    norms, lost = np.linalg.norm(found, axis=1), np.linalg.norm(wanted.astype(np.float64) - found, axis=1)
    least = np.maximum(norms, lost / of.rounding)
    assert (of.norms >= least).all()
    assert (of.norms <= least * 1.0005).all()


@pytest.mark.each_choice
@pytest.mark.parametrize("sorts", [False, True], ids=["n_reassigned", "sorted"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(map(str, kind)))
@pytest.mark.parametrize(("d", "k"), SHAPES)
def test_labels_and_sums(d, k, kind, sorts, rng):
    n = 700
    X, centers = blobs(n, d, k, rng)
    weights = rng.random(n) * 3 if kind[2] else None
    X = X.astype(DTYPES[kind[0]]).astype(np.float64)
    of = Iterations(X, k, kind, weights, X.mean(axis=0))
    of.sorts = sorts
    centers = centers - X.mean(axis=0)
    later = [centers + scale * rng.standard_normal(centers.shape) for scale in (0, 0.05, 0.5)]
    for step, now in enumerate(later):
        before = of.labels.copy()
        ambiguous, n_reassigned = of.iterate(now)
        of.assert_right(now)
        assert n_reassigned == np.count_nonzero(before != of.labels)
        assert step or n_reassigned == n
        # The bound leaves few rows undecided where features are many; one feature has float16's whole error.
        assert ambiguous <= n // 4
    assert all((earlier != now).any() for earlier, now in pairwise(later))


def test_without_a_proof_by_hand():
    # The middle is at 1 + 0.8·2⁻¹⁰, past the sample, whose copy in float16 is 1 + 2⁻¹⁰, past the middle.
    centers = np.array([[1.6 * 2**-10, 0, 0], [2, 0, 0]])
    X = np.array([[1 + 0.7 * 2**-10, 0, 0], [0, 0, 0], [2, 0, 0]])
    of = Iterations(X, 2, KINDS[0])
    ambiguous, _ = of.iterate(centers)
    assert (ambiguous, of.labels.tolist()) == (1, [0, 0, 1])
    of.prove_nothing()
    ambiguous, n_reassigned = of.iterate(centers)
    assert (ambiguous, n_reassigned, of.labels.tolist()) == (0, 1, [1, 0, 1])
    np.testing.assert_array_equal(of.sums[:, 3], [1, 2])
    assert of.sums[1, 0] / of.scales[0] == X[[0, 2], 0].astype(np.float32).sum(dtype=np.float64)


@pytest.mark.parametrize(("d", "k"), SHAPES)
def test_without_a_proof_labels_are_the_best_float16_scores(d, k, rng):
    X, centers = blobs(700, d, k, rng)
    of = Iterations(X, k, KINDS[0], mean=X.mean(axis=0))
    of.prove_nothing()
    centers = centers - X.mean(axis=0)
    ambiguous, _ = of.iterate(centers)
    assert ambiguous < 10
    scores = of.float16_scores(centers)
    lost = scores.max(axis=1) - scores[np.arange(700), of.labels]
    # The sum of d products in float32, and of ‖c‖²/2.
    assert lost.max() <= (d + 2) * 2**-23 * abs(scores).max()


@pytest.mark.parametrize(("d", "k"), [(3, 2), (40, 33)])
def test_lists_that_warps_decide_in_several_turns(d, k, rng):
    X, centers = blobs(6000, d, k, rng, apart=0.5)
    X[::3] = (centers[0] + centers[1]) / 2  # undecided, among others that are not
    of = Iterations(X, k, KINDS[0])
    for now in (centers, centers[::-1].copy()):
        ambiguous, _ = of.iterate(now)
        assert ambiguous >= 1000
        of.assert_right(now)


@pytest.mark.parametrize("kind", [KINDS[0], KINDS[3]], ids=["float32", "float64"])
def test_what_float16_cannot_hold(kind, rng):
    X, centers = blobs(300, 16, 9, rng)
    X[7] *= 1e9  # infinite in float16
    X[8:40] *= 1e-9  # zero, nearly
    X[40:80] = X[40]  # the same sample
    X[80:90] = (centers[0] + centers[1]) / 2  # between two centers, but for rounding
    of = Iterations(X, 9, KINDS[2] if kind[0] == "float32" else kind)
    of.iterate(centers)
    of.assert_right(centers)


@pytest.mark.parametrize("away", [30.0, 1e3, 1e7])
def test_without_a_proof_a_sample_far_away_keeps_its_center(away, rng):
    X, centers = blobs(300, 40, 33, rng)
    X[5] = away * X[6]
    centers[7] = X[5]
    of = Iterations(X, 33, KINDS[3])
    of.make_half_copy(half_copy_scale(float(np.sqrt((X[:5] ** 2).mean()))))
    of.prove_nothing()
    of.iterate(centers)
    assert of.labels[5] == 7


@pytest.mark.parametrize("away", [30.0, 1e3, 1e7])
def test_a_center_far_away_widens_no_bound(away, rng):
    X, centers = blobs(700, 40, 33, rng)
    X -= X.mean(axis=0)
    X[5] = away * X[6]  # its cluster
    centers[7] = X[5]
    of = Iterations(np.concatenate([X, -X]), 33, KINDS[3])  # so that the outliers leave the mean where it is
    # Scaled by what most rows are like.
    of.make_half_copy(half_copy_scale(float(np.sqrt((X[:5] ** 2).mean()))))
    ambiguous, _ = of.iterate(centers)
    of.assert_right(centers)
    assert of.labels[5] == 7
    assert ambiguous < of.n // 10


def test_second_parts_of_centers(rng):
    """Two parts leave 2⁻²² of each element, or what is next to zero in float16, and `lost` says how much in all."""
    X, centers = blobs(50, 2050, 9, rng)
    centers[3, :7] = 0, 1e-9, 2.0**-24, 1, 1 / 3, -1e3, 4e3
    centers[4] = 1e6  # infinite in float16
    of = Iterations(X, 9, KINDS[3])
    of.iterate(centers)
    scaled = centers * of.scale
    first, second = of.centers_half[:9, :2050].astype(np.float64), of.centers_half[16:25, :2050].astype(np.float64)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(of.centers_half[:9, :2050], scaled.astype(np.float32).astype(np.float16))
    finite = np.isfinite(first)
    assert not second[~finite].any()
    lost = np.where(finite, scaled - first - second / 2048, np.inf)
    assert (abs(lost[finite]) <= np.maximum(abs(scaled[finite]) * 2.0**-22, 2.0**-36)).all()
    np.testing.assert_allclose(of.found[:, 1], (lost * lost).sum(axis=1), rtol=1e-12)
    assert not of.centers_half[9:16].any()
    assert not of.centers_half[:, 2050:].any()


def scaled_naturally(X, k):
    """Iterations of float64 data whose shadow is 16 times the data."""
    of = Iterations(X, k, KINDS[3])
    of.make_half_copy(16.0)
    return of


def of_shape(X, centers, d, k):
    """Return the same samples and centers with more features, which are all 0, and the last center again and again."""
    X, centers = (np.pad(one, ((0, 0), (0, d - one.shape[1]))) for one in (X, centers))
    return X, np.pad(centers, ((0, k - len(centers)), (0, 0)), mode="edge")


@pytest.mark.parametrize(("d", "k"), [(3, 2), (300, 5), (2050, 9)])
def test_products_that_would_overflow(d, k, rng):
    X = np.zeros((400, 1))
    X[:, 0] = 1000 + np.linspace(-0.1, 0.1, 400)  # about the middle of two centers, both far away
    X, centers = of_shape(X, np.array([[750.0], [1250]]), d, k)
    of = scaled_naturally(X, k)
    of.iterate(centers)
    of.assert_right(centers)


@pytest.mark.parametrize(("d", "k"), [(3, 2), (300, 5), (2050, 9)])
def test_centers_that_float16_cannot_hold(d, k, rng):
    centers = np.array([[-5, -65000, -20000], [66000, 0, 0]]) / 16
    X, centers = of_shape(rng.standard_normal((500, 3)), centers, d, k)
    of = scaled_naturally(X, k)
    of.iterate(centers)
    of.assert_right(centers)


@pytest.mark.parametrize(("d", "k"), [(300, 5), (2050, 9)])
def test_of_long_rows_each_center_has_a_bound_of_its_own(d, k, rng):
    """A center of one sample is as long as a sample; the others are means, much nearer to zero and to each other."""
    X, centers = rng.standard_normal((700, d)), rng.standard_normal((k, d)) / np.sqrt(d)
    centers[0] = X[5]
    of = Iterations(X, k, KINDS[0])
    ambiguous, _ = of.iterate(centers)
    of.assert_right(centers)
    scaled = centers.astype(np.float32).astype(np.float64) * of.scale
    parts = scaled.astype(np.float16).astype(np.float64)
    if of.parts > 1:
        parts += ((scaled - parts) * 2048).astype(np.float16).astype(np.float64) / 2048
    of_norm, of_lost = error_coefficients_of(of.plan_of_product, d, k, of.rounding)
    norms, lost = (np.linalg.norm(some, axis=1) for some in (scaled, scaled - parts))
    error_coefficients = of_norm * norms + of_lost * lost
    assert (of.error_coefficients[:k] >= error_coefficients).all()
    np.testing.assert_allclose(of.error_coefficients[:k], error_coefficients, rtol=1e-3)
    assert not of.error_coefficients[k:].any()
    # What cannot be told apart by so much, and with the longest center's bound for all.
    scores = (of.scale * of.centered.astype(np.float64)) @ scaled.T - norms**2 / 2
    own, longest = (
        np.count_nonzero((scores + errors >= (scores - errors).max(axis=1)[:, np.newaxis]).sum(axis=1) > 1)
        for errors in (
            of.norms[:, np.newaxis] * some for some in (error_coefficients, np.full(k, error_coefficients.max()))
        )
    )
    assert longest > 3 * own + 20
    assert own // 2 <= ambiguous <= own + own // 4 + 5


def test_far_off_center_and_equal_centers(rng):
    X, centers = blobs(400, 40, 33, rng)
    X, centers = X + 1e4, centers + 1e4
    centers[5] = centers[2]
    of = Iterations(X, 33, KINDS[0], mean=X.mean(axis=0))
    centers = centers.astype(np.float32) - of.mean
    of.iterate(centers)
    of.assert_right(centers)
    assert not (of.labels == 5).any()  # the lower of equals


@pytest.mark.each_choice
@pytest.mark.parametrize("sorts", [False, True], ids=["n_reassigned", "sorted"])
@pytest.mark.parametrize("kind", [KINDS[0], KINDS[1], KINDS[3]], ids=lambda kind: "-".join(map(str, kind)))
@pytest.mark.parametrize(("d", "k"), [(3, 2), (40, 33), (300, 5)])
def test_iterations_without_the_host(d, k, kind, sorts, rng):
    n = 600
    X, centers = blobs(n, d, k, rng, apart=1.0)
    weights = rng.random(n) + 0.5 if kind[2] else None
    of = Iterations(X, k, kind, weights, X.mean(axis=0))
    of.sorts = sorts
    centers = (centers - X.mean(axis=0)).astype(of.work)
    _, n_reassigned = of.iterate(centers)
    for _ in range(3):
        outcome, following = of.update_centers(centers, n_reassigned)
        if outcome["empty"]:
            assert outcome["stop"]
            assert len(set(of.labels.tolist())) < k
            return
        of.assert_advanced(centers, n_reassigned, outcome, following)
        centers = following
        _, n_reassigned = of.move_rows(centers)
        of.assert_right(centers)


def test_stops(rng):
    X, centers = blobs(200, 40, 33, rng)
    of = Iterations(X, 33, KINDS[0])
    _, n_reassigned = of.iterate(centers)
    if (np.bincount(of.labels, minlength=33) == 0).any():
        centers = X[:33].copy()
        _, n_reassigned = of.iterate(centers)
    outcome, following = of.update_centers(centers, n_reassigned, tolerance=np.inf)
    assert outcome["stop"] == 1
    assert of.stopped[0] == 1
    labels, sums = of.labels.copy(), of.sums.copy()
    # What follows does nothing.
    for sorts in (False, True):
        of.sorts = sorts
        assert of.move_rows(following + 5, stopped=1) == (0, 0)
        assert (of.labels == labels).all()
        assert (of.sums == sums).all()


@pytest.mark.exhaustive
def test_more_rows_of_a_block_than_digits_add_up_in_32_bits():
    n = 420_000
    X = np.full((n, 1), np.nextafter(np.float32(1), np.float32(0)))
    of = Iterations(X, 1, KINDS[0])
    assert of.iterate(np.ones((1, 1))) == (0, n)
    assert of.sums.tolist() == [[n * (2**30 - 64), n]]


@property_test(
    8,
    25,
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
    of = Iterations(X, k, kind)
    with harness.schedule(seed=seed, copies="early" if seed % 2 else "late"):
        for now, of.sorts in zip((centers, centers[::-1].copy()), sorts, strict=True):
            of.iterate(now)
            of.assert_right(now)
