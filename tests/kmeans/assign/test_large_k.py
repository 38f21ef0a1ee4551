"""The fused engine's kernels for many clusters, their own source run on the CPU."""

from dataclasses import replace

import numpy as np
import pytest
from exhaustive import every, property_test
from host_cuda import harness
from host_cuda.fused_kmeans import BLOCKS, KINDS, blobs
from host_cuda.many_kmeans import IterationsOfMany
from host_cuda.tall_skinny import DTYPES
from hypothesis import strategies as st

from tsapps.apps.kmeans.assign.large_k_plan import StreamPlan, stream_plan
from tsapps.kernels.gpu_specs import KNOWN

H200 = KNOWN["H200"]
#: d and a plan: rows that stay in turns of one chunk and of several, and rows that stream by.
STAYS, STAYS_IN_PARTS, STREAMS = (
    (100, StreamPlan(7, 1, 4, 5, 2)),
    (50, StreamPlan(2, 2, 3, 3, 4)),
    (70, StreamPlan(1, 5, 2, 3, 5, 200, stays=False)),
)
PLANS = [STAYS, STAYS_IN_PARTS, STREAMS]


def test_by_hand():
    """Center j at j, on a line: a sample goes to the integer next to it, and of two as near to the lower."""
    k = 300
    centers, X = np.zeros((k, 3)), np.zeros((700, 3))
    centers[:, 1] = np.arange(k)
    X[:, 1] = np.arange(700) % k + np.where(np.arange(700) % 2, 0.25, -0.25)
    X[699, 1] = 41.5
    of = IterationsOfMany(X, k, KINDS[3], StreamPlan(1, 1, 2, 3, 2))
    _, n_reassigned = of.iterate(centers)
    assert n_reassigned == 700
    expected = np.arange(700) % k
    expected[699] = 41
    assert of.labels.tolist() == expected.tolist()
    assert (of.sums[:, 3] == np.bincount(expected, minlength=k) * of.scales[3]).all()
    assert of.sums[0, 1] / of.scales[1] == -0.75  # samples 0, 300 and 600
    assert of.iterate(centers)[1] == 0


def test_without_a_proof_by_hand():
    # As in test_fused_kernels.py; the other centers lie on a circle about the line.
    k, angles = 150, np.linspace(0, 6, 148)
    centers = np.zeros((k, 3))
    centers[:2, 0] = 1.6 * 2**-10, 2
    centers[2:, 1:] = 3 * np.transpose([np.cos(angles), np.sin(angles)])
    X = np.array([[1 + 0.7 * 2**-10, 0, 0], [0, 0, 0], [2, 0, 0], centers[70]])
    of = IterationsOfMany(X, k, KINDS[2], StreamPlan(1, 1, 2, 3, 2))
    of.iterate(centers)
    assert of.labels.tolist() == [0, 0, 1, 70]
    of.prove_nothing()
    ambiguous, n_reassigned = of.iterate(centers)
    assert (ambiguous, n_reassigned, of.labels.tolist()) == (0, 1, [1, 0, 1, 70])


@pytest.mark.parametrize(("d", "plan"), PLANS, ids=["stays", "in parts", "streams"])
def test_without_a_proof_labels_are_the_best_float16_scores(d, plan, rng):
    n, k = 500, 200
    X, centers = blobs(n, d, k, rng, apart=0.7)
    of = IterationsOfMany(X, k, KINDS[0], plan, mean=X.mean(axis=0))
    of.prove_nothing()
    centers = centers - X.mean(axis=0)
    ambiguous, _ = of.iterate(centers)
    assert ambiguous < 10
    scores = of.float16_scores(centers)
    lost = scores.max(axis=1) - scores[np.arange(n), of.labels]
    assert lost.max() <= (d + 2) * 2**-23 * abs(scores).max()


@pytest.mark.each_choice
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(map(str, kind)))
@pytest.mark.parametrize(("d", "plan"), PLANS, ids=["stays", "in parts", "streams"])
def test_labels_and_sums(d, plan, kind, rng):
    n, k = 500, 200
    X, centers = blobs(n, d, k, rng, apart=0.7)
    weights = rng.random(n) * 3 if kind[2] else None
    X = X.astype(DTYPES[kind[0]]).astype(np.float64)
    of = IterationsOfMany(X, k, kind, plan, weights, X.mean(axis=0))
    centers = centers - X.mean(axis=0)
    for scale in (0, 0.05, 0.5):
        now = centers + scale * rng.standard_normal(centers.shape)
        before = of.labels.copy()
        ambiguous, n_reassigned = of.iterate(now)
        of.assert_right(now)
        assert n_reassigned == np.count_nonzero(before != of.labels)
        assert ambiguous <= n // 4


