"""`fit_rank`: the bits of one process on every rank, however the rows are cut; and no rank waits after an error."""

import multiprocessing

import ml_dtypes
import numpy as np
import pytest
from exhaustive import property_test
from hypothesis import strategies as st
from kmeans.distributed.cut_fits import samples
from kmeans.distributed.ranks import PRELOADED, on_threads, run_rank

from tsapps import TSKMeans
from tsapps.apps.kmeans.data import blocks
from tsapps.apps.kmeans.distributed import rank
from tsapps.apps.kmeans.distributed.part import Part
from tsapps.apps.kmeans.distributed.rank import RankClustering
from tsapps.apps.kmeans.init import oversampling_chunks

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """No X is small, and as many chunks as there can be."""
    monkeypatch.setattr(blocks, "SMALL", 0)
    monkeypatch.setattr(oversampling_chunks, "_CHUNK_ELEMENTS", 1)


def cut(array, places):
    return None if array is None else np.split(array, places)


def expected_of(X, k, weights=None, **options):
    given = {"n_init": "auto", "max_iter": 300, "tol": 1e-4, "random_state": 0, **options}
    return TSKMeans(k, device="cpu", engine="fused", **given).fit(X, sample_weight=weights)


def assert_same(found, expected):
    """Every rank has the result of an estimator, and the labels of its rows."""
    for one in found:
        if isinstance(one, Exception):
            raise one
        assert isinstance(one, RankClustering)
        np.testing.assert_array_equal(one.cluster_centers, expected.cluster_centers_)
        assert one.cluster_centers.dtype == expected.cluster_centers_.dtype
        assert (one.inertia, one.n_iter, one.labels.dtype) == (expected.inertia_, expected.n_iter_, np.int32)
    np.testing.assert_array_equal(np.concatenate([one.labels for one in found]), expected.labels_)


def test_by_hand():
    """Chunks of 17 features are rows 0 to 127, and row 128 alone; ranks have no row, rows 0 to 2, 3 to 128, no row."""
    X = np.zeros((129, 17), np.float32)
    X[64:128, 0], X[128, 0] = 1, 10
    found, meeting = on_threads(cut(X, [0, 3, 129]), 2, init=X[[0, 128]])
    assert [len(one.labels) for one in found] == [0, 3, 126, 0]
    assert np.concatenate([one.labels for one in found]).tolist() == [0] * 128 + [1]
    for one in found:
        assert one.cluster_centers[:, 0].tolist() == [0.5, 10]
        assert one.inertia == pytest.approx(32, rel=2.0**-20)
        assert one.n_iter == 2
    assert len(set(meeting.calls)) == 1


CUTS = [
    [],
    [1],
    [1000],
    [0, 500],
    [500, 1100],
    [0, 0, 1100, 1100],
    [1, 2, 3, 4],
    [128, 256],
    [127, 129],
    [100, 110, 120, 300],
    [1, 1098, 1099],
    [333, 334, 600],
]


@pytest.mark.parametrize("places", CUTS, ids=str)
def test_any_cut(places, rng):
    X = samples(rng, 1100, 17, 5)
    found, meeting = on_threads(cut(X, places), 5)
    assert_same(found, expected_of(X, 5))
    assert len(set(meeting.calls)) == 1


CASES = {
    "float64": {"dtype": np.float64},
    "float16": {"dtype": np.float16},
    "bfloat16": {"dtype": ml_dtypes.bfloat16},
    "weights": {"weighted": True},
    "weights of float64": {"weighted": True, "dtype": np.float64},
    "cosine": {"metric": "cosine"},
    "random": {"init": "random", "n_init": 3},
    "k-means||": {"init": "k-means||"},
    "array": {"init": "array"},
    "empty clusters": {"init": "empty"},
    "cosine with weights": {"metric": "cosine", "weighted": True, "dtype": np.float64},
    "out of range": {"scale": 1e22},
    "underflow": {"scale": 1e-30},
    "one iteration": {"max_iter": 1},
    "to the end": {"tol": 0},
    "integers": {"dtype": np.int16},
}


