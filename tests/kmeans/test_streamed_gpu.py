"""Fits of X that passes through the GPU in windows: the result has the bits of a fit whose GPU holds X."""

import numpy as np
import pytest
from kmeans.test_pinned_rows_gpu import N, D, fitted, same_bits, samples

from tsapps import TSKMeans
from tsapps.apps.kmeans.data import gpu_rows
from tsapps.apps.kmeans.data.gpu_rows import GpuRows
from tsapps.apps.kmeans.engines import window_pass

pytestmark = pytest.mark.gpu
cupy = pytest.importorskip("cupy", reason="needs a GPU: CuPy is not installed")


@pytest.fixture
def full(monkeypatch):
    """Fill the GPU, so that X is streamed in small windows, or read in windows where it is."""

    def fill(place):
        monkeypatch.setattr(GpuRows, "copies", lambda data: False)
        monkeypatch.setattr(GpuRows, "available_bytes", lambda data: 0)
        monkeypatch.setattr(window_pass, "_WINDOW_BYTES", 4 << 20)
        if place == "streamed":
            monkeypatch.setattr(gpu_rows, "pinnable", lambda source, dtype: None)

    return fill


def streamed(X, place, **options):
    """Return a fit of X in windows."""
    found = fitted(cupy.asarray(X) if place == "gpu" else X, **options)
    assert "in windows" in found.step_reason_
    return found


@pytest.mark.parametrize("place", ["gpu", "pinned", "streamed"])
@pytest.mark.parametrize("k", [9, 100])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_the_bits_are_those_of_a_fit_that_holds_x(dtype, k, place, rng, full):
    X = samples(rng, dtype)
    expected = fitted(X, k=k, init="random")
    full(place)
    same_bits(streamed(X, place, k=k, init="random"), expected)


@pytest.mark.parametrize("place", ["gpu", "pinned", "streamed"])
@pytest.mark.parametrize("options", [{"metric": "cosine"}, {"protect": True}, {"precision": "tf32"}], ids=str)
def test_options(options, place, rng, full):
    X = samples(rng, np.float32)
    expected = fitted(X, init="random", **options)
    full(place)
    found = streamed(X, place, init="random", **options)
    if options.get("precision") != "tf32":
        same_bits(found, expected)


@pytest.mark.parametrize("place", ["gpu", "pinned", "streamed"])
def test_weights_and_empty_clusters(place, rng, full):
    X, weights = samples(rng, np.float32), rng.random(N) + 0.5
    init = np.concatenate([X[:8], X[:1] + 1e3])

    def fit(X):
        return TSKMeans(9, init=init, n_init=1, max_iter=5, device="cuda").fit(X, sample_weight=weights)

    expected = fit(X)
    full(place)
    same_bits(fit(cupy.asarray(X) if place == "gpu" else X), expected)


@pytest.mark.parametrize("d", [2, 16])
@pytest.mark.parametrize("k", [8, 200])
def test_few_features(d, k, rng, full):
    """On the GPU, kernels for few features read X itself; they have other sums of the inertia."""
    X = rng.standard_normal((N, d), np.float32)
    expected = fitted(X, k=k, init="random")
    full("streamed")
    found = streamed(X, "streamed", k=k, init="random")
    np.testing.assert_array_equal(found.labels_, expected.labels_)
    np.testing.assert_array_equal(found.cluster_centers_, expected.cluster_centers_)


def test_predict(rng, full):
    X = samples(rng, np.float32)
    model = fitted(X)
    expected = model.predict(X)
    full("streamed")
    np.testing.assert_array_equal(model.predict(X), expected)
    assert X.shape == (N, D)
