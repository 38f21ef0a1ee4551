"""Lloyd step on several GPUs of this process: each labels its rows; see `shared_iterations.py`."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tsapps.apps.kmeans.distributed.deadline import AllReduce, wait_for_launches
from tsapps.apps.kmeans.distributed.sharded_data import ShardedData
from tsapps.apps.kmeans.distributed.shared_iterations import SUMS_DIFFER, SharedIterations
from tsapps.apps.kmeans.engines.device_step import DeviceStep
from tsapps.apps.kmeans.engines.step import Step
from tsapps.apps.kmeans.protect.checks import Protection
from tsapps.apps.kmeans.protect.launch import SumsCheck
from tsapps.apps.kmeans.results import Assignment, IterationResult, Report
from tsapps.kernels.arrays import to_host

__all__ = ["ShardedStep"]


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
        self._shared = SharedIterations(steps, all_reduce, data.n_samples, data.device)
        self._protection: Protection | None = None
        self.certifies = all(step.certifies for step in steps)
        self._labels: np.ndarray | None = None  # a copy of the labels; None if they have changed since

    @property
    def sums_units(self) -> np.ndarray:  # type: ignore[override]
        """Fixed-point unit of each column of the sums, (d + 1,)."""
        return self._lead.sums_units

    @property
    def labels(self) -> np.ndarray:
        """Label of each sample, (n,), int32, in host memory."""
        if self._labels is None:
            self._labels = np.empty(self.data.n_samples, np.int32)
            for step in self._shared.each():
                self._labels[self.data.slice_of(step.data)] = step.data.copy_to_host(step.labels)
        return self._labels

    @property
    def protection(self) -> Protection | None:
        """The checks of a protected fit: each GPU checks its labels, and the sums and centers that it has."""
        return self._protection

    @protection.setter
    def protection(self, protection: Protection | None) -> None:
        if protection is not None and self._lead.weight_of_all is None:
            weight = sum(step.own_weight() for step in self._shared.each())
            for step in self._steps:
                step.weight_of_all = weight
        self._protection = protection
        for step in self._steps:
            step.protection = protection

    def labels_on_gpus(self) -> list[Any]:
        """Return the labels of each shard, on its GPU."""
        return [step.labels for step in self._shared.each()]

    def reset(self) -> None:
        """Set every label to −1 and the sums to zero; see `Step.reset`."""
        self._labels = None
        self._shared.begin_run()
        for step in self._shared.each():
            step.reset()

    def assign(self, centers: np.ndarray, *, update: bool = True, potential: bool = False) -> Assignment:
        """Label every sample with its nearest center; see `Step.assign`."""
        self._labels = None
        for step in self._shared.each():
            step.begin(centers)
            step.launch_rows(0)
        self.exchange()
        with self._lead.data as lead:
            wait_for_launches(lead.machine, self._all_reduce, self._shared.work, "an assignment")
            found = self._lead.assigned(centers, update=update, potential=potential)
        self._shared.expect(found.n_reassigned)
        return found

    def assign_final(self, centers: np.ndarray) -> None:
        """Label every sample with the nearest center; see `Step.assign_final`."""
        self._labels = None
        for step in self._shared.each():
            step.assign_final(centers)
        self.exchange()

    def iterate(
        self, centers: np.ndarray, before: int, last: int, tol: float, report: Report | None
    ) -> IterationResult:
        """Launch each iteration before reading the outcome of the previous one; see `Step.iterate`."""
        if self.data.spherical:  # update/centers.cuh does not normalise the means
            return super().iterate(centers, before, last, tol, report)
        self._labels = None
        return self._shared.run(centers, before, last, tol, report)

    def exchange(self) -> None:
        """Launch the all-reduce of the sums and numbers of reassigned rows."""
        self._shared.exchange()

    def inertia(self, centers: np.ndarray) -> float:
        """Return the inertia, from the sums of all rows if they are exact enough; see `Step.inertia`."""
        with self._lead.data:
            found = self._lead.inertia_of_sums(centers)
        return self.data.inertia(centers, self.labels) if found is None else found

    def checked_inertia(self, centers: np.ndarray) -> tuple[float, str | None]:
        """Return the inertia, and a fault in the inertia or the running sums, or None; see `Step.checked_inertia`."""
        parts, faults, sums = [], [], []
        for step in self._shared.each():
            check = SumsCheck(step.data.xp, step.buffers, step.integers)
            parts.append(step.data.partial_inertia(centers, step.labels, check.kept))
            faults.append(check.fault())
            sums.append([np.array(to_host(one)) for one in (step.buffers.sums, step.buffers.total_sums)])
        fault, of_rows = next((fault for fault in faults if fault is not None), None), self.data.total_inertia(parts)
        total = np.sum([own for own, _ in sums], axis=0)
        if fault is None and not all(np.array_equal(total, of_gpu) for _, of_gpu in sums):
            fault = SUMS_DIFFER
        with self._lead.data:
            return self._lead.compared_inertia(centers, of_rows, fault)

    def cluster_sizes(self, labels: Any, k: int) -> np.ndarray:
        """Return the number of samples with each label, from the sums if possible; see `Step.cluster_sizes`."""
        if labels is not self._labels or self.data.sample_weight is not None:
            return super().cluster_sizes(labels, k)
        with self._lead.data:
            return self._lead.cluster_sizes(self._lead.labels, k)
