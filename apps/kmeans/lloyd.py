"""Lloyd's algorithm: one loop for every engine, with scikit-learn's semantics to the letter.

The loop holds the centers in host memory (k×d numbers) and asks an `Engine` for passes over the n samples. It never
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
from typing import Any

import numpy as np

from tsapps.apps.kmeans.data.frame import Frame, Placed, ScaledRows, exponent_of, is_in_range, ldexp
from tsapps.apps.kmeans.data.rows import ArrayRows, as_numbers, unit
from tsapps.apps.kmeans.empty_clusters import without_empty_clusters
from tsapps.apps.kmeans.engines.engine import Engine
from tsapps.apps.kmeans.init.plusplus import is_small, kmeans_parallel, kmeans_plusplus, random_samples
from tsapps.apps.kmeans.protect.checks import Protection
from tsapps.apps.kmeans.protect.result_check import checked_result, filled_alike
from tsapps.apps.kmeans.results import Iterated, Report, square_shift
from tsapps.kernels.arrays import to_host

__all__ = ["Clustering", "Progress", "fit"]

#: A way to choose the first centers: a name, an array of centers, or a function of (X, k, random_state).
Init = Any

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
    moved : int
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
    """Cluster the samples that `engine` holds; keep the best of `n_init` runs.

    Parameters
    ----------
    engine : Engine
    n_clusters : int
        k, with 1 ≤ k ≤ n.
    init : {"k-means++", "k-means||", "random"}, array of shape (k, d), or callable
        As in scikit-learn, and `seeding.kmeans_parallel`; a callable is given the centered X, a NumPy or CuPy array.
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
    if engine.n_samples < n_clusters:
        raise ValueError(f"n_samples={engine.n_samples} should be >= n_clusters={n_clusters}.")
    if protect and not engine.certifies:
        raise ValueError("protect=True needs precision='exact': of labels that are not proved none can be called wrong")
    runs = _number_of_runs(init, n_init)
    clock = _Clock()
    with engine:
        mean, variance = _moments(engine)
        exponent = 0 if engine.spherical else _exponent(engine, variance)
    if exponent:
        engine = engine.over(ScaledRows(engine.source, exponent, engine.dtype))
        with engine:
            mean, variance = _moments(engine)
    best: Clustering | None = None
    engine.protection = Protection() if protect else None
    with engine:
        if not center or engine.spherical:
            mean = np.zeros_like(mean)
        engine.center(mean)
        frame = Frame(to_host(engine.mean).copy(), exponent)
        square_norm = engine.square_norm() if progress else 0.0
        clock.lap("prepare")
        for run in range(runs):
            centers = _first_centers(engine, n_clusters, init, random_state, frame)
            clock.lap("seed")

            def report(iteration: int, n_reassigned: int, potential: float, run: int = run) -> None:
                if progress is not None:
                    inertia = (square_norm + potential) / (2 if engine.spherical else 1)
                    progress(Progress(run, iteration, float(ldexp(inertia, 2 * exponent)), n_reassigned))

            found = _single_run(engine, centers, max_iter, variance * tol, report if progress else None)
            clock.lap("iterate")
            if best is None or (
                found.inertia < best.inertia and not _same_clustering(found.labels, best.labels, n_clusters)
            ):
                best, kept = found, None if engine.protection is None else engine.protection.kept
                if runs > 1:
                    engine.labels = engine.xp.empty_like(found.labels)
        assert best is not None  # there is at least one run
        best.cluster_sizes = engine.cluster_sizes(best.labels, n_clusters)
        if engine.protection is not None and kept is not None:
            # They were checked at the end of their run, and others may have come since.
            changed = kept.differs(best.centers)
            best.faults = engine.protection.faults + changed
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


def _exponent(engine: Engine, variance: float) -> int:
    """Return the exponent of the unit in which no square of a distance overflows or underflows; see `Frame`."""
    square = engine.n_features * variance
    if is_in_range(engine.dtype, square, engine.n_samples * square):
        return 0
    first = engine.xp.asarray(0.5 * engine.rows(np.array([0]))[0])

    def extent(_: int, block: Any) -> tuple[float, float]:
        return float(abs(0.5 * block - first).max()), float(abs(block).max())

    centers_half, sizes = zip(*engine.each_block(extent, engine.n_features), strict=True)
    # What is far from zero beside its spread cannot be scaled up as far.
    most = np.finfo(engine.dtype).maxexp - 2 - int(np.frexp(max(sizes))[1])
    return max(exponent_of(max(centers_half)), -most)


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


