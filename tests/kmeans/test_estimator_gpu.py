"""TSKMeans on a GPU against TSKMeans on the CPU, which is scikit-learn's own."""

import pickle
import warnings

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import random as random_sparse
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning

from tsapps import TSKMeans
from tsapps.apps.kmeans import lloyd
from tsapps.apps.kmeans.data.rows import ArrayRows
from tsapps.apps.kmeans.open_engine import open_engine

pytestmark = pytest.mark.gpu
cupy = pytest.importorskip("cupy", reason="needs a GPU: CuPy is not installed")


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["digits", "china", "iris", "blobs"])
@pytest.mark.parametrize("place", [np.asarray, cupy.asarray], ids=["host", "gpu"])
def test_same_clustering_as_on_the_cpu(data_sets, name, dtype, weighted, seed, place):
    X, k = data_sets[name]
    X = X.astype(dtype)
    weights = np.random.default_rng(seed).random(len(X)) if weighted else None
    expected = TSKMeans(k, random_state=seed, device="cpu").fit(X, sample_weight=weights)
    given_weights = None if weights is None else place(weights)
    actual = TSKMeans(k, random_state=seed, device="cuda").fit(place(X), sample_weight=given_weights)
    assert actual.device_ == "cuda:0"
    oracle.assert_same_fit(actual, expected, X)
    # As in scikit-learn, fit centers X and predict does not, so that float32 scores differ in their last bits.
    oracle.assert_nearest(X, oracle.host(actual.cluster_centers_), oracle.host(actual.predict(place(X))), dtype)
    assert actual.score(place(X), sample_weight=given_weights) == pytest.approx(-actual.inertia_, rel=1e-5)
    np.testing.assert_allclose(
        oracle.host(actual.transform(place(X[:100]))),
        np.sqrt(oracle.square_distances(X[:100], oracle.host(actual.cluster_centers_))),
        atol=1e-3 if dtype is np.float32 else 1e-6,
    )


@pytest.mark.parametrize(
    "parameters",
    [
        {"init": "random", "n_init": 3},
        {"init": "k-means++", "n_init": 3},
        {"init": lambda X, k, random_state: X[random_state.permutation(len(X))[:k]], "n_init": 2},
        {"max_iter": 1},
        {"tol": 0},
        {"algorithm": "elkan"},
    ],
)
def test_parameters_as_on_the_cpu(data_sets, parameters):
    X, k = data_sets["blobs"]
    expected = TSKMeans(k, random_state=3, device="cpu", **parameters).fit(X)
    actual = TSKMeans(k, random_state=3, device="cuda", engine="cublas", **parameters).fit(cupy.asarray(X))
    oracle.assert_same_fit(actual, expected, X)


def test_outputs_follow_the_input(data_sets):
    X = data_sets["iris"][0]
    torch = pytest.importorskip("torch")
    for given_X, kind in (
        (X, np.ndarray),
        (cupy.asarray(X), cupy.ndarray),
        (torch.from_numpy(X).cuda(), torch.Tensor),
        (torch.from_numpy(X), torch.Tensor),
    ):
        kmeans = TSKMeans(3, random_state=0, device="cuda").fit(given_X)
        outputs = (kmeans.labels_, kmeans.cluster_centers_, kmeans.predict(given_X), kmeans.transform(given_X))
        for out in outputs:
            assert isinstance(out, kind)
            if kind is torch.Tensor:
                assert out.device == given_X.device
        again = pickle.loads(pickle.dumps(kmeans))
        np.testing.assert_array_equal(again.predict(X), oracle.host(kmeans.labels_))
        # A model fitted on the GPU serves the CPU, and the other way round.
        np.testing.assert_array_equal(again.set_params(device="cpu").predict(X), oracle.host(kmeans.labels_))
    on_cpu = TSKMeans(3, random_state=0, device="cpu").fit(cupy.asarray(X))
    assert isinstance(on_cpu.labels_, cupy.ndarray)
    assert on_cpu.device_ == "cpu"
    np.testing.assert_array_equal(on_cpu.set_params(device="cuda").predict(X), on_cpu.labels_.get())


def test_auto_follows_the_data(data_sets):
    X = data_sets["iris"][0]
    assert TSKMeans(3, random_state=0).fit(cupy.asarray(X)).device_ == "cuda:0"
    assert TSKMeans(3, random_state=0).fit(X).device_ == "cuda:0"


def test_any_object_with_the_cuda_array_interface(data_sets):
    array = cupy.asarray(data_sets["iris"][0])

    class Interface:
        __cuda_array_interface__ = array.__cuda_array_interface__
        shape = array.shape

    kmeans = TSKMeans(3, random_state=0).fit(Interface())
    assert isinstance(kmeans.labels_, cupy.ndarray)
    np.testing.assert_array_equal(kmeans.labels_.get(), KMeans(3, random_state=0).fit(array.get()).labels_)


