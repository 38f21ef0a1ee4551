"""Lloyd's algorithm with the semantics of scikit-learn's `KMeans`: the loop over runs and iterations for all engines.

The loop holds the k × d centers in host memory; a `Step` processes the n samples. Random numbers are drawn from one
`RandomState` in scikit-learn's order, so that the same seed gives the clustering of `sklearn.cluster.KMeans`.
docs/promises.md lists the exceptions.

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
from tsapps.apps.kmeans.data.frame import FittedCenters, Frame, ScaledRows, exponent_of, is_in_range, ldexp
from tsapps.apps.kmeans.data.rows import ArrayRows
from tsapps.apps.kmeans.empty_clusters import next_centers_after_relocation
from tsapps.apps.kmeans.engines.engine import Engine
from tsapps.apps.kmeans.engines.step import Step
from tsapps.apps.kmeans.initial_centers import Init, initial_centers
from tsapps.apps.kmeans.protect.checks import Protection
from tsapps.apps.kmeans.result_check import checked_result, relocation_repeats
from tsapps.apps.kmeans.results import IterationResult, Report, square_shift

__all__ = ["Clustering", "Progress", "fit"]


@dataclass(frozen=True)
class Progress:
    """Report on one iteration.

    Attributes
    ----------
    run : int
        Index of the run among the `n_init` runs, from 0.
    iteration : int
        Number of the iteration in its run, from 1.
    inertia : float
        Inertia about the centers at the start of the iteration.
    n_reassigned : int
        Number of samples whose label the iteration changed.
    """

    run: int
    iteration: int
    inertia: float
    n_reassigned: int

    def __str__(self) -> str:
        """Return the report that scikit-learn prints, which counts iterations from 0."""
        return f"Iteration {self.iteration - 1}, inertia {self.inertia}."


@dataclass
class Clustering:
    """A fitted clustering of n samples with d features into k clusters.

    Attributes
    ----------
    labels : array of shape (n,), int32
        A NumPy array; from an engine of one GPU, a CuPy array.
    centers : numpy.ndarray of shape (k, d)
    inertia : float
        Σ w·‖x − c‖² over samples x of weight w and their centers c; half of that for the cosine metric.
    n_iter : int
        Number of iterations of the best run.
    converged : bool
        False if the best run reached `max_iter` before it converged.
    cluster_sizes : numpy.ndarray of shape (k,), int64
    seconds : dict of str to float
        Wall time of each phase, summed over the runs: "prepare", "seed" (initial centers) and "iterate".
    faults : int
        Number of faults that a protected fit found and corrected in all runs.
    fitted : FittedCenters
        The centers centered and scaled, as the fit computed with them; and in the units of X, as in `centers`.
    step, step_reason : str
        Name of the Lloyd step, and why it was selected; see `engines/select_step.py`.
    """

    labels: Any
    centers: np.ndarray
    inertia: float
    n_iter: int
    converged: bool
    cluster_sizes: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    seconds: dict[str, float] = field(default_factory=dict)
    faults: int = 0
    fitted: FittedCenters | None = None
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
    """Cluster the samples of an engine by Lloyd's algorithm; return the best of `n_init` runs.

    Parameters
    ----------
    engine : Engine
    n_clusters : int
        The number of clusters k, with 1 ≤ k ≤ n.
    init : {"k-means++", "k-means||", "random"}, array of shape (k, d), or callable
        As in scikit-learn; "k-means||" is `init.oversampling.kmeans_parallel`. A callable receives the centered X as a
        NumPy or CuPy array.
    n_init, max_iter, tol, random_state
        As in scikit-learn; `tol` is relative to the mean variance of the features.
    center : bool
        Whether to subtract the mean of X during the computation, as scikit-learn does for dense X. Rows of unit norm
        (cosine metric) are never centered.
    progress : callable, optional
        Called with a `Progress` after every iteration. Each pass then also sums the lowest scores, for the inertia.
    protect : bool
        Whether to check every iteration and the result, and recompute them after a fault; see `protect/checks.py`.

    Returns
    -------
    Clustering

    Raises
    ------
    ValueError
        If X has a NaN or an infinity, there are fewer samples than clusters, `init` gives invalid centers, or `protect`
        is set and the engine cannot protect fits.
    FaultError
        If a protected fit finds the same step wrong again after every recomputation.
    """
    if engine.data.n_samples < n_clusters:
        raise ValueError(f"n_samples={engine.data.n_samples} should be >= n_clusters={n_clusters}.")
    if protect:
        _check_protectable(engine)
    runs = _number_of_runs(init, n_init)
    clock = _Clock()
    with engine.fitting(n_clusters, draws=isinstance(init, str) and init == "k-means++"):
        engine, mean, variance, exponent = _scaled_into_range(engine)
        best: Clustering | None = None
        protection = Protection() if protect else None
        with engine:
            data = engine.data
            engine.center(mean if center and not data.spherical else np.zeros_like(mean), n_clusters)
            frame = Frame(data.host_mean(), exponent)
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
                    found.inertia < best.inertia and not step.same_clustering(found.labels, best.labels, n_clusters)
                ):
                    best, kept = found, None if protection is None else protection.kept
                    if runs > 1:
                        best.labels = found.labels.copy()
            assert best is not None  # there is at least one run
            best.cluster_sizes = step.cluster_sizes(best.labels, n_clusters)
            best.step, best.step_reason = engine.selection(n_clusters)
            if protection is not None and kept is not None:
                # The centers were checked when their run ended, but memory errors may have changed them since.
                changed = kept.differs(best.centers)
                best.faults = protection.faults + changed
                best.centers = kept.intact(best.centers) if changed else best.centers
    given = frame.restored(best.centers)
    best.fitted, best.centers = FittedCenters(frame, best.centers, given), given
    best.inertia = float(ldexp(best.inertia, 2 * exponent))
    best.seconds = clock.seconds
    distinct = int(np.count_nonzero(best.cluster_sizes))
    if distinct < n_clusters:
        _warn_of_duplicates(distinct, n_clusters)
    return best


def _check_protectable(engine: Engine) -> None:
    if not engine.certifies:
        raise ValueError("protect=True needs precision='exact': tf32 labels are not certified and cannot be checked")
    if not engine.protects:
        raise ValueError(f"protect=True runs on one GPU or the CPU, got device={engine.data.device!r}")


def _warn_of_duplicates(distinct: int, n_clusters: int) -> None:
    from sklearn.exceptions import ConvergenceWarning

    warnings.warn(
        f"Number of distinct clusters ({distinct}) found smaller than n_clusters ({n_clusters}). "
        "Possibly due to duplicate points in X.",
        ConvergenceWarning,
        stacklevel=3,
    )


def _scaled_into_range(engine: Engine) -> tuple[Engine, np.ndarray, float, int]:
    """Scale X by a power of two if squared distances would overflow or underflow; see `Frame`.

    Returns
    -------
    engine : Engine
        The given engine, or an engine over the scaled rows x · 2^−exponent.
    mean : numpy.ndarray of shape (d,)
        The mean of the returned engine's rows.
    variance : float
        The mean variance of the returned engine's features.
    exponent : int
        0 if the rows are not scaled.
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
    """Calls the caller's `progress` function after every iteration, with the inertia in the units of X."""

    def __init__(self, progress: Callable[[Progress], None], data: Data, exponent: int) -> None:
        self._progress, self._spherical, self._exponent = progress, data.spherical, exponent
        self._square_norm = data.square_norm()

    def report(self, run: int, iteration: int, n_reassigned: int, potential: float) -> None:
        inertia = (self._square_norm + potential) / (2 if self._spherical else 1)
        self._progress(Progress(run, iteration, float(ldexp(inertia, 2 * self._exponent)), n_reassigned))


