"""The step of the fused engine for many clusters.

    assign/large_k.cuh on gemm_wgmma_streamed.cuh → assign/rescore_large_k.cuh → rows that change → update/centers.cuh

Centres stream by, and the product is bound by the tensor cores.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import cupy
import numpy as np

from tsapps.apps.kmeans.assign.large_k_plan import StreamPlan
from tsapps.apps.kmeans.assign.plan import CHANGE_BYTES, LISTS, NEAREST_OF_MANY, UNDECIDED_BYTES, tensor_error
from tsapps.apps.kmeans.data.half_copy import Shadow, load_kernels, types_of
from tsapps.apps.kmeans.engines.device_step import DECIDE_BLOCKS, DECIDE_THREADS, Step
from tsapps.apps.kmeans.update.launch import Segments, grid_of_lists
from tsapps.kernels.jit.compiler import Kernel
from tsapps.kernels.runtime.launch import OverlappingLaunch

if TYPE_CHECKING:
    from tsapps.apps.kmeans.engines.fused import FusedEngine

__all__ = ["ManyCentres"]


@cache
def _streamed(plan: StreamPlan, device: int) -> Kernel:
    """Return the kernel of a plan, for a GPU."""
    headers = "kernels/tsm2/gemm_wgmma_streamed.cuh", "apps/kmeans/assign/large_k.cuh"
    source = "".join(f'#include "{header}"\n' for header in headers)
    kernel = Kernel(source, [plan.kernel], plan.kernel, device)
    kernel.max_dynamic_shared_size_bytes = plan.shared_bytes
    return kernel


class ManyCentres(Step):
    """A step for any number of clusters, on Hopper GPUs."""

    def __init__(self, engine: FusedEngine, shadow: Shadow, plan: StreamPlan, k: int) -> None:
        self.columns = plan.columns
        super().__init__(engine, shadow.placement, k)
        self._shadow = shadow
        n = engine.n_samples
        self._plan, self._product = plan, _streamed(plan, engine.gpu_index)
        blocks = self._blocks = plan.blocks(n, engine.gpu.multiprocessors)
        self._capacity = plan.capacity(n, blocks)
        self._changes = cupy.empty(blocks * self._capacity * CHANGE_BYTES, np.uint8)
        # Once they are decided, their place is for what segments have.
        self._undecided = cupy.empty(blocks * self._capacity * UNDECIDED_BYTES, np.uint8)
        self._lengths = cupy.empty((blocks, 2), np.uint32)
        self._decide_grid = grid_of_lists(engine, blocks, DECIDE_BLOCKS)
        (self._decide,) = load_kernels(engine, "assign/rescore_large_k.cuh", f"decide_of_many<{types_of(engine)}>")
        self._segments = Segments(self, "Change", blocks, self._undecided)

    def _bind_rows(self, centers: Any) -> list[Callable[[], None]]:
        engine, shadow, plan, k = self.engine, self._shadow, self._plan, np.int32(self.k)
        n, d = engine.source.shape
        lists = self._changes, self._undecided, self._lengths
        pointers = self._extremes, shadow.norms, engine.labels, *lists, self.stopped
        addresses = (one.data.ptr for one in pointers)
        nearest = np.array((*addresses, self._capacity, n, tensor_error(d), shadow.rounding, 0), NEAREST_OF_MANY)[()]
        tiles = -(-n // plan.ROWS), self._n_columns // plan.columns
        product = shadow.rows, self._halves, *map(np.int32, tiles), nearest
        rows, room = self.rows(), np.int64(self._capacity)
        decided = rows, centers, k, *lists, room, self.stopped
        every = np.array((self._changes.data.ptr, self._lengths.data.ptr, self._capacity, 2, 0), LISTS)[()]
        return [
            OverlappingLaunch(self._product, (self._blocks,), (plan.threads,), product, plan.shared_bytes),
            OverlappingLaunch(self._decide, self._decide_grid, (DECIDE_THREADS,), decided),
            *self._segments.bind(self, every),
        ]
