"""TSBalancedKMeans on the CPU: exact sizes, falling inertia, kinds of input, scikit-learn's protocols, errors."""

import doctest
import pickle

import numpy as np
import oracle
import pandas as pd
import pytest
from exhaustive import property_test
from hypothesis import strategies as st
from kmeans.balanced.problems import rounding
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks

import tsapps
from tsapps import TSBalancedKMeans, TSKMeans, open_matrix
from tsapps.apps.kmeans.balanced import contested, estimator


def fit(X, k, most=None, **options):
    return TSBalancedKMeans(k, most, **{"random_state": 0, "device": "cpu", **options}).fit(X)


def sizes(model):
    return np.bincount(oracle.host(model.labels_), minlength=model.n_clusters)


@pytest.fixture(name="X")
def blobs(rng):
    """Samples about four points, half of them about the first."""
    middles = np.repeat([[0.0, 0, 0], [5, 0, 0], [0, 5, 0], [5, 5, 5]], [200, 80, 70, 50], axis=0)
    return middles + rng.standard_normal((400, 3))


def test_examples_of_the_docstring():
    assert doctest.testmod(estimator).failed == 0


def test_public_name():
    assert tsapps.TSBalancedKMeans is tsapps.apps.kmeans.TSBalancedKMeans is TSBalancedKMeans


def test_by_hand():
    """From 0 and 9: pairs 0, 1 and 2, 9, whose means are 0.5 and 5.5; the pairs stay, though 2 is nearer to 0.5."""
    X = [[0.0], [1], [2], [9]]
    model = fit(X, 2, 2, init=[[0.0], [9]])
    np.testing.assert_array_equal(model.labels_, [0, 0, 1, 1])
    np.testing.assert_allclose(model.cluster_centers_, [[0.5], [5.5]])
    assert model.inertia_ == pytest.approx(0.5 + 24.5)
    assert (model.n_iter_, model.assignment_gap_, model.device_) == (2, 0.0, "cpu")
    np.testing.assert_array_equal(model.predict(X), [0, 0, 0, 1])
    np.testing.assert_allclose(model.transform([[1.5]]), [[1, 4]])
    assert model.score(X) == pytest.approx(-(0.5 + 1.5**2 + 3.5**2))


