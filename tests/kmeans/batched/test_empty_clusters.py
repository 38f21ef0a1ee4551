"""Relocation of empty clusters of a problem of a batch, on the host."""

from types import SimpleNamespace

import numpy as np

from tsapps.apps.kmeans.batched.empty_clusters import relocate
from tsapps.apps.kmeans.batched.plan import STATUS


def batch_of(X, centers, labels, tolerance=0.0):
    """Return what `relocate` needs of a batch of one problem, whose mean is zero."""
    sums = np.zeros((1, len(centers), X.shape[1] + 1))
    np.add.at(sums[0], labels, np.column_stack([X, np.ones(len(X))]))
    arrays = {
        "sums": sums,
        "n_reassigned": np.array([len(X)]),
        "sum_units": np.ones((1, X.shape[1])),
        "means": np.zeros((1, X.shape[1]), np.float32),
        "iterations": np.array([1]),
        "tolerances": np.array([tolerance]),
    }
    return SimpleNamespace(
        xp=np, X=X[np.newaxis], labels=labels[np.newaxis], centers=centers[np.newaxis], arrays=arrays, max_iter=9
    )


def test_the_farthest_sample_becomes_the_center_of_an_empty_cluster():
    X = np.array([[0.0], [1], [2], [9]], np.float32)
    batch = batch_of(X, np.array([[1.0], [50]], np.float32), np.zeros(4, np.int32))
    assert relocate(batch, 0) == STATUS["place"]
    assert batch.centers[0].ravel().tolist() == [1, 9]


def test_equal_samples_are_left():
    X = np.ones((3, 1), np.float32)
    batch = batch_of(X, np.array([[1.0], [50]], np.float32), np.zeros(3, np.int32), tolerance=1e9)
    assert relocate(batch, 0) == STATUS["ended"]
    assert batch.centers[0].ravel().tolist() == [1, 1]
