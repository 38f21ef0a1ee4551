"""Lloyd's algorithm with the semantics of scikit-learn's `KMeans`: the loop over runs and iterations for all engines.

The loop holds the k × d centers in host memory; a `Step` processes the n samples. Random numbers are drawn from one
`RandomState` in scikit-learn's order, so that the same seed gives the clustering of `sklearn.cluster.KMeans`.
docs/promises.md lists the exceptions.

References
----------
Lloyd, "Least squares quantization in PCM", IEEE Trans. Inf. Theory 28 (1982).
"""

import logging
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from tsapps.apps.kmeans.checkpoint import Checkpoint
from tsapps.apps.kmeans.checkpoint_files import Start, State
from tsapps.apps.kmeans.data.blocks import Data
from tsapps.apps.kmeans.data.frame import FittedCenters, Frame, ldexp
from tsapps.apps.kmeans.engines.engine import Engine
from tsapps.apps.kmeans.init.chosen import Chosen
from tsapps.apps.kmeans.initial_centers import Init, initial_centers
from tsapps.apps.kmeans.prepare import facts_of, scaled_into_range
from tsapps.apps.kmeans.protect.checks import Kept, Protection
from tsapps.apps.kmeans.results import Run
from tsapps.apps.kmeans.run import labels_of, single_run
from tsapps.kernels.system.logs import logger_of

__all__ = ["Clock", "Clustering", "Progress", "clustering_of", "fit", "number_of_runs"]

_log = logger_of(__name__)


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

    def __str__(self) -> str:
        """Return the outcome of the fit, and the seconds of its phases, in one line."""
        ended = "converged" if self.converged else "not converged"
        seconds = ", ".join(f"{phase} {seconds:.2f} s" for phase, seconds in self.seconds.items())
        return f"{self.n_iter} iterations, {ended}, inertia {self.inertia:.6g}; {seconds}"


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
    choosing: Callable[[int, int, int], None] | None = None,
    protect: bool = False,
    checkpoint: Checkpoint | None = None,
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
    choosing : callable, optional
        Called while initial centers are chosen, with the index of the run and the parameters of `Chosen`.
    protect : bool
        Whether to check every iteration and the result, and recompute them after a fault; see `protect/checks.py`.
    checkpoint : Checkpoint, optional
        Where to write the state of the fit, and to continue from. The caller calls `Checkpoint.finish` afterwards.

    Returns
    -------
    Clustering

    Raises
    ------
    ValueError
        If X has a NaN or an infinity, there are fewer samples than clusters, `init` gives invalid centers, `protect`
        is set and the engine cannot protect fits, or the checkpoint is damaged or of another fit.
    FaultError
        If a protected fit finds the same step wrong again after every recomputation.
    """
    if engine.data.n_samples < n_clusters:
        raise ValueError(f"n_samples={engine.data.n_samples} should be >= n_clusters={n_clusters}.")
    if protect:
        _check_protectable(engine)
    runs = number_of_runs(init, n_init)
    clock = Clock()
    with engine.fitting(n_clusters, draws=isinstance(init, str) and init == "k-means++"):
        engine, moments, exponent = scaled_into_range(engine)
        with engine:
            data = engine.data
            engine.center(moments.mean if center and not data.spherical else np.zeros_like(moments.mean), n_clusters)
            frame, state = Frame(data.host_mean(), exponent), State()
            listener = None if progress is None else _Listener(progress, data, exponent)
            if checkpoint is not None:
                facts = facts_of(engine, n_clusters, frame, moments)
                state, random_state = checkpoint.begin(facts, random_state)
            clock.lap("prepare")
            if _log.isEnabledFor(logging.INFO):
                _log.info("k = %d: step %s: %s", n_clusters, *engine.selection(n_clusters))
            draw = partial(initial_centers, engine, n_clusters, init, random_state, frame)
            protection = Protection() if protect else None
            told = listener, choosing
            loop = _Loop(engine, n_clusters, draw, max_iter, moments.variance * tol, *told, protection, checkpoint)
            best, kept = loop.best_of(runs, state, clock)
            cluster_sizes = engine.step_for(n_clusters).cluster_sizes(best.labels, n_clusters)
            step, step_reason = engine.selection(n_clusters)
            if protection is not None and kept is not None and kept.differs(best.centers):
                # The centers were checked when their run ended, but memory errors may have changed them since.
                protection.faults += 1
                best.centers = kept.intact(best.centers)
    faults = 0 if protection is None else protection.faults
    return clustering_of(best, frame, cluster_sizes, clock.seconds, (step, step_reason), faults)


def clustering_of(
    best: Run,
    frame: Frame,
    cluster_sizes: np.ndarray,
    seconds: dict[str, float],
    step: tuple[str, str],
    faults: int = 0,
) -> Clustering:
    """Return the clustering of the best run; `step` is its Lloyd step's name, and why that was selected."""
    given, exponent, n_clusters = frame.restored(best.centers), frame.exponent, len(best.centers)
    found = Clustering(best.labels, given, float(ldexp(best.inertia, 2 * exponent)), best.n_iter, best.converged)
    found.cluster_sizes, found.seconds, found.faults = cluster_sizes, seconds, faults
    found.fitted, (found.step, found.step_reason) = FittedCenters(frame, best.centers, given), step
    _log.info("k = %d: %s", n_clusters, found)
    distinct = int(np.count_nonzero(cluster_sizes))
    if distinct < n_clusters:
        _warn_of_duplicates(distinct, n_clusters)
    return found


