"""Few features and few clusters on a GPU, against Lloyd in float64 and against the step that reads X's copy."""

from dataclasses import replace

import numpy as np
import oracle
import pytest
from sklearn.datasets import make_blobs

from tsapps.apps.kmeans.engines import select_step
from tsapps.apps.kmeans.open_engine import open_engine
from tsapps.apps.kmeans.small_d.plan import ALIGNMENT, Multiplier, multiply_adds_plan, products_plan

pytestmark = pytest.mark.gpu
cupy = pytest.importorskip("cupy", reason="needs a GPU: CuPy is not installed")

#: Samples, features, clusters: of multiply-adds, and of products on tensor cores.
OF_MULTIPLY_ADDS = [(300_001, 1, 2), (500_000, 4, 16), (100_003, 3, 64), (99_999, 5, 33), (400_000, 16, 16)]
OF_PRODUCTS = [(99_999, 5, 60), (77_777, 8, 64), (300_017, 16, 20), (250_001, 21, 7), (300_000, 32, 64)]
SHAPES = [*OF_MULTIPLY_ADDS, *OF_PRODUCTS]


def blobs(n, d, k, seed=0, away=0.0, spread=1.0):
    X, _ = make_blobs(n, d, centers=k, cluster_std=spread, center_box=(-3, 3), random_state=seed)
    return (X + away).astype(np.float32)


def opened(X, k, *plan):
    """Return an engine whose data is centered; of a plan for small d or, if that is None, one that reads X's copy."""
    engine = open_engine(cupy.asarray(X), engine="fused")
    with engine, pytest.MonkeyPatch.context() as patch:
        if plan:
            patch.setattr(select_step, "fma_plan", lambda *_: plan[0])
        engine.center(engine.data.moments()[0], k)
    return engine


def iterated(engine, centers, count):
    """Labels and sums after some iterations."""
    with engine:
        step = engine.step_for(len(centers))
        step.reset()
        found = step.iterate(centers, 0, count, 0.0, None)
        return oracle.host(step.labels), step.buffers.sums.get(), found.centers, step


def few_and_shadowed(X, k, count=6):
    centers = X[:k].astype(np.float32)
    results = []
    for shadowed in (False, True):
        engine = opened(X, k, None) if shadowed else opened(X, k)
        with engine:
            mean = oracle.host(engine.data.mean)
        results.append(iterated(engine, centers - mean, count))
    return results


