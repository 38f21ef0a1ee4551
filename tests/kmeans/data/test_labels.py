"""Label arrays: widen, replace and count, by the launches of data/labels.cuh on the CPU."""

import numpy as np
import pytest
from host_cuda.machine import HostMachine

from tsapps.apps.kmeans.data.labels import launch_over_labels
from tsapps.apps.kmeans.data.load import load_kernels


@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("n", [1, 3, 4, 5, 255, 256, 257, 3001])
def test_every_label_is_widened_and_nothing_else_written(n, blocks, rng):
    given = np.full(-(-n // 4) * 4, 77, np.int8)
    given[:n] = rng.integers(-1, 64, n)
    found = np.full(n + 4, -5, np.int32)
    (widen,) = load_kernels(HostMachine(), "data/labels.cuh", "widen_labels")
    widen((blocks,), (64,), (given, np.int64(n), found))
    np.testing.assert_array_equal(found[:n], given[:n])
    assert (found[n:] == -5).all()


# Up to four blocks of 256 threads a multiprocessor: one block, several, and more labels than threads.
@pytest.mark.parametrize("multiprocessors", [1, 5])
@pytest.mark.parametrize("n", [1, 31, 64, 65, 3001])
def test_labels_are_changed_and_those_that_differ_counted(n, multiprocessors, rng):
    machine = HostMachine(multiprocessors)
    held, given = rng.integers(-1, 3, n + 2).astype(np.int32), rng.integers(0, 3, n).astype(np.int32)
    expected, changed = np.append(given, held[n:]), np.array([5], np.uint64)
    differ = np.count_nonzero(held[:n] != given)
    launch_over_labels(machine, "change_labels", given, held, changed)
    np.testing.assert_array_equal(held, expected)
    assert changed[0] == 5 + differ
    launch_over_labels(machine, "change_labels", given, held, changed)
    assert changed[0] == 5 + differ


# In shared memory, as many as there is room for, and one more.
@pytest.mark.parametrize("k", [1, 7, 300, 8192, 8193])
@pytest.mark.parametrize(("n", "multiprocessors"), [(1, 1), (3001, 1), (3001, 5)])
def test_labels_are_counted(n, k, multiprocessors, rng):
    labels, counts = rng.integers(0, k, n).astype(np.int32), np.zeros(k + 1, np.uint64)
    labels[-1] = k - 1
    launch_over_labels(HostMachine(multiprocessors), "count_labels", labels, np.int32(k), counts)
    np.testing.assert_array_equal(counts, np.bincount(labels, minlength=k + 1))
