"""Spherical K-means, metric="cosine", on the CPU: by hand, against a plain reference, and what must not matter."""

import warnings

import ml_dtypes
import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from sklearn.base import clone

from tsapps import TSKMeans
from tsapps.apps.kmeans import lloyd
from tsapps.apps.kmeans.data.host_data import HostData
from tsapps.apps.kmeans.data.rows import ArrayRows
from tsapps.apps.kmeans.open_engine import open_engine


def unit(X):
    X = np.asarray(X, np.float64)
    return X / np.linalg.norm(X, axis=1, keepdims=True)


def spherical_kmeans(X, centers, iterations, weights=None):
    """Spherical K-means from its definition: (labels, centers, Σ w·(1 − cos)), in float64."""
    X, centers = unit(X), unit(centers)
    weights = np.ones(len(X)) if weights is None else weights
    labels = None
    for _ in range(iterations):
        before, labels = labels, (X @ centers.T).argmax(axis=1)
        for j in range(len(centers)):
            centers[j] = unit([weights[labels == j] @ X[labels == j]])[0]
        if before is not None and (before == labels).all():
            break
    labels = (X @ centers.T).argmax(axis=1)
    return labels, centers, weights @ (1 - (X * centers[labels]).sum(axis=1))


@pytest.fixture(name="X")
def directions(rng):
    """Twelve bundles of directions, of any length."""
    middles = rng.standard_normal((12, 9))
    X = middles[rng.integers(0, 12, 2000)] + 0.4 * rng.standard_normal((2000, 9))
    return X * rng.uniform(0.1, 10, (2000, 1))


def test_by_hand():
    # Directions 0°, 60° and 180°, 240°, of several lengths: two pairs, whose middles are 30° and 210°. Every sample
    # lies 30° from its middle.
    angles, lengths = np.deg2rad([0, 60, 180, 240]), np.array([1.0, 5, 0.25, 2])
    X = lengths[:, np.newaxis] * np.column_stack([np.cos(angles), np.sin(angles)])
    kmeans = TSKMeans(2, init=X[[0, 2]], metric="cosine", device="cpu").fit(X)
    assert kmeans.labels_.tolist() == [0, 0, 1, 1]
    middle = [np.sqrt(3) / 2, 0.5]
    np.testing.assert_allclose(kmeans.cluster_centers_, [middle, np.negative(middle)], atol=1e-15)
    assert kmeans.inertia_ == pytest.approx(4 * (1 - np.sqrt(3) / 2))
    assert kmeans.n_iter_ == 2
    near, far = 1 - np.sqrt(3) / 2, 1 + np.sqrt(3) / 2
    np.testing.assert_allclose(kmeans.transform(X), [[near, far]] * 2 + [[far, near]] * 2, atol=1e-15)
    assert kmeans.predict([[3.0, 1], [-1, 0]]).tolist() == [0, 1]
    assert kmeans.score(X) == pytest.approx(-kmeans.inertia_)


def test_samples_that_cancel_keep_their_center():
    # The first two lie 90° from both centers, go to the first, and have no direction in common.
    X = np.array([[0.0, 1], [0, -3], [-2, 0]])
    kmeans = TSKMeans(2, init=[[5.0, 0], [-1, 0]], metric="cosine", device="cpu").fit(X)
    assert kmeans.labels_.tolist() == [0, 0, 1]
    np.testing.assert_array_equal(kmeans.cluster_centers_, [[1, 0], [-1, 0]])
    assert kmeans.inertia_ == pytest.approx(2)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("iterations", [1, 3, 100])
def test_the_reference(X, rng, iterations, weighted):
    weights = rng.random(len(X)) if weighted else None
    parameters = {"init": X[:12], "max_iter": iterations, "tol": 0, "metric": "cosine", "device": "cpu"}
    kmeans = TSKMeans(12, **parameters).fit(X, sample_weight=weights)
    labels, centers, inertia = spherical_kmeans(X, X[:12], iterations, weights)
    np.testing.assert_array_equal(kmeans.labels_, labels)
    np.testing.assert_allclose(kmeans.cluster_centers_, centers, atol=1e-12)
    assert kmeans.inertia_ == pytest.approx(inertia, rel=1e-10)


