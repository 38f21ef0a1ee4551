"""One run of Lloyd's algorithm: iterations from initial centers, or from a checkpoint, until convergence."""

from dataclasses import replace
from typing import Any

import numpy as np

from tsapps.apps.kmeans.checkpoint import Checkpoint
from tsapps.apps.kmeans.checkpoint_files import Start
from tsapps.apps.kmeans.empty_clusters import next_centers_after_relocation
from tsapps.apps.kmeans.engines.step import Step
from tsapps.apps.kmeans.result_check import checked_result, relocation_repeats
from tsapps.apps.kmeans.results import IterationResult, Report, Run, square_shift
from tsapps.kernels.system.logs import logger_of

__all__ = ["labels_of", "single_run"]

_log = logger_of(__name__)


def single_run(
    step: Step, start: Start, max_iter: int, tol: float, report: Report | None, checkpoint: Checkpoint | None = None
) -> Run:
    """Iterate from `start` until convergence or `max_iter`, and assign the final labels.

    The run converges if no label changes, or if the squared center shift is at most `tol`. If a check finds a fault in
    an iteration of a protected run, that iteration is repeated. At the end, the result of a protected run is
    recomputed. If the two results differ, the run is repeated from `start`.
    """
    protection = step.protection
    if protection is not None:
        protection.begin_run()
    while True:
        ended = _iterate_run(step, start, max_iter, tol, report, checkpoint)
        if ended is None:
            continue
        found, centers, done, converged = ended
        if not found.strict:
            step.assign_final(centers)  # the last iteration changed labels and centers
        if protection is None:
            inertia = step.inertia(centers)
            break
        inertia, fault = checked_result(step, protection, found, centers)
        if fault is None:
            break
        protection.found(fault, "the result of a run")
    return Run(step.labels, centers, inertia, done, converged)


def _iterate_run(
    step: Step, start: Start, max_iter: int, tol: float, report: Report | None, checkpoint: Checkpoint | None
) -> tuple[IterationResult, np.ndarray, int, bool] | None:
    """Iterate from `start`, whose centers are not modified, until convergence or `max_iter`.

    A run that continues from a checkpoint repeats the iteration before the checkpoint: it makes the labels again, on
    which strict convergence depends, and its new centers must be those of the checkpoint.

    Returns
    -------
    found : IterationResult
        Outcome of the last call of `Step.iterate`.
    centers : numpy.ndarray of shape (k, d)
        The final centers.
    done : int
        Number of iterations.
    converged : bool

    Returns None instead if a fault corrupted the centers of a protected run; the caller must then repeat the run.
    """
    protection = step.protection
    step.reset()
    centers, done, converged = start.centers, start.done, False
    if protection is not None:
        centers = start.centers.copy()  # if they change, the run begins again at `start`
        protection.keep(start.centers)
    while done < max_iter and not converged:
        repeats, last = start.following is not None and done == start.done, max_iter
        if checkpoint is not None:
            last = done + 1 if repeats else checkpoint.last_iteration(done, max_iter)
        given, found = centers, step.iterate(centers, done, last, tol, None if repeats else report)
        done += found.count
        centers, shift = found.centers, found.shift
        _log.debug("after iteration %d: squared center shift %.3g, to be at most %.3g", done, shift, tol)
        if protection is not None and found.fault is not None:
            protection.found(found.fault, "the centers of a run" if found.lost else f"iteration {done + 1}")
            if found.lost:
                return None
            step.reset()
            continue
        converged = found.strict
        if found.empty is not None:
            centers = next_centers_after_relocation(step, found.empty, found.centers)
            shift = square_shift(found.centers, centers)
            if protection is not None and not relocation_repeats(step, protection, found.empty, centers):
                protection.found("empty clusters were relocated differently when recomputed", "a run")
                return None
            found = replace(found, relocated=True)
        if found.relocated:
            found = replace(found, strict=found.strict and shift == 0)
        converged = converged or shift <= tol
        if checkpoint is not None and repeats:
            checkpoint.check_repeated(start, centers)
        elif checkpoint is not None and not converged and done < max_iter and found.count == 1:
            checkpoint.reached(done, centers, given, 0 if protection is None else protection.faults)
    return found, centers, done, converged


def labels_of(step: Step, centers: np.ndarray) -> Any:
    """Return the labels of all samples for `centers` (k, d), the step's own array. A protected fit compares two passes.

    Raises
    ------
    FaultError
        If the labels of a protected fit differ again after every recomputation.
    """
    protection = step.protection
    while True:
        step.reset()
        step.assign(centers, update=False)
        if protection is None:
            return step.labels
        labels = step.labels.copy()
        step.reset()
        step.assign(centers, update=False)
        if bool((step.labels == labels).all()):
            return step.labels
        protection.found("recomputed labels differed", "the labels of an earlier run")
