"""ABFT check of the result of a protected run: recomputes labels, centers and relocated empty clusters."""

import numpy as np

from tsapps.apps.kmeans.empty_clusters import next_centers_after_relocation
from tsapps.apps.kmeans.engines.step import Step
from tsapps.apps.kmeans.protect.checks import Protection, same_bits
from tsapps.apps.kmeans.results import Assignment, IterationResult
from tsapps.apps.kmeans.update.means import next_centers

__all__ = ["checked_result", "relocation_repeats"]

_LABELS_DIFFER = "recomputed labels differed"


def relocation_repeats(step: Step, protection: Protection, found: Assignment, centers: np.ndarray) -> bool:
    """Relocate empty clusters again, store the resulting centers, and return True if they equal `centers`.

    Parameters
    ----------
    step : Step
    protection : Protection
    found : Assignment
        The assignment that left clusters empty. The sums that were computed a second time, `found.again`, are changed
        in place.
    centers : numpy.ndarray of shape (k, d)
        The centers after the first relocation.
    """
    assert found.again is not None  # set by every protected fit
    again = next_centers_after_relocation(step, found.again, protection.kept.centers)
    protection.keep(again)
    return same_bits(centers, again)


def checked_result(
    step: Step, protection: Protection, found: IterationResult, centers: np.ndarray
) -> tuple[float, str | None]:
    """Recompute the result of a protected run, compare it with the first result, and compute the inertia.

    Parameters
    ----------
    step : Step
    protection : Protection
    found : IterationResult
        Outcome of the last iterations of the run.
    centers : numpy.ndarray of shape (k, d)
        The final centers.

    Returns
    -------
    inertia : float
        NaN if labels or centers were wrong.
    fault : str or None
        Description of the first difference; None if the results are equal.
    """
    fault = (_fault_with_running_sums if step.keeps_sums else _fault_from_scratch)(step, found, centers)
    inertia = float("nan")
    if fault is None:
        inertia, fault = step.checked_inertia(centers)
    if fault is None and protection.kept.differs(centers):
        fault = "the centers changed after they were computed"
    return inertia, fault


def _fault_with_running_sums(step: Step, found: IterationResult, centers: np.ndarray) -> str | None:
    """Return a description of the fault in the result of a step that updates running sums, or None.

    Assigns all samples again. With strict convergence, the running sums belong to the final labels, so the centers are
    recomputed from the sums too. Otherwise the check of the last iteration has already recomputed the centers.
    `Step.checked_inertia` compares the running sums with the labels.
    """
    if not found.strict:
        return _LABELS_DIFFER if step.assign(centers, update=False).n_reassigned else None
    again, n_reassigned = _last_iteration(step, found)
    if n_reassigned:
        return _LABELS_DIFFER
    return None if np.array_equal(again, centers, equal_nan=True) else "the centers were not the means of their sums"


def _fault_from_scratch(step: Step, found: IterationResult, centers: np.ndarray) -> str | None:
    """Return a description of the fault in the result of a step that sums all samples in every pass, or None.

    Resets the labels and repeats the last iteration. Without strict convergence, repeats the final assignment too.
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
    """Repeat the last iteration; return the new centers, (k, d), and the number of labels that changed this time."""
    assert found.at is not None  # set by every protected fit
    again = step.assign(found.at)
    if found.empty is None:
        return next_centers(step.data, again, found.at), again.n_reassigned
    return next_centers_after_relocation(step, again, found.at), again.n_reassigned
