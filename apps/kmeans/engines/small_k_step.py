"""Lloyd step for k <= 64: a memory-bound GEMM on the half-precision copy of X, with centers in shared memory.

    assign/small_k.cuh, the epilogue of gemm_mma.cuh
    → assign/rescore.cuh, or for long rows rescore_by_block.cuh → sums of reassigned rows → update/centers.cuh

If few rows are reassigned (`sorts_rows`), update/scatter_add.cuh adds them to the cluster sums. Otherwise
update/sort_reassigned.cuh sorts them by cluster for update/segmented_sum.cuh. The two methods give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tsapps.apps.kmeans.assign.plan import (
    AMBIGUOUS_BYTES,
    ARGMIN,
    capacity,
    epilogue_of,
    error_coefficients_of,
    half_copy_problem,
    parts_of,
    product_error,
)
from tsapps.apps.kmeans.bounds.launch import ProductBounds
from tsapps.apps.kmeans.data.device_data import DeviceData
from tsapps.apps.kmeans.data.load import load_kernels, types_of
from tsapps.apps.kmeans.data.plan import grid_of_lists, is_long, lanes_of_row
from tsapps.apps.kmeans.engines.device_step import RESCORE_BLOCKS, RESCORE_THREADS, DeviceStep
from tsapps.apps.kmeans.update.buffers import Layout
from tsapps.apps.kmeans.update.launch import ScatterAdd, SegmentedSum
from tsapps.apps.kmeans.update.plan import LISTS, MOST_PLACED, PLACE_BYTES, sorts_rows
from tsapps.kernels.arrays import address
from tsapps.kernels.gemm import Gemm, blocks_of
from tsapps.kernels.plan.mma import MmaPlan
from tsapps.kernels.runtime.launch import structure

__all__ = ["RESIDENT_BLOCKS", "SmallKStep"]

#: Blocks of rescore.cuh per multiprocessor: as many as are resident. Lists are short, so that a second wave of blocks
#: would take about as long as the first.
RESIDENT_BLOCKS = 3


class SmallKStep(DeviceStep):
    """Lloyd step for small k, up to `MOST_CLUSTERS`.

    Parameters
    ----------
    data : DeviceData
    plan : MmaPlan
    k : int
    bounds : bool
        Whether Hamerly bounds may skip rows whose label cannot change.
    certifies : bool
        Whether labels are certified.
    """

    def __init__(self, data: DeviceData, plan: MmaPlan, k: int, *, bounds: bool, certifies: bool) -> None:
        n, d = data.source.shape
        machine, parts = data.machine, parts_of(plan, k)
        problem = half_copy_problem(n, d, k, parts)
        lists = blocks_of(plan, problem, machine.gpu.multiprocessors)
        half_copy = data.half_copy(0, certifies=certifies)
        epilogue, coefficients = epilogue_of(plan, k), None
        if epilogue.name != "kmeans::ArgminEpilogue":
            coefficients = error_coefficients_of(plan, d, k, float(half_copy.rounding))
        layout = Layout(half_copy.placement, 8, parts, lists, error_coefficients=coefficients)
        super().__init__(data, k, layout, bounds=bounds, certifies=certifies)
        self.half_copy, self._plan = half_copy, plan
        self._product = Gemm(plan, problem, machine, epilogue)
        self._capacity = capacity(plan, n, lists)
        self._bounds_arguments = plan, problem, lists, self._capacity
        self._prefetch_distance = plan.teams * lists * plan.tile_m if plan.keep_b else n
        self._entries = data.xp.empty(lists * self._capacity * AMBIGUOUS_BYTES, np.uint8)
        self._scatter_add = ScatterAdd(data, k, self.integers, lists)
        self._segments: SegmentedSum | None = None
        if sorts_rows(n, d) and n <= MOST_PLACED:
            places = data.xp.empty(lists * self._capacity * PLACE_BYTES, np.uint8)
            self._segments = SegmentedSum(data, k, self.integers.digits, "AmbiguousRow", lists, places)
        types, blocks = types_of(data.rows_on_gpu, data.dtype), RESIDENT_BLOCKS
        file, name = "assign/rescore.cuh", f"rescore<{types}, {lanes_of_row(d, data.dtype)}>"
        if is_long(d, data.dtype):
            file, name, blocks = "assign/rescore_by_block.cuh", f"rescore_by_block<{types}>", RESCORE_BLOCKS
        self._rescore_grid = grid_of_lists(data.gpu.multiprocessors, lists, blocks)
        (self._rescore,) = load_kernels(machine, file, name)

    def _new_bounds(self) -> ProductBounds:
        return ProductBounds(self.data, *self._bounds_arguments)

    @property
    def _sorts(self) -> bool:
        return self._segments is not None and sorts_rows(self._expected_reassigned, self.data.n_features)

    def ambiguous_counts(self) -> Any:
        """Return the numbers of ambiguous rows that the product listed; see `Step.ambiguous_counts`."""
        xp, lengths = self.data.xp, self.buffers.counts
        # The last 8 bytes of an entry have one bit for each candidate, and none if all centers are candidates. An entry
        # with one candidate is a reassigned row with a certified label.
        candidates = self._entries.view(np.uint64).reshape(len(lengths), self._capacity, 2)[:, :, 1]
        listed = xp.arange(self._capacity) < lengths[:, np.newaxis]
        several, every = candidates & (candidates - 1) != 0, candidates == 0
        return xp.stack([(listed & several).sum(), (listed & every).sum()])

    def _bind_rows(self, centers: Any) -> Iterator[Callable[[], None]]:
        of = self.buffers
        yield from self._bound(("products", self._bounded), self._bind_products)
        lists = self._entries, of.counts, np.int64(self._capacity)
        given = of.rows, centers, np.int32(self.k), *lists, of.stopped
        yield self.data.machine.bind(self._rescore, self._rescore_grid, (RESCORE_THREADS,), given)
        yield from self._bound(("sums", self._sorts), self._bind_sums)

    def _bind_products(self) -> Iterator[Callable[[], None]]:
        """Yield the launches that list candidates; they read the float16 centers of either buffer."""
        half_copy, of = self.half_copy, self.buffers
        n, d = self.data.source.shape
        nearest = {
            "offsets": of.offsets,
            "center_stats": of.center_stats,
            "norms": half_copy.norms,
            "labels": of.labels,
            "entries": self._entries,
            "counts": of.counts,
            "stopped": of.stopped,
            "capacity": self._capacity,
            "n": n,
            "ahead": self._prefetch_distance,
            "tensor_error": product_error(self._plan, d, self.k),
            "rounding": half_copy.rounding,
        }
        if isinstance(self.bounds, ProductBounds) and self._bounded:
            yield from self.bounds.bind(half_copy.rows, of.centers_half, nearest, of.labels, of.stopped)
            nearest["stopped"] = self.bounds.skip_full_assign
        every = structure(ARGMIN, **nearest)
        yield self._product.bind(address(half_copy.rows), address(of.centers_half), every)

    def _bind_sums(self) -> Sequence[Callable[[], None]]:
        """Return the launches that update the running sums; a scatter-add and a segmented sum give the same bits."""
        of = self.buffers
        if self._segments is None or not self._sorts:
            return [self._scatter_add.bind(of, (self._entries, of.counts, np.int64(self._capacity)))]
        changes = structure(LISTS, items=self._entries, lengths=of.counts, capacity=self._capacity, step=1)
        return self._segments.bind(of, changes)
