"""Results that hang together, wherever the data lies, however large or small, and whatever ties: on every path."""

import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from exhaustive import property_test
from hypothesis import strategies as st
from scipy.sparse import csc_matrix, csr_matrix
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score

from tsapps import TSKMeans, kmeans_batched
from tsapps.apps.kmeans import scikit_learn
from tsapps.apps.kmeans.data.frame import Frame, exponent_of, frame_about, is_in_range, overflow_exponent
from tsapps.apps.kmeans.data.rows import ArrayRows

# How X is given, and the parameters that choose what works on it.
ON_CPU = {
    "array": (np.asarray, {"device": "cpu"}),
    "blocks": (ArrayRows, {"device": "cpu"}),
    "protected": (np.asarray, {"device": "cpu", "protect": True}),
    "elkan": (np.asarray, {"device": "cpu", "algorithm": "elkan"}),
}
ON_GPU = {
    "fused": (np.asarray, {"device": "cuda", "engine": "fused"}),
    "cublas": (np.asarray, {"device": "cuda", "engine": "cublas"}),
    "protected-gpu": (np.asarray, {"device": "cuda", "protect": True}),
}
every_path = pytest.mark.parametrize("path", [*ON_CPU, *(pytest.param(name, marks=pytest.mark.gpu) for name in ON_GPU)])


def fitted(path, X, k, **options):
    """Fit by a path; return what was given to it, and the model."""
    given, chosen = (ON_CPU | ON_GPU)[path]
    return given(X), TSKMeans(k, **{"random_state": 0, **chosen, **options}).fit(given(X))


def assert_hangs_together(model, given, X):
    """Assert that a model's methods say of its own X what the fit said, and that both are true of its centers."""
    np.testing.assert_array_equal(model.predict(given), model.labels_)
    assert model.score(given) == pytest.approx(-model.inertia_, rel=1e-4 if X.dtype == np.float32 else 1e-12)
    centers = model.cluster_centers_.astype(np.longdouble)
    differences = X.astype(np.longdouble)[:, np.newaxis] - centers
    distances = np.sqrt((differences**2).sum(axis=2))
    spread = float(abs(X.astype(np.longdouble) - X.astype(np.longdouble).mean(axis=0)).max())
    # A row less the mean, and a center less the mean, are rounded once each, and a distance is rounded to X's dtype.
    unit = float(np.finfo(X.dtype).eps) * (X.shape[1] + 4) * spread
    if model.cluster_centers_.dtype == X.dtype:
        unit += float(np.finfo(X.dtype).eps) * float(abs(centers).max()) * X.shape[1] ** 0.5
    np.testing.assert_allclose(np.asarray(model.transform(given), np.longdouble), distances, rtol=1e-5, atol=2 * unit)


def blobs(rng, n, k, d, spread):
    """Return rows about k points, and which point each is about."""
    labels = rng.integers(0, k, n)
    return rng.uniform(-50, 50, (k, d))[labels] + spread * rng.standard_normal((n, d)), labels


@every_path
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_map_coordinates(path, dtype):
    X, labels = blobs(np.random.default_rng(0), 3000, 6, 2, 1)
    X = (X + np.array([500_000, 5_400_000])).astype(dtype)
    given, model = fitted(path, X, 6, n_init=3)
    assert adjusted_rand_score(labels, model.labels_) == 1
    assert_hangs_together(model, given, X)
    # Within the rounding of X itself, which is half a unit.
    means = np.stack([X[model.labels_ == j].astype(np.float64).mean(axis=0) for j in range(6)])
    np.testing.assert_allclose(model.cluster_centers_, means, rtol=0, atol=1e-2 if dtype == np.float32 else 1e-7)


@every_path
def test_seconds_since_1970(path):
    X = 1.7e9 + np.sort(np.random.default_rng(1).uniform(0, 1e6, (3000, 1)), axis=0)
    given, model = fitted(path, X, 5, n_init=1)
    assert_hangs_together(model, given, X)


