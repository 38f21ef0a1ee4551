"""The step of the fused engine for many clusters.

    assign/large_k.cuh on gemm_wgmma_streamed.cuh → assign/rescore_large_k.cuh → rows that change → update/centers.cuh

Centers stream by, and the product is bound by the tensor cores.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import cupy
import numpy as np

from tsapps.apps.kmeans.assign.large_k_plan import StreamPlan
from tsapps.apps.kmeans.assign.plan import (
    AMBIGUOUS_LARGE_K_BYTES,
    LISTS,
    REASSIGNMENT_BYTES,
    STREAMED_ARGMIN,
    tensor_error,
)
from tsapps.apps.kmeans.data.half_copy import HalfCopy, load_kernels, types_of
from tsapps.apps.kmeans.engines.device_step import RESCORE_BLOCKS, RESCORE_THREADS, Step
from tsapps.apps.kmeans.update.launch import Segments, grid_of_lists
from tsapps.kernels.jit.kernel import Kernel
from tsapps.kernels.runtime.launch import DependentLaunch

if TYPE_CHECKING:
    from tsapps.apps.kmeans.engines.fused import FusedEngine

__all__ = ["LargeKStep"]


@cache
def _streamed(plan: StreamPlan, device: int) -> Kernel:
    """Return the kernel of a plan, for a GPU."""
    headers = "kernels/tsm2/gemm_wgmma_streamed.cuh", "apps/kmeans/assign/large_k.cuh"
    source = "".join(f'#include "{header}"\n' for header in headers)
    kernel = Kernel(source, [plan.kernel], plan.kernel, device)
    kernel.max_dynamic_shared_size_bytes = plan.shared_bytes
    return kernel


class LargeKStep(Step):
    """A step for any number of clusters, on Hopper GPUs."""

    def __init__(self, engine: FusedEngine, half_copy: HalfCopy, plan: StreamPlan, k: int) -> None:
        self.columns = plan.columns
        super().__init__(engine, half_copy.placement, k)
        self._half_copy = half_copy
        n = engine.n_samples
        self._plan, self._product = plan, _streamed(plan, engine.gpu_index)
        blocks = self._blocks = plan.blocks(n, engine.gpu.multiprocessors)
        self._capacity = plan.capacity(n, blocks)
        self._changes = cupy.empty(blocks * self._capacity * REASSIGNMENT_BYTES, np.uint8)
        # Once they are decided, their place is for what segments have.
        self._ambiguous = cupy.empty(blocks * self._capacity * AMBIGUOUS_LARGE_K_BYTES, np.uint8)
        self._lengths = cupy.empty((blocks, 2), np.uint32)
        self._rescore_grid = grid_of_lists(engine, blocks, RESCORE_BLOCKS)
        (self._rescore,) = load_kernels(engine, "assign/rescore_large_k.cuh", f"rescore_large_k<{types_of(engine)}>")
        self._segments = Segments(self, "Reassignment", blocks, self._ambiguous)

    def _bind_rows(self, centers: Any) -> list[Callable[[], None]]:
        engine, half_copy, plan, k = self.engine, self._half_copy, self._plan, np.int32(self.k)
        n, d = engine.source.shape
        lists = self._changes, self._ambiguous, self._lengths
        pointers = self._center_stats, half_copy.norms, engine.labels, *lists, self.stopped
        addresses = (one.data.ptr for one in pointers)
        nearest = np.array((*addresses, self._capacity, n, tensor_error(d), half_copy.rounding, 0), STREAMED_ARGMIN)[()]
        tiles = -(-n // plan.ROWS), self._n_columns // plan.columns
        product = half_copy.rows, self._centers_half, *map(np.int32, tiles), nearest
        rows, room = self.rows(), np.int64(self._capacity)
        certified = rows, centers, k, *lists, room, self.stopped
        every = np.array((self._changes.data.ptr, self._lengths.data.ptr, self._capacity, 2, 0), LISTS)[()]
        return [
            DependentLaunch(self._product, (self._blocks,), (plan.threads,), product, plan.shared_bytes),
            DependentLaunch(self._rescore, self._rescore_grid, (RESCORE_THREADS,), certified),
            *self._segments.bind(self, every),
        ]
