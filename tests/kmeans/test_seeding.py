"""The first centres: scikit-learn's draws, on small data to the last bit and on large data as real numbers."""

import numpy as np
import pytest
from sklearn.cluster import kmeans_plusplus

from tsapps.apps.kmeans import seeding
from tsapps.apps.kmeans.choose import open_engine


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
        monkeypatch.setattr(seeding, "SMALL", 0)
    for seed in range(5):
        _, expected = kmeans_plusplus(X, 12, sample_weight=weights, random_state=np.random.RandomState(seed))
        engine = open_engine(X, device="cpu", sample_weight=weights)
        centers = seeding.kmeans_plusplus(engine, 12, np.random.RandomState(seed))
        assert seeds_of(centers, X) == expected.tolist()


def test_three_points_by_hand():
    # Points 0, 1 and 100 on a line. Whatever comes first, the second of two centres is drawn among 2 candidates with
    # probability D² / ΣD², and the better kept: from 0 or 1 that is 100 unless both draws fall on the near point, which
    # has 1 chance in 10⁴ each; from 100, 0 and 1 leave the same potential, 1, and the first drawn is kept.
    X = np.array([[0.0], [1.0], [100.0]])
    engine = open_engine(X, device="cpu")
    for seed in range(20):
        first, second = seeding.kmeans_plusplus(engine, 2, np.random.RandomState(seed)).ravel()
        assert (second == 100) == (first != 100)


def test_a_draw_past_the_end_is_the_last_sample(rng):
    X = rng.standard_normal((50, 2))

    class AlmostOne(np.random.RandomState):
        def uniform(self, size):
            return np.full(size, 1 + 1e-9)

    centers = seeding.kmeans_plusplus(open_engine(X, device="cpu"), 2, AlmostOne(0))
    assert seeds_of(centers, X)[1] == 49


def test_random_samples_differ_and_follow_the_weights(rng):
    # That they are scikit-learn's is shown by whole fits with init="random" in test_lloyd.py.
    X = rng.standard_normal((40, 3))
    weights = np.where(np.arange(40) % 4 == 0, 1.0, 0.0)
    engine = open_engine(X, device="cpu", sample_weight=weights)
    found = seeding.random_samples(engine, 10, np.random.RandomState(7))
    assert sorted(seeds_of(found, X)) == list(range(0, 40, 4))
