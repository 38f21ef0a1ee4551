"""Runs iterations for many clusters by their kernels' own source on the CPU, as `ManyCentres` launches them."""

from functools import cache

import numpy as np

from host_cuda import harness
from host_cuda.fused_kmeans import BLOCKS, Iterations
from tsapps.apps.kmeans.assign.large_k_plan import StreamPlan
from tsapps.apps.kmeans.assign.plan import (
    CHANGE_BYTES,
    LISTS,
    NEAREST_OF_MANY,
    UNDECIDED_BYTES,
    tensor_error,
)


def streamed_source(plan):
    rings = plan.kernel.replace("streamed_columns", "StreamedColumns")
    return f"""
#include "kernels/tsm2/gemm_wgmma_streamed.cuh"
#include "apps/kmeans/assign/large_k.cuh"
static_assert({rings}::kSharedBytes == {plan.shared_bytes} && {rings}::kThreads == {plan.threads}, "the plan's");
extern "C" void assign(const void* shadow, const void* halves, long long row_tiles, long long column_tiles,
                       const {plan.epilogue}* nearest, long long blocks) {{
  const {plan.epilogue} epilogue = *nearest;
  cuda_host::launch(dim3(blocks), {plan.threads}, {plan.shared_bytes}, [=] {{
    {plan.kernel}(static_cast<const ptx::Half*>(shadow), static_cast<const ptx::Half*>(halves), (int)row_tiles,
                  (int)column_tiles, epilogue);
  }});
}}"""


@cache
def streamed(plan):
    return harness.build(streamed_source(plan))


class IterationsOfMany(Iterations):
    """The same as `ManyCentres` launches them; `plan` is for clusters of one block."""

    tile, pairs, parts = StreamPlan.ROWS, False, 1

    def __init__(self, X, k, kind, plan, weights=None, mean=None):
        self.plan, self.slabs, self.columns = plan, plan.row_slabs, plan.columns
        super().__init__(X, k, kind, weights, mean)

    def move_rows(self, centers, stopped=0):
        """Run what follows of an iteration, at the centres that were placed."""
        n, d, k, plan = self.n, self.d, self.k, self.plan
        self.stopped, self.counts = np.array([stopped], np.int32), np.zeros(0, np.uint32)
        lists = plan.blocks(n, BLOCKS)
        room = plan.capacity(n, lists)
        changes = np.zeros((lists, room, CHANGE_BYTES // 4), np.uint32)
        undecided = np.zeros((lists, room, UNDECIDED_BYTES // 4), np.uint32)
        lengths = np.zeros((lists, 2), np.uint32)
        lists_of = changes, undecided, lengths
        pointed = self.extremes, self.norms, self.labels, *lists_of, self.stopped
        pointers = (one.ctypes.data for one in pointed)
        nearest = np.array((*pointers, room, n, tensor_error(d), self.rounding, 0), NEAREST_OF_MANY)
        tiles = -(-n // plan.ROWS), len(self.halves) // plan.columns
        streamed(plan).call("assign", self.shadow, self.halves, *tiles, nearest, lists)
        assert (lengths <= room).all()
        found = [undecided[b, : lengths[b, 1]] for b in range(lists)]
        self.candidates = np.concatenate([part[:, 2] % 2**16 for part in found])
        rows = self.rows()
        self.call("decide_of_many", rows, centers, k, *lists_of, room, lists, self.stopped)
        assert (lengths <= room).all()
        every = np.array((changes.ctypes.data, lengths.ctypes.data, room, 2, 0), LISTS)
        moved = self.move_segments(rows, every, lists, undecided)
        return len(self.candidates), moved
