"""Results of Lloyd iterations on a GPU from its running cluster sums: sums, sizes and inertia."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np

from tsapps.apps.kmeans.data.device_data import DeviceData
from tsapps.apps.kmeans.engines.fixed_point_step import FixedPointStep
from tsapps.apps.kmeans.inertia.from_sums import INERTIA_ERROR
from tsapps.apps.kmeans.inertia.launch import sum_terms
from tsapps.apps.kmeans.protect.launch import StepCheck, SumsCheck
from tsapps.apps.kmeans.results import Assignment
from tsapps.apps.kmeans.update.buffers import IterationBuffers
from tsapps.kernels.arrays import to_host

__all__ = ["RunningSumsStep"]


class RunningSumsStep(FixedPointStep):
    """Lloyd step on a GPU whose fixed-point cluster sums are running sums: an iteration only moves reassigned rows.

    Attributes
    ----------
    data : DeviceData
    buffers : IterationBuffers
    check : StepCheck or None
        The ABFT check of each iteration; None without protection.
    """

    data: DeviceData
    buffers: IterationBuffers
    check: StepCheck | None = None
    # The weights of the clusters, if `inertia` has copied them to the host since the last launch.
    _final_weights: np.ndarray | None = None
    # Index i if `update_centers` has prepared `buffers.centers[i]`, the last result of `iterate`; otherwise None.
    _prepared: int | None = None

    @property
    def labels(self) -> Any:
        """Label of each sample, (n,), int32, on the GPU."""
        return self.buffers.labels

    @abstractmethod
    def begin(self, centers: np.ndarray) -> None:
        """Copy `centers` (k, d) to the GPU and prepare them for the first iteration."""

    @abstractmethod
    def launch_rows(self, count: int) -> None:
        """Launch the first part of iteration number `count` of a run, from 0: labels, and sums of these rows."""

    def assign_own(self, centers: np.ndarray) -> tuple[int, np.ndarray]:
        """Label these rows, which may be some of X; return how many labels changed, and `own_sums`."""
        of = self.buffers
        self.begin(centers)
        self.data.machine.fill(of.n_reassigned, 0)
        self.launch_rows(0)
        n_reassigned = int(to_host(of.n_reassigned)[0])
        self.expect(n_reassigned)
        return n_reassigned, self.own_sums()

    def own_sums(self) -> np.ndarray:
        """Return a copy of the sums of these rows, (k, d + 1), int64."""
        return np.array(to_host(self.buffers.sums))

    def assigned(self, centers: np.ndarray, *, update: bool, potential: bool) -> Assignment:
        """Return the result of `assign`, after its launches."""
        n_reassigned = int(self.data.copy_to_host(self.buffers.total_reassigned)[0])
        self.expect(n_reassigned)
        if not (update or potential):
            return Assignment(n_reassigned, np.zeros((0, 0)), np.zeros(0), float("nan"))
        found = self._assignment(n_reassigned, float("nan"))
        found.potential = found.potential_about(centers)
        return found

    @abstractmethod
    def expect(self, n_reassigned: int) -> None:
        """Expect that the next iteration reassigns as many of these rows as an earlier one, `n_reassigned`."""

    def sums(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the weighted sum (k, d) and the weight (k,) of each cluster of X, float64, in host memory."""
        return self.sums_and_weights(self.data.copy_to_host(self.buffers.total_sums))

    def cluster_sizes(self, labels: Any, k: int) -> np.ndarray:
        """Return the number of samples with each label, from the running sums if possible; see `Step.cluster_sizes`."""
        if k != self.k or labels is not self.labels or self.data.sample_weight is not None:
            return super().cluster_sizes(labels, k)
        weights = self._final_weights
        if weights is None:
            weights = self._terms(self.buffers.centers[0])[:, 0]
        return weights.astype(np.int64)

    def _terms(self, centers: Any) -> np.ndarray:
        """Return the terms of `inertia_from_terms`, (k, 4); `centers` (k, d) are on the GPU."""
        return to_host(sum_terms(self.data.machine, self.buffers.total_sums, self.buffers.units, centers))

    def terms_of_sums(self, centers: np.ndarray) -> np.ndarray:
        """Return terms of the running sums of all rows; see `FixedPointStep.terms_of_sums`."""
        prepared = self._prepared
        terms = self._terms(self.data.on_device(centers) if prepared is None else self.buffers.centers[prepared])
        self._final_weights = terms[:, 0]
        return terms

    def checked_inertia(self, centers: np.ndarray) -> tuple[float, str | None]:
        """Return the inertia, and a fault in the inertia or the running sums, or None; see `Step.checked_inertia`."""
        check = SumsCheck(self.data.xp, self.buffers, self.integers)
        of_rows = self.data.inertia(centers, self.labels, check.kept)
        return self.compared_inertia(centers, of_rows, check.fault())

    def compared_inertia(self, centers: np.ndarray, of_rows: float, fault: str | None) -> tuple[float, str | None]:
        """Return the inertia, and a fault: the given one, or if the inertia of the sums is not that of the rows."""
        of_sums = self.inertia_of_sums(centers)
        if fault is None and of_sums is not None and abs(of_sums - of_rows) > 2 * INERTIA_ERROR * of_rows:
            fault = "the inertia of the cluster sums was not that of the samples"
        return of_rows if of_sums is None else of_sums, fault

    def _assignment(self, n_reassigned: int, potential: float) -> Assignment:
        """Return the running sums as an `Assignment`. In a protected fit, the sums are copied to the host twice."""
        again = None if self.check is None else Assignment(n_reassigned, *self.sums(), potential)
        return Assignment(n_reassigned, *self.sums(), potential, again)
