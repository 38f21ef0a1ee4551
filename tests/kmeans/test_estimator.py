"""TSKMeans as an estimator on the CPU: kinds of input, scikit-learn's protocols, errors."""

import doctest
import pickle

import numpy as np
import pandas as pd
import pytest
import sklearn
from scipy.sparse import random as random_sparse
from sklearn.base import clone
from sklearn.cluster import KMeans
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import tsapps
from tsapps import TSKMeans
from tsapps.apps.kmeans import estimator
from tsapps.apps.kmeans.data.rows import ArrayRows
from tsapps.kernels.devices import NoDeviceError, gpus


class OnlyDlpack:
    """An array that can nothing but DLPack."""

    def __init__(self, array):
        self.array = array
        self.shape = array.shape

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


@pytest.fixture(name="X")
def blobs(data_sets):
    return data_sets["blobs"][0]


@pytest.fixture
def fitted(X):
    return TSKMeans(4, random_state=0, device="cpu").fit(X)


def test_examples_of_the_docstring():
    assert doctest.testmod(estimator).failed == 0


def test_public_name():
    assert tsapps.TSKMeans is TSKMeans
    assert "TSKMeans" in dir(tsapps)
    names = "TSBalancedKMeans, TSKMeans, TSMiniBatchKMeans, abft, choose_k, gram, kmeans_batched, matmul"
    with pytest.raises(AttributeError, match=f"no attribute 'kmeans'; it has {names}"):
        tsapps.kmeans  # noqa: B018
    assert tsapps.apps.kmeans.TSKMeans is TSKMeans
    assert {"BatchedClustering", "TSKMeans", "kmeans_batched"} <= set(dir(tsapps.apps.kmeans))
    with pytest.raises(AttributeError, match=r"module 'tsapps\.apps\.kmeans' has no attribute 'KMeans'"):
        tsapps.apps.kmeans.KMeans  # noqa: B018


def test_in_memory_is_scikit_learn_bit_for_bit(X, fitted):
    expected = KMeans(4, random_state=0).fit(X)
    np.testing.assert_array_equal(fitted.labels_, expected.labels_)
    np.testing.assert_allclose(fitted.cluster_centers_, expected.cluster_centers_, rtol=1e-14)
    assert fitted.n_iter_ == expected.n_iter_
    assert fitted.device_ == "cpu"


def as_dlpack(X):
    return OnlyDlpack(X)


def as_torch(X):
    return pytest.importorskip("torch").from_numpy(X)


def as_polars(X):
    return pytest.importorskip("polars").DataFrame(X)


def as_blocks(X):
    return ArrayRows(X)


@pytest.mark.parametrize(
    "convert",
    [np.asarray, np.asfortranarray, np.ndarray.tolist, pd.DataFrame, as_polars, as_dlpack, as_torch, as_blocks],
)
def test_every_kind_of_input(X, fitted, convert):
    X = X[:500]
    reference = KMeans(4, random_state=0).fit(X)
    given = convert(X)
    kmeans = TSKMeans(4, random_state=0, device="cpu").fit(given)
    np.testing.assert_array_equal(kmeans.labels_, reference.labels_)
    np.testing.assert_array_equal(kmeans.predict(given), reference.labels_)
    np.testing.assert_allclose(kmeans.transform(given), reference.transform(X), atol=1e-12)
    assert kmeans.score(given) == pytest.approx(reference.score(X), rel=1e-12)
    np.testing.assert_allclose(kmeans.cluster_centers_, reference.cluster_centers_, rtol=1e-12)
    kind = type(given) if convert is as_torch else np.ndarray
    for out in (kmeans.labels_, kmeans.cluster_centers_, kmeans.predict(given), kmeans.transform(given)):
        assert isinstance(out, kind)


def test_fit_on_blocks_then_predict_on_anything(X):
    kmeans = TSKMeans(4, random_state=0, device="cpu").fit(ArrayRows(X.astype(np.float32)))
    assert kmeans.n_features_in_ == X.shape[1]
    np.testing.assert_array_equal(kmeans.predict(X.astype(np.float32)), kmeans.labels_)
    with pytest.raises(ValueError, match="expecting 8 features"):
        kmeans.predict(ArrayRows(X[:, :3]))


@pytest.mark.parametrize("blocks", [False, True])
def test_clone_and_pickle(X, blocks):
    kmeans = TSKMeans(3, random_state=1, device="cpu", tol=1e-3)
    assert clone(kmeans).get_params() == kmeans.get_params()
    kmeans.fit(ArrayRows(X) if blocks else X)
    again = pickle.loads(pickle.dumps(kmeans))
    np.testing.assert_array_equal(again.predict(X), kmeans.labels_)
    assert again.device_ == "cpu"


@pytest.mark.parametrize("blocks", [False, True])
def test_precision_changes_nothing_on_the_cpu(X, blocks):
    X = X.astype(np.float32)
    exact, tf32 = (
        TSKMeans(3, random_state=1, device="cpu", precision=one).fit(ArrayRows(X) if blocks else X)
        for one in ("exact", "tf32")
    )
    assert clone(tf32).precision == "tf32"
    np.testing.assert_array_equal(exact.labels_, tf32.labels_)
    assert exact.inertia_ == tf32.inertia_


