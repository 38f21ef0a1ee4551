"""Lloyd's algorithm: one loop for every engine, with scikit-learn's semantics to the letter.

The loop holds the centers in host memory (k×d numbers) and asks a `Step` for iterations over the n samples. It never
sees X. Random numbers are drawn from one `RandomState` in scikit-learn's order, so the same seed finds the same
clustering as `sklearn.cluster.KMeans`.

References
----------
Lloyd, "Least squares quantization in PCM", IEEE Trans. Inf. Theory 28 (1982).
"""

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from tsapps.apps.kmeans.data.blocks import Data
from tsapps.apps.kmeans.data.frame import Frame, Placed, ScaledRows, exponent_of, is_in_range, ldexp
from tsapps.apps.kmeans.data.rows import ArrayRows
from tsapps.apps.kmeans.empty_clusters import without_empty_clusters
from tsapps.apps.kmeans.engines.engine import Engine
from tsapps.apps.kmeans.engines.step import Step
from tsapps.apps.kmeans.initial_centers import Init, initial_centers
from tsapps.apps.kmeans.protect.checks import Protection
from tsapps.apps.kmeans.result_check import checked_result, filled_alike
from tsapps.apps.kmeans.results import IterationResult, Report, square_shift
from tsapps.kernels.arrays import to_host

__all__ = ["Clustering", "Progress", "fit"]

# Labels are compared so many at a time: as indices they take eight bytes each.
_LABELS_AT_ONCE = 1 << 21


@dataclass(frozen=True)
class Progress:
    """What the loop tells its listener after every iteration.

    Attributes
    ----------
    run : int
        Which of the `n_init` runs, from 0.
    iteration : int
        From 1.
    inertia : float
        Of the samples and the centers that they were just assigned to.
    n_reassigned : int
        Samples whose label this iteration changed.
    """

    run: int
    iteration: int
    inertia: float
    n_reassigned: int


@dataclass
class Clustering:
    """A fitted clustering of n samples in d dimensions into k clusters.

    Attributes
    ----------
    labels : array of shape (n,), int32
        NumPy or, from a GPU engine, CuPy.
    centers : numpy.ndarray of shape (k, d)
    inertia : float
        Σ w·‖x − c‖².
    n_iter : int
        Iterations of the best run.
    converged : bool
        False where the best run ended at `max_iter`.
    cluster_sizes : numpy.ndarray of shape (k,), int64
    seconds : dict of str to float
        Wall time by phase: "prepare", "seed", "iterate".
    faults : int
        Steps of a protected fit that went wrong and were made again, in all runs.
    placed : Placed
        The centers as labels were found with them.
    step, step_reason : str
        The name of the step that iterated, and why it was selected; see `engines/select_step.py`.
    """

    labels: Any
    centers: np.ndarray
    inertia: float
    n_iter: int
    converged: bool
    cluster_sizes: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    seconds: dict[str, float] = field(default_factory=dict)
    faults: int = 0
    placed: Placed | None = None
    step: str = ""
    step_reason: str = ""


