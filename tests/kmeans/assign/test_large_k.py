"""Steps for large k on a HostMachine: labels against float64, sums against integers; plans of the streamed product."""

from dataclasses import replace

import numpy as np
import pytest
from exhaustive import every, property_test
from host_cuda import harness
from hypothesis import strategies as st
from kmeans.host_steps import (
    FAR_KINDS,
    KINDS,
    assert_iterated,
    assert_right,
    assign_placed,
    blobs,
    centered,
    float16_scores,
    iterate_once,
    place,
)
from kmeans.large_k_steps import (
    BLOCKS,
    PLANS,
    SPLITS,
    STAYS,
    STAYS_IN_PARTS,
    assert_labels_and_sums,
    assert_lowest_of_equal_centers,
    assert_right_whatever_the_data,
    assign,
    candidates,
    step_of,
)

from tsapps.apps.kmeans.assign.large_k_plan import StreamPlan, depth_of, stream_plan
from tsapps.kernels.gpu_specs import KNOWN

H200 = KNOWN["H200"]


def test_by_hand():
    """Center j at j, on a line: a sample goes to the integer next to it, and of two as near to the lower."""
    k = 140
    n = 450  # more than the blocks take in one turn
    centers, X = np.zeros((k, 3)), np.zeros((n, 3))
    centers[:, 1] = np.arange(k)
    X[:, 1] = np.arange(n) % k + np.where(np.arange(n) % 2, 0.25, -0.25)
    X[-1, 1] = 41.5
    step = step_of(X, k, KINDS[3], StreamPlan(1, 1, 2, 3, 2))
    _, n_reassigned = assign(step, centers)
    assert n_reassigned == n
    expected = np.arange(n) % k
    expected[-1] = 41
    assert step.labels.tolist() == expected.tolist()
    sums, scales = step.buffers.sums, step.buffers.scales
    assert (sums[:, 3] == np.bincount(expected, minlength=k) * scales[3]).all()
    assert sums[0, 1] / scales[1] == -1  # samples 0, 140, 280 and 420
    assert assign(step, centers)[1] == 0


def test_without_certification_by_hand():
    # As in test_small_k.py; float16 holds the other centers, so that the bound is of what it loses of rows.
    k = 150
    centers = np.zeros((k, 3))
    centers[:2, 0] = 1.6 * 2**-10, 2
    centers[2:, 1:] = np.transpose(np.divmod(np.arange(148) + 72, 12)) / 8
    X = np.array([[1 + 0.7 * 2**-10, 0, 0], [0, 0, 0], [2, 0, 0], centers[70]])
    certified, step = (
        step_of(X, k, KINDS[2], StreamPlan(1, 1, 2, 3, 2), certifies=certifies) for certifies in (True, False)
    )
    assign(certified, centers)
    assert certified.labels.tolist() == [0, 0, 1, 70]
    step.labels[:], step.buffers.sums[:] = certified.labels, certified.buffers.sums
    ambiguous, n_reassigned = assign(step, centers)
    assert (len(ambiguous), n_reassigned, step.labels.tolist()) == (0, 1, [1, 0, 1, 70])


@pytest.mark.parametrize(
    ("d", "plan"), every(2, PLANS, unpacked=True), ids=["stays", "in parts", "streams", "keeps all"]
)
def test_without_certification_labels_are_the_best_float16_scores(d, plan, rng):
    n, k = 300, plan.columns + 12
    X, centers = blobs(n, d, k, rng, apart=0.7)
    step = step_of(X, k, KINDS[0], plan, mean=X.mean(axis=0), certifies=False)
    centers = centers - X.mean(axis=0)
    ambiguous, _ = assign(step, centers)
    assert len(ambiguous) < 10
    scores = float16_scores(step, centers)
    lost = scores.max(axis=1) - scores[np.arange(n), step.labels]
    assert lost.max() <= (d + 2) * 2**-23 * abs(scores).max()


@pytest.mark.each_choice
@pytest.mark.parametrize("kind", [*KINDS, *FAR_KINDS], ids=lambda kind: "-".join(map(str, kind)))
@pytest.mark.parametrize(("d", "plan"), PLANS, ids=["stays", "in parts", "streams", "keeps all"])
def test_labels_and_sums(d, plan, kind, rng):
    # A row tile of every warpgroup, the last not full; the plans with fewer of them have two blocks.
    assert_labels_and_sums(d, plan, kind, 200, plan.columns + 12, 50, rng)


