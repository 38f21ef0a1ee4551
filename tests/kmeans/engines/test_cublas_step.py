"""The cuBLAS step on the CPU, its products by NumPy, against float64; and square distances of passes.cuh."""

import numpy as np
import oracle
import pytest
from host_cuda import harness
from host_cuda.machine import HostMachine

from tsapps.apps.kmeans.data import gpu_rows
from tsapps.apps.kmeans.data.device_data import DeviceData
from tsapps.apps.kmeans.data.rows import ArrayRows
from tsapps.apps.kmeans.engines.cublas_step import CublasStep

#: Rows, features, clusters: scores of one lane, of several, of a warp, of several steps; sums by the one-hot matrix and
#: by sorted labels, of fewer columns than a block has and of more.
SHAPES = [(1, 1, 1), (300, 3, 5), (501, 40, 33), (260, 8, 64), (260, 31, 65), (700, 32, 90), (90, 70, 130)]


def data_of(X, weights=None, **machine):
    return DeviceData(ArrayRows(X), X.dtype, weights, HostMachine(**machine))


def small_integers(n, d, k, dtype, rng):
    """Return rows, centers and weights of which every score and sum is exact; the last centers are the first again."""
    X, centers = rng.integers(-8, 9, (n, d)).astype(dtype), rng.integers(-8, 9, (k, d)).astype(dtype)
    again = k - 1 - (k - 1) % 32  # of the lanes that have the first
    centers[again:] = centers[: k - again]
    return X, centers, rng.integers(0, 4, n).astype(dtype)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("n", "d", "k"), SHAPES)
def test_a_step_of_small_integers_is_exact(n, d, k, dtype, weighted, rng, monkeypatch):
    X, centers, weights = small_integers(n, d, k, dtype, rng)
    # In blocks of about 200 rows.
    monkeypatch.setattr(gpu_rows, "_BLOCK_BYTES", 200 * max(d, k) * X.itemsize)
    data = data_of(X, weights if weighted else None)
    step = CublasStep(data)
    step.reset()
    with harness.schedule(seed=n):
        found = step.assign(centers, potential=True)
    wide, of_centers = X.astype(np.float64), centers.astype(np.float64)
    scores = (of_centers**2).sum(axis=1) - 2 * wide @ of_centers.T
    labels, own = scores.argmin(axis=1), weights.astype(np.float64) if weighted else np.ones(n)
    sums = np.zeros((k, d))
    np.add.at(sums, labels, own[:, np.newaxis] * wide)
    np.testing.assert_array_equal(step.labels, labels)
    np.testing.assert_array_equal(found.sums, sums)
    np.testing.assert_array_equal(found.weights, np.bincount(labels, own, k))
    assert found.n_reassigned == n
    assert found.potential == own @ scores.min(axis=1)
    assert step.assign(centers).n_reassigned == 0


@pytest.mark.parametrize(("n", "d", "k"), [(501, 40, 33), (700, 32, 90)])
def test_the_mean_is_subtracted_on_read(n, d, k, rng):
    X = (1000 + rng.standard_normal((n, d))).astype(np.float32)
    data = data_of(X)
    data.center(X.astype(np.float64).mean(axis=0), on_read=True)
    step, rows = CublasStep(data), X - data.shift
    step.reset()
    found = step.assign(rows[:k].copy())
    oracle.assert_nearest(rows, rows[:k], step.labels, np.float32)
    sums = np.zeros((k, d))
    np.add.at(sums, step.labels, rows.astype(np.float64))
    np.testing.assert_allclose(found.sums, sums, rtol=0, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("n", "d", "k"), SHAPES)
def test_square_distances(n, d, k, dtype, rng):
    X, points = (rng.standard_normal((count, d)).astype(dtype) for count in (n, k))
    data = data_of(X)
    data.center(X.astype(np.float64).mean(axis=0), on_read=True)
    expected = oracle.square_distances((X - data.shift).astype(np.float64), points.astype(np.float64)).T
    unit = np.finfo(dtype).eps / 2 + oracle.gamma(d + 8, np.float64)
    np.testing.assert_allclose(data.square_distances(points.astype(np.float64)), expected, rtol=unit)