def fit(
    engine: Engine,
    n_clusters: int,
    *,
    init: Init = "k-means++",
    n_init: int | str = "auto",
    max_iter: int = 300,
    tol: float = 1e-4,
    random_state: np.random.RandomState,
    center: bool = True,
    progress: Callable[[Progress], None] | None = None,
    protect: bool = False,
) -> Clustering:
    """Cluster the samples of an engine; keep the best of `n_init` runs.

    Parameters
    ----------
    engine : Engine
    n_clusters : int
        k, with 1 ≤ k ≤ n.
    init : {"k-means++", "k-means||", "random"}, array of shape (k, d), or callable
        As in scikit-learn, and `init.plusplus.kmeans_parallel`; a callable is given the centered X, a NumPy or CuPy
        array.
    n_init, max_iter, tol, random_state
        As in scikit-learn; `tol` is relative to the mean variance of the features.
    center : bool
        Whether to subtract the mean of X while working (scikit-learn does, but for sparse X). An engine of unit rows is
        never centered.
    progress : callable, optional
        Called with a `Progress` after every iteration; costs the pass's best scores.
    protect : bool
        Whether every step and the result are checked, and made again where they are wrong; see `protect/checks.py`.

    Returns
    -------
    Clustering

    Raises
    ------
    ValueError
        If X has a NaN or an infinity, `init` gives centers of another shape, or labels are to be protected that are not
        proved.
    FaultError
        If a step of a protected fit goes wrong again and again.
    """
    if engine.data.n_samples < n_clusters:
        raise ValueError(f"n_samples={engine.data.n_samples} should be >= n_clusters={n_clusters}.")
    if protect and not engine.certifies:
        raise ValueError("protect=True needs precision='exact': of labels that are not proved none can be called wrong")
    runs = _number_of_runs(init, n_init)
    clock = _Clock()
    engine, mean, variance, exponent = _in_range(engine)
    best: Clustering | None = None
    protection = Protection() if protect else None
    with engine:
        data = engine.data
        engine.center(mean if center and not data.spherical else np.zeros_like(mean), n_clusters)
        frame = Frame(to_host(data.mean).copy(), exponent)
        listener = None if progress is None else _Listener(progress, data, exponent)
        clock.lap("prepare")
        for run in range(runs):
            centers = initial_centers(engine, n_clusters, init, random_state, frame)
            clock.lap("seed")
            step = engine.step_for(n_clusters)
            step.protection = protection
            report = None if listener is None else partial(listener.report, run)
            found = _single_run(step, centers, max_iter, variance * tol, report)
            clock.lap("iterate")
            if best is None or (
                found.inertia < best.inertia and not _same_clustering(found.labels, best.labels, n_clusters)
            ):
                best, kept = found, None if protection is None else protection.kept
                if runs > 1:
                    best.labels = found.labels.copy()
        assert best is not None  # there is at least one run
        best.cluster_sizes = step.cluster_sizes(best.labels, n_clusters)
        best.step, best.step_reason = engine.selection(n_clusters)
        if protection is not None and kept is not None:
            # They were checked at the end of their run, and others may have come since.
            changed = kept.differs(best.centers)
            best.faults = protection.faults + changed
            best.centers = kept.intact(best.centers) if changed else best.centers
    given = frame.restored(best.centers)
    best.placed, best.centers = Placed(frame, best.centers, given), given
    best.inertia = float(ldexp(best.inertia, 2 * exponent))
    best.seconds = clock.seconds
    distinct = int(np.count_nonzero(best.cluster_sizes))
    if distinct < n_clusters:
        _warn_of_duplicates(distinct, n_clusters)
    return best


def _warn_of_duplicates(distinct: int, n_clusters: int) -> None:
    from sklearn.exceptions import ConvergenceWarning

    warnings.warn(
        f"Number of distinct clusters ({distinct}) found smaller than n_clusters ({n_clusters}). "
        "Possibly due to duplicate points in X.",
        ConvergenceWarning,
        stacklevel=3,
    )


def _in_range(engine: Engine) -> tuple[Engine, np.ndarray, float, int]:
    """Return an engine over rows that are scaled so that no square of a distance overflows or underflows.

    Returns
    -------
    engine : Engine
    mean : numpy.ndarray of shape (d,)
        The mean of its rows.
    variance : float
        The mean variance of its features.
    exponent : int
        Its rows are those of X times 2^−exponent; see `Frame`.
    """
    with engine:
        mean, variance = _moments(engine.data)
        exponent = 0 if engine.data.spherical else _exponent(engine.data, variance)
    if exponent:
        engine = engine.over(ScaledRows(engine.data.source, exponent, engine.data.dtype))
        with engine:
            mean, variance = _moments(engine.data)
    return engine, mean, variance, exponent


class _Listener:
    """Reports iterations to the caller's function."""

    def __init__(self, progress: Callable[[Progress], None], data: Data, exponent: int) -> None:
        self._progress, self._spherical, self._exponent = progress, data.spherical, exponent
        self._square_norm = data.square_norm()

    def report(self, run: int, iteration: int, n_reassigned: int, potential: float) -> None:
        inertia = (self._square_norm + potential) / (2 if self._spherical else 1)
        self._progress(Progress(run, iteration, float(ldexp(inertia, 2 * self._exponent)), n_reassigned))


def _exponent(data: Data, variance: float) -> int:
    """Return the exponent of the unit in which no square of a distance overflows or underflows; see `Frame`."""
    square = data.n_features * variance
    if is_in_range(data.dtype, square, data.n_samples * square):
        return 0
    first = data.xp.asarray(0.5 * data.rows(np.array([0]))[0])

    def extent(_: int, block: Any) -> tuple[float, float]:
        return float(abs(0.5 * block - first).max()), float(abs(block).max())

    extents, sizes = zip(*data.each_block(extent, data.n_features), strict=True)
    # What is far from zero beside its spread cannot be scaled up as far.
    most = np.finfo(data.dtype).maxexp - 2 - int(np.frexp(max(sizes))[1])
    return max(exponent_of(max(extents)), -most)


