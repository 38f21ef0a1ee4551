"""The fused engine on a GPU, against Lloyd in float64 and against the other engines."""

import numpy as np
import oracle
import pytest
from sklearn.datasets import make_blobs

from tsapps import TSKMeans
from tsapps.apps.kmeans import lloyd
from tsapps.apps.kmeans.engines import select_step
from tsapps.apps.kmeans.open_engine import open_engine
from tsapps.apps.kmeans.update import plan as update_plan

pytestmark = pytest.mark.gpu
cupy = pytest.importorskip("cupy", reason="needs a GPU: CuPy is not installed")

SHAPES = [
    (20_000, 1, 2),
    (30_001, 3, 64),
    (20_000, 16, 16),
    (9_999, 40, 33),
    (8_000, 130, 64),
    (3_000, 1000, 5),
    (3_000, 2500, 9),
]


def blobs(n, d, k, dtype, seed=0, spread=1.0):
    X, _ = make_blobs(n, d, centers=k, cluster_std=spread, center_box=(-3, 3), random_state=seed)
    return X.astype(dtype)


def fit(X, k, engine="fused", **options):
    options = {"n_init": 1, "tol": 0, "init": X[:k].astype(np.float32 if X.dtype == np.float16 else X.dtype)} | options
    weights = options.pop("sample_weight", None)
    model = TSKMeans(k, device="cuda", engine=engine, **options).fit(cupy.asarray(X), sample_weight=weights)
    assert model.device_ == "cuda:0"
    return model


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize(("n", "d", "k"), SHAPES)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_iterations_are_those_of_float64(n, d, k, dtype, weighted):
    X = blobs(n, d, k, dtype, spread=2.0)
    weights = np.random.default_rng(1).random(n) + 0.1 if weighted else None
    model = fit(X, k, max_iter=4, sample_weight=weights)
    centers = X[:k].astype(np.float64)
    for _ in range(4):
        labels, centers = oracle.lloyd_step(X, centers, weights)
        assert len(set(labels.tolist())) == k, "the oracle keeps empty clusters where they are"
    work = np.float64 if dtype == np.float64 else np.float32
    # Centers are rounded after each iteration, and a label at the border may follow.
    found = oracle.host(model.cluster_centers_)
    np.testing.assert_allclose(found, centers, rtol=0, atol=1e-3 if work is np.float32 else 1e-9)
    oracle.assert_nearest(X, found, oracle.host(model.labels_), work)
    distances = oracle.square_distances(X, found)[np.arange(n), oracle.host(model.labels_)]
    expected = distances.sum() if weights is None else weights @ distances
    assert model.inertia_ == pytest.approx(expected, rel=1e-5)


def n_reassigned(X, k, weights, bounds, least_sorted, monkeypatch):
    """Return labels and integer sums after each of some passes, with rows sorted from so many elements on."""
    monkeypatch.setattr(update_plan, "LEAST_SORTED", least_sorted)
    monkeypatch.setattr(update_plan, "LARGE_D", 2**31)
    found = []
    monkeypatch.setattr(select_step, "fma_plan", lambda *_: None)  # which moves rows by itself
    with open_engine(cupy.asarray(X), engine="fused", sample_weight=weights, bounds=bounds) as engine:
        mean = engine.data.moments()[0]
        engine.center(mean, k)
        step = engine.step_for(k)
        centers = (X[:k] - mean).astype(engine.data.dtype)
        # All rows come, nearly all go to another cluster, and fewer and fewer follow.
        for passes in (
            lambda: step.assign(centers),
            lambda: step.assign(centers[::-1].copy()),
            lambda: step.iterate(centers, 0, 8, 0.0, None),
        ):
            passes()
            found.append((oracle.host(step.labels).copy(), cupy.asnumpy(step.buffers.sums)))
        assert (step._segments is None) == (least_sorted > X.size)
    return found


