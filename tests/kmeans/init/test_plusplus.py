"""The first centers: scikit-learn's draws, on small data to the last bit and on large data as real numbers."""

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from sklearn.cluster import KMeans, kmeans_plusplus
from sklearn.datasets import make_blobs

from tsapps import TSKMeans
from tsapps.apps.kmeans import lloyd
from tsapps.apps.kmeans.data.rows import ArrayRows
from tsapps.apps.kmeans.init import oversampling, plusplus
from tsapps.apps.kmeans.open_engine import open_engine


def seeds_of(centers, X):
    return [int(np.flatnonzero((X == center).all(axis=1))[0]) for center in centers]


@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_samples_that_scikit_learn_draws(rng, monkeypatch, dtype, weighted, small):
    # 500 samples: far too few for the rounding of a running sum to move a draw, so both ways must find the same ones.
    X = rng.standard_normal((500, 5)).astype(dtype)
    weights = rng.random(500).astype(dtype) if weighted else None
    if not small:
        monkeypatch.setattr("tsapps.apps.kmeans.data.blocks.SMALL", 0)
    for seed in range(5):
        _, expected = kmeans_plusplus(X, 12, sample_weight=weights, random_state=np.random.RandomState(seed))
        engine = open_engine(X, device="cpu", sample_weight=weights)
        centers = plusplus.kmeans_plusplus(engine.data, 12, np.random.RandomState(seed))
        assert seeds_of(centers, X) == expected.tolist()


def test_three_points_by_hand():
    # Points 0, 1 and 100 on a line. Whatever comes first, the second of two centers is drawn among 2 candidates with
    # probability D² / ΣD², and the better kept: from 0 or 1 that is 100 unless both draws fall on the near point, which
    # has 1 chance in 10⁴ each; from 100, 0 and 1 leave the same potential, 1, and the first drawn is kept.
    X = np.array([[0.0], [1.0], [100.0]])
    engine = open_engine(X, device="cpu")
    for seed in range(20):
        first, second = plusplus.kmeans_plusplus(engine.data, 2, np.random.RandomState(seed)).ravel()
        assert (second == 100) == (first != 100)


def test_a_draw_past_the_end_is_the_last_sample(rng):
    X = rng.standard_normal((50, 2))

    class AlmostOne(np.random.RandomState):
        def uniform(self, size):
            return np.full(size, 1 + 1e-9)

    centers = plusplus.kmeans_plusplus(open_engine(X, device="cpu").data, 2, AlmostOne(0))
    assert seeds_of(centers, X)[1] == 49


def test_random_samples_differ_and_follow_the_weights(rng):
    # That they are scikit-learn's is shown by whole fits with init="random" in test_lloyd.py.
    X = rng.standard_normal((40, 3))
    weights = np.where(np.arange(40) % 4 == 0, 1.0, 0.0)
    engine = open_engine(X, device="cpu", sample_weight=weights)
    found = plusplus.random_samples(engine.data, 10, np.random.RandomState(7))
    assert sorted(seeds_of(found, X)) == list(range(0, 40, 4))


# --- k-means‖ ---------------------------------------------------------------------------------------------------------


def drawn_in_parallel(X, k, seed, weights=None, block_rows=None):
    engine = open_engine(X, device="cpu", sample_weight=weights)
    if block_rows is not None:
        engine.data.block_rows = lambda n_columns: block_rows
    return oversampling.kmeans_parallel(engine.data, k, np.random.RandomState(seed), engine.oversampling(k))


def reference_in_parallel(X, k, seed, weights=None):
    """k-means‖ with all distances of all samples to all candidates at once."""
    state, X, w = np.random.RandomState(seed), X.astype(np.float64), np.ones(len(X)) if weights is None else weights
    drawn, rounds = [state.choice(len(X), p=w / w.sum())], 0
    while True:
        distances = oracle.square_distances(X, X[drawn])
        count = np.bincount(distances.argmin(axis=1), weights=w, minlength=len(drawn))
        running = np.cumsum(w * distances.min(axis=1))
        if running[-1] == 0 or (rounds >= 5 and (count > 0).sum() >= k):
            break
        found = np.searchsorted(running, state.uniform(size=2 * k) * running[-1])
        drawn += sorted(set(found.tolist()))
        rounds += 1
    kept = np.array(drawn)[count > 0]
    if len(kept) <= k:
        return X[np.resize(kept, k)], rounds
    return kmeans_plusplus(X[kept], k, sample_weight=count[count > 0], random_state=state)[0], rounds


