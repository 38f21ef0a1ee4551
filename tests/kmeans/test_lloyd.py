"""The loop, the seeding and the NumPy engine, against scikit-learn and against a plain reference."""

import warnings
from itertools import pairwise

import numpy as np
import oracle
import pytest
from exhaustive import property_test
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.sparse import random as random_sparse
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning

from tsapps import TSKMeans
from tsapps.apps.kmeans import empty_clusters, lloyd
from tsapps.apps.kmeans.data.host_data import HostData
from tsapps.apps.kmeans.data.rows import ArrayRows
from tsapps.apps.kmeans.open_engine import open_engine
from tsapps.apps.kmeans.results import IterationResult


def streamed(X, name="X"):
    """X as a matrix that is read in blocks, which TSKMeans gives to the NumPy engine."""
    return ArrayRows(np.asarray(X), name)


@pytest.fixture
def no_memory(monkeypatch):
    """Make the engine read X from its source in every pass."""
    monkeypatch.setattr(HostData, "fits", lambda self, size: False)
    monkeypatch.setattr(HostData, "_borrow", lambda self: None)


def test_four_points_by_hand():
    # Two pairs on a line. From centers 0 and 10: labels 0 0 1 1, centers 0.5 and 10.5; the second iteration moves no
    # label. Every sample lies 0.5 from its center, so the inertia is 4 · 0.25.
    X = np.array([[0.0], [1.0], [10.0], [11.0]])
    seen = []
    found = lloyd.fit(
        open_engine(X, device="cpu"),
        2,
        init=np.array([[0.0], [10.0]]),
        random_state=np.random.RandomState(0),
        progress=seen.append,
    )
    assert found.labels.tolist() == [0, 0, 1, 1]
    assert found.centers.tolist() == [[0.5], [10.5]]
    assert found.inertia == 1.0
    assert found.n_iter == 2
    assert found.converged
    assert found.cluster_sizes.tolist() == [2, 2]
    # Inertia about the centers before each update: 0 + 1 + 0 + 1, then 1.
    assert [(p.iteration, p.n_reassigned, p.inertia) for p in seen] == [
        (1, 4, pytest.approx(2)),
        (2, 0, pytest.approx(1)),
    ]


@pytest.mark.each_choice
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["digits", pytest.param("china", marks=pytest.mark.exhaustive), "iris", "blobs"])
def test_same_clustering_as_scikit_learn(data_sets, name, dtype, weighted, seed):
    X, k = data_sets[name]
    X = X.astype(dtype)
    weights = np.random.default_rng(seed).random(len(X)) if weighted else None
    expected = KMeans(k, random_state=seed).fit(X, sample_weight=weights)
    actual = TSKMeans(k, random_state=seed, device="cpu").fit(streamed(X), sample_weight=weights)
    oracle.assert_same_fit(actual, expected, X)


@pytest.mark.parametrize(
    "parameters",
    [
        {"init": "random", "n_init": 3},
        {"init": "random"},
        {"init": "k-means++", "n_init": 3},
        {"init": lambda X, k, random_state: X[random_state.permutation(len(X))[:k]], "n_init": 2},
        {"max_iter": 1},
        {"max_iter": 4},
        {"tol": 0},
        {"tol": 0.1},
    ],
)
def test_parameters_as_in_scikit_learn(data_sets, parameters):
    X, k = data_sets["blobs"]
    expected = KMeans(k, random_state=3, **parameters).fit(X)
    actual = TSKMeans(k, random_state=3, device="cpu", **parameters).fit(streamed(X))
    oracle.assert_same_fit(actual, expected, X)


def test_a_run_that_is_lost_begins_again_at_its_first_centers(data_sets, monkeypatch):
    """Even if a memory error has changed the centers that the lost run iterated."""
    X, _ = data_sets["blobs"]
    init = X[:5].copy()

    def fit(engine):
        options = {"init": init, "max_iter": 5, "random_state": np.random.RandomState(0), "protect": True}
        return lloyd.fit(engine, 5, **options)

    expected = fit(open_engine(X, device="cpu"))
    engine, lost = open_engine(X, device="cpu"), []
    iterate = type(engine.step_for(5)).iterate

    def losing(self, centers, *arguments):
        if lost:
            return iterate(self, centers, *arguments)
        lost.append(True)
        centers[0] += 100
        return IterationResult(centers, 0, False, float("nan"), fault="a test", lost=True)

    monkeypatch.setattr(type(engine.step_for(5)), "iterate", losing)
    found = fit(engine)
    assert found.faults == expected.faults + 1
    np.testing.assert_array_equal(found.centers, expected.centers)
    np.testing.assert_array_equal(found.labels, expected.labels)


