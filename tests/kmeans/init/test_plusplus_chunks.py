"""k-means++ by chunks of rows: draws against float64, and the same bits however rows are cut; and random samples."""

from itertools import pairwise

import numpy as np
import pytest
from exhaustive import property_test
from hypothesis import strategies as st

from tsapps.apps.kmeans.data import blocks, host_data
from tsapps.apps.kmeans.data.rows import ArrayRows
from tsapps.apps.kmeans.data.shard import Shard
from tsapps.apps.kmeans.engines.engine import HostEngine
from tsapps.apps.kmeans.init import oversampling_chunks, plusplus, plusplus_host, plusplus_order
from tsapps.apps.kmeans.init.oversampling_chunks import oversampling_chunk
from tsapps.apps.kmeans.init.plusplus import equally_likely_samples
from tsapps.apps.kmeans.init.plusplus_host import ChunkedDraw, draw_samples

# Of 17 features, 16 rows of float64 with 2 candidates are a chunk.
CHUNK = 16


@pytest.fixture(autouse=True)
def no_small_data(monkeypatch):
    monkeypatch.setattr(blocks, "SMALL", 0)


def draw_of(X, weights=None, shard=None, trials=2):
    """Return a `ChunkedDraw` of X, which is not centered, or of some of its rows."""
    some = slice(None) if shard is None else slice(shard.start, shard.stop)
    return ChunkedDraw(
        HostEngine(
            ArrayRows(X[some]),
            X.dtype,
            None if weights is None else weights[some],
            as_kernels=True,
            shard=None if shard is None else Shard(shard.start, len(X)),
        ).data,
        trials,
    )


def assert_drawn(found, X, weights, first, draws):
    """Check samples against differences in float64: each is a candidate that leaves the least potential.

    Two candidates may leave the same, for example if each is the nearest to the other, and nothing else is near them.
    """
    wide, w = X.astype(np.float64), np.ones(len(X)) if weights is None else weights.astype(X.dtype).astype(np.float64)

    def square_distances(sample):
        return ((wide - wide[sample]) ** 2).sum(axis=1)

    assert len(found) == len(draws) + 1
    assert found[0] == first
    closest = square_distances(first)
    for sample, drawn in zip(found[1:].tolist(), draws, strict=True):
        running = np.cumsum(w * closest)
        candidates = np.searchsorted(running, drawn * running[-1]).tolist()
        after = {one: np.minimum(closest, square_distances(one)) for one in candidates}
        potentials = {one: float(w @ distances) for one, distances in after.items()}
        assert sample in candidates
        assert potentials[sample] <= min(potentials.values()) + 64 * np.finfo(X.dtype).eps * running[-1]
        closest = after[sample]


def test_by_hand():
    X = np.array([[0.0], [1], [3], [10]])
    # D² to 0 is 0, 1, 9, 100. Of its sum, 110, 0 falls on the first row, and a half on the last. The last leaves 1 + 9.
    # Then 0.95 · 10 falls on row 2, which leaves 1, and 0.05 · 10 on row 1, which leaves 4.
    draws = np.array([[0.0, 0.5], [0.95, 0.05]])
    found = draw_samples(draw_of(X), 0, draws)
    assert found.tolist() == [0, 3, 2]
    assert_drawn(found, X, None, 0, draws)


def by_hand():
    """Three chunks: 16 rows at 0, 16 rows at 1, and two rows at 0 and 2."""
    X = np.zeros((34, 17))
    X[16:32, 0], X[33, 0] = 1, 2
    return X


def test_chunks_by_hand():
    draw = draw_of(by_hand())
    assert draw.order.chunk == CHUNK
    draw.add(np.zeros(17))
    assert draw.sums().tolist() == [0, 16, 4]
    one, two = np.eye(17)[0], 2 * np.eye(17)[0]
    assert draw.potentials(np.array([one, two])).tolist() == [[0, 0, 1], [0, 16, 0]]
    # The running sum of the second chunk is 1, 2, …, after what has passed; that of the third 0, 4.
    passed, targets = np.array([0.0, 0, 5, 16]), np.array([0.5, 1, 6.5, 19])
    samples, points = draw.find(np.array([1, 1, 1, 2]), passed, targets)
    assert samples.tolist() == [16, 16, 17, 33]
    np.testing.assert_array_equal(points, by_hand()[samples])
    draw.add(one)
    assert draw.sums().tolist() == [0, 0, 1]


