"""TSBalancedKMeans on a GPU, against the CPU."""

import numpy as np
import oracle
import pytest
from kmeans.balanced.problems import rounding

from tsapps import TSBalancedKMeans
from tsapps.apps.kmeans.balanced import contested
from tsapps.apps.kmeans.balanced.costs import Costs
from tsapps.apps.kmeans.data.device_data import DeviceData
from tsapps.apps.kmeans.open_engine import open_engine

pytestmark = pytest.mark.gpu
cupy = pytest.importorskip("cupy", reason="needs a GPU: CuPy is not installed")


def fit(X, k, device="cuda", **options):
    return TSBalancedKMeans(k, **{"device": device, "random_state": 0, **options}).fit(X)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["digits", "china", "iris", "blobs"])
def test_as_on_the_cpu(data_sets, name, dtype):
    """The first assignment is the same but for ties, and so is its cost."""
    X, k = data_sets[name]
    X = X.astype(dtype)
    options = {"init": X[np.random.default_rng(0).choice(len(X), k, replace=False)], "max_iter": 1, "tol": 0}
    actual, expected = fit(cupy.asarray(X), k, **options), fit(X, k, "cpu", **options)
    assert actual.device_ == "cuda:0"
    labels = oracle.host(actual.labels_)
    assert labels.dtype == np.int32
    assert np.bincount(labels, minlength=k).max() <= -(-len(X) // k)
    assert actual.assignment_gap_ == expected.assignment_gap_ == 0
    # Ties of the first assignment move centers, and with them the inertia of the second.
    assert actual.inertia_ == pytest.approx(expected.inertia_, rel=1e-3 if name in ("digits", "china") else 1e-5)
    if name == "blobs":
        np.testing.assert_array_equal(labels, expected.labels_)


@pytest.mark.parametrize("most_pairs", [contested.MOST_PAIRS, 0])
@pytest.mark.parametrize("least", [0, 900])
def test_sizes_and_gap(least, most_pairs, rng, monkeypatch):
    monkeypatch.setattr(contested, "MOST_PAIRS", most_pairs)
    X = cupy.asarray(rng.standard_normal((200_000, 8)).astype(np.float32))
    model = fit(X, 200, max_cluster_size=1100, min_cluster_size=least, max_iter=2)
    sizes = np.bincount(oracle.host(model.labels_), minlength=200)
    assert least <= sizes.min() <= sizes.max() <= 1100
    assert model.assignment_gap_ == 0 if most_pairs else 0 <= model.assignment_gap_ < 0.1


def test_inertia_never_increases(data_sets):
    X, _ = data_sets["blobs"]
    found = [fit(cupy.asarray(X), 9, init=X[:9], tol=0, max_iter=i).inertia_ for i in range(1, 8)]
    assert (np.diff(found) <= rounding(X, X[:9])).all()


def test_same_bits_on_every_run(rng):
    X = rng.standard_normal((100_000, 16)).astype(np.float32)
    first, second = (fit(X, 12, max_iter=3) for _ in range(2))
    np.testing.assert_array_equal(first.labels_, second.labels_)
    np.testing.assert_array_equal(first.cluster_centers_, second.cluster_centers_)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_costs_that_do_not_fit_are_computed_again(dtype, rng, monkeypatch):
    X = rng.standard_normal((50_000, 8)).astype(dtype)
    kept = fit(X, 10, max_iter=3)
    fits = DeviceData.fits
    monkeypatch.setattr(DeviceData, "fits", lambda data, size: size < 50_000 * 10 * 8 and fits(data, size))
    with open_engine(X, device="cuda") as engine:
        assert Costs(engine.data, X[:10].astype(float), engine.data.square_norm())._kept is None
    again = fit(X, 10, max_iter=3)
    np.testing.assert_array_equal(kept.labels_, again.labels_)


def test_outputs_follow_the_input(data_sets):
    X = data_sets["iris"][0]
    for given, kind in ((X, np.ndarray), (cupy.asarray(X), cupy.ndarray)):
        model = fit(given, 3)
        for out in (model.labels_, model.cluster_centers_, model.predict(given), model.transform(given)):
            assert isinstance(out, kind)
        assert model.score(given) >= -model.inertia_
    torch = pytest.importorskip("torch")
    assert fit(torch.from_numpy(X).cuda(), 3).labels_.device.type == "cuda"
