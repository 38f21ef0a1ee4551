"""Assignment with Hamerly bounds: launches that skip rows whose label cannot change; see state.cuh.

    select active rows (bounds/state.cuh) → label the active rows
                                          or label all rows and compute a bound for each row
                                          or label all rows without bounds

Every iteration launches all four kernels. A flag on the GPU selects which kernel labels the rows; the other labeling
kernels return at once.
"""

from typing import Any

import numpy as np

from tsapps.apps.kmeans.bounds.plan import (
    BOUNDED,
    BOUNDED_EPILOGUE,
    BOUNDS_STATE,
    DRIFT,
    FRESH_BYTES,
    SKIP_FULL_ASSIGN,
    begin_limit,
    fresh_bounds_state,
    most_listed,
)
from tsapps.apps.kmeans.data.device_data import DeviceData
from tsapps.apps.kmeans.data.load import load_kernels
from tsapps.apps.kmeans.data.plan import grid_of_lists
from tsapps.kernels.arrays import address, to_host
from tsapps.kernels.gemm import Gemm
from tsapps.kernels.plan.mma import MmaPlan
from tsapps.kernels.problem import Problem
from tsapps.kernels.runtime.launch import structure
from tsapps.kernels.runtime.machine import Launch

__all__ = ["Bounds", "ProductBounds"]

_SELECT_THREADS, _ACTIVE_THREADS = 256, 128
# Blocks per multiprocessor: the number that is resident on Hopper GPUs.
_SELECT_BLOCKS, _ACTIVE_BLOCKS = 6, 3
_SELECTED_ROWS = 8 * _SELECT_THREADS  # number of rows that a block tests at a time