@pytest.mark.parametrize(
    ("equal", "stride"),
    every(3, [(2, 1), (27, 1), (200, 1), (28, 1), (2, 128), (3, 128), (4, 128), (28, 128)], unpacked=True),
)
def test_ties(equal, stride, rng):
    """Centers nearly the same, of adjacent indices and 128 apart: their rows have all of them as candidates."""
    k = max(140, stride * (equal - 1) + 40)
    d, plan = STAYS
    X, centers = blobs(150, d, k, rng, apart=0.5)
    places = np.arange(equal) * stride
    X[:100] = centers[places[-1]] + 0.1 * rng.standard_normal((100, d))
    centers[places] = centers[places[-1]] * (1 + 2.0**-22 * np.arange(equal))[:, np.newaxis]
    step = step_of(X, k, KINDS[0], plan)
    ambiguous, _ = assign(step, centers)
    assert_right(step, centers)
    listed = equal if equal <= plan.candidates else 0  # such centers have adjacent columns
    assert np.count_nonzero(ambiguous == listed) >= 100


@pytest.mark.parametrize("places", [[0, 1], [3, 139, 200], list(range(28))], ids=["two", "three", "many"])
def test_equal_centers(places, rng):
    assert_lowest_of_equal_centers(*STAYS, places, 49, rng)


@pytest.mark.parametrize("d", [100, 300, 1030], ids=["rows together", "with pruning", "row by row"])
def test_rows_as_near_to_many_centers_of_different_norms(d, rng):
    """Centers on a sphere about a point: their norms, so their column tiles, differ, but not their scores.

    Other centers have the same norms, but are far away.
    """
    k = 300
    plan = StreamPlan(7, 1, 4, 5, 2) if d == 100 else stream_plan(d, k, H200)
    middle, toward = 3 * rng.standard_normal(d), rng.standard_normal((k, d))
    toward /= np.linalg.norm(toward, axis=1)[:, None]
    centers = middle + toward
    far = rng.permutation(k)[:100]
    centers[far] = toward[far] * np.linalg.norm(centers[far], axis=1)[:, None]
    near = np.setdiff1d(np.arange(k), far)
    X = np.concatenate([middle + 1e-4 * rng.standard_normal((20, d)), centers[rng.integers(0, k, 10)]])
    step = step_of(X, k, KINDS[0], plan)
    # Without labels; then with labels, which are those of other centers.
    for order in (np.arange(k), rng.permutation(k)):
        now = (centers + 1e-4 * rng.standard_normal(centers.shape))[order]
        ambiguous, _ = assign(step, now)
        assert np.count_nonzero(ambiguous == 0) >= 16  # more candidates than a list holds
        assert_right(step, now)
        assert np.isin(order[step.labels[:20]], near).all()


@pytest.mark.parametrize("near", [1e-5, 1e-6, 1e-7])
def test_centers_next_to_the_mean(near, rng):
    """Elements of centers are subnormal in float16: their error is absolute, and large relative to the centers."""
    (d, plan), k = STAYS, 140
    X = rng.standard_normal((200, d))
    centers = near * rng.standard_normal((k, d))
    step = step_of(X, k, KINDS[0], plan)
    assign(step, centers)
    assert_right(step, centers)


@pytest.mark.each_choice
@pytest.mark.parametrize("away", [30.0, 1e3, 1e5])
@pytest.mark.parametrize(("d", "plan"), PLANS, ids=["stays", "in parts", "streams", "keeps all"])
def test_centers_far_away_widen_no_bound(d, plan, away, rng):
    n, k = 200, 300
    X, centers = blobs(n, d, k, rng)
    X[:6] *= away
    centers[40:240:40] = X[:5]
    step = step_of(np.concatenate([X, -X]), k, KINDS[0], plan, middle=float(np.sqrt((X[6:] ** 2).mean())))
    ambiguous, _ = assign(step, centers)
    assert_right(step, centers)
    assert step.labels[:5].tolist() == [40, 80, 120, 160, 200]
    assert len(ambiguous) < n // 10


