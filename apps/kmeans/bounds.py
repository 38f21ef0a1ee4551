"""Rows that an iteration of the fused engine leaves out, as their nearest centre cannot have changed; see bounds.cuh.

    screen (bounds.cuh) → examine (nearest_until.cuh), or the product of all rows by one of two epilogues

Which of them does the work is decided on the GPU, iteration by iteration; the others return at once.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cupy
import numpy as np

from tsapps.apps.kmeans.bounds_plan import FRESH_BYTES, UNTIL, WATCH, WITHOUT, fresh_watch, most_listed
from tsapps.apps.kmeans.fused_plan import MOTION
from tsapps.apps.kmeans.shadow import load_kernels
from tsapps.kernels.arrays import to_host
from tsapps.kernels.launch import PlannedKernel
from tsapps.kernels.packed import OverlappingLaunch
from tsapps.kernels.plan import Plan
from tsapps.kernels.problem import Problem

if TYPE_CHECKING:
    from tsapps.apps.kmeans.fused import FusedEngine

__all__ = ["Bounds"]

_FOLDER = Path(__file__).parent
_SCREEN_THREADS, _EXAMINE_THREADS = 256, 128
# Blocks a multiprocessor, as many as are resident; and the rows that a block screens at a time.
_SCREEN_BLOCKS, _EXAMINE_BLOCKS = 8, 3
_SCREENED = 4 * _SCREEN_THREADS


class Bounds:
    """When the label of every row expires, and what gives rows their labels in each iteration.

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
        n, k = problem.m, problem.w
        self._listed = most_listed(n, lists, room)
        self._expiries, self._active = cupy.empty(n, np.float32), cupy.empty(self._listed, np.uint32)
        self._moved, self._limits = cupy.empty(k), cupy.empty(k, np.float32)
        self._arrived = cupy.zeros(1, np.uint32)
        self._fresh = cupy.asarray(fresh_watch().reshape(1).view(np.uint8))
        self._watch = self._fresh.copy()
        #: What `advance` (centers.cuh) is told of bounds.
        self.motion = np.array(tuple(one.data.ptr for one in (self._moved, self._limits, self._watch)), MOTION)[()]
        multiprocessors = engine.gpu.multiprocessors
        self._screen_grid = (min(multiprocessors * _SCREEN_BLOCKS, -(-n // _SCREENED)),)
        self._examine_grid = lists, max(1, multiprocessors * _EXAMINE_BLOCKS // lists)
        (self._screen,) = load_kernels(engine, "bounds.cuh", "screen")
        (self._examine,) = load_kernels(engine, "nearest_until.cuh", f"examine<{-(-k // 8)}>")
        header, index = "apps/kmeans/nearest_until.cuh", engine.gpu_index
        self._until = PlannedKernel(plan, problem, index, "kmeans::NearestUntil", header)
        self._without = PlannedKernel(plan, problem, index, "kmeans::NearestWithout", header)

    def begin(self) -> None:
        """Begin anew: centres are others than those that the last iteration made, and no row is safe.

        Expiries need not be reset: no row is screened before all have been given theirs.
        """
        cupy.copyto(self._watch[:FRESH_BYTES], self._fresh[:FRESH_BYTES])
        self._moved.fill(0)
        self._limits.fill(0)

    def bind(
        self, shadow: Any, halves: Any, nearest: tuple[Any, ...], labels: Any, stopped: Any
    ) -> list[Callable[[], None]]:
        """Return what lists the rows whose labels change or are not sure.

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
        watch, padded = self._watch.data.ptr, np.int32(shadow.shape[1])
        until = np.array((*nearest, self._expiries.data.ptr, self._limits.data.ptr, watch), UNTIL)[()]
        without = np.array((*nearest, watch), WITHOUT)[()]
        screened = self._expiries, labels, np.int64(len(labels)), self._limits
        listed = self._active, np.uint32(self._listed), self._watch, self._arrived, stopped
        examined = shadow, halves, padded, self._active, until
        return [
            OverlappingLaunch(self._screen, self._screen_grid, (_SCREEN_THREADS,), (*screened, *listed)),
            OverlappingLaunch(self._examine, self._examine_grid, (_EXAMINE_THREADS,), examined),
            self._until.packed(shadow.data.ptr, halves.data.ptr, until),
            self._without.packed(shadow.data.ptr, halves.data.ptr, without),
        ]

    def watch(self) -> np.void:
        """Return what is known on the GPU, a `WATCH`; waits for it."""
        found: np.void = to_host(self._watch).view(WATCH)[0]
        return found