def _exponent(data: Data, variance: float) -> int:
    """Return an exponent for which squared distances of x · 2^−exponent neither overflow nor underflow; 0 for most X.

    `variance` is infinite if it has overflowed.
    """
    square = data.n_features * variance
    if is_in_range(data.dtype, square, data.n_samples * square):
        return 0
    extent, size = data.extents(data.rows(np.array([0]))[0])
    # Scaling up must not overflow values that are far from zero compared with their spread.
    most = np.finfo(data.dtype).maxexp - 2 - int(np.frexp(size)[1])
    return max(exponent_of(extent), -most)


def _number_of_runs(init: Init, n_init: int | str) -> int:
    """Return the number of runs: 1 if `init` is an array; for "auto", scikit-learn's number."""
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
    """Accumulates the wall time of each phase."""

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
    # For small arrays, use scikit-learn's rounding; see `SMALL` in data/blocks.py.
    rounded = data.rounded_moments()
    if rounded is not None:
        return rounded
    X = source.on_host.astype(data.dtype, order="C", copy=False)
    with np.errstate(over="ignore", invalid="ignore"):
        mean = X.mean(axis=0, keepdims=True)
        return mean[0], float(np.mean(np.var(X, axis=0, mean=mean)))


def _single_run(step: Step, first: np.ndarray, max_iter: int, tol: float, report: Report | None) -> Clustering:
    """Iterate from the centers `first`, (k, d), until convergence or `max_iter`, and assign the final labels.

    The run converges if no label changes, or if the squared center shift is at most `tol`. If a check finds a fault in
    an iteration of a protected run, that iteration is repeated. At the end, the result of a protected run is
    recomputed. If the two results differ, the whole run is repeated.
    """
    protection = step.protection
    if protection is not None:
        protection.begin_run()
    while True:
        ended = _iterate_run(step, first, max_iter, tol, report)
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
    return Clustering(step.labels, centers, inertia, done, converged)


def _iterate_run(
    step: Step, first: np.ndarray, max_iter: int, tol: float, report: Report | None
) -> tuple[IterationResult, np.ndarray, int, bool] | None:
    """Iterate from the centers `first`, (k, d), which are not modified, until convergence or `max_iter`.

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
    centers, done, converged = first, 0, False
    if protection is not None:
        centers = first.copy()  # if they change, the run begins again at `first`
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
            centers = next_centers_after_relocation(step, found.empty, found.centers)
            shift = square_shift(found.centers, centers)
            if protection is not None and not relocation_repeats(step, protection, found.empty, centers):
                protection.found("empty clusters were relocated differently when recomputed", "a run")
                return None
            found = replace(found, relocated=True)
        if found.relocated:
            found = replace(found, strict=found.strict and shift == 0)
        converged = converged or shift <= tol
    return found, centers, done, converged