def test_columns_are_in_the_order_of_the_norms(rng):
    k, (d, plan) = 300, STAYS
    X, centers = blobs(900, d, k, rng)
    centers *= np.exp(2 * rng.standard_normal(k))[:, None]
    centers[7] = centers[8]
    step = step_of(X, k, KINDS[0], plan)
    place(step, centers)
    order = step._order
    scaled = centers.astype(np.float32).astype(np.float64) * float(step.layout.placement.scale)
    norms = np.linalg.norm(scaled, axis=1).astype(np.float32)
    expected = np.lexsort((np.arange(k), norms))
    assert order.centers[:k].tolist() == expected.tolist()
    assert order.columns[expected].tolist() == list(range(k))
    # The maximum of the exact coefficients over a column tile.
    of_norm, of_lost, of_half_square, of_level = step._coefficients
    halves = scaled.astype(np.float32).astype(np.float16).astype(np.float64)
    coefficients = of_norm * norms + of_lost * np.linalg.norm(scaled - halves, axis=1)
    bounds, least = order.tile_bounds.view(np.float32).reshape(-1, 2), norms.min()
    for tile, (per_norm, always) in enumerate(bounds):
        some = expected[tile * plan.columns : (tile + 1) * plan.columns]
        assert per_norm == pytest.approx(1.001 * (coefficients[some].max() + of_level * least), rel=1e-5)
        squares = of_half_square * norms[some].max() ** 2 / 2 + of_level * least**2 / 2
        assert always == pytest.approx(1.001 * squares + 1.7e-8, rel=1e-5)


def test_what_float16_cannot_hold(rng):
    d, plan = STAYS
    X, centers = blobs(300, d, 150, rng)
    X[7] *= 1e9  # infinite in float16
    X[8:40] *= 1e-9
    X[40:80] = X[40]
    X[80:90] = (centers[0] + centers[149]) / 2
    centers[100] *= 1e7  # far away
    # Scaled by what most rows are like.
    step = step_of(X, 150, KINDS[3], plan, middle=float(np.sqrt((X[90:] ** 2).mean())))
    assign(step, centers)
    assert_right(step, centers)


def test_scores_below_zero(rng):
    """Of samples nearer to the mean than to any center, no score x·c − ‖c‖²/2 is above zero but by its level."""
    d, plan = STAYS
    centers = rng.standard_normal((150, d))
    X = 0.3 * rng.standard_normal((300, d)) + 0.2 * centers[rng.integers(0, 150, 300)]
    step = step_of(X, 150, KINDS[0], plan)
    ambiguous, _ = assign(step, centers)
    assert (float16_scores(step, centers).max(axis=1) < 0).mean() > 0.9
    assert len(ambiguous) <= 30
    assert_right(step, centers)


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
    step = step_of(X, k, KINDS[0], StreamPlan(4, 1, 2, 3, 2))
    centers = (centers / step.layout.placement.scale).astype(np.float32)
    assign(step, centers)
    assert_right(step, centers)


def test_without_certification_scores_below_zero(rng):
    """Samples on the other side of all centers: no score is above zero, and few are compared with all centers."""
    d, k = 50, 200
    X = rng.standard_normal((400, d))
    X[:, 0] += np.where(np.arange(400) % 2, 20.0, -20.0)
    centers = rng.standard_normal((k, d))
    centers[:, 0] += 20
    plan = stream_plan(d, k, H200, certifies=False)
    assert not plan.levels
    step = step_of(X, k, KINDS[0], replace(plan, stages_a=4, stages_b=2), certifies=False)
    ambiguous, _ = assign(step, centers)
    assert len(ambiguous) < 20


@pytest.mark.parametrize("n", every(3, [1, 63, 64, 65, 255, 257, 900]))
def test_any_number_of_samples(n, rng):
    d, plan = STAYS_IN_PARTS
    X, centers = blobs(n, d, 129, rng)
    step = step_of(X, 129, KINDS[0], plan)
    for now in (centers, centers[::-1].copy()):
        assign(step, now)
        assert_right(step, now)


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
    # Every stage of the rows comes with every stage of the centers.
    n, d = 64 * plan.groups * BLOCKS * (plan.stages_a * plan.stages_b + 1) + 100, 50
    X, centers = blobs(n, d, k, rng, apart=0.7)
    step = step_of(X, k, KINDS[0], plan)
    with harness.schedule(seed=5, copies=copies):
        assign(step, centers)
    assert_right(step, centers)