@pytest.mark.parametrize(
    "init", ["k-means++", "random", lambda X, k, random_state: X[random_state.permutation(len(X))[:k]]]
)
def test_seeds_are_samples_of_norm_1(X, init):
    whole = TSKMeans(12, init=init, n_init=1, random_state=3, metric="cosine", device="cpu").fit(X)
    of_unit = TSKMeans(12, init=init, n_init=1, random_state=3, metric="cosine", device="cpu").fit(unit(X))
    np.testing.assert_array_equal(whole.labels_, of_unit.labels_)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16, np.int32, np.uint8])
def test_every_dtype(X, dtype):
    X = abs(X * 20).round() + 1 if np.dtype(dtype).kind in "iu" else X
    X = X.astype(dtype)
    kmeans = TSKMeans(12, init=X[:12].astype(np.float64), max_iter=5, tol=0, metric="cosine", device="cpu").fit(X)
    labels, centers, inertia = spherical_kmeans(X, X[:12], 5)
    work = np.float32 if dtype is np.float32 else np.float64
    assert kmeans.cluster_centers_.dtype == work
    np.testing.assert_array_equal(kmeans.labels_, labels)
    np.testing.assert_allclose(kmeans.cluster_centers_, centers, atol=1e-5 if work is np.float32 else 1e-12)
    assert kmeans.inertia_ == pytest.approx(inertia, rel=1e-5)
    np.testing.assert_array_equal(kmeans.predict(X), kmeans.labels_)
    cosines = unit(X) @ unit(kmeans.cluster_centers_).T
    np.testing.assert_allclose(kmeans.transform(X), 1 - cosines, atol=1e-6 if work is np.float32 else 1e-13)
    assert kmeans.score(X) == pytest.approx(-kmeans.inertia_, rel=1e-6)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), dtype=st.sampled_from([np.float32, np.float64]), binary=st.booleans())
