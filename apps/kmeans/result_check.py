"""The second computation of a protected run's result: its labels, its centers, and clusters that were filled."""

import numpy as np

from tsapps.apps.kmeans.empty_clusters import without_empty_clusters
from tsapps.apps.kmeans.engines.step import Step
from tsapps.apps.kmeans.protect.checks import Protection, same_bits
from tsapps.apps.kmeans.results import Assignment, IterationResult
from tsapps.apps.kmeans.update.means import next_centers

__all__ = ["checked_result", "filled_alike"]

_OTHER_LABELS = "samples had other labels the second time"


def filled_alike(step: Step, protection: Protection, found: Assignment, centers: np.ndarray) -> bool:
    """Tell whether `centers` follow once more from an assignment that left clusters empty, and keep them."""
    assert found.again is not None  # as of every protected fit
    again = without_empty_clusters(step.data, step.labels, found.again, protection.kept.centers)
    protection.keep(again)
    return same_bits(centers, again)


def checked_result(
    step: Step, protection: Protection, found: IterationResult, centers: np.ndarray
) -> tuple[float, str | None]:
    """Compute a run's result once more; return its inertia, and what was not the same, or None."""
    fault = (_fault_beside_sums if step.keeps_sums else _fault_from_nothing)(step, found, centers)
    inertia = float("nan")
    if fault is None:
        inertia, fault = step.checked_inertia(centers)
    if fault is None and protection.kept.differs(centers):
        fault = "its centers changed after they were computed"
    return inertia, fault


def _fault_beside_sums(step: Step, found: IterationResult, centers: np.ndarray) -> str | None:
    """Assign all samples again, and compute the centers again from the running sums, if they come from these.

    Centers that came of other labels than the last were divided twice, after their iteration. `Step.checked_inertia`
    finds out whether the sums are those of the labels.
    """
    if not found.strict:
        return _OTHER_LABELS if step.assign(centers, update=False).n_reassigned else None
    again, n_reassigned = _last_iteration(step, found)
    if n_reassigned:
        return _OTHER_LABELS
    return None if np.array_equal(again, centers, equal_nan=True) else "its centers were not the means of its sums"


def _fault_from_nothing(step: Step, found: IterationResult, centers: np.ndarray) -> str | None:
    """Make the last iteration and its labels again, from no labels."""
    labels = step.labels.copy()
    step.reset()
    again, _ = _last_iteration(step, found)
    if not np.array_equal(again, centers, equal_nan=True):
        return "its centers were not those of its last step, made from nothing"
    if not found.strict:
        step.reset()
        step.assign(centers, update=False)
    return None if bool((step.labels == labels).all()) else _OTHER_LABELS


def _last_iteration(step: Step, found: IterationResult) -> tuple[np.ndarray, int]:
    """Make the last iteration again; return the centers that follow from it, and how many labels it changed."""
    assert found.at is not None  # as it is of a protected fit
    again = step.assign(found.at)
    if found.empty is None:
        return next_centers(step.data, again, found.at), again.n_reassigned
    return without_empty_clusters(step.data, step.labels, again, found.at), again.n_reassigned
