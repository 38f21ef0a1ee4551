"""Runs iterations for many clusters by their kernels' own source on the CPU, as `LargeKStep` launches them."""

from functools import cache

import numpy as np

from host_cuda import harness
from host_cuda.fused_kmeans import BLOCKS, Iterations
from tsapps.apps.kmeans.assign.large_k_plan import StreamPlan
from tsapps.apps.kmeans.assign.plan import AMBIGUOUS_LARGE_K_BYTES, REASSIGNMENT_BYTES, STREAMED_ARGMIN, tensor_error
from tsapps.apps.kmeans.update.plan import LISTS


def streamed_source(plan):
    rings = plan.kernel.replace("gemm_wgmma_streamed", "GemmWgmmaStreamed")
    return f"""
#include "kernels/tsm2/gemm_wgmma_streamed.cuh"
#include "apps/kmeans/assign/large_k.cuh"
static_assert({rings}::kSharedBytes == {plan.shared_bytes} && {rings}::kThreads == {plan.threads}, "the plan's");
extern "C" void assign(const void* half_copy, const void* centers_half, long long row_tiles, long long column_tiles,
                       const {plan.epilogue}* nearest, long long blocks) {{
  const {plan.epilogue} epilogue = *nearest;
  cuda_host::launch(dim3(blocks), {plan.threads}, {plan.shared_bytes}, [=] {{
    {plan.kernel}(static_cast<const ptx::Half*>(half_copy), static_cast<const ptx::Half*>(centers_half), (int)row_tiles,
                  (int)column_tiles, epilogue);
  }});
}}"""


@cache
def streamed(plan):
    return harness.build(streamed_source(plan))


class IterationsOfMany(Iterations):
    """The same as `LargeKStep` launches them; `plan` is for clusters of one block."""

    tile, pairs, parts = StreamPlan.ROWS, False, 1

    def __init__(self, X, k, kind, plan, weights=None, mean=None):
        self.plan, self.panels, self.columns = plan, plan.row_panels, plan.columns
        super().__init__(X, k, kind, weights, mean)

    def move_rows(self, centers, stopped=0):
        """Run what follows of an iteration, at the centers that were placed."""
        n, d, k, plan = self.n, self.d, self.k, self.plan
        self.stopped, self.counts = np.array([stopped], np.int32), np.zeros(0, np.uint32)
        lists = plan.blocks(n, BLOCKS)
        room = plan.capacity(n, lists)
        changes = np.zeros((lists, room, REASSIGNMENT_BYTES // 4), np.uint32)
        ambiguous = np.zeros((lists, room, AMBIGUOUS_LARGE_K_BYTES // 4), np.uint32)
        lengths = np.zeros((lists, 2), np.uint32)
        lists_of = changes, ambiguous, lengths
        pointed = self.center_stats, self.norms, self.labels, *lists_of, self.stopped
        pointers = (one.ctypes.data for one in pointed)
        nearest = np.array((*pointers, room, n, tensor_error(d), self.rounding, 0), STREAMED_ARGMIN)
        tiles = -(-n // plan.ROWS), len(self.centers_half) // plan.columns
        streamed(plan).call("assign", self.half_copy, self.centers_half, *tiles, nearest, lists)
        assert (lengths <= room).all()
        found = [ambiguous[b, : lengths[b, 1]] for b in range(lists)]
        self.candidates = np.concatenate([part[:, 2] % 2**16 for part in found])
        rows = self.rows()
        self.call("rescore_large_k", rows, centers, k, *lists_of, room, lists, self.stopped)
        assert (lengths <= room).all()
        every = np.array((changes.ctypes.data, lengths.ctypes.data, room, 2, 0), LISTS)
        n_reassigned = self.move_segments(rows, every, lists, ambiguous)
        return len(self.candidates), n_reassigned