@property_test(
    25,
    500,
    st.integers(1, 60),
    st.integers(1, 8),
    st.integers(0, 3),
    st.floats(1, 3),
    st.sampled_from([np.float64, np.float32, np.int16]),
    st.integers(0, 2**32 - 1),
)
def test_sizes_are_exact(n, k, least, room, dtype, seed):
    k = min(k, n)
    most, least = int(-(-n // k) * room), min(least, n // k)
    X = (np.random.default_rng(seed).standard_cauchy((n, 2)) * 4).clip(-9999, 9999).astype(dtype)
    model = fit(X, k, most, min_cluster_size=least, max_iter=5, random_state=seed)
    assert least <= sizes(model).min() <= sizes(model).max() <= most
    assert 0 <= model.assignment_gap_ <= 1


def test_default_sizes_are_as_equal_as_the_largest_allows(X):
    assert sizes(fit(X, 7)).max() == 58  # ⌈400 / 7⌉
    assert set(sizes(fit(X, 7, min_cluster_size=57))) == {57, 58}
    assert list(sizes(fit(X, 4))) == [100, 100, 100, 100]


def inertias(X, k, iterations, **options):
    """Return the inertia about the last centers after each number of iterations."""
    return [fit(X, k, max_iter=i, tol=0, **options).inertia_ for i in range(1, iterations)]


@pytest.mark.parametrize("most_pairs", [contested.MOST_PAIRS, 0])
def test_inertia_never_increases(X, most_pairs, monkeypatch):
    monkeypatch.setattr(contested, "MOST_PAIRS", most_pairs)
    found = inertias(X, 6, 12, init=X[:6])
    assert (np.diff(found) <= rounding(X, X[:6])).all()
    assert found[-1] < found[0]


def test_the_end_is_a_fixed_point(X):
    model = fit(X, 5, tol=0)
    assert model.assignment_gap_ == 0
    means = [X[model.labels_ == j].mean(axis=0) for j in range(5)]
    np.testing.assert_allclose(model.cluster_centers_, means, rtol=0, atol=1e-12)
    expected = oracle.square_distances(X, model.cluster_centers_)[np.arange(400), model.labels_].sum()
    assert model.inertia_ == pytest.approx(expected, rel=1e-12)
    again = fit(X, 5, init=model.cluster_centers_, max_iter=1)
    np.testing.assert_array_equal(again.labels_, model.labels_)


@pytest.mark.parametrize("options", [{}, {"tol": 0}, {"max_iter": 1}])
def test_without_binding_limits_it_is_k_means(X, options):
    model, plain = fit(X, 4, 400, **options), TSKMeans(4, n_init=1, random_state=0, device="cpu", **options).fit(X)
    assert model.n_iter_ == plain.n_iter_
    np.testing.assert_array_equal(model.labels_, plain.labels_)
    np.testing.assert_allclose(model.cluster_centers_, plain.cluster_centers_, rtol=1e-12)
    assert model.inertia_ == pytest.approx(plain.inertia_)


def test_the_gap_is_reported_where_it_stays_open(X, monkeypatch):
    assert fit(X, 6).assignment_gap_ == 0
    monkeypatch.setattr(contested, "MOST_PAIRS", 0)
    model = fit(X, 6)
    assert 0 < model.assignment_gap_ < 0.05
    assert sizes(model).max() == 67


def test_the_best_run_is_kept(X):
    state = np.random.RandomState(3)
    each = [fit(X, 9, random_state=state, init="random").inertia_ for _ in range(4)]
    assert len(set(each)) > 1
    assert fit(X, 9, random_state=3, init="random", n_init=4).inertia_ == min(each)


@pytest.mark.parametrize("options", [{}, {"init": "k-means||"}, {"init": "random", "n_init": 2}])
def test_same_result_for_the_same_seed(X, options):
    first, second = (fit(X, 6, **options) for _ in range(2))
    np.testing.assert_array_equal(first.labels_, second.labels_)
    np.testing.assert_array_equal(first.cluster_centers_, second.cluster_centers_)


@pytest.mark.parametrize(
    "kind", [np.asfortranarray, pd.DataFrame, csr_array, np.ndarray.tolist, lambda X: X.astype(np.float32)]
)
def test_kinds_of_input(X, kind):
    given = kind(np.round(X * 8) / 8)
    model, expected = fit(given, 5), fit(np.round(X * 8) / 8, 5)
    np.testing.assert_array_equal(model.labels_, expected.labels_)
    np.testing.assert_allclose(model.cluster_centers_, expected.cluster_centers_, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(model.predict(given), expected.predict(np.round(X * 8) / 8))
    assert model.score(given) == pytest.approx(expected.score(np.round(X * 8) / 8), rel=1e-5)


def test_a_matrix_in_a_file(X, tmp_path):
    np.save(tmp_path / "x.npy", X)
    model = fit(open_matrix(tmp_path / "x.npy"), 5)
    np.testing.assert_array_equal(model.labels_, fit(X, 5).labels_)
    assert model.predict(open_matrix(tmp_path / "x.npy")).shape == (400,)


def test_torch(X):
    torch = pytest.importorskip("torch")
    model = fit(torch.from_numpy(X), 5)
    assert isinstance(model.labels_, torch.Tensor)
    assert isinstance(model.cluster_centers_, torch.Tensor)
    assert isinstance(model.predict(torch.from_numpy(X)), torch.Tensor)


def test_frames(X):
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    model = fit(frame, 3)
    assert list(model.feature_names_in_) == ["a", "b", "c"]
    expected = ["tsbalancedkmeans0", "tsbalancedkmeans1", "tsbalancedkmeans2"]
    assert list(model.get_feature_names_out()) == expected
    assert list(model.set_output(transform="pandas").transform(frame).columns) == expected
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(frame[["c", "a", "b"]])


def test_data_out_of_range_of_squares(X):
    """Squares of 1e200 overflow, so that X is scaled by a power of two: 2^664 leaves all digits."""
    model, scaled = fit(X, 5), fit(np.ldexp(X, 664), 5)
    np.testing.assert_array_equal(model.labels_, scaled.labels_)
    np.testing.assert_allclose(np.ldexp(model.cluster_centers_, 664), scaled.cluster_centers_, rtol=1e-12)
    np.testing.assert_array_equal(model.predict(X), scaled.predict(np.ldexp(X, 664)))


def test_far_from_zero(X):
    model, far = fit(X, 5), fit(X + 2.0**30, 5)
    np.testing.assert_array_equal(model.labels_, far.labels_)


def test_x_is_not_written(X):
    before = X.copy()
    fit(X, 5)
    np.testing.assert_array_equal(X, before)


def test_clone_and_pickle(X):
    model = fit(X, 5, 100, min_cluster_size=60)
    copied = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(copied.predict(X), model.predict(X))
    np.testing.assert_array_equal(clone(model).fit(X).labels_, model.labels_)


def test_fit_predict_has_the_labels_of_the_fit(X):
    model = TSBalancedKMeans(5, random_state=0, device="cpu")
    np.testing.assert_array_equal(model.fit_predict(X), model.labels_)
    assert (model.predict(X) != model.labels_).any()
    np.testing.assert_allclose(model.fit_transform(X), model.transform(X))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"max_cluster_size": 79}, "max_cluster_size=79 leaves room for 395 samples, .* expected at least 80"),
        ({"min_cluster_size": 81}, "min_cluster_size=81 needs 405 samples, but .* expected at most 80"),
        ({"n_clusters": 401}, "n_samples=400, n_clusters=401"),
        ({"n_clusters": 0}, "n_clusters"),
        ({"max_cluster_size": 80.0}, "max_cluster_size"),
        ({"min_cluster_size": -1}, "min_cluster_size"),
        ({"init": "best"}, "init"),
        ({"init": np.zeros((4, 3))}, "initial centers have shape"),
        ({"n_init": 0}, "n_init"),
        ({"max_iter": 0}, "max_iter"),
        ({"tol": -1.0}, "tol"),
        ({"device": "cuda:0,1"}, "device must be 'auto', 'cpu', 'cuda' or 'cuda:<number>', got"),
    ],
)
def test_parameters_out_of_range(X, parameters, message):
    with pytest.raises(ValueError, match=message):
        TSBalancedKMeans(**{"n_clusters": 5, "device": "cpu", **parameters}).fit(X)


def test_a_nan_in_a_matrix_is_named(X, tmp_path):
    X[7, 1] = np.nan
    np.save(tmp_path / "x.npy", X)
    with pytest.raises(ValueError, match="row 7, column 1 is nan"):
        fit(open_matrix(tmp_path / "x.npy"), 5)


def test_dask_collections_are_refused(X):
    da = pytest.importorskip("dask.array")
    with pytest.raises(ValueError, match="in one process, got a Dask collection"):
        fit(da.from_array(X), 5)


@parametrize_with_checks([TSBalancedKMeans(device="cpu")])
def test_estimator_checks(estimator, check):
    check(estimator)
