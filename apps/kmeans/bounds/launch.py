"""Rows that an iteration of the fused engine leaves out, as their nearest center cannot have changed; see state.cuh.

    screen (bounds/state.cuh) → what scores the rows that it listed, or all with their expiries; or all without

Which of them does the work is decided on the GPU, iteration by iteration; the others return at once.
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
from tsapps.kernels.arrays import address, to_host
from tsapps.kernels.gemm import Gemm
from tsapps.kernels.plan.mma import MmaPlan
from tsapps.kernels.problem import Problem
from tsapps.kernels.runtime.launch import structure
from tsapps.kernels.runtime.machine import Launch

__all__ = ["Bounds", "ProductBounds"]

_SELECT_THREADS, _ACTIVE_THREADS = 256, 128
# Blocks a multiprocessor, as many as are resident on Hopper GPUs; and the rows that a block screens at a time.
_SELECT_BLOCKS, _ACTIVE_BLOCKS = 6, 3
_SCREENED = 8 * _SELECT_THREADS


class Bounds:
    """When the label of every row expires, and what lists the rows whose label may have.

    Parameters
    ----------
    data : DeviceData
    k : int
    listed : int
        The rows that are listed at most.
    labels : str
        The type of labels, in C++.

    Attributes
    ----------
    expiries, limits, active, state : array
        Of every row and cluster, the rows that are listed, and a `BOUNDS_STATE`; see bounds/state.cuh.
    """

    def __init__(self, data: DeviceData, k: int, listed: int, labels: str) -> None:
        n, xp = data.n_samples, data.xp
        self._machine = data.machine
        self.row_bounds, self.active = xp.empty(n, np.float32), xp.empty(listed, np.uint32)
        self._arrived = xp.zeros(1, np.uint32)
        # How far centers have moved, limits and what is known lie side by side: what begins anew is one copy.
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
        self._begun_bytes = sum(before) + FRESH_BYTES
        self._begin_limit = begin_limit(n)
        self._select_grid = (min(data.gpu.multiprocessors * _SELECT_BLOCKS, -(-n // _SCREENED)),)
        (self._select,) = load_kernels(data.machine, "bounds/state.cuh", f"select_active_rows<{labels}>")

    def begin(self) -> None:
        """Begin anew: centers are others than those that the last iteration made, and no row is safe.

        Expiries need not be reset: no row is screened before all have been given theirs.
        """
        begun = slice(self._begun_bytes)
        self._machine.copy(self._kept[begun], self._fresh[begun])

    def drift_args(self) -> Any:
        """Return what `update_centers` (update/centers.cuh) is told of bounds, a `DRIFT`."""
        kept = {"center_drift": self._center_drift, "limits": self.limits, "state": self.state}
        return structure(DRIFT, **kept, begin_limit=self._begin_limit)

    @property
    def skip_full_assign(self) -> Any:
        """On the GPU: whether what scores all rows without bounds has nothing to do, (1,), int32."""
        return self.state[SKIP_FULL_ASSIGN : SKIP_FULL_ASSIGN + 4].view(np.int32)

    def screening(self, labels: Any, stopped: Any) -> Launch:
        """Return what lists the rows that are not safe; if `stopped` is set, nothing is to be done."""
        screened = self.row_bounds, labels, np.int64(len(self.row_bounds)), self.limits
        listed = self.active, np.uint32(len(self.active)), self.state, self._arrived, stopped
        return self._machine.bind(self._select, self._select_grid, (_SELECT_THREADS,), (*screened, *listed))

    def read_state(self) -> np.void:
        """Return what is known on the GPU, a `BOUNDS_STATE`; waits for it."""
        found: np.void = to_host(self.state).view(BOUNDS_STATE)[0]
        return found


class ProductBounds(Bounds):
    """Bounds of rows that products of the core give their labels, from X's copy.

    Parameters
    ----------
    data : DeviceData
    plan : MmaPlan
        Of the product of all rows.
    problem : Problem
        That product.
    lists, room : int
        Lists that rows join whose labels change or are not sure, and the rows that each has room for.
    """

    def __init__(self, data: DeviceData, plan: MmaPlan, problem: Problem, lists: int, room: int) -> None:
        super().__init__(data, problem.w, most_listed(problem.m, lists, room), "int")
        self._assign_active_grid = lists, max(1, data.gpu.multiprocessors * _ACTIVE_BLOCKS // lists)
        (self._assign_active,) = load_kernels(
            data.machine, "bounds/assign.cuh", f"assign_active_rows<{-(-problem.w // 8)}>"
        )
        self._assign_bounded = Gemm(plan, problem, data.machine, BOUNDED_EPILOGUE)

    def bind(
        self, half_copy: Any, centers_half: Any, nearest: dict[str, Any], labels: Any, stopped: Any
    ) -> list[Launch]:
        """Return what lists the rows whose labels change or are not sure, where bounds have a part in that.

        Parameters
        ----------
        half_copy, centers_half : array of float16
            Rows and centers.
        nearest : dict
            The fields of an `ARGMIN`.
        labels : array of shape (n,), int32
        stopped : array
            If set, nothing is to be done.
        """
        kept = {"row_bounds": self.row_bounds, "limits": self.limits, "state": self.state}
        bounded = structure(BOUNDED, **nearest, **kept)
        examined = half_copy, centers_half, np.int32(half_copy.shape[1]), self.active, bounded
        return [
            self.screening(labels, stopped),
            self._machine.bind(self._assign_active, self._assign_active_grid, (_ACTIVE_THREADS,), examined),
            self._assign_bounded.bind(address(half_copy), address(centers_half), bounded),
        ]
