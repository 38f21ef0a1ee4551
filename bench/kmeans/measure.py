"""Validation and timing of one K-means implementation on one problem. Wrong results are not timed."""

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tsapps.bench.common.outcome import LeftOutError, NotRightError
from tsapps.bench.common.timing import Clock, CpuClock, median, repeats_within
from tsapps.bench.kmeans import problems as data
from tsapps.bench.kmeans.peers import Peer
from tsapps.bench.kmeans.problems import Shape
from tsapps.kernels.arrays import as_array

__all__ = ["FIT_ITERATIONS", "NotRightError", "Problem", "Timing", "check_step", "compare_on_cpu", "time_peer"]

#: Number of iterations of a timed fit.
FIT_ITERATIONS = 20
# Additional iterations, in which few labels change.
_MORE = 5
# Maximum number of differences of two runs from which the time of one iteration is computed.
_DIFFERENCES = 5
# Rows whose labels are compared: at most; at least, if comparing takes longer than timing; limit of the comparison's
# products.
_MOST_ROWS, _FEWEST_ROWS, _MOST_PRODUCTS = 1_000_000, 1 << 16, 1 << 38
#: Minimum share of labels equal to the float64 arg-min: peers score float32 in tf32, and 16-bit types with rounded
#: centers.
LEAST_EQUAL = {"float64": 0.9999, "float32": 0.98, "float16": 0.95, "bfloat16": 0.9}
# Largest difference of a center between two engines on a CPU, in standard deviations of the data.
_SAME = 0.05
#: Maximum relative error of a new center: peers sum in float32 and round the result to the dtype of X.
MOST_CENTERS_ERROR = {"float64": 1e-4, "float32": 1e-3, "float16": 1e-2, "bfloat16": 2e-2}


@dataclass(frozen=True)
class Timing:
    """Result of `time_peer`; `n_iter` is that of the fit. None means not measured, for lack of time or support."""

    iter_ms: float
    iter_from: str
    repeats: int
    fit_ms: float | None = None
    n_iter: int | None = None
    seeded_fit_ms: float | None = None
    settled_ms: float | None = None


@dataclass(frozen=True)
class Problem:
    """X and initial centers on the GPU, and the float64 arg-min of some rows."""

    shape: Shape
    X: Any
    centers: Any
    rows: Any
    expected: Any

    @classmethod
    def draw(cls, shape: Shape, seed: int, xp: Any) -> "Problem":
        """Draw the data and compute the reference labels."""
        X, centers = data.draw(shape, seed, xp)
        rows = data.compared_rows(shape.n, _rows_to_compare(shape), seed, xp)
        return cls(shape, X, centers, rows, data.nearest_f64(X, centers, rows, xp))