def test_given_centers_and_n_init_warns(data_sets):
    X, k = data_sets["blobs"]
    with pytest.warns(RuntimeWarning, match="only one init"):
        actual = TSKMeans(k, init=X[:k], n_init=4, device="cpu").fit(streamed(X))
    oracle.assert_same_fit(actual, KMeans(k, init=X[:k], n_init=1).fit(X), X)


@pytest.mark.parametrize("weighted", [False, True])
def test_empty_clusters_move_to_the_farthest_samples(rng, weighted):
    X = rng.standard_normal((500, 3))
    weights = rng.random(500) + 0.5 if weighted else None
    init = np.concatenate([X[:4], np.full((3, 3), 1e3) + np.arange(3)[:, np.newaxis]])
    expected = KMeans(7, init=init, n_init=1).fit(X, sample_weight=weights)
    actual = TSKMeans(7, init=init, device="cpu").fit(streamed(X), sample_weight=weights)
    oracle.assert_same_fit(actual, expected, X)
    assert len(np.unique(actual.labels_)) == 7


@pytest.mark.parametrize("count", [1, 7, 300])
def test_farthest_samples_in_the_order_of_their_distances(count, rng):
    X, centers = rng.standard_normal((1000, 3)), rng.standard_normal((5, 3))
    X[10:20] = X[10]
    labels = rng.integers(0, 5, 1000).astype(np.int32)
    data = open_engine(streamed(X), device="cpu").data
    found = empty_clusters._by_distance(data, labels, centers, count)
    squares = ((X - centers[labels]) ** 2).sum(axis=1)
    assert found.tolist() == np.lexsort((np.arange(1000), -squares))[:count].tolist()
    labels[:] = 0
    data = open_engine(streamed(np.tile(centers[0], (1000, 1))), device="cpu").data
    assert empty_clusters._by_distance(data, labels, centers, count) is None


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0]])
def test_more_clusters_than_distinct_samples(order):
    X = np.array([[1.0, 2.0], [5.0, 6.0], [5.0, 6.0]])[order]
    with pytest.warns(ConvergenceWarning):
        expected = KMeans(3, random_state=0).fit(X)
    with pytest.warns(ConvergenceWarning, match=r"distinct clusters \(2\)"):
        actual = TSKMeans(3, random_state=0, device="cpu").fit(streamed(X))
    oracle.assert_same_fit(actual, expected, X)


def test_sparse_rows_cluster_as_dense():
    X = random_sparse(400, 30, 0.2, format="csr", random_state=5)
    expected = KMeans(5, random_state=0).fit(X)
    found = lloyd.fit(open_engine(X, device="cpu"), 5, random_state=np.random.RandomState(0), center=False)
    np.testing.assert_array_equal(found.labels, expected.labels_)
    np.testing.assert_allclose(found.centers, expected.cluster_centers_, atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint8])
def test_streamed_is_resident_bit_for_bit(no_memory, data_sets, dtype):
    X = (data_sets["china"][0][:60_000] * 255).astype(dtype)
    streaming = open_engine(streamed(X), device="cpu")
    assert streaming.data.held is None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HostData, "fits", lambda self, size: True)
        resident = open_engine(streamed(X), device="cpu")
    assert resident.data.held is not None
    one, other = (lloyd.fit(e, 5, random_state=np.random.RandomState(0)) for e in (streaming, resident))
    np.testing.assert_array_equal(one.labels, other.labels)
    np.testing.assert_array_equal(one.centers, other.centers)
    assert one.inertia == other.inertia


def test_threads_do_not_change_a_bit(rng, monkeypatch):
    X = rng.standard_normal((200_000, 17)).astype(np.float32)
    monkeypatch.setattr("tsapps.apps.kmeans.data.host_data._TASK_ELEMENTS", 1 << 16)
    found = []
    for threads in (1, 5):
        monkeypatch.setattr("os.sched_getaffinity", lambda _, threads=threads: range(threads))
        engine = open_engine(X, device="cpu")
        assert engine.data.threads == threads
        found.append(lloyd.fit(engine, 9, max_iter=5, random_state=np.random.RandomState(0)))
    np.testing.assert_array_equal(found[0].labels, found[1].labels)
    np.testing.assert_array_equal(found[0].centers, found[1].centers)
    assert found[0].inertia == found[1].inertia


