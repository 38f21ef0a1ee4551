"""Greedy k-means++ by the kernels of plusplus.cuh on a GPU, against the general passes and against scikit-learn."""

import numpy as np
import pytest
from sklearn.cluster import kmeans_plusplus
from sklearn.datasets import make_blobs

from tsapps.apps.kmeans import initial_centers
from tsapps.apps.kmeans.open_engine import open_engine

pytest.importorskip("cupy", reason="needs a GPU: CuPy is not installed")
import cupy

from tsapps.apps.kmeans.data.device_data import DeviceData
from tsapps.apps.kmeans.data.rows import ArrayRows
from tsapps.apps.kmeans.data.shard import Shard
from tsapps.apps.kmeans.init import pruned_launch
from tsapps.apps.kmeans.init.plan import first_pruned_step
from tsapps.apps.kmeans.init.plusplus_launch import draw_plus_plus
from tsapps.apps.kmeans.init.plusplus_shards import draw_plus_plus_of_shards
from tsapps.apps.kmeans.init.pruned_launch import PrunedSteps
from tsapps.kernels.runtime.machine import cuda_machine

pytestmark = pytest.mark.gpu

SHAPES = [(20_000, 1, 2), (30_001, 3, 64), (20_000, 16, 16), (9_999, 40, 33), (8_000, 130, 64), (3_000, 2500, 20)]


@pytest.fixture(autouse=True)
def nothing_is_small(monkeypatch):
    monkeypatch.setattr("tsapps.apps.kmeans.data.blocks.SMALL", 0)


def blobs(n, d, k, seed=0):
    return make_blobs(n, d, centers=k, center_box=(-4, 4), random_state=seed)[0]


def seeds(X, k, seed, weights=None, engine="fused", mean=None):
    """Return the first centers, and whether the engine drew them itself."""
    with open_engine(cupy.asarray(X), engine=engine, sample_weight=weights) as opened:
        if mean is not None:
            opened.center(mean, k)
        drawn = opened.draw_plus_plus(0, np.zeros((1, 2 + int(np.log(k)))))
        return initial_centers.draw_centers(opened, "k-means++", k, np.random.RandomState(seed)), drawn is not None


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("n", "d", "k"), SHAPES)
def test_the_samples_that_are_drawn_in_float64(n, d, k, weighted, seed):
    X = blobs(n, d, k)
    weights = np.random.default_rng(1).random(n) if weighted else None
    found, fused = seeds(X, k, seed, weights)
    expected, general = seeds(X, k, seed, weights, "cublas")
    assert fused
    assert not general
    np.testing.assert_array_equal(found, expected)
    if weighted:  # else the first sample is drawn in another way
        centers, _ = kmeans_plusplus(X, k, sample_weight=weights, random_state=np.random.RandomState(seed))
        np.testing.assert_array_equal(found, centers)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("n", "d", "k"), SHAPES)