@pytest.mark.exhaustive
def test_more_clusters_than_shared_memory_counts(rng):
    X = rng.standard_normal((150, 3))
    centers = rng.standard_normal((5000, 3))
    step = step_of(X, 5000, KINDS[3], StreamPlan(1, 1, 2, 3, 2))
    for now in (centers, centers[::-1].copy()):
        assign(step, now)
        assert_right(step, now)


@pytest.mark.parametrize("kind", [KINDS[0], KINDS[1]], ids=["alone", "weighted"])
def test_iterations_without_the_host(kind, rng):
    d, plan = STAYS_IN_PARTS
    n, k = 600, 70
    X, _ = blobs(n, d, k, rng, apart=1.0)
    weights = rng.random(n) + 0.5 if kind[2] else None
    step = step_of(X, k, kind, plan, weights, X.mean(axis=0))
    place(step, centered(step.data)[:k])
    for count in range(4):
        before = step.labels.copy()
        centers, outcome, following = iterate_once(step, count)
        assert_right(step, centers)
        assert_iterated(step, centers, outcome, following, np.count_nonzero(before != step.labels))
        assert not step.buffers.n_reassigned.any()
    iterate_once(step, count + 1, tolerance=np.inf)
    assert step.buffers.stopped[0]
    # What follows lists no rows and moves none.
    step._lengths[:] = 0
    labels, sums = step.labels.copy(), step.buffers.sums.copy()
    ambiguous, n_reassigned = assign_placed(step, following + 5, candidates)
    assert (len(ambiguous), n_reassigned) == (0, 0)
    assert (step.labels == labels).all()
    assert (step.buffers.sums == sums).all()


@property_test(
    2,
    30,
    of=st.sampled_from([*PLANS, *SPLITS]),
    kind=st.sampled_from([KINDS[0], KINDS[3]]),
    n=st.integers(1, 300),
    k=st.integers(1, 270),
    grain=st.sampled_from([None, 1.0, 0.25]),
    seed=st.integers(0, 2**16),
)
def test_any_data(of, kind, n, k, grain, seed):
    assert_right_whatever_the_data(*of, kind, n, k, grain, seed)


def test_plans_know_sizes_of_the_kernel():
    plans = {*(plan for _, plan in PLANS + SPLITS), *(stream_plan(d, 200, H200) for d in (16, 128, 768))}
    assertions = [
        f"static_assert({name}::kSharedBytes == {plan.shared_bytes} && {name}::kThreads == {plan.threads});"
        for plan in plans
        for name in [plan.kernel.replace("gemm_wgmma_streamed", "GemmWgmmaStreamed")]
    ]
    headers = ['#include "kernels/tsm2/gemm_wgmma_streamed.cuh"', '#include "apps/kmeans/assign/large_k.cuh"']
    harness.build("\n".join([*headers, *assertions]))  # which raises if one is false


@pytest.mark.parametrize("k", [65, 256, 1000, 1024, 2**16])
@pytest.mark.parametrize("d", [1, 16, 17, 96, 128, 200, 256, 257, 500, 768, 4096])
def test_plans(d, k):
    plan = stream_plan(d, k, H200)
    assert plan.split == (d == 1 or (d == 16 and k <= 512))
    assert depth_of(d, split=plan.split) <= 16 * plan.row_panels < depth_of(d, split=plan.split) + 16 * plan.chunks
    assert plan.shared_bytes <= H200.shared_memory_per_block - 1024
    assert plan.stages_b >= 2
    assert plan.threads <= 1024
    # A tile for every warpgroup; or what is the last to be given back is not what the next needs first.
    assert plan.stages_a >= (plan.groups if plan.stays else 2)
    for n in (1, 64, 65, 10**6, 2**31 - 1):
        blocks = plan.blocks(n, 132)
        assert 1 <= blocks <= 132
        assert blocks * plan.capacity(n, blocks) >= n


def test_columns_of_rows_that_stream_by():
    # What is past the last center is multiplied too; but wide tiles are read less often.
    columns = [stream_plan(768, k, H200).columns for k in (65, 104, 105, 1000, 1024, 16384)]
    assert columns == [72, 104, 128, 200, 176, 200]


def test_no_plan_where_there_are_no_warpgroups():
    assert stream_plan(128, 256, KNOWN["A100"]) is None
