"""TSMiniBatchKMeans on a GPU against scikit-learn; and by a GPU's launchers and kernels on a HostMachine."""

import numpy as np
import oracle
import pytest
from host_cuda.machine import HostMachine
from kmeans.host_steps import RowsOnMachine
from scipy.sparse import csr_matrix
from sklearn.cluster import MiniBatchKMeans

from tsapps import TSMiniBatchKMeans
from tsapps.apps.kmeans import open_engine
from tsapps.apps.kmeans.data import blocks
from tsapps.apps.kmeans.minibatch import steps
from tsapps.kernels.devices import Choice
from tsapps.kernels.runtime import machine

OPTIONS = [
    {},
    {"init": "random", "tol": 1e-3},
    {"batch_size": 40, "n_clusters": 30, "reassignment_ratio": 0.3, "max_iter": 2, "compute_labels": False},
]


@pytest.fixture(scope="module", name="X")
def blobs(data_sets):
    return data_sets["blobs"][0]


@pytest.fixture(params=["host machine", pytest.param("cuda", marks=pytest.mark.gpu)])
def to_gpu(request, monkeypatch):
    """Return a function that copies an array to a GPU, or to a HostMachine that stands in for one."""
    if request.param == "cuda":
        return pytest.importorskip("cupy").asarray
    host = HostMachine()
    monkeypatch.setattr(machine, "cuda_machine", lambda index: host)
    monkeypatch.setattr(open_engine, "choose_device", lambda *_, **options: Choice("cuda:0", "it stands in"))
    return RowsOnMachine


def fitted(X, weights=None, **options):
    options = {"n_clusters": 7, "random_state": 3, "device": "cuda", **options}
    return TSMiniBatchKMeans(**options).fit(X, sample_weight=weights)


def assert_close(found, expected, X):
    """Check that centers and inertia differ by the rounding of a few hundred batches, and labels where centers do."""
    centers = oracle.host(found.cluster_centers_)
    unit = float(np.finfo(expected.cluster_centers_.dtype).eps)
    atol = 2**12 * unit * abs(expected.cluster_centers_).max()
    np.testing.assert_allclose(centers, expected.cluster_centers_, rtol=0, atol=atol)
    assert (found.n_steps_, found.device_) == (expected.n_steps_, "cuda:0")
    assert found.inertia_ == pytest.approx(expected.inertia_, rel=2**12 * unit)
    if hasattr(expected, "labels_"):
        oracle.assert_nearest(X, centers, oracle.host(found.labels_), X.dtype.type)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("place", ["host", "gpu"])
def test_fits_are_those_of_scikit_learn(X, to_gpu, options, weighted, place):
    weights = np.random.default_rng(0).random(len(X)) if weighted else None
    expected = MiniBatchKMeans(**{"n_clusters": 7, "random_state": 3, **options}).fit(X, sample_weight=weights)
    given = X if place == "host" else to_gpu(X)
    found = fitted(given, weights, **options)
    assert_close(found, expected, X)
    oracle.assert_nearest(X, oracle.host(found.cluster_centers_), oracle.host(found.predict(given)), np.float64)
    assert found.score(given, sample_weight=weights) == pytest.approx(expected.score(X, None, weights), rel=1e-9)


def test_float32(X, to_gpu):
    X = X.astype(np.float32)
    found = fitted(to_gpu(X))
    assert_close(found, MiniBatchKMeans(7, random_state=3).fit(X), X)
    assert found.cluster_centers_.dtype == np.float32


@pytest.mark.parametrize("n_clusters", [5, pytest.param(70, marks=pytest.mark.exhaustive)])
def test_batches_of_the_caller(X, to_gpu, n_clusters, monkeypatch):
    """With replaced centers. The kernels of a large X label and sum the last batch."""
    monkeypatch.setattr(blocks, "SMALL", 1000 * X.shape[1] * X.itemsize)
    parameters = {"n_clusters": n_clusters, "random_state": 1, "reassignment_ratio": 0.1}
    expected, found = MiniBatchKMeans(**parameters), TSMiniBatchKMeans(**parameters, device="cuda")
    for part in np.split(X, [300, 1000]):
        expected.partial_fit(part)
        found.partial_fit(to_gpu(part))
        assert_close(found, expected, part)
        assert oracle.host(found.labels_).shape == (len(part),)


