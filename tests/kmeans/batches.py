"""Batches of K-means problems whose kernels run on the CPU."""

import numpy as np
from host_cuda.machine import HostMachine

from tsapps.apps.kmeans.batched.lloyd import BatchedLloyd
from tsapps.apps.kmeans.batched.plan import batch_plan


def blobs(b, n, d, k, rng, apart=3.0):
    """Clusters that overlap, and centers among them."""
    middles = apart * rng.standard_normal((b, k, d))
    X = middles[np.arange(b)[:, np.newaxis], rng.integers(0, k, (b, n))] + rng.standard_normal((b, n, d))
    return X, middles + 0.3 * rng.standard_normal((b, k, d))


def batch_of(X, k, *, dtype="float32", max_iter=300, tol=1e-4, multiprocessors=2):
    X = np.ascontiguousarray(np.asarray(X).astype(dtype))
    machine = HostMachine(multiprocessors)
    return BatchedLloyd(machine, X, k, batch_plan(*X.shape[1:], k, machine.gpu), max_iter=max_iter, tol=tol)
