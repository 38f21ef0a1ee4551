"""Column moments and distances to own centers: `DeviceData` launches them on the CPU; float64 and NumPy check them."""

import itertools
from pathlib import Path

import numpy as np
import oracle
import pytest
from host_cuda.machine import HostMachine, build_together, placed
from hypothesis import given, settings
from hypothesis import strategies as st

from tsapps.apps.kmeans.data import gpu_rows, plan
from tsapps.apps.kmeans.data.device_data import DeviceData
from tsapps.apps.kmeans.data.moments import total_moments
from tsapps.apps.kmeans.data.plan import moment_chunk
from tsapps.apps.kmeans.data.rows import ArrayRows
from tsapps.apps.kmeans.data.shard import Shard
from tsapps.apps.kmeans.inertia.plan import inertia_chunk
from tsapps.kernels.plan.mma import ELEMENT

WORK = {"float32": np.float32, "float64": np.float64, "float16": np.float32, "bfloat16": np.float32}
#: Rows, features, clusters: of one lane, of several, of a warp, of several steps; whole vectors and not; of few
#: columns more blocks than have rows.
SHAPES = [(1, 1, 1), (700, 1, 2), (300, 3, 5), (1000, 4, 16), (77, 8, 3), (501, 40, 33), (260, 128, 9), (90, 130, 64)]
SHAPES += [(7, 300, 4), (40, 520, 3)]
# A library for each dtype of X, and one for the kernels that do not depend on it.
PASSES = Path(gpu_rows.__file__).with_name("passes.cuh")
for each, work in WORK.items():
    types = f"{ELEMENT[each]}, {ELEMENT[np.dtype(work).name]}"
    kernels = [f"{name}<{types}, {v}>" for name in ("column_moments", "own_distances") for v in ("true", "false")]
    build_together([(PASSES, kernels)])
sums = [f"add_in_order<{T}, {flag}>" for T in ("float", "double") for flag in ("true", "false")]
build_together([(PASSES, ["fold_moments", *sums])])


def data_of(X, dtype="float32", offset=0, shard=None):
    """Return X in `dtype` on a machine, read in place, `offset` elements from where vectors may begin."""
    rows = ArrayRows(placed(X.astype(dtype), offset))
    rows.device = 0
    data = DeviceData(rows, np.dtype(WORK[dtype]), None, HostMachine(), takes_16_bit=True, shard=shard)
    assert data.rows_on_gpu is rows.array
    return data


def test_three_rows_by_hand():
    # (1, 2) and (3, 4) of center (1, 1); (5, 6) of center (0, 0).
    data = data_of(np.array([[1.0, 2], [3, 4], [5, 6]]))
    centers, labels = np.array([[1.0, 1], [0, 0]]), np.array([0, 0, 1], np.int32)
    assert data.own_distances(centers, labels).tolist() == [1.0, 13.0, 61.0]
    total, square = data._sums_about(data.held[0])
    assert (total.tolist(), square.tolist()) == ([6, 6], [20, 20])
    mean, variance = data.moments()
    assert mean.tolist() == [3, 4]
    assert variance == pytest.approx(8 / 3, rel=1e-15)
    assert data.cached_moments[2].tolist() == [4, 4]