@pytest.mark.parametrize(
    ("equal", "step"),
    every(3, [(2, 1), (11, 1), (200, 1), (12, 1), (2, 128), (3, 128), (4, 128), (12, 128)], unpacked=True),
)
def test_ties(equal, step, rng):
    """Centers that are the same, next to each other and 128 apart, where one lane has all of them: the lowest wins."""
    k = max(200, step * (equal - 1) + 40)
    d, plan = STAYS
    X, centers = blobs(150, d, k, rng, apart=0.5)
    places = np.arange(equal) * step
    X[:100] = centers[places[-1]] + 0.1 * rng.standard_normal((100, d))
    centers[places] = centers[places[-1]]
    of = IterationsOfMany(X, k, KINDS[0], plan)
    of.iterate(centers)
    of.assert_right(centers)
    assert (of.labels[:100] == 0).all()
    known = of.candidates[: np.count_nonzero(of.candidates == equal)]
    assert len(known) >= 100 if equal <= (11 if step == 1 else 3) else (of.candidates == 0).sum() >= 100


def test_what_float16_cannot_hold(rng):
    d, plan = STAYS
    X, centers = blobs(300, d, 150, rng)
    X[7] *= 1e9  # infinite in float16
    X[8:40] *= 1e-9
    X[40:80] = X[40]
    X[80:90] = (centers[0] + centers[149]) / 2
    centers[100] *= 1e7  # far away
    of = IterationsOfMany(X, 150, KINDS[3], plan)
    of.iterate(centers)
    of.assert_right(centers)


def test_scores_below_zero(rng):
    """Of samples nearer to the mean than to any center, no score x·c − ‖c‖²/2 is above zero but by its level."""
    d, plan = STAYS
    centers = rng.standard_normal((150, d))
    X = 0.3 * rng.standard_normal((300, d)) + 0.2 * centers[rng.integers(0, 150, 300)]
    of = IterationsOfMany(X, 150, KINDS[0], plan)
    ambiguous, _ = of.iterate(centers)
    assert (of.float16_scores(centers).max(axis=1) < 0).mean() > 0.9
    assert ambiguous <= 30
    of.assert_right(centers)


@pytest.mark.parametrize("largest", every(2, [22_820, 22_840, 22_900, 32_000]))
def test_centers_so_large_that_scores_are_too(largest, rng):
    """−‖c‖²/2 of one center is 2²⁸ and more, and so are the levels; the nearest are two of much smaller ones."""
    d, k = 50, 200
    X = rng.standard_normal((600, d))
    centers = rng.standard_normal((k, d))
    centers *= 3000 / np.linalg.norm(centers, axis=1)[:, np.newaxis]
    centers[[0, 130]] = 0
    centers[0, 0] = centers[130, 1] = 700
    centers[199] = np.append([0, 0], np.full(d - 2, largest / np.sqrt(d - 2)))
    of = IterationsOfMany(X, k, KINDS[0], StreamPlan(4, 1, 2, 3, 2))
    of.iterate(centers / of.scale)
    of.assert_right((centers / of.scale).astype(np.float32))


def test_without_a_proof_scores_below_zero(rng):
    """Samples on the other side of all centers: no score is above zero, and few are compared with all centers."""
    d, k = 50, 200
    X = rng.standard_normal((400, d))
    X[:, 0] += np.where(np.arange(400) % 2, 20.0, -20.0)
    centers = rng.standard_normal((k, d))
    centers[:, 0] += 20
    plan = stream_plan(d, k, H200, certifies=False)
    assert not plan.levels
    of = IterationsOfMany(X, k, KINDS[0], replace(plan, stages_a=4, stages_b=2))
    of.prove_nothing()
    ambiguous, _ = of.iterate(centers)
    assert ambiguous < 20


@pytest.mark.parametrize("n", every(3, [1, 63, 64, 65, 255, 257, 900]))
def test_any_number_of_samples(n, rng):
    d, plan = STAYS_IN_PARTS
    X, centers = blobs(n, d, 129, rng)
    of = IterationsOfMany(X, 129, KINDS[0], plan)
    for now in (centers, centers[::-1].copy()):
        of.iterate(now)
        of.assert_right(now)