def test_frames_and_set_output(data_sets):
    pandas = pytest.importorskip("pandas")
    X = data_sets["iris"][0]
    kmeans = TSKMeans(3, random_state=0, device="cuda").set_output(transform="pandas")
    out = kmeans.fit_transform(pandas.DataFrame(X, columns=list("abcd")))
    assert list(out.columns) == ["tskmeans0", "tskmeans1", "tskmeans2"]
    assert list(kmeans.feature_names_in_) == list("abcd")
    assert list(kmeans.transform(cupy.asarray(X)).columns) == ["tskmeans0", "tskmeans1", "tskmeans2"]


@pytest.mark.parametrize("on_gpu", [False, True])
def test_sparse(on_gpu):
    X = random_sparse(2000, 30, 0.2, format="csr", random_state=5)
    expected = KMeans(5, random_state=0).fit(X)
    if on_gpu:
        sparse = pytest.importorskip("cupyx.scipy.sparse")
        given_X = sparse.csr_matrix(X)
    else:
        given_X = X
    actual = TSKMeans(5, random_state=0, device="cuda").fit(given_X)
    np.testing.assert_array_equal(oracle.host(actual.labels_), expected.labels_)
    np.testing.assert_allclose(oracle.host(actual.cluster_centers_), expected.cluster_centers_, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("place", [np.asarray, cupy.asarray], ids=["host", "gpu"])
def test_halves_are_worked_on_in_float32(data_sets, dtype, place):
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    X, k = data_sets["blobs"]
    X = X.astype(dtype)
    expected = TSKMeans(k, random_state=0, device="cpu").fit(X.astype(np.float32))
    actual = TSKMeans(k, random_state=0, device="cuda").fit(place(X))
    oracle.assert_same_fit(actual, expected, X.astype(np.float64))


@pytest.fixture
def no_memory(monkeypatch):
    """Make the engine read X from its source in every pass, in small windows and through small pinned buffers."""
    from tsapps.apps.kmeans.data import gpu_rows, host_stream
    from tsapps.apps.kmeans.engines import window_pass
    from tsapps.kernels.runtime.machine import CudaMachine

    def borrow(data, borrowed=gpu_rows.GpuRows._borrow):
        is_window = data.n_samples < data.n_total
        return borrowed(data) if is_window or not isinstance(data.machine, CudaMachine) else None

    monkeypatch.setattr(gpu_rows.GpuRows, "fits", lambda self, size: False)
    monkeypatch.setattr(gpu_rows.GpuRows, "_borrow", borrow)
    monkeypatch.setattr(window_pass, "_WINDOW_BYTES", 1 << 17)
    monkeypatch.setattr(gpu_rows, "pinnable", lambda source, dtype: None)
    monkeypatch.setattr(host_stream, "_PINNED_BYTES", 1 << 16)
    monkeypatch.setattr(gpu_rows, "_BLOCK_BYTES", 1 << 20)


@pytest.mark.parametrize("place", [np.asarray, cupy.asarray], ids=["host", "gpu"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("n", "d"), [(1, 3), (200_000, 2), (30_001, 64), (65, 33), (100, 3000)])
def test_moments_are_rounded_as_numpy_rounds_them(n, d, dtype, place, rng):
    X = (10.0 ** rng.integers(-3, 3, d) * (rng.standard_normal((n, d)) + 1)).astype(dtype)
    expected = X.mean(axis=0)
    with open_engine(place(X), device="cuda") as engine:
        mean, variance = engine.data.rounded_moments()
    np.testing.assert_array_equal(mean, expected)
    assert variance == float(np.mean(np.var(X, axis=0, mean=expected[np.newaxis])))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint8])
@pytest.mark.parametrize(
    "place",
    [np.asarray, np.asfortranarray, cupy.asarray, lambda X: cupy.asfortranarray(cupy.asarray(X))],
    ids=["host", "host-F", "gpu", "gpu-F"],
)
def test_streamed_finds_the_same(no_memory, data_sets, dtype, place):
    X = (data_sets["china"][0][:60_000] * 255).astype(dtype)
    engine = open_engine(ArrayRows(place(X)), device="cuda")
    assert engine.data.held is None
    found = lloyd.fit(engine, 7, random_state=np.random.RandomState(0))
    expected = KMeans(7, random_state=0).fit(X)
    assert found.n_iter == expected.n_iter_
    assert np.mean(found.labels.get() != expected.labels_) <= (0.002 if dtype is np.float32 else 0)
    np.testing.assert_allclose(found.centers, expected.cluster_centers_, rtol=1e-3 if dtype is np.float32 else 1e-9)


