"""Lloyd iterations on several GPUs, which exchange cluster sums in stream order, without the host.

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

from tsapps.apps.kmeans.distributed.deadline import AllReduce, wait_for
from tsapps.apps.kmeans.engines.device_step import ITERATIONS_AHEAD, DeviceStep
from tsapps.apps.kmeans.results import IterationResult, Report

__all__ = ["SUMS_DIFFER", "SharedIterations"]

#: What is wrong if GPUs have different totals.
SUMS_DIFFER = "the sums of all rows were not the same on all GPUs"


class SharedIterations:
    """Iterations of the steps of several shards of X.

    Parameters
    ----------
    steps : sequence of DeviceStep
        The step of each shard in this process; other processes may have others.
    all_reduce : AllReduce
        Over the GPUs of all shards.
    n_samples : int
        Number of rows of X.
    where : str
        Names the GPUs in messages.
    """

    def __init__(self, steps: Sequence[DeviceStep], all_reduce: AllReduce, n_samples: int, where: str) -> None:
        self._steps, self._lead, self._all_reduce = steps, steps[0], all_reduce
        self._n_samples, self._where = n_samples, where
        self._compares_totals = True  # in a protected fit, after the next iteration

    def begin_run(self) -> None:
        """Take totals for unknown: labels have been reset."""
        self._compares_totals = True

    def run(self, centers: np.ndarray, before: int, last: int, tol: float, report: Report | None) -> IterationResult:
        """Launch each iteration before reading the outcome of the previous one; see `Step.iterate`."""
        for step in self.each():
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
                self.expect(int(outcome["n_reassigned"]))
                if report is not None:
                    report(before + known + 1, int(outcome["n_reassigned"]), float(outcome["potential"]))
                if outcome["stop"] or known + 1 == number:
                    break
                known += 1
        except BaseException:
            self._all_reduce.abort()  # GPUs may wait for one that has failed
            for step in self.each():
                with suppress(Exception):  # of the GPU whose error is known
                    step.data.machine.current_stream().synchronize()
            raise
        for step in self.each():
            step.data.machine.current_stream().synchronize()  # iterations in flight still write to the buffers
        if differ:  # which GPU has the right centers is unknown
            return IterationResult(centers, known, False, float("nan"), fault=SUMS_DIFFER, lost=True)
        # After a fault, only the GPU that found it has stopped, so that it still has the centers of the iteration.
        checked = self._lead if faulty is None else faulty
        with checked.data:
            found = checked.checked_end(known, outcome, checked.fault(known))
        for step in self.each():
            step.end_iterations(known, outcome)
        with self._lead.data:
            return self._lead.result(known, outcome) if found is None else found

    def _wait_for_checks(self, count: int) -> None:
        """Wait for the checks of iteration number `count` on all GPUs, if the fit is protected."""
        for step in self.each() if self._lead.protection is not None else ():
            what = f"the check of iteration {count + 1} on {step.data.device}"
            wait_for(partial(step.has_outcome, count), self._all_reduce, self.work, what)

    def _totals_differ(self) -> bool:
        """Return True if, after the first checks since `begin_run`, GPUs expect different totals of the sums."""
        if self._lead.protection is None or not self._compares_totals:
            return False
        self._compares_totals = False
        totals = [step.check.totals for step in self.each() if step.check is not None]
        return any((some != totals[0]).any() for some in totals)

    def _launch(self, count: int, tol: float, *, is_last: bool) -> None:
        """Launch iteration number `count` of the current call of `run`, from 0, on all GPUs."""
        for step in self.each():
            step.begin_bounds_soon()
            step.launch_rows(count)
        self.exchange()
        for step in self.each():
            step.launch_centers(count, tol, is_last=is_last)

    def _outcome(self, count: int) -> Any:
        """Wait for iteration number `count` of the current call of `run` on the first GPU; return its `OUTCOME`."""
        what = f"iteration {count + 1} of a run on {self._where}"
        wait_for(lambda: self._lead.has_outcome(count), self._all_reduce, self.work, what)
        return self._lead.outcome(count)

    @property
    def work(self) -> float:
        """Floating-point operations of the iterations in flight."""
        return 2.0 * ITERATIONS_AHEAD * self._n_samples * self._lead.data.n_features * self._lead.k

    def exchange(self) -> None:
        """Launch the all-reduce of the sums and numbers of reassigned rows, and set the own numbers to zero."""
        if self._lead.buffers.own is self._lead.buffers.total:  # those of all rows
            return
        self._all_reduce([step.buffers.own for step in self._steps], [step.buffers.total for step in self._steps])
        for step in self.each():
            step.data.machine.fill(step.buffers.n_reassigned, 0)

    def expect(self, n_reassigned: int) -> None:
        """Expect that the next iteration reassigns as many rows of X as an earlier one."""
        for step in self._steps:
            step.expect(-(-n_reassigned * step.data.n_samples // self._n_samples))

    def each(self) -> Iterator[DeviceStep]:
        """Yield the step of each shard, while its GPU is current."""
        for step in self._steps:
            with step.data:
                yield step