def _number_of_runs(init: Init, n_init: int | str) -> int:
    """Return how many runs `n_init` means: one from given centers, and "auto" as in scikit-learn."""
    given = not isinstance(init, str) and not callable(init)
    if n_init == "auto":
        return 1 if given or init in ("k-means++", "k-means||") else 10
    if given and n_init != 1:
        warnings.warn(
            f"Explicit initial center position passed: performing only one init instead of n_init={n_init}.",
            RuntimeWarning,
            stacklevel=3,
        )
        return 1
    return int(n_init)


class _Clock:
    """Adds up the wall time of each phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, phase: str) -> None:
        now = time.perf_counter()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._last
        self._last = now


def _moments(data: Data) -> tuple[np.ndarray, float]:
    """Return the mean of X (d,) and the mean variance of its features."""
    found, source = data.moments(), data.source
    if not isinstance(source, ArrayRows) or not data.is_small:
        return found
    # scikit-learn's own rounding; see SMALL.
    rounded = data.rounded_moments()
    if rounded is not None:
        return rounded
    X = source.on_host.astype(data.dtype, order="C", copy=False)
    with np.errstate(over="ignore", invalid="ignore"):
        mean = X.mean(axis=0, keepdims=True)
        return mean[0], float(np.mean(np.var(X, axis=0, mean=mean)))


def _single_run(step: Step, first: np.ndarray, max_iter: int, tol: float, report: Report | None) -> Clustering:
    """Iterate until no label changes, the centers move less than `tol` in all (squared), or `max_iter`.

    A protected run makes a step again that went wrong, and all of it where its result cannot be made twice.
    """
    protection = step.protection
    if protection is not None:
        protection.begin_run()
    while True:
        ended = _iterated(step, first, max_iter, tol, report)
        if ended is None:
            continue
        found, centers, done, converged = ended
        if not found.strict:
            # So that the labels are those of the final centers.
            step.assign(centers, update=False)
        if protection is None:
            inertia = step.inertia(centers)
            break
        inertia, fault = checked_result(step, protection, found, centers)
        if fault is None:
            break
        protection.found(fault, "the result of a run")
    return Clustering(step.labels, centers, inertia, done, converged)


def _iterated(
    step: Step, first: np.ndarray, max_iter: int, tol: float, report: Report | None
) -> tuple[IterationResult, np.ndarray, int, bool] | None:
    """Iterate from the first centers of a run, (k, d), which stay as they are.

    Returns
    -------
    found : IterationResult
        The last iterations.
    centers : numpy.ndarray of shape (k, d)
    done : int
        Iterations.
    converged : bool
        All are None if a protected run lost its centers, and is to begin again.
    """
    protection = step.protection
    step.reset()
    centers, done, converged = first.copy(), 0, False
    if protection is not None:
        protection.keep(first)
    while done < max_iter and not converged:
        found = step.iterate(centers, done, max_iter, tol, report)
        done += found.count
        centers, shift = found.centers, found.shift
        if protection is not None and found.fault is not None:
            protection.found(found.fault, "the centers of a run" if found.lost else f"iteration {done + 1}")
            if found.lost:
                return None
            step.reset()
            continue
        converged = found.strict
        if found.empty is not None:
            centers = without_empty_clusters(step.data, step.labels, found.empty, found.centers)
            shift = square_shift(found.centers, centers)
            if protection is not None and not filled_alike(step, protection, found.empty, centers):
                protection.found("clusters that were empty were filled otherwise the second time", "a run")
                return None
            # Labels may have stood, and yet not be those of the new centers.
            found = replace(found, strict=found.strict and shift == 0)
        converged = converged or shift <= tol
    return found, centers, done, converged


def _same_clustering(labels: Any, others: Any, n_clusters: int) -> bool:
    """Tell whether each label in `labels` goes with only one in `others`: the same clusters under other names."""
    labels, others = to_host(labels), to_host(others)
    partner = np.full(n_clusters, -1, np.int32)
    parts = [slice(start, start + _LABELS_AT_ONCE) for start in range(0, len(labels), _LABELS_AT_ONCE)]
    for part in parts:
        partner[labels[part]] = others[part]
    return all((partner[labels[part]] == others[part]).all() for part in parts)