@settings(max_examples=40, deadline=None)
@given(n=st.integers(1, 3000), d=st.integers(1, 70), k=st.integers(1, 200), seed=st.integers(0, 2**31))
def test_passes_are_the_references(n, d, k, seed):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) + 100
    weights = rng.random(n)
    engine = open_engine(cupy.asarray(X), device="cuda", sample_weight=weights)
    engine.data.block_rows = lambda n_columns: 700 if n_columns else n
    mean, variance = engine.data.moments()
    np.testing.assert_allclose(mean, X.mean(axis=0), rtol=1e-13)
    np.testing.assert_allclose(variance, X.var(axis=0).mean(), rtol=1e-9, atol=1e-13)
    engine.center(mean, k)
    centers, step = rng.standard_normal((k, d)), engine.step_for(k)
    found = step.assign(centers)
    labels = step.labels.get()
    oracle.assert_nearest(X - mean, centers, labels, np.float64)
    for j in range(k):
        mine = labels == j
        np.testing.assert_allclose(found.weights[j], weights[mine].sum(), rtol=1e-12)
        np.testing.assert_allclose(found.sums[j], weights[mine] @ (X - mean)[mine], atol=1e-12 * n)
    own = oracle.square_distances(X - mean, centers)[np.arange(n), labels]
    np.testing.assert_allclose(engine.data.own_distances(centers, step.labels), own, rtol=1e-12)
    assert step.inertia(centers) == pytest.approx(own @ weights, rel=1e-12)
    every = oracle.square_distances(X - mean, centers[:20]).T
    np.testing.assert_allclose(engine.data.square_distances(centers[:20]).get(), every, rtol=1e-12)


def test_many_clusters(rng):
    # More than one-hot products serve: the labels are sorted and their segments summed.
    X = rng.standard_normal((3000, 40))
    weights = rng.random(3000)
    expected = TSKMeans(150, random_state=0, device="cpu", max_iter=5).fit(X, sample_weight=weights)
    actual = TSKMeans(150, random_state=0, device="cuda", max_iter=5).fit(X, sample_weight=weights)
    oracle.assert_same_fit(actual, expected, X)


def test_same_bits_on_every_run(rng):
    X = cupy.asarray(rng.standard_normal((300_000, 24)).astype(np.float32))
    weights = cupy.asarray(rng.random(300_000))
    fits = [TSKMeans(37, random_state=0, max_iter=15).fit(X, sample_weight=weights) for _ in range(2)]
    assert (fits[0].labels_ == fits[1].labels_).all()
    assert (fits[0].cluster_centers_ == fits[1].cluster_centers_).all()
    assert fits[0].inertia_ == fits[1].inertia_


def test_never_writes_to_the_callers_array(rng):
    X = cupy.asarray(rng.random((300, 4)) + 100)
    before = X.copy()
    TSKMeans(3, random_state=0, copy_x=False).fit(X)
    assert (before == X).all()


def test_empty_clusters_and_duplicates(rng):
    X = rng.standard_normal((500, 3))
    init = np.concatenate([X[:4], np.full((3, 3), 1e3) + np.arange(3)[:, np.newaxis]])
    expected = TSKMeans(7, init=init, n_init=1, device="cpu").fit(X)
    oracle.assert_same_fit(TSKMeans(7, init=init, device="cuda").fit(cupy.asarray(X)), expected, X)
    twice = np.array([[1.0, 2.0], [5.0, 6.0], [5.0, 6.0]])
    with pytest.warns(ConvergenceWarning, match=r"distinct clusters \(2\)"):
        TSKMeans(3, random_state=0, device="cuda").fit(twice)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_non_finite_names_the_row_and_column(rng, bad):
    X = rng.random((100_000, 3))
    X[77_777, 2] = bad
    with pytest.raises(ValueError, match=rf"row 77777, column 2 is {bad}"):
        TSKMeans(2, device="cuda").fit(cupy.asarray(X))


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 300), d=st.integers(1, 40), k=st.integers(1, 12), seed=st.integers(0, 2**31), wide=st.booleans()
)
def test_one_step_is_the_references(n, d, k, seed, wide):
    rng = np.random.default_rng(seed)
    dtype = np.float64 if wide else np.float32
    X = rng.standard_normal((n, d)).astype(dtype)
    X -= X.mean(axis=0)
    centers = rng.standard_normal((k, d)).astype(dtype)
    engine = open_engine(cupy.asarray(X), device="cuda")
    step = engine.step_for(k)
    found = step.assign(centers)
    labels, expected = oracle.lloyd_step(X, centers)
    oracle.assert_nearest(X, centers, step.labels.get(), dtype)
    if np.array_equal(labels, step.labels.get()):
        filled = found.weights > 0
        got = found.sums[filled] / found.weights[filled, np.newaxis]
        np.testing.assert_allclose(got, expected[filled], rtol=0, atol=oracle.gamma(n + 3, dtype) * np.abs(X).max() * 4)


def test_more_than_2_to_31_elements():
    free, _ = cupy.cuda.runtime.memGetInfo()
    if free < 30e9:
        pytest.skip("needs 30 GB of free GPU memory")
    n, d, k = 140_000_000, 16, 4
    random = cupy.random.default_rng(0)
    truth = random.integers(0, k, n, dtype=np.int32)
    X = random.standard_normal((n, d), dtype=np.float32)
    X[cupy.arange(n), truth] += 20
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kmeans = TSKMeans(k, init=20 * np.eye(k, d), max_iter=3).fit(X)
    assert (kmeans.labels_ == truth).all()
    np.testing.assert_allclose(kmeans.cluster_centers_.get(), 20 * np.eye(k, d), atol=5e-3)