def _moments(engine: Engine) -> tuple[np.ndarray, float]:
    """Return the mean of X (d,) and the mean variance of its features."""
    found, source = engine.moments(), engine.source
    if not isinstance(source, ArrayRows) or not is_small(engine):
        return found
    # scikit-learn's own rounding; see SMALL.
    rounded = engine.rounded_moments()
    if rounded is not None:
        return rounded
    X = source.on_host.astype(engine.dtype, order="C", copy=False)
    with np.errstate(over="ignore", invalid="ignore"):
        mean = X.mean(axis=0, keepdims=True)
        return mean[0], float(np.mean(np.var(X, axis=0, mean=mean)))


def _first_centers(
    engine: Engine, n_clusters: int, init: Init, random_state: np.random.RandomState, frame: Frame
) -> np.ndarray:
    if isinstance(init, str):
        draw = {"k-means++": kmeans_plusplus, "k-means||": kmeans_parallel, "random": random_samples}[init]
        return draw(engine, n_clusters, random_state)
    if callable(init):
        centers = init(engine.centered(), n_clusters, random_state=random_state)
        centers = to_host(as_numbers(centers, "what init returned"))
    else:
        centers = to_host(as_numbers(init, "init"))
    centers = np.array(centers, dtype=engine.dtype)  # never the caller's own
    if centers.shape != (n_clusters, engine.n_features):
        raise ValueError(
            f"the initial centers have shape {centers.shape}; "
            f"expected (n_clusters, n_features) = ({n_clusters}, {engine.n_features})"
        )
    if not np.isfinite(centers).all():
        row, column = np.argwhere(~np.isfinite(centers))[0]
        raise ValueError(f"initial center {row}, feature {column} is {centers[row, column]}; expected finite numbers")
    if engine.spherical:
        if not centers.any(axis=1).all():
            index = int(np.flatnonzero(~centers.any(axis=1))[0])
            raise ValueError(f"initial center {index} is zero, and has no direction: metric='cosine' needs another")
        return unit(centers)
    return centers if callable(init) else frame.centered(centers)


def _single_run(engine: Engine, first: np.ndarray, max_iter: int, tol: float, report: Report | None) -> Clustering:
    """Iterate until no label changes, the centers move less than `tol` in all (squared), or `max_iter`.

    A protected run makes a step again that went wrong, and all of it where its result cannot be made twice.
    """
    protection = engine.protection
    if protection is not None:
        protection.begin_run()
    while True:
        ended = _iterated(engine, first, max_iter, tol, report)
        if ended is None:
            continue
        found, centers, done, converged = ended
        if not found.strict:
            # So that the labels are those of the final centers.
            engine.assign(centers, update=False)
        if protection is None:
            inertia = engine.result_inertia(centers)
            break
        inertia, fault = checked_result(engine, protection, found, centers)
        if fault is None:
            break
        protection.found(fault, "the result of a run")
    return Clustering(engine.labels, centers, inertia, done, converged)


def _iterated(
    engine: Engine, first: np.ndarray, max_iter: int, tol: float, report: Report | None
) -> tuple[Iterated, np.ndarray, int, bool] | None:
    """Iterate from the first centers of a run, (k, d), which stay as they are.

    Returns
    -------
    found : Iterated
        The last iterations.
    centers : numpy.ndarray of shape (k, d)
    done : int
        Iterations.
    converged : bool
        All are None if a protected run lost its centers, and is to begin again.
    """
    protection = engine.protection
    engine.forget_labels()
    centers, done, converged = first.copy(), 0, False
    if protection is not None:
        protection.keep(first)
    while done < max_iter and not converged:
        found = engine.iterate(centers, done, max_iter, tol, report)
        done += found.count
        centers, shift = found.centers, found.shift
        if protection is not None and found.fault is not None:
            protection.found(found.fault, "the centers of a run" if found.lost else f"iteration {done + 1}")
            if found.lost:
                return None
            engine.forget_labels()
            continue
        converged = found.strict
        if found.empty is not None:
            centers = without_empty_clusters(engine, found.empty, found.centers)
            shift = square_shift(found.centers, centers)
            if protection is not None and not filled_alike(engine, protection, found.empty, centers):
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