@property_test(
    25,
    800,
    path=st.sampled_from(list(ON_CPU)),
    dtype=st.sampled_from([np.float32, np.float64]),
    magnitude=st.integers(-12, 12),
    offset=st.integers(-8, 5),
    d=st.integers(1, 5),
    k=st.integers(1, 7),
    whole=st.booleans(),
    seed=st.integers(0, 2**31 - 1),
)
def test_any_magnitude(path, dtype, magnitude, offset, d, k, whole, seed):
    rng = np.random.default_rng(seed)
    X, _ = blobs(rng, int(rng.integers(k, 120)), k, d, 5)
    X = (np.round(X / 10) if whole else X) + rng.uniform(-1, 1, d) * 10.0**offset
    X = (X * 10.0**magnitude).astype(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        given, model = fitted(path, X, k, n_init=1)
    assert_hangs_together(model, given, X)


@every_path
@pytest.mark.parametrize(
    ("dtype", "scale"),
    [
        *((np.float32, scale) for scale in (1e20, 3e36, 1e-25, 1e-36)),
        *((np.float64, scale) for scale in (1e160, 1e300, 1e-200)),
    ],
)
def test_blobs_whose_squares_are_out_of_range(path, dtype, scale):
    X, labels = blobs(np.random.default_rng(2), 500, 4, 3, 1)
    X = X.astype(dtype)
    _, expected = fitted(path, X, 4, n_init=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given, model = fitted(path, (X * dtype(scale)), 4, n_init=3)
    assert adjusted_rand_score(labels, model.labels_) == 1
    np.testing.assert_array_equal(model.labels_, model.predict(given))
    np.testing.assert_allclose(model.cluster_centers_ / scale, expected.cluster_centers_, rtol=1e-4)
    with np.errstate(over="ignore", under="ignore"):
        inertia = np.float64(expected.inertia_) * np.float64(scale) * np.float64(scale)
        near = model.transform(given).min(axis=1) / scale
    assert model.inertia_ == pytest.approx(inertia, rel=1e-4, abs=1e-320)
    assert model.score(given) == pytest.approx(-model.inertia_, rel=1e-4, abs=1e-320)
    assert float((near.astype(np.float64) ** 2).sum()) == pytest.approx(expected.inertia_, rel=1e-4)


def test_an_inertia_that_overflows_is_said():
    X = np.array([[0.0], [1e200], [-1e200]])
    with pytest.warns(RuntimeWarning, match="the inertia overflows float64"):
        TSKMeans(1, device="cpu").fit(X)


@pytest.mark.gpu
@pytest.mark.parametrize("scale", [1e20, 1e-25])
def test_batched_problems_that_are_out_of_range(scale):
    X = np.stack([blobs(np.random.default_rng(seed), 200, 3, 4, 1)[0] for seed in range(4)]).astype(np.float32)
    X[1] *= np.float32(scale)
    found = kmeans_batched(X, 3, random_state=0, device="cuda")
    for problem in range(4):
        expected = TSKMeans(3, random_state=problem, device="cpu", n_init=1).fit(X[problem])
        assert adjusted_rand_score(expected.labels_, found.labels[problem]) == 1
        assert found.inertia[problem] == pytest.approx(expected.inertia_, rel=1e-4)


@pytest.mark.parametrize("path", list(ON_CPU))
def test_rows_that_overflow_only_in_predict(path):
    X, _ = blobs(np.random.default_rng(3), 300, 3, 2, 1)
    _, model = fitted(path, X.astype(np.float32), 3)
    far = np.array([[3e38, 0], [0, -3e38], [0, 0]], np.float32)
    centers = model.cluster_centers_.astype(np.longdouble)
    # Differences of such lengths would round all that tells centers apart.
    expected = ((centers**2).sum(axis=1) - 2 * far.astype(np.longdouble) @ centers.T).argmin(axis=1)
    np.testing.assert_array_equal(model.predict((ON_CPU[path][0])(far)), expected)


@every_path
@pytest.mark.parametrize("seed", range(4))
def test_more_clusters_than_distinct_rows(path, seed):
    rng = np.random.default_rng(seed)
    X = np.repeat(rng.standard_normal((5, 3)), 10, axis=0)
    with pytest.warns(ConvergenceWarning):
        given, model = fitted(path, X, 20, random_state=seed)
    # Every row is as near to a center as the mean of ten equal numbers is rounded, by kernels to 46 bits.
    assert model.inertia_ <= 50 * 3 * (10 * 2.0**-46 * abs(X).max()) ** 2
    assert_hangs_together(model, given, X)


@property_test(
    20,
    500,
    path=st.sampled_from(list(ON_CPU)),
    init=st.sampled_from(["k-means++", "random", "k-means||"]),
    distinct=st.integers(1, 6),
    k=st.integers(1, 12),
    seed=st.integers(0, 2**31 - 1),
)
def test_labels_are_those_of_the_final_centers(path, init, distinct, k, seed):
    rng = np.random.default_rng(seed)
    X = rng.integers(-4, 5, (distinct, 2)).astype(float)[rng.integers(0, distinct, k + 20)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        given, model = fitted(path, X, k, init=init, n_init=2, random_state=seed % 1000)
    distances = ((X[:, np.newaxis] - model.cluster_centers_) ** 2).sum(axis=2)
    own = distances[np.arange(len(X)), model.labels_]
    assert (own <= distances.min(axis=1) + 1e-12).all()
    assert model.inertia_ == pytest.approx(own.sum(), abs=1e-12)
    np.testing.assert_array_equal(model.predict(given), model.labels_)


TIES = {
    "ratings": lambda rng: rng.integers(1, 6, (500, 20)).astype(float),
    "binary": lambda rng: rng.integers(0, 2, (400, 30)).astype(float),
    "one-hot": lambda rng: np.eye(9)[rng.integers(0, 9, 300)],
    "duplicates": lambda rng: rng.standard_normal((30, 3))[rng.integers(0, 30, 400)],
    "float32": lambda rng: rng.integers(1, 6, (500, 20)).astype(np.float32),
}


@pytest.mark.parametrize("path", list(ON_CPU))
@pytest.mark.parametrize("kind", list(TIES))
def test_ties_are_scikit_learns(path, kind):
    for seed in range(5):
        X = TIES[kind](np.random.default_rng(seed))
        k = min(12, len(np.unique(X, axis=0)))
        expected = KMeans(k, random_state=seed, algorithm="elkan" if path == "elkan" else "lloyd").fit(X)
        given, model = fitted(path, X, k, random_state=seed)
        np.testing.assert_array_equal(model.labels_, expected.labels_)
        np.testing.assert_array_equal(model.predict(given), model.labels_)


def test_ties_of_elkan_do_not_depend_on_what_came_before():
    for seed in range(100):
        X = 10 * np.random.default_rng(seed).integers(0, 20, (60, 1)).astype(np.float32)
        given, model = fitted("elkan", X, 5, random_state=seed)
        np.testing.assert_array_equal(model.predict(given), model.labels_)


@every_path
def test_what_a_caller_gives_is_not_written(path):
    X, _ = blobs(np.random.default_rng(4), 400, 5, 3, 20)
    kept = X.copy()

    def first_rows(rows, k, random_state):
        return rows[:k]

    given, model = fitted(path, X, 5, init=first_rows)
    np.testing.assert_array_equal(X, kept)
    means = np.stack([X[model.labels_ == j].mean(axis=0) for j in range(5)])
    assert model.n_iter_ < 300
    np.testing.assert_allclose(model.cluster_centers_, means, rtol=0, atol=1e-3 * abs(X).max())
    assert_hangs_together(model, given, X)
    init = X[:5].copy()
    _, other = fitted(path, X, 5, init=init)
    np.testing.assert_array_equal(init, kept[:5])
    assert other.inertia_ == pytest.approx(model.inertia_, rel=1e-12)
    weights = np.ones(len(X))
    model.fit(given, sample_weight=weights)
    np.testing.assert_array_equal(weights, 1)


@every_path
@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_first_centers_that_are_not_finite(path, wrong):
    X = np.random.default_rng(5).standard_normal((50, 2))
    init = X[:3].copy()
    init[1, 0] = wrong
    for one in (init, lambda rows, k, random_state: init):
        with pytest.raises(ValueError, match=r"NaN|infinity|finite"):
            fitted(path, X, 3, init=one, n_init=1)


@every_path
@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.zeros(50), "zero for every sample"),
        (np.full(50, -1.0), r"sample_weight\[0\] is -1"),
        (np.r_[np.ones(49), -0.5], r"sample_weight\[49\] is -0.5"),
        (np.r_[np.ones(49), np.nan], "NaN or an infinity"),
    ],
)
def test_weights_that_are_none(path, weights, message):
    X = np.random.default_rng(6).standard_normal((50, 2))
    given, options = (ON_CPU | ON_GPU)[path]
    for one in (weights, weights.tolist()):
        with pytest.raises(ValueError, match=message):
            TSKMeans(3, **options).fit(given(X), sample_weight=one)


