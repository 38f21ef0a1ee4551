"""Fits of X that passes through the GPU in windows: the result has the bits of a fit whose GPU holds X."""

import numpy as np
import pytest
from kmeans.test_pinned_rows_gpu import N, fitted, same_bits, samples

from tsapps.apps.kmeans.data import gpu_rows
from tsapps.apps.kmeans.data.gpu_rows import GpuRows
from tsapps.apps.kmeans.engines import window_pass
from tsapps.apps.kmeans.engines.window_pass import WindowPass
from tsapps.kernels.arrays import to_host

pytestmark = pytest.mark.gpu
cupy = pytest.importorskip("cupy", reason="needs a GPU: CuPy is not installed")


@pytest.fixture
def full(monkeypatch):
    """Fill the GPU, so that X is streamed in small windows, or read in windows where it is; passes are counted."""
    seen = []
    launch = WindowPass.launch

    def counted(*arguments, **options):
        seen.append(arguments)
        return launch(*arguments, **options)

    def fill(place):
        monkeypatch.setattr(WindowPass, "launch", counted)
        monkeypatch.setattr(GpuRows, "copies", lambda data: False)
        monkeypatch.setattr(GpuRows, "available_bytes", lambda data: 0)
        monkeypatch.setattr(window_pass, "_WINDOW_BYTES", 4 << 20)
        if place == "streamed":
            monkeypatch.setattr(gpu_rows, "pinnable", lambda source, dtype: None)
        return seen

    return fill


def fitted_at(place, X, **options):
    """Return a fit of X in windows, with labels and centers in host memory."""
    found = fitted(cupy.asarray(X) if place == "gpu" else X, **options)
    found.labels_, found.cluster_centers_ = to_host(found.labels_), to_host(found.cluster_centers_)
    return found


@pytest.mark.parametrize("place", ["gpu", "pinned", "streamed"])
@pytest.mark.parametrize("k", [9, 100])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_the_bits_are_those_of_a_fit_that_holds_x(dtype, k, place, rng, full):
    X = samples(rng, dtype)
    expected = fitted(X, k=k, init="random")
    seen = full(place)
    same_bits(fitted_at(place, X, k=k, init="random"), expected)
    assert len(seen) >= expected.n_iter_


@pytest.mark.parametrize("place", ["gpu", "pinned", "streamed"])
@pytest.mark.parametrize("options", [{"metric": "cosine"}, {"protect": True}, {"precision": "tf32"}], ids=str)
def test_options(options, place, rng, full):
    X = samples(rng, np.float32)
    expected = fitted(X, init="random", **options)
    seen = full(place)
    found = fitted_at(place, X, init="random", **options)
    assert len(seen) >= found.n_iter_
    if options.get("precision") != "tf32":
        same_bits(found, expected)


@pytest.mark.parametrize("place", ["gpu", "pinned", "streamed"])
def test_weights_and_empty_clusters(place, rng, full):
    X = samples(rng, np.float32)
    options = {"init": np.concatenate([X[:8], X[:1] + 1e3]), "sample_weight": rng.random(N) + 0.5}
    expected = fitted(X, **options)
    full(place)
    same_bits(fitted_at(place, X, **options), expected)


@pytest.mark.parametrize("d", [2, 16])
@pytest.mark.parametrize("k", [8, 200])
def test_few_features(d, k, rng, full):
    """On the GPU, kernels for few features read X itself; they have other sums of the inertia."""
    X = rng.standard_normal((N, d), np.float32)
    expected = fitted(X, k=k, init="random")
    full("streamed")
    found = fitted(X, k=k, init="random")
    np.testing.assert_array_equal(found.labels_, expected.labels_)
    np.testing.assert_array_equal(found.cluster_centers_, expected.cluster_centers_)


def test_predict(rng, full):
    X = samples(rng, np.float32)
    model = fitted(X)
    expected = model.predict(X)
    seen = full("streamed")
    np.testing.assert_array_equal(model.predict(X), expected)
    assert len(seen) == 1
