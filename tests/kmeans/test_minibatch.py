"""TSMiniBatchKMeans on the CPU: scikit-learn's results for arrays, files, batches of a caller, and in a fork."""

import doctest
import pickle
import sys
import warnings

import numpy as np
import oracle
import pandas as pd
import pytest
import sklearn
from exhaustive import property_test
from hypothesis import strategies as st
from peak_memory import peak_of
from scipy.sparse import csr_matrix
from sklearn.base import clone
from sklearn.cluster import MiniBatchKMeans
from sklearn.cluster._kmeans import _mini_batch_step

import tsapps
from tsapps import TSMiniBatchKMeans, open_matrix
from tsapps.apps.kmeans.data.rows import ArrayRows
from tsapps.apps.kmeans.minibatch import draws, estimator, fit
from tsapps.apps.kmeans.minibatch.draws import BatchDraws
from tsapps.apps.kmeans.minibatch.steps import reassign_centers
from tsapps.kernels.devices import NoDeviceError, gpus

#: Parameters of fits that end for every reason, which are no improvement, little shift and the last step; and of many
#: replaced centers.
OPTIONS = [
    {},
    {"init": "random", "max_no_improvement": 3},
    {"tol": 1e-3},
    {"batch_size": 40, "n_clusters": 30, "reassignment_ratio": 0.5, "max_iter": 2, "max_no_improvement": None},
    {"init_size": 4000, "max_iter": 1, "compute_labels": False},
]


@pytest.fixture(scope="module", name="X")
def blobs(data_sets):
    return data_sets["blobs"][0]


@pytest.fixture
def weights(X):
    return np.random.default_rng(0).random(len(X))


@pytest.fixture
def forked(monkeypatch):
    """Make the estimator compute as in a forked process: by its engine, on the CPU."""
    for module in ("minibatch.estimator", "prediction"):
        monkeypatch.setattr(f"tsapps.apps.kmeans.{module}.is_forked", lambda: True)


def fitted(X, weights=None, **options):
    return TSMiniBatchKMeans(**{"n_clusters": 7, "random_state": 3, "device": "cpu", **options}).fit(
        X, sample_weight=weights
    )


def of_scikit_learn(X, weights=None, **options):
    return MiniBatchKMeans(**{"n_clusters": 7, "random_state": 3, **options}).fit(X, sample_weight=weights)


def assert_same_fit(found, expected, rtol=0.0):
    """Check that centers are equal up to `rtol` of the largest, and numbers of steps, counts and labels are equal.

    If rounding may differ, so may labels of centers that have been replaced by the same row.
    """
    centers, atol = expected.cluster_centers_, rtol * abs(expected.cluster_centers_).max()
    np.testing.assert_allclose(found.cluster_centers_, centers, rtol=0, atol=atol)
    assert hasattr(found, "labels_") == hasattr(expected, "labels_")
    if rtol == 0:
        np.testing.assert_array_equal(getattr(found, "labels_", None), getattr(expected, "labels_", None))
    elif hasattr(expected, "labels_"):
        np.testing.assert_allclose(centers[found.labels_], centers[expected.labels_], rtol=0, atol=2 * atol)
    assert (found.n_steps_, getattr(found, "n_iter_", 0)) == (expected.n_steps_, getattr(expected, "n_iter_", 0))
    if hasattr(expected, "inertia_"):
        assert found.inertia_ == pytest.approx(expected.inertia_, rel=1e-5)
    np.testing.assert_array_equal(found._counts, expected._counts)


def test_examples_of_the_docstring():
    assert doctest.testmod(estimator).failed == 0


def test_public_name():
    assert tsapps.TSMiniBatchKMeans is tsapps.apps.kmeans.TSMiniBatchKMeans is TSMiniBatchKMeans


