"""Lloyd step interface: labels, cluster sums and new centers, iteration by iteration."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from tsapps.apps.kmeans.data.blocks import Data
from tsapps.apps.kmeans.protect.checks import Protection
from tsapps.apps.kmeans.results import Assignment, IterationResult, Report, square_shift
from tsapps.apps.kmeans.update.means import next_centers

__all__ = ["Step"]


class Step(ABC):
    """Lloyd's algorithm for k clusters over X on one device.

    Parameters
    ----------
    data : Data
    """

    #: Whether labels are certified; and whether the sums are running sums, updated by reassigned rows only.
    certifies, keeps_sums = True, False
    #: The fixed-point unit to which the elements of each column of the sums are rounded, (d + 1,); [0] for float sums.
    sums_units = np.zeros(1)
    #: The checks of a protected fit; None without protection.
    protection: Protection | None = None

    def __init__(self, data: Data) -> None:
        self.data = data

    @property
    @abstractmethod
    def labels(self) -> Any:
        """Label of each sample, (n,), int32, on the device of the data; −1 before the first assignment."""

    @abstractmethod
    def reset(self) -> None:
        """Set every label to −1, so that the next assignment counts every sample as reassigned."""

    @abstractmethod
    def assign(self, centers: np.ndarray, *, update: bool = True, potential: bool = False) -> Assignment:
        """Label every sample with its nearest center, the lowest index on a tie.

        Parameters
        ----------
        centers : numpy.ndarray of shape (k, d)
            Relative to the point that was subtracted from X, in the working dtype.
        update : bool
            Also return the weighted sum and the weight of each cluster.
        potential : bool
            Also return Σ w·score.

        Returns
        -------
        Assignment
        """

    def iterate(
        self, centers: np.ndarray, before: int, last: int, tol: float, report: Report | None
    ) -> IterationResult:
        """Iterate until the run converges, a cluster is empty, a check finds a fault, or `last` iterations are done.

        Parameters
        ----------
        centers : numpy.ndarray of shape (k, d)
            Relative to the point that was subtracted from X, in the working dtype.
        before : int
            Iterations of this run so far.
        last : int
            Maximum number of iterations of this run, greater than `before`.
        tol : float
            Convergence threshold of the center shift Σ ‖new c − c‖². A run also converges when no label changes.
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
                    # `centers` as given, with which the first iteration starts, need not be cluster means.
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

        The labels must be those of the last assignment. `centers` are its centers, or the means computed from it.
        """
        return self.data.inertia(centers, self.labels)

    def checked_inertia(self, centers: np.ndarray) -> tuple[float, str | None]:
        """Return the inertia, and a description of a fault in it or in the running sums; None if both are right."""
        inertia = self.data.inertia(centers, self.labels)
        same = np.array_equal(inertia, self.data.inertia(centers, self.labels), equal_nan=True)
        return inertia, None if same else "the inertia differed when it was computed twice"

    def cluster_sizes(self, labels: Any, k: int) -> np.ndarray:
        """Return the number of samples with each label, (k,), int64; `labels` (n,) are current or earlier ones."""
        return self.data.count_labels(labels, k)