class Bounds:
    """Row bounds, drift of the centers, and the launch that lists the active rows; see bounds/state.cuh.

    Parameters
    ----------
    data : DeviceData
    k : int
    listed : int
        Capacity of the list of active rows.
    labels : str
        C++ type of the labels.

    Attributes
    ----------
    row_bounds : array of shape (n,), float32
        For each row, the limit of center drift up to which its label is certainly correct.
    limits : array of shape (k,), float32
        Drift so far, per center. A row with label a is active unless its row bound exceeds ``limits[a]``.
    active : array of shape (listed,), uint32
        Indices of the active rows.
    state : array of uint8
        The bytes of a `BOUNDS_STATE`.
    """

    def __init__(self, data: DeviceData, k: int, listed: int, labels: str) -> None:
        n, xp = data.n_samples, data.xp
        self._machine = data.machine
        self.row_bounds, self.active = xp.empty(n, np.float32), xp.empty(listed, np.uint32)
        self._arrived = xp.zeros(1, np.uint32)
        # Drifts, limits (an even number of float32) and the state are contiguous, so that one copy resets them.
        before = 8 * k, 4 * (k + k % 2)
        fresh = np.zeros(sum(before) + BOUNDS_STATE.itemsize, np.uint8)
        fresh[sum(before) :] = fresh_bounds_state().reshape(1).view(np.uint8)
        self._fresh = xp.asarray(fresh)
        self._kept = self._fresh.copy()
        self._center_drift, self.limits = (
            self._kept[: before[0]].view(np.float64),
            self._kept[before[0] :][: 4 * k].view("f4"),
        )
        self.state = self._kept[sum(before) :]
        self._reset_bytes = sum(before) + FRESH_BYTES
        self._begin_limit = begin_limit(data.n_total)  # compared with the rows that all shards reassign
        self._select_grid = (min(data.gpu.multiprocessors * _SELECT_BLOCKS, -(-n // _SELECTED_ROWS)),)
        (self._select,) = load_kernels(data.machine, "bounds/state.cuh", f"select_active_rows<{labels}>")

    def begin(self) -> None:
        """Reset drifts, limits and state.

        Call this if the next iteration starts from other centers than those that the last iteration computed. Row
        bounds need no reset: a pass over all rows writes them before any row is tested.
        """
        reset = slice(self._reset_bytes)
        self._machine.copy(self._kept[reset], self._fresh[reset])

    def drift_args(self) -> Any:
        """Return the `DRIFT` argument of `update_centers` (update/centers.cuh)."""
        kept = {"center_drift": self._center_drift, "limits": self.limits, "state": self.state}
        return structure(DRIFT, **kept, begin_limit=self._begin_limit)

    @property
    def skip_full_assign(self) -> Any:
        """Flag on the GPU, (1,), int32: if it is set, the kernel that labels all rows without bounds does nothing."""
        return self.state[SKIP_FULL_ASSIGN : SKIP_FULL_ASSIGN + 4].view(np.int32)

    def bind_select(self, labels: Any, stopped: Any) -> Launch:
        """Return the launch that lists the active rows in `active`. On the GPU, it does nothing if `stopped` is set."""
        tested = self.row_bounds, labels, np.int64(len(self.row_bounds)), self.limits
        listed = self.active, np.uint32(len(self.active)), self.state, self._arrived, stopped
        return self._machine.bind(self._select, self._select_grid, (_SELECT_THREADS,), (*tested, *listed))

    def read_state(self) -> np.void:
        """Wait for the work on the current stream, and return a copy of the `BOUNDS_STATE` on the GPU."""
        found: np.void = to_host(self.state).view(BOUNDS_STATE)[0]
        return found


class ProductBounds(Bounds):
    """Bounds for small k: row bounds and the launches that label rows by GEMMs on the half-precision copy of X.

    Parameters
    ----------
    data : DeviceData
    plan : MmaPlan
        Plan of the GEMM that labels all rows.
    problem : Problem
        Sizes and layouts of this GEMM.
    lists : int
        Number of lists to which the launches append ambiguous and reassigned rows.
    capacity : int
        Maximum number of rows per list.
    """

    def __init__(self, data: DeviceData, plan: MmaPlan, problem: Problem, lists: int, capacity: int) -> None:
        super().__init__(data, problem.w, most_listed(problem.m, lists, capacity), "int")
        self._assign_active_grid = grid_of_lists(data.gpu.multiprocessors, lists, _ACTIVE_BLOCKS)
        (self._assign_active,) = load_kernels(
            data.machine, "bounds/assign.cuh", f"assign_active_rows<{-(-problem.w // 8)}>"
        )
        self._assign_bounded = Gemm(plan, problem, data.machine, BOUNDED_EPILOGUE)

    def bind(
        self, half_copy: Any, centers_half: Any, nearest: dict[str, Any], labels: Any, stopped: Any
    ) -> list[Launch]:
        """Return three launches of an iteration, bound to the given arrays.

        The first launch selects the active rows. The second labels only these rows. The third labels all rows. The
        second and third launch also write a bound for each row that they label. They append ambiguous and reassigned
        rows to the lists of `nearest`, as the GEMM without bounds does.

        Parameters
        ----------
        half_copy : array of shape (n, width), float16
            Half-precision copy of X, row-major.
        centers_half : array of float16
            Centers; see `IterationBuffers`.
        nearest : dict
            The fields of an `ARGMIN`: arguments of the arg-min epilogue, with the addresses of the lists.
        labels : array of shape (n,), int32
            The label of each row before this iteration.
        stopped : array of shape (1,)
            Flag on the GPU: if it is set, the launches do nothing.
        """
        kept = {"row_bounds": self.row_bounds, "limits": self.limits, "state": self.state}
        bounded = structure(BOUNDED, **nearest, **kept)
        active = half_copy, centers_half, np.int32(half_copy.shape[1]), self.active, bounded
        return [
            self.bind_select(labels, stopped),
            self._machine.bind(self._assign_active, self._assign_active_grid, (_ACTIVE_THREADS,), active),
            self._assign_bounded.bind(address(half_copy), address(centers_half), bounded),
        ]
