"""`kmeans_batched` on a GPU, against itself problem by problem and against TSKMeans."""

import numpy as np
import oracle
import pytest

from tsapps import TSKMeans, kmeans_batched
from tsapps.apps.kmeans.assign import large_k_mma_plan
from tsapps.apps.kmeans.batched import plan as batched_plan

pytestmark = pytest.mark.gpu
cupy = pytest.importorskip("cupy", reason="needs a GPU: CuPy is not installed")
batched_gpu = pytest.importorskip("tsapps.apps.kmeans.batched.gpu")


def blobs(b, n, d, k, dtype=np.float32, spread=1.0):
    rng = np.random.default_rng(b + n + d + k)
    middles = 2 * rng.standard_normal((b, k, d))
    X = middles[np.arange(b)[:, np.newaxis], rng.integers(0, k, (b, n))] + spread * rng.standard_normal((b, n, d))
    return (X + 3).astype(dtype)


@pytest.mark.parametrize("init", ["k-means++", "random", "array"])
@pytest.mark.parametrize(
    ("b", "n", "d", "k"), [(3, 300, 5, 4), (7, 1000, 64, 16), (2, 2000, 128, 33), (2, 900, 17, 90)]
)
def test_each_is_what_tskmeans_finds(b, n, d, k, init):
    X = blobs(b, n, d, k)
    # Of many clusters some draw falls between two samples, see the notes of kmeans_batched.
    given = X[:, :k] if init == "array" or (init == "k-means++" and k > 16) else init
    found = kmeans_batched(cupy.asarray(X), k, init=given, random_state=5)
    assert all(isinstance(value, cupy.ndarray) for value in vars(found).values())
    for i in range(b):
        first = given if isinstance(given, str) else given[i]
        one = TSKMeans(k, init=first, n_init=1, random_state=5 + i, device="cpu").fit(X[i])
        np.testing.assert_array_equal(found.labels[i].get(), one.labels_)
        np.testing.assert_allclose(found.centers[i].get(), one.cluster_centers_, atol=5e-5)
        assert found.inertia[i].get() == pytest.approx(one.inertia_, rel=1e-5)
        assert found.n_iter[i] == one.n_iter_


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(
    ("b", "n", "d", "k"),
    [
        (32, 5000, 64, 64),
        (16, 4000, 128, 1024),
        (64, 1000, 128, 100),
        (4, 3000, 256, 65),
        (2, 3000, 768, 90),
        (1, 7, 1, 1),
    ],
)
@pytest.mark.parametrize("by", ["wgmma", "mma", "mma and bulk copies"])
def test_labels_are_nearest_and_centers_means(by, b, n, d, k, dtype, monkeypatch):
    if by != "wgmma":
        monkeypatch.setattr(batched_plan, "batched_stream_plan", lambda *_: None)
        monkeypatch.setattr(large_k_mma_plan, "_BULK_CAPABILITY", np.inf if by == "mma" else 9.0)
    X = blobs(b, n, d, k, dtype, spread=2.0)
    found = kmeans_batched(cupy.asarray(X), k, init=X[:, :k].astype(np.float32), max_iter=6, tol=0)
    labels, centers = found.labels.get(), found.centers.get()
    for i in {0, b - 1}:
        oracle.assert_nearest(X[i], centers[i], labels[i], np.float32)
        if k < n // 20:  # of small clusters one sample's border decides
            expected = X[i, :k].astype(np.float64)
            for _ in range(int(found.n_iter[i])):
                _, expected = oracle.lloyd_step(X[i], expected)
            assert np.median(abs(expected - centers[i])) < 1e-4
        own = oracle.square_distances(X[i], centers[i])[np.arange(n), labels[i]]
        assert found.inertia[i].get() == pytest.approx(own.sum(), rel=1e-4)


def test_same_bits_alone_and_on_every_run():
    X = cupy.asarray(blobs(40, 3000, 96, 50, spread=2.0))
    one, other = (kmeans_batched(X, 50, random_state=1) for _ in range(2))
    alone = kmeans_batched(X[17:18], 50, random_state=1 + 17)
    for name in vars(one):
        np.testing.assert_array_equal(getattr(one, name).get(), getattr(other, name).get())
        np.testing.assert_array_equal(getattr(one, name)[17].get(), getattr(alone, name)[0].get())
    assert len(set(one.n_iter.get().tolist())) > 1  # they end at different times


def test_in_parts(monkeypatch):
    X = blobs(9, 500, 20, 6)
    whole = kmeans_batched(X, 6, random_state=1, device="cuda")
    assert isinstance(whole.labels, np.ndarray)
    monkeypatch.setattr(batched_gpu, "MOST_PROBLEMS", 2)
    parts = kmeans_batched(X, 6, random_state=1, device="cuda")
    for name in vars(whole):
        np.testing.assert_array_equal(getattr(whole, name), getattr(parts, name))


def test_what_the_kernels_do_not_serve():
    X = blobs(2, 400, 10, 4, np.float64)
    found = kmeans_batched(cupy.asarray(X), 4, random_state=2)
    assert found.centers.dtype == np.float64
    for i in range(2):
        one = TSKMeans(4, n_init=1, random_state=2 + i, device="cpu").fit(X[i])
        np.testing.assert_array_equal(found.labels[i].get(), one.labels_)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_empty_clusters():
    X = blobs(5, 600, 6, 8)
    init = X[:, :8].copy()
    init[2, 5:] = [[1e3] * 6, [-1e3] * 6, [2e3] * 6]
    found = kmeans_batched(cupy.asarray(X), 8, init=init)
    for i in range(5):
        one = TSKMeans(8, init=init[i], n_init=1, device="cpu").fit(X[i])
        np.testing.assert_array_equal(found.labels[i].get(), one.labels_)


def test_bad_numbers_are_named():
    X = blobs(3, 500, 4, 2)
    X[1, 77, 3] = np.nan
    with pytest.raises(ValueError, match="problem 1, row 77, column 3 is nan"):
        kmeans_batched(cupy.asarray(X), 2)


def test_torch():
    torch = pytest.importorskip("torch")
    X = torch.from_numpy(blobs(3, 500, 16, 4)).cuda().bfloat16()
    found = kmeans_batched(X, 4, random_state=0)
    assert found.labels.device == X.device
    assert found.centers.dtype == torch.float32
