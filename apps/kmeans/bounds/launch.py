"""Rows that an iteration of the fused engine leaves out, as their nearest centre cannot have changed; see state.cuh.

    screen (bounds/state.cuh) → what scores the rows that it listed, or all with their expiries; or all without

Which of them does the work is decided on the GPU, iteration by iteration; the others return at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import cupy
import numpy as np

from tsapps.apps.kmeans.assign.plan import MOTION
from tsapps.apps.kmeans.bounds.plan import (
    FRESH_BYTES,
    OTHERS,
    UNTIL,
    WATCH,
    few_moved,
    fresh_watch,
    most_listed,
)
from tsapps.apps.kmeans.data.half_copy import load_kernels
from tsapps.kernels.arrays import to_host
from tsapps.kernels.gemm import PlannedKernel
from tsapps.kernels.plan.mma import Plan
from tsapps.kernels.problem import Problem
from tsapps.kernels.runtime.launch import OverlappingLaunch

if TYPE_CHECKING:
    from tsapps.apps.kmeans.engines.fused import FusedEngine

__all__ = ["Bounds", "ProductBounds"]

_SCREEN_THREADS, _EXAMINE_THREADS = 256, 128
# Blocks a multiprocessor, as many as are resident on Hopper GPUs; and the rows that a block screens at a time.
_SCREEN_BLOCKS, _EXAMINE_BLOCKS = 6, 3
_SCREENED = 8 * _SCREEN_THREADS


class Bounds:
    """When the label of every row expires, and what lists the rows whose label may have.

    Parameters
    ----------
    engine : FusedEngine
    k : int
    listed : int
        The rows that are listed at most.
    labels : str
        The type of labels, in C++.

    Attributes
    ----------
    expiries, limits, active, state : cupy.ndarray
        Of every row and cluster, the rows that are listed, and a `WATCH`; see bounds/state.cuh.
    """

    def __init__(self, engine: FusedEngine, k: int, listed: int, labels: str) -> None:
        n = engine.n_samples
        self.expiries, self.active = cupy.empty(n, np.float32), cupy.empty(listed, np.uint32)
        self._arrived = cupy.zeros(1, np.uint32)
        # How far centres have moved, limits and what is known lie side by side: what begins anew is one copy.
        before = 8 * k, 4 * (k + k % 2)
        fresh = np.zeros(sum(before) + WATCH.itemsize, np.uint8)
        fresh[sum(before) :] = fresh_watch().reshape(1).view(np.uint8)
        self._fresh = cupy.asarray(fresh)
        self._kept = self._fresh.copy()
        self._moved, self.limits = self._kept[: before[0]].view(np.float64), self._kept[before[0] :][: 4 * k].view("f4")
        self.state = self._kept[sum(before) :]
        self._begun_bytes = sum(before) + FRESH_BYTES
        self._few = few_moved(n)
        self._screen_grid = (min(engine.gpu.multiprocessors * _SCREEN_BLOCKS, -(-n // _SCREENED)),)
        (self._screen,) = load_kernels(engine, "bounds/state.cuh", f"screen<{labels}>")

    def begin(self) -> None:
        """Begin anew: centres are others than those that the last iteration made, and no row is safe.

        Expiries need not be reset: no row is screened before all have been given theirs.
        """
        self._kept.data.copy_from_device_async(self._fresh.data, self._begun_bytes)

    def motion(self) -> Any:
        """Return what `advance` (update/centers.cuh) is told of bounds, a `MOTION`."""
        addresses = (one.data.ptr for one in (self._moved, self.limits, self.state))
        return np.array((*addresses, self._few, 0), MOTION)[()]

    @property
    def others(self) -> Any:
        """On the GPU: whether what scores all rows without bounds has nothing to do, (1,), int32."""
        return self.state[OTHERS : OTHERS + 4].view(np.int32)

    def screening(self, labels: Any, stopped: Any) -> Callable[[], None]:
        """Return what lists the rows that are not safe; if `stopped` is set, nothing is to be done."""
        screened = self.expiries, labels, np.int64(len(self.expiries)), self.limits
        listed = self.active, np.uint32(len(self.active)), self.state, self._arrived, stopped
        return OverlappingLaunch(self._screen, self._screen_grid, (_SCREEN_THREADS,), (*screened, *listed))

    def watch(self) -> np.void:
        """Return what is known on the GPU, a `WATCH`; waits for it."""
        found: np.void = to_host(self.state).view(WATCH)[0]
        return found


class ProductBounds(Bounds):
    """Bounds of rows that products of the core give their labels, from X's copy.

    Parameters
    ----------
    engine : FusedEngine
    plan : Plan
        Of the product of all rows.
    problem : Problem
        That product.
    lists, room : int
        Lists that rows join whose labels change or are not sure, and the rows that each has room for.
    """

    def __init__(self, engine: FusedEngine, plan: Plan, problem: Problem, lists: int, room: int) -> None:
        super().__init__(engine, problem.w, most_listed(problem.m, lists, room), "int")
        self._examine_grid = lists, max(1, engine.gpu.multiprocessors * _EXAMINE_BLOCKS // lists)
        (self._examine,) = load_kernels(engine, "bounds/assign.cuh", f"examine<{-(-problem.w // 8)}>")
        header, index = "apps/kmeans/bounds/assign.cuh", engine.gpu_index
        self._until = PlannedKernel(plan, problem, index, "kmeans::NearestUntil", header)

    def bind(
        self, shadow: Any, halves: Any, nearest: tuple[Any, ...], labels: Any, stopped: Any
    ) -> list[Callable[[], None]]:
        """Return what lists the rows whose labels change or are not sure, where bounds have a part in that.

        Parameters
        ----------
        shadow, halves : cupy.ndarray of float16
            Rows and centres.
        nearest : tuple
            The fields of a `NEAREST`.
        labels : cupy.ndarray of shape (n,), int32
        stopped : cupy.ndarray
            If set, nothing is to be done.
        """
        kept = (one.data.ptr for one in (self.expiries, self.limits, self.state))
        until = np.array((*nearest, *kept), UNTIL)[()]
        examined = shadow, halves, np.int32(shadow.shape[1]), self.active, until
        return [
            self.screening(labels, stopped),
            OverlappingLaunch(self._examine, self._examine_grid, (_EXAMINE_THREADS,), examined),
            self._until.packed(shadow.data.ptr, halves.data.ptr, until),
        ]
