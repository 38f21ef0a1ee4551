"""A step of Lloyd's algorithm: labels, sums and next centers for some data, iteration by iteration."""

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
    """Lloyd's algorithm over some data, one iteration after another.

    Parameters
    ----------
    data : Data
    """

    #: Whether labels are certified; and whether sums are kept from one assignment to the next.
    certifies, keeps_sums = True, False
    #: The units that elements of the sums are rounded to, (d + 1,), or one zero.
    sums_units = np.zeros(1)
    #: The checks of a protected fit.
    protection: Protection | None = None

    def __init__(self, data: Data) -> None:
        self.data = data

    @property
    @abstractmethod
    def labels(self) -> Any:
        """The label of every sample, (n,), int32, on the device of the data."""

    @abstractmethod
    def reset(self) -> None:
        """Set every label to −1, so that the next assignment changes all of them."""

    @abstractmethod
    def assign(self, centers: np.ndarray, *, update: bool = True, potential: bool = False) -> Assignment:
        """Give every sample the label of its nearest center, the lowest index on a tie.

        Parameters
        ----------
        centers : numpy.ndarray of shape (k, d)
            Centered as the rows are.
        update : bool
            Also sum the samples of each cluster, for the next centers.
        potential : bool
            Also sum the scores.
        """

    def iterate(
        self, centers: np.ndarray, before: int, last: int, tol: float, report: Report | None
    ) -> IterationResult:
        """Iterate until no label changes, the centers move by `tol` at most in all (squared), or a cluster is empty.

        Parameters
        ----------
        centers : numpy.ndarray of shape (k, d)
            Centered as the rows are.
        before, last : int
            The number of iterations so far in this run, and the most that it may have.
        tol : float
        report : callable, optional
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
                    # The first of these iterations may be at centers that are no means.
                    stood = found.n_reassigned == 0 and iteration > before + 1
                    fault = protection.fault_of_next(data, found, new_centers, shift, stood=stood)
            if protection is not None and fault is not None:
                intact = protection.intact(centers)
                return IterationResult(intact, iteration - 1 - before, False, float("nan"), fault=fault)
            at, centers = centers, new_centers
            if found.n_reassigned == 0 or shift <= tol:
                break
        return IterationResult(centers, iteration - before, found.n_reassigned == 0, shift, at=at)

    def next_centers(self, found: Assignment, centers: np.ndarray) -> np.ndarray:
        """Return the next centers of an assignment; see `update.means.next_centers`."""
        return next_centers(self.data, found, centers)

    def inertia(self, centers: np.ndarray) -> float:
        """Return the inertia where samples were just assigned to `centers`, or these are the means that followed."""
        return self.data.inertia(centers, self.labels)

    def checked_inertia(self, centers: np.ndarray) -> tuple[float, str | None]:
        """Return `inertia`, and what is wrong with it or with sums that are kept, or None."""
        inertia = self.data.inertia(centers, self.labels)
        same = np.array_equal(inertia, self.data.inertia(centers, self.labels), equal_nan=True)
        return inertia, None if same else "its inertia was another the second time"

    def cluster_sizes(self, labels: Any, k: int) -> np.ndarray:
        """Return the number of samples with each of `labels`, (k,), int64: of this step, now or before."""
        return self.data.count_labels(labels, k)
