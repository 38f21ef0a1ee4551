"""Large k with all centers in shared memory, on a HostMachine: rows that are split as they are read; labels; plans."""

import numpy as np
import pytest
from exhaustive import every, property_test
from host_cuda import harness
from hypothesis import strategies as st
from kmeans.host_steps import (
    DTYPES,
    FAR_KINDS,
    KINDS,
    assert_iterated,
    assert_right,
    away_of,
    blobs,
    centered,
    iterate_once,
    place,
)
from kmeans.large_k_steps import (
    RESIDENTS,
    STAYS_IN_PARTS,
    assert_labels_and_sums,
    assert_lowest_of_equal_centers,
    assign,
    data_on_host,
    step_of,
)

from tsapps.apps.kmeans.assign.large_k_plan import ResidentPlan, StreamPlan, large_k_plan
from tsapps.apps.kmeans.engines import large_k_step
from tsapps.kernels.gpu_specs import KNOWN

H200 = KNOWN["H200"]
IDS = [f"{plan.features} features, {plan.tiles} tiles" for plan in RESIDENTS]
NAMED_KINDS = {"argvalues": [*KINDS, *FAR_KINDS], "ids": lambda kind: "-".join(map(str, kind))}


def most(plan):
    """Return the largest k of a plan. The smallest is in the last column tile too."""
    return plan.columns * plan.tiles


def few(plan):
    """Return one of the smallest k of a plan."""
    return max(65, plan.columns * (plan.tiles - 1) + 11)


def test_by_hand():
    """Center j at j, on a line: a sample goes to the integer next to it, and of two as near to the lower."""
    k, n = 140, 450
    centers, X = np.zeros((k, 3)), np.zeros((n, 3))
    centers[:, 1] = np.arange(k)
    X[:, 1] = np.arange(n) % k + np.where(np.arange(n) % 2, 0.25, -0.25)
    X[-1, 1] = 41.5
    step = step_of(X, k, KINDS[3], ResidentPlan(72, 2, 3, groups=2))
    assert assign(step, centers)[1] == n
    expected = np.arange(n) % k
    expected[-1] = 41
    assert step.labels.tolist() == expected.tolist()
    assert assign(step, centers)[1] == 0


