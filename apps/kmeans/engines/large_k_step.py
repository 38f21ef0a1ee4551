"""Lloyd step for large k (k > 64) on Hopper GPUs: a compute-bound tensor-core GEMM.

    assign/large_k.cuh, the epilogue of gemm_wgmma_streamed.cuh or, for few features, of gemm_wgmma_resident.cuh
    → assign/rescore_large_k.cuh → sums of reassigned rows → update/centers.cuh

If few rows are reassigned (`sorts_lists`), update/add_reassigned.cuh adds them to the cluster sums. Otherwise
update/sort_reassigned.cuh sorts them by cluster for update/segmented_sum.cuh. The two methods give the same bits.
The step supports smaller k too, but `select_step` selects it only for k > 64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from tsapps.apps.kmeans.assign.large_k_plan import ONE_PRODUCT, ResidentPlan, StreamPlan, depth_of
from tsapps.apps.kmeans.assign.plan import (
    AMBIGUOUS_LARGE_K_BYTES,
    LARGE_K_ARGMIN,
    REASSIGNMENT_BYTES,
    tensor_error,
    tile_coefficients,
)
from tsapps.apps.kmeans.data.device_data import DeviceData
from tsapps.apps.kmeans.data.load import load_kernels, pointer, types_of
from tsapps.apps.kmeans.data.plan import lanes_of_row
from tsapps.apps.kmeans.data.split_operand import SplitOperand
from tsapps.apps.kmeans.engines.device_step import CENTER_THREADS, RESCORE_BLOCKS, RESCORE_THREADS, DeviceStep
from tsapps.apps.kmeans.update.buffers import ColumnOrderBuffers, Layout
from tsapps.apps.kmeans.update.launch import AddReassigned, SegmentedSum, grid_of_lists
from tsapps.apps.kmeans.update.plan import COLUMN_ORDER, LISTS, sorts_lists
from tsapps.kernels.arrays import address
from tsapps.kernels.runtime.launch import structure
from tsapps.kernels.runtime.machine import Launch

__all__ = ["LargeKStep"]

_INCLUDE = '#include "{}.cuh"\n'.format
_STREAMED = _INCLUDE("kernels/tsm2/gemm_wgmma_streamed") + _INCLUDE("apps/kmeans/assign/large_k")
_RESIDENT = "".join(
    map(_INCLUDE, ("kernels/tsm2/gemm_wgmma_resident", "apps/kmeans/assign/large_k", "apps/kmeans/assign/split_rows"))
)
# Minimum n · d · k for which columns are sorted by the norms of the new centers. Below, columns are in the order of the
# norms of the previous centers: the launch would take more time than tighter error bounds save.
_LEAST_SORTED = 1 << 36
# kRescoredRows of assign/rescore_large_k.cuh, and the shared memory of a block of any GPU without special request.
_RESCORED_ROWS, _MOST_SHARED_BYTES = 8, 32 * 1024


class LargeKStep(DeviceStep):
    """Lloyd step for large k on Hopper GPUs, without Hamerly bounds.

    Parameters
    ----------
    data : DeviceData
    plan : ResidentPlan or StreamPlan
    k : int
        With a ResidentPlan, so many that no column tile is without centers.
    certifies : bool
        Whether labels are certified.
    """

    def __init__(self, data: DeviceData, plan: ResidentPlan | StreamPlan, k: int, *, certifies: bool) -> None:
        if isinstance(plan, ResidentPlan):
            operand: Any = data.split_operand(plan)
            self._depth = 16 * plan.row_panels
            source, name = _RESIDENT, plan.kernel(operand.types, aligned=operand.aligned)
        else:
            operand = data.half_copy(plan.row_panels, certifies=certifies, split=plan.split)
            self._depth = depth_of(data.n_features, split=plan.split)
            source, name = _STREAMED, plan.kernel
        self._operand = operand
        self._coefficients = tile_coefficients(self._depth, float(operand.rounding), levels=plan.levels)
        layout = Layout(operand.placement, plan.columns)
        self._order = ColumnOrderBuffers.allocated(data.xp, k, layout, sorts=isinstance(plan, StreamPlan))
        super().__init__(data, k, layout, bounds=False, certifies=certifies)
        n, gpu = data.n_samples, data.gpu
        self._plan = plan
        (self._product,) = data.machine.kernels(source, name)
        self._product.max_dynamic_shared_size_bytes = plan.shared_bytes
        blocks = self._blocks = plan.blocks(n, gpu.multiprocessors)
        self._capacity = plan.capacity(n, blocks)
        self._changes = data.xp.empty(blocks * self._capacity * REASSIGNMENT_BYTES, np.uint8)
        # Lists of ambiguous rows. After rescoring, `SegmentedSum` reuses this memory for the sorted row indices.
        self._ambiguous = data.xp.empty(blocks * self._capacity * AMBIGUOUS_LARGE_K_BYTES[plan.candidates], np.uint8)
        self._lengths = data.xp.empty((blocks, 3), np.uint32)
        # A block compares several rows with all centers at a time, if shared memory holds them in float32.
        shared_bytes = 4 * _RESCORED_ROWS * data.n_features
        self._together = data.dtype == np.float32 and shared_bytes <= _MOST_SHARED_BYTES
        self._rescore_shared_bytes = shared_bytes if self._together else 0
        self._rescore_grid = grid_of_lists(gpu.multiprocessors, blocks, RESCORE_BLOCKS)
        lanes = lanes_of_row(data.n_features, data.dtype)
        name = f"rescore_large_k<{types_of(data.rows_on_gpu, data.dtype)}, {plan.candidates}, {lanes}>"
        (self._rescore,) = load_kernels(data.machine, "assign/rescore_large_k.cuh", name)
        self._add = AddReassigned(data, self.integers.digits, blocks)
        self._segments = SegmentedSum(data, k, self.integers.digits, "Reassignment", blocks, self._ambiguous)

    def ambiguous_counts(self) -> Any:
        """Return the numbers of ambiguous rows that the product listed; see `Step.ambiguous_counts`."""
        return self._lengths[:, 1:].sum(axis=0)

    def _bind_prepare(self) -> Sequence[Callable[[], None]]:
        return [*super()._bind_prepare(), self._bind_sort(0)]

    def _bind_iteration(self, now: int, slot: int, tol: float) -> Sequence[Callable[[], None]]:
        launches = [*super()._bind_iteration(now, slot, tol)]
        data = self.data
        if data.n_samples * data.n_features * self.k >= _LEAST_SORTED:
            launches.append(self._bind_sort(1 - now))
        return launches

    def _bind_sort(self, index: int) -> Launch:
        """Return the launch that sorts the columns of the float16 centers by the norms of `buffers.centers[index]`."""
        arguments = self.buffers.centers[index], self._update_args(index, 0, 0.0), np.bool_(True)
        return self.data.machine.bind(self._prepare, (self.k,), (CENTER_THREADS,), arguments)

    def _order_args(self, now: int) -> Any:
        order = self._order
        return structure(
            COLUMN_ORDER,
            norms=order.norms[now],
            next_norms=order.norms[1 - now],
            columns=order.columns,
            centers=order.centers,
            tile_bounds=order.tile_bounds,
            **self._coefficients._asdict(),
        )

    def _bind_rows(self, centers: Any) -> Sequence[Callable[[], None]]:
        rescore = self._bound(("rescore", address(centers)), lambda: [self._bind_rescore(centers)])
        return [self._bound_product, *rescore, *(self._bound_sorting if self._sorts else self._bound_addition)]

    def _bind_rescore(self, centers: Any) -> Launch:
        """Return the launch that rescores the ambiguous rows."""
        lists = self._changes, self._ambiguous, self._lengths
        stopped, together = self.buffers.stopped, np.bool_(self._together)
        of_centers = centers, pointer(self._order.centers), np.int32(self.k)
        given = self.buffers.rows, *of_centers, *lists, np.int64(self._capacity), stopped, together
        grid, shared_bytes = self._rescore_grid, self._rescore_shared_bytes
        return self.data.machine.bind(self._rescore, grid, (RESCORE_THREADS,), given, shared_bytes)

    @property
    def _sorts(self) -> bool:
        return sorts_lists(self._expected_reassigned, self.data.n_features)

    @cached_property
    def _bound_sorting(self) -> Sequence[Launch]:
        """The launches that update the running sums by sorted rows."""
        return self._segments.bind(self.buffers, self._reassigned)

    @cached_property
    def _bound_addition(self) -> Sequence[Launch]:
        """The launch that updates the running sums by rows in any order."""
        return [self._add.bind(self.buffers, self._reassigned)]

    @cached_property
    def _reassigned(self) -> Any:
        """The lists of reassigned rows, a `LISTS`."""
        return structure(LISTS, items=self._changes, lengths=self._lengths, capacity=self._capacity, step=3)

    @cached_property
    def _bound_product(self) -> Launch:
        """The launch of the product, which reads the float16 centers of either buffer."""
        operand, plan, of, n = self._operand, self._plan, self.buffers, self.data.n_samples
        nearest = structure(
            LARGE_K_ARGMIN,
            center_stats=of.center_stats,
            tile_bounds=self._order.tile_bounds,
            centers=self._order.centers,
            norms=operand.norms,
            labels=of.labels,
            changes=self._changes,
            ambiguous=self._ambiguous,
            lengths=self._lengths,
            stopped=of.stopped,
            capacity=self._capacity,
            n=n,
            tensor_error=tensor_error(self._depth),
            rounding=operand.rounding,
        )
        row_tiles = -(-n // plan.ROWS)
        given: tuple[Any, ...]
        if isinstance(operand, SplitOperand):
            given = operand.argument, of.centers_half, np.int32(row_tiles), nearest
        else:
            product = structure(ONE_PRODUCT, row_tiles=row_tiles)
            given = operand.rows, of.centers_half, product, np.int32(self._n_columns // plan.columns), nearest
        return self.data.machine.bind(self._product, (self._blocks,), (plan.threads,), given, plan.shared_bytes)
