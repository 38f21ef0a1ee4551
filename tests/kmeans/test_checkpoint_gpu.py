"""Checkpoints of fits on a GPU: killed after any of them, they continue to the bits of a fit without checkpoints."""

import numpy as np
import oracle
import pytest
from kmeans.test_checkpoint import Killed, Killing

from tsapps import TSKMeans
from tsapps.apps.kmeans import checkpoint as checkpoints

pytestmark = pytest.mark.gpu
cupy = pytest.importorskip("cupy", reason="needs a GPU: CuPy is not installed")

# Samples, features, clusters and parameters, for each step; bounds, several runs and k-means‖.
CASES = [
    (20_000, 8, 9, {"engine": "fused"}),
    (20_000, 16, 12, {"engine": "fused", "algorithm": "elkan", "n_init": 2}),
    (20_000, 100, 40, {"engine": "fused", "protect": True}),
    (20_000, 40, 200, {"engine": "fused", "init": "k-means||"}),
    (20_000, 40, 20, {"engine": "cublas", "init": "random", "n_init": 2}),
    (20_000, 20, 7, {"metric": "cosine"}),
]


def fitted(X, k, **parameters):
    kmeans = TSKMeans(k, random_state=0, max_iter=12, tol=0, device="cuda", **parameters).fit(X)
    arrays = kmeans.labels_, kmeans.cluster_centers_
    return *(oracle.host(array).tobytes() for array in arrays), kmeans.inertia_, kmeans.n_iter_


@pytest.mark.parametrize(("n", "d", "k", "parameters"), CASES, ids=str)
def test_a_fit_killed_after_every_checkpoint(tmp_path, monkeypatch, rng, n, d, k, parameters):
    X = cupy.asarray((rng.standard_normal((n, d)) + 3 * rng.integers(0, 2, (n, d))).astype(np.float32))
    expected = fitted(X, k, **parameters)
    assert fitted(X, k, checkpoint=tmp_path / "whole", **parameters) == expected  # without a checkpoint in a run
    monkeypatch.setattr(checkpoints, "SECONDS", 0.0)
    monkeypatch.setattr("tsapps.apps.kmeans.checkpoint.Checkpoint", Killing)
    for _ in range(100):
        try:
            found = fitted(X, k, checkpoint=tmp_path / "run", **parameters)
            break
        except Killed:
            continue
    assert found == expected
