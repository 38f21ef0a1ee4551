"""The kernels of `kmeans_batched`, their own source run on the CPU, and the loop that launches them."""

import warnings

import numpy as np
import oracle
import pytest
from exhaustive import property_test
from host_cuda import harness
from host_cuda.machine import HostKernel
from hypothesis import strategies as st
from kmeans.batches import assert_nearest, assert_sums, batch_of, blobs
from sklearn.exceptions import ConvergenceWarning

from tsapps import TSKMeans
from tsapps.apps.kmeans.batched.lloyd import random_states
from tsapps.apps.kmeans.batched.plan import STATUS


def one_iteration(X, centers, dtype="float32", multiprocessors=2, streams=None):
    """Labels and sums after an iteration whose centers stay where they are."""
    options = {"dtype": dtype, "max_iter": 1, "multiprocessors": multiprocessors, "streams": streams}
    batch = batch_of(X, centers.shape[1], **options)
    batch.start_at(centers)
    # An iteration that nothing follows: neither new centers nor labels of them.
    batch._prepare_centers("place")
    for assign in batch._bind_assign():
        assign()
    return batch


def test_by_hand():
    X = np.array([[[0.0], [1], [10], [11]], [[10], [12], [0], [0]]])
    batch = batch_of(X, 2)
    batch.start_at(np.array([[[0.0], [10]]] * 2))
    batch.iterate()
    assert batch.labels.tolist() == [[0, 0, 1, 1], [1, 1, 0, 0]]
    assert batch.final_centers().tolist() == [[[0.5], [10.5]], [[0], [11]]]
    assert batch.inertias().tolist() == [1.0, 2.0]
    assert batch.arrays["iterations"].tolist() == [2, 2]
    assert batch.status.tolist()[0] == STATUS["strict"]
    assert batch.arrays["sums"][:, :, 1].tolist() == [[2, 2], [2, 2]]


STREAMS = pytest.mark.parametrize("streams", [False, "wgmma", "mma"], ids=["stay", "wgmma", "mma"])
#: Features and clusters: one of each; less and more than a chunk of centers; several chunks; many features.
SHAPES = [(1, 1), (3, 2), (16, 16), (17, 19), (40, 33), (5, 64), (20, 65), (16, 200), (130, 150), (300, 3)]


@pytest.mark.each_choice
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("d", "k"), SHAPES)
@STREAMS
def test_labels_and_sums(streams, d, k, dtype, rng):
    X, centers = blobs(2, 150, d, k, rng, apart=0.3)
    batch = one_iteration(X, centers, dtype, streams=streams)
    assert_nearest(batch)
    changed = batch.arrays["counts"].copy()
    assert changed.tolist() == [150, 150]
    for update in batch._bind_update():
        update()
    assert_sums(batch)
    assert not batch.arrays["counts"].any()
    assert set(batch.status.tolist()) <= {STATUS["ended"], STATUS["empty"]}


@pytest.mark.parametrize("streams", ["wgmma", "mma"])
def test_rows_that_stream(streams, rng):
    X, centers = blobs(2, 300, 500, 70, rng, apart=0.3)
    batch = one_iteration(X, centers, streams=streams)
    assert not batch.plan.stream.stays
    assert_nearest(batch)


def test_a_problem_is_the_same_beside_any_other(rng):
    X, centers = blobs(2, 4000, 20, 3, rng)
    X[1, 7, 0] = 1e6  # so that elements of its sums have more than 30 bits
    both, alone = batch_of(X, 3, max_iter=2, tol=0), batch_of(X[:1], 3, max_iter=2, tol=0)
    assert both.arrays["narrow"].tolist() == [1, 0]
    for batch, some in ((both, centers), (alone, centers[:1])):
        batch.start_at(some)
        batch.iterate()
    np.testing.assert_array_equal(both.arrays["sums"][0], alone.arrays["sums"][0])
    np.testing.assert_array_equal(both.centers[0], alone.centers[0])


def seeds_in_order(X, k, state):
    """Greedy k-means++ of float32 data, with distances and running sums in float32, a potential in float64."""
    n, trials = len(X), 2 + int(np.log(k))
    chosen = [state.choice(n, p=np.full(n, 1 / n))]
    closest = oracle.square_distances(X, X[chosen])[:, 0].astype(np.float32)
    while len(chosen) < k:
        draws = state.uniform(size=trials) * np.float64(np.float32(closest.sum(dtype=np.float64)))
        candidates = np.searchsorted(np.cumsum(closest), draws).clip(None, n - 1)
        distances = np.minimum(oracle.square_distances(X, X[candidates]).T.astype(np.float32), closest)
        best = distances.sum(axis=1, dtype=np.float64).argmin()
        chosen.append(candidates[best])
        closest = distances[best]
    return chosen