def given(rng, n, k, *, dtype=np.float32, weighted=False, scale=1, init="k-means++", **options):
    """Return X, weights, and options for both."""
    X = samples(rng, n, 17, k, np.float64)
    X = (10 * X if np.issubdtype(dtype, np.integer) else scale * X).astype(dtype)
    weights = rng.random(n) + 0.5 if weighted else None
    if init in ("array", "empty"):
        options["n_init"] = 1
        centers = X[rng.integers(0, n, k)].astype(np.float64)
        centers[1::2] = centers[0] if init == "empty" else centers[1::2]
        init = centers
    return X, weights, {"init": init, **options}


@pytest.mark.parametrize("name", CASES)
def test_any_case(name, rng):
    X, weights, options = given(rng, 700, 6, **CASES[name])
    expected = expected_of(X, 6, weights, **options)
    for places in ([0, 129, 130], [350]):
        found, _ = on_threads(cut(X, places), 6, weights=cut(weights, places), **options)
        assert_same(found, expected)


@property_test(
    10,
    300,
    st.integers(5, 500).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.integers(0, n), max_size=5))),
    st.sampled_from(list(CASES)),
    st.integers(1, 5),
    st.integers(0, 2**16),
)
def test_any_cut_of_any_case(n_and_places, name, k, seed):
    n, places = n_and_places[0], sorted(n_and_places[1])
    X, weights, options = given(np.random.default_rng(seed), n, k, **CASES[name])
    found, _ = on_threads(cut(X, places), k, weights=cut(weights, places), random_state=seed, **options)
    assert_same(found, expected_of(X, k, weights, random_state=seed, **options))


def test_no_more_than_a_chunk_a_rank_is_sent(rng):
    X = samples(rng, 1100, 17, 5)
    _, meeting = on_threads(cut(X, [100, 500, 900]), 5)
    sent = [
        [len(array) for array in seen]
        for seen in meeting.seen
        if all(isinstance(value, np.ndarray) and value.ndim == 2 and value.shape[1] == 17 for value in seen)
    ]
    # Chunks begin at 0, 128, 256, 384, 512, …: to the beginning of its first chunk, a rank gives its rows away.
    assert sent == [[0, 28, 12, 124]]


def test_lists_and_frames_of_one_rank(rng):
    pandas = pytest.importorskip("pandas")
    X = samples(rng, 300, 17, 3, np.float64)
    found, _ = on_threads([X[:200].tolist(), pandas.DataFrame(X[200:])], 3)
    assert_same(found, expected_of(X, 3))


# --- Errors -----------------------------------------------------------------------------------------------------------


def assert_refused_by_all(message, rows, k=3, **options):
    """Every rank raises ValueError with this message; none waits for the others."""
    found, _ = on_threads(rows, k, seconds=2, **options)
    for one in found:
        assert isinstance(one, ValueError), f"{type(one)}: {one}"
        assert message in str(one)
    return found


@pytest.fixture
def X(rng):  # noqa: N802
    return samples(rng, 600, 17, 3)


@pytest.mark.parametrize("row", [0, 130, 599])
def test_nan_on_one_rank(X, row):
    X[row, 4] = np.nan
    assert_refused_by_all(f"X: row {row}, column 4 is nan: K-means needs finite numbers", cut(X, [3, 300]))


@pytest.mark.parametrize("row", [0, 130, 599])
def test_nan_on_one_rank_for_cosine(X, row):
    X[row, 4] = np.nan
    message = f"X: row {row}, column 4 is nan: K-means needs finite numbers"
    assert_refused_by_all(message, cut(X, [3, 300]), metric="cosine")


def test_a_row_without_a_direction_on_one_rank(X):
    X[500] = 0
    assert_refused_by_all("X: row 500 is zero, and has no direction", cut(X, [300]), metric="cosine")


def test_the_first_of_several(X):
    X[[40, 400, 500], 2] = np.inf
    assert_refused_by_all("X: row 40, column 2 is inf", cut(X, [30, 300]))


def test_different_shapes_and_types(X):
    assert_refused_by_all("ranks differ in (features, dtype, has weights)", [X[:300], X[300:, :4]])
    assert_refused_by_all("ranks differ in (features, dtype, has weights)", [X[:300], X[300:].astype(np.float64)])
    weights = [np.ones(300), None]
    assert_refused_by_all("ranks differ in (features, dtype, has weights)", cut(X, [300]), weights=weights)


