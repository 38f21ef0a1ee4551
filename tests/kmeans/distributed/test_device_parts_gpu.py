"""Parts on a GPU, in one process and on the workers of a Dask cluster: the bits of one process on a CPU."""

import os
import signal
from threading import Timer

import numpy as np
import pytest
from kmeans.distributed.cut_fits import fitted, host_engine, parted_engine, same_bits, samples

from tsapps import TSKMeans

pytestmark = pytest.mark.gpu
pytest.importorskip("cupy", reason="needs a GPU: CuPy is not installed")


@pytest.mark.parametrize(
    ("d", "k", "dtype", "weighted"),
    [(72, 9, np.float32, False), (72, 9, np.float32, True), (40, 100, np.float64, False), (3, 8, np.float32, False)],
)
@pytest.mark.parametrize("init", ["k-means++", "random"])
def test_the_bits_are_those_of_a_cpu(d, k, dtype, weighted, init, rng):
    n = 900_000 if d == 3 else 60_000  # more than is small
    X, weights = samples(rng, n, d, k, dtype), rng.random(n) + 0.5 if weighted else None
    expected = fitted(host_engine(X, weights), k, init=init)
    for shares in ((1,), (1, 2, 1)):
        same_bits(fitted(parted_engine(X, weights, shares, device="cuda"), k, init=init), expected)


@pytest.mark.parametrize("kills", [False, True])
def test_dask(kills, rng):
    """Two workers share a GPU; one of them may be killed during the fit."""
    da, distributed = pytest.importorskip("dask.array"), pytest.importorskip("distributed")
    X = samples(rng, 400_000, 32, 20)
    options = {"init": "random", "n_init": 1, "max_iter": 40, "tol": 0, "random_state": 0}
    expected = TSKMeans(20, device="cpu", engine="fused", **options).fit(X)
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        pids = list(client.run(os.getpid).values())
        if kills:
            Timer(3, os.kill, (pids[0], signal.SIGKILL)).start()
        model = TSKMeans(20, device="cuda", **options).fit(da.from_array(X, chunks=(50_000, 32)))
        np.testing.assert_array_equal(model.labels_.compute(), expected.labels_)
    np.testing.assert_array_equal(model.cluster_centers_, expected.cluster_centers_)
    assert (model.inertia_, model.n_iter_, model.device_) == (expected.inertia_, expected.n_iter_, "dask: 2 × cuda")