def test_lengths_do_not_matter(seed, dtype, binary):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((200, 4)).astype(dtype)
    most = 60 if dtype is np.float64 else 30
    scales = np.exp2(rng.integers(-most, most, (200, 1))) if binary else rng.uniform(0.5, 2, (200, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one, other = (
            TSKMeans(5, random_state=0, metric="cosine", device="cpu").fit(Y) for Y in (X, (X * scales).astype(dtype))
        )
    if binary:  # to the last bit
        np.testing.assert_array_equal(one.labels_, other.labels_)
        np.testing.assert_array_equal(one.cluster_centers_, other.cluster_centers_)
    elif (one.labels_ == other.labels_).all():
        np.testing.assert_allclose(one.cluster_centers_, other.cluster_centers_, atol=1e-4)
    norms = np.linalg.norm(one.cluster_centers_.astype(np.float64), axis=1)
    np.testing.assert_allclose(norms, 1, atol=4 * np.finfo(dtype).eps)


@pytest.mark.parametrize("largest", [1e-300, 1e300])
def test_no_square_overflows(X, largest):
    kmeans = TSKMeans(12, init=X[:12], metric="cosine", device="cpu")
    expected = clone(kmeans).fit(X)
    np.testing.assert_array_equal(kmeans.fit(X * (largest / abs(X).max())).labels_, expected.labels_)


def test_one_step_is_euclidean_on_unit_rows(X):
    """Where both are defined: labels, the cluster of every sample, and the inertia, which is half."""
    X = unit(X)
    euclidean, cosine = (open_engine(X, device="cpu", metric=metric) for metric in ("euclidean", "cosine"))
    steps = [engine.step_for(12).assign(X[:12].copy()) for engine in (euclidean, cosine)]
    np.testing.assert_array_equal(euclidean.blocks.labels, cosine.blocks.labels)
    np.testing.assert_allclose(steps[0].sums, steps[1].sums, atol=1e-11)
    assert cosine.blocks.inertia(X[:12]) == pytest.approx(euclidean.blocks.inertia(X[:12]) / 2)
    np.testing.assert_allclose(cosine.data.distances(X[:12]), euclidean.data.distances(X[:12]) ** 2 / 2, atol=1e-14)
    final = TSKMeans(12, init=X[:12], tol=0, metric="cosine", device="cpu").fit(X)
    by_distance = oracle.square_distances(X, final.cluster_centers_).argmin(axis=1)
    np.testing.assert_array_equal(final.labels_, by_distance)


def test_empty_clusters_move_to_the_farthest_samples(X):
    init = np.concatenate([X[:10], -X[:1], -X[:1]])  # the last is never the nearest: the one before is as near
    kmeans = TSKMeans(12, init=init, max_iter=1, metric="cosine", device="cpu").fit(X)
    assert len(np.unique(kmeans.labels_)) == 12
    labels = (unit(X) @ unit(init).T).argmax(axis=1)
    assert 11 not in labels
    farthest = (unit(X) * unit(init)[labels]).sum(axis=1).argmin()
    np.testing.assert_allclose(kmeans.cluster_centers_[11], unit(X)[farthest], atol=1e-12)


def test_blocks_frames_and_sparse_rows_as_arrays(X, monkeypatch):
    X[X < 0.2] = 0
    X = X[X.any(axis=1)]
    kmeans = TSKMeans(12, random_state=1, metric="cosine", device="cpu")
    expected = clone(kmeans).fit(X)
    others = [ArrayRows(X), csr_matrix(X), X.tolist(), np.asfortranarray(X)]
    found = [clone(kmeans).fit(other) for other in others]
    monkeypatch.setattr(HostData, "fits", lambda self, size: False)
    found.append(clone(kmeans).fit(ArrayRows(X)))  # read in every pass
    for model in found:
        np.testing.assert_array_equal(model.labels_, expected.labels_)
        np.testing.assert_array_equal(model.cluster_centers_, expected.cluster_centers_)
        assert model.inertia_ == expected.inertia_
    for other in others[:2]:
        np.testing.assert_array_equal(expected.predict(other), expected.labels_)
        np.testing.assert_array_equal(expected.transform(other), expected.transform(X))


def test_never_writes_to_the_callers_array(X):
    before = X.copy()
    TSKMeans(3, metric="cosine", device="cpu", copy_x=False, random_state=0).fit(X).predict(X)
    np.testing.assert_array_equal(X, before)


def test_progress_is_the_inertia(X):
    seen = []
    engine = open_engine(X, device="cpu", metric="cosine")
    found = lloyd.fit(engine, 5, random_state=np.random.RandomState(0), tol=0, progress=seen.append)
    assert seen[-1].inertia == pytest.approx(found.inertia, rel=1e-9)


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (0.0, r"X: row 1500 is zero, and has no direction: metric='cosine' needs"),
        (np.nan, r"X: row 1500, column 0 is nan: K-means needs finite numbers"),
        (-np.inf, r"X: row 1500, column 0 is -inf"),
    ],
)
def test_bad_rows(X, value, message, blocks):
    bad = X.copy()
    bad[1500] = value
    bad = ArrayRows(bad) if blocks else bad
    kmeans = TSKMeans(3, metric="cosine", device="cpu")
    with pytest.raises(ValueError, match=message):
        kmeans.fit(bad)
    with pytest.raises(ValueError, match=message):
        kmeans.fit(X).predict(bad)


def test_bad_arguments(X):
    for given_X in (X, ArrayRows(X)):
        with pytest.raises(ValueError, match="metric must be one of 'euclidean', 'cosine', got 'manhattan'"):
            TSKMeans(3, metric="manhattan", device="cpu").fit(given_X)
    with pytest.raises(ValueError, match="initial center 1 is zero, and has no direction"):
        TSKMeans(2, init=[[1.0] * 9, [0.0] * 9], metric="cosine", device="cpu").fit(X)
    with pytest.raises(ValueError, match=r"initial centers have shape \(1, 9\)"):
        TSKMeans(2, init=X[:1], metric="cosine", device="cpu").fit(X)
