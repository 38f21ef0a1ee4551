"""Lloyd step interface: labels, cluster sums and new centers, iteration by iteration."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from tsapps.apps.kmeans.data.blocks import Data
from tsapps.apps.kmeans.protect.checks import Protection
from tsapps.apps.kmeans.results import Assignment, IterationResult, Report, square_shift
from tsapps.apps.kmeans.update.means import next_centers
from tsapps.kernels.arrays import to_host

__all__ = ["Step"]

# Maximum number of labels compared at a time: NumPy converts labels that are used as indices to 8 bytes each.
_LABELS_AT_ONCE = 1 << 21


class Step(ABC):
    """Lloyd iterations for k clusters over X on one device: assignment, cluster sums and new centers.

    Parameters
    ----------
    data : Data
    """

    #: Whether labels are certified. And whether cluster sums are running sums: an iteration only moves reassigned rows.
    certifies, keeps_sums = True, False
    #: Fixed-point unit of each column of the cluster sums, (d + 1,), to which elements are rounded; [0] for float sums.
    sums_units = np.zeros(1)
    #: The checks of a protected fit; None without protection.
    protection: Protection | None = None

    def __init__(self, data: Data) -> None:
        self.data = data

    @property
    @abstractmethod
    def labels(self) -> Any:
        """Label of each sample, (n,), int32, as an array of `data.xp`; −1 before the first assignment."""

    @abstractmethod
    def reset(self) -> None:
        """Set every label to −1 (no cluster), so that the next assignment counts every sample as reassigned."""

    @abstractmethod
    def assign(self, centers: np.ndarray, *, update: bool = True, potential: bool = False) -> Assignment:
        """Label every sample with its nearest center, on a tie the center of lowest index.

        Parameters
        ----------
        centers : numpy.ndarray of shape (k, d)
            In the working dtype; the same point is subtracted from the centers as from X.
        update : bool
            Also return the weighted sum and the weight of each cluster.
        potential : bool
            Also return Σ w·score over the samples, w being the weight and score = ‖c‖² − 2·x·c for the nearest center
            c.

        Returns
        -------
        Assignment
        """

    def assign_final(self, centers: np.ndarray) -> None:
        """Label every sample with the nearest of `centers` (k, d), which the last call of `iterate` returned."""
        self.assign(centers, update=False)

    def ambiguous_counts(self) -> Any | None:
        """Return the numbers of ambiguous rows that the assignment kernel listed, for benchmarks and tests.

        Valid after the assignment kernel of an iteration and before the next launch, which rescores the rows.

        Returns
        -------
        array of shape (2,) or None
            The number of rows with a list of candidates and the number of rows that are compared with all centers, on
            the device of the data. None if the step lists no ambiguous rows.
        """
        return None

    def iterate(
        self, centers: np.ndarray, before: int, last: int, tol: float, report: Report | None
    ) -> IterationResult:
        """Iterate until the run converges, a cluster is empty, a check finds a fault, or `last` iterations are done.

        Parameters
        ----------
        centers : numpy.ndarray of shape (k, d)
            In the working dtype; the same point is subtracted from the centers as from X.
        before : int
            Number of iterations of this run before this call.
        last : int
            Maximum number of iterations of this run, greater than `before`.
        tol : float
            A run converges when the center shift Σ ‖new c − c‖² is at most `tol`, or when no label changes.
        report : callable, optional
            Called after every iteration; see `results.Report`.

        Returns
        -------
        IterationResult
        """
        protection, data = self.protection, self.data
        for iteration in range(before + 1, last + 1):
            found = self.assign(centers, potential=report is not None)
            fault = None
            if protection is not None:
                fault = protection.fault_of(data, self.labels, found, centers, iteration, self.sums_units)
            if fault is None:
                if report is not None:
                    report(iteration, found.n_reassigned, found.potential)
                if (found.weights == 0).any():
                    return IterationResult(
                        centers, iteration - before, found.n_reassigned == 0, float("nan"), found, centers
                    )
                new_centers = self.next_centers(found, centers)
                shift = square_shift(centers, new_centers)
                if protection is not None:
                    # The centers that the caller gave for the first iteration need not be cluster means.
                    unchanged = found.n_reassigned == 0 and iteration > before + 1
                    fault = protection.fault_of_next(data, found, new_centers, shift, unchanged=unchanged)
            if protection is not None and fault is not None:
                intact = protection.intact(centers)
                return IterationResult(intact, iteration - 1 - before, False, float("nan"), fault=fault)
            at, centers = centers, new_centers
            if found.n_reassigned == 0 or shift <= tol:
                break
        return IterationResult(centers, iteration - before, found.n_reassigned == 0, shift, at=at)

    def next_centers(self, found: Assignment, centers: np.ndarray) -> np.ndarray:
        """Return the new centers (k, d) after an assignment; see `update.means.next_centers`."""
        return next_centers(self.data, found, centers)

    def inertia(self, centers: np.ndarray) -> float:
        """Return the inertia of `centers` (k, d) and the current labels.

        `centers` must be those of the last assignment, or, after `iterate`, its result.
        """
        return self.data.inertia(centers, self.labels)

    def checked_inertia(self, centers: np.ndarray) -> tuple[float, str | None]:
        """Return the inertia, and a description of a fault in the inertia or the running sums, or None."""
        inertia = self.inertia(centers)
        same = np.array_equal(inertia, self.inertia(centers), equal_nan=True)
        return inertia, None if same else "the inertia differed when it was computed twice"

    def cluster_sizes(self, labels: Any, k: int) -> np.ndarray:
        """Return the number of samples with each label, (k,), int64, for current or earlier `labels` (n,)."""
        return self.data.count_labels(labels, k)

    def same_clustering(self, labels: Any, others: Any, k: int) -> bool:
        """Return True if samples with equal labels in `labels`, (n,), also have equal labels in `others`, (n,).

        As in scikit-learn, the two labelings then count as the same clustering up to renumbering.
        """
        labels, others = to_host(labels), to_host(others)
        partner = np.full(k, -1, np.int32)
        parts = [slice(start, start + _LABELS_AT_ONCE) for start in range(0, len(labels), _LABELS_AT_ONCE)]
        for part in parts:
            partner[labels[part]] = others[part]
        return all((partner[labels[part]] == others[part]).all() for part in parts)
