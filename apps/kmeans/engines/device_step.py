"""The steps of the fused engine: one iteration for k clusters, by the kernels for as many features and centers.

    few features     engines/small_d_step.py
    few (up to 64)   assign/small_k.cuh on gemm_mma.cuh → assign/rescore.cuh → rows that change → update/centers.cuh
    many             engines/large_k_step.py

Few features need no copy of X. Few centers stay in shared memory, and the product is bound by what is
read of X's copy. Rows that change are sorted and added up by sort_reassigned.cuh and segmented_sum.cuh or, where they
and the clusters are few, added as they are by update/scatter_add.cuh.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from ctypes import c_void_p
from typing import TYPE_CHECKING, Any

import cupy
import numpy as np
from cupyx import empty_pinned

from tsapps.apps.kmeans.assign.plan import (
    AMBIGUOUS_BYTES,
    ARGMIN,
    DRIFT,
    LISTS,
    MOST_PLACED,
    OUTCOME,
    PLACE_BYTES,
    ROWS,
    UPDATE_CENTERS,
    Integers,
    capacity,
    epilogue_of,
    error_coefficients_of,
    half_copy_problem,
    integers,
    parts_of,
    product_error,
    sorts_rows,
)
from tsapps.apps.kmeans.bounds.launch import Bounds, ProductBounds
from tsapps.apps.kmeans.bounds.plan import BOUNDS_BYTES, begins_soon
from tsapps.apps.kmeans.data.half_copy import HalfCopy, Placement, load_kernels, types_of
from tsapps.apps.kmeans.protect.launch import FAULTS, LOST, StepCheck
from tsapps.apps.kmeans.results import Assignment, Iterated, Report
from tsapps.apps.kmeans.update.launch import ScatterAdd, Segments, grid_of_lists
from tsapps.kernels.arrays import to_host
from tsapps.kernels.gemm import Gemm, blocks_of
from tsapps.kernels.plan.mma import ELEMENT, MmaPlan
from tsapps.kernels.runtime.launch import DependentLaunch

if TYPE_CHECKING:
    from tsapps.apps.kmeans.engines.fused import FusedEngine

__all__ = ["RESCORE_BLOCKS", "RESCORE_THREADS", "SmallKStep", "Step", "integers_of"]

#: Of kernels that decide: threads, and blocks a multiprocessor, more than are resident.
RESCORE_THREADS, RESCORE_BLOCKS = 256, 8
_CENTER_THREADS = 256
# Iterations that are launched before the outcome of the first of them is asked for.
_AHEAD = 2


def integers_of(engine: FusedEngine) -> Integers:
    """Return how sums are kept of an engine's data, whose moments have been taken."""
    weights = engine.sample_weight
    most_weight = None if weights is None else float(abs(weights).max())
    return integers(engine.n_samples, engine.dtype, *engine.spread(), most_weight)


