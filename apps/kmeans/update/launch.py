"""Launches of the update: of the cluster sums by reassigned rows, and of the centers.

A segmented sum sorts the rows first; a scatter-add, for small k, and `AddReassigned`, for large k, take them in any
order. All give the same bits.
"""

from typing import Any

import numpy as np

from tsapps.apps.kmeans.bounds.plan import DRIFT
from tsapps.apps.kmeans.data.device_data import DeviceData
from tsapps.apps.kmeans.data.load import load_kernels, types_of
from tsapps.apps.kmeans.data.plan import grid_of_lists, log2_lanes
from tsapps.apps.kmeans.update.buffers import IterationBuffers, Layout
from tsapps.apps.kmeans.update.fixed_point import Integers, columns_of_block
from tsapps.apps.kmeans.update.plan import COLUMN_ORDER, HALF_CENTERS, SEGMENTS, UPDATE_CENTERS, segments_plan
from tsapps.kernels.arrays import address
from tsapps.kernels.runtime.launch import structure
from tsapps.kernels.runtime.machine import Launch

__all__ = ["AddReassigned", "ScatterAdd", "SegmentedSum", "update_args"]

# Number of threads per block.
_SCATTER_THREADS, _SORT_THREADS, _SEGMENT_THREADS, _ADD_THREADS = 512, 512, 256, 256
# Number of resident blocks per multiprocessor.
_SCATTER_BLOCKS, _SORT_BLOCKS, _ADD_BLOCKS = 2, 2, 8


def update_args(
    data: DeviceData, k: int, layout: Layout, buffers: IterationBuffers, *, starts_early: bool, certifies: bool
) -> Any:
    """Return the `UPDATE_CENTERS` argument of the kernels of update/centers.cuh.

    The fields that differ between launches are zero: `centers`, `next`, `outcome`, `order`, `drift`, `tolerance` and
    `relocates`.
    """
    placement, n_columns, coefficients = layout.placement, layout.columns_of(k), layout.error_coefficients
    of_norm, of_lost = coefficients or (0, 0)
    of_centers = "units", "found", "offsets", "center_stats"
    of_run = "arrived", "counts", "stopped", "empty"
    centers_half = structure(
        HALF_CENTERS,
        to=buffers.centers_half,
        padded=placement.padded,
        panels=placement.panels,
        height=layout.columns,
        second=n_columns if layout.parts > 1 else 0,
        split=placement.split,
        each=placement.each,
    )
    return structure(
        UPDATE_CENTERS,
        **{name: getattr(buffers, name) for name in (*of_centers, *of_run)},
        sums=buffers.total_sums,
        n_reassigned=buffers.total_reassigned,
        centers=None,
        next=None,
        outcome=None,
        error_coefficients=None if coefficients is None else buffers.offsets[n_columns:],
        centers_half=centers_half,
        order=np.zeros((), COLUMN_ORDER)[()],
        drift=np.zeros((), DRIFT)[()],
        tolerance=0,
        k=k,
        d=data.n_features,
        lists=layout.lists,
        scale=placement.scale,
        norm_limit=placement.norm_limit,
        of_norm=of_norm,
        of_lost=of_lost,
        lets_begin=starts_early,
        certifies=certifies,
        relocates=0,
    )


