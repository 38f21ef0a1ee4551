"""Lloyd steps for any k, on Hopper GPUs.

    assign/large_k.cuh on gemm_wgmma_streamed.cuh → assign/rescore_large_k.cuh → rows that change → update/centers.cuh

Centers are streamed, and the product is bound by the tensor cores.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import cupy
import numpy as np

from tsapps.apps.kmeans.assign.large_k_plan import StreamPlan
from tsapps.apps.kmeans.assign.plan import AMBIGUOUS_LARGE_K_BYTES, REASSIGNMENT_BYTES, STREAMED_ARGMIN, tensor_error
from tsapps.apps.kmeans.data.device_data import DeviceData
from tsapps.apps.kmeans.data.load import load_kernels, types_of
from tsapps.apps.kmeans.engines.device_step import RESCORE_BLOCKS, RESCORE_THREADS, DeviceStep
from tsapps.apps.kmeans.update.buffers import Layout
from tsapps.apps.kmeans.update.launch import SegmentedSum, grid_of_lists
from tsapps.apps.kmeans.update.plan import LISTS
from tsapps.kernels.jit.kernel import Kernel
from tsapps.kernels.runtime.launch import DependentLaunch

__all__ = ["LargeKStep"]


@cache
def _streamed(plan: StreamPlan, device: int) -> Kernel:
    """Return the kernel of a plan, for a GPU."""
    headers = "kernels/tsm2/gemm_wgmma_streamed.cuh", "apps/kmeans/assign/large_k.cuh"
    source = "".join(f'#include "{header}"\n' for header in headers)
    kernel = Kernel(source, [plan.kernel], plan.kernel, device)
    kernel.max_dynamic_shared_size_bytes = plan.shared_bytes
    return kernel


class LargeKStep(DeviceStep):
    """A step for any number of clusters, on Hopper GPUs. It has no bounds."""

    def __init__(self, data: DeviceData, plan: StreamPlan, k: int, *, certifies: bool) -> None:
        half_copy = data.half_copy(plan.row_panels, certifies=certifies)
        super().__init__(data, k, Layout(half_copy.placement, plan.columns), bounds=False, certifies=certifies)
        self.half_copy = half_copy
        n, gpu = data.n_samples, data.gpu
        self._plan, self._product = plan, _streamed(plan, data.gpu_index)
        blocks = self._blocks = plan.blocks(n, gpu.multiprocessors)
        self._capacity = plan.capacity(n, blocks)
        self._changes = cupy.empty(blocks * self._capacity * REASSIGNMENT_BYTES, np.uint8)
        # Once they are rescored, their place is for what segments have.
        self._ambiguous = cupy.empty(blocks * self._capacity * AMBIGUOUS_LARGE_K_BYTES, np.uint8)
        self._lengths = cupy.empty((blocks, 2), np.uint32)
        self._rescore_grid = grid_of_lists(gpu.multiprocessors, blocks, RESCORE_BLOCKS)
        name = f"rescore_large_k<{types_of(data.rows_on_gpu, data.dtype)}>"
        (self._rescore,) = load_kernels(data.gpu_index, "assign/rescore_large_k.cuh", name)
        self._segments = SegmentedSum(data, k, self.integers.digits, "Reassignment", blocks, self._ambiguous)

    def _bind_rows(self, centers: Any) -> list[Callable[[], None]]:
        half_copy, plan, k, of = self.half_copy, self._plan, np.int32(self.k), self.buffers
        n, d = self.data.source.shape
        lists = self._changes, self._ambiguous, self._lengths
        pointers = of.center_stats, half_copy.norms, of.labels, *lists, of.stopped
        addresses = (one.data.ptr for one in pointers)
        nearest = np.array((*addresses, self._capacity, n, tensor_error(d), half_copy.rounding, 0), STREAMED_ARGMIN)[()]
        tiles = -(-n // plan.ROWS), self._n_columns // plan.columns
        product = half_copy.rows, of.centers_half, *map(np.int32, tiles), nearest
        certified = of.rows, centers, k, *lists, np.int64(self._capacity), of.stopped
        every = np.array((self._changes.data.ptr, self._lengths.data.ptr, self._capacity, 2, 0), LISTS)[()]
        return [
            DependentLaunch(self._product, (self._blocks,), (plan.threads,), product, plan.shared_bytes),
            DependentLaunch(self._rescore, self._rescore_grid, (RESCORE_THREADS,), certified),
            *self._segments.bind(of, every),
        ]
