"""Runs at_rest/gpu/encode.cuh's own source on the CPU."""

from functools import cache

import numpy as np

from host_cuda import harness


@cache
def _built(kernel, shared_bytes, threads, sum_type):
    pass_ = kernel.replace("add_checksums", "ChecksumPass")
    return harness.build(f"""
#include "apps/abft/at_rest/gpu/encode.cuh"
static_assert({pass_}::kSharedBytes == {shared_bytes} && {pass_}::kThreads == {threads}, "the plan's");
extern "C" void run(const abft::Task<{sum_type}>* task, long long blocks) {{
  const auto of = *task;
  cuda_host::launch(dim3(blocks), {threads}, {shared_bytes}, [=] {{ {kernel}(of); }});
}}""")


def run(plan, A, blocks):
    """Return the tensors of a matrix without gaps, by so many blocks; what is not written stays 255 in every byte."""
    tensors = {}
    for name, shape in plan.shapes.items():
        dtype = np.dtype(np.uint64) if name == "exact" else plan.sums
        tensors[name] = np.frombuffer(b"\xff" * (int(np.prod(shape)) * dtype.itemsize), dtype).reshape(shape).copy()
    aligned = np.empty(A.nbytes + 16, np.uint8)
    begin = -aligned.ctypes.data % 16
    data = aligned[begin : begin + A.nbytes]
    data[:] = A.reshape(-1).view(np.uint8)
    kernels = _built(
        plan.kernel, plan.shared_bytes, plan.threads, {"float64": "double", "float32": "float"}[plan.sums.name]
    )
    following = np.zeros(1, np.uint32)
    addresses = {name: tensor.ctypes.data for name, tensor in tensors.items()}
    kernels.call("run", plan.task(data.ctypes.data, addresses, following.ctypes.data), blocks)
    assert following[0] == 0
    return tensors