@pytest.mark.parametrize(("n", "d", "k"), [(50, 3, 1), (600, 4, 5), (1100, 30, 12), (300, 12, 90)])
def test_seeds(n, d, k, rng):
    # Sums over several blocks of rows; more candidates than fit a group would take more than e⁶ clusters.
    X, _ = blobs(2, n, d, k, rng)
    batch = batch_of(X, k)
    batch.start_at_plusplus([np.random.RandomState(i) for i in range(2)])
    for i in range(2):
        centered = batch.X[i] - batch.arrays["means"][i]
        expected = centered[seeds_in_order(centered, k, np.random.RandomState(i))]
        np.testing.assert_array_equal(batch.centers[i], expected)


def test_seeds_of_many_candidates(rng, monkeypatch):
    monkeypatch.setattr("tsapps.apps.kmeans.batched.lloyd.np.log", lambda k: 9.0)
    X, _ = blobs(1, 200, 3, 6, rng)
    batch = batch_of(X, 6)
    batch.start_at_plusplus([np.random.RandomState(0)])
    centered = batch.X[0] - batch.arrays["means"][0]
    np.testing.assert_array_equal(batch.centers[0], centered[seeds_in_order(centered, 6, np.random.RandomState(0))])


@pytest.mark.parametrize(
    ("n", "d", "k", "init"),
    [(300, 5, 4, init) for init in ("k-means++", "random", "array")]
    + [(400, 24, 33, "array"), (300, 12, 90, "random"), (40, 2, 1, "k-means++")],
)
def test_a_fit_is_tskmeans(n, d, k, init, rng):
    X, centers = blobs(3, n, d, k, rng)
    X, centers = (X + 7).astype(np.float32), centers + 7
    batch = batch_of(X, k)
    states = [np.random.RandomState(i) for i in range(3)]
    if init == "array":
        batch.start_at(centers)
    else:
        {"k-means++": batch.start_at_plusplus, "random": batch.start_at_random}[init](states)
    batch.iterate()
    assert_nearest(batch)
    for i in range(3):
        first = centers[i] if init == "array" else init
        one = TSKMeans(k, init=first, n_init=1, random_state=i, device="cpu").fit(X[i])
        np.testing.assert_array_equal(batch.labels[i], one.labels_)
        assert batch.arrays["iterations"][i] == one.n_iter_
        np.testing.assert_allclose(batch.final_centers()[i], one.cluster_centers_, atol=2e-5)
        assert batch.inertias()[i] == pytest.approx(one.inertia_, rel=1e-5)


@pytest.mark.parametrize("max_iter", [1, 2, 5])
def test_max_iter(max_iter, rng):
    X, centers = blobs(2, 400, 6, 8, rng, apart=1.0)
    X = X.astype(np.float32)
    batch = batch_of(X, 8, max_iter=max_iter, tol=0)
    batch.start_at(centers)
    batch.iterate()
    for i in range(2):
        one = TSKMeans(8, init=centers[i], n_init=1, max_iter=max_iter, tol=0, device="cpu").fit(X[i])
        assert batch.arrays["iterations"][i] == one.n_iter_ == max_iter
        np.testing.assert_array_equal(batch.labels[i], one.labels_)
    assert_nearest(batch)


@pytest.mark.parametrize("max_iter", [1, 300])
def test_empty_clusters_as_in_tskmeans(max_iter, rng):
    X, centers = blobs(3, 300, 4, 7, rng, apart=1.0)
    X = X.astype(np.float32)
    centers[1, 5:] = [[1e3] * 4, [-1e3] * 4]  # of one problem of three
    batch = batch_of(X, 7, max_iter=max_iter)
    batch.start_at(centers)
    batch.iterate()
    for i in range(3):
        one = TSKMeans(7, init=centers[i], n_init=1, max_iter=max_iter, device="cpu").fit(X[i])
        np.testing.assert_array_equal(batch.labels[i], one.labels_)
        assert batch.arrays["iterations"][i] == one.n_iter_
        np.testing.assert_allclose(batch.final_centers()[i], one.cluster_centers_, atol=1e-5)


