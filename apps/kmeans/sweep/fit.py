"""Fits of several numbers of clusters at the same time, each with the bits of `lloyd.fit` alone."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from tsapps.apps.kmeans.data.frame import Frame
from tsapps.apps.kmeans.engines.engine import Engine
from tsapps.apps.kmeans.init.plusplus import order_of_sums, random_numbers
from tsapps.apps.kmeans.initial_centers import Init, initial_centers
from tsapps.apps.kmeans.lloyd import Clock, Clustering, Progress, clustering_of, number_of_runs
from tsapps.apps.kmeans.prepare import scaled_into_range
from tsapps.kernels.system.logs import logger_of

if TYPE_CHECKING:
    from tsapps.apps.kmeans.engines.device_engine import DeviceEngine
    from tsapps.apps.kmeans.sweep.plan import FitsPlan

__all__ = ["fit_together"]

_log = logger_of(__name__)
# Lloyd steps whose labels and sums have the bits of the kernels for several fits.
_STEPS = ("small_d", "small_k")


def fit_together(
    engine: Engine,
    numbers: Sequence[int],
    *,
    init: Init = "k-means++",
    n_init: int | str = "auto",
    max_iter: int = 300,
    tol: float = 1e-4,
    seed: int,
    progress: Callable[[int, Progress], None] | None = None,
    choosing: Callable[[int, int, int, int], None] | None = None,
) -> dict[int, Clustering]:
    """Fit X for several numbers of clusters, as far as the fits can share launches.

    Parameters
    ----------
    engine : Engine
    numbers : sequence of int
        Numbers of clusters. Those of most clusters are to come first: fits of fewer then find their samples drawn.
    init, n_init, max_iter, tol
        As of `lloyd.fit`. Fits of several runs do not share launches.
    seed : int
        Of the random numbers of each fit.
    progress : callable, optional
        Called with a number of clusters and a `Progress` after every iteration of its fit.
    choosing : callable, optional
        Called while initial centers are chosen, with a number of clusters and the parameters of `lloyd.fit`.

    Returns
    -------
    dict of int to Clustering
        By number of clusters; empty if no fits can share launches. Other numbers are left out: those that need other
        kernels, and fits that left a cluster empty. `seconds` of each is its part of the common time.
    """
    possible = engine.fits_together and 1 < len(numbers) and max(numbers) <= engine.data.n_samples
    if not possible or number_of_runs(init, n_init) != 1:
        return {}
    from tsapps.apps.kmeans.engines.device_engine import DeviceEngine
    from tsapps.apps.kmeans.sweep.iterations import Iterations

    assert isinstance(engine, DeviceEngine)
    found = dict[int, Clustering]()
    with engine:
        clock = Clock()
        scaled, moments, _ = scaled_into_range(engine)
        steps = engine.selections(moments.mean, numbers)
        served = [k for k, plan in steps.items() if plan.step in _STEPS and not plan.streamed]
        if scaled is not engine or len(served) < 2:
            return {}  # before X is centered, after which another fit might need another copy
        engine.center(moments.mean, served[0])
        frame = Frame(engine.data.host_mean())
        square_norm = engine.data.square_norm() if progress is not None else 0.0

        def tell(k: int, iteration: int, n_reassigned: int, potential: float) -> None:
            assert progress is not None
            progress(k, Progress(0, iteration, square_norm + potential, n_reassigned))

        for plan in _groups(engine, served):
            iterations = Iterations(engine.data, plan)  # its kernels compile while centers are drawn
            clock.lap("prepare")
            if choosing is None and isinstance(init, str) and init == "k-means++":
                _begin_draws(engine, plan.numbers, seed)
            iterations.bind(moments.variance * tol)  # while the GPU draws
            starts = _starts(engine, plan.numbers, init, seed, frame, choosing)
            clock.lap("seed")
            ended = iterations.run(starts, max_iter, None if progress is None else tell)
            del iterations  # its memory is free for the next group
            clock.lap("iterate")
            seconds = {phase: total / len(plan.numbers) for phase, total in clock.seconds.items()}
            clock.seconds = {}
            for k, one in zip(plan.numbers, ended, strict=True):
                if one is not None:
                    run, sizes = one
                    found[k] = clustering_of(run, frame, sizes, dict(seconds), (steps[k].step, steps[k].reason))
    return found


def _begin_draws(engine: "DeviceEngine", numbers: Sequence[int], seed: int) -> None:
    """Begin to draw the initial centers of all fits: those of most clusters for each order of sums have all others."""
    random_state, most = np.random.RandomState(seed), {order_of_sums(k): k for k in sorted(numbers)}
    begun = list[tuple[int, np.ndarray]]()
    for k in sorted(most.values(), reverse=True):
        random_state.seed(seed)
        if not engine.data.rounds_draws(k):
            begun.append(random_numbers(engine.data, k, random_state))
    engine.begin_plus_plus(begun)


def _starts(
    engine: "DeviceEngine",
    numbers: Sequence[int],
    init: Init,
    seed: int,
    frame: Frame,
    choosing: Callable[[int, int, int, int], None] | None,
) -> list[np.ndarray]:
    """Return the initial centers of each fit."""
    random_state, starts = np.random.RandomState(seed), list[np.ndarray]()
    for k in numbers:
        random_state.seed(seed)  # a new object takes 0.1 ms
        told = None if choosing is None else partial(choosing, k, 0)
        starts.append(initial_centers(engine, k, init, random_state, frame, told))
    return starts


def _groups(engine: "DeviceEngine", numbers: Sequence[int]) -> "Iterator[FitsPlan]":
    """Yield plans for groups of fits that the memory of the GPU has room for."""
    from tsapps.apps.kmeans.sweep.plan import groups_of

    data = engine.data
    n, d = data.source.shape
    half_copy = 0 if data.half_copy_bytes else 2 * n * d
    for plan in groups_of(n, d, numbers, data.gpu, data.available_bytes() - half_copy):
        _log.info("k = %s: fits in common launches", ", ".join(map(str, plan.numbers)))
        yield plan
