"""X as parts: the bits of one process, however the rows are cut, and whatever happened to a part before."""

import pickle

import ml_dtypes
import numpy as np
import pytest
from exhaustive import every, property_test
from hypothesis import strategies as st
from kmeans.distributed.cut_fits import SHARES, fitted, host_engine, labels_of, parted_engine, same_bits, samples

from tsapps import TSKMeans
from tsapps.apps.kmeans.data import blocks
from tsapps.apps.kmeans.distributed.crew import LocalCrew, chunk_of_parts, cut_rows
from tsapps.apps.kmeans.distributed.part import Part
from tsapps.apps.kmeans.init import oversampling_chunks, plusplus_host

# Of 17 or 33 features, 128 rows are a chunk.
DTYPES = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16]
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """No X is small, and as many chunks as there can be."""
    monkeypatch.setattr(blocks, "SMALL", 0)
    monkeypatch.setattr(oversampling_chunks, "_CHUNK_ELEMENTS", 1)


def by_hand():
    """128 rows in two equal heaps, and one far away, which is a part by itself."""
    X = np.zeros((129, 17), np.float32)
    X[64:128, 0], X[128, 0] = 1, 10
    return X


def test_by_hand():
    X = by_hand()
    engine = parted_engine(X)
    assert [len(part) for part in engine.data.crew.parts] == [128, 1]
    found = fitted(engine, 2, init=X[[0, 128]])
    assert labels_of(found).tolist() == [0] * 128 + [1]
    assert found.centers[:, 0].tolist() == [0.5, 10]
    assert not found.centers[:, 1:].any()
    # In the second iteration no label changes. The inertia is 128 · ½².
    assert (found.n_iter, found.converged, found.cluster_sizes.tolist()) == (2, True, [128, 1])
    assert found.inertia == pytest.approx(32, rel=2.0**-20)
    assert (found.step, found.step_reason) == ("partitioned", "X has 2 parts")


def test_what_parts_answer_by_hand():
    engine, X = parted_engine(by_hand()), by_hand()
    data, step = engine.data, engine.step_for(2)
    engine.center(data.moments()[0], 2)
    step.reset()
    centers = X[[0, 128]] - data.host_mean()
    (count, sums), (of_last, sums_of_last) = data.ask("assign", centers)
    assert (count, of_last) == (128, 1)
    assert (sums * step.sums_units)[:, -1].tolist() == [128, 0]
    assert (sums_of_last * step.sums_units)[:, -1].tolist() == [0, 1]
    data.tell(centers=centers)
    assert [sizes.tolist() for sizes in data.ask("cluster_sizes")] == [[128, 0], [0, 1]]
    assert data.gathered("labels_of", np.array([128, 0, 127, 128])).tolist() == [1, 0, 0, 1]
    assert data.rows(np.array([128, 0])).tolist() == (X[[128, 0]] - data.host_mean()).tolist()
    assert [count for count, _ in data.ask("assign", X[[128, 0]] - data.host_mean())] == [128, 1]