@pytest.mark.parametrize("start", ["start_at", "start_at_plusplus"])
def test_launches_are_as_many_for_any_number_of_problems(start, rng, monkeypatch):
    X, centers = blobs(9, 200, 4, 5, rng, apart=0.5)
    launched, launch = [], HostKernel.launch
    monkeypatch.setattr(HostKernel, "launch", lambda of, *given: launched.append(of.name) or launch(of, *given))

    def of_problems(b):
        launched.clear()
        batch = batch_of(X[:b], 5, max_iter=4, tol=0)
        getattr(batch, start)(centers[:b] if start == "start_at" else random_states(range(b)))
        batch.iterate()
        batch.inertias()
        batch.warn_of_lost_clusters()
        assert batch.arrays["iterations"].tolist() == [4] * b
        return list(launched)

    assert of_problems(1) == of_problems(9)


def test_problems_do_not_see_each_other(rng):
    X, _ = blobs(4, 300, 9, 5, rng)
    X[2] *= 1e4
    together = batch_of(X, 5)
    together.start_at_plusplus([np.random.RandomState(i) for i in range(4)])
    together.iterate()
    for i in range(4):
        alone = batch_of(X[i : i + 1], 5, multiprocessors=7)
        alone.start_at_plusplus([np.random.RandomState(i)])
        alone.iterate()
        np.testing.assert_array_equal(alone.labels[0], together.labels[i])
        np.testing.assert_array_equal(alone.centers[0], together.centers[i])
        assert alone.inertias()[0] == together.inertias()[i]


def test_what_float16_cannot_hold(rng):
    X, centers = blobs(2, 300, 16, 70, rng)
    X[0, 7] *= 1e9  # infinite in float16
    X[0, 8:40] *= 1e-9  # zero, nearly
    X[1, 40:80] = X[1, 40]
    X[1, 80:90] = (centers[1, 0] + centers[1, 1]) / 2
    centers[0, 8] = centers[0, 2]  # equals, of which the higher is looked at first
    centers[1, 66] = centers[1, 2]  # and in another chunk
    centers[1, 69] = 1e6
    batch = one_iteration(X, centers)
    assert_nearest(batch)
    assert not (batch.labels[0] == 8).any()
    assert not (batch.labels[1] == 66).any()
    assert (batch.labels == 2).any(axis=1).all()


@pytest.mark.each_choice
@pytest.mark.parametrize("away", [10.0, 1e4, 1e7])
@STREAMS
def test_a_center_far_away_widens_no_bound(streams, away, rng):
    X, centers = blobs(2, 300, 20, 70, rng)
    X[1, 5:7] = away * X[1, 6], -away * X[1, 6]  # so that the mean stays; one has a cluster of its own
    batch = batch_of(X, 70, streams=streams)
    # Scaled by what most rows are like.
    batch.arrays["half_copy_scales"][:] = 16 / X[0].std()
    batch._launch("make_half_copy", (1, 2), option=batch._by_rows)
    centers[1, 67] = X[1, 5]
    batch.start_at(centers)
    batch._prepare_centers("place")
    norm, _, half_square, norm_limit, least, near = batch.arrays["center_stats"][1]
    left_out = np.isinf(batch.arrays["half_squares"][1, :70])
    if away > 10:
        assert left_out.tolist() == [j == 67 for j in range(70)]
        assert norm_limit == batch._batch["norm_limit"]
        assert norm < 4.1 * norm_limit
        assert half_square == pytest.approx(norm**2 / 2, rel=1e-5)
        assert least <= norm
        assert near == pytest.approx(1.05 * least + 1)
    assert batch.arrays["center_stats"][0, 3] > 1e6  # no center of the other problem is left out
    for assign in batch._bind_assign():
        assign()
    assert_nearest(batch)
    assert batch.labels[1, 5] == 67


