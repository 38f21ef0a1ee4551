"""Spherical K-means on a GPU against the same on the CPU."""

import numpy as np
import oracle
import pytest

from tsapps import TSKMeans
from tsapps.apps.kmeans.data.rows import ArrayRows

pytestmark = pytest.mark.gpu
cupy = pytest.importorskip("cupy", reason="needs a GPU: CuPy is not installed")


def directions(n, d, k, dtype):
    rng = np.random.default_rng(5)
    X = rng.standard_normal((k, d))[rng.integers(0, k, n)] + 0.3 * rng.standard_normal((n, d))
    return (X * rng.uniform(0.5, 2, (n, 1))).astype(dtype)


@pytest.mark.parametrize("engine", ["fused", "cublas"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("place", [np.asarray, cupy.asarray, ArrayRows], ids=["host", "gpu", "blocks"])
def test_as_on_the_cpu(dtype, engine, place):
    X = directions(20_000, 24, 10, dtype)
    options = {"init": X[:10].astype(np.float64), "tol": 0, "max_iter": 8, "metric": "cosine"}
    expected = TSKMeans(10, device="cpu", **options).fit(X.astype(np.float64))
    given = place(X)
    model = TSKMeans(10, device="cuda", engine=engine, **options).fit(given)
    rounding = 1e-12 if dtype == np.float64 else 1e-4
    np.testing.assert_allclose(oracle.host(model.cluster_centers_), expected.cluster_centers_, atol=rounding)
    assert np.mean(oracle.host(model.labels_) != expected.labels_) <= (0 if dtype == np.float64 else 1e-3)
    assert model.inertia_ == pytest.approx(expected.inertia_, rel=1e-4)
    assert model.score(given) == pytest.approx(-model.inertia_, rel=1e-5)
    np.testing.assert_allclose(
        oracle.host(model.transform(cupy.asarray(X[:200]))), expected.transform(X[:200].astype(np.float64)), atol=1e-3
    )


def test_same_seeds_as_on_the_cpu():
    X = directions(5_000, 12, 6, np.float64)
    models = [TSKMeans(6, random_state=2, metric="cosine", device=device).fit(X) for device in ("cpu", "cuda")]
    np.testing.assert_array_equal(models[0].labels_, models[1].labels_)
    assert models[0].n_iter_ == models[1].n_iter_


def test_a_row_of_zeros_is_named():
    X = cupy.asarray(directions(5_000, 12, 6, np.float32))
    X[1234] = 0
    with pytest.raises(ValueError, match="row 1234 is zero"):
        TSKMeans(6, metric="cosine").fit(X)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("engine", ["fused", "cublas"])
def test_empty_clusters(engine):
    X = directions(5_000, 12, 6, np.float64)
    init = np.concatenate([X[:5], -X[:1], -X[:1]])
    options = {"init": init, "tol": 0, "max_iter": 4, "metric": "cosine"}
    models = [TSKMeans(7, device="cpu", **options).fit(X), TSKMeans(7, device="cuda", engine=engine, **options).fit(X)]
    np.testing.assert_array_equal(models[0].labels_, models[1].labels_)