def _rows_to_compare(shape: Shape) -> int:
    return min(_MOST_ROWS, max(_FEWEST_ROWS, _MOST_PRODUCTS // (shape.d * shape.k)))


def check_step(peer: Peer, problem: Problem, xp: Any) -> dict[str, Any]:
    """Run one iteration and compare it with the reference; return the fields of the record.

    Raises
    ------
    NotRightError
        If too few labels equal the float64 arg-min, or a new center is too far from the mean of its samples.
    """
    dtype = problem.shape.dtype
    labels, new_centers = (_as(xp, array) for array in peer.step())
    try:
        share = data.share_equal(labels, problem.rows, problem.expected, problem.shape.k)
    except ValueError as error:
        raise NotRightError(str(error)) from error
    if share < LEAST_EQUAL[dtype]:
        raise NotRightError(f"{share:.4%} of the labels are the float64 arg-min, fewer than {LEAST_EQUAL[dtype]:.2%}")
    error = data.centers_error(problem.X, labels, new_centers)
    if not error <= MOST_CENTERS_ERROR[dtype]:
        raise NotRightError(f"a new center is off by {error:.1e}, more than {MOST_CENTERS_ERROR[dtype]:.0e}")
    return {"labels_equal_f64": share, "rows_compared": len(problem.rows), "centers_error": error}


def _as(xp: Any, array: Any) -> Any:
    return xp.asarray(as_array(array))


def time_peer(peer: Peer, clock: Clock, repeats: int, seconds: float, *, fits: bool = True) -> Timing:
    """Time one iteration and, if `seconds` allow, fits of `FIT_ITERATIONS`. The peer has already run one step.

    Without `fits`, only the fits that a slope needs are run.
    """
    if peer.steps:
        return _time_steps(peer, clock, repeats, seconds, fits=fits)
    return _time_slope(peer, clock, repeats, seconds)


def _time_steps(peer: Peer, clock: Clock, repeats: int, seconds: float, *, fits: bool) -> Timing:
    end = time.perf_counter() + seconds
    iterations, made, kind = 1, 1.0, "step"
    if peer.settles:
        _mean_ms(peer, clock, 2)  # warms up parts that a single step does not use
        iterations = repeats_within(seconds, _mean_ms(peer, clock, 2)[0], FIT_ITERATIONS)
        _mean_ms(peer, clock, iterations)  # compiles the kernels of later iterations

    def one_ms() -> float:
        nonlocal made
        if not peer.settles:
            return clock.call_ms(peer.step)
        ms, made = _mean_ms(peer, clock, iterations)
        return ms

    first = one_ms()
    # A timing that exceeds the whole budget counts as warm: the check ran a step, and iterations are long.
    times = [first if iterations * first > 400 * seconds else one_ms()]
    count = repeats_within(0.4 * seconds, iterations * times[0], repeats)
    times += [one_ms() for _ in range(count - 1)]
    iter_ms = median(times)
    settled = None
    if peer.settles:
        kind = f"mean of {round(made)}"
        differences = repeats_within(0.2 * seconds, 2 * iterations * iter_ms, _DIFFERENCES)
        settled = _settled_ms(peer, clock, iterations, differences)
    if not fits or time.perf_counter() + FIT_ITERATIONS * iter_ms / 1e3 > end:
        return Timing(iter_ms, kind, count, settled_ms=settled)
    peer.fit(1)  # warms up parts that only a fit uses
    found = [clock.wall_ms(lambda: peer.fit(FIT_ITERATIONS))]
    while len(found) < min(repeats, 5) and time.perf_counter() + found[0][0] / 1e3 < end:
        found.append(clock.wall_ms(lambda: peer.fit(FIT_ITERATIONS)))
    fit_ms, n_iter = median(ms for ms, _ in found), int(found[0][1])
    seeded = _seeded_fit_ms(peer, clock, fit_ms, end - time.perf_counter())
    return Timing(iter_ms, kind, count, fit_ms, n_iter, seeded, settled)


def _seeded_fit_ms(peer: Peer, clock: Clock, fit_ms: float, seconds: float) -> float | None:
    """Return the time in ms of a fit with init by greedy k-means++: k passes more than `fit_ms`."""
    if not peer.seeds or 4 * peer.k * fit_ms / FIT_ITERATIONS > 1e3 * seconds:
        return None
    peer.fit_seeded(FIT_ITERATIONS, 0)  # warms up parts that only this call uses
    return median(clock.wall_ms(lambda seed=seed: peer.fit_seeded(FIT_ITERATIONS, seed))[0] for seed in (1, 2, 3))


def _settled_ms(peer: Peer, clock: Clock, iterations: int, differences: int) -> float | None:
    """Return the time in ms of one iteration after the first `iterations`, or of the last ones if there are fewer.

    Takes the difference of two runs, which cancels their start and end; returns the median of `differences`.
    """
    _, most = _mean_ms(peer, clock, iterations + _MORE)
    least = round(most) - _MORE
    if least < 1:
        return None

    def total_ms(count: int) -> float:
        ms, made = _mean_ms(peer, clock, count)
        return ms * made

    return median((total_ms(round(most)) - total_ms(least)) / _MORE for _ in range(differences))


def _mean_ms(peer: Peer, clock: Clock, iterations: int) -> tuple[float, float]:
    """Return the mean time of the first iterations, starting without labels, and their number (fewer if converged)."""
    made = 0.0

    def iterate() -> None:
        nonlocal made
        made = peer.iterate(iterations)

    ms = clock.call_ms(iterate)
    return ms / made, made


def _time_slope(peer: Peer, clock: Clock, repeats: int, seconds: float) -> Timing:
    end = time.perf_counter() + seconds
    short, _ = clock.wall_ms(lambda: peer.fit(1))
    if 4 * short > 1e3 * seconds:
        raise LeftOutError(f"a fit of one iteration takes {short / 1e3:.1f} s: too slow for {seconds:g} s")
    iterations = min(FIT_ITERATIONS, 1 + repeats_within(seconds, short, FIT_ITERATIONS))
    pairs: list[tuple[float, float, int]] = []
    while not pairs or (len(pairs) < repeats and time.perf_counter() + (pairs[0][0] + pairs[0][1]) / 1e3 < end):
        short, first = clock.wall_ms(lambda: peer.fit(1))
        long, last = clock.wall_ms(lambda: peer.fit(iterations))
        if last <= first:
            raise LeftOutError(f"a fit ended after {last} iterations: there is no slope to take")
        pairs.append((short, long, last - first))
    iter_ms = median((long - short) / more for short, long, more in pairs)
    if iterations < FIT_ITERATIONS:
        return Timing(iter_ms, "slope", len(pairs))
    return Timing(iter_ms, "slope", len(pairs), median(long for _, long, _ in pairs), int(last))


def compare_on_cpu(
    shape: Shape, seed: int, repeats: int, seconds: float = math.inf
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Fit the same data by tsapps and scikit-learn alternately; return the fields measured for each.

    The labels of a fit are compared with the float64 arg-min at its own final centers, and the centers of both with
    each other, as both begin at the same ones. There are at most `repeats` fits of each engine, as many as fit in
    `seconds`, but at least one.
    """
    from sklearn.cluster import KMeans

    from tsapps import TSKMeans

    X, centers = data.draw(shape, seed, np)
    options = {"n_clusters": shape.k, "init": centers, "n_init": 1, "max_iter": FIT_ITERATIONS, "tol": 0}
    models = {"tsapps-cpu": TSKMeans(device="cpu", **options), "scikit-learn": KMeans(**options)}
    rows = data.compared_rows(shape.n, _rows_to_compare(shape), seed, np)
    clock, fractions, slowest = CpuClock(), {}, 0.0
    for name, model in models.items():
        slowest = max(slowest, clock.wall_ms(lambda model=model: model.fit(X))[0])
        expected = data.nearest_f64(X, model.cluster_centers_, rows, np)
        fractions[name] = data.share_equal(model.labels_, rows, expected, shape.k)
        if fractions[name] < LEAST_EQUAL[shape.dtype]:
            raise NotRightError(f"{name} on {shape.name}: {fractions[name]:.4%} of the labels are right")
    check_same_centers(X, *(model.cluster_centers_ for model in models.values()))
    repeats, times = repeats_within(seconds, slowest, repeats), {name: [] for name in models}
    for turn in range(repeats):
        for name in _alternating(models, turn):
            times[name].append(clock.wall_ms(lambda name=name: models[name].fit(X))[0])
    ours, theirs = (
        {
            "what": "kmeans",
            "engine": name,
            **asdict(shape),
            "iter_ms": median(times[name]) / model.n_iter_,
            "iter_from": "fit",
            "repeats": repeats,
            "fit_ms": median(times[name]),
            "n_iter": int(model.n_iter_),
            "floor_ms": None,
            "read_gbs": None,
            "labels_equal_f64": fractions[name],
            "rows_compared": len(rows),
        }
        for name, model in models.items()
    )
    return ours, theirs


def check_same_centers(X: Any, ours: Any, theirs: Any) -> None:
    """Raise `NotRightError` if centers of two fits differ by more than a few labels of near ties explain."""
    difference, spread = float(abs(ours - theirs).max()), float(X.std())
    if not difference <= _SAME * spread:
        raise NotRightError(f"centers differ by {difference:.2g} where the data has a deviation of {spread:.2g}")


def _alternating(names: Mapping[str, Any], turn: int) -> Iterator[str]:
    return iter(names) if turn % 2 == 0 else reversed(list(names))
