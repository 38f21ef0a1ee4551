"""What is done with labels alone, by data/labels.cuh's own source, run on the CPU."""

from functools import cache

import numpy as np
import pytest
from host_cuda import harness

SOURCE = """
#include "apps/kmeans/data/labels.cuh"
extern "C" void widen(const signed char* from, long long n, int* to, long long blocks) {
  cuda_host::launch(dim3(blocks), 64, 0, [=] { kmeans::widen_labels(from, n, to); });
}
extern "C" void change(const int* from, long long n, int* to, unsigned long long* changed, long long blocks) {
  cuda_host::launch(dim3(blocks), 64, 0, [=] { kmeans::change_labels(from, n, to, changed); });
}
extern "C" void count(const int* labels, long long n, long long k, unsigned long long* counts, long long blocks) {
  cuda_host::launch(dim3(blocks), 64, 0, [=] { kmeans::count_labels(labels, n, (int)k, counts); });
}"""


@cache
def library():
    return harness.build(SOURCE)


@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("n", [1, 3, 4, 5, 255, 256, 257, 3001])
def test_every_label_is_widened_and_nothing_else_written(n, blocks, rng):
    given = np.full(-(-n // 4) * 4, 77, np.int8)
    given[:n] = rng.integers(-1, 64, n)
    found = np.full(n + 4, -5, np.int32)
    library().call("widen", given, n, found, blocks)
    np.testing.assert_array_equal(found[:n], given[:n])
    assert (found[n:] == -5).all()


@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("n", [1, 31, 64, 65, 3001])
def test_labels_are_changed_and_those_that_differ_counted(n, blocks, rng):
    held, given = rng.integers(-1, 3, n + 2).astype(np.int32), rng.integers(0, 3, n).astype(np.int32)
    expected, changed = np.append(given, held[n:]), np.array([5], np.uint64)
    differ = np.count_nonzero(held[:n] != given)
    library().call("change", given, n, held, changed, blocks)
    np.testing.assert_array_equal(held, expected)
    assert changed[0] == 5 + differ
    library().call("change", given, n, held, changed, blocks)
    assert changed[0] == 5 + differ


# In shared memory, as many as there is room for, and one more.
@pytest.mark.parametrize("k", [1, 7, 300, 8192, 8193])
@pytest.mark.parametrize(("n", "blocks"), [(1, 1), (3001, 1), (3001, 5)])
def test_labels_are_counted(n, k, blocks, rng):
    labels, counts = rng.integers(0, k, n).astype(np.int32), np.zeros(k + 1, np.uint64)
    labels[-1] = k - 1
    library().call("count", labels, n, k, counts, blocks)
    np.testing.assert_array_equal(counts, np.bincount(labels, minlength=k + 1))