@pytest.mark.each_choice
@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("dtype", WORK)
@pytest.mark.parametrize(("n", "d", "k"), SHAPES)
def test_moments_and_distances(n, d, k, dtype, offset, rng):
    data = data_of(5 + rng.standard_normal((n, d)), dtype, offset)
    X, unit = data.rows_on_gpu, np.finfo(data.dtype).eps / 2
    # A difference is rounded once, a sum in double for every row.
    each = unit + oracle.gamma(n + 8, np.float64)
    for origin in (X[0], X[n // 2]):
        delta = X.astype(np.float64) - origin.astype(np.float64)
        total, square = data._sums_about(origin.astype(data.dtype))
        np.testing.assert_allclose(total, delta.sum(axis=0), rtol=0, atol=each * abs(delta).sum(axis=0).max())
        np.testing.assert_allclose(square, (delta * delta).sum(axis=0), rtol=3 * each)
        np.testing.assert_allclose(data._largest, abs(delta).max(axis=0), rtol=unit)
    mean, variance = data.moments()
    wide = X.astype(np.float64)
    np.testing.assert_allclose(mean, wide.mean(axis=0), rtol=1e-6)
    assert variance == pytest.approx(float(wide.var(axis=0).mean()), rel=1e-6, abs=1e-12)
    np.testing.assert_allclose(data.cached_moments[2], abs(wide - wide[0]).max(axis=0), rtol=unit)
    # Distances are of rows less the mean, as it is rounded.
    data.center(wide.mean(axis=0), on_read=True)
    centers, labels = rng.standard_normal((k, d)).astype(data.dtype), rng.integers(0, k, n).astype(np.int32)
    delta = (X.astype(data.dtype) - data.shift).astype(np.float64) - centers[labels]
    distances = (delta * delta).sum(axis=1)
    np.testing.assert_allclose(
        data.own_distances(centers, labels), distances, rtol=unit + oracle.gamma(d + 8, np.float64)
    )


@pytest.mark.parametrize("chunks", [1, 7, 9, 300])
def test_moments_of_few_columns_in_many_chunks(chunks, rng):
    # 128 threads of a block add up rows, 16 each or fewer.
    data = data_of(rng.standard_normal((16 * 128 * chunks - 3, 2)))
    assert -(-data.n_samples // data.chunk) == chunks
    total, _ = data._sums_about(np.zeros(2, np.float32))
    np.testing.assert_allclose(total, data.held.astype(np.float64).sum(axis=0), rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(data._largest, abs(data.held).max(axis=0))


def test_the_largest_of_several_blocks_of_rows(rng, monkeypatch):
    # Streamed in blocks of 1024 rows: the largest of the columns are in the first, the second and the last.
    monkeypatch.setattr(gpu_rows, "_BLOCK_BYTES", 1500 * 3 * 4)
    X = rng.uniform(-1, 1, (2500, 3))
    X[0] = 0
    X[[5, 1500, 2499], [0, 1, 2]] = 2, -3, 4
    data = DeviceData(ArrayRows(X.astype(np.float16)), np.dtype(np.float32), None, HostMachine(memory=0))
    assert [len(block) for _, block in data.blocks(0)] == [1024, 1024, 452]
    mean, _ = data.moments()
    np.testing.assert_allclose(mean, X.astype(np.float16).astype(np.float64).mean(axis=0), rtol=1e-12)
    assert data.cached_moments[2].tolist() == [2, 3, 4]


def rows_of_many_scales(n, d, dtype, rng):
    """Return rows whose squares are rounded when they are added up, and otherwise in another order."""
    return (10.0 ** rng.integers(-3, 4, (n, 1)) * rng.standard_normal((n, d))).astype(dtype)


def moments_of(data, origin):
    return np.array([*data._sums_about(origin), data._largest])


def reduced(shards, origin):
    parts = [data.partial_moments(origin) for data in shards]
    return total_moments(HostMachine(), np.concatenate(parts, axis=1))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("d", [1, 3, 16, 33, 130])
def test_moments_have_the_same_bits_however_x_is_distributed(d, dtype, rng, monkeypatch):
    monkeypatch.setattr(plan, "_MOST_CHUNKS", 7)  # so that the rows of a chunk depend on those of X
    chunk = 2 * moment_chunk(1, d, np.dtype(WORK[dtype]).itemsize)
    n = 7 * chunk + chunk // 2 + 3
    X = rows_of_many_scales(n, d, dtype, rng)
    whole, origin = data_of(X, dtype), X[0].astype(WORK[dtype])
    assert whole.chunk == chunk
    expected = moments_of(whole, origin)
    for ends in ([0, 5, 8], [0, 1, 3, 8], [0, 1, 2, 7, 8]):
        # Shards whose rows consist of aligned vectors, and not.
        cuts = [(first * chunk, min(last * chunk, n)) for first, last in itertools.pairwise(ends)]
        shards = [data_of(X[a:b], dtype, i % 2, Shard(a, n)) for i, (a, b) in enumerate(cuts)]
        np.testing.assert_array_equal(reduced(shards, origin), expected)
    monkeypatch.setattr(DeviceData, "_borrow", lambda data: None)
    monkeypatch.setattr(gpu_rows, "_BLOCK_BYTES", 5 * chunk * d * np.dtype(WORK[dtype]).itemsize // 2)
    streamed = DeviceData(ArrayRows(X), np.dtype(WORK[dtype]), None, HostMachine(memory=0), takes_16_bit=True)
    assert [len(block) for _, block in streamed.blocks(0)] == [*[2 * chunk] * 3, n - 6 * chunk]
    np.testing.assert_array_equal(moments_of(streamed, origin), expected)


def test_bits_of_moments_show_where_x_was_cut(rng):
    # Rows of one chunk in another order; chunks in another order; totals of shards that are added up.
    X = rows_of_many_scales(1000, 130, "float32", rng)
    origin = np.zeros(130, np.float32)
    expected = moments_of(data_of(X), origin)
    parts = data_of(X).partial_moments(origin)
    X[:128] = X[127::-1]
    ends = Shard(0, 1000), Shard(512, 1000)
    shards = [data_of(some, shard=shard) for some, shard in zip((X[:512], X[512:]), ends, strict=True)]
    totals = [total_moments(HostMachine(), data.partial_moments(origin)) for data in shards]
    for found in (reduced(shards, origin), total_moments(HostMachine(), parts[:, ::-1].copy()), sum(totals)):
        np.testing.assert_allclose(found[1], expected[1], rtol=1e-12)
        assert (found[1] != expected[1]).any()


def test_chunks_of_moments():
    sizes = [(n, d) for n in (1, 1000, 10**5, 10**6, 3 * 10**7, 10**9) for d in (1, 3, 16, 33, 128, 130, 1024, 10**5)]
    for (n, d), itemsize in itertools.product(sizes, (4, 8)):
        chunk = moment_chunk(n, d, itemsize)
        assert chunk & (chunk - 1) == 0
        assert n / chunk < 65_535
        for of_x in (2, itemsize):  # 16-bit X has the working type float32
            assert chunk % inertia_chunk(n, d, of_x) == 0
        assert chunk <= max((8 << 20) // (d * itemsize), 128, 2**-14 * n, 24 * d * n / 2**30)
        assert 24 * d * (n / chunk) < 2**31
    # Some 4096 to 8192 blocks, each of whose threads has 16 rows or more.
    assert [moment_chunk(n, 128, 4) for n in (10**5, 10**6, 10**7, 10**8)] == [128, 128, 2048, 16384]
    assert [moment_chunk(10**7, d, 4) for d in (1, 4, 16, 1024)] == [4096, 4096, 2048, 2048]


def test_blocks_begin_at_chunks(rng):
    data = data_of(rng.standard_normal((300, 130)))
    data.windows = lambda rows, **_: ((start, data.held[start : start + 100]) for start in (0, 100, 200))
    with pytest.raises(ValueError, match="X: a block begins at row 100; expected multiples of 128"):
        data.moments()


@settings(max_examples=60, deadline=None)
@given(
    n=st.one_of(st.integers(1, 300), st.sampled_from([32, 33, 34, 64, 65, 66, 129, 1000])),
    d=st.integers(2, 70),
    dtype=st.sampled_from(["float32", "float64"]),
    seed=st.integers(0, 2**16),
)
def test_columns_are_added_up_as_numpy_does(n, d, dtype, seed):
    rng = np.random.default_rng(seed)
    X = (10.0 ** rng.integers(-3, 4, d) * rng.standard_normal((n, d)) + rng.standard_normal(d)).astype(dtype)
    mean, variance = data_of(X, dtype).rounded_moments()
    np.testing.assert_array_equal(mean, X.mean(axis=0))
    assert variance == float(np.mean(X.var(axis=0)))
    # One column alone: of the mean of all, small ones may not be seen.
    other = np.arange(d) != seed % d
    X[:, other] = 0
    assert data_of(X, dtype).rounded_moments()[1] == float(np.mean(X.var(axis=0)))