class SegmentedSum:
    """Update of the cluster sums by sorted reassigned rows (sort_reassigned.cuh, segmented_sum.cuh): three launches.

    Parameters
    ----------
    data : DeviceData
    k : int
    digits : {2, 3}
        Number of limbs per element of the fixed-point sums.
    item : {"AmbiguousRow", "Reassignment"}
        C++ class of the items of the lists. An `AmbiguousRow` is sorted once, by the pair of its old and new cluster. A
        `Reassignment` is sorted twice: by the cluster that the row leaves, and by the cluster that it joins.
    lists : int
        Number of lists of reassigned rows.
    places : array
        Memory for the sorted row indices; each index takes `PLACE_BYTES`.
    """

    def __init__(self, data: DeviceData, k: int, digits: int, item: str, lists: int, places: Any) -> None:
        self._places = places
        bits, number = (
            ((k - 1).bit_length(), (k + 1) << (k - 1).bit_length()) if item == "AmbiguousRow" else (-1, 2 * k)
        )
        self._segments = structure(SEGMENTS, k=k, bits=bits)
        self._machine, xp = data.machine, data.xp
        self._counts, self._begins = xp.zeros(number, np.uint32), xp.empty(number, np.uint32)
        # Number of blocks that arrived; number of sorted row indices.
        self._arrived, self._all = xp.zeros(1, np.uint32), xp.empty(1, np.uint32)
        self._list_grid = grid_of_lists(data.gpu.multiprocessors, lists, _SORT_BLOCKS)
        X, weighted = data.rows_on_gpu, data.sample_weight is not None
        plan = segments_plan(X.itemsize, data.n_features, address(X), digits, weighted=weighted)
        self._add_grid = (data.gpu.multiprocessors * plan.blocks,)
        names = f"count_reassigned<kmeans::{item}>", f"sort_reassigned<kmeans::{item}>"
        self._count, self._sort = load_kernels(data.machine, "update/sort_reassigned.cuh", *names)
        add = f"segmented_sum<{types_of(X, data.dtype)}, {digits}, {str(weighted).lower()}, {plan.arguments}>"
        (self._add,) = load_kernels(data.machine, "update/segmented_sum.cuh", add)

    def bind(self, buffers: IterationBuffers, lists: Any) -> list[Launch]:
        """Return three launches: count the rows of each segment, sort the rows, and add them to the sums.

        `lists` is a `LISTS`, which describes the lists of reassigned rows.
        """
        segments, stopped, bind = self._segments, buffers.stopped, self._machine.bind
        state = self._counts, self._begins, self._arrived, self._all
        counted = buffers.labels, *state, buffers.n_reassigned, stopped
        to_places = lists, segments, self._begins, self._places, stopped
        sorted_rows = segments, self._places, self._begins, self._all
        added = buffers.rows, buffers.scales, *sorted_rows, buffers.sums, stopped
        return [
            bind(self._count, self._list_grid, (_SORT_THREADS,), (lists, segments, *counted)),
            bind(self._sort, self._list_grid, (_SORT_THREADS,), to_places),
            bind(self._add, self._add_grid, (_SEGMENT_THREADS,), added),
        ]


class AddReassigned:
    """Update of the cluster sums by lists of `Reassignment`, row by row, in one launch (update/add_reassigned.cuh).

    Parameters
    ----------
    data : DeviceData
    digits : {2, 3}
        Number of limbs per element of the fixed-point sums.
    lists : int
        Number of lists.
    """

    def __init__(self, data: DeviceData, digits: int, lists: int) -> None:
        self._machine, self._lanes = data.machine, np.int32(log2_lanes(data.n_features + 1))
        self._grid = grid_of_lists(data.gpu.multiprocessors, lists, _ADD_BLOCKS)
        weighted = str(data.sample_weight is not None).lower()
        name = f"add_reassigned<{types_of(data.rows_on_gpu, data.dtype)}, {digits}, {weighted}>"
        (self._add,) = load_kernels(data.machine, "update/add_reassigned.cuh", name)

    def bind(self, buffers: IterationBuffers, lists: Any) -> Launch:
        """Return the launch that updates labels and sums by the rows of `lists`, a `LISTS`."""
        state = buffers.labels, buffers.sums, buffers.n_reassigned, buffers.stopped
        arguments = buffers.rows, buffers.scales, self._lanes, lists, *state
        return self._machine.bind(self._add, self._grid, (_ADD_THREADS,), arguments)


class ScatterAdd:
    """Update of the cluster sums by unsorted reassigned rows, in one launch (update/scatter_add.cuh).

    Parameters
    ----------
    data : DeviceData
    k : int
    sums : Integers
        Fixed-point format of the sums.
    lists : int
        Number of lists of `AmbiguousRow`.
    """

    def __init__(self, data: DeviceData, k: int, sums: Integers, lists: int) -> None:
        self._machine = data.machine
        columns, chunks = columns_of_block(data.n_features, k, sums.digits)
        parts = -(-data.gpu.multiprocessors * _SCATTER_BLOCKS // (lists * chunks))
        self._grid = lists, max(1, parts), chunks
        self._sizes = np.int32(k), np.int32(columns), np.int32(log2_lanes(min(data.n_features, columns)))
        self._shared_bytes = sums.shared_bytes
        weighted = str(data.sample_weight is not None).lower()
        name = f"scatter_add<{types_of(data.rows_on_gpu, data.dtype)}, {sums.digits}, {weighted}>"
        (self._scatter_add,) = load_kernels(data.machine, "update/scatter_add.cuh", name)
        self._scatter_add.max_dynamic_shared_size_bytes = self._shared_bytes

    def bind(self, buffers: IterationBuffers, lists: Any) -> Launch:
        """Return the launch that updates the sums by the reassigned rows of `lists`.

        `lists` is (entries, lengths, capacity): the memory of all lists, the length of each list, and the maximum
        number of entries per list.
        """
        state = buffers.labels, buffers.sums, buffers.n_reassigned, buffers.stopped
        arguments = buffers.rows, buffers.scales, *self._sizes, *lists, *state
        return self._machine.bind(self._scatter_add, self._grid, (_SCATTER_THREADS,), arguments, self._shared_bytes)