@pytest.mark.parametrize("path", list(ON_CPU))
@pytest.mark.parametrize("fit_dtype", [np.float32, np.float64])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int32, np.bool_])
def test_predict_takes_other_dtypes_than_fit(path, fit_dtype, dtype):
    rng = np.random.default_rng(7)
    X, _ = blobs(rng, 300, 4, 3, 1)
    _, model = fitted(path, X.astype(fit_dtype), 4)
    other = X.astype(dtype)
    distances = ((other.astype(float)[:, np.newaxis] - model.cluster_centers_) ** 2).sum(axis=2)
    given = ON_CPU[path][0](other)
    np.testing.assert_array_equal(model.predict(given), distances.argmin(axis=1))
    np.testing.assert_allclose(np.asarray(model.transform(given)).astype(float), np.sqrt(distances), rtol=1e-4)
    assert model.score(given) == pytest.approx(-distances.min(axis=1).sum(), rel=1e-4)


@pytest.mark.parametrize("options", [{}, {"protect": True}])
@pytest.mark.parametrize("kind", [csr_matrix, csc_matrix])
@pytest.mark.parametrize("fit_dtype", [np.float32, np.float64])
def test_sparse_matrices_with_wide_indices_and_other_dtypes(options, kind, fit_dtype):
    rng = np.random.default_rng(8)
    X = rng.standard_normal((200, 6)) * (rng.random((200, 6)) < 0.3)
    expected = TSKMeans(3, random_state=0, device="cpu", **options).fit(csr_matrix(X.astype(fit_dtype)))
    for dtype in (np.float32, np.float64):
        wide = kind(X.astype(dtype))
        wide.indices, wide.indptr = wide.indices.astype(np.int64), wide.indptr.astype(np.int64)
        model = TSKMeans(3, random_state=0, device="cpu", **options).fit(wide)
        np.testing.assert_array_equal(model.labels_, expected.labels_)
        np.testing.assert_array_equal(expected.predict(wide), expected.labels_)


