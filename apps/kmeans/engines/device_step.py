"""Lloyd step on a GPU by kernels of this package: iterations without host synchronisation.

An iteration is a list of kernel launches on `IterationBuffers`: assign → rescore → update of the cluster sums → new
centers → (ABFT check). The host launches each iteration before it reads the outcome of the previous one. If that one
left clusters empty, the launches after it did nothing; the host then launches their relocation and goes on, with
launches for relocation in each iteration until no cluster becomes empty. Cluster sums are fixed-point, so they have the
same bits on every run.

    small d            small_d_step.py    one kernel reads X itself, labels the rows and updates the sums
    k <= 64            small_k_step.py    GEMM on the half-precision copy of X; centers in shared memory
    k > 64             large_k_step.py    GEMM on the half-precision copy of X; centers streamed
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np

from tsapps.apps.kmeans.bounds.launch import Bounds
from tsapps.apps.kmeans.bounds.plan import BOUNDS_BYTES, begins_soon
from tsapps.apps.kmeans.data.device_data import DeviceData
from tsapps.apps.kmeans.data.load import load_kernels
from tsapps.apps.kmeans.data.plan import CENTER_THREADS
from tsapps.apps.kmeans.engines.bound_launches import BoundLaunches
from tsapps.apps.kmeans.engines.checked_step import ITERATIONS_AHEAD, CheckedStep
from tsapps.apps.kmeans.results import Assignment, IterationResult, Report
from tsapps.apps.kmeans.update.buffers import IterationBuffers, Layout
from tsapps.apps.kmeans.update.launch import update_args
from tsapps.apps.kmeans.update.plan import COLUMN_ORDER, MOST_RELOCATED, OUTCOME, UPDATE_CENTERS
from tsapps.apps.kmeans.update.relocation import Relocation
from tsapps.kernels.arrays import address
from tsapps.kernels.plan.mma import ELEMENT
from tsapps.kernels.runtime.machine import Launch

__all__ = ["ITERATIONS_AHEAD", "RESCORE_BLOCKS", "RESCORE_THREADS", "DeviceStep"]

#: Rescoring kernels: threads per block, and launched blocks per multiprocessor (more than are resident).
RESCORE_THREADS, RESCORE_BLOCKS = 256, 8


class DeviceStep(CheckedStep):
    """Lloyd step on a GPU for k clusters, with running cluster sums.

    Parameters
    ----------
    data : DeviceData
    k : int
    layout : Layout
    bounds : bool
        Whether Hamerly bounds may skip rows whose label cannot change. They start when that is likely to
        save time.
    certifies : bool
        Whether labels are certified.
    """

    #: Hamerly bounds; None until they first start, because their kernels take seconds to compile.
    bounds: Bounds | None = None
    # True if iterations include the kernel launches for bounds, from the next on; and whether those in flight do.
    _bounded = False
    _bounded_before: list[bool]
    _relocation: Relocation | None = None  # of empty clusters; None until a cluster first becomes empty
    # True if iterations include the launches for relocation. Only `_launch_relocation` sets it, after which all later
    # iterations are launched again: behind an iteration without such launches, those in flight would take its clusters.
    _relocates = False
    #: Whether blocks of the assignment kernel may start before `update_centers` of the previous iteration ends. The
    #: assignment kernel must then have one block per multiprocessor (update/centers.cuh).
    starts_early = False
    #: What labels all rows in the first iteration after `reset`, if X is in host memory; see `WindowPass`.
    windows: Any = None
    _by_windows = False

    def __init__(self, data: DeviceData, k: int, layout: Layout, *, bounds: bool, certifies: bool) -> None:
        super().__init__(data)
        self.k, self.layout, self.certifies = k, layout, certifies
        d, dtype = data.n_features, data.dtype
        self._may_have_bounds = bounds and k > 1 and certifies
        # Pinned staging buffer for copies of centers; pageable memory would be several times slower.
        self._staging = data.machine.pinned((k, d), dtype)
        # Index i if the staging buffer holds a copy of `buffers.centers[i]`; otherwise None.
        self._staged: int | None = None
        self._n_columns = layout.columns_of(k)
        # Outcomes of the iterations in flight, in pinned memory: a copy of 32 bytes would take as long as a kernel. An
        # event signals that an outcome is complete.
        self._outcomes = data.machine.pinned(ITERATIONS_AHEAD, OUTCOME)
        self._events = [data.machine.event() for _ in range(ITERATIONS_AHEAD)]
        # Estimate of the rows that the next iteration reassigns: those of the last one whose outcome the host has read.
        self._expected_reassigned = data.n_samples
        self._launches = BoundLaunches()
        self._bound_stream: int | None = None  # the stream that they are bound to
        self._bound = self._launches.of
        self._bounded_before = [False] * ITERATIONS_AHEAD
        self.buffers = IterationBuffers.allocated(data, k, layout, self.integers)
        scalar = ELEMENT[dtype.name]
        # Two calls, so that the two long compilations run in parallel.
        (self._prepare,) = load_kernels(data.machine, "update/centers.cuh", f"prepare_centers<{scalar}>")
        (self._update_centers,) = load_kernels(data.machine, "update/centers.cuh", f"update_centers<{scalar}>")

    @abstractmethod
    def _bind_rows(self, centers: Any) -> Iterable[Callable[[], None]]:
        """Return the launches that label all rows and update the running cluster sums.

        `centers` (k, d) are on the GPU. The float16 centers, biases and center statistics are already in the buffers.
        """

    @property
    def _sorts(self) -> bool:
        """True if reassigned rows are sorted by cluster before they update the sums; part of the key of launches."""
        return False

    def _run(self, key: Hashable, bind: Callable[[], Iterable[Callable[[], None]]]) -> None:
        """Run the launches that `bind` returns; see `BoundLaunches.of`."""
        for launch in self._bound(key, bind):
            launch()

    def _bound_rows(self, now: int) -> Iterable[Callable[[], None]]:
        """Return the launches that label all rows by `buffers.centers[now]` and update the running sums."""
        if self._by_windows:
            return (self._first_rows,)
        key = "rows", now, self._sorts, self._bounded
        return self._bound(key, lambda: self._bind_rows(self.buffers.centers[now]))

    def _first_rows(self) -> None:
        self._by_windows = False
        self.windows.first_iteration(self, self._staging)

    def reset(self) -> None:
        """Set every label to −1 and the sums to zero; see `Step.reset`."""
        self.data.machine.fill(self.buffers.labels, 0xFF)
        self.data.machine.fill(self.buffers.own, 0)
        self._expected_reassigned, self._by_windows = self.data.n_samples, self.windows is not None
        if self.check is not None:
            self.check.forget()

    def assign(self, centers: np.ndarray, *, update: bool = True, potential: bool = False) -> Assignment:
        """Label every sample with its nearest center; see `Step.assign`."""
        self.begin(centers)
        self.launch_rows(0)
        return self.assigned(centers, update=update, potential=potential)

    def _new_bounds(self) -> Bounds | None:
        """Return new bounds for the data and k of this step; None if the step does not support bounds."""
        return None

    def create_bounds(self) -> None:
        """Create `bounds`, if bounds may skip rows, the step supports them, and they fit in GPU memory."""
        if self.bounds is None and self._may_have_bounds:
            fits = self.data.fits(BOUNDS_BYTES * self.data.n_samples)
            self.bounds = self._new_bounds() if fits else None

    def begin_bounds_soon(self) -> None:
        """Start bounds with the next iteration, if that is likely to save time."""
        if not self._bounded and self._may_have_bounds and begins_soon(self.data.n_samples, self._expected_reassigned):
            self._begin_bounds()

    def _begin_bounds(self) -> None:
        """Start bounds with the next iteration, if the step can have them."""
        self.create_bounds()
        if self.bounds is None:
            self._may_have_bounds = False
        else:
            self.bounds.begin()
            self._bounded = True

    def iterate(
        self, centers: np.ndarray, before: int, last: int, tol: float, report: Report | None
    ) -> IterationResult:
        """Launch each iteration before reading the outcome of the previous one; see `Step.iterate`."""
        if self.data.spherical:  # update/centers.cuh does not normalise the means
            return super().iterate(centers, before, last, tol, report)
        self.begin(centers)
        number = last - before
        launched = known = 0
        try:
            while True:
                for count in range(launched, min(known + ITERATIONS_AHEAD, number)):
                    self._launch(count, tol)
                    self._end_launches(count, is_last=count + 1 == number)
                launched = min(known + ITERATIONS_AHEAD, number)
                outcome = self.outcome(known)
                fault = self.fault(known)
                if fault is not None:
                    break
                if outcome["empty"] and self._can_relocate(int(outcome["empty"])):
                    self._launch_relocation(known, tol)
                    self._end_launches(known, is_last=known + 1 == number)
                    launched = known + 1  # the launches of later iterations did nothing
                    continue
                # These numbers are from two iterations before the iteration that the host launches next.
                self.expect(int(outcome["n_reassigned"]))
                self._relocates = self._relocates and bool(outcome["relocated"])
                if report is not None:
                    report(before + known + 1, int(outcome["n_reassigned"]), float(outcome["potential"]))
                if outcome["stop"] or known + 1 == number:
                    break
                known += 1
        finally:
            # Iterations in flight still write to the buffers.
            self.data.machine.current_stream().synchronize()
        found = self.checked_end(known, outcome, fault)
        self.end_iterations(known, outcome)
        return self.result(known, outcome) if found is None else found

    def has_outcome(self, count: int) -> bool:
        """Return True if `outcome` need not wait."""
        return bool(self._events[count % ITERATIONS_AHEAD].done)

    def outcome(self, count: int) -> Any:
        """Wait for iteration number `count` of the current `iterate` call, from 0; return its `OUTCOME`."""
        self._events[count % ITERATIONS_AHEAD].synchronize()
        return self._outcomes[count % ITERATIONS_AHEAD].copy()

    def expect(self, n_reassigned: int) -> None:
        """Expect that the next iteration reassigns as many of these rows as an earlier one, `n_reassigned`."""
        self._expected_reassigned = n_reassigned

    def centers_at(self, count: int) -> np.ndarray:
        """Return the centers (k, d) that iteration number `count` of the last call of `iterate` assigned samples to."""
        return self._centers_on_host(count % 2)

    def end_iterations(self, count: int, outcome: Any) -> None:
        """End the current `iterate` call with iteration number `count`, whose outcome is given."""
        self._prepared = None if outcome["empty"] or self.check is not None else 1 - count % 2

    def result(self, count: int, outcome: Any, at: np.ndarray | None = None) -> IterationResult:
        """Return the result of `iterate` that ended with iteration number `count`; for `at`, see `IterationResult`."""
        strict, done = bool(outcome["n_reassigned"] == 0), count + 1
        if outcome["empty"]:
            empty = self._assignment(int(outcome["n_reassigned"]), float(outcome["potential"]))
            return IterationResult(self._centers_on_host(count % 2), done, strict, float("nan"), empty, at)
        centers, shift = self._centers_on_host(1 - count % 2), float(outcome["shift"])
        return IterationResult(centers, done, strict, shift, at=at, relocated=bool(outcome["relocated"]))

    def assign_final(self, centers: np.ndarray) -> None:
        """Label every sample with the nearest center without preparing the centers again; see `Step.assign_final`."""
        if self._prepared is None:
            super().assign_final(centers)
            return
        self._bounded = False  # row bounds are not needed again
        self.data.machine.fill(self.buffers.stopped, 0)
        # The launches of `_bind_next` did nothing if the run converged.
        for launch in chain(self._bind_next(self._prepared), self._bound_rows(self._prepared)):
            launch()

    def begin(self, centers: np.ndarray) -> None:
        """Copy `centers` (k, d) to the GPU and prepare them for the first iteration; prepare the check if protected."""
        stream = self.data.machine.current_stream()
        if stream.ptr != self._bound_stream:
            self._launches.clear()
            self._bound_stream = stream.ptr
        self._staging[...], self._staged = centers, None
        self._final_weights, self._prepared = None, None
        self._bounded = self._relocates = False
        self.begin_check()
        self._run("prepare", self._bind_prepare)

    def _bind_prepare(self) -> Iterator[Callable[[], None]]:
        """Yield the launches that prepare the first centers, which the kernel reads from the pinned staging buffer."""
        arguments = self._staging, self._update_args(1, 0, 0.0), np.bool_(False)
        yield self.data.machine.bind(self._prepare, (self._n_columns,), (CENTER_THREADS,), arguments)

    def _stage_centers(self, index: int) -> None:
        """Start an asynchronous copy of `buffers.centers[index]` to the staging buffer."""
        self.data.machine.copy(self._staging, self.buffers.centers[index])
        self._staged = index

    def _centers_on_host(self, index: int) -> np.ndarray:
        """Return a copy of `buffers.centers[index]` in host memory. No kernel in flight may write that buffer."""
        if self._staged != index:
            self._stage_centers(index)
            self.data.machine.current_stream().synchronize()
        return self._staging.copy()

    def launch_rows(self, count: int) -> None:
        """Launch the first part of iteration number `count` of a run, from 0: labels, and sums of these rows."""
        for launch in self._bound_rows(count % 2):
            launch()

    def launch_centers(self, count: int, tol: float, *, is_last: bool) -> None:
        """Launch the second part of an iteration, from the sums of all rows: new centers and the outcome."""
        now, slot = count % 2, count % ITERATIONS_AHEAD
        for launch in self._bound_centers(now, slot, tol):
            launch()
        self.launch_check(count)
        self._end_launches(count, is_last=is_last)

    def _launch(self, count: int, tol: float) -> None:
        """Launch iteration number `count` of the current `iterate` call, from 0, and its check."""
        now, slot = count % 2, count % ITERATIONS_AHEAD
        self.begin_bounds_soon()
        key = "iteration", now, slot, tol, self._sorts, self._bounded, self._relocates
        if self._by_windows:
            self.launch_rows(count)
            self._run(("centers", *key), lambda: self._bound_centers(now, slot, tol))
        else:
            self._run(key, lambda: chain(self._bound_rows(now), self._bound_centers(now, slot, tol)))
        self._bounded_before[slot] = self._bounded
        self.launch_check(count)

    def _end_launches(self, count: int, *, is_last: bool) -> None:
        """Record the event of iteration `count`, whose launches are complete, and copy the centers of the last one."""
        self._events[count % ITERATIONS_AHEAD].record()
        if is_last:
            self._stage_centers(1 - count % 2)

    def _can_relocate(self, empty: int) -> bool:
        """Return True if launches can relocate `empty` clusters of the last iteration; creates `_relocation`."""
        if self.check is not None or empty > MOST_RELOCATED:
            return False
        if self._relocation is None and Relocation.serves(self.data):
            self._relocation = Relocation(self.data, self.buffers, self.integers.digits)
        return self._relocation is not None

    def _launch_relocation(self, count: int, tol: float) -> None:
        """Relocate the clusters that iteration `count` left empty, and launch the rest of the iteration."""
        now, slot, self._relocates = count % 2, count % ITERATIONS_AHEAD, True
        self._bounded = self._bounded_before[slot]  # if bounds began after this iteration, they begin again
        for launch in self._bound_relocation(now, slot, tol):
            launch()

    def _bound_centers(self, now: int, slot: int, tol: float) -> Iterable[Callable[[], None]]:
        """Return the launches that compute the new centers, `buffers.centers[1 - now]`, and end the iteration."""

        def bind() -> Iterator[Callable[[], None]]:
            yield self._bind_update(now, slot, tol)
            yield from self._bound_relocation(now, slot, tol) if self._relocates else self._bind_next(1 - now)

        return self._bound(("centers", now, slot, tol, self._bounded, self._relocates), bind)

    def _bind_update(self, now: int, slot: int, tol: float, *, relocates: bool = False) -> Launch:
        """Return the launch of `update_centers`; see update/centers.cuh for `relocates`."""
        given = self._update_args(now, slot, tol)
        given["relocates"] = relocates
        return self.data.machine.bind(self._update_centers, (self.k,), (CENTER_THREADS,), (given,))

    def _bound_relocation(self, now: int, slot: int, tol: float) -> Iterable[Callable[[], None]]:
        """Return the launches that relocate empty clusters, compute the new centers again, and end the iteration."""

        def bind() -> Iterator[Callable[[], None]]:
            assert self._relocation is not None
            yield from self._relocation.bind(self.buffers.centers[now])
            yield self._bind_update(now, slot, tol, relocates=True)
            yield self._relocation.back
            yield from self._bind_next(1 - now)

        return self._bound(("relocation", now, slot, tol, self._bounded), bind)

    def _bind_next(self, index: int) -> Iterable[Callable[[], None]]:  # noqa: ARG002
        """Return the launches that follow when the new centers, `buffers.centers[index]`, are known."""
        return ()

    def _update_args(self, now: int, slot: int, tol: float) -> Any:
        """Return the `UPDATE_CENTERS` argument of the kernels of update/centers.cuh for an iteration."""
        of, bounds = self.buffers, self.bounds if self._bounded else None
        given = np.frombuffer(bytearray(self._fixed_args), UPDATE_CENTERS)[0]
        given["centers"], given["next"] = address(of.centers[now]), address(of.centers[1 - now])
        given["outcome"], given["tolerance"] = address(self._outcomes[slot:]), tol
        given["order"] = self._order_args[now]
        if bounds is not None:  # otherwise null pointers: the kernel then computes no center drift
            given["drift"] = bounds.drift_args()
        return given

    @cached_property
    def _fixed_args(self) -> bytes:
        """The `UPDATE_CENTERS` argument without the fields that differ between launches, which are zero."""
        flags = {"starts_early": self.starts_early, "certifies": self.certifies}
        fixed: bytes = update_args(self.data, self.k, self.layout, self.buffers, **flags).tobytes()
        return fixed

    @cached_property
    def _order_args(self) -> Sequence[Any]:
        """The `COLUMN_ORDER` arguments of even and odd iterations; null pointers if columns are not sorted."""
        return (np.zeros((), COLUMN_ORDER)[()],) * 2

    def examined(self) -> tuple[int, int]:
        """Return the number of iterations in which bounds skipped rows, and the number of rows that these scored."""
        state = None if self.bounds is None else self.bounds.read_state()
        return (0, 0) if state is None else (int(state["screened"]), int(state["examined"]))
