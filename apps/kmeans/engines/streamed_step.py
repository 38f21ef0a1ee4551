"""Lloyd step on a GPU that holds neither X nor a copy of it: in every pass, X goes through the GPU in windows.

X is in host memory, in files or on the GPU; only the labels and the cluster sums of all rows stay. An iteration takes
as long as reading X, so the host computes the new centers from the sums, with the bits of update/centers.cuh.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tsapps.apps.kmeans.data.device_data import DeviceData
from tsapps.apps.kmeans.engines.device_step import DeviceStep
from tsapps.apps.kmeans.engines.fixed_point_step import FixedPointStep
from tsapps.apps.kmeans.engines.window_pass import WindowPass
from tsapps.apps.kmeans.inertia.launch import sum_terms
from tsapps.apps.kmeans.results import Assignment
from tsapps.kernels.arrays import to_host

__all__ = ["StreamedStep"]


class StreamedStep(FixedPointStep):
    """Lloyd step for k clusters over X that passes through the GPU in windows.

    Parameters
    ----------
    data : DeviceData
        X, whose point to subtract is final.
    k : int
    new_step : callable
        Takes the `DeviceData` of a window, and returns a Lloyd step on it without bounds.
    """

    data: DeviceData
    # In a protected fit, the result is computed again from labels that are reset.
    keeps_sums = False

    def __init__(self, data: DeviceData, k: int, new_step: Callable[[DeviceData], DeviceStep]) -> None:
        super().__init__(data)
        self.k = k
        self._labels = data.xp.empty(data.n_samples, np.int32)
        self._pass = WindowPass(data, new_step)
        self.certifies = self._pass.step.certifies
        self.reset()

    @property
    def labels(self) -> Any:
        """Label of each sample, (n,), int32, on the GPU."""
        return self._labels

    def reset(self) -> None:
        """Set every label to −1 and the sums to zero; see `Step.reset`."""
        self.data.machine.fill(self._labels, 0xFF)
        self._pass.step.reset()

    def assign(self, centers: np.ndarray, *, update: bool = True, potential: bool = False) -> Assignment:
        """Label every sample with its nearest center; see `Step.assign`."""
        of, data = self._pass.step.buffers, self.data
        self._pass.step.begin(centers)
        data.machine.fill(of.n_reassigned, 0)
        self._pass.launch(self._labels)
        n_reassigned = int(to_host(of.n_reassigned)[0])
        if not (update or potential):
            return Assignment(n_reassigned, np.zeros((0, 0)), np.zeros(0), float("nan"))
        found = self._assignment(n_reassigned)
        found.potential = found.potential_about(centers)
        if self.protection is not None:
            found.again = self._assignment(n_reassigned)
        return found

    def assign_own(self, centers: np.ndarray) -> tuple[int, np.ndarray]:
        """Label these rows, which may be some of X; return how many labels changed, and `own_sums`."""
        n_reassigned = self.assign(centers, update=False).n_reassigned
        return n_reassigned, self.own_sums()

    def own_sums(self) -> np.ndarray:
        """Return a copy of the sums of these rows, (k, d + 1), int64."""
        return np.array(to_host(self._pass.step.buffers.sums))

    def _assignment(self, n_reassigned: int) -> Assignment:
        sums = to_host(self._pass.step.buffers.sums)
        return Assignment(n_reassigned, *self.sums_and_weights(sums), float("nan"))

    def terms_of_sums(self, centers: np.ndarray) -> np.ndarray:
        """Return terms of the sums; see `FixedPointStep.terms_of_sums`."""
        data, of = self.data, self._pass.step.buffers
        return to_host(sum_terms(data.machine, of.sums, of.units, data.on_device(centers)))