@pytest.fixture
def small_blocks(monkeypatch):
    """Passes by many blocks of about 100 rows, and by several threads."""
    monkeypatch.setattr(scikit_learn, "_BLOCK_BYTES", 1 << 11)
    monkeypatch.setattr(scikit_learn, "_SMALL_BYTES", 0)


@pytest.mark.usefixtures("small_blocks")
def test_passes_by_blocks_of_several_threads_at_once():
    """Threads of several calls share helpers; no call gets a part of another's result."""
    X, _ = blobs(np.random.default_rng(12), 5000, 6, 3, 2.0)
    X += 1e5
    model = TSKMeans(6, random_state=0, device="cpu").fit(X)
    assert_hangs_together(model, X, X)
    parts = [X[start:] for start in range(8)]
    with ThreadPoolExecutor(len(parts)) as callers:
        for start, labels in enumerate(callers.map(model.predict, parts)):
            np.testing.assert_array_equal(labels, model.labels_[start:])


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("row", [0, 2499, 4999])
def test_what_is_not_finite_is_found_in_any_block(row):
    X, _ = blobs(np.random.default_rng(13), 5000, 4, 3, 2.0)
    model = TSKMeans(4, random_state=0, device="cpu").fit(X)
    wrong = X.copy()
    wrong[row, 1] = np.nan
    for call in (model.predict, model.score, model.transform):
        with pytest.raises(ValueError, match="Input X contains NaN"):
            call(wrong)
    assert_hangs_together(model, X, X)