@pytest.mark.parametrize("away", [0.0, 3.0, 1e3])
@pytest.mark.parametrize(("n", "d", "k"), SHAPES)
def test_same_bits_as_from_the_copy(n, d, k, away):
    few, shadowed = few_and_shadowed(blobs(n, d, k, away=away, spread=2.0), k)
    assert type(few[3]).__name__ == ("SmallDFmaStep" if (n, d, k) in OF_MULTIPLY_ADDS else "SmallDMmaStep")
    assert type(shadowed[3]).__name__ == "SmallKStep"
    for ours, theirs in zip(few[:3], shadowed[:3], strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(("n", "d", "k"), SHAPES)
def test_labels_are_those_of_float64(n, d, k):
    X = blobs(n, d, k, spread=2.0)
    centers = X[:k].copy()
    engine = opened(X, k)
    with engine:
        centered, step = X - oracle.host(engine.data.mean), engine.step_for(k)
        centers = centers - oracle.host(engine.data.mean)
        n_reassigned = step.assign(centers).n_reassigned
        labels = oracle.host(step.labels)
        assert step.assign(centers).n_reassigned == 0
    assert n_reassigned == n
    distances = oracle.square_distances(centered, centers)
    assert (distances[np.arange(n), labels] <= distances.min(axis=1) * (1 + 1e-12)).all()


def centers_half(n, d, k, dtype, away=0.0):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    return blobs(n, d, k, away=away, spread=2.0).astype(dtype if dtype == "float16" else ml_dtypes.bfloat16)


@pytest.mark.parametrize("away", [0.0, 3.0, 1e3])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("n", "d", "k"), [(300_001, 16, 20), (200_003, 64, 64), (150_001, 30, 40), (100_000, 63, 9)])
def test_halves(n, d, k, dtype, away):
    few, shadowed = few_and_shadowed(centers_half(n, d, k, dtype, away), k)
    assert type(few[3]).__name__ == "SmallDMmaStep"
    for ours, theirs in zip(few[:3], shadowed[:3], strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("changed", [{}, {"stages": 2}, {"threads": 128}, {"threads": 256, "stages": 2}], ids=str)
def test_same_bits_by_warps_and_warpgroups(changed, dtype):
    n, d, k = 400_003, 32, 48
    X = centers_half(n, d, k, dtype)
    engine = opened(X, k)
    if engine.data.gpu.compute_capability != "9.0":
        pytest.skip("needs warpgroups: a GPU of compute capability 9.0")
    room, results = engine.data.gpu.shared_memory_per_block, []
    for warpgroups in (False, True):
        plan = products_plan(d, k, dtype, room, warpgroups=warpgroups)
        assert (plan.multiplier is Multiplier.WARPGROUPS) == warpgroups
        plan = replace(plan, **changed)
        engine = opened(X, k, plan)
        with engine:
            mean = oracle.host(engine.data.mean)
        results.append(iterated(engine, X[:k].astype(np.float32) - mean, 6))
    for ours, theirs in zip(*(result[:3] for result in results), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    "changed",
    [
        {"stages": 2},
        {"stages": 3},
        {"multiplier": Multiplier.WARPS},
        {"threads": 256, "blocks": 2, "stages": 2},
        {"threads": 96},
    ],
    ids=str,
)
def test_same_bits_by_every_plan(changed):
    n, d, k = 400_003, 16, 16
    X = blobs(n, d, k, spread=2.0)
    results = []
    room = opened(X, k).data.gpu.shared_memory_per_block
    products, adds = products_plan(d, k, "float32", room), multiply_adds_plan(d, k, "float32", 0.0, 1.0, room)
    for plan in (products, replace(products, **changed), adds):
        engine = opened(X, k, plan)
        with engine:
            mean = oracle.host(engine.data.mean)
        results.append(iterated(engine, X[:k] - mean, 6))
    assert type(results[2][3]).__name__ == "SmallDFmaStep"
    for others in results[1:]:
        for ours, theirs in zip(results[0][:3], others[:3], strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_one_huge_cluster_and_one_row_that_leaves_it():
    # Sums of a block are flushed many times over: what half of the rows add up to is far from zero, in one place.
    n = 3_000_000
    X = np.full((n, 16), 1 - 2.0**-24, np.float32)
    X[n // 2 :] *= -1
    X[1234] = np.where(np.arange(16) % 2, 0.5, -0.5)
    engine = opened(X, 20)
    with engine:
        mean, step = oracle.host(engine.data.mean), engine.step_for(20)
        centers = np.zeros((20, 16), np.float32)
        centers[1:] = 50
        assert step.assign(centers - mean).n_reassigned == n
        assert type(step).__name__ == "SmallDMmaStep"
        assert step.sums()[1].tolist() == [n] + 19 * [0]
        centers[1] = X[1234]
        assert step.assign(centers - mean).n_reassigned == 1
        sums, weights = step.sums()
    assert weights.tolist() == [n - 1, 1] + 18 * [0]
    np.testing.assert_allclose(sums[1], X[1234] - mean, rtol=1e-6)


def test_constants_are_an_engines_own():
    # Two engines of one shape take turns, so that each would see the other's centers.
    data = [blobs(60_000, 4, 16, seed=seed) for seed in (1, 2)]
    engines = [opened(X, 16) for X in data]
    steps = [X[:16] - X.mean(axis=0) for X in data]
    for _ in range(3):
        for engine, X, centers in zip(engines, data, steps, strict=True):
            with engine:
                step = engine.step_for(16)
                step.assign(centers)
                centered = X - oracle.host(engine.data.mean)
                distances = oracle.square_distances(centered, centers.astype(np.float32))
                mine = distances[np.arange(len(X)), oracle.host(step.labels)]
            assert (mine <= distances.min(axis=1) * (1 + 1e-12)).all()


def test_what_it_does_not_serve():
    X = blobs(50_000, 4, 8)
    outlier = X.copy()
    outlier[7] = 1e6
    unaligned = cupy.empty(X.size + 1, np.float32)[1:].reshape(X.shape)
    unaligned[:] = cupy.asarray(X)
    for data in (outlier, X.astype(np.float64), unaligned):
        engine = opened(data, 8)
        with engine:
            centers, step = oracle.host(data[:8]) - oracle.host(engine.data.mean), engine.step_for(8)
            step.assign(centers)
            served = type(step).__name__ == "SmallDFmaStep"
            assert not served or engine.data.rows_on_gpu.data.ptr % ALIGNMENT == 0


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_ties_on_a_grid(dtype):
    rng = np.random.default_rng(0)
    X = rng.integers(0, 8, (200_000, 3)).astype(dtype)
    centers = np.array([[1, 1, 1], [1, 1, 1], [2, 1, 1], [6, 6, 6], [3, 3, 3], [4, 4, 4]], np.float32)
    engine = opened(X, 6)
    with engine:
        mean, step = oracle.host(engine.data.mean), engine.step_for(6)
        step.assign(centers - mean)
        labels = oracle.host(step.labels)
    distances = oracle.square_distances(X.astype(np.float32) - mean, centers - mean)
    mine = distances[np.arange(len(X)), labels]
    assert (mine <= distances.min(axis=1) * (1 + 1e-12)).all()
    assert not (labels == 1).any()  # the lower of equals


@pytest.mark.parametrize(("k", "kind"), [(2, "SmallDFmaStep"), (18, "SmallDMmaStep")])
def test_more_rows_than_32_bits_number_elements_of(k, kind):
    n, d = (1 << 27) + 12_345, 16
    free, _ = cupy.cuda.runtime.memGetInfo()
    if free < 6 * n * d:
        pytest.skip(f"needs {6 * n * d >> 30} GiB of memory on the GPU, and {free >> 30} are free")
    X = cupy.zeros((n, d), np.float32)
    X[: n // 2, 3], X[n // 2 :, 3] = -1.0, 1.0
    engine = opened(X, k)
    with engine:
        centers, step = np.zeros((k, d), np.float32), engine.step_for(k)
        centers[:2, 3] = -0.5, 0.5
        centers[2:, 4] = 10
        assert step.assign(centers).n_reassigned == n
        assert type(step).__name__ == kind
        sizes = step.sums()[1]
        assert int(step.labels[: n // 2].sum()) == 0
        assert int(step.labels[n // 2 :].min()) == int(step.labels[n // 2 :].max()) == 1
    assert sizes.tolist() == [n // 2, n - n // 2] + (k - 2) * [0]