@pytest.mark.parametrize("bounds", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize(("n", "d", "k"), [*SHAPES, (40, 5, 3), (20_000, 128, 64), (2_000, 1100, 5)])
def test_rows_are_moved_to_the_same_bits_sorted_or_not(n, d, k, dtype, weighted, bounds, monkeypatch):
    X = blobs(n, d, k, dtype, spread=3.0)
    weights = np.random.default_rng(1).random(n) + 0.1 if weighted else None
    # Never, always, and where half of all rows change.
    ways = [n_reassigned(X, k, weights, bounds, least, monkeypatch) for least in (2**62, 0, X.size // 2)]
    for expected, *skip_full_assign in zip(*ways, strict=True):
        for labels, sums in skip_full_assign:
            np.testing.assert_array_equal(labels, expected[0])
            np.testing.assert_array_equal(sums, expected[1])


@pytest.mark.parametrize(("n", "d", "k"), [(60_000, 64, 64), (30_000, 128, 300), (8_000, 1100, 20)])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_tf32_labels_are_nearly_all_exact_and_sums_are_theirs(n, d, k):
    X = blobs(n, d, k, np.float32, spread=4.0)
    fast, again = (fit(X, k, max_iter=1, precision="tf32") for _ in range(2))
    labels = oracle.host(fast.labels_)
    np.testing.assert_array_equal(labels, oracle.host(again.labels_))
    assert (labels == oracle.square_distances(X, oracle.host(fast.cluster_centers_)).argmin(axis=1)).mean() >= 0.99
    with open_engine(cupy.asarray(X), device="cuda", engine="fused", precision="tf32") as engine:
        mean = engine.data.moments()[0]
        engine.center(mean, k)
        step = engine.step_for(k)
        found = step.assign(X[:k] - mean)
        labels = oracle.host(step.labels)
    expected = oracle.square_distances(X, X[:k]).argmin(axis=1)
    assert (labels == expected).mean() >= 0.99
    np.testing.assert_array_equal(found.weights, np.bincount(labels, minlength=k))
    sums = np.zeros((k, d))
    np.add.at(sums, labels, (X - mean.astype(np.float32)).astype(np.float64))
    np.testing.assert_allclose(found.sums, sums, rtol=0, atol=1e-3)


@pytest.mark.parametrize("dtype", [np.float64, np.float16])
def test_tf32_changes_nothing_of_other_dtypes(dtype):
    X = blobs(30_000, 40, 33, dtype, spread=3.0)
    exact, fast = (fit(X, 33, max_iter=30, precision=one) for one in ("exact", "tf32"))
    np.testing.assert_array_equal(oracle.host(exact.labels_), oracle.host(fast.labels_))
    assert exact.inertia_ == fast.inertia_


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_same_bits_on_every_run(dtype):
    X = blobs(50_000, 24, 20, dtype, spread=3.0)
    first, second = fit(X, 20), fit(X, 20)
    assert first.n_iter_ == second.n_iter_ > 5
    assert first.inertia_ == second.inertia_
    for name in ("cluster_centers_", "labels_"):
        np.testing.assert_array_equal(oracle.host(getattr(first, name)), oracle.host(getattr(second, name)))


@pytest.mark.parametrize("tol", [0, 1e-3])
@pytest.mark.parametrize(("n", "d", "k"), SHAPES[1:4])
def test_converges_where_scikit_learn_does(n, d, k, tol):
    X = blobs(n, d, k, np.float64)
    expected = TSKMeans(k, init=X[:k], n_init=1, tol=tol, device="cpu").fit(X)
    actual = fit(X, k, tol=tol)
    assert actual.n_iter_ == expected.n_iter_
    np.testing.assert_array_equal(oracle.host(actual.labels_), expected.labels_)
    np.testing.assert_allclose(oracle.host(actual.cluster_centers_), expected.cluster_centers_, atol=1e-9)


@pytest.mark.parametrize("max_iter", [1, 2, 3, 30])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_empty_clusters_as_in_scikit_learn(max_iter):
    X = blobs(5_000, 6, 8, np.float64)
    init = np.concatenate([X[:6], X[:1] + 1e3, X[:1] - 1e3])  # two that no sample is near
    options = {"init": init, "n_init": 1, "tol": 0, "max_iter": max_iter}
    expected = TSKMeans(8, device="cpu", **options).fit(X)
    actual = fit(X, 8, init=init, max_iter=max_iter)
    assert actual.n_iter_ == expected.n_iter_
    np.testing.assert_array_equal(oracle.host(actual.labels_), expected.labels_)
    np.testing.assert_allclose(oracle.host(actual.cluster_centers_), expected.cluster_centers_, atol=1e-9)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("engine", ["fused", "cublas"])
@pytest.mark.parametrize("place", [(0, 3), (777, 0), (9_999, 11)])
def test_predict_and_score_refuse_what_is_not_finite(place, engine, bad):
    X = blobs(10_000, 12, 5, np.float32)
    model = fit(X, 5, engine)
    X[place] = bad
    for call in (model.predict, model.score, model.transform):
        with pytest.raises(ValueError, match=rf"row {place[0]}, column {place[1]} is {bad}: K-means needs finite"):
            call(cupy.asarray(X))


def test_predict_takes_finite_numbers_whose_squares_are_not():
    X = blobs(3_000, 4, 3, np.float64)
    model = fit(X, 3)
    X[7] = 1e200
    assert set(oracle.host(model.predict(cupy.asarray(X))).tolist()) <= {0, 1, 2}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n_init", [1, 3])
@pytest.mark.parametrize(("n", "d", "k"), SHAPES[1:4])
def test_cluster_sizes_are_those_of_the_labels(n, d, k, n_init, weighted):
    X = cupy.asarray(blobs(n, d, k, np.float32, spread=2.0))
    weights = cupy.random.random(n) + 0.1 if weighted else None
    with open_engine(X, engine="fused", sample_weight=weights) as engine:
        state = np.random.RandomState(1)
        found = lloyd.fit(engine, k, init="random", n_init=n_init, max_iter=5, random_state=state)
        assert engine.serves(k)
    assert found.cluster_sizes.dtype == np.int64
    np.testing.assert_array_equal(found.cluster_sizes, np.bincount(oracle.host(found.labels), minlength=k))


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize(
    ("n", "d", "k"), [(1, 1, 1), (50_000, 1, 2), (70_001, 16, 5), (30_000, 128, 64), (5_000, 130, 7), (9_000, 96, 700)]
)
def test_inertia_of_any_rows(n, d, k, dtype, weighted, offset):
    kind = pytest.importorskip("ml_dtypes").bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    rng = np.random.default_rng(5)
    values = (3 + rng.standard_normal((n, d))).astype(kind)
    room = cupy.zeros(n * d + offset, kind)
    X = room[offset:].reshape(n, d)
    X.set(values)
    weights = rng.random(n) + 0.1 if weighted else None
    for name in ("fused", "cublas"):
        with open_engine(X, engine=name, sample_weight=weights) as engine:
            mean, variance = engine.data.moments()
            wide = values.astype(np.float64)
            np.testing.assert_allclose(mean, wide.mean(axis=0), rtol=1e-6 if engine.data.dtype == np.float32 else 1e-12)
            np.testing.assert_allclose(variance, wide.var(axis=0).mean(), rtol=1e-6, atol=1e-12)
            engine.center(mean, k)
            centers = rng.standard_normal((k, d)).astype(engine.data.dtype)
            labels = rng.integers(0, k, n)
            on_gpu = cupy.asarray(labels, dtype=np.int32)
            rows = values.astype(engine.data.dtype) - oracle.host(engine.data.mean)
            distances = ((rows.astype(np.float64) - centers.astype(np.float64)[labels]) ** 2).sum(axis=1)
            expected = distances.sum() if weights is None else weights @ distances
            inertia = engine.data.inertia(centers, on_gpu)
            assert inertia == pytest.approx(expected, rel=2.0**-21)
            assert inertia == engine.data.inertia(centers, on_gpu)
            np.testing.assert_allclose(engine.data.own_distances(centers, on_gpu), distances, rtol=1e-6)


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("n", "d", "k"), [(300_000, 4, 16), (200_000, 16, 5), (300_000, 60, 64), (1_200_000, 8, 200)])
def test_inertia_of_a_result_is_that_of_its_rows(n, d, k, dtype, metric):
    kind = pytest.importorskip("ml_dtypes").bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    X = (0.3 + np.random.default_rng(6).standard_normal((n, d))).astype(kind)
    with open_engine(cupy.asarray(X), engine="fused", metric=metric) as engine:
        engine.data.inertia = lambda *_: pytest.fail("X was read again")
        state = np.random.RandomState(1)
        found = lloyd.fit(engine, k, init="random", n_init=2, max_iter=5, tol=0, random_state=state)
    rows = X.astype(np.float64)
    if metric == "cosine":
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    distances = np.square(rows - found.centers.astype(np.float64)[oracle.host(found.labels)])
    assert found.inertia == pytest.approx(distances.sum() / (2 if metric == "cosine" else 1), rel=2.0**-19)


def test_inertia_that_is_not_that_of_the_rows_is_a_fault():
    X = np.random.default_rng(6).standard_normal((200_000, 16)).astype(np.float32)
    with open_engine(cupy.asarray(X), engine="fused") as engine:
        engine.center(engine.data.moments()[0], 5)
        centers, step = X[:5] - oracle.host(engine.data.mean), engine.step_for(5)
        step.assign(centers, update=False)
        inertia, fault = step.checked_inertia(centers)
        assert (inertia, fault) == (step.inertia(centers), None)
        mean, variance, largest = engine.data.known_moments
        engine.data.known_moments, engine.data._last_spread = (mean, variance * 1.001, largest), None
        assert step.checked_inertia(centers)[1] == "the inertia of the cluster sums was not that of the samples"


@pytest.mark.parametrize("first", [0.0, 1e6])
def test_inertia_of_little_is_that_of_rows(first):
    """Sums of the rows of tight clusters, or far from the first of all, say too little of how far they are apart."""
    X = blobs(300_000, 8, 4, np.float32, spread=1.0 if first else 1e-3)
    X[0] += first
    with open_engine(cupy.asarray(X), engine="fused") as engine:
        inertia, read = engine.data.inertia, []
        engine.data.inertia = lambda *of: read.append(inertia(*of)) or read[0]
        found = lloyd.fit(engine, 4, max_iter=5, random_state=np.random.RandomState(1))
    assert [found.inertia] == read


@pytest.mark.parametrize(
    ("dtype", "n", "iterates", "passes"),
    [
        (np.float32, 5_000, True, False),
        (np.float64, 5_000, False, False),
        (np.float32, 300_000, True, True),
        (np.float64, 300_000, True, True),
    ],
)
def test_what_small_data_is_served_by(dtype, n, iterates, passes):
    X = blobs(n, 12, 9, dtype)
    with open_engine(cupy.asarray(X)) as engine:
        engine.center(engine.data.moments()[0], 9)
        assert engine.serves(9) == iterates
    with open_engine(cupy.asarray(X)) as engine:
        centers = engine.place(X[:9], np.zeros(12, dtype))
        assert engine.serves(9) == passes
        step = engine.step_for(9)
        step.assign(centers, update=False)
        oracle.assert_nearest(X, X[:9], oracle.host(step.labels), dtype)


def test_other_ways_in():
    X = blobs(20_000, 12, 9, np.float32)
    before = X.copy()
    on_gpu = cupy.asarray(X)
    model = TSKMeans(9, engine="fused", random_state=0, n_init=2).fit(on_gpu)
    other = TSKMeans(9, engine="cublas", random_state=0, n_init=2).fit(on_gpu)
    assert model.inertia_ == pytest.approx(other.inertia_, rel=1e-6)
    np.testing.assert_array_equal(cupy.asnumpy(on_gpu), before)
    labels = oracle.host(model.predict(cupy.asarray(X[:5000])))
    oracle.assert_nearest(X[:5000], oracle.host(model.cluster_centers_), labels, np.float32)
    assert model.score(on_gpu) == pytest.approx(-model.inertia_, rel=1e-6)
    assert TSKMeans(9, device="cuda", engine="fused", random_state=0).fit(X).inertia_ > 0  # from the host


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_more_clusters_than_it_has_room_for():
    X = blobs(8_000, 8, 100, np.float32)
    assert fit(X, 100, max_iter=3).inertia_ == pytest.approx(fit(X, 100, "cublas", max_iter=3).inertia_, rel=1e-4)


def test_tells_of_every_iteration():
    X = blobs(20_000, 12, 9, np.float32, spread=3.0)
    told = []
    for engine in ("fused", "cublas"):
        with open_engine(cupy.asarray(X), engine=engine) as opened:
            seen = []
            state = np.random.RandomState(0)
            lloyd.fit(opened, 9, init=X[:9], n_init=1, tol=0, max_iter=7, random_state=state, progress=seen.append)
            told.append(seen)
    for ours, theirs in zip(*told, strict=True):
        assert ours.iteration == theirs.iteration
        assert ours.inertia == pytest.approx(theirs.inertia, rel=1e-5)
        assert abs(ours.n_reassigned - theirs.n_reassigned) <= 5


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1e6, 1e15])
def test_any_magnitude(scale):
    X = blobs(20_000, 10, 7, np.float64) * scale + 100 * scale
    assert fit(X, 7).inertia_ == pytest.approx(fit(X, 7, "cublas").inertia_, rel=1e-9)


def test_an_outlier_costs_no_accuracy():
    X = blobs(20_000, 10, 7, np.float32)
    X[5] *= 1e8
    actual, expected = fit(X, 7, max_iter=5), fit(X.astype(np.float64), 7, "cublas", max_iter=5)
    ours, theirs = oracle.host(actual.cluster_centers_), oracle.host(expected.cluster_centers_)
    usual = abs(theirs).max(axis=1) < 1e3
    # The outlier draws the mean away, and samples are rounded about it.
    rounding = np.finfo(np.float32).eps * abs(X.mean(axis=0)).max()
    np.testing.assert_allclose(ours[usual], theirs[usual], atol=2 * rounding)