@property_test(50, 1000, st.integers(1, 3000), st.sampled_from([1, 17, 40]), st.lists(st.floats(0.01, 9), min_size=1))
def test_parts_are_whole_chunks(n, d, shares):
    chunk = chunk_of_parts(n, d, np.dtype(np.float32))
    parts = cut_rows(n, d, np.dtype(np.float32), shares)
    assert 0 < len(parts) == min(len(shares), -(-n // chunk))
    assert [row for part in parts for row in part] == list(range(n))
    assert all(len(part) > 0 and part.start % chunk == 0 for part in parts)


def case(**changes):
    return {
        "n": 1100, "d": 17, "k": 5, "dtype": np.float32, "weighted": False, "spherical": False, "init": "k-means++",
        "n_init": 1, "scale": 1.0, "distinct": None, "offset": 0.0, "seed": 0, **changes,
    }  # fmt: skip


def name_of(changed):
    """Return the values of a case that are not those of `case()`."""
    names = [getattr(value, "__name__", value) for key, value in changed.items() if value != case()[key]]
    return "-".join(map(str, names)) or "plain"


def data_of(case):
    """Return X, weights, options of `fitted`; all weights of the first rows are zero."""
    rng = np.random.default_rng(case["seed"])
    n, k = case["n"], case["k"]
    X = samples(rng, n, case["d"], k, np.float64) + case["offset"]
    if case["distinct"] is not None:
        X = X[rng.integers(0, min(n, case["distinct"]), n)]
    X = (case["scale"] * X).astype(case["dtype"])
    weights = None
    if case["weighted"]:
        weights = rng.random(n) + 0.5
        weights[: n // 2] = 0
    init = case["init"]
    if init == "array":
        init = X[rng.integers(0, n, k)].astype(np.float64)
    elif init == "empty clusters":
        init = X[rng.integers(0, n, k)].astype(np.float64)
        init[1::2] = init[0]
    options = {"init": init, "n_init": case["n_init"]}
    return X, weights, {"spherical": case["spherical"]}, options


def assert_one_digest(case, shares, crew=LocalCrew):
    X, weights, metric, options = data_of(case)
    expected = fitted(host_engine(X, weights, **metric), case["k"], **options)
    for some in shares:
        engine = parted_engine(X, weights, some, crew=crew, **metric)
        same_bits(fitted(engine, case["k"], **options), expected)
        assert len(engine.data.crew.parts) <= len(some)


CASES = [
    case(),
    case(dtype=np.float64, n_init=3, init="random"),
    case(dtype=np.float16, n=1025),
    case(dtype=ml_dtypes.bfloat16, d=33),
    case(weighted=True),
    case(weighted=True, dtype=np.float64, init="random", d=33),
    case(spherical=True),
    case(spherical=True, dtype=np.float64, weighted=True, init="array"),
    case(init="empty clusters", k=8),
    case(init="empty clusters", k=8, weighted=True, dtype=np.float64),
    case(distinct=3),
    case(distinct=3, dtype=np.float64, init="k-means||"),
    case(init="k-means||", k=20),
    case(init="k-means||", weighted=True),
    case(scale=1e22),
    case(scale=1e-30, init="array"),
    case(scale=1e200, dtype=np.float64),
    case(offset=1e5),
    case(n_init=4, init="k-means++", k=3),
    case(k=200, n=600),
    case(k=1),
    case(n=129),
    case(n=7, k=7),
    case(d=1, n=9000),
    case(d=1200, n=300, k=3),
]


@pytest.mark.parametrize("case", every(2, CASES), ids=name_of)
def test_one_digest_for_any_cut(case):
    assert_one_digest(case, SHARES[1:])


def test_that_of_the_estimator(rng):
    X = samples(rng, 1100, 17, 5)
    expected = TSKMeans(5, device="cpu", engine="fused", random_state=0, n_init=1, max_iter=6, tol=0).fit(X)
    found = fitted(parted_engine(X, shares=(1, 2, 1)), 5)
    np.testing.assert_array_equal(labels_of(found), expected.labels_)
    np.testing.assert_array_equal(found.centers, expected.cluster_centers_)
    assert (found.inertia, found.n_iter) == (expected.inertia_, expected.n_iter_)


def test_outliers_that_hide_the_typical_rows(rng):
    """Then the median of sampled rows, which several parts have, is subtracted."""
    X = samples(rng, 1300, 17, 3) + 100
    X[700] *= 1e8
    expected = fitted(host_engine(X), 4, init=X[:4])
    for shares in SHARES:
        engine = parted_engine(X, shares=shares)
        same_bits(fitted(engine, 4, init=X[:4]), expected)
        np.testing.assert_allclose(engine.data.host_mean(), 100, atol=10)


def test_progress(rng):
    X = samples(rng, 1300, 17, 5)
    reports = []
    for engine in (host_engine(X), parted_engine(X, shares=(1, 2, 1))):
        reports.append([])
        fitted(engine, 5, progress=reports[-1].append)
    expected, found = reports
    assert [one.n_reassigned for one in found] == [one.n_reassigned for one in expected]
    np.testing.assert_allclose([one.inertia for one in found], [one.inertia for one in expected], rtol=1e-12)


def cases():
    """A strategy of cases."""
    return st.builds(
        case,
        n=st.integers(8, 700),
        d=st.sampled_from([1, 3, 17, 33]),
        k=st.integers(1, 8),
        dtype=st.sampled_from(DTYPES),
        weighted=st.booleans(),
        spherical=st.booleans(),
        init=st.sampled_from(["k-means++", "k-means||", "random", "array", "empty clusters"]),
        n_init=st.integers(1, 3),
        scale=st.just(1.0),
        distinct=st.sampled_from([None, None, 2, 5]),
        seed=st.integers(0, 2**16),
    ) | st.builds(
        case,
        dtype=st.sampled_from(DTYPES[:2]),
        scale=st.sampled_from([1e22, 1e-30, 1e-22]),
        weighted=st.booleans(),
        init=st.sampled_from(["k-means++", "random", "array"]),
        n=st.integers(8, 700),
        seed=st.integers(0, 2**16),
    )


@pytest.mark.filterwarnings("ignore:Explicit initial center position:RuntimeWarning")
@property_test(12, 1000, cases(), st.lists(st.floats(0.05, 1), min_size=1, max_size=9))
def test_one_digest_for_any_case(case, shares):
    positive = case["n"] - case["n"] // 2 if case["weighted"] else case["n"]
    case["k"] = min(case["k"], positive)
    with np.errstate(over="ignore"):
        assert_one_digest(case, [shares])


# --- A part that is made again ----------------------------------------------------------------------------------------


def made_again(part):
    """Return a part as another process makes it."""
    return pickle.loads(pickle.dumps(part))


class ForgetfulCrew(LocalCrew):
    """Makes parts again before every question."""

    def ask(self, question, state, *arguments, parts=None):
        self._parts = [made_again(part) for part in self._parts]
        return super().ask(question, state, *arguments, parts=parts)


class RecordingCrew(LocalCrew):
    """Keeps every question and its answers."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.record = []

    def ask(self, question, state, *arguments, parts=None):
        answers = super().ask(question, state, *arguments, parts=parts)
        asked = range(len(self._parts)) if parts is None else parts
        self.record += [(i, question, state, arguments, pickle.dumps(a)) for i, a in zip(asked, answers, strict=True)]
        return answers

    def parts_again(self):
        return [made_again(part) for part in self._parts]


REMADE = [
    case(n=600),
    case(n=600, dtype=np.float64, init="random", n_init=3),
    case(n=600, init="k-means||", weighted=True),
    case(n=600, init="empty clusters", k=8),
    case(n=600, spherical=True),
    case(n=600, scale=1e22),
    case(n=600, dtype=np.float64),
    case(n=600, dtype=np.float64, weighted=True, d=33),
]


@pytest.mark.parametrize("case", every(2, REMADE), ids=name_of)
def test_an_answer_is_a_function_of_rows_state_and_question(case):
    """It is that of a new part, and of one that was asked anything else before, also if it is asked twice."""
    X, weights, metric, options = data_of(case)
    crew = parted_engine(X, weights, (1, 2, 1), crew=RecordingCrew, **metric)
    fitted(crew, case["k"], **options)
    record, parts = crew.data.crew.record, crew.data.crew.parts_again()
    assert len(record) > 30
    order = np.random.default_rng(1).permutation(len(record))
    differences = []
    for i, question, state, arguments, answer in [record[number] for number in order]:
        new = made_again(parts[i])
        for asked in (new, new, parts[i], parts[i]):
            if pickle.dumps(asked.ask(question, state, *arguments)) != answer:
                differences.append(question)
    assert differences == []


@pytest.mark.parametrize("case", every(2, [*REMADE[1:], REMADE[0]]), ids=name_of)
def test_one_digest_if_parts_are_made_again(case):
    assert_one_digest(case, [(1, 2, 1)], crew=ForgetfulCrew)


@pytest.mark.parametrize("dtype", every(2, [np.float32, np.float64]))
def test_one_digest_of_nearly_equal_rows_if_parts_are_made_again(dtype):
    """Whose distances are little more than the rounding errors of their products."""
    rng, spread = np.random.default_rng(0), 1e-9 if dtype == np.float64 else 1e-4
    X = samples(rng, 1000, 20, 10, np.float64)[rng.integers(0, 10, 1000)] + spread * rng.standard_normal((1000, 20))
    X = X.astype(dtype)
    expected = fitted(host_engine(X), 20)
    for crew in (LocalCrew, ForgetfulCrew):
        same_bits(fitted(parted_engine(X, shares=(1, 2, 1), crew=crew), 20), expected)


def test_one_digest_whether_distances_are_kept(monkeypatch):
    """A part with less than some number of rows keeps distances of candidates."""
    rng = np.random.default_rng(0)
    X = samples(rng, 1000, 7, 10, np.float64)[rng.integers(0, 10, 1000)] + 1e-9 * rng.standard_normal((1000, 7))
    expected = fitted(host_engine(X), 20)
    monkeypatch.setattr(plusplus_host, "_MOST_KEPT", 0)
    same_bits(fitted(parted_engine(X, shares=(1, 2, 1)), 20), expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_weights_of_drawn_samples(rng, dtype):
    """k-means‖ adds up weights that are no whole numbers, in an order that no cut changes."""
    X, weights = samples(rng, 1100, 17, 5, dtype), rng.random(1100) + 0.5
    found = []
    for shares in ((1,), (1, 1), (1, 3, 1, 2)):
        engine = parted_engine(X, weights, shares)
        engine.center(engine.data.moments()[0], 5)
        oversampling = engine.oversampling(5)
        oversampling.add(engine.data.rows(np.arange(0, 1100, 100)))
        found.append(oversampling.weights().tolist())
        assert sum(found[-1]) == pytest.approx(weights.sum())
    assert found[1:] == found[:1] * 2


def test_labels_are_those_of_their_centers(rng):
    """Also if the parts have been asked for others since."""
    X = samples(rng, 600, 17, 3)
    engine = parted_engine(X, shares=(1, 1))
    engine.center(engine.data.moments()[0], 3)
    step, indices = engine.step_for(3), np.array([500, 3, 599])
    step.reset()
    step.assign(X[:3] - engine.data.host_mean())
    labels, expected = step.labels.copy(), step.labels.gathered()
    np.testing.assert_array_equal(labels[indices], expected[indices])
    step.assign(X[5:8] - engine.data.host_mean())
    assert (step.labels.gathered() != expected).any()
    np.testing.assert_array_equal(labels.gathered(), expected)
    assert step.cluster_sizes(labels, 3).tolist() == np.bincount(expected, minlength=3).tolist()
    np.testing.assert_array_equal(labels[indices], expected[indices])


def test_one_crew_serves_several_fits(rng):
    X = samples(rng, 600, 17, 5)
    crew = parted_engine(X).data.crew
    for k, scale in ((5, 1), (3, 1), (5, 1)):
        engine = parted_engine(scale * X, crew=lambda *_, **__: crew)
        same_bits(fitted(engine, k), fitted(host_engine(X), k))


def test_same_clustering_by_hand():
    X = np.zeros((256, 17))
    X[:, 0] = np.arange(256) // 64
    engine = parted_engine(X)
    engine.center(np.zeros(17), 4)
    step = engine.step_for(4)

    def labels(*places):
        step.reset()
        centers = np.zeros((4, 17))
        centers[:, 0] = places
        step.assign(centers - engine.data.host_mean())
        return step.labels.copy()

    assert len(engine.data.crew.parts) == 2
    one, renamed, joined = labels(0, 1, 2, 3), labels(2, 3, 0, 1), labels(0, 1, 2.5, 9)
    assert step.same_clustering(one, renamed, 4)
    assert step.same_clustering(one, joined, 4)  # equal labels of `one` are equal in `joined`
    assert not step.same_clustering(joined, one, 4)
    # The second heap, in the first part, and the third, in the second: each part alone finds a partner of their label.
    across = labels(0, 1.5, 3, 9)
    assert across.gathered()[::64].tolist() == [0, 1, 1, 2]
    assert all(one is not None for one in engine.data.crew.ask("partners", across.state, one.state.centers))
    assert not step.same_clustering(across, one, 4)
    assert step.same_clustering(one, across, 4)


def test_a_part_in_memory_is_as_large_as_its_rows(rng):
    X = samples(rng, 300, 17, 5, np.float16)
    part = parted_engine(X, shares=(1,)).data.crew._parts[0]
    assert isinstance(part, Part)
    assert part.__sizeof__() == X.nbytes + 2 * X.nbytes  # the working type is float32


# --- What is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spherical", [False, True])
@pytest.mark.parametrize("shares", [(1, 1), (1,) * 20])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_named_by_its_row(value, shares, spherical, rng):
    X = samples(rng, 1100, 17, 5)
    X[1097, 3] = value
    with pytest.raises(ValueError, match=rf"^X: row 1097, column 3 is {value}: K-means needs finite numbers"):
        fitted(parted_engine(X, shares=shares, spherical=spherical), 5)
    X[200, 16] = np.nan
    with pytest.raises(ValueError, match=r"^X: row 200, column 16 is nan"):
        fitted(parted_engine(X, shares=shares, spherical=spherical), 5)


def test_rows_without_a_direction(rng):
    X = samples(rng, 1100, 17, 5)
    X[1090] = 0
    with pytest.raises(ValueError, match=r"^X: row 1090 is zero, and has no direction"):
        fitted(parted_engine(X, spherical=True), 5)


def test_weights_of_all_orders_of_magnitude(rng):
    X = samples(rng, 300, 17, 5)
    weights = np.where(np.arange(300) < 200, 1.0, 1e-9)
    with pytest.raises(ValueError, match=r"must not differ by a factor of more than 65,536$"):
        parted_engine(X, weights)


def test_rows_are_not_read_here(rng):
    X = samples(rng, 300, 17, 5)
    engine = parted_engine(X)
    for read in (engine.data.source.blocks, lambda _: engine.data.source.rows(np.array([0]))):
        with pytest.raises(ValueError, match=r"^X is distributed over several processes"):
            read(10)
    with pytest.raises(ValueError, match=r"init must not be a callable$"):
        fitted(engine, 5, init=lambda X, k, random_state: X[:k])
    with pytest.raises(ValueError, match=r"^X is (distributed|cut)"):
        engine.data.square_distances(X[:2])
    with pytest.raises(ValueError, match=r"^protect=True runs in one process"):
        fitted(engine, 5, protect=True)
    with pytest.raises(ValueError, match=r"^n_samples=300 should be >= n_clusters=301"):
        fitted(engine, 301)
