"""How rows whose label changes are moved from sum to sum: sorted, or as they are.

Either gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import cupy
import numpy as np

from tsapps.apps.kmeans.assign.plan import SEGMENTS, columns_of_block, log2_lanes, segments_plan
from tsapps.apps.kmeans.data.half_copy import load_kernels, types_of
from tsapps.kernels.runtime.launch import DependentLaunch

if TYPE_CHECKING:
    from tsapps.apps.kmeans.engines.device_step import Step
    from tsapps.apps.kmeans.engines.fused import FusedEngine

__all__ = ["ScatterAdd", "Segments", "grid_of_lists"]

_MOVE_THREADS, _LIST_THREADS, _SEGMENT_THREADS = 512, 512, 256
# Blocks a multiprocessor, as many as are resident: of what moves rows, and of what sorts lists.
_MOVE_BLOCKS, _LIST_BLOCKS = 2, 2


def grid_of_lists(engine: FusedEngine, lists: int, blocks: int) -> tuple[int, int]:
    """Return a grid that has some blocks for each of `lists` lists, `blocks` a multiprocessor."""
    return lists, max(1, engine.gpu.multiprocessors * blocks // lists)


class Segments:
    """Moves rows of some lists from sum to sum, sorted by the clusters that they join and leave (sort_reassigned.cuh).

    `item` is the C++ class of the lists' items: each `AmbiguousRow` has one place, by the pair of its clusters, and
    each `Reassignment` two, which `places` is memory for.
    """

    def __init__(self, step: Step, item: str, lists: int, places: Any) -> None:
        engine, k = step.engine, step.k
        self._places = places
        bits, number = (
            ((k - 1).bit_length(), (k + 1) << (k - 1).bit_length()) if item == "AmbiguousRow" else (-1, 2 * k)
        )
        self._segments = np.array((k, bits), SEGMENTS)[()]
        self._counts, self._begins = cupy.zeros(number, np.uint32), cupy.empty(number, np.uint32)
        # Blocks that arrived; places in all segments.
        self._arrived, self._all = cupy.zeros(1, np.uint32), cupy.empty(1, np.uint32)
        self._list_grid = grid_of_lists(engine, lists, _LIST_BLOCKS)
        X, digits, weighted = engine.rows_on_gpu, step.integers.digits, step.weighted == "true"
        plan = segments_plan(X.itemsize, engine.n_features, X.data.ptr, digits, weighted=weighted)
        self._add_grid = (engine.gpu.multiprocessors * plan.blocks,)
        names = f"count_reassigned<kmeans::{item}>", f"sort_reassigned<kmeans::{item}>"
        self._count, self._sort = load_kernels(engine, "update/sort_reassigned.cuh", *names)
        add = f"segmented_sum<{types_of(engine)}, {digits}, {step.weighted}, {plan.arguments}>"
        (self._add,) = load_kernels(engine, "update/segmented_sum.cuh", add)

    def bind(self, step: Step, lists: Any) -> list[Callable[[], None]]:
        """Return what moves the rows of `lists`, a `LISTS`."""
        segments, stopped = self._segments, step.stopped
        counted = step.engine.labels, self._counts, self._begins, self._arrived, self._all, step.n_reassigned, stopped
        to_places = lists, segments, self._begins, self._places, stopped
        sorted_rows = segments, self._places, self._begins, self._all
        added = step.rows(), step.move_scales, *sorted_rows, step.device_sums, stopped
        return [
            DependentLaunch(self._count, self._list_grid, (_LIST_THREADS,), (lists, segments, *counted)),
            DependentLaunch(self._sort, self._list_grid, (_LIST_THREADS,), to_places),
            DependentLaunch(self._add, self._add_grid, (_SEGMENT_THREADS,), added),
        ]


class ScatterAdd:
    """Moves rows of some lists of `AmbiguousRow` from sum to sum, in one launch; see update/scatter_add.cuh."""

    def __init__(self, step: Step, lists: int) -> None:
        engine, k, sums = step.engine, step.k, step.integers
        columns, chunks = columns_of_block(engine.n_features, k, sums.digits)
        parts = -(-engine.gpu.multiprocessors * _MOVE_BLOCKS // (lists * chunks))
        self._grid = lists, max(1, parts), chunks
        self._sizes = np.int32(k), np.int32(columns), np.int32(log2_lanes(min(engine.n_features, columns)))
        self._shared_bytes = sums.shared_bytes
        name = f"scatter_add<{types_of(engine)}, {sums.digits}, {step.weighted}>"
        (self._move,) = load_kernels(engine, "update/scatter_add.cuh", name)
        self._move.max_dynamic_shared_size_bytes = self._shared_bytes

    def bind(self, step: Step, lists: Any) -> DependentLaunch:
        """Return what moves the rows of `lists`: the entries, how many each list has, and the room of one."""
        state = step.engine.labels, step.device_sums, step.n_reassigned, step.stopped
        arguments = step.rows(), step.move_scales, *self._sizes, *lists, *state
        return DependentLaunch(self._move, self._grid, (_MOVE_THREADS,), arguments, self._shared_bytes)