def test_centers_that_a_caller_sets_are_used():
    X, _ = blobs(np.random.default_rng(9), 300, 4, 2, 1)
    model = TSKMeans(4, random_state=0, device="cpu").fit(X)
    n_reassigned = model.cluster_centers_[::-1].copy()
    labels = model.predict(X)
    model.cluster_centers_ = n_reassigned
    np.testing.assert_array_equal(model.predict(X), 3 - labels)
    model.cluster_centers_[:] = n_reassigned[::-1]
    np.testing.assert_array_equal(model.predict(X), labels)


@pytest.mark.parametrize("protect", [False, True])
@pytest.mark.parametrize(
    "kind", [np.asarray, ArrayRows, lambda X: X.tolist(), "torch"], ids=["numpy", "rows", "list", "torch"]
)
def test_centers_that_a_caller_writes_to_are_used(kind, protect):
    X, _ = blobs(np.random.default_rng(9), 300, 4, 2, 1)
    data = pytest.importorskip("torch").from_numpy(X) if kind == "torch" else kind(X)
    model = TSKMeans(4, random_state=0, protect=protect, device="cpu").fit(data)
    labels = np.asarray(model.predict(data))
    in_place = np.asarray(model.cluster_centers_)  # a view, also of a tensor
    in_place[...] = in_place[::-1].copy()
    np.testing.assert_array_equal(np.asarray(model.predict(data)), 3 - labels)


def test_centers_beyond_the_working_type_are_restored_in_float64():
    centers = Frame(np.array([3e38], np.float32)).restored(np.array([[3e38], [1]], np.float32))
    assert centers.dtype == np.float64
    np.testing.assert_allclose(centers, [[6e38], [3e38]], rtol=1e-6)


def test_a_frame_by_hand():
    frame = Frame(np.array([1.0, -2.0], np.float32), exponent=3)
    rows = np.array([[16.0, 8.0]], np.float32)
    np.testing.assert_array_equal(frame.centered(rows), [[1.0, 3.0]])
    np.testing.assert_array_equal(frame.restored(frame.centered(rows)), rows)
    assert frame.restored(frame.centered(rows)).dtype == np.float32
    # 5,400,000.3 is no float32, which has steps of a half there.
    far = Frame(np.array([5_400_000.5], np.float32))
    assert far.restored(np.array([[-0.25], [0.25]], np.float32)).tolist() == [[5_400_000.25], [5_400_000.75]]


def test_ranges_by_hand():
    assert is_in_range(np.dtype(np.float32), 1.0, 1e6)
    assert not is_in_range(np.dtype(np.float32), 1.0, 1e38)
    assert not is_in_range(np.dtype(np.float32), 1e-30, 1.0)
    assert is_in_range(np.dtype(np.float64), 1e-250, 1e300)
    assert not is_in_range(np.dtype(np.float64), np.nan, np.nan)
    assert exponent_of(0.5) == 1
    assert exponent_of(0.0) == 0
    assert overflow_exponent(np.full((1, 2), 1e30, np.float32), np.ones((1, 2), np.float32)) == 100
    assert overflow_exponent(np.full((1, 2), 1e10, np.float32), np.ones((1, 2), np.float32)) == 0
    assert frame_about(np.array([[1e200], [3e200]]), np.dtype(float)).exponent > 600
    near = frame_about(np.array([[1.0], [3.0]]), np.dtype(float))
    assert (near.mean, near.exponent) == (2, 0)