@pytest.mark.parametrize("process", ["usual", "forked"])
def test_batches_by_hand(process, request):
    """The centers 0 and 10 have no count, so that they move to the means of 1, 2 and of 9; then 0 moves by halves."""
    if process == "forked":
        request.getfixturevalue("forked")
    kmeans = TSMiniBatchKMeans(2, init=[[0.0], [10.0]], n_init=1, reassignment_ratio=0, device="cpu")
    kmeans.partial_fit([[1.0], [2.0], [9.0]])
    assert kmeans.cluster_centers_.tolist() == [[1.5], [9]]
    assert kmeans.labels_.tolist() == [0, 0, 1]
    assert kmeans.inertia_ == 0.5
    kmeans.partial_fit([[3.0], [3.0]])
    assert kmeans.cluster_centers_.tolist() == [[2.25], [9]]
    kmeans.partial_fit([[7.0]], sample_weight=[3])
    assert kmeans.cluster_centers_.tolist() == [[2.25], [7.5]]
    assert (kmeans.n_steps_, kmeans._counts.tolist()) == (3, [4, 4])


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_arrays_and_files_have_the_bits_of_scikit_learn(X, weights, options, weighted, dtype, tmp_path):
    X, weights = X.astype(dtype), weights if weighted else None
    expected = of_scikit_learn(X, weights, **options)
    distances = oracle.square_distances(np.float64(X), np.float64(expected.cluster_centers_)) ** 0.5
    atol = 16 * np.finfo(dtype).eps * distances.max()
    np.save(tmp_path / "x.npy", X)
    for given in (X, open_matrix(tmp_path / "x.npy")):
        found = fitted(given, weights, **options)
        assert_same_fit(found, expected)
        assert found.cluster_centers_.dtype == dtype
        assert found.device_ == "cpu"
        for later in (X, open_matrix(tmp_path / "x.npy")):
            np.testing.assert_array_equal(found.predict(later), expected.predict(X))
            assert found.score(later, sample_weight=weights) == pytest.approx(expected.score(X, None, weights), 1e-5)
            np.testing.assert_allclose(found.transform(later), distances, atol=atol)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("weighted", [False, True])
def test_a_forked_process_computes_the_same(X, weights, options, weighted, forked):
    weights = weights if weighted else None
    expected = of_scikit_learn(X, weights, **options)
    # Both add at most 1024 numbers in a step, of which there are at most 150.
    assert_same_fit(fitted(X, weights, **options), expected, rtol=1e-11)
    if "compute_labels" not in options:
        assert_same_fit(fitted(csr_matrix(X), weights, **options), expected, rtol=1e-11)


@pytest.mark.parametrize("kind", ["array", "open_matrix", "sparse", "forked"])
@pytest.mark.parametrize("weighted", [False, True])
def test_batches_of_the_caller(X, weights, weighted, kind, request):
    """With replaced centers, and with batches of fewer rows than clusters."""
    if kind == "forked":
        request.getfixturevalue("forked")
    make = {"open_matrix": open_matrix, "sparse": csr_matrix}.get(kind, np.asarray)
    parameters = {"n_clusters": 20, "random_state": 1, "reassignment_ratio": 0.3}
    expected, found = MiniBatchKMeans(**parameters), TSMiniBatchKMeans(**parameters, device="cpu")
    for part in np.split(np.arange(600), [100, 110, 300]):
        given = weights[part] if weighted else None
        expected.partial_fit(X[part], sample_weight=given)
        found.partial_fit(make(X[part]), sample_weight=given)
        assert_same_fit(found, expected, rtol=1e-12 if kind in ("forked", "sparse") else 0)
        np.testing.assert_array_equal(found.predict(X), expected.predict(X))


def test_a_fit_goes_on_batch_by_batch(X):
    expected, found = of_scikit_learn(X).partial_fit(X[:50]), fitted(X).partial_fit(X[:50])
    assert_same_fit(found, expected)


@property_test(
    60,
    1000,
    st.integers(1, 700),
    st.integers(1, 60),
    st.sampled_from(["one", "any", "many zero"]),
    st.integers(0, 2**32 - 1),
)
def test_draws_are_those_of_choice(n, size, weighted, seed):
    """With groups of up to 128 rows, of which several are added up and searched at once."""
    rng = np.random.default_rng(seed)
    dtype = [np.float32, np.float64][seed % 2]
    weights = rng.random(n).astype(dtype)
    if weighted == "many zero":
        weights[rng.random(n) < 0.9] = 0
        weights[rng.integers(n)] = 1
    weights = np.ones(n, dtype) if weighted == "one" else weights
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(draws, "_MOST_KEPT", int(rng.choice([6, 50, 700])))
        patch.setattr(draws, "_ROWS", 70)
        p = weights / weights.sum()
        found = BatchDraws(np.broadcast_to(p[0], n) if weighted == "one" else p)
        ours, theirs = (np.random.RandomState(seed % 1000) for _ in range(2))
        for _ in range(2):
            np.testing.assert_array_equal(found.draw(ours, size), theirs.choice(n, size, p=p))