def test_chunks_are_found_by_hand():
    chunks, passed, targets = draw_of(by_hand()).order.find_chunks(
        np.array([0.0, 16, 0, 4]), np.array([0.0, 0.05, 0.8, 0.85, 0.99])
    )
    assert chunks.tolist() == [0, 1, 1, 3, 3]
    assert passed.tolist() == [0, 0, 0, 16, 16]
    np.testing.assert_allclose(targets, [0, 1, 16, 17, 19.8])


def test_a_target_past_the_end():
    """The last row with a positive w·D²; the last row of a chunk without any."""
    X, weights = by_hand(), np.ones(34)
    X[25:32] = 0
    weights[24] = 0
    draw = draw_of(X, weights)
    draw.add(np.zeros(17))
    samples, _ = draw.find(np.array([0, 1, 2]), np.zeros(3), np.array([1.0, 1000, 1000]))
    assert samples.tolist() == [15, 23, 33]


def test_draws_next_to_one(rng):
    X = rng.standard_normal((300, 17))
    X[290:] = X[0]
    draws = np.full((3, 2), 1 - 2.0**-53)
    found = draw_samples(draw_of(X), 0, draws)
    assert found.tolist()[:2] == [0, 289]
    assert_drawn(found, X, None, 0, draws)


def test_fewer_distinct_rows_than_samples():
    X = np.zeros((300, 17), np.float32)
    X[150:] = 1
    found = draw_samples(draw_of(X), 7, np.full((4, 2), 0.5))
    # The third finds no distance: all draws fall on the first row.
    assert found.tolist() == [7, 224, 0, 0, 0]


