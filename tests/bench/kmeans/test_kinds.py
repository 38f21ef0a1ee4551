"""The benchmark of kinds of data: what is drawn, and which labels count as wrong."""

import numpy as np
import pytest

from bench.kmeans import kinds


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_data_of_every_kind(kind):
    X, initial = kinds.draw(kind, 3000, 8, 20, 1, np)
    assert X.shape == (3000, 8)
    assert X.dtype == np.float32
    assert np.isfinite(X).all()
    assert len(np.unique(X, axis=0)) > 20
    np.testing.assert_array_equal(initial, X[:20])
    again, _ = kinds.draw(kind, 3000, 8, 20, 1, np)
    np.testing.assert_array_equal(X, again)


def test_outliers_are_few_and_far():
    norms = np.linalg.norm(kinds.draw("outliers", 50_000, 8, 20, 2, np)[0], axis=1)
    assert 20 <= np.count_nonzero(norms > 300) <= 90  # 50 expected
    assert np.median(norms) < 5


def test_zipf_populations():
    clusters = kinds._zipf_clusters(np.random.default_rng(3), 100_000, 50, np)
    counts = np.bincount(clusters, minlength=50)
    assert counts[0] / counts[9] == pytest.approx(10**1.1, rel=0.15)


def test_wrong_labels_by_hand():
    X, centers = np.array([[0.0, 0], [1, 0], [4, 0], [5, 0]], np.float32), np.array([[0.0, 0], [5, 0]], np.float32)
    assert kinds.wrong_share(X, np.array([0, 0, 1, 1]), centers, 0, np) == 0
    assert kinds.wrong_share(X, np.array([1, 1, 0, 0]), centers, 0, np) == 1
    middle = np.array([[2.5, 7.0]], np.float32)  # as near to both
    assert kinds.wrong_share(middle, np.array([1]), centers, 0, np) == 0