class Step(ABC):
    """One iteration for k clusters, and the clusters' sums as the labels are."""

    #: Columns of the product are whole multiples of this.
    columns: int
    #: Of a center, that the product has a column each of.
    parts = 1
    # Of centers that have margins of their own, what these are of a center's norm, and of what float16 loses of it.
    _error_coefficients: tuple[float, float] | None = None
    #: What leaves out rows whose labels stand: made where they may begin soon, as it takes seconds to compile.
    bounds: Bounds | None = None
    # Whether what has to do with bounds is launched, from then on.
    _bounded = False
    #: What checks iterations, in protected fits.
    check: StepCheck | None = None
    #: Whether its first kernel may come before the one ahead has ended: where it has a block a multiprocessor.
    comes_early = False
    #: Whether it has labels of its own, which `give_labels` makes the engine's.
    keeps_labels = False

    def __init__(self, engine: FusedEngine, placement: Placement, k: int) -> None:
        self.engine, self.k = engine, k
        d = engine.n_features
        self._may_have_bounds = engine.bounds and k > 1 and engine.certifies
        # Rows that moved, blocks that arrived, whether to stop: zero before every iteration.
        self.n_reassigned, self._arrived, self.stopped = cupy.zeros((3, 1), np.uint32)
        self._counts = cupy.empty(0, np.uint32)  # of lists that `update_centers` is to empty
        self._centers = tuple(cupy.empty((2, k, d), engine.dtype))  # of an iteration, and of the next
        # What they pass through on their way: a copy from or to other memory of the host is several times slower.
        self._passing = empty_pinned((k, d), engine.dtype)
        self._host = c_void_p(self._passing.ctypes.data), self._passing.nbytes
        self._passed: int | None = None  # which centers it holds
        n_columns = self._n_columns = -(-k // self.columns) * self.columns
        # Where centers lie in panels, the first of them has their offsets.
        width = placement.padded + (16 if placement.panels else 0)
        self._centers_half = cupy.zeros((self.parts * n_columns, width), np.float16)
        self._offsets = cupy.empty(n_columns, np.float32)
        self._center_stats, self._found = cupy.empty(4, np.float32), cupy.empty((k, 4))
        # The GPU writes to it: a copy of 32 bytes would take as long as a kernel. And what tells that it has.
        self._seen = empty_pinned(_AHEAD, OUTCOME)
        self._events = [cupy.cuda.Event(disable_timing=True) for _ in range(_AHEAD)]
        self.device_sums = cupy.empty((k, d + 1), np.int64)
        # Rows that are expected to change: as many as in the last pass that the host has seen.
        self._changing = engine.n_samples
        # What iterations launch again and again, by what tells them apart; and what all of it was made for.
        self._launches: dict[Hashable, list[Callable[[], None]]] = {}
        self._made_for: Hashable = None
        self._placement = placement
        scalar = ELEMENT[engine.dtype.name]
        # Apart, as each takes longer to compile than most.
        (self._place,) = load_kernels(engine, "update/centers.cuh", f"prepare_centers<{scalar}>")
        (self._update_centers,) = load_kernels(engine, "update/centers.cuh", f"update_centers<{scalar}>")
        self.weighted = str(engine.sample_weight is not None).lower()
        self.integers = integers_of(engine)
        self._scales = np.array(self.integers.scales)
        self.move_scales = cupy.asarray(self._scales, np.float32 if self.integers.digits == 2 else np.float64)
        self.units = cupy.asarray(1 / self._scales)

    @abstractmethod
    def _bind_rows(self, centers: Any) -> list[Callable[[], None]]:
        """Return what gives every sample its label at the centers that were placed, and keeps the sums."""

    @property
    def _sorts(self) -> bool:
        """Whether rows that change are sorted before they are moved, where there is a choice."""
        return False

    def _run(self, key: Hashable, bind: Callable[[], list[Callable[[], None]]]) -> None:
        """Launch what `bind` returns; it is asked once."""
        launches = self._launches.get(key)
        if launches is None:
            launches = self._launches[key] = bind()
        for launch in launches:
            launch()

    def rows(self) -> Any:
        """Return what kernels are told of X."""
        engine = self.engine
        weights = 0 if engine.sample_weight is None else engine.sample_weight.data.ptr
        d = engine.n_features
        return np.array((engine.rows_on_gpu.data.ptr, d, d, 0, engine.shift.data.ptr, weights), ROWS)[()]

    def forget(self) -> None:
        """Begin again, with no sample in any cluster."""
        self.device_sums.data.memset_async(0, self.device_sums.nbytes)
        self._changing = self.engine.n_samples
        if self.check is not None:
            self.check.forget()

    @property
    def own_labels(self) -> Any:
        """The labels as iterations keep them."""
        return self.engine.labels

    def give_labels(self, labels: Any) -> None:  # noqa: B027
        """Write to `labels` (n,), int32, the labels that a step keeps for itself."""

    def assign(self, centers: np.ndarray) -> int:
        """Give every sample the label of its nearest center; return how many labels changed."""
        self._begin(centers)
        self._run(("rows", self._sorts), lambda: self._bind_rows(self._centers[0]))
        self._changing = int(self.n_reassigned[0])
        return self._changing

    def _made_bounds(self) -> Bounds | None:
        """Return the bounds of iterations; None where there are none."""
        return None

    def _begin_bounds(self) -> None:
        """Launch what has to do with bounds from the next iteration on, if there are any."""
        engine = self.engine
        if self.bounds is None:
            fits = engine.fits(BOUNDS_BYTES * engine.n_samples)
            self.bounds = self._made_bounds() if fits else None
        if self.bounds is None:
            self._may_have_bounds = False
        else:
            self.bounds.begin()
            self._bounded = True

    def iterate(self, centers: np.ndarray, before: int, last: int, tol: float, report: Report | None) -> Iterated:
        """Launch iterations, some ahead of those whose outcome is known; see `Engine.iterate`."""
        self._begin(centers)
        protection = self.engine.protection
        try:
            for count in range(last - before + _AHEAD - 1):
                if before + count < last:
                    self._launch(count, tol)
                    self._events[count % _AHEAD].record()
                    if before + count + 1 == last:
                        self._pass(1 - count % 2)
                known = count - _AHEAD + 1
                if known < 0:
                    continue
                self._events[known % _AHEAD].synchronize()
                outcome = self._seen[known % _AHEAD].copy()
                fault = None if self.check is None else self.check.fault(known % _AHEAD)
                if fault is not None:
                    break
                # Of two iterations before the one that is launched next, as the host runs ahead.
                self._changing = int(outcome["n_reassigned"])
                if report is not None:
                    report(before + known + 1, int(outcome["n_reassigned"]), float(outcome["potential"]))
                if outcome["stop"]:
                    break
        finally:
            # What is ahead is still writing to memory of this step.
            cupy.cuda.get_current_stream().synchronize()
        strict, now = bool(outcome["n_reassigned"] == 0), known % 2
        stays = fault is not None or bool(outcome["empty"])
        at, next_centers = None, self._centers_on_host(now if stays else 1 - now)
        if self.check is not None and protection is not None:
            # Where these are other centers than the iteration had, its step made again in the end tells.
            at = next_centers if stays else self._centers_on_host(now)
            right = self.check.are_right(next_centers, now if stays else 1 - now)
            lost = self.check.lost(known % _AHEAD) or not right
            if fault is not None or lost:
                protection.keep(at)
                return Iterated(at, known, False, float("nan"), fault=fault or FAULTS[LOST], lost=lost)
            protection.keep(next_centers)
        if outcome["empty"]:
            empty = self.assignment(int(outcome["n_reassigned"]), float(outcome["potential"]))
            return Iterated(next_centers, known + 1, strict, float("nan"), empty, at)
        return Iterated(next_centers, known + 1, strict, float(outcome["shift"]), at=at)

    def assignment(self, n_reassigned: int, potential: float) -> Assignment:
        """Return the sums as an assignment; of a protected fit, as they come to the host twice."""
        again = None if self.check is None else Assignment(n_reassigned, *self.sums(), potential)
        return Assignment(n_reassigned, *self.sums(), potential, again)

    def _begin(self, centers: np.ndarray) -> None:
        """Put centers where the first iteration expects them."""
        stream = cupy.cuda.get_current_stream()
        made_for = stream.ptr, self.own_labels.data.ptr
        if made_for != self._made_for:
            self._launches.clear()
            self._made_for = made_for
        self._passing[...], self._passed = centers, None
        self._bounded = False
        if self.engine.protection is None:
            self.check = None
        else:
            self.check = self.check or StepCheck(self, _AHEAD)
            self.check.begin()
        self._run("place", self._bind_place)

    def _bind_place(self) -> list[Callable[[], None]]:
        """Return what places the first centers, which it takes from the host's memory."""
        arguments = np.uint64(self._passing.ctypes.data), self._advancing(1, 0, 0.0)
        return [DependentLaunch(self._place, (self._n_columns,), (_CENTER_THREADS,), arguments)]

    def _pass(self, place: int) -> None:
        """Copy centers to the host, once they are there."""
        self._centers[place].data.copy_to_host_async(*self._host)
        self._passed = place

    def _centers_on_host(self, place: int) -> np.ndarray:
        """Return centers as an array of the caller's own; where nothing is under way, as it may not wait."""
        if self._passed != place:
            self._pass(place)
            cupy.cuda.get_current_stream().synchronize()
        return self._passing.copy()

    def _launch(self, count: int, tol: float) -> None:
        """Launch one iteration, which leaves its outcome with the host."""
        now, place = count % 2, count % _AHEAD
        if not self._bounded and self._may_have_bounds and begins_soon(self.engine.n_samples, self._changing):
            self._begin_bounds()
        key = "iteration", now, place, tol, self._sorts, self._bounded
        self._run(key, lambda: self._bind_iteration(now, place, tol))
        if self.check is not None:
            if count == 0 and self.engine.protection is not None:  # while the first iteration is at work
                self.check.expect(self.engine.protection.kept.centers)
            self.check.launch(self._centers[now], self._centers[1 - now], place, now)

    def _bind_iteration(self, now: int, place: int, tol: float) -> list[Callable[[], None]]:
        """Return what makes an iteration: labels and sums, centers of the sums, and an outcome for the host."""
        arguments = (self._advancing(now, place, tol),)
        update_centers = DependentLaunch(self._update_centers, (self.k,), (_CENTER_THREADS,), arguments)
        return [*self._bind_rows(self._centers[now]), update_centers]

    def _advancing(self, now: int, place: int, tol: float) -> Any:
        """Return what the kernels of update/centers.cuh are told of an iteration."""
        placement, next_centers = self._placement, self._centers[1 - now]
        error_coefficients = 0 if self._error_coefficients is None else self._offsets[self._n_columns :].data.ptr
        centers = self._centers[now], next_centers, self._found, self._offsets
        state = self._center_stats, self._arrived, self.n_reassigned, self._counts, self.stopped
        before, after = ([one.data.ptr for one in some] for some in ((self.device_sums, self.units, *centers), state))
        second = self._n_columns if self.parts > 1 else 0
        centers_half = self._centers_half.data.ptr, placement.padded, placement.panels, self.columns, second
        sizes = self.k, self.engine.n_features, self._counts.size, placement.scale, placement.norm_limit
        outcome = self._seen[place:].ctypes.data
        # Without bounds, none is followed.
        drift_args = self.bounds.drift_args() if self.bounds is not None and self._bounded else np.zeros((), DRIFT)[()]
        more = drift_args, tol, *sizes, *(self._error_coefficients or (0, 0)), self.comes_early
        return np.array((*before, error_coefficients, *after, outcome, centers_half, *more), UPDATE_CENTERS)[()]

    def counts(self) -> np.ndarray:
        """Return how many samples each cluster has, (k,), int64, where none is weighted."""
        return to_host(self.device_sums[:, -1]) // np.int64(self._scales[-1])

    def sums(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the clusters' weighted sums (k, d) and weights (k,), in float64."""
        values = to_host(self.device_sums) / self._scales
        return values[:, :-1], values[:, -1]


class SmallKStep(Step):
    """A step for as many clusters as `assign/small_k.cuh` has room for."""

    columns = 8

    def __init__(self, engine: FusedEngine, half_copy: HalfCopy, plan: MmaPlan, k: int) -> None:
        self.parts = parts_of(plan, k)
        super().__init__(engine, half_copy.placement, k)
        self._half_copy, self._plan = half_copy, plan
        n, d = engine.source.shape
        index = engine.gpu_index
        problem = half_copy_problem(n, d, k, self.parts)
        epilogue = epilogue_of(plan, k)
        self._product = Gemm(plan, problem, index, f"kmeans::{epilogue}", "apps/kmeans/assign/small_k.cuh")
        if epilogue != "ArgminEpilogue":  # margins are behind offsets
            self._offsets = cupy.empty(2 * self._n_columns, np.float32)
            self._error_coefficients = error_coefficients_of(plan, d, k, float(half_copy.rounding))
        lists = blocks_of(plan, problem, index)
        self._capacity = capacity(plan, n, lists)
        self._bounds_of = plan, problem, lists, self._capacity
        self._ahead = plan.teams * lists * plan.tile_m if plan.keep_b else n
        self._entries = cupy.empty(lists * self._capacity * AMBIGUOUS_BYTES, np.uint8)
        self._counts = cupy.empty(lists, np.uint32)
        self._scatter_add = ScatterAdd(self, lists)
        self._segments: Segments | None = None
        if sorts_rows(n, d) and n <= MOST_PLACED:
            self._segments = Segments(
                self, "AmbiguousRow", lists, cupy.empty(lists * self._capacity * PLACE_BYTES, np.uint8)
            )
        self._rescore_grid = grid_of_lists(engine, lists, RESCORE_BLOCKS)
        (self._rescore,) = load_kernels(engine, "assign/rescore.cuh", f"rescore<{types_of(engine)}>")

    def _made_bounds(self) -> ProductBounds:
        return ProductBounds(self.engine, *self._bounds_of)

    @property
    def _sorts(self) -> bool:
        return self._segments is not None and sorts_rows(self._changing, self.engine.n_features)

    def _bind_rows(self, centers: Any) -> list[Callable[[], None]]:
        engine, half_copy = self.engine, self._half_copy
        n, d = engine.source.shape
        pointers = self._offsets, self._center_stats, half_copy.norms, engine.labels, self._entries, self._counts
        addresses = [one.data.ptr for one in pointers]
        sizes = self._capacity, n, self._ahead, product_error(self._plan, d, self.k), half_copy.rounding
        launches, idle = [], self.stopped
        if isinstance(self.bounds, ProductBounds) and self._bounded:
            nearest = *addresses, self.stopped.data.ptr, *sizes
            launches = self.bounds.bind(half_copy.rows, self._centers_half, nearest, engine.labels, self.stopped)
            idle = self.bounds.skip_full_assign
        every = np.array((*addresses, idle.data.ptr, *sizes), ARGMIN)[()]
        launches.append(self._product.packed(half_copy.rows.data.ptr, self._centers_half.data.ptr, every))
        lists = self._entries, self._counts, np.int64(self._capacity)
        certified = self.rows(), centers, np.int32(self.k), *lists, self.stopped
        launches.append(DependentLaunch(self._rescore, self._rescore_grid, (RESCORE_THREADS,), certified))
        # Either gives the same bits.
        if self._segments is None or not self._sorts:
            return [*launches, self._scatter_add.bind(self, lists)]
        changes = np.array((self._entries.data.ptr, self._counts.data.ptr, self._capacity, 1, 0), LISTS)[()]
        return launches + self._segments.bind(self, changes)