def test_centers_that_the_gpu_draws(X, to_gpu, monkeypatch):
    """As for many rows and clusters; samples are far apart here, so that no two candidates are equally good."""
    monkeypatch.setattr(steps, "_MOST_DRAWN", 0)
    assert_close(fitted(to_gpu(X)), MiniBatchKMeans(7, random_state=3).fit(X), X)
    first = X[::400][:7] + 0.5
    for init in (first, lambda rows, k, random_state: first):
        found = fitted(to_gpu(X), init=init, n_init=1)
        assert_close(found, MiniBatchKMeans(7, init=first, n_init=1, random_state=3).fit(X), X)


def test_far_from_the_origin(X, to_gpu):
    """float32 has steps of 1/16 there, which are less than the clusters' width; scikit-learn's labels are poor."""
    far = (X + 1e6).astype(np.float32)
    found = fitted(to_gpu(far))
    best = oracle.square_distances(far, oracle.host(found.cluster_centers_)).min(axis=1)
    assert found.inertia_ == pytest.approx(best.sum(), rel=1e-5)
    assert found.inertia_ <= 1.1 * MiniBatchKMeans(7, random_state=3).fit(X).inertia_


@pytest.mark.parametrize(
    ("method", "options"),
    [("fit", {"batch_size": 3000}), ("fit", {"batch_size": 20, "max_iter": 1}), ("partial_fit", {})],
)
def test_a_nan_is_named(X, to_gpu, method, options):
    X = X.copy()
    X[1234, 5] = np.nan
    kmeans = TSMiniBatchKMeans(7, device="cuda", init=X[:7], n_init=1, random_state=3, **options)
    with pytest.raises(ValueError, match="row 1234, column 5 is nan"):
        getattr(kmeans, method)(to_gpu(X))


@pytest.mark.gpu
class TestArraysOfLibraries:
    @pytest.fixture(autouse=True)
    def _cupy(self):
        self.cupy = pytest.importorskip("cupy")

    def test_outputs_follow_the_input(self, X):
        torch = pytest.importorskip("torch")
        for given, kind in (
            (X, np.ndarray),
            (self.cupy.asarray(X), self.cupy.ndarray),
            (torch.from_numpy(X).cuda(), torch.Tensor),
            (torch.from_numpy(X), torch.Tensor),
        ):
            kmeans = fitted(given).partial_fit(given)
            for out in (kmeans.labels_, kmeans.cluster_centers_, kmeans.predict(given), kmeans.transform(given)):
                assert isinstance(out, kind)
                if kind is torch.Tensor:
                    assert out.device == given.device

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
    def test_16_bit_types(self, X, dtype):
        torch = pytest.importorskip("torch")
        given = torch.from_numpy(X).to(getattr(torch, dtype)).cuda()
        wide = given.float().cpu().numpy()
        expected = MiniBatchKMeans(7, random_state=3).fit(wide)
        assert_close(fitted(given), expected, wide)

    def test_sparse(self, X):
        assert_close(fitted(csr_matrix(X)), MiniBatchKMeans(7, random_state=3).fit(X), X)

    def test_from_device_to_device(self, X):
        """Batches on the CPU and on the GPU may alternate."""
        found = TSMiniBatchKMeans(7, random_state=3)
        expected = MiniBatchKMeans(7, random_state=3)
        for number, part in enumerate(np.split(X, 6)):
            found.set_params(device=("cpu", "cuda")[number % 2]).partial_fit(part)
            expected.partial_fit(part)
        assert_close(found, expected, part)

    def test_same_bits_on_every_run(self, X):
        X = self.cupy.asarray(X.astype(np.float32))
        first, second = fitted(X, n_clusters=50), fitted(X, n_clusters=50)
        assert bool((first.cluster_centers_ == second.cluster_centers_).all())
        assert first.inertia_ == second.inertia_
