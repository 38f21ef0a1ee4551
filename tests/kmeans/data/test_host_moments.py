"""Moments of columns in NumPy: the bits of the kernels, which run on a HostMachine, for every cut and any threads."""

import itertools

import numpy as np
import oracle
import pytest
from exhaustive import property_test
from host_cuda.machine import HostMachine, placed
from hypothesis import strategies as st
from kmeans.data.test_passes import WORK

from tsapps.apps.kmeans.data import host_data, moments, plan
from tsapps.apps.kmeans.data.host_data import HostData
from tsapps.apps.kmeans.data.host_moments import partial_moments, total_moments
from tsapps.apps.kmeans.data.plan import moment_chunk
from tsapps.apps.kmeans.data.rows import ArrayRows

#: Rows and features: one; of one column, even and odd; of a part of a chunk, and of several chunks; wide rows.
SHAPES = [(1, 1), (5, 3), (300, 1), (5000, 1), (20_000, 7), (9000, 4), (9001, 2), (3000, 130), (700, 1025), (257, 64)]


def chunk_of(X, work):
    return moment_chunk(*X.shape, np.dtype(work).itemsize)


def by_kernels(X, origin, chunk):
    """Return what column_moments has of every chunk of X, (3, chunks, d)."""
    parts = np.empty((3, -(-len(X) // chunk), X.shape[1]))
    moments.partial_moments(HostMachine(), placed(X), origin, chunk, parts)
    return parts


def of_many_scales(n, d, dtype, rng):
    """Return rows in `dtype` whose sums and squares are rounded when they are added up, so that the order matters."""
    most = 4 if dtype == "float16" else 7
    return (10.0 ** rng.integers(-most, most, (n, 1)) * rng.standard_normal((n, d))).astype(dtype)


def smallest(X):
    """Return the row of the smallest numbers, which those of others are hardly rounded to."""
    return X[abs(X.astype(np.float64)).max(axis=1).argmin()]


def test_three_rows_by_hand():
    X, origin = np.array([[1.0, 2], [3, 4], [5, 6]]), np.array([1.0, 6])
    parts = partial_moments(X, origin, 1 << 10)
    assert parts.tolist() == [[[6, -6]], [[20, 20]], [[4, 4]]]
    assert total_moments(parts).tolist() == [[6, -6], [20, 20], [4, 4]]


def test_two_chunks_by_hand():
    # 256 threads of a block add up a column: the first chunk has 256 rows, each of a thread, and the last has one row.
    X = np.zeros((257, 1))
    X[:3, 0] = 2.0**53, 1, 1
    X[256] = -3
    parts = partial_moments(X, np.zeros(1), 256)
    assert parts[0, :, 0].tolist() == [2.0**53, -3]  # the threads are added one after the other, so both ones are lost
    assert parts[1, :, 0].tolist() == [2.0**106, 9]
    assert parts[2, :, 0].tolist() == [2.0**53, 3]
    assert total_moments(parts)[:, 0].tolist() == [2.0**53 - 3, 2.0**106, 2.0**53]
    # Row 256 of one chunk is of the thread of row 0, which adds it first.
    X[:3, 0], X[256] = (2.0**53, -(2.0**53), 0), 1
    assert partial_moments(X, np.zeros(1), 512)[0, 0, 0] == 0
    X[256] = 2
    assert partial_moments(X, np.zeros(1), 512)[0, 0, 0] == 2


@pytest.mark.each_choice
@pytest.mark.parametrize("dtype", WORK)
@pytest.mark.parametrize(("n", "d"), SHAPES)
def test_bits_of_the_kernels(n, d, dtype, rng):
    X, work = of_many_scales(n, d, dtype, rng), WORK[dtype]
    chunk = chunk_of(X, work)
    for origin in (X[0], smallest(X), np.zeros(d)):
        about = origin.astype(work)
        parts = partial_moments(X.astype(work), about, chunk)
        np.testing.assert_array_equal(parts, by_kernels(X, about, chunk))
        np.testing.assert_array_equal(total_moments(parts), moments.total_moments(HostMachine(), parts))


@pytest.mark.parametrize("chunks", [1, 2, 127, 128, 129, 256, 1000])
def test_totals_have_the_bits_of_the_kernel(chunks, rng):
    parts = of_many_scales(3 * chunks, 11, "float64", rng).reshape(3, chunks, 11)
    parts[1:] = abs(parts[1:])
    found = total_moments(parts)
    np.testing.assert_array_equal(found, moments.total_moments(HostMachine(), parts))
    np.testing.assert_array_equal(found[2], parts[2].max(axis=0))
    other = total_moments(np.ascontiguousarray(parts[:, ::-1]))
    assert chunks <= 2 or (other[:2] != found[:2]).any(), "choose data whose sums depend on the order"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_differences_that_overflow(dtype, rng):
    # Infinite sums, differences of infinities that are not numbers, and columns without either.
    X = rng.standard_normal((600, 4)).astype(dtype)
    most = np.finfo(dtype).max
    X[5, :2], X[0, :2], X[6, 0] = most, -most, -most
    X[7, 2] = np.sqrt(most) * 2
    chunk = chunk_of(X, dtype)
    for origin in (X[0], -X[0]):
        parts = partial_moments(X, origin, chunk)
        np.testing.assert_array_equal(parts, by_kernels(X, origin, chunk))
        totals = total_moments(parts)
        np.testing.assert_array_equal(totals, moments.total_moments(HostMachine(), parts))
        assert np.isinf(totals[:, :2]).any()
        assert np.isfinite(totals[:, 3]).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("d", [1, 5, 8])
def test_moments_are_those_of_float64(d, dtype, rng):
    X = (20 + rng.standard_normal((3000, d))).astype(dtype)
    parts = partial_moments(X, X[0], chunk_of(X, dtype))
    total, square, largest = total_moments(parts)
    delta = X.astype(np.float64) - X[0].astype(np.float64)
    # A difference is rounded once, and a sum in float64 for every row.
    unit = np.finfo(dtype).eps / 2
    each = unit + oracle.gamma(len(X), np.float64)
    assert (abs(total - delta.sum(axis=0)) <= each * abs(delta).sum(axis=0)).all()
    np.testing.assert_allclose(square, (delta * delta).sum(axis=0), rtol=2 * unit + each, atol=0)
    np.testing.assert_allclose(largest, abs(delta).max(axis=0), rtol=unit, atol=0)


@property_test(
    25,
    400,
    n=st.integers(1, 3000),
    d=st.one_of(st.integers(1, 9), st.integers(30, 140)),
    dtype=st.sampled_from(sorted(WORK)),
    most_chunks=st.sampled_from([1, 5, 1 << 14]),
    seed=st.integers(0, 2**16),
)
def test_bits_of_the_kernels_for_any_rows_and_any_cut(n, d, dtype, most_chunks, seed):
    """Of the whole, and of blocks that begin at chunks."""
    rng, work = np.random.default_rng(seed), WORK[dtype]
    X = of_many_scales(n, d, dtype, rng)
    origin, wide = smallest(X).astype(work), X.astype(work)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "_MOST_CHUNKS", most_chunks)
        chunk = chunk_of(X, work)
    whole = partial_moments(wide, origin, chunk)
    np.testing.assert_array_equal(whole, by_kernels(X, origin, chunk))
    chunks = whole.shape[1]
    cuts = [0, *sorted(set(rng.integers(1, chunks, 3).tolist()) if chunks > 1 else ()), chunks]
    blocks = [wide[first * chunk : last * chunk] for first, last in itertools.pairwise(cuts)]
    cut = np.concatenate([partial_moments(block, origin, chunk) for block in blocks], axis=1)
    np.testing.assert_array_equal(cut, whole)


def test_bits_show_the_order_of_rows(rng):
    for dtype in WORK:
        X, work = of_many_scales(5000, 7, dtype, rng), WORK[dtype]
        wide, origin = X.astype(work), smallest(X).astype(work)
        parts = partial_moments(wide, origin, 1024)
        other = wide.copy()
        other[:1024] = wide[1023::-1]
        are_other = (partial_moments(other, origin, 1024)[:2, 0] != parts[:2, 0]).any(axis=1)
        assert are_other[1]
        assert are_other[0] or dtype == "float16"  # whose sums are exact in float64


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_moments_of_data_depend_neither_on_threads_nor_on_blocks(dtype, rng, monkeypatch):
    X, work = of_many_scales(7000, 5, dtype, rng), np.dtype(WORK[dtype])
    expected = None
    for threads, elements, copies in ((1, 1 << 21, True), (3, 1, True), (2, 5 * 3000, True), (2, 1, False)):
        monkeypatch.setattr(host_data, "available_cores", lambda threads=threads: threads)
        monkeypatch.setattr(host_data, "_TASK_ELEMENTS", elements)
        monkeypatch.setattr(HostData, "fits", lambda data, size, copies=copies: copies)
        data = HostData(ArrayRows(X), work, None)
        blocks = [len(block) for _, block in data.blocks(0)]
        assert len(blocks) == (1 if elements > X.size else -(-7000 // blocks[0]))
        assert len(blocks) == 1 or blocks[0] % data.chunk == 0
        mean, variance = data.moments()
        found = [*mean.tolist(), variance, *data.cached_moments[2].tolist()]
        expected = expected or found
        assert found == expected
