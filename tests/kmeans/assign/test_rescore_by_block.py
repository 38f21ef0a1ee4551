"""Rescoring of long rows by blocks (assign/rescore_by_block.cuh) on a HostMachine, against float64."""

import numpy as np
import pytest
from faults import replaced
from host_cuda import harness
from host_cuda.machine import HostMachine, placed
from kmeans.host_steps import DTYPES

from tsapps.apps.kmeans.data.load import load_kernels, types_of
from tsapps.apps.kmeans.data.plan import ROWS, is_long
from tsapps.kernels.runtime.launch import structure

K, LISTS, CAPACITY = 40, 3, 90


def bits_of(centers):
    """Return the candidate bits of centers, as in `AmbiguousRow`."""
    return sum(1 << (center % 8 // 2 * 16 + center // 8 * 2 + center % 2) for center in centers)


def rescored(X, centers, candidates, *, edit=str, blocks=2, work=np.float32, mean=None):
    """Rescore rows 0, 1, …, of which `candidates` lists the centers; return the candidate bits afterwards.

    All are in the last of the lists. No list holds −1 where it ends.
    """
    machine = HostMachine(edit=edit)
    entries = np.zeros((LISTS, CAPACITY, 4), np.uint32)
    for row, some in enumerate(candidates):
        bits = bits_of(some)
        entries[-1, row] = row, 0xFFFFFFFF, bits & 0xFFFFFFFF, bits >> 32
    counts = np.array([0, 0, len(candidates)], np.uint32)
    (kernel,) = load_kernels(machine, "assign/rescore_by_block.cuh", f"rescore_by_block<{types_of(X, np.dtype(work))}>")
    mean = placed(np.zeros(X.shape[1], work) if mean is None else mean)
    rows = structure(ROWS, X=X, leading=X.strides[0] // X.itemsize, d=X.shape[1], mean=mean, weights=None)
    stopped, before = np.zeros(1, np.int32), entries.copy()
    arguments = rows, centers, np.int32(K), entries, counts, np.int64(CAPACITY), stopped
    kernel((LISTS, blocks), (256,), arguments)
    np.testing.assert_array_equal(entries[..., :2], before[..., :2])
    np.testing.assert_array_equal(entries[:-1], before[:-1])
    assert not entries[-1, len(candidates) :].any()
    return [int(low) | int(high) << 32 for low, high in entries[-1, : len(candidates), 2:].tolist()]


def case(kind, d, n, rng):
    """Return X, centers and candidates: none, one, two and more of them, some equal, some of huge rows."""
    work = np.float64 if kind == "float64" else np.float32
    X = placed(rng.standard_normal((n, d)).astype(DTYPES[kind]))
    centers = rng.standard_normal((K, d)).astype(work)
    centers[7] = centers[3]  # equally near
    X[::5] = centers[3]
    candidates = [sorted(rng.choice(K, size, replace=False).tolist()) for size in rng.integers(0, 6, n)]
    candidates[0], candidates[5] = [3, 7], []
    return X, placed(centers), candidates, work


def nearest(X, centers, some):
    """Return the candidate whose float64 distance is smallest, the first of equals; all centers if there is none."""
    some = some or list(range(K))
    return some[int(((X.astype(np.float64) - centers[some].astype(np.float64)) ** 2).sum(axis=1).argmin())]


def assert_right(kind, d, n, rng, **options):
    X, centers, candidates, work = case(kind, d, n, rng)
    found = rescored(X, centers, candidates, work=work, **options)
    wanted = [bits_of([nearest(x, centers, some)]) for x, some in zip(X, candidates, strict=True)]
    assert found == wanted


def test_by_hand():
    # Centers 0, 1, 2, … on a line of which every feature is a coordinate; rows at 2.4, 2.5 and 7.
    centers = placed(np.repeat(np.arange(float(K))[:, np.newaxis], 4, axis=1))
    X = placed(np.repeat([[2.4], [2.5], [7.0]], 4, axis=1))
    found = rescored(X, centers, [[2, 3], [3, 2, 9], []], work=np.float64)
    assert found == [bits_of([2]), bits_of([2]), bits_of([7])]


# Fewer features than threads; two and more vectors per thread; rows that are no whole number of vectors.
@pytest.mark.parametrize("d", [3, 1024, 2052, 2053])
@pytest.mark.parametrize("kind", ["float32", "float64", "float16", "bfloat16"])
def test_nearest_candidates(kind, d, rng):
    assert_right(kind, d, 70, rng)


@pytest.mark.parametrize("blocks", [1, 4, 100])
def test_more_rows_than_a_block_takes_at_a_time_and_fewer_than_blocks(blocks, rng):
    assert_right("float32", 520, 80, rng, blocks=blocks)


def test_the_mean_is_subtracted(rng):
    X, centers, candidates, work = case("float32", 600, 20, rng)
    mean = rng.standard_normal(600).astype(work)
    found = rescored(X, centers, candidates, mean=mean)
    wanted = [bits_of([nearest(x - mean, centers, some)]) for x, some in zip(X, candidates, strict=True)]
    assert found == wanted


def test_rows_that_are_not_finite_take_the_first_center(rng):
    X, centers, candidates, _ = case("float32", 600, 6, rng)
    X[2, 5], X[4, 7] = np.nan, np.inf
    candidates[2], candidates[4] = [], [4, 9]
    found = rescored(X, centers, candidates)
    assert (found[2], found[4]) == (bits_of([0]), bits_of([0]))


@pytest.mark.parametrize("seed", range(3))
def test_in_any_order_of_threads(seed, rng):
    with harness.schedule(seed=seed):
        assert_right("float64", 520, 40, rng)


def test_without_the_barrier_sums_are_missing(rng):
    def edit(text):
        return replaced(text, "__syncthreads();  // all sums are written", "", 0, "the source")

    with harness.schedule(seed=1), pytest.raises(AssertionError):
        assert_right("float64", 520, 40, rng, edit=edit)


def test_one_set_of_sums_would_be_written_over(rng):
    with harness.schedule(seed=1), pytest.raises(AssertionError):
        assert_right("float64", 520, 40, rng, edit=lambda text: replaced(text, "turn ^= 1", "turn", 0, "the source"))


def test_only_long_rows():
    assert [is_long(d, np.dtype(np.float64)) for d in (1022, 1023, 4096)] == [False, True, True]
    assert [is_long(d, np.dtype(np.float32)) for d in (2044, 2045, 4096)] == [False, True, True]
