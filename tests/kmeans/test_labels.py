"""Labels of a byte made labels of 32 bits by labels.cuh, its own source run on the CPU."""

from functools import cache

import numpy as np
import pytest
from host_cuda import harness

SOURCE = """
#include "apps/kmeans/labels.cuh"
extern "C" void widen(const signed char* from, long long n, int* to, long long blocks) {
  cuda_host::launch(dim3(blocks), 64, 0, [=] { kmeans::widen_labels(from, n, to); });
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