def test_the_samples_that_are_drawn_in_float32(n, d, k, weighted, seed):
    # Quarters: distances are exact in float32, in whatever order they are summed.
    X = (np.round(blobs(n, d, k) * 4) / 4).astype(np.float32)
    weights = np.random.default_rng(1).integers(0, 4, n).astype(np.float32) if weighted else None
    found, fused = seeds(X, k, seed, weights)
    assert fused
    np.testing.assert_array_equal(found, seeds(X, k, seed, weights, "cublas")[0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("start", [0, 1])
def test_rows_that_are_not_aligned_and_a_mean(dtype, start):
    flat = cupy.asarray(blobs(20_001, 16, 12).ravel().astype(dtype))
    X = flat[start : start + 20_000 * 16].reshape(20_000, 16)
    mean = cupy.asnumpy(X.mean(axis=0))
    found, fused = seeds(X, 12, 3, mean=mean)
    assert fused
    np.testing.assert_array_equal(found, seeds(X.copy(), 12, 3)[0] - mean)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("k", [50, 420, 3000])  # 6, 9 and 11 points
@pytest.mark.parametrize(
    ("d", "dtype"), [(33, "float32"), (130, "float32"), (600, "float32"), (16, "float64"), (96, "float16")]
)
def test_pruned_steps_draw_what_the_rows_do(d, dtype, k, weighted, monkeypatch):
    n = 30_011
    X = (100 + blobs(n, d, 2 * k)).astype(np.float32).astype(dtype)
    weights = 0.1 + np.random.default_rng(1).random(n) if weighted and dtype != "float16" else None
    found, pruned, evaluate = [], [], PrunedSteps.evaluate

    def recorded(*arguments):
        pruned.append(1)
        evaluate(*arguments)

    monkeypatch.setattr(PrunedSteps, "evaluate", recorded)
    for least in (1 << 60, 0):
        assert not pruned
        monkeypatch.setattr(pruned_launch, "_LEAST_BYTES", least)
        found.append(seeds(X, k, 5, weights, mean=X.astype(np.float64).mean(axis=0))[0])
    np.testing.assert_array_equal(found[0], found[1])
    assert len(pruned) == k - first_pruned_step(2 + int(np.log(k)))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("d", "dtype"), [(3, "float32"), (130, "float32"), (96, "float64"), (600, "float32")])
def test_shards_draw_what_the_whole_does(d, dtype, weighted, monkeypatch):
    monkeypatch.setattr(pruned_launch, "_LEAST_BYTES", 0)
    n, k, machine, moments = 30_011, 50, cuda_machine(0), None
    X = cupy.asarray(100 + blobs(n, d, 2 * k), dtype)
    weights = cupy.asarray(np.random.default_rng(1).random(n), dtype) if weighted else None
    parts = []
    for first, end in ((0, n), (0, 1024), (1024, 20_480), (20_480, n)):
        own = None if weights is None else weights[first:end]
        data = DeviceData(ArrayRows(X[first:end].copy()), X.dtype, own, machine, shard=Shard(first, n))
        moments = data.moments() if moments is None else moments
        data.center(moments[0], on_read=True)
        parts.append(data)
    whole, *shards = parts
    for data in shards:
        data.known_moments, data.origin = whole.known_moments, whole.origin

    def exchange(own, total):
        found = sum(own)
        for array in total:
            array[...] = found

    draws = np.random.default_rng(2).random((k - 1, 2 + int(np.log(k))))
    for first in (0, n - 1):
        expected = draw_plus_plus(whole, first, draws).tolist()
        assert draw_plus_plus_of_shards(shards, exchange, first, draws).tolist() == expected


def test_same_bits_on_every_run():
    X = np.random.default_rng(0).standard_normal((200_000, 20)).astype(np.float32)
    first, _ = seeds(X, 300, 0)
    np.testing.assert_array_equal(first, seeds(X, 300, 0)[0])


def test_fewer_distinct_samples_than_clusters():
    X = np.repeat(np.arange(4.0)[:, np.newaxis], 3000, axis=0)
    found, _ = seeds(X, 9, 5)
    assert sorted(set(found.ravel().tolist())) == [0, 1, 2, 3]
    assert (found[4:] == X[0]).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_more_columns_than_fit_shared_memory(dtype):
    X = np.random.default_rng(0).integers(-3, 4, (700, 30_000)).astype(dtype)
    found, fused = seeds(X, 64, 1)
    assert fused
    np.testing.assert_array_equal(found, seeds(X, 64, 1, engine="cublas")[0])


@pytest.mark.parametrize("engine", ["fused", "cublas"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("n", "d", "k"), SHAPES[:5])
def test_parallel_draws_are_those_of_the_cpu(n, d, k, weighted, engine):
    X = blobs(n, d, k)
    weights, mean = np.random.default_rng(1).random(n) if weighted else None, X.mean(axis=0)
    found = []
    for device, where in (("cpu", np.asarray), ("cuda", cupy.asarray)):
        name = engine if device == "cuda" else "auto"
        with open_engine(where(X), device=device, engine=name, sample_weight=weights) as opened:
            opened.center(mean, k)
            found.append(initial_centers.draw_centers(opened, "k-means||", k, np.random.RandomState(2)))
    np.testing.assert_allclose(found[1], found[0], rtol=0, atol=1e-12)


def test_more_than_2_to_31_elements():
    free, _ = cupy.cuda.runtime.memGetInfo()
    if free < 30e9:
        pytest.skip("needs 30 GB of free GPU memory")
    n, d = 140_000_000, 16
    X = cupy.zeros((n, d), cupy.float32)
    apart = [n - 1, n - 12_345, 2**27 + 3, 77]
    X[cupy.asarray(apart), cupy.arange(4)] = 10
    found, _ = seeds(X, 5, 0)
    assert (found != 0).sum() == 4
    assert sorted(found.argmax(axis=1)[(found != 0).any(axis=1)].tolist()) == [0, 1, 2, 3]