def test_never_writes_to_the_callers_array(rng):
    X = rng.random((300, 4)) + 100
    before = X.copy()
    lloyd.fit(open_engine(X, device="cpu"), 3, random_state=np.random.RandomState(0))
    np.testing.assert_array_equal(X, before)


def test_progress_is_the_inertia_and_never_rises(data_sets):
    X, k = data_sets["digits"]
    weights = np.random.default_rng(0).random(len(X))
    seen = []
    engine = open_engine(X, device="cpu", sample_weight=weights)
    found = lloyd.fit(engine, k, random_state=np.random.RandomState(0), tol=0, progress=seen.append)
    inertias = [p.inertia for p in seen]
    assert len(seen) == found.n_iter
    assert seen[0].n_reassigned == len(X)
    assert seen[-1].n_reassigned == 0
    assert all(b <= a * (1 + 1e-12) for a, b in pairwise(inertias))
    # The last iteration moved no label, so its centers are the final ones.
    assert inertias[-1] == pytest.approx(found.inertia, rel=1e-9)


def test_far_off_center_data_keeps_its_clusters(rng):
    # 1e4 from the origin the uncentered float32 score rounds to steps of 8; the clusters are 1 wide and 10 apart.
    truth = rng.integers(0, 4, 5000)
    X = (1e4 + 10 * np.eye(4)[truth] + rng.standard_normal((5000, 4))).astype(np.float32)
    found = lloyd.fit(open_engine(X, device="cpu"), 4, init=1e4 + 10 * np.eye(4), random_state=np.random.RandomState(0))
    np.testing.assert_array_equal(found.labels, truth)


def test_moments_of_samples_farther_apart_than_their_type_holds():
    X = np.array([[3e38, 1], [-3e38, 2], [1, 3], [2, 4]], np.float32)
    mean, variance = open_engine(X, device="cpu").data.moments()
    wide = X.astype(np.float64)
    # About zero; float32's largest numbers leave float64 room for squares.
    np.testing.assert_allclose(mean, wide.mean(axis=0), rtol=1e-12, atol=1e23)
    assert variance == pytest.approx(wide.var(axis=0).mean(), rel=1e-12)
    X[2, 1] = np.inf
    with pytest.raises(ValueError, match="row 2, column 1 is inf"):
        open_engine(X, device="cpu").data.moments()


@st.composite
def problems(draw):
    """A matrix of any shape, dtype, order and stride, centers, weights or none."""
    n, d = draw(st.integers(1, 60)), draw(st.integers(1, 9))
    dtype = draw(st.sampled_from([np.float64, np.float32, np.float16, np.int32, np.uint8, np.int64]))
    bound = 200 if dtype is np.uint8 else 1000
    if np.dtype(dtype).kind == "f":
        elements = st.floats(-1000, 1000, width=np.dtype(dtype).itemsize * 8, allow_subnormal=True)
    else:
        elements = st.integers(0, bound)
    row_step, column_step = draw(st.sampled_from([1, 2, -1])), draw(st.sampled_from([1, 3, -1]))
    whole = draw(hnp.arrays(dtype, (n * abs(row_step), d * abs(column_step)), elements=elements))
    if draw(st.booleans()):
        whole = np.asfortranarray(whole)
    X = whole[::row_step, ::column_step]
    assert X.shape == (n, d)
    weights = draw(st.none() | hnp.arrays(np.float64, n, elements=st.floats(0.125, 8)))
    k = draw(st.integers(1, min(n, 6)))
    return X, X[:k].astype(np.float64) + 0.25, weights


@property_test(60, 200, problem=problems(), block=st.integers(1, 64))
def test_one_step_is_the_references(problem, block):
    X, centers, weights = problem
    engine = open_engine(X, device="cpu", sample_weight=weights)
    engine.data.block_rows = lambda n_columns: block
    step = engine.step_for(len(centers))
    step.reset()
    found = step.assign(centers.astype(engine.data.dtype), potential=True)
    labels, expected = oracle.lloyd_step(X, centers, weights)
    assert found.n_reassigned == len(X)
    # The engine was not centered: its scores round relative to the whole norms, which centering about 0 bounds.
    wide = np.concatenate([np.asarray(X, np.float64), -np.asarray(X, np.float64)])
    both = np.concatenate([step.labels, oracle.square_distances(-np.asarray(X, np.float64), centers).argmin(axis=1)])
    oracle.assert_nearest(wide, centers, both, engine.data.dtype)
    if np.array_equal(labels, step.labels):
        filled = found.weights > 0
        scale = 1 + np.abs(np.asarray(X, np.float64)).max()
        got = found.sums[filled] / found.weights[filled, np.newaxis]
        bound = oracle.gamma(len(X) + 3, engine.data.dtype) * scale * 70
        np.testing.assert_allclose(got, expected[filled], rtol=0, atol=bound)
    own = oracle.square_distances(X, centers)[np.arange(len(X)), step.labels]
    weighted = (own if weights is None else own * weights).sum()
    magnitude = (weights.sum() if weights is not None else len(X)) * (1 + np.abs(np.asarray(X, np.float64)).max()) ** 2
    tolerance = oracle.gamma(X.shape[1] + 6, engine.data.dtype) * 16 * X.shape[1] * magnitude
    assert step.inertia(centers.astype(engine.data.dtype)) == pytest.approx(weighted, abs=tolerance)
    assert found.potential + engine.data.square_norm() == pytest.approx(weighted, abs=tolerance)


