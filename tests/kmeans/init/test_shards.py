"""Greedy k-means++ over shards of X, each on its own machine on the CPU, against X on one machine: the same bits."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from exhaustive import every
from host_cuda.machine import HostMachine, placed
from kmeans.init.host_draw import H200, SHAPES, blobs, plan_of, trials_of

from tsapps.apps.kmeans.data.device_data import DeviceData
from tsapps.apps.kmeans.data.rows import ArrayRows
from tsapps.apps.kmeans.data.shard import Shard
from tsapps.apps.kmeans.init import plusplus_launch, plusplus_shards, pruned_launch
from tsapps.apps.kmeans.init.plan import first_pruned_step
from tsapps.apps.kmeans.init.plusplus_launch import GreedyDraw, draw_plus_plus
from tsapps.apps.kmeans.init.plusplus_shards import draw_plus_plus_of_shards

#: Of 700 rows: chunks at which shards after the first begin; the shard of a single chunk is the first, a middle one or
#: the last, whose chunk is not full.
CUTS = [(1,), (3,), (1, 4), (2, 3), (-1,)]
#: One lane, several, weights, and long rows.
UNPRUNED = [SHAPES[1], SHAPES[4], SHAPES[5], SHAPES[6], SHAPES[10]]


def exchange(own, total):
    """Add arrays of all machines."""
    assert len(own) == len(total) > 1
    assert {array.dtype for array in (*own, *total)} == {np.dtype(np.int64)}
    found = sum(own)
    for array in total:
        assert not any(np.shares_memory(array, one) for one in own)
        array[...] = found


@pytest.fixture
def made(monkeypatch):
    """The `GreedyDraw` of every shard, in the order in which they are made."""
    all_of_them = []

    class Recorded(GreedyDraw):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            all_of_them.append(self)

    monkeypatch.setattr(plusplus_launch, "GreedyDraw", Recorded)
    monkeypatch.setattr(plusplus_shards, "GreedyDraw", Recorded)
    return all_of_them


def whole_and_shards(X, weights, starts, gpu=H200, offset=0):
    """Return X on one machine, and its shards on one machine each."""
    n, bounds = len(X), [0, *starts, len(X)]

    def data_of(first, end, offset):
        of_rows = None if weights is None else placed(weights[first:end])
        machine = HostMachine(multiprocessors=1 + first % 3, gpu=gpu)
        rows = ArrayRows(placed(X[first:end], offset))
        return DeviceData(rows, X.dtype, of_rows, machine, shard=Shard(first, n))

    shards = [data_of(*part, offset * (i == 0)) for i, part in enumerate(itertools.pairwise(bounds))]
    return data_of(0, n, offset), shards


def center(whole, shards):
    """Let kernels subtract the mean of the whole; the shards know its moments."""
    whole.center(whole.moments()[0], on_read=True)
    for data in shards:
        data.center(whole.moments()[0], on_read=True)
        data.known_moments, data.origin = whole.known_moments, whole.origin
        assert data.spread()[1] == whole.spread()[1]


def starts_of(cuts, n, d, k, dtype):
    plan = plan_of(n, d, k, dtype)
    return [cut % plan.chunks * plan.chunk for cut in cuts]


def assert_same_draws(made, whole, shards, first, draws):
    """Draw both ways, to the same bits of samples, of sums and of D²; return the `GreedyDraw` of both."""
    expected = draw_plus_plus(whole, first, draws)
    found = draw_plus_plus_of_shards(shards, exchange, first, draws)
    assert found.tolist() == expected.tolist()
    one, *others = made
    assert np.concatenate([draw.closest for draw in others]).tobytes() == one.closest.tobytes()
    for draw in others:
        assert draw.chosen.tolist() == expected.tolist()
        assert draw.all_sums.tobytes() == one.sums.tobytes()
        for step in (0, 1):
            for mine, of_one in zip(draw.parts(draw.points[step]), one.parts(one.points[step]), strict=True):
                np.testing.assert_array_equal(mine, of_one)
    return one, others


@pytest.mark.each_choice
@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize(("d", "k", "dtype", "weighted"), UNPRUNED)
def test_shards_draw_what_one_gpu_draws(d, k, dtype, weighted, cuts, made, rng):
    n = 700
    starts = starts_of(cuts, n, d, k, dtype)
    X = blobs(n, d, k).astype(dtype)
    weights = (rng.random(n) * (np.arange(n) % 3 > 0)).astype(dtype) if weighted else None
    # Columns of long rows do not fit shared memory.
    gpu = H200 if d < 2500 else replace(H200, shared_memory=100 << 10, shared_memory_per_block=48 << 10)
    whole, shards = whole_and_shards(X, weights, starts, gpu)
    for first in (starts[0], n - 1):
        made.clear()
        assert_same_draws(made, whole, shards, first, rng.random((4, trials_of(k))))


@pytest.mark.each_choice
@pytest.mark.parametrize("n", [300, 700])  # scales of columns are those of all rows, or of a sample
@pytest.mark.parametrize("cuts", every(2, CUTS))
@pytest.mark.parametrize(("d", "k", "dtype", "weighted"), [SHAPES[4], SHAPES[5], SHAPES[6], (33, 8, "float32", False)])
def test_pruned_steps_of_shards(d, k, dtype, weighted, cuts, n, made, monkeypatch, rng):
    monkeypatch.setattr(pruned_launch, "_LEAST_BYTES", 0)
    X = (100 + blobs(n, d, k) * (1 + np.arange(n)[:, np.newaxis] // 100)).astype(dtype)  # shards differ in magnitude
    weights = rng.random(n).astype(dtype) if weighted else None
    whole, shards = whole_and_shards(X, weights, starts_of(cuts, n, d, k, dtype))
    center(whole, shards)
    draws = rng.random((first_pruned_step(trials_of(k)) + 9, trials_of(k)))
    one, others = assert_same_draws(made, whole, shards, n // 2, draws)
    for name in ("upper", "lower", "rows", "errors"):
        parts = [getattr(draw.pruned.copy, name) for draw in others]
        np.testing.assert_array_equal(np.concatenate(parts), getattr(one.pruned.copy, name))
    for draw in others:
        assert draw.pruned.copy.largest.tolist() == one.pruned.copy.largest.tolist()
        assert draw.pruned.copy.scales.tobytes() == one.pruned.copy.scales.tobytes()


def test_no_shard_is_pruned_if_one_has_no_memory_for_the_copy(made, monkeypatch, rng):
    d, k, dtype, _ = SHAPES[6]
    X = blobs(300, d, k).astype(dtype)
    whole, shards = whole_and_shards(X, None, starts_of((2,), 300, d, k, dtype))
    draws = rng.random((first_pruned_step(trials_of(k)) + 9, trials_of(k)))
    monkeypatch.setattr(pruned_launch, "_LEAST_BYTES", X.nbytes + 1)
    expected = draw_plus_plus(whole, 3, draws)
    monkeypatch.setattr(pruned_launch, "_LEAST_BYTES", X.nbytes)  # a shard is smaller
    center(whole, shards)
    shards[1].fits = lambda size: False
    assert draw_plus_plus_of_shards(shards, exchange, 3, draws).tolist() == expected.tolist()
    assert [draw.pruned for draw in made] == [None] * 3


def test_all_shards_read_rows_alike(made, rng):
    """If the rows of one shard do not begin at multiples of 16 bytes, no GPU loads vectors."""
    d, k, dtype, _ = SHAPES[3]
    X = blobs(500, d, k).astype(dtype)
    plan = replace(plan_of(500, d, k, dtype), aligned=False)
    whole, shards = whole_and_shards(X, None, [2 * plan.chunk], offset=1)
    assert_same_draws(made, whole, shards, 7, rng.random((4, trials_of(k))))


def test_samples_that_are_all_the_same(made):
    d, k, dtype, _ = SHAPES[4]
    whole, shards = whole_and_shards(np.full((300, d), 0.1), None, starts_of((3,), 300, d, k, dtype))
    draws = np.random.default_rng(0).random((5, trials_of(k)))
    assert_same_draws(made, whole, shards, 299, draws)
    assert made[-1].chosen.tolist() == [299] + [0] * 5


def test_one_shard_and_no_draws(rng):
    d, k, dtype, _ = SHAPES[1]
    whole, shards = whole_and_shards(blobs(300, d, k).astype(dtype), None, starts_of((1,), 300, d, k, dtype))
    draws = rng.random((4, trials_of(k)))
    assert draw_plus_plus_of_shards([whole], exchange, 5, draws).tolist() == draw_plus_plus(whole, 5, draws).tolist()
    assert draw_plus_plus_of_shards(shards, exchange, 5, draws[:0]).tolist() == [5]


def test_centers_are_told_when_the_host_has_waited(monkeypatch, rng):
    monkeypatch.setattr(plusplus_shards, "_STEPS_AHEAD", 2)
    d, k, dtype, _ = SHAPES[1]
    _, shards = whole_and_shards(blobs(300, d, k).astype(dtype), None, starts_of((1,), 300, d, k, dtype))
    told = []
    draws = rng.random((4, trials_of(k)))
    draw_plus_plus_of_shards(
        shards, exchange, 5, draws, lambda: told.append("waited"), lambda *report: told.append(report)
    )
    assert told == ["waited", (2, 5), "waited", (4, 5)]


def test_shards_that_cannot_be_drawn_from(rng):
    d, k, dtype, _ = SHAPES[4]
    X = blobs(300, d, k).astype(dtype)
    _, shards = whole_and_shards(X, None, [8])
    with pytest.raises(ValueError, match="a shard begins at row 8 of 300; expected a multiple of 16"):
        draw_plus_plus_of_shards(shards, exchange, 0, rng.random((4, trials_of(k))))
    assert draw_plus_plus_of_shards(shards, exchange, 0, rng.random((4, 13))) is None
    _, shards = whole_and_shards(X, None, [16])
    shards[1].held = shards[1]._borrowed = None  # there is no memory for a copy
    assert draw_plus_plus_of_shards(shards, exchange, 0, rng.random((4, trials_of(k)))) is None
