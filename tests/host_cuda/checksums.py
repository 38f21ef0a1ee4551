"""Runs checksums.cuh's own source on the CPU."""

from functools import cache

import numpy as np

from host_cuda import harness
from tsapps.apps.abft.checksums_plan import TASK


@cache
def _built(kernel, shared_bytes, threads, left_bytes, sum_type):
    pass_ = kernel.replace("add_checksums", "ChecksumPass")
    return harness.build(f"""
#include "apps/abft/checksums.cuh"
static_assert({pass_}::kSharedBytes == {shared_bytes} && {pass_}::kThreads == {threads}, "the plan's");
static_assert({pass_}::kLeft * abft::kWarps == {left_bytes}, "the plan's");
static_assert(sizeof(abft::Task<{sum_type}>) == {TASK.itemsize}, "the plan's");
extern "C" void run(const abft::Task<{sum_type}>* task, long long blocks) {{
  const auto of = *task;
  cuda_host::launch(dim3(blocks), {threads}, {shared_bytes}, [=] {{ {kernel}(of); }});
}}""")


def run(plan, A, blocks, deal=None):
    """Return the tensors of a matrix without gaps, by so many blocks; what is not written stays 255 in every byte.

    Units are dealt as planned for those blocks, or as said. What pieces left is 255 in every byte before, too.
    """
    deal = deal or plan.deal(blocks)
    tensors = {}
    for name, shape in plan.shapes.items():
        dtype = np.dtype(np.uint64) if name == "exact" else plan.sums
        tensors[name] = np.frombuffer(b"\xff" * (int(np.prod(shape)) * dtype.itemsize), dtype).reshape(shape).copy()
    aligned = np.empty(A.nbytes + 16, np.uint8)
    begin = -aligned.ctypes.data % 16
    data = aligned[begin : begin + A.nbytes]
    data[:] = A.reshape(-1).view(np.uint8)
    sum_type = {"float64": "double", "float32": "float"}[plan.sums.name]
    kernels = _built(plan.kernel, plan.shared_bytes, plan.threads, plan.left_bytes, sum_type)
    counts = np.zeros(plan.counts(deal), np.uint32)
    of_pieces = np.full(plan.scratch_bytes(deal) // 8, 2**64 - 1, np.uint64)
    addresses = {name: tensor.ctypes.data for name, tensor in tensors.items()}
    kernels.call("run", plan.task(data.ctypes.data, addresses, deal, of_pieces.ctypes.data, counts.ctypes.data), blocks)
    assert not counts.any()
    return tensors
