"""One digest of a fit on a CPU, on one and several GPUs, from a stream, on Dask's workers, and resumed elsewhere."""

import itertools
from hashlib import sha256

import ml_dtypes
import numpy as np
import pytest
from kmeans.distributed.one_gpu_twice import PLACES, use_one_gpu_twice
from kmeans.test_checkpoint import Killed, Killing

from tsapps import TSKMeans
from tsapps.apps.kmeans import checkpoint as checkpoints
from tsapps.apps.kmeans.data import gpu_rows
from tsapps.apps.kmeans.data.gpu_rows import GpuRows
from tsapps.apps.kmeans.data.shard import cut
from tsapps.apps.kmeans.distributed import crew
from tsapps.apps.kmeans.engines import window_pass
from tsapps.kernels.arrays import to_host

pytestmark = pytest.mark.gpu
cupy = pytest.importorskip("cupy", reason="needs a GPU: CuPy is not installed")

N, D, K = 300_000, 40, 9
#: Type of X, and what a fit is given. Of centers far away, all rows are nearest to the first.
CASES = {
    "k-means++": ("float32", {"init": "k-means++"}),
    "k-means++, many": ("float32", {"init": "k-means++", "n_clusters": 80}),
    "k-means++, weights": ("float32", {"init": "k-means++", "weights": True}),
    "k-means++, bfloat16": ("bfloat16", {"init": "k-means++"}),
    "k-means++, float64": ("float64", {"init": "k-means++"}),
    "k-means++, cosine": ("float32", {"init": "k-means++", "metric": "cosine"}),
    "k-means++, 6 distinct rows": ("float32", {"init": "k-means++", "distinct": 6}),
    "k-means||": ("float32", {"init": "k-means||"}),
    "k-means||, many": ("float32", {"init": "k-means||", "n_clusters": 80}),
    "k-means||, weights": ("float32", {"init": "k-means||", "weights": True}),
    "k-means||, float64, cosine": ("float64", {"init": "k-means||", "metric": "cosine"}),
    "k-means||, bfloat16": ("bfloat16", {"init": "k-means||"}),
    "random": ("float32", {"init": "random", "n_init": 2}),
    "random, bfloat16, weights": ("bfloat16", {"init": "random", "weights": True}),
    "array": ("float32", {"init": "array"}),
    "array, float64, empty clusters": ("float64", {"init": "far"}),
}


class Fits:
    """Fits of the samples of a case, and their digests."""

    def __init__(self, dtype, given):
        rng, given = np.random.default_rng(7), dict(given)
        self.k, distinct = given.pop("n_clusters", K), given.pop("distinct", None)
        X = 2 * rng.standard_normal((self.k, D))[rng.integers(0, self.k, N)] + rng.standard_normal((N, D))
        if distinct is not None:
            X = X[rng.integers(0, distinct, N)]
        self.X = X.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
        self.weights = rng.random(N) + 0.5 if given.pop("weights", False) else None
        if given["init"] in ("array", "far"):
            far = given["init"] == "far"
            given["init"] = self.X[: self.k].astype(np.float64)
            given["init"][1:] += 1000 * far * rng.random((self.k - 1, 1))
        self.given = {"random_state": 0, "n_init": 1, "max_iter": 10, "tol": 0, **given}

    def digest(self, device, X=None, **options):
        options = {"engine": "fused", **self.given, **options}
        weights = self.weights
        if X is not None and weights is not None:
            import dask.array

            weights = dask.array.from_array(weights, chunks=X.chunks[0])
        found = TSKMeans(self.k, device=device, **options).fit(self.X if X is None else X, sample_weight=weights)
        labels = found.labels_ if X is None else found.labels_.compute()
        parts = labels, found.cluster_centers_, np.array(found.inertia_), np.array(found.n_iter_)
        return sha256(b"".join(to_host(part).tobytes() for part in parts)).hexdigest()


@pytest.fixture(scope="module", params=CASES)
def fits(request):
    made = Fits(*CASES[request.param])
    made.expected = made.digest("cpu")
    return made


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
class TestOneDigest:
    def test_one_gpu(self, fits):
        assert fits.digest("cuda:0") == fits.expected

    @pytest.mark.parametrize("shares", [None, (9.0, 1.0)], ids=str)
    @pytest.mark.parametrize("place", PLACES)
    def test_two_gpus(self, fits, place, shares, monkeypatch):
        if place == "one GPU twice":
            use_one_gpu_twice(monkeypatch)
        if shares is not None:
            monkeypatch.setattr(crew, "cut", lambda n, chunk, _: cut(n, chunk, list(shares)))
        assert fits.digest("cuda:0,1") == fits.expected

    @pytest.mark.parametrize("place", ["pinned", "streamed"])
    @pytest.mark.parametrize("window", [1 << 20, 4 << 20, 13 << 20])
    def test_windows(self, fits, window, place, monkeypatch):
        monkeypatch.setattr(GpuRows, "copies", lambda data: False)
        monkeypatch.setattr(GpuRows, "available_bytes", lambda data: 0)
        monkeypatch.setattr(window_pass, "_WINDOW_BYTES", window)
        if place == "streamed":
            monkeypatch.setattr(gpu_rows, "pinnable", lambda source, dtype: None)
        assert fits.digest("cuda:0") == fits.expected

    def test_resumed_on_another_device(self, fits, tmp_path, monkeypatch):
        monkeypatch.setattr(checkpoints, "SECONDS", 0.0)
        monkeypatch.setattr("tsapps.apps.kmeans.checkpoint.Checkpoint", Killing)
        found = None
        for device in itertools.islice(itertools.cycle(["cpu", "cuda:0", "cuda:all"]), 100):
            try:
                found = fits.digest(device, checkpoint=tmp_path)
                break
            except Killed:
                continue
        assert found == fits.expected


@pytest.fixture(scope="module", params=[1, 2, 3, 4])
def client(request):
    distributed = pytest.importorskip("distributed")
    pytest.importorskip("dask.array")
    with (
        distributed.LocalCluster(n_workers=request.param, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as made,
    ):
        yield made


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_dask_workers(fits, client):
    import dask.array

    X = dask.array.from_array(fits.X, chunks=(70_000, D))
    assert fits.digest("cpu", X, engine="auto") == fits.expected
