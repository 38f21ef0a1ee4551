"""k-means++ from parts of X on GPUs: the answers of a CPU, bit by bit, in any order of questions."""

from itertools import pairwise

import ml_dtypes
import numpy as np
import pytest
from host_cuda.machine import HostMachine, placed
from kmeans.init.test_plusplus_chunks import all_of, assert_same

from tsapps.apps.kmeans.data import blocks
from tsapps.apps.kmeans.data.device_data import DeviceData
from tsapps.apps.kmeans.data.rows import ArrayRows
from tsapps.apps.kmeans.data.shard import Shard
from tsapps.apps.kmeans.engines.device_engine import DeviceEngine
from tsapps.apps.kmeans.engines.engine import HostEngine
from tsapps.apps.kmeans.engines.select_step import Options
from tsapps.apps.kmeans.init.plusplus_host import ChunkedDraw
from tsapps.apps.kmeans.init.plusplus_part import DeviceDraw


@pytest.fixture(autouse=True)
def no_small_data(monkeypatch):
    monkeypatch.setattr(blocks, "SMALL", 0)


def work_of(X):
    return np.dtype(np.float64 if X.dtype == np.float64 else np.float32)


def host_draw(X, weights=None, trials=4):
    return ChunkedDraw(HostEngine(ArrayRows(X), work_of(X), weights, as_kernels=True).data, trials)


def device_draw(X, weights=None, shard=None, trials=4):
    some = slice(None) if shard is None else slice(shard.start, shard.stop)
    of = None if shard is None else Shard(shard.start, len(X))
    given = None if weights is None else placed(weights[some].astype(work_of(X)))
    data = DeviceData(ArrayRows(placed(X[some])), work_of(X), given, HostMachine(), takes_16_bit=True, shard=of)
    return DeviceDraw.of(data, trials)


@pytest.mark.each_choice
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    ("n", "d", "dtype"),
    [(1100, 3, "f"), (1100, 16, "f"), (700, 33, "d"), (700, 40, "e"), (500, 40, ml_dtypes.bfloat16), (300, 1100, "f")],
    ids=str,
)
def test_answers_are_those_of_a_cpu(n, d, dtype, weighted, rng):
    X, weights = (rng.standard_normal((n, d)) + 2).astype(dtype), rng.random(n) + 0.5 if weighted else None
    assert_same(all_of(device_draw(X, weights)), all_of(host_draw(X, weights)))


@pytest.mark.parametrize("weighted", [False, True])
def test_answers_of_shards_are_those_of_all_rows(weighted, rng):
    X, weights = rng.standard_normal((1100, 17)), rng.random(1100) if weighted else None
    whole = host_draw(X, weights)
    chunk = whole.order.chunk
    shards = [range(start, stop) for start, stop in pairwise([0, chunk, 4 * chunk, 1100])]
    parts, points = [device_draw(X, weights, shard) for shard in shards], X[[5, 9, 1000, 9]]
    for draw in (whole, *parts):
        draw.add(X[3])
        draw.add(X[700])  # before any question
    np.testing.assert_array_equal(np.concatenate([part.sums() for part in parts]), whole.sums())
    found = np.concatenate([part.potentials(points) for part in parts], axis=1)
    np.testing.assert_array_equal(found, whole.potentials(points))
    for draw in (whole, *parts):
        draw.add(X[1000])  # whose distances the kernels have not taken into account when samples are found
    sums = found[2]
    for shard, part in zip(shards, parts, strict=True):
        some = np.arange(shard.start // chunk, -(-shard.stop // chunk))
        own, rows = part.find(some - some[0], 0.2 * sums[some], 0.5 * sums[some])
        expected, expected_rows = whole.find(some, 0.2 * sums[some], 0.5 * sums[some])
        assert (own + shard.start).tolist() == expected.tolist()
        np.testing.assert_array_equal(rows, expected_rows)


def test_rows_that_the_gpu_does_not_hold_are_drawn_by_a_cpu(rng, monkeypatch):
    X = rng.standard_normal((700, 20)).astype(np.float32)
    monkeypatch.setattr(DeviceData, "copies", lambda data: False)
    monkeypatch.setattr(DeviceData, "_borrow", lambda data: None)
    engine = DeviceEngine(ArrayRows(X), np.dtype(np.float32), None, HostMachine(), Options(always=True))
    draw = engine.chunked_draw(4)
    assert isinstance(draw, ChunkedDraw)
    assert_same(all_of(draw), all_of(host_draw(X)))


def test_rows_at_an_address_within_a_vector_are_copied(rng):
    memory = placed(rng.standard_normal(700 * 20 + 1).astype(np.float32))
    X = memory[1:].reshape(700, 20)
    data = DeviceData(ArrayRows(X), np.dtype(np.float32), None, HostMachine(), takes_16_bit=True)
    assert data.held is not None
    assert data.held.ctypes.data % 16 != 0
    assert_same(all_of(DeviceDraw.of(data, 4)), all_of(host_draw(np.array(X))))