@settings(max_examples=60, deadline=None)
@given(problem=problems(), seed=st.integers(0, 2**31))
def test_whole_fit_is_scikit_learns(problem, seed):
    X, centers, weights = problem
    X = X.astype(np.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        expected = KMeans(len(centers), random_state=seed).fit(X, sample_weight=weights)
        actual = TSKMeans(len(centers), random_state=seed, device="cpu").fit(streamed(X), sample_weight=weights)
    if np.array_equal(actual.labels_, expected.labels_):
        # scikit-learn stops early where the squared shift of a center underflows; see `Frame`, which scales.
        assert actual.n_iter_ == expected.n_iter_ or 0 < np.ptp(X) < 1e-140
        np.testing.assert_allclose(actual.cluster_centers_, expected.cluster_centers_, rtol=1e-12, atol=1e-9)
        assert actual.inertia_ == pytest.approx(expected.inertia_, rel=1e-9, abs=1e-9)
        return
    # Small matrices are full of exact ties, which rounding may break either way: then the labels must be as good.
    oracle.assert_nearest(X, actual.cluster_centers_, actual.labels_, np.float64)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_names_the_row_and_column(rng, bad):
    X = rng.random((100_000, 3))
    X[77_777, 2] = bad
    with pytest.raises(ValueError, match=rf"numbers\.npy: row 77777, column 2 is {bad}"):
        TSKMeans(2, device="cpu").fit(streamed(X, "numbers.npy"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"init": np.zeros((3, 2))}, r"initial centers have shape \(3, 2\); expected .* \(2, 4\)"),
        ({"init": lambda X, k, random_state: X[:1]}, r"initial centers have shape \(1, 4\)"),
    ],
)
def test_wrong_initial_centers(rng, arguments, message):
    with pytest.raises(ValueError, match=message):
        TSKMeans(2, device="cpu", **arguments).fit(streamed(rng.random((20, 4))))


def test_more_clusters_than_samples(rng):
    with pytest.raises(ValueError, match="n_samples=3 should be >= n_clusters=4"):
        TSKMeans(4, device="cpu").fit(streamed(rng.random((3, 2))))


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (np.zeros(5), r"shape \(5,\); expected a matrix"),
        (np.zeros((2, 3, 4)), "expected a matrix"),
        (np.zeros((0, 3)), "at least one sample"),
        (np.zeros((3, 0)), "at least one sample and one feature"),
        (np.zeros((3, 2), complex), "dtype complex128; expected real numbers"),
        (np.array([["a", "b"]]), "could not convert string to float"),
    ],
)
def test_not_a_matrix(X, message):
    with pytest.raises(ValueError, match=message):
        open_engine(X, device="cpu")


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones(3), r"shape \(3,\); expected one number per sample, \(4,\)"),
        (np.ones((4, 1)), "expected one number per sample"),
        ([1, 1, np.nan, 1], "NaN or an infinity"),
    ],
)
def test_wrong_sample_weight(weights, message):
    with pytest.raises(ValueError, match=message):
        open_engine(np.zeros((4, 2)), device="cpu", sample_weight=weights)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"device": "gpu"}, "device must be 'auto', 'cpu', 'cuda' or 'cuda:<number>', for several GPUs"),
        ({"device": "cuda:x"}, "got 'cuda:x'"),
        ({"device": 0}, "got 0"),
        ({"engine": "magic", "device": "cpu"}, "engine must be one of 'auto', 'fused', 'cublas', got 'magic'"),
        ({"engine": "cublas", "device": "cpu"}, "engine='cublas' needs a GPU"),
        ({"dtype": np.float16, "device": "cpu"}, "dtype must be float32 or float64, got float16"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        open_engine(np.zeros((4, 2)), **arguments)
