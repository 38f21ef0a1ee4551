"""Lloyd step for large k (k > 64): a compute-bound tensor-core GEMM.

    assign/large_k.cuh, the epilogue of gemm_wgmma_streamed.cuh, of gemm_mma_streamed.cuh without wgmma, or for few
    features of gemm_wgmma_resident.cuh
    → assign/center_distances.cuh → assign/rescore_by_pivot.cuh (large problems)
    → assign/rescore_large_k.cuh → sums of reassigned rows → update/centers.cuh

If few rows are reassigned (`sorts_lists`), update/add_reassigned.cuh adds them to the cluster sums. Otherwise
update/sort_reassigned.cuh sorts them by cluster for update/segmented_sum.cuh. The two methods give the same bits.
The step supports smaller k too, but `select_step` selects it only if the centers do not stay in shared memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from tsapps.apps.kmeans.assign.large_k_plan import ONE_PRODUCT, WINDOW, ResidentPlan, StreamPlan, depth_of
from tsapps.apps.kmeans.assign.pivots import Pivots
from tsapps.apps.kmeans.assign.plan import (
    AMBIGUOUS_LARGE_K_BYTES,
    LARGE_K_ARGMIN,
    REASSIGNMENT_BYTES,
    tensor_error,
    tile_coefficients,
)
from tsapps.apps.kmeans.data.device_data import DeviceData
from tsapps.apps.kmeans.data.load import load_kernels, pointer, types_of
from tsapps.apps.kmeans.data.plan import CENTER_THREADS, grid_of_lists, lanes_of_row
from tsapps.apps.kmeans.data.split_operand import SplitOperand
from tsapps.apps.kmeans.engines.device_step import RESCORE_BLOCKS, RESCORE_THREADS, DeviceStep
from tsapps.apps.kmeans.update.buffers import ColumnOrderBuffers, IterationBuffers, Layout
from tsapps.apps.kmeans.update.launch import AddReassigned, SegmentedSum
from tsapps.apps.kmeans.update.plan import COLUMN_ORDER, LISTS, sorts_lists
from tsapps.kernels.arrays import address
from tsapps.kernels.runtime.launch import structure
from tsapps.kernels.runtime.machine import Launch

__all__ = ["LargeKStep"]

_INCLUDE = '#include "{}.cuh"\n'.format
_RESIDENT = "".join(
    map(_INCLUDE, ("kernels/tsm2/gemm_wgmma_resident", "apps/kmeans/assign/large_k", "apps/kmeans/assign/split_rows"))
)
# Minimum n · d · k for which columns are sorted by the norms of the new centers. Below, columns are in the order of the
# norms of the previous centers: the launch would take more time than tighter error bounds save.
_LEAST_SORTED = 1 << 36
# kRescoredRows of assign/rescore_large_k.cuh, and the shared memory of a block of any GPU without special request.
_RESCORED_ROWS, _MOST_SHARED_BYTES = 8, 32 * 1024


class _Window(NamedTuple):
    """Consecutive rows that are labelled together, before the lists of the next window replace theirs.

    Attributes
    ----------
    rows : slice
    buffers : IterationBuffers
        The buffers of the step, with the rows and labels of this window.
    lengths : array of shape (blocks, 3), uint32
        The `Lengths` of every block's lists.
    """

    rows: slice
    buffers: IterationBuffers
    lengths: Any


class LargeKStep(DeviceStep):
    """Lloyd step for large k, without Hamerly bounds.

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
            source = _INCLUDE(f"kernels/tsm2/{plan.NAME}") + _INCLUDE("apps/kmeans/assign/large_k")
            name = plan.kernel
        self._operand = operand
        self._coefficients = tile_coefficients(self._depth, float(operand.rounding), levels=plan.levels)
        layout = Layout(operand.placement, plan.columns)
        self._order = ColumnOrderBuffers.allocated(data.xp, k, layout, sorts=plan.sorts)
        super().__init__(data, k, layout, bounds=False, certifies=certifies)
        gpu, most = data.gpu, min(data.n_samples, WINDOW)
        self._plan = plan
        (self._product,) = data.machine.kernels(source, name)
        self._product.max_dynamic_shared_size_bytes = plan.shared_bytes
        blocks = self._blocks = plan.blocks(most, gpu.multiprocessors)
        self._capacity = plan.capacity(most, blocks)
        self._changes = data.xp.empty(blocks * self._capacity * REASSIGNMENT_BYTES, np.uint8)
        # Lists of ambiguous rows. After rescoring, `SegmentedSum` reuses this memory for the sorted row indices.
        self._ambiguous = data.xp.empty(blocks * self._capacity * AMBIGUOUS_LARGE_K_BYTES[plan.candidates], np.uint8)
        starts = range(0, data.n_samples, WINDOW)
        self._lengths = data.xp.empty((len(starts), blocks, 3), np.uint32)
        self._windows = [self._window(start, lengths) for start, lengths in zip(starts, self._lengths, strict=True)]
        # A block compares several rows with all centers at a time, if shared memory holds them in float32.
        shared_bytes = 4 * _RESCORED_ROWS * data.n_features
        self._together = data.dtype == np.float32 and shared_bytes <= _MOST_SHARED_BYTES
        self._rescore_shared_bytes = shared_bytes if self._together else 0
        self._pivots = Pivots(data, k, blocks, plan.candidates) if Pivots.serves(data, k) else None
        self._rescore_grid = grid_of_lists(gpu.multiprocessors, blocks, RESCORE_BLOCKS)
        lanes = lanes_of_row(data.n_features, data.dtype)
        # The launches of `_bind_rescore` for each window, by the address of the centers.
        self._rescoring: dict[int, Sequence[Sequence[Launch]]] = {}
        name = f"rescore_large_k<{types_of(data.rows_on_gpu, data.dtype)}, {plan.candidates}, {lanes}>"
        (self._rescore,) = load_kernels(data.machine, "assign/rescore_large_k.cuh", name)
        self._add = AddReassigned(data, self.integers.digits, blocks)
        self._segments = SegmentedSum(data, k, self.integers.digits, "Reassignment", blocks, self._ambiguous)

    def ambiguous_counts(self) -> Any:
        """Return the numbers of ambiguous rows that the product listed; see `Step.ambiguous_counts`."""
        return self._lengths[..., 1:].sum(axis=(0, 1))

    def _window(self, start: int, lengths: Any) -> _Window:
        """Return the window that begins at row `start`; see `_Window` for `lengths`."""
        rows = slice(start, start + WINDOW)
        buffers = replace(self.buffers, rows=self.data.rows_argument(rows), labels=self.labels[rows])
        return _Window(rows, buffers, lengths)

    def _bind_prepare(self) -> Iterator[Callable[[], None]]:
        yield from super()._bind_prepare()
        yield self._bind_sort(0)

    def _bind_next(self, index: int) -> Iterable[Callable[[], None]]:
        data = self.data
        sorts = self._plan.sorts and data.n_samples * data.n_features * self.k >= _LEAST_SORTED
        # Equal rows that move to empty clusters make equal centers, which this launch excludes.
        return [self._bind_sort(index)] if sorts or self._relocates else ()

    def _bind_sort(self, index: int) -> Launch:
        """Return the launch that sorts the columns of the float16 centers by the norms of `buffers.centers[index]`."""
        arguments = self.buffers.centers[index], self._update_args(index, 0, 0.0), np.bool_(True)
        return self.data.machine.bind(self._prepare, (self.k,), (CENTER_THREADS,), arguments)

    @cached_property
    def _order_args(self) -> Sequence[Any]:
        order, coefficients = self._order, self._coefficients._asdict()
        kept = {"columns": order.columns, "centers": order.centers, "tile_bounds": order.tile_bounds}
        return [
            structure(COLUMN_ORDER, norms=now, next_norms=following, **kept, **coefficients)
            for now, following in (order.norms, order.norms[::-1])
        ]

    def _bind_rows(self, centers: Any) -> Iterator[Callable[[], None]]:
        for index, product in enumerate(self._bound_products):
            yield product
            yield from self._bound_rescoring(centers)[index]
            yield from (self._bound_sorting if self._sorts else self._bound_addition)[index]

    def _bound_rescoring(self, centers: Any) -> Sequence[Sequence[Launch]]:
        """For each window, the launches that rescore ambiguous rows."""
        found = self._rescoring.get(address(centers))
        if found is None:
            found = self._rescoring[address(centers)] = [self._bind_rescore(each, centers) for each in self._windows]
        return found

    def _bind_rescore(self, window: _Window, centers: Any) -> Sequence[Launch]:
        """Return the launches that rescore the ambiguous rows of a window."""
        machine, stopped = self.data.machine, self.buffers.stopped
        items = self._ambiguous, window.lengths, np.int64(self._capacity), stopped
        order = pointer(self._order.centers), np.int32(self.k)
        given = window.buffers.rows, centers, *order, self._changes, *items, np.bool_(self._together)
        grid, shared_bytes = self._rescore_grid, self._rescore_shared_bytes
        rescore = machine.bind(self._rescore, grid, (RESCORE_THREADS,), given, shared_bytes)
        if self._pivots is None:
            return [rescore]
        return [*self._pivots.bind(window.buffers.rows, centers, *items), rescore]

    @property
    def _sorts(self) -> bool:
        return sorts_lists(self._expected_reassigned // len(self._windows), self.data.n_features)

    @cached_property
    def _bound_sorting(self) -> Sequence[Sequence[Launch]]:
        """For each window, the launches that update the running sums by sorted rows."""
        return [self._segments.bind(window.buffers, self._reassigned(window)) for window in self._windows]

    @cached_property
    def _bound_addition(self) -> Sequence[Sequence[Launch]]:
        """For each window, the launch that updates the running sums by rows in any order."""
        return [[self._add.bind(window.buffers, self._reassigned(window))] for window in self._windows]

    def _reassigned(self, window: _Window) -> Any:
        """Return the lists of a window's reassigned rows, a `LISTS`."""
        return structure(LISTS, items=self._changes, lengths=window.lengths, capacity=self._capacity, step=3)

    @cached_property
    def _bound_products(self) -> Sequence[Launch]:
        """For each window, the launch of the product, which reads the float16 centers of either buffer."""
        return [self._bind_product(window) for window in self._windows]

    def _bind_product(self, window: _Window) -> Launch:
        """Return the launch of the product of a window."""
        operand, plan, of, rows = self._operand, self._plan, window.buffers, window.rows
        n = len(of.labels)
        nearest = structure(
            LARGE_K_ARGMIN,
            center_stats=of.center_stats,
            tile_bounds=self._order.tile_bounds,
            centers=self._order.centers,
            norms=operand.norms[rows],
            labels=of.labels,
            changes=self._changes,
            ambiguous=self._ambiguous,
            lengths=window.lengths,
            stopped=of.stopped,
            capacity=self._capacity,
            n=n,
            tensor_error=tensor_error(self._depth),
            rounding=operand.rounding,
        )
        row_tiles, column_tiles = -(-n // plan.ROWS), np.int32(self._n_columns // plan.columns)
        given: tuple[Any, ...]
        if isinstance(operand, SplitOperand):
            given = operand.argument(rows), of.centers_half, np.int32(row_tiles), column_tiles, nearest
        else:
            product = structure(ONE_PRODUCT, row_tiles=row_tiles)
            given = operand.rows[rows], of.centers_half, product, column_tiles, nearest
        return self.data.machine.bind(self._product, (self._blocks,), (plan.threads,), given, plan.shared_bytes)