@dataclass(frozen=True)
class _Loop:
    """The runs of a fit, from initial centers that `draw` returns; for the others, see `fit`. `tol` is absolute."""

    engine: Engine
    n_clusters: int
    draw: Callable[[Chosen | None], np.ndarray]
    max_iter: int
    tol: float
    listener: "_Listener | None"
    choosing: Callable[[int, int, int], None] | None
    protection: Protection | None
    checkpoint: Checkpoint | None

    def best_of(self, runs: int, state: State, clock: "Clock") -> tuple[Run, Kept | None]:
        """Return the best of all runs, of which those before `state` have ended, and a copy of its centers."""
        protection, checkpoint, best, kept = self.protection, self.checkpoint, state.best, None
        if protection is not None:
            protection.faults = state.faults
        if best is not None:
            best.labels = self._labels_of(best.centers, keep=state.run < runs)
            kept = None if protection is None else protection.kept
        for run in range(state.run, runs):
            start = state.start if run == state.run else None
            if start is None:
                start = Start(self.draw(None if self.choosing is None else partial(self.choosing, run)))
                clock.lap("seed")
            step = self.engine.step_for(self.n_clusters)
            step.protection = protection
            if checkpoint is not None:
                checkpoint.begin_run(run, start, 0 if protection is None else protection.faults)
            report = None if self.listener is None else partial(self.listener.report, run)
            found = single_run(step, start, self.max_iter, self.tol, report, checkpoint)
            clock.lap("iterate")
            if best is None or (
                found.inertia < best.inertia and not step.same_clustering(found.labels, best.labels, self.n_clusters)
            ):
                best, kept = found, None if protection is None else protection.kept
                if runs > 1:
                    best.labels = found.labels.copy()
            if checkpoint is not None:
                checkpoint.end_run(best, 0 if protection is None else protection.faults)
        assert best is not None  # there is at least one run
        return best, kept

    def _labels_of(self, centers: np.ndarray, *, keep: bool) -> Any:
        """Return the labels for the centers (k, d) of an earlier run; a copy if later runs must `keep` them."""
        step = self.engine.step_for(self.n_clusters)
        step.protection = self.protection
        if self.protection is not None:
            self.protection.begin_run()
            self.protection.keep(centers)
        labels = labels_of(step, centers)
        return labels.copy() if keep else labels


def _check_protectable(engine: Engine) -> None:
    if not engine.certifies:
        raise ValueError("protect=True needs precision='exact': tf32 labels are not certified and cannot be checked")
    if not engine.protects:
        raise ValueError(f"protect=True runs in one process, got device={engine.data.device!r}")


def _warn_of_duplicates(distinct: int, n_clusters: int) -> None:
    from sklearn.exceptions import ConvergenceWarning

    warnings.warn(
        f"Number of distinct clusters ({distinct}) found smaller than n_clusters ({n_clusters}). "
        "Possibly due to duplicate points in X.",
        ConvergenceWarning,
        stacklevel=4,
    )


class _Listener:
    """Calls the caller's `progress` function after every iteration, with the inertia in the units of X."""

    def __init__(self, progress: Callable[[Progress], None], data: Data, exponent: int) -> None:
        self._progress, self._spherical, self._exponent = progress, data.spherical, exponent
        self._square_norm = data.square_norm()

    def report(self, run: int, iteration: int, n_reassigned: int, potential: float) -> None:
        inertia = (self._square_norm + potential) / (2 if self._spherical else 1)
        self._progress(Progress(run, iteration, float(ldexp(inertia, 2 * self._exponent)), n_reassigned))


def number_of_runs(init: Init, n_init: int | str) -> int:
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


class Clock:
    """Accumulates the wall time of each phase in `seconds`."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, phase: str) -> None:
        """Add the time since the last call to a phase."""
        now = time.perf_counter()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._last
        self._last = now
