"""Verification of a protected run's result by recomputing its labels, its centers, and relocated empty clusters."""

import numpy as np

from tsapps.apps.kmeans.empty_clusters import next_centers_after_relocation
from tsapps.apps.kmeans.engines.step import Step
from tsapps.apps.kmeans.protect.checks import Protection, same_bits
from tsapps.apps.kmeans.results import Assignment, IterationResult
from tsapps.apps.kmeans.update.means import next_centers

__all__ = ["checked_result", "relocation_repeats"]

_LABELS_DIFFER = "recomputed labels differed"


def relocation_repeats(step: Step, protection: Protection, found: Assignment, centers: np.ndarray) -> bool:
    """Repeat the relocation of empty clusters, keep its centers for the next check, and tell whether they are equal.

    Parameters
    ----------
    step : Step
    protection : Protection
    found : Assignment
        The assignment that left clusters empty; its second sums, `again`, are changed in place.
    centers : numpy.ndarray of shape (k, d)
        The centers after the first relocation.
    """
    assert found.again is not None  # set by every protected fit
    again = next_centers_after_relocation(step.data, step.labels, found.again, protection.kept.centers)
    protection.keep(again)
    return same_bits(centers, again)


def checked_result(
    step: Step, protection: Protection, found: IterationResult, centers: np.ndarray
) -> tuple[float, str | None]:
    """Recompute a run's result, and compare it bit for bit.

    Parameters
    ----------
    step : Step
    protection : Protection
    found : IterationResult
        The last iterations of the run.
    centers : numpy.ndarray of shape (k, d)
        The final centers.

    Returns
    -------
    inertia : float
        NaN if labels or centers were wrong.
    fault : str or None
        Description of the difference; None if there is none.
    """
    fault = (_fault_with_running_sums if step.keeps_sums else _fault_from_scratch)(step, found, centers)
    inertia = float("nan")
    if fault is None:
        inertia, fault = step.checked_inertia(centers)
    if fault is None and protection.kept.differs(centers):
        fault = "the centers changed after they were computed"
    return inertia, fault


def _fault_with_running_sums(step: Step, found: IterationResult, centers: np.ndarray) -> str | None:
    """Return the fault in the result of a step that updates running sums, or None.

    Assigns all samples again. With strict convergence, the running sums belong to the final labels, so the centers are
    recomputed from them too. Otherwise the protected iteration has already computed the centers twice.
    `Step.checked_inertia` compares the running sums with the labels.
    """
    if not found.strict:
        return _LABELS_DIFFER if step.assign(centers, update=False).n_reassigned else None
    again, n_reassigned = _last_iteration(step, found)
    if n_reassigned:
        return _LABELS_DIFFER
    return None if np.array_equal(again, centers, equal_nan=True) else "the centers were not the means of their sums"


def _fault_from_scratch(step: Step, found: IterationResult, centers: np.ndarray) -> str | None:
    """Return the fault in the result of a step that sums all samples in every pass, or None.

    Resets the labels and repeats the last iteration, then the final assignment if labels were still changing.
    """
    labels = step.labels.copy()
    step.reset()
    again, _ = _last_iteration(step, found)
    if not np.array_equal(again, centers, equal_nan=True):
        return "the recomputed centers differed"
    if not found.strict:
        step.reset()
        step.assign(centers, update=False)
    return None if bool((step.labels == labels).all()) else _LABELS_DIFFER


def _last_iteration(step: Step, found: IterationResult) -> tuple[np.ndarray, int]:
    """Repeat the last iteration; return the next centers, (k, d), and the number of labels that it changed."""
    assert found.at is not None  # set by every protected fit
    again = step.assign(found.at)
    if found.empty is None:
        return next_centers(step.data, again, found.at), again.n_reassigned
    return next_centers_after_relocation(step.data, step.labels, again, found.at), again.n_reassigned