def test_parallel_draws_by_hand():
    # Of three points on a line every one is drawn (each round takes one that is not, while there is one), and counts
    # for itself alone: the two that k-means++ then takes of them are 100 and another.
    for seed in range(10):
        found = drawn_in_parallel(np.array([[0.0], [1], [100]]), 2, seed).ravel()
        assert 100 in found
        assert set(found) < {0, 1, 100}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("n", "d", "k"), [(50, 1, 3), (700, 5, 8), (300, 40, 30), (64, 3, 64)])
def test_parallel_draws_are_the_references(rng, n, d, k, weighted):
    X = rng.standard_normal((n, d))
    weights = rng.random(n) * (np.arange(n) % 5 > 0) if weighted else None
    for seed in range(3):
        expected, _ = reference_in_parallel(X, k, seed, weights)
        for block_rows in (None, 37):
            np.testing.assert_array_equal(drawn_in_parallel(X, k, seed, weights, block_rows), expected)


def test_ties_count_for_the_sample_drawn_first(rng):
    X = rng.integers(-4, 5, (300, 2)).astype(np.float64)
    for seed in range(10):
        np.testing.assert_array_equal(drawn_in_parallel(X, 6, seed), reference_in_parallel(X, 6, seed)[0])


def test_further_rounds_where_five_find_too_few():
    # Nearly all of Σ D² is in the farthest samples: a round finds but a few of them.
    X = 4.0 ** np.arange(40)[:, np.newaxis]
    expected, rounds = reference_in_parallel(X, 20, 0)
    assert rounds > oversampling.ROUNDS
    found = drawn_in_parallel(X, 20, 0)
    np.testing.assert_array_equal(found, expected)
    assert len(set(found.ravel().tolist())) == 20


def test_fewer_distinct_samples_than_centers():
    X = np.repeat([[0.0, 1], [5, 5], [-2, 3]], 20, axis=0)
    found = drawn_in_parallel(X, 8, 0)
    assert sorted(set(map(tuple, found))) == [(-2, 3), (0, 1), (5, 5)]
    np.testing.assert_array_equal(found[3:6], found[:3])
    np.testing.assert_array_equal(drawn_in_parallel(X[:20], 3, 0), X[:3])


@settings(max_examples=30, deadline=None)
@given(
    n=st.integers(1, 120), d=st.integers(1, 5), k=st.integers(1, 20), seed=st.integers(0, 2**16), float32=st.booleans()
)
def test_parallel_draws_are_distinct_samples(n, d, k, seed, float32):
    rng = np.random.default_rng(seed)
    X = rng.integers(-3, 4, (n, d)).astype(np.float32 if float32 else np.float64)
    found = drawn_in_parallel(X, k, seed)
    assert found.shape == (k, d)
    assert found.dtype == X.dtype
    samples, centers = set(map(tuple, X.tolist())), list(map(tuple, found.tolist()))
    assert set(centers) <= samples
    assert len(set(centers)) == min(k, len(samples))


def test_one_center_in_every_blob():
    X, labels = make_blobs(3000, 4, centers=25, center_box=(-100, 100), random_state=0)
    found = drawn_in_parallel(X, 25, 0)
    assert len({int(labels[i]) for i in seeds_of(found, X)}) == 25


@pytest.mark.parametrize("options", [{}, {"n_init": 3}, {"algorithm": "elkan"}])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", [np.asarray, csr_matrix, ArrayRows])
def test_estimator(rng, kind, weighted, options):
    X, weights = make_blobs(500, 6, centers=7, random_state=2)[0], rng.random(500) + 0.1 if weighted else None
    model = TSKMeans(7, init="k-means||", random_state=4, device="cpu", **options)
    before = model.get_params()
    model.fit(kind(X), sample_weight=weights)
    assert model.get_params() == before
    with open_engine(X, device="cpu", sample_weight=weights) as engine:
        state, runs = np.random.RandomState(4), options.get("n_init", "auto")
        centered = kind is not csr_matrix
        expected = lloyd.fit(engine, 7, init="k-means||", n_init=runs, random_state=state, center=centered)
    np.testing.assert_array_equal(model.labels_, expected.labels)
    np.testing.assert_allclose(model.cluster_centers_, expected.centers, atol=1e-9)


def test_names_of_first_centers(rng):
    X = rng.standard_normal((30, 2))
    with pytest.raises(ValueError, match=r"'init' parameter of TSKMeans must be a str among .*k-means\|\|"):
        TSKMeans(2, init="kmeans", device="cpu").fit(X)
    with pytest.raises(ValueError, match="'init' parameter of KMeans"):
        KMeans(2, init="k-means||").fit(X)
