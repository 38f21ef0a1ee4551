"""Fits on the CPU with the arithmetic of the kernels: the bits of a GPU."""

import ml_dtypes
import numpy as np
import pytest

import tsapps
from tsapps import TSKMeans
from tsapps.kernels.arrays import to_host

cupy = pytest.importorskip("cupy", reason="needs a GPU: CuPy is not installed")
pytestmark = pytest.mark.gpu


def samples(rng, n, d, k, dtype):
    return (2 * rng.standard_normal((k, d))[rng.integers(0, k, n)] + rng.standard_normal((n, d))).astype(dtype)


def fitted(X, device, k, weights=None, **options):
    given = {"random_state": 0, "n_init": 1, "max_iter": 10, "tol": 0, "engine": "fused", **options}
    return TSKMeans(k, device=device, **given).fit(X, sample_weight=weights)


def assert_same_bits(found, expected):
    np.testing.assert_array_equal(to_host(found.labels_), to_host(expected.labels_))
    np.testing.assert_array_equal(to_host(found.cluster_centers_), to_host(expected.cluster_centers_))
    assert (found.n_iter_, found.inertia_) == (expected.n_iter_, expected.inertia_)


@pytest.mark.parametrize("init", ["random", "array", "k-means++", "k-means||"])
@pytest.mark.parametrize(
    ("n", "d", "k", "dtype", "weighted"),
    [
        (700, 3, 4, np.float32, False),
        (300_000, 4, 5, np.float32, False),
        (300_000, 16, 16, np.float32, False),
        (200_000, 33, 9, np.float32, True),
        (200_000, 40, 9, np.float64, False),
        (100_000, 130, 64, np.float16, False),
        (100_000, 64, 20, ml_dtypes.bfloat16, False),
        (100_000, 64, 200, np.float32, False),
        (60_000, 24, 70, np.float64, True),
        (20_000, 1100, 12, np.float32, False),
    ],
)
def test_the_bits_are_those_of_a_gpu(n, d, k, dtype, weighted, init, rng):
    X = samples(rng, n, d, k, dtype)
    weights = rng.random(n) + 0.5 if weighted else None
    given = X[:k].astype(np.float64) if init == "array" else init
    assert_same_bits(fitted(X, "cpu", k, weights, init=given), fitted(X, "cuda", k, weights, init=given))


@pytest.mark.parametrize(("n", "dtype"), [(300_000, np.float64), (50_000, np.float32)])
def test_plusplus(n, dtype, rng):
    X = samples(rng, n, 20, 12, dtype)
    assert_same_bits(fitted(X, "cpu", 12), fitted(X, "cuda", 12))


@pytest.mark.parametrize("init", ["random", "array", "k-means++", "k-means||"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_cosine(dtype, init, rng):
    X = samples(rng, 200_000, 33, 9, dtype)
    given = X[:9].astype(np.float64) if init == "array" else init
    assert_same_bits(*(fitted(X, device, 9, init=given, metric="cosine") for device in ("cpu", "cuda")))


def test_many_steps_of_plusplus_that_are_pruned(rng):
    X = samples(rng, 400_000, 96, 200, np.float32)
    assert_same_bits(fitted(X, "cpu", 200, init="k-means++"), fitted(X, "cuda", 200, init="k-means++"))


@pytest.mark.parametrize("scale", [1e-30, 1e25])
def test_out_of_range(scale, rng):
    X = (samples(rng, 200_000, 12, 6, np.float64) * scale).astype(np.float32)
    assert_same_bits(fitted(X, "cpu", 6, init=X[:6]), fitted(X, "cuda", 6, init=X[:6]))


def test_outliers_far_from_the_mean_and_empty_clusters(rng):
    X = samples(rng, 300_000, 12, 6, np.float32) + 1000
    X[::50_000] *= 1e6
    init = X[1:9].astype(np.float64)
    init[7] = -(1e12)
    assert_same_bits(fitted(X, "cpu", 8, init=init), fitted(X, "cuda", 8, init=init))


def test_a_file(rng, tmp_path):
    X = samples(rng, 400_000, 20, 7, np.float32)
    np.save(tmp_path / "X.npy", X)
    rows = tsapps.open_matrix(tmp_path / "X.npy")
    assert_same_bits(fitted(rows, "cpu", 7, init=X[:7], engine="auto"), fitted(X, "cuda", 7, init=X[:7]))