def lane_columns(half, plan):
    """Return the four lanes' columns of every center, (columns, 4, number), from panels of all column tiles."""
    panels = half.reshape(-1, plan.row_panels, plan.columns // 8, 2, 8, 4, 2)  # …, group, half, row, lane, of a pair
    return panels.transpose(0, 2, 4, 5, 1, 3, 6).reshape(most(plan), 4, 4 * plan.row_panels).astype(np.float64)


@pytest.mark.parametrize("plan", RESIDENTS, ids=IDS)
def test_columns_of_centers(plan, rng):
    """Every lane's features in parts, and biases whose parts add up with the multipliers of rows."""
    k, d, each = most(plan) - 3, plan.features, -(-plan.features // 4)
    X, centers = blobs(100, d, k, rng)
    centers[7] *= 1e7  # excluded
    step = step_of(X, k, KINDS[0], plan)
    place(step, centers)
    scaled = (centers.astype(np.float32) * step.layout.placement.scale).astype(np.float64)
    with np.errstate(over="ignore"):
        first = scaled.astype(np.float32).astype(np.float16).astype(np.float64)
    second = (scaled - first).astype(np.float16).astype(np.float64)
    first[7] = second[7] = 0
    found = lane_columns(step.buffers.centers_half, plan)
    if plan.sorts:
        found[:k] = found[step._order.columns]
    for at, part in ((0, first), (each, first), (2 * each, second)):
        wanted = np.zeros((k, 4 * each))
        wanted[:, :d] = part
        np.testing.assert_array_equal(found[:k, :, at : at + each].reshape(k, -1), wanted)
    assert not found[..., 3 * each + 1 :].any()
    *parts, multiplier = found[..., 3 * each].T
    assert (multiplier == 2**14).all()
    bias = parts[0] * 2**14 + parts[1] * 8 + parts[2] / 256
    wanted = -(scaled**2).sum(axis=1) / 2
    wanted[7] = -np.inf
    np.testing.assert_allclose(bias[:k], wanted, rtol=2**-23)  # a float32
    assert (bias[k:] == -np.inf).all()


@pytest.mark.each_choice
@pytest.mark.parametrize("kind", **NAMED_KINDS)
@pytest.mark.parametrize("plan", RESIDENTS, ids=IDS)
def test_norms_bound_what_rows_lose(plan, kind, rng):
    n, d = 300, plan.features
    X = (blobs(n, d, 9, rng)[0] + away_of(kind)) * np.exp(rng.uniform(-6, 5, (n, 1)))
    if kind[0] != "float16":
        X[:3] *= 1e7  # infinite in float16
    data = data_on_host(X, kind, mean=X.mean(axis=0), middle=3.0)
    rows = data.split_operand(plan)
    wanted = (centered(data) * data.dtype.type(rows.placement.scale)).astype(np.float64)
    with np.errstate(over="ignore"):
        first = wanted.astype(np.float32).astype(np.float16).astype(np.float64)
    fine = np.isfinite(first).all(axis=1)
    assert (rows.norms[~fine] == np.inf).all()
    first, wanted, norms = first[fine], wanted[fine], rows.norms[fine]
    second = (wanted - first).astype(np.float32).astype(np.float16).astype(np.float64)
    lost = np.linalg.norm(wanted - first - second, axis=1)
    least = np.maximum(np.linalg.norm(first + second, axis=1), lost / (rows.rounding / 2))
    assert (norms >= least).all()
    assert (norms <= least * 1.0005).all()


@pytest.mark.each_choice
@pytest.mark.parametrize("kind", **NAMED_KINDS)
@pytest.mark.parametrize("plan", RESIDENTS, ids=IDS)
def test_labels_and_sums(plan, kind, rng):
    # More rows than the blocks take in one turn.
    assert_labels_and_sums(plan.features, plan, kind, 400, few(plan), 25, rng)


@pytest.mark.each_choice
@pytest.mark.parametrize("n", every(3, [1, 15, 63, 64, 65, 129, 900]))
@pytest.mark.parametrize("plan", RESIDENTS[:2], ids=IDS[:2])
def test_any_number_of_samples(plan, n, rng):
    X, centers = blobs(n, plan.features, 129, rng)
    step = step_of(X, 129, KINDS[0], plan)
    for now in (centers, centers[::-1].copy()):
        assign(step, now)
        assert_right(step, now)


@pytest.mark.parametrize(("equal", "stride"), every(2, [(11, 1), (2, 1), (12, 1), (60, 3), (2, 100)], unpacked=True))
def test_ties(equal, stride, rng):
    """Centers nearly the same, of the same lane, of others, and of other column tiles: all are candidates."""
    plan, k = RESIDENTS[0], 250
    X, centers = blobs(150, plan.features, k, rng, apart=0.5)
    places = np.arange(equal) * stride
    X[:100] = centers[places[-1]] + 0.1 * rng.standard_normal((100, plan.features))
    centers[places] = centers[places[-1]] * (1 + 2.0**-30 * np.arange(equal))[:, np.newaxis]
    step = step_of(X, k, KINDS[3], plan)
    ambiguous, _ = assign(step, centers)
    assert_right(step, centers)
    assert np.count_nonzero(ambiguous == (equal if equal <= plan.candidates else 0)) >= 100


@pytest.mark.each_choice
@pytest.mark.parametrize("tied", [0, 56, 61, 62])
@pytest.mark.parametrize("n", [62, 63])
def test_ties_beside_rows_beyond_the_last(n, tied, rng):
    """A row between two centers of different lanes, in a tile whose last rows are absent, is moved once."""
    plan = RESIDENTS[0]
    X, centers = (np.round(some) for some in blobs(n, plan.features, most(plan), rng, apart=30.0))
    tied = min(tied, n - 1)
    centers[3] = centers[0] + 2
    X[tied] = centers[0] + 1
    step = step_of(X, len(centers), KINDS[0], plan, middle=0.0)
    _, n_reassigned = assign(step, centers)
    assert step.labels[tied] == 0
    assert n_reassigned == n
    assert_right(step, centers)


@pytest.mark.parametrize("places", [[0, 1], [3, 139, 200], list(range(28))], ids=["two", "three", "many"])
def test_equal_centers(places, rng):
    plan = RESIDENTS[0]
    assert_lowest_of_equal_centers(plan.features, plan, places, 19, rng)


def test_a_better_center_of_a_later_tile_drops_the_candidates_of_earlier_tiles(rng):
    """Centers in the order of falling distance from all rows, so that every tile has a new best."""
    plan = RESIDENTS[2]
    k, d = most(plan), plan.features
    centers = np.outer(np.linspace(20, 1, k), rng.standard_normal(d))
    X = 0.01 * rng.standard_normal((200, d))
    step = step_of(X, k, KINDS[0], plan, middle=1.0)
    ambiguous, _ = assign(step, centers)
    assert_right(step, centers)
    assert (step.labels == k - 1).all()
    assert len(ambiguous) == 0


@pytest.mark.each_choice
@pytest.mark.parametrize("away", [30.0, 1e3, 1e5, 1e9])
@pytest.mark.parametrize("plan", RESIDENTS[:3], ids=IDS[:3])
def test_centers_far_away_widen_no_bound(plan, away, rng):
    n, k, d = 300, 200, plan.features
    X, centers = blobs(n, d, k, rng)
    X[:6] *= away
    centers[40:190:40] = X[:4]
    step = step_of(np.concatenate([X, -X]), k, KINDS[0], plan, middle=float(np.sqrt((X[6:] ** 2).mean())))
    ambiguous, _ = assign(step, centers)
    assert_right(step, centers)
    assert step.labels[:4].tolist() == [40, 80, 120, 160]
    assert len(ambiguous) < n // 10


@pytest.mark.parametrize("plan", every(2, RESIDENTS), ids=IDS)
def test_rows_that_float16_cannot_hold(plan, rng):
    """Whole warps of them have no valid score: their labels are found, also while they have none yet."""
    k, d = few(plan), plan.features
    X, centers = blobs(150, d, k, rng)
    X[64:128] *= 1e7
    centers[:2] = X[[70, 120]]
    step = step_of(X, k, KINDS[0], plan, middle=1.0)
    for now in (centers, centers[::-1].copy()):
        ambiguous, _ = assign(step, now)
        assert_right(step, now)
        assert np.count_nonzero(ambiguous == 0) >= 64


def test_scores_below_zero(rng):
    """Of samples nearer to the mean than to any center, no score x·c − ‖c‖²/2 is above zero but by its level."""
    plan, k = RESIDENTS[0], 150
    centers = 4 * rng.standard_normal((k, plan.features))
    X = 0.3 * rng.standard_normal((300, plan.features)) + 0.2 * centers[rng.integers(0, k, 300)]
    step = step_of(X, k, KINDS[0], plan)
    ambiguous, _ = assign(step, centers)
    assert_right(step, centers)
    scaled = centers * float(step.layout.placement.scale)
    scores = X * float(step.layout.placement.scale) @ scaled.T - (scaled**2).sum(axis=1) / 2
    assert (scores.max(axis=1) < 0).mean() > 0.9
    assert len(ambiguous) <= 3


@pytest.mark.parametrize("near", [1e-5, 1e-7])
def test_centers_next_to_the_mean(near, rng):
    """Elements of centers are subnormal in float16: their error is absolute, and large relative to the centers."""
    plan, k = RESIDENTS[1], 140
    X = rng.standard_normal((200, plan.features))
    centers = near * rng.standard_normal((k, plan.features))
    step = step_of(X, k, KINDS[0], plan)
    assign(step, centers)
    assert_right(step, centers)


def test_iterations_without_the_host(rng):
    plan = RESIDENTS[3]
    X, _ = blobs(600, plan.features, 70, rng, apart=1.0)
    step = step_of(X, 70, KINDS[0], plan, None, X.mean(axis=0))
    place(step, centered(step.data)[:70])
    for count in range(3):
        before = step.labels.copy()
        centers, outcome, following = iterate_once(step, count)
        assert_right(step, centers)
        assert_iterated(step, centers, outcome, following, np.count_nonzero(before != step.labels))


@pytest.mark.each_choice
@pytest.mark.parametrize("plan", [RESIDENTS[0], STAYS_IN_PARTS[1]], ids=["resident", "streamed"])
@pytest.mark.parametrize("kind", [KINDS[0], KINDS[1]], ids=["alone", "weighted"])
def test_windows_change_nothing(plan, kind, rng, monkeypatch):
    """Labels and sums of rows in windows of 128, the last with two rows, are those of all rows together."""
    n, d, k = 386, 16 if plan is RESIDENTS[0] else STAYS_IN_PARTS[0], 140
    X, centers = blobs(n, d, k, rng, apart=0.7)
    weights = rng.random(n) * 3 if kind[2] else None
    whole = step_of(X, k, kind, plan, weights, X.mean(axis=0))
    monkeypatch.setattr(large_k_step, "WINDOW", 128)
    parts = step_of(X, k, kind, plan, weights, X.mean(axis=0))
    assert len(parts._windows) == 4
    for whole.sorts, now in ((False, centers), (True, centers[::-1].copy())):
        parts.sorts = whole.sorts
        found = []
        for step in (whole, parts):
            place(step, now - X.mean(axis=0))
            for launch in step._bind_rows(step.buffers.centers[0]):
                launch()
            found.append((step.labels, step.buffers.sums, step.buffers.n_reassigned, step.ambiguous_counts()))
        for one, other in zip(*found, strict=True):
            np.testing.assert_array_equal(one, other)
        assert_right(parts, now - X.mean(axis=0))


@property_test(
    3,
    60,
    plan=st.sampled_from(RESIDENTS),
    kind=st.sampled_from([KINDS[0], KINDS[3], KINDS[4]]),
    n=st.integers(1, 300),
    fewer=st.integers(0, 90),
    grain=st.sampled_from([None, 1.0, 0.25]),
    tail=st.sampled_from([0, 2, 8]),
    seed=st.integers(0, 2**16),
)
def test_any_data(plan, kind, n, fewer, grain, tail, seed):
    rng, k = np.random.default_rng(seed), most(plan) - fewer
    X, centers = blobs(n, plan.features, k, rng, apart=rng.choice([0.1, 1.0, 30.0]))
    if grain:  # many ties
        X, centers = np.round(X / grain) * grain, np.round(centers / grain) * grain
    X, centers = (some * np.exp(tail * rng.standard_exponential((len(some), 1)) - tail) for some in (X, centers))
    X = X.clip(-6e4, 6e4).astype(DTYPES[kind[0]]).astype(np.float64)
    step = step_of(X, k, kind, plan, middle=float(np.median(abs(X))) + 1e-30)
    with harness.schedule(seed=seed, copies="early" if seed % 2 else "late"):
        for now in (centers, centers[::-1].copy()):
            assign(step, now)
            assert_right(step, now)


def test_plans_know_sizes_of_the_kernel():
    plans = {*RESIDENTS, *(large_k_plan(d, 200, H200) for d in range(1, 17))}
    assertions = [
        f"static_assert({name}::kThreads == {plan.threads});"
        f"static_assert({plan.tiles} * {name}::kTileB + 8 == {plan.shared_bytes});"
        for plan in plans
        for name in [plan.kernel("float, float", aligned=False).replace("gemm_wgmma_resident", "GemmWgmmaResident")]
    ]
    includes = "kernels/tsm2/gemm_wgmma_resident", "apps/kmeans/assign/large_k", "apps/kmeans/assign/split_rows"
    harness.build("\n".join([*(f'#include "{name}.cuh"' for name in includes), *assertions]))


@pytest.mark.parametrize("k", [65, 256, 700, 768, 769, 1792, 1900, 7168, 7300])
@pytest.mark.parametrize("d", [1, 4, 5, 12, 16, 17])
def test_plans(d, k):
    plan = large_k_plan(d, k, H200)
    if d > 16 or k > {1: 7168, 2: 3584, 3: 2304, 4: 1792}[-(-d // 4)]:
        assert isinstance(plan, StreamPlan)
        return
    assert isinstance(plan, ResidentPlan)
    assert plan.columns % 8 == 0
    assert k <= plan.columns * plan.tiles < k + 8 * plan.tiles
    assert plan.columns <= 128
    assert plan.row_panels == {1: 1, 4: 1, 5: 2, 12: 3, 16: 4}[d]
    assert plan.unrolled == (plan.tiles if k <= 768 else 0)
    assert plan.shared_bytes <= H200.shared_memory_per_block - 1024
    for n in (1, 64, 65, 10**6, 2**31 - 1):
        blocks = plan.blocks(n, 132)
        assert 1 <= blocks <= 132
        assert blocks * plan.capacity(n, blocks) >= n


def test_no_plan_without_certification_or_warpgroups():
    assert isinstance(large_k_plan(16, 256, H200, certifies=False), StreamPlan)
    assert large_k_plan(16, 256, KNOWN["A100"]) is None
