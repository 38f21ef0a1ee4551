"""Lloyd step on several GPUs: each labels its rows, and an all-reduce adds up the cluster sums in stream order.

    each GPU   rows of its shard  →  own sums, number of reassigned rows
    all GPUs   all-reduce of integers, out of place  →  the same total on every GPU
    each GPU   update/centers.cuh on the total  →  the same new centers, shift and decision to stop, on every GPU

The own sums are running sums: an iteration moves only the reassigned rows of the shard. Integer sums do not depend on
the order of additions, so the centers have the bits of one GPU, however X is distributed. No GPU decides anything
alone, and the host waits only for outcomes of the first GPU, one iteration behind.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from tsapps.apps.kmeans.distributed.deadline import AllReduce, wait_for, wait_for_launches
from tsapps.apps.kmeans.distributed.sharded_data import ShardedData
from tsapps.apps.kmeans.engines.device_step import ITERATIONS_AHEAD, DeviceStep
from tsapps.apps.kmeans.engines.step import Step
from tsapps.apps.kmeans.protect.checks import Protection
from tsapps.apps.kmeans.protect.launch import SumsCheck
from tsapps.apps.kmeans.results import Assignment, IterationResult, Report
from tsapps.kernels.arrays import to_host

__all__ = ["ShardedStep"]

_SUMS_DIFFER = "the sums of all rows were not the same on all GPUs"


class ShardedStep(Step):
    """Lloyd step for k clusters over X on several GPUs.

    Parameters
    ----------
    data : ShardedData
    steps : sequence of DeviceStep
        The step of each shard.
    all_reduce : AllReduce
    """

    data: ShardedData
    keeps_sums = True

    def __init__(self, data: ShardedData, steps: Sequence[DeviceStep], all_reduce: AllReduce) -> None:
        super().__init__(data)
        self._steps, self._lead, self._all_reduce = steps, steps[0], all_reduce
        self._protection: Protection | None = None
        self.certifies = all(step.certifies for step in steps)
        self._labels: np.ndarray | None = None  # a copy of the labels; None if they have changed since
        self._compares_totals = True  # in a protected fit, after the next iteration

    @property
    def sums_units(self) -> np.ndarray:  # type: ignore[override]
        """Fixed-point unit of each column of the sums, (d + 1,)."""
        return self._lead.sums_units

    @property
    def labels(self) -> np.ndarray:
        """Label of each sample, (n,), int32, in host memory."""
        if self._labels is None:
            self._labels = np.empty(self.data.n_samples, np.int32)
            for step in self._each():
                self._labels[self.data.slice_of(step.data)] = step.data.copy_to_host(step.labels)
        return self._labels

    @property
    def protection(self) -> Protection | None:
        """The checks of a protected fit: each GPU checks its labels, and the sums and centers that it has."""
        return self._protection

    @protection.setter
    def protection(self, protection: Protection | None) -> None:
        if protection is not None and self._lead.weight_of_all is None:
            weight = sum(step.own_weight() for step in self._each())
            for step in self._steps:
                step.weight_of_all = weight
        self._protection = protection
        for step in self._steps:
            step.protection = protection

    def labels_on_gpus(self) -> list[Any]:
        """Return the labels of each shard, on its GPU."""
        return [step.labels for step in self._steps]

    def reset(self) -> None:
        """Set every label to −1 and the sums to zero; see `Step.reset`."""
        self._labels, self._compares_totals = None, True
        for step in self._each():
            step.reset()

    def assign(self, centers: np.ndarray, *, update: bool = True, potential: bool = False) -> Assignment:
        """Label every sample with its nearest center; see `Step.assign`."""
        self._labels = None
        for step in self._each():
            step.begin(centers)
            step.launch_rows(0)
        self.exchange()
        with self._lead.data as lead:
            wait_for_launches(lead.machine, self._all_reduce, self._work, "an assignment")
            found = self._lead.assigned(centers, update=update, potential=potential)
        self._expect(found.n_reassigned)
        return found

    def assign_final(self, centers: np.ndarray) -> None:
        """Label every sample with the nearest center; see `Step.assign_final`."""
        self._labels = None
        for step in self._each():
            step.assign_final(centers)
        self.exchange()

    def iterate(
        self, centers: np.ndarray, before: int, last: int, tol: float, report: Report | None
    ) -> IterationResult:
        """Launch each iteration before reading the outcome of the previous one; see `Step.iterate`."""
        if self.data.spherical:  # update/centers.cuh does not normalise the means
            return super().iterate(centers, before, last, tol, report)
        self._labels = None
        for step in self._each():
            step.begin(centers)
        number, launched, known = last - before, 0, 0
        try:
            while True:
                for count in range(launched, min(known + ITERATIONS_AHEAD, number)):
                    self._launch(count, tol, is_last=count + 1 == number)
                launched = min(known + ITERATIONS_AHEAD, number)
                outcome = self._outcome(known)
                self._wait_for_checks(known)
                faulty = next((step for step in self._steps if step.fault(known) is not None), None)
                differ = self._totals_differ()
                if faulty is not None or differ:
                    break
                self._expect(int(outcome["n_reassigned"]))
                if report is not None:
                    report(before + known + 1, int(outcome["n_reassigned"]), float(outcome["potential"]))
                if outcome["stop"] or known + 1 == number:
                    break
                known += 1
        except BaseException:
            self._all_reduce.abort()  # GPUs may wait for one that has failed
            for step in self._each():
                with suppress(Exception):  # of the GPU whose error is known
                    step.data.machine.current_stream().synchronize()
            raise
        for step in self._each():
            step.data.machine.current_stream().synchronize()  # iterations in flight still write to the buffers
        if differ:  # which GPU has the right centers is unknown
            return IterationResult(centers, known, False, float("nan"), fault=_SUMS_DIFFER, lost=True)
        # After a fault, only the GPU that found it has stopped, so that it still has the centers of the iteration.
        checked = self._lead if faulty is None else faulty
        with checked.data:
            found = checked.checked_end(known, outcome, checked.fault(known))
        for step in self._each():
            step.end_iterations(known, outcome)
        with self._lead.data:
            return self._lead.result(known, outcome) if found is None else found

    def _wait_for_checks(self, count: int) -> None:
        """Wait for the checks of iteration number `count` on all GPUs, if the fit is protected."""
        for step in self._each() if self.protection is not None else ():
            what = f"the check of iteration {count + 1} on {step.data.device}"
            wait_for(partial(step.has_outcome, count), self._all_reduce, self._work, what)

    def _totals_differ(self) -> bool:
        """Return True if, after the first checks since `reset`, GPUs expect different totals of the sums."""
        if self.protection is None or not self._compares_totals:
            return False
        self._compares_totals = False
        totals = [step.check.totals for step in self._each() if step.check is not None]
        return any((some != totals[0]).any() for some in totals)

    def _launch(self, count: int, tol: float, *, is_last: bool) -> None:
        """Launch iteration number `count` of the current `iterate` call, from 0, on all GPUs."""
        for step in self._each():
            step.begin_bounds_soon()
            step.launch_rows(count)
        self.exchange()
        for step in self._each():
            step.launch_centers(count, tol, is_last=is_last)

    def _outcome(self, count: int) -> Any:
        """Wait for iteration number `count` of the current `iterate` call on the first GPU; return its `OUTCOME`."""
        what = f"iteration {count + 1} of a run on {self.data.device}"
        wait_for(lambda: self._lead.has_outcome(count), self._all_reduce, self._work, what)
        return self._lead.outcome(count)

    @property
    def _work(self) -> float:
        """Floating-point operations of the iterations in flight."""
        return 2.0 * ITERATIONS_AHEAD * self.data.n_samples * self.data.n_features * self._lead.k

    def exchange(self) -> None:
        """Launch the all-reduce of the sums and numbers of reassigned rows, and set the own numbers to zero."""
        if len(self._steps) == 1:  # the own sums are those of all rows
            return
        self._all_reduce([step.buffers.own for step in self._steps], [step.buffers.total for step in self._steps])
        for step in self._each():
            step.data.machine.fill(step.buffers.n_reassigned, 0)

    def _expect(self, n_reassigned: int) -> None:
        for step in self._steps:
            step.expect(-(-n_reassigned * step.data.n_samples // self.data.n_samples))

    def inertia(self, centers: np.ndarray) -> float:
        """Return the inertia, from the sums of all rows if they are exact enough; see `Step.inertia`."""
        with self._lead.data:
            found = self._lead.inertia_of_sums(centers)
        return self.data.inertia(centers, self.labels) if found is None else found

    def checked_inertia(self, centers: np.ndarray) -> tuple[float, str | None]:
        """Return the inertia, and a fault in the inertia or the running sums, or None; see `Step.checked_inertia`."""
        parts, faults, sums = [], [], []
        for step in self._each():
            check = SumsCheck(step.data.xp, step.buffers, step.integers)
            parts.append(step.data.partial_inertia(centers, step.labels, check.kept))
            faults.append(check.fault())
            sums.append([np.array(to_host(one)) for one in (step.buffers.sums, step.buffers.total_sums)])
        fault, of_rows = next((fault for fault in faults if fault is not None), None), self.data.total_inertia(parts)
        total = np.sum([own for own, _ in sums], axis=0)
        if fault is None and not all(np.array_equal(total, of_gpu) for _, of_gpu in sums):
            fault = _SUMS_DIFFER
        with self._lead.data:
            return self._lead.compared_inertia(centers, of_rows, fault)

    def cluster_sizes(self, labels: Any, k: int) -> np.ndarray:
        """Return the number of samples with each label, from the sums if possible; see `Step.cluster_sizes`."""
        if labels is not self._labels or self.data.sample_weight is not None:
            return super().cluster_sizes(labels, k)
        with self._lead.data:
            return self._lead.cluster_sizes(self._lead.labels, k)

    def _each(self) -> Iterator[DeviceStep]:
        """Yield the step of each shard, while its GPU is current."""
        for step in self._steps:
            with step.data:
                yield step