@property_test(
    40,
    2000,
    # Of more features, two candidates may be nearer to each other alone: then their potentials are equal.
    n=st.integers(30, 700),
    d=st.sampled_from([1, 2, 3]),
    k=st.integers(1, 9),
    trials=st.integers(1, 4),
    dtype=st.sampled_from([np.float32, np.float64]),
    weighting=st.sampled_from([None, "all", "zeros"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_draws_of_any_rows(n, d, k, trials, dtype, weighting, seed):
    rng = np.random.default_rng(seed)
    X, weights = rng.standard_normal((n, d)).astype(dtype), None
    k = min(k, n // 2)
    if weighting:
        weights = rng.random(n) + 0.5
        weights[rng.random(n) < (0.5 if weighting == "zeros" else 0)] = 0
        k = max(1, min(k, np.count_nonzero(weights) // 2))
    first = int(rng.integers(n))
    draws = rng.random((k - 1, trials)) if weights is None or weights.any() else np.zeros((0, trials))
    found = draw_samples(draw_of(X, weights, trials=trials), first, draws)
    assert found.dtype == np.int64
    assert_drawn(found, X, weights, first, draws)
    if weights is not None:
        assert weights[found[1:]].all()


def all_of(draw):
    """Return what a draw answers in the course of k-means++, and the samples."""
    draws, answers = np.random.default_rng(0).random((11, 4)), []

    class Recorded:
        rows_as_read, add, order = draw.rows_as_read, draw.add, draw.order

        def sums(self):
            answers.append(draw.sums())
            return answers[-1]

        def potentials(self, points):
            answers.append(draw.potentials(points))
            return answers[-1]

        def find(self, chunks, passed, targets):
            answers.append(draw.find(chunks, passed, targets)[0])
            return draw.find(chunks, passed, targets)

    answers.append(draw_samples(Recorded(), 3, draws))
    answers.append(draw.sums())
    return answers


def assert_same(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


KINDS = [(dtype, d) for dtype in (np.float32, np.float64) for d in (7, 17, 33)]


@pytest.fixture(params=KINDS, ids=lambda kind: f"{kind[0].__name__}-{kind[1]}")
def X(request, rng):  # noqa: N802
    dtype, d = request.param
    return (rng.standard_normal((1100, d)) + 2).astype(dtype)


@pytest.mark.parametrize("weighted", [False, True])
def test_bits_do_not_depend_on_blocks_and_threads(X, weighted, rng, monkeypatch):
    weights = rng.random(len(X)) if weighted else None
    expected = all_of(draw_of(X, weights))
    for elements, cores in ((1, 1), (CHUNK * 3 * X.shape[1], 3)):
        monkeypatch.setattr(host_data, "_TASK_ELEMENTS", elements)
        monkeypatch.setattr(host_data, "available_cores", lambda cores=cores: cores)
        monkeypatch.setattr(plusplus_host, "_BLOCK", elements)
        assert_same(all_of(draw_of(X, weights)), expected)


def test_bits_do_not_depend_on_whether_rows_are_held(X, monkeypatch):
    expected = all_of(draw_of(X))
    monkeypatch.setattr(host_data.HostData, "copies", lambda _: False)
    monkeypatch.setattr(host_data.HostData, "_borrow", lambda _: None)
    draw = draw_of(X)
    assert draw._data.held is None
    assert_same(all_of(draw), expected)


def test_bits_do_not_depend_on_whether_distances_are_kept(X, monkeypatch):
    found = []
    for most in (1 << 30, 0):
        monkeypatch.setattr(plusplus_host, "_MOST_KEPT", most)
        draw = draw_of(X)
        draw._most_kept = most
        draw.add(X[0])
        draw.potentials(X[:4])
        assert (draw._kept is None) == (most == 0)
        found.append(all_of(draw_of(X)))
    assert_same(*found)


def test_bits_do_not_depend_on_the_scores(X, monkeypatch):
    """Rows far from the point that is subtracted, whose scores rule out nothing; and distances of all pairs."""
    expected = all_of(draw_of(X))
    draw = draw_of(X)
    draw._middle = X[0] + X.dtype.type(1e5)
    assert_same(all_of(draw), expected)
    draw = draw_of(X)
    draw._relative_error = np.inf
    assert_same(all_of(draw), expected)


def test_few_distances_are_computed(rng, monkeypatch):
    """Of 20 clusters, a candidate is nearer to the rows of its own than the centers so far, and to few others."""
    X = (40 * rng.standard_normal((20, 24))[rng.integers(0, 20, 4000)] + rng.standard_normal((4000, 24))).astype("f")
    computed, distances = [], plusplus_order.PlusPlusOrder.square_distances

    def counted(order, rows, points):
        computed.append(len(rows))
        return distances(order, rows, points)

    monkeypatch.setattr(plusplus_order.PlusPlusOrder, "square_distances", counted)
    draw_samples(draw_of(X, trials=4), 0, rng.random((60, 4)))
    assert sum(computed) < 0.15 * 4000 * (1 + 60 * 4)


def test_bits_do_not_depend_on_what_was_asked_before(X):
    """A draw that is told the same points later, or in one go, answers the same."""
    points, asked = X[:5], X[[100, 700, 900]]
    at_once, asking = draw_of(X), draw_of(X)
    for point in points:
        at_once.add(point)
    asking.add(points[0])
    for point in points[1:]:
        asking.potentials(np.array([X[50], point, X[60]]))
        asking.add(point)
    np.testing.assert_array_equal(asking.sums(), at_once.sums())
    np.testing.assert_array_equal(asking.potentials(asked), at_once.potentials(asked))


@pytest.mark.parametrize("weighted", [False, True])
def test_bits_of_shards_are_those_of_all_rows(X, weighted, rng):
    weights = rng.random(len(X)) if weighted else None
    draw = draw_of(X, weights)
    chunk = draw.order.chunk
    ends = [0, chunk, 4 * chunk, len(X)]
    shards = [range(start, stop) for start, stop in pairwise(ends)]
    parts, points = [draw_of(X, weights, shard) for shard in shards], X[[5, 9, 1000]]
    for one in (draw, *parts):
        one.add(X[3])
    np.testing.assert_array_equal(np.concatenate([part.sums() for part in parts]), draw.sums())
    found = np.concatenate([part.potentials(points) for part in parts], axis=1)
    np.testing.assert_array_equal(found, draw.potentials(points))
    sums = draw.sums()
    for shard, part in zip(shards, parts, strict=True):
        some = np.arange(shard.start // chunk, -(-shard.stop // chunk))
        own, _ = part.find(some - some[0], 0.2 * sums[some], 0.3 * sums[some])
        expected, _ = draw.find(some, 0.2 * sums[some], 0.3 * sums[some])
        assert (own + shard.start).tolist() == expected.tolist()


@property_test(
    200,
    5000,
    st.integers(1, 10**9),
    st.sampled_from([1, 2, 3, 17, 40, 100, 768, 5000, 2**20]),
    st.sampled_from([4, 8]),
    st.sampled_from([1, 2**18]),
)
def test_a_chunk_is_a_whole_number_of_chunks_of_moments(n, d, itemsize, elements):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(oversampling_chunks, "_CHUNK_ELEMENTS", elements)
        chunk = oversampling_chunk(n, d, itemsize)
        of_moments = oversampling_chunks.moment_chunk(n, d, itemsize)
    assert chunk % of_moments == 0
    assert chunk & (chunk - 1) == 0
    assert chunk * d <= max(elements, of_moments * d)


def test_no_memory_for_distances(rng, monkeypatch):
    X = rng.standard_normal((1000, 3))
    data = draw_of(X)._data
    monkeypatch.setattr(plusplus_host, "available_host_memory", lambda: 7999)
    with pytest.raises(MemoryError, match=r"^X: 0\.00 GiB are needed besides the data"):
        ChunkedDraw(data, 2)
    monkeypatch.setattr(plusplus_host, "available_host_memory", lambda: 8000)
    ChunkedDraw(data, 2)


# --- Random samples ---------------------------------------------------------------------------------------------------


class Given:
    """Random numbers that are given."""

    def __init__(self, *numbers):
        self.numbers = list(numbers)

    def random_sample(self, count):
        found, self.numbers = np.array(self.numbers[:count]), self.numbers[count:]
        return found


def test_equally_likely_samples_by_hand():
    # Of 4 numbers: 1, 1 again, 3. For the one that lacks, a half of the two that are left, 0 and 2, is 2.
    assert equally_likely_samples(4, 3, Given(0.3, 0.4, 0.9, 0.5)).tolist() == [1, 3, 2]
    assert equally_likely_samples(4, 4, Given(0.0, 0.1, 0.2, 0.2, 0.0, 0.4, 0.7, 0.0)).tolist() == [0, 1, 2, 3]
    assert equally_likely_samples(5, 2, Given(1 - 2.0**-53, 0.99, 1 - 2.0**-53)).tolist() == [4, 3]


@property_test(
    100,
    5000,
    st.integers(1, 3000).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n))),
    st.integers(0, 2**32 - 1),
)
def test_equally_likely_samples_are_those_of_choice(n_and_count, seed):
    (n, count), state, expected_state = n_and_count, np.random.RandomState(seed), np.random.RandomState(seed)
    found = equally_likely_samples(n, count, state)
    expected = expected_state.choice(n, count, replace=False, p=np.full(n, 1 / n))
    np.testing.assert_array_equal(found, expected)
    for one, other in zip(state.get_state(), expected_state.get_state(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_equally_likely_samples_of_many():
    found = equally_likely_samples(10**12, 5000, np.random.RandomState(0))
    assert found.dtype == np.int64
    assert len(set(found.tolist())) == 5000
    assert 0 <= found.min() < 10**9
    assert 10**12 - 10**9 < found.max() < 10**12


def test_random_samples_have_no_array_as_long_as_the_rows(rng, monkeypatch):
    X = rng.standard_normal((300, 17))
    data = HostEngine(ArrayRows(X), X.dtype, None, as_kernels=True).data
    monkeypatch.setattr(plusplus, "_probabilities", lambda _: pytest.fail("an array as long as X"))
    found = plusplus.random_samples(data, 7, np.random.RandomState(5))
    np.testing.assert_array_equal(found, X[np.random.RandomState(5).choice(300, 7, False, np.full(300, 1 / 300))])
