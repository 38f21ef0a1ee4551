"""Lloyd step on the CPU with certified labels and fixed-point running sums: the arithmetic of the kernels of a GPU.

A result depends neither on the number of threads nor on how rows are cut into blocks, files or shards, and has the bits
of a GPU's: labels (assign/host_labels.py), cluster sums (update/host_sums.py), center shift and inertia.
"""

from functools import partial

import numpy as np

from tsapps.apps.kmeans.assign.host_labels import HostCenters
from tsapps.apps.kmeans.data.host_data import HostData
from tsapps.apps.kmeans.engines.fixed_point_step import FixedPointStep
from tsapps.apps.kmeans.inertia.host_inertia import sum_terms
from tsapps.apps.kmeans.protect.checks import same_bits
from tsapps.apps.kmeans.results import Assignment
from tsapps.apps.kmeans.update.host_sums import sums_of_reassigned

__all__ = ["ExactHostStep"]


class ExactHostStep(FixedPointStep):
    """Lloyd step for k clusters over `HostData`, whose point to subtract is final.

    Attributes
    ----------
    sums : numpy.ndarray of shape (k, d + 1), int64
        Running fixed-point sums of the samples of each cluster; see update/fixed_point.cuh.
    """

    data: HostData

    def __init__(self, data: HostData, k: int) -> None:
        super().__init__(data)
        self.k = k
        self._labels = np.empty(data.n_samples, np.int32)
        self.sums = np.zeros((k, data.n_features + 1), np.int64)
        # In a protected fit, the same sums, computed a second time.
        self._again = np.zeros_like(self.sums)
        # Upper bounds of the norms of the rows of each block, by its first row.
        self._largest_norms: dict[int, np.ndarray] = {}
        self.reset()

    @property
    def labels(self) -> np.ndarray:
        """Label of each sample, (n,), int32."""
        return self._labels

    def reset(self) -> None:
        """Set every label to −1 and the sums to zero; see `Step.reset`."""
        self._labels.fill(-1)
        self.sums.fill(0)
        self._again.fill(0)
        self._are_sums_current = True

    def assign(self, centers: np.ndarray, *, update: bool = True, potential: bool = False) -> Assignment:
        """Label every sample with its nearest center; see `Step.assign`."""
        update = update or potential
        if update and not self._are_sums_current:
            self.reset()
        nearest = HostCenters(centers)
        n_reassigned = self._relabel(nearest, update=update)
        self._are_sums_current &= update or n_reassigned == 0
        if not update:
            return Assignment(n_reassigned, np.zeros((0, 0)), np.zeros(0), float("nan"))
        found = self._assignment(self.sums, n_reassigned)
        found.potential = found.potential_about(centers)
        if self.protection is not None:
            found.again = self._assignment(self._again, n_reassigned)
            found.changed = not nearest.is_equal(HostCenters(centers))
        return found

    def assign_own(self, centers: np.ndarray) -> tuple[int, np.ndarray]:
        """Label these rows, which may be some of X; return how many labels changed, and `own_sums`."""
        n_reassigned = self.assign(centers).n_reassigned
        return n_reassigned, self.own_sums()

    def own_sums(self) -> np.ndarray:
        """Return a copy of the sums of these rows, (k, d + 1), int64."""
        return self.sums.copy()

    def assign_final(self, centers: np.ndarray) -> None:
        """Label every sample with the nearest center, and update the sums, from which the inertia may follow."""
        self.assign(centers)

    def _assignment(self, sums: np.ndarray, n_reassigned: int) -> Assignment:
        return Assignment(n_reassigned, *self.sums_and_weights(sums), float("nan"))

    def _relabel(self, nearest: HostCenters, *, update: bool) -> int:
        """Label every sample, add to the sums if `update`, and return the number of labels that changed."""
        data = self.data
        add = partial(sums_of_reassigned, integers=self.integers, k=self.k) if update else None
        number_of_sums = 1 + (self.protection is not None)

        def work(start: int, block: np.ndarray) -> tuple[int, list[np.ndarray]]:
            own = self._labels[start : start + len(block)]
            labels = self._labels_of(start, block, nearest)
            reassigned = np.flatnonzero(own != labels)
            old = own[reassigned]
            rows = block, data.weights_of(start, block), reassigned, old, labels[reassigned]
            sums = [add(*rows) for _ in range(number_of_sums)] if add is not None and reassigned.size else []
            own[:] = labels
            return len(reassigned), sums

        count = 0
        for of_block, sums in data.each_block(work, data.n_features):
            count += of_block
            for total, of_rows in zip((self.sums, self._again), sums, strict=False):
                total += of_rows
        return count

    def _labels_of(self, start: int, block: np.ndarray, nearest: HostCenters) -> np.ndarray:
        """Return the labels of a block of rows."""
        norms = self._largest_norms.get(start)
        if norms is None:
            norms = self._largest_norms[start] = nearest.largest_norms(block)
        return nearest.labels(block, norms)

    def terms_of_sums(self, centers: np.ndarray) -> np.ndarray:
        """Return terms of the running sums; see `FixedPointStep.terms_of_sums`."""
        return sum_terms(self.sums, self.sums_units, centers)

    def inertia_of_sums(self, centers: np.ndarray) -> float | None:
        """Return the inertia from the running sums, if they are those of the labels."""
        return super().inertia_of_sums(centers) if self._are_sums_current else None

    def checked_inertia(self, centers: np.ndarray) -> tuple[float, str | None]:
        """Return the inertia, and a description of a fault in it or in the sums; see `Step.checked_inertia`."""
        inertia, fault = super().checked_inertia(centers)
        if fault is None and self._are_sums_current and not same_bits(self.sums, self._sums_of_labels()):
            fault = "the running sums were not those of the samples"
        return inertia, fault

    def _sums_of_labels(self) -> np.ndarray:
        """Return the cluster sums, (k, d + 1), computed from all samples and their labels."""
        data, total = self.data, np.zeros_like(self.sums)

        def work(start: int, block: np.ndarray) -> np.ndarray:
            own, every = self._labels[start : start + len(block)], np.arange(len(block))
            return sums_of_reassigned(block, data.weights_of(start, block), every, None, own, self.integers, self.k)

        for sums in data.each_block(work, data.n_features):
            total += sums
        return total
