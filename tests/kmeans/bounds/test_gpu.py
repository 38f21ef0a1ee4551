"""Bounds on a GPU: the same bits as without, and fewer rows looked at."""

import numpy as np
import oracle
import pytest
from sklearn.datasets import make_blobs

from tsapps import TSKMeans
from tsapps.apps.kmeans import lloyd
from tsapps.apps.kmeans.open_engine import open_engine

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")]
cupy = pytest.importorskip("cupy", reason="needs a GPU: CuPy is not installed")

#: Samples, features, clusters: of every kind of product, and those that have no bounds (rows of 16 bytes; one cluster).
SHAPES = [
    (60_000, 32, 64),
    (50_000, 16, 16),
    (30_001, 24, 33),
    (40_003, 8, 20),
    (50_001, 64, 64),
    (60_000, 40, 64),
    (50_000, 48, 16),
    (30_001, 33, 33),
    (20_000, 130, 64),
    (40_000, 70, 64),
    (9_999, 300, 5),
    (4_000, 1030, 7),
    (20_000, 4, 8),
    (20_000, 40, 1),
]


def blobs(n, d, k, dtype, seed=0, spread=1.0):
    X, _ = make_blobs(n, d, centers=k, cluster_std=spread, center_box=(-3, 3), random_state=seed)
    return X.astype(dtype)


def fit_both(X, k, **options):
    """Return the fits without bounds and with them; X is NumPy."""
    options = {"n_init": 1, "tol": 0, "init": X[:k].astype(np.float32 if X.dtype == np.float16 else X.dtype)} | options
    weights = options.pop("sample_weight", None)
    on_gpu = cupy.asarray(X)
    # Of so little data "lloyd" takes none.
    models = (TSKMeans(k, engine="fused", algorithm=name, **options) for name in ("lloyd", "elkan"))
    return [model.fit(on_gpu, sample_weight=weights) for model in models]


def assert_same(plain, bounds):
    assert bounds.n_iter_ == plain.n_iter_
    assert bounds.inertia_ == plain.inertia_
    for name in ("labels_", "cluster_centers_"):
        np.testing.assert_array_equal(oracle.host(getattr(bounds, name)), oracle.host(getattr(plain, name)))


@pytest.mark.parametrize("weighted", [False, True], ids=["alone", "weighted"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize(("n", "d", "k"), SHAPES)
@pytest.mark.parametrize("spread", [0.5, 3.0])
def test_the_same_bits(n, d, k, dtype, weighted, spread):
    X = blobs(n, d, k, dtype, spread=spread)
    weights = np.random.default_rng(1).random(n) + 0.1 if weighted else None
    assert_same(*fit_both(X, k, sample_weight=weights, max_iter=60))


@pytest.mark.parametrize(("d", "dtype"), [(40, np.float32), (32, np.float32), (40, np.float64)])
def test_uniform_data(d, dtype):
    X = np.random.default_rng(0).random((100_000, d)).astype(dtype)
    assert_same(*fit_both(X, 40, max_iter=100))


@pytest.mark.parametrize("d", [40, 32, 16])
@pytest.mark.parametrize("grain", [1.0, 0.25])
def test_ties(grain, d):
    X = np.round(blobs(50_000, d, 30, np.float32) / grain) * grain
    assert_same(*fit_both(X, 30, max_iter=60))


def test_more_than_64_clusters():
    assert_same(*fit_both(blobs(50_000, 32, 200, np.float32), 200, max_iter=30))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("max_iter", [1, 2, 3, 5, 60])
def test_empty_clusters(max_iter, dtype):
    X = blobs(20_000, 20, 8, dtype)
    init = np.concatenate([X[:6], X[:1] + 1e3, X[:1] - 1e3])  # two that no sample is near
    assert_same(*fit_both(X, 8, init=init, max_iter=max_iter))


def test_several_runs_and_a_tolerance():
    X = blobs(30_000, 40, 12, np.float32, spread=2.0)
    for options in ({"init": "random", "n_init": 4, "random_state": 0}, {"tol": 1e-3}, {"init": "k-means++"}):
        assert_same(*fit_both(X, 12, **({"random_state": 3} | options)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1e6, 1e15])
def test_any_magnitude(scale, dtype):
    X = (blobs(20_000, 24, 7, np.float64, spread=2.0) * scale + 100 * scale).astype(dtype)
    assert_same(*fit_both(X, 7, max_iter=40))


@pytest.mark.parametrize("d", [40, 32, 8])
def test_far_samples(d):
    X = blobs(30_000, d, 7, np.float32)
    X[5] *= 1e8
    X[6:20] *= 30
    assert_same(*fit_both(X, 7, max_iter=40))


def examined(X, k, max_iter=100, bounds=True):
    """Return a fit, in how many iterations rows were left out, and the rows scored in those."""
    with open_engine(cupy.asarray(X), engine="fused", bounds=bounds) as engine:
        state, init = np.random.RandomState(0), X[:k].astype(np.float64)
        found = lloyd.fit(engine, k, init=init, n_init=1, tol=0, max_iter=max_iter, random_state=state)
        return found, *engine.step_for(k).examined()


# Few features in float32 and float16, of multiply-adds and of products; and a copy.
@pytest.mark.parametrize(
    ("d", "k", "dtype"),
    [(32, 64, np.float32), (16, 16, np.float32), (32, 16, np.float16), (64, 16, np.float16), (100, 16, np.float32)],
)
def test_rows_are_left_out(d, k, dtype):
    n = 400_000
    X = blobs(n, d, k, dtype, spread=4 * (d / 32) ** 0.5)
    bounded, cut_short, rows = examined(X, k)
    assert bounded.n_iter > 10
    assert cut_short > 5
    # Of more than a quarter or 0.6 all are scored.
    assert 0 < rows < 0.3 * n * cut_short
    plain, *nothing = examined(X, k, bounds=False)
    assert nothing == [0, 0]
    np.testing.assert_array_equal(oracle.host(bounded.labels), oracle.host(plain.labels))
    np.testing.assert_array_equal(bounded.centers, plain.centers)


def test_long_rows_have_bounds_where_they_are_asked_for():
    assert examined(blobs(50_000, 300, 16, np.float32, spread=12.0), 16)[1] > 0


@pytest.mark.parametrize(("n", "d", "bounds"), [(1 << 21, 32, True), (1 << 20, 32, False), (1 << 17, 512, False)])
def test_by_default_what_they_pay_for_has_bounds(n, d, bounds):
    with open_engine(cupy.zeros((n, d), np.float16), engine="fused") as engine:
        engine.center(np.zeros(d, np.float32), 16)
        assert engine._selected[1].bounds is bounds


def test_iterations_without_bounds_are_not_counted():
    with open_engine(cupy.asarray(blobs(20_000, 32, 4, np.float32)), engine="fused") as engine:
        assert engine.step_for(4).examined() == (0, 0)


def test_none_where_labels_are_not_proved():
    """Of norms that are not what they are called, no gap could be told."""
    X = blobs(20_000, 130, 64, np.float32)
    assert_same(*fit_both(X, 64, max_iter=40, precision="tf32"))
