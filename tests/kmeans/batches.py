"""Batches of K-means problems whose kernels run on the CPU."""

from unittest.mock import patch

import numpy as np
import oracle
from host_cuda.machine import HostMachine

from tsapps.apps.kmeans.batched import plan as batched
from tsapps.apps.kmeans.batched.lloyd import BatchedLloyd
from tsapps.kernels.gpu_specs import limited


def blobs(b, n, d, k, rng, apart=3.0):
    """Clusters that overlap, and centers among them."""
    middles = apart * rng.standard_normal((b, k, d))
    X = middles[np.arange(b)[:, np.newaxis], rng.integers(0, k, (b, n))] + rng.standard_normal((b, n, d))
    return X, middles + 0.3 * rng.standard_normal((b, k, d))


def batch_of(X, k, *, dtype="float32", max_iter=300, tol=1e-4, multiprocessors=2, streams=None):
    """A batch whose centers stream by "wgmma" or "mma", or do not (False); by default as its plan says."""
    X = np.ascontiguousarray(np.asarray(X).astype(dtype))
    machine = HostMachine(multiprocessors)
    least = batched._LEAST_STREAMED if streams is None else 1 if streams else k + 1
    rows = 1 if streams else batched._STREAMED_ROWS
    gpu = limited(machine.gpu, "80") if streams == "mma" else machine.gpu
    with patch.multiple(batched, _LEAST_STREAMED=least, _STREAMED_ROWS=rows):
        plan = batched.batch_plan(*X.shape[1:], k, gpu)
    return BatchedLloyd(machine, X, k, plan, max_iter=max_iter, tol=tol)


def assert_nearest(batch):
    """Labels are nearest centers to float64's last bits, the lowest of equals."""
    for i in range(batch.b):
        centered = batch.X[i].astype(np.float32) - batch.arrays["means"][i]
        distances = oracle.square_distances(centered, batch.centers[i])
        mine = distances[np.arange(batch.n), batch.labels[i]]
        assert (mine <= distances.min(axis=1) * (1 + 1e-12)).all()


def integers_of(batch, problem, rows):
    """Return what some samples add to the sums of their clusters."""
    centered = batch.X[problem, rows].astype(np.float32) - batch.arrays["means"][problem]
    integers = np.rint(centered.astype(np.float64) * batch.arrays["sum_scales"][problem]).astype(np.int64)
    return np.column_stack([integers, np.ones(len(integers), np.int64)])


def assert_sums(batch):
    """Sums are those of the labels, to the last bit."""
    for i in range(batch.b):
        expected = np.zeros((batch.k, batch.d + 1), np.int64)
        np.add.at(expected, batch.labels[i], integers_of(batch, i, slice(None)))
        np.testing.assert_array_equal(batch.arrays["sums"][i], expected)