def test_one_rank_has_no_matrix(X):
    assert_refused_by_all("rows have shape (17,); expected a matrix", [X[:300], X[300]])


def test_one_rank_has_no_numbers(X):
    rows = np.ma.masked_array(X[300:], mask=X[300:] > 2)
    assert_refused_by_all("is masked; expected a number everywhere", [X[:300], rows])
    assert_refused_by_all("expected real numbers", [X[:300], X[300:].astype(np.complex64)])


def test_no_rows_at_all(X):
    assert_refused_by_all("X has 0 rows of", [X[:0], X[:0]])


def test_no_features(X):
    assert_refused_by_all("feature", [X[:300, :0], X[300:, :0]])


def test_invalid_parameters(X):
    rows, init = cut(X, [300]), np.zeros((3, 17))
    init[1, 2] = np.nan
    assert_refused_by_all("Got 'forgy'", rows, init="forgy")
    assert_refused_by_all("callable init", rows, init=lambda X, k, random_state: X[:k])
    assert_refused_by_all("expected (n_clusters, n_features) = (3, 17)", rows, init=np.zeros((2, 17)))
    assert_refused_by_all("initial center 1, feature 2 is nan", rows, init=init)
    assert_refused_by_all("metric must be one of", rows, metric="manhattan")
    assert_refused_by_all("n_samples=600 should be >= n_clusters=601", rows, k=601)


@pytest.mark.parametrize(
    ("name", "value"), [("n_clusters", 0), ("n_clusters", 2.5), ("max_iter", 0), ("n_init", 0), ("tol", -1.0)]
)
def test_numbers_out_of_range(X, name, value):
    options = {"k" if name == "n_clusters" else name: value}
    assert_refused_by_all(name, cut(X, [300]), **options)


def test_invalid_weights(X):
    rows, negative = cut(X, [300]), np.ones(600)
    negative[400] = -1
    for message, weights in [
        ("sample_weight[400] is -1.0", cut(negative, [300])),
        ("sample_weight has a NaN", [np.ones(300), np.full(300, np.nan)]),
        ("sample_weight is zero for every sample", [np.zeros(300), np.zeros(300)]),
        ("must not differ by a factor of", [np.ones(300), np.full(300, 1e-9)]),
        ("sample_weight", [np.ones(300), np.ones(301)]),
    ]:
        assert_refused_by_all(message, rows, weights=weights)


def test_weights_of_another_shape(X):
    assert_refused_by_all("sample_weight", cut(X, [300]), weights=[np.ones((300, 1)), np.ones(300)])


def test_as_many_weights_in_all_but_not_on_each_rank(X):
    assert_refused_by_all("sample_weight", cut(X, [300]), weights=[np.ones(301), np.ones(299)])


def test_too_little_memory_on_one_rank(X, monkeypatch):
    class Refused(Part):
        def __init__(self, rows, weights, spec):
            if spec.first > 0:
                raise MemoryError("1.00 GiB are needed")
            super().__init__(rows, weights, spec)

    monkeypatch.setattr(rank, "Part", Refused)
    found, _ = on_threads(cut(X, [300]), 3, seconds=2)
    for one in found:
        assert isinstance(one, ValueError | MemoryError), f"{type(one)}: {one}"
        assert "1.00 GiB are needed" in str(one)


# --- Processes --------------------------------------------------------------------------------------------------------


def test_processes(rng):
    X = samples(rng, 700, 17, 4, np.float64)
    places, context = [129, 400], multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    answers = context.SimpleQueue()
    pipes = {rank: {} for rank in range(3)}
    for one in range(3):
        for other in range(one + 1, 3):
            pipes[one][other], pipes[other][one] = context.Pipe()
    options = {"max_iter": 5}
    processes = [
        context.Process(target=run_rank, args=(rank, pipes[rank], answers, rows, 4, options), daemon=True)
        for rank, rows in enumerate(cut(X, places))
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    ended = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    assert ended == [0, 0, 0]
    found = dict(answers.get() for _ in processes)
    assert not [text for text in found.values() if isinstance(text, str)]
    assert_same([found[rank] for rank in range(3)], expected_of(X, 4, **options))
