"""Runs at_rest/gpu/compare.cuh's own source on the CPU."""

from functools import cache

import numpy as np

from host_cuda import harness
from tsapps.apps.abft.at_rest.gpu.compare import KERNEL, places

_THREADS = 256


@cache
def _built():
    return harness.build(f"""
#include "apps/abft/at_rest/gpu/compare.cuh"
static_assert(abft::kCompareThreads == {_THREADS}, "the launch's");
extern "C" void run(const unsigned long long* found, const unsigned long long* expected, long long width,
                    long long blocks, long long* list, unsigned long long* count) {{
  cuda_host::launch(dim3((blocks + {_THREADS - 1}) / {_THREADS}), {_THREADS}, 0, [=] {{
    {KERNEL}(found, expected, width, blocks, list, count);
  }});
}}""")


def mismatches(found, expected):
    """Return what `exact_gpu.mismatches` does, of arrays in host memory."""
    stripes, _, width = found.shape
    listed, count = np.full(stripes * width, -1), np.zeros(1, np.uint64)
    _built().call("run", found, np.ascontiguousarray(expected), width, listed.size, listed, count)
    n = int(count[0])
    assert (listed[n:] == -1).all()
    blocks = np.sort(listed[:n])
    return blocks, found.ravel()[places(blocks, width)]