@pytest.mark.each_choice
@pytest.mark.parametrize("chunks", [2, 3, 4, 5, 7])
@pytest.mark.parametrize("apart", [0.0, 1e-5])
@STREAMS
def test_nearly_equal_centers_everywhere(streams, apart, chunks, rng):
    """Every chunk has candidates of every row: of four at most they are kept, or of three column tiles."""
    X, _ = blobs(1, 150, 8, 3, rng)
    k = 64 * chunks - 1
    centers = np.tile(X[:, :3], (1, k // 3 + 1, 1))[:, :k] + apart * rng.standard_normal((1, k, 8))
    batch = one_iteration(X, centers, streams=streams)
    assert_nearest(batch)
    assert (np.unique(batch.labels // 64).tolist() == [0]) == (apart == 0)


@pytest.mark.each_choice
@pytest.mark.parametrize("chunks", [3, 4, 5, 6])
@STREAMS
def test_candidates_in_some_chunks(streams, chunks, rng):
    """The nearest is in the last chunk or the first that has candidates, and chunks without lie between."""
    X, centers = blobs(1, 130, 24, 64 * 9, rng)
    for i, row in enumerate(X[0, :64]):
        order = np.concatenate([[0, 8], 1 + rng.permutation(7)])[:chunks]
        away = 1 + 1e-4 * np.arange(chunks)
        for chunk, much in zip(order, away if i % 2 else away[::-1], strict=True):
            centers[0, 64 * chunk + i] = row + 1e-3 * much
    batch = one_iteration(X, centers, streams=streams)
    assert_nearest(batch)


def test_draws_are_those_of_random_state():
    batch = batch_of(np.random.default_rng(0).standard_normal((1, 57, 2)), 3)
    running = batch._probabilities().astype(np.float64).cumsum()
    for seed in range(50):
        expected = np.random.RandomState(seed).choice(57, p=batch._probabilities())
        found = (running / running[-1]).searchsorted(np.random.RandomState(seed).random_sample(), side="right")
        assert found == expected


def test_states_seeded_again_draw_as_new_ones():
    seeds = [5, 0, 2**32 - 1, 5]
    for seed, state in zip(seeds, random_states(seeds), strict=True):
        new = np.random.RandomState(seed)
        assert state.random_sample() == new.random_sample()
        np.testing.assert_array_equal(state.choice(50, size=9, replace=False), new.choice(50, size=9, replace=False))
        state.standard_normal()  # which keeps a second draw back: no part of the next state
        state.randint(2**20, size=3)


@pytest.mark.parametrize("start", ["start_at_plusplus", "start_at_random"])
def test_a_state_is_used_before_the_next_is_asked_for(start, rng):
    X, _ = blobs(3, 200, 4, 5, rng)
    batch, other = batch_of(X, 5), batch_of(X, 5)
    getattr(batch, start)(random_states([3, 8, 1]))
    getattr(other, start)([np.random.RandomState(seed) for seed in (3, 8, 1)])
    np.testing.assert_array_equal(batch.centers, other.centers)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_non_finite_numbers_are_named(bad, rng):
    X = rng.standard_normal((3, 50, 4)).astype(np.float32)
    X[2, 33, 1] = bad
    batch = batch_of(X, 2)
    batch.start_at(X[:, :2])
    with pytest.raises(ValueError, match=f"X: problem 2, row 33, column 1 is {bad}"):
        batch.iterate()


def test_fewer_distinct_samples_than_clusters():
    X = np.array([[[1.0], [2], [3]], [[1], [5], [5]]])
    batch = batch_of(X, 3)
    batch.start_at_plusplus([np.random.RandomState(i) for i in range(2)])
    batch.iterate()
    assert batch.inertias().tolist() == [0, 0]
    with pytest.warns(ConvergenceWarning, match=r"in 1 problems, of which problem 1 is the first"):
        batch.warn_of_lost_clusters()


@property_test(
    2,
    24,
    shape=st.sampled_from([shape for shape in SHAPES if shape[1] <= 65]),
    dtype=st.sampled_from(["float32", "float16", "bfloat16"]),
    n=st.integers(65, 200),
    grain=st.sampled_from([None, 1.0, 0.25]),
    streams=st.sampled_from([False, "wgmma", "mma"]),
    seed=st.integers(0, 2**16),
)
def test_any_data(shape, dtype, n, grain, streams, seed):
    d, k = shape
    rng = np.random.default_rng(seed)
    X, centers = blobs(2, n, d, k, rng, apart=rng.choice([0.1, 1.0, 30.0]))
    if grain:  # many ties
        X, centers = np.round(X / grain) * grain, np.round(centers / grain) * grain
    with warnings.catch_warnings(), harness.schedule(seed=seed, copies="early" if seed % 2 else "late"):
        warnings.simplefilter("ignore")
        batch = one_iteration(X, centers, dtype, streams=streams)
        assert_nearest(batch)
        batch = batch_of(X, k, dtype=dtype, max_iter=3, streams=streams)
        batch.start_at(centers)
        batch.iterate()
        assert_nearest(batch)