@pytest.mark.parametrize("container", ["pandas", "polars"])
def test_set_output_and_feature_names(X, container):
    pytest.importorskip(container)
    frame = pd.DataFrame(X, columns=[f"f{i}" for i in range(X.shape[1])])
    kmeans = TSKMeans(3, random_state=1, device="cpu").set_output(transform=container)
    for out in (kmeans.fit_transform(frame), kmeans.transform(frame)):
        assert type(out).__module__.startswith(container)
        assert list(out.columns) == ["tskmeans0", "tskmeans1", "tskmeans2"]
    assert list(kmeans.feature_names_in_) == list(frame.columns)
    assert list(kmeans.get_feature_names_out()) == ["tskmeans0", "tskmeans1", "tskmeans2"]


def test_metadata_routing(X):
    weights = np.random.default_rng(0).random(len(X))
    with sklearn.config_context(enable_metadata_routing=True):
        kmeans = TSKMeans(3, random_state=0, device="cpu").set_fit_request(sample_weight=True)
        scaler = StandardScaler().set_fit_request(sample_weight=False)
        pipeline = make_pipeline(scaler, kmeans).fit(X, sample_weight=weights)
    expected = KMeans(3, random_state=0).fit(StandardScaler().fit_transform(X), sample_weight=weights)
    np.testing.assert_array_equal(pipeline[-1].labels_, expected.labels_)


def test_verbose_prints_as_scikit_learn_does(X, capsys):
    KMeans(3, random_state=0, verbose=1, max_iter=3).fit(X)
    expected = [line.split(" inertia")[0] for line in capsys.readouterr().out.splitlines()[:4]]
    TSKMeans(3, random_state=0, verbose=1, max_iter=3, device="cpu").fit(ArrayRows(X))
    assert [line.split(" inertia")[0] for line in capsys.readouterr().out.splitlines()[:4]] == expected


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"n_clusters": 0}, "n_clusters"),
        ({"max_iter": 0}, "max_iter"),
        ({"tol": -1.0}, "tol"),
        ({"init": "best"}, "init"),
        ({"n_init": 0}, "n_init"),
        ({"algorithm": "full"}, "algorithm"),
        ({"device": "tpu"}, "device must be 'auto', 'cpu', 'cuda' or 'cuda:<number>', for several GPUs"),
        ({"precision": "half"}, "precision must be one of 'exact', 'tf32', got 'half'"),
        ({"engine": "cublas"}, "engine='cublas' needs a GPU, but the device is the CPU"),
    ],
)
@pytest.mark.parametrize("blocks", [False, True])
def test_parameters_out_of_range(X, parameters, message, blocks):
    with pytest.raises(ValueError, match=message):
        TSKMeans(**{"device": "cpu", **parameters}).fit(ArrayRows(X) if blocks else X)


def test_a_parameter_of_another_type_is_validated_again(X):
    rows = ArrayRows(X)
    TSKMeans(3, protect=True, device="cpu").fit(rows)
    with pytest.raises(ValueError, match="'protect'"):
        TSKMeans(3, protect=1, device="cpu").fit(rows)  # 1 == True
    with pytest.raises(ValueError, match="'init'"):
        TSKMeans(3, init=np.float64(1), device="cpu").fit(rows)


@pytest.mark.parametrize("protect", [False, True])
def test_a_sparse_frame_is_not_centered(protect):
    """As in scikit-learn, which makes it a sparse matrix: a callable init receives rows that are not centered."""
    rows = random_sparse(60, 3, density=0.3, random_state=0, format="csr") * 9
    frame, seen = pd.DataFrame.sparse.from_spmatrix(rows), []

    def init(X, k, random_state):
        seen.append(X[:2] if isinstance(X, np.ndarray) else X[:2].toarray())
        return np.array([[5.0, 0, 0], [0, 5, 0]])

    options = {"init": init, "n_init": 1, "max_iter": 2, "device": "cpu", "protect": protect}
    of_frame, of_rows = (TSKMeans(2, **options).fit(X) for X in (frame, rows))
    np.testing.assert_array_equal(seen[0], seen[1])
    np.testing.assert_array_equal(of_frame.cluster_centers_, of_rows.cluster_centers_)


def test_the_features_of_an_array_replace_those_of_a_frame(X):
    frame = pd.DataFrame(X, columns=[f"f{i}" for i in range(X.shape[1])])
    kmeans = TSKMeans(3, metric="cosine", random_state=1, device="cpu").fit(frame)
    assert list(kmeans.feature_names_in_) == list(frame.columns)
    kmeans.fit(X[:, 1:])
    assert kmeans.n_features_in_ == X.shape[1] - 1
    assert not hasattr(kmeans, "feature_names_in_")
    with pytest.raises(ValueError, match="expected a matrix of shape"):
        kmeans.fit(X[0])


@pytest.mark.skipif(bool(gpus()), reason="there is a GPU")
@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:3"])
def test_no_gpu_is_an_error_not_a_fallback(X, device):
    with pytest.raises(NoDeviceError, match=f"device '{device}' was asked for, but "):
        TSKMeans(3, device=device).fit(X)


def test_auto_without_a_gpu_is_the_cpu(X, monkeypatch):
    monkeypatch.setattr("tsapps.kernels.devices._probe", lambda: ((), "there is none"))
    assert TSKMeans(3).fit(X).device_ == "cpu"


def test_unknown_input_kind():
    with pytest.raises(ValueError, match="could not convert string to float"):
        TSKMeans(3, device="cpu").fit("data.npy")