@pytest.mark.parametrize("given", [7, None, "MT19937", "PCG64"])
def test_draws_advance_the_random_state_of_the_caller(X, given):
    ours, theirs = (
        np.random.RandomState(getattr(np.random, given)(5)) if isinstance(given, str) else given for _ in range(2)
    )
    np.random.seed(8)  # noqa: NPY002 (None means this generator)
    expected = MiniBatchKMeans(7, init="random", random_state=theirs).fit(X)
    following = np.random.random_sample() if given is None else None  # noqa: NPY002
    np.random.seed(8)  # noqa: NPY002
    kmeans = TSMiniBatchKMeans(7, init="random", random_state=ours, device="cpu").fit(X)
    assert_same_fit(kmeans, expected)
    assert kmeans.random_state is ours
    if isinstance(given, str):
        assert ours.random_sample() == theirs.random_sample()
    elif given is None:
        assert np.random.random_sample() == following  # noqa: NPY002


@property_test(40, 1000, st.integers(1, 30), st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_centers_of_low_counts_are_replaced_as_in_scikit_learn(n, k, seed):
    rng = np.random.default_rng(seed)
    batch, centers = rng.standard_normal((n, 2)), rng.standard_normal((k, 2))
    counts = np.float64(rng.integers(0, 9, k) * rng.integers(0, 2, k))
    following, expected, of_expected = np.empty_like(centers), np.empty_like(centers), counts.copy()
    given = {"random_reassign": True, "reassignment_ratio": 0.5}
    states = [np.random.RandomState(seed % 1000) for _ in range(3)]
    _mini_batch_step(batch, np.ones(n), centers, expected, of_expected, states[0], **given)
    _mini_batch_step(batch, np.ones(n), centers, following, counts, states[1])
    reassign_centers(ArrayRows(batch), following, counts, states[2], 0.5, 0)
    np.testing.assert_array_equal(following, expected)
    np.testing.assert_array_equal(counts, of_expected)
    assert states[2].random_sample() == states[0].random_sample()


class Counted(ArrayRows):
    """A matrix that counts the rows that are read."""

    read = 0

    def blocks(self, rows):
        for start, block in super().blocks(rows):
            self.read += len(block)
            yield start, block

    def rows(self, indices):
        self.read += len(indices)
        return super().rows(indices)


def test_only_the_rows_of_batches_are_read(X):
    rows = Counted(np.tile(X, (10, 1)))
    found = fitted(rows, batch_size=100, compute_labels=False)
    assert rows.read == 2 * 300 + 100 * found.n_steps_ < 30_000
    rows.read = 0
    assert_same_fit(fitted(rows, batch_size=100), of_scikit_learn(rows.array, batch_size=100))


def test_a_pass_over_blocks_is_one_over_all_rows(X, weights, monkeypatch):
    """Labels, inertia and the variance, which decides when a fit ends."""
    expected = fitted(ArrayRows(X), weights, tol=1e-3)
    monkeypatch.setattr(fit, "SMALL", 0)
    monkeypatch.setattr(fit, "_BLOCK_ELEMENTS", 3500)
    found = fitted(ArrayRows(X), weights, tol=1e-3)
    assert found._tol == pytest.approx(1e-3 * X.var(axis=0).mean(), rel=1e-12)
    assert_same_fit(found, expected)


@pytest.mark.skipif(sys.platform != "linux", reason="memory is measured as Linux does")
def test_memory_does_not_grow_with_the_columns(tmp_path, rng):
    """A file of 160 MiB, 1280 in float64: labels, sums of draws, and the blocks of one thread are in memory."""
    n, d = 5 << 20, 32
    np.save(tmp_path / "x.npy", rng.integers(0, 256, (n, d), dtype=np.uint8))
    np.save(tmp_path / "small.npy", rng.integers(0, 256, (5000, d), dtype=np.uint8))
    setup = """
from tsapps import TSMiniBatchKMeans, open_matrix
def fit(name):
    kmeans = TSMiniBatchKMeans(3, random_state=0, max_no_improvement=2, device="cpu")
    return kmeans.fit(open_matrix(name)).n_steps_
fit("small.npy")
"""
    peak, error, steps = peak_of(setup, "result = fit('x.npy')", tmp_path)
    assert error is None
    assert 2 < steps < 200
    assert peak <= 4 * n + (128 << 20) < n * d


def as_polars(X):
    return pytest.importorskip("polars").DataFrame(X)


def as_torch(X):
    return pytest.importorskip("torch").from_numpy(X)


@pytest.mark.parametrize(
    "convert",
    [np.asarray, np.asfortranarray, np.ndarray.tolist, pd.DataFrame, as_polars, as_torch, csr_matrix, ArrayRows],
)
def test_every_kind_of_input(X, convert):
    X = X[:500]
    expected, given = of_scikit_learn(X), convert(X.copy())
    found = fitted(given)
    np.testing.assert_array_equal(found.labels_, expected.labels_)
    np.testing.assert_array_equal(found.predict(given), expected.labels_)
    np.testing.assert_allclose(found.cluster_centers_, expected.cluster_centers_, rtol=1e-12)
    np.testing.assert_allclose(found.transform(given), expected.transform(X), atol=1e-12)
    assert found.score(given) == pytest.approx(expected.score(X), rel=1e-12)
    online = TSMiniBatchKMeans(7, random_state=3, device="cpu").partial_fit(given).partial_fit(given)
    twice = MiniBatchKMeans(7, random_state=3).partial_fit(X).partial_fit(X)
    np.testing.assert_allclose(online.cluster_centers_, twice.cluster_centers_, rtol=1e-12)
    kind = type(given) if type(given).__module__ == "torch" else np.ndarray
    for out in (found.labels_, found.cluster_centers_, found.predict(given), found.transform(given), online.labels_):
        assert isinstance(out, kind)


def test_clone_pickle_and_set_output(X):
    frame = pd.DataFrame(X, columns=[f"f{i}" for i in range(X.shape[1])])
    kmeans = TSMiniBatchKMeans(3, random_state=1, device="cpu", batch_size=50).set_output(transform="pandas")
    assert clone(kmeans).get_params() == kmeans.get_params()
    out = kmeans.fit_transform(frame)
    assert list(out.columns) == [f"tsminibatchkmeans{i}" for i in range(3)]
    again = pickle.loads(pickle.dumps(kmeans))
    np.testing.assert_array_equal(again.predict(frame), kmeans.labels_)
    np.testing.assert_array_equal(again.partial_fit(frame).cluster_centers_, kmeans.partial_fit(frame).cluster_centers_)


def test_metadata_routing():
    with sklearn.config_context(enable_metadata_routing=True):
        kmeans = TSMiniBatchKMeans(3).set_partial_fit_request(sample_weight=True).set_fit_request(sample_weight=True)
        assert kmeans.get_metadata_routing().partial_fit.requests == {"sample_weight": True}


def test_centers_that_the_caller_assigns(X):
    kmeans = fitted(X)
    kmeans.cluster_centers_[:] = X[:7]
    assert kmeans.predict(X[:7]).tolist() == list(range(7))


def test_verbose_prints_as_scikit_learn_does(X, capsys):
    options = {"verbose": 1, "batch_size": 40, "n_clusters": 30, "reassignment_ratio": 0.5, "max_iter": 2}
    of_scikit_learn(X, **options)
    expected = capsys.readouterr().out
    assert "Reassigning" in expected
    fitted(ArrayRows(X), **options)
    assert capsys.readouterr().out == expected


def test_nothing_is_warned_of(X):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for given in (X, ArrayRows(X)):
            fitted(given, tol=1e-4).partial_fit(given)
    with pytest.warns(RuntimeWarning, match="init_size=5 should be larger than"):
        fitted(ArrayRows(X), init_size=5)


WRONG = [
    ({"n_clusters": 0}, "n_clusters"),
    ({"batch_size": 0}, "batch_size"),
    ({"reassignment_ratio": -1.0}, "reassignment_ratio"),
    ({"init": "k-means||"}, "init"),
    ({"n_clusters": 4000}, "n_samples=3000 should be >= n_clusters=4000"),
    ({"device": "tpu"}, "device must be 'auto', 'cpu', 'cuda' or 'cuda:<number>', got 'tpu'"),
    ({"device": "cuda:0,1"}, "device must be 'auto', 'cpu', 'cuda' or 'cuda:<number>', got 'cuda:0,1'"),
    ({"init": np.ma.array(np.zeros((7, 8)))}, "is masked"),
    ({"init": np.zeros((3, 8)), "n_init": 1}, r"\(3, 8\)"),
]


@pytest.mark.parametrize(("options", "message"), WRONG)
@pytest.mark.parametrize("make", [np.asarray, ArrayRows])
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_parameters_out_of_range(X, options, message, make, method):
    kmeans = TSMiniBatchKMeans(**{"n_clusters": 7, "device": "cpu", **options})
    with pytest.raises(ValueError, match=message):
        getattr(kmeans, method)(make(X))


@pytest.mark.filterwarnings("ignore:X has feature names")
@pytest.mark.parametrize("method", ["fit", "partial_fit", "predict", "transform", "score"])
def test_data_that_is_refused(X, method):
    call = getattr(fitted(X[:, :1]), method)
    with pytest.raises(ValueError, match="is masked; expected a number everywhere"):
        call(np.ma.array(X[:, :1]))
    with pytest.raises(ValueError, match="Complex data not supported"):
        call(X[:, :1] + 0j)
    frame = pd.DataFrame({"x": [1.0, 2, 3], "species": ["a", "b", "c"]})
    with pytest.raises(ValueError, match=r"columns without numbers: species \(.*\); expected numbers: leave them out"):
        call(frame)


@pytest.mark.parametrize("make", [np.asarray, ArrayRows])
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
@pytest.mark.parametrize(
    ("weights", "message"),
    [(np.zeros(3000), "sample_weight is zero for every sample"), (-np.ones(3000), r"sample_weight\[0\] is -1.0")],
)
def test_weights_that_are_refused(X, make, method, weights, message):
    with pytest.raises(ValueError, match=message):
        getattr(TSMiniBatchKMeans(7, device="cpu"), method)(make(X), sample_weight=weights)


@pytest.mark.parametrize("options", [{}, {"batch_size": 3000, "compute_labels": False}])
def test_a_nan_is_named(X, options, tmp_path):
    """In a row of a batch, or found by the last pass."""
    X = X.copy()
    X[1234, 5] = np.nan
    np.save(tmp_path / "x.npy", X)
    with pytest.raises(ValueError, match=r"x\.npy: row 1234, column 5 is nan: K-means needs finite numbers"):
        fitted(open_matrix(tmp_path / "x.npy"), **{"batch_size": 20, "max_iter": 1, **options})


def test_a_batch_of_another_type(X):
    kmeans = TSMiniBatchKMeans(3, device="cpu").partial_fit(X)
    message = r"another working type than the batches before, float64: convert it, .* X\.astype\('float64'\)"
    with pytest.raises(ValueError, match=message):
        kmeans.partial_fit(X.astype(np.float32))
    assert kmeans.partial_fit(X.astype(np.float16)).n_steps_ == 2


def test_dask_collections_are_refused(X):
    array = pytest.importorskip("dask.array").from_array(X, chunks=(1000, 8))
    kmeans = fitted(X)
    for method in (kmeans.fit, kmeans.partial_fit):
        with pytest.raises(ValueError, match="not drawn from Dask collections: use TSKMeans, or call partial_fit"):
            method(array)
    np.testing.assert_array_equal(kmeans.predict(array).compute(scheduler="sync"), kmeans.labels_)


@pytest.mark.skipif(bool(gpus()), reason="there is a GPU")
def test_no_gpu_is_an_error_not_a_fallback(X):
    with pytest.raises(NoDeviceError, match="device 'cuda' was asked for, but "):
        TSMiniBatchKMeans(3, device="cuda").fit(X)