@pytest.mark.each_choice
@pytest.mark.parametrize("copies", ["early", "late"])
@pytest.mark.parametrize("k", every(2, [70, 150]))
@pytest.mark.parametrize(
    "plan",
    every(
        2,
        [
            StreamPlan(4, 1, 2, 3, 2),
            StreamPlan(2, 2, 2, 3, 4),
            StreamPlan(4, 1, 3, 4, 2, 104),
            StreamPlan(4, 1, 4, 5, 2),
        ],
    ),
)
def test_warpgroups_that_begin_apart(plan, k, copies, rng):
    """Of many turns of a block, warpgroups begin with each where the centers have gone on by a part."""
    n, d = 64 * plan.groups * BLOCKS * 17 + 100, 50
    X, centers = blobs(n, d, k, rng, apart=0.7)
    of = IterationsOfMany(X, k, KINDS[0], plan)
    with harness.schedule(seed=5, copies=copies):
        of.iterate(centers)
    of.assert_right(centers)


@pytest.mark.exhaustive
def test_more_clusters_than_shared_memory_counts(rng):
    X = rng.standard_normal((150, 3))
    centers = rng.standard_normal((5000, 3))
    of = IterationsOfMany(X, 5000, KINDS[3], StreamPlan(1, 1, 2, 3, 2))
    for now in (centers, centers[::-1].copy()):
        of.iterate(now)
        of.assert_right(now)


@pytest.mark.parametrize("kind", [KINDS[0], KINDS[1]], ids=["alone", "weighted"])
def test_iterations_without_the_host(kind, rng):
    d, plan = STAYS_IN_PARTS
    n, k = 900, 70
    X, centers = blobs(n, d, k, rng, apart=1.0)
    weights = rng.random(n) + 0.5 if kind[2] else None
    of = IterationsOfMany(X, k, kind, plan, weights, X.mean(axis=0))
    centers = X[:k].astype(of.work) - of.mean
    _, n_reassigned = of.iterate(centers)
    for _ in range(3):
        outcome, following = of.update_centers(centers, n_reassigned)
        of.assert_advanced(centers, n_reassigned, outcome, following)
        centers = following
        _, n_reassigned = of.move_rows(centers)
        of.assert_right(centers)
    labels, sums = of.labels.copy(), of.sums.copy()
    assert of.move_rows(centers + 5, stopped=1) == (0, 0)
    assert (of.labels == labels).all()
    assert (of.sums == sums).all()


@property_test(
    6,
    15,
    of=st.sampled_from(PLANS),
    kind=st.sampled_from([KINDS[0], KINDS[3]]),
    n=st.integers(1, 300),
    k=st.integers(1, 270),
    grain=st.sampled_from([None, 1.0, 0.25]),
    seed=st.integers(0, 2**16),
)
def test_any_data(of, kind, n, k, grain, seed):
    d, plan = of
    rng = np.random.default_rng(seed)
    X, centers = blobs(n, d, k, rng, apart=rng.choice([0.1, 1.0, 30.0]))
    if grain:  # many ties
        X, centers = np.round(X / grain) * grain, np.round(centers / grain) * grain
    iterations = IterationsOfMany(X, k, kind, plan)
    with harness.schedule(seed=seed, copies="early" if seed % 2 else "late"):
        for now in (centers, centers[::-1].copy()):
            iterations.iterate(now)
            iterations.assert_right(now)


@pytest.mark.parametrize("k", [65, 256, 1000, 1024, 2**16])
@pytest.mark.parametrize("d", [1, 16, 17, 96, 128, 200, 256, 257, 500, 768, 4096])
def test_plans(d, k):
    plan = stream_plan(d, k, H200)
    assert d <= 16 * plan.row_panels < d + 16 * plan.chunks
    assert plan.shared_bytes <= H200.shared_memory_per_block - 1024
    assert plan.stages_b >= 2
    assert plan.threads <= 1024
    # A tile for every warpgroup, and all chunks of a column tile, so that they can take turns; or what is the last to
    # be given back is not what the next needs first.
    assert plan.stages_a >= (plan.groups if plan.stays else 2)
    assert plan.stages_b >= (plan.chunks if plan.stays else 2)
    for n in (1, 64, 65, 10**6, 2**31 - 1):
        blocks = plan.blocks(n, 132)
        assert 1 <= blocks <= 132
        assert blocks * plan.capacity(n, blocks) >= n


def test_columns_of_rows_that_stream_by():
    # What is past the last center is multiplied too; but wide tiles are read less often.
    columns = [stream_plan(768, k, H200).columns for k in (65, 104, 105, 1000, 1024, 16384)]
    assert columns == [104, 104, 128, 200, 176, 200]


def test_no_plan_where_there_are_no_warpgroups():
    assert stream_plan(128, 256, KNOWN["A100"]) is None
