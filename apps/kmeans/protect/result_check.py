"""The second computation of what a protected run found: its labels, its centers, and clusters that were filled."""

from functools import partial

import numpy as np

from tsapps.apps.kmeans.empty_clusters import without_empty_clusters
from tsapps.apps.kmeans.engines.engine import Engine
from tsapps.apps.kmeans.protect.checks import Protection, same_bits
from tsapps.apps.kmeans.results import Assignment, Iterated

__all__ = ["checked_result", "filled_alike"]

_OTHER_LABELS = "samples had other labels the second time"


def filled_alike(engine: Engine, protection: Protection, step: Assignment, centers: np.ndarray) -> bool:
    """Tell whether `centers` follow from a step that left clusters empty once more, and keep them."""
    assert step.again is not None  # as of every protected fit
    again = without_empty_clusters(engine, step.again, protection.kept.centers)
    protection.keep(again)
    return same_bits(centers, again)


def checked_result(
    engine: Engine, protection: Protection, found: Iterated, centers: np.ndarray
) -> tuple[float, str | None]:
    """Compute a run's result once more; return its inertia, and what was not the same, or None."""
    fault = (_fault_beside_sums if engine.keeps_sums else _fault_from_nothing)(engine, found, centers)
    inertia = float("nan")
    if fault is None:
        inertia, fault = engine.checked_inertia(centers)
    if fault is None and protection.kept.differs(centers):
        fault = "its centers changed after they were computed"
    return inertia, fault


def _fault_beside_sums(engine: Engine, found: Iterated, centers: np.ndarray) -> str | None:
    """Give all samples their labels again, and make the centers again of the sums that are kept, if they are theirs.

    Centers that came of other labels than the last were divided twice, after their iteration. Whether the sums are
    those of the labels, `Engine.checked_inertia` finds out.
    """
    if not found.strict:
        return _OTHER_LABELS if engine.assign(centers, update=False).n_reassigned else None
    again, n_reassigned = _last_step(engine, found)
    if n_reassigned:
        return _OTHER_LABELS
    return None if np.array_equal(again, centers, equal_nan=True) else "its centers were not the means of its sums"


def _fault_from_nothing(engine: Engine, found: Iterated, centers: np.ndarray) -> str | None:
    """Make the last step and its labels again, from no labels."""
    labels = engine.labels.copy()
    engine.forget_labels()
    again, _ = _last_step(engine, found)
    if not np.array_equal(again, centers, equal_nan=True):
        return "its centers were not those of its last step, made from nothing"
    if not found.strict:
        engine.forget_labels()
        engine.assign(centers, update=False)
    return None if bool((engine.labels == labels).all()) else _OTHER_LABELS


def _last_step(engine: Engine, found: Iterated) -> tuple[np.ndarray, int]:
    """Make the last iteration's step again; return the centers that follow from it, and how many labels it changed."""
    assert found.at is not None  # as it is of a protected fit
    step = engine.assign(found.at)
    next_centers = engine.next_centers if found.empty is None else partial(without_empty_clusters, engine)
    return next_centers(step, found.at), step.n_reassigned
