"""The fits of ``tsapps kmeans``: one, or one for each of several numbers of clusters, of which the best is kept."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tsapps.cli import kmeans_options
from tsapps.cli.clock import Clock
from tsapps.cli.kmeans_checkpoint import usage_errors
from tsapps.cli.kmeans_request import Inputs, Request
from tsapps.cli.output import duration
from tsapps.cli.workers import engine_on_workers, labels_on_host
from tsapps.errors import CorruptionError, MatrixError

if TYPE_CHECKING:
    import numpy as np

    from tsapps.apps.kmeans.checkpoint import Checkpoint
    from tsapps.apps.kmeans.data.rows import Rows
    from tsapps.apps.kmeans.engines.engine import Engine
    from tsapps.apps.kmeans.gap_statistic import Box
    from tsapps.apps.kmeans.lloyd import Clustering, Progress
    from tsapps.apps.kmeans.number_of_clusters import KChoice
    from tsapps.apps.kmeans.shared_copy import SharedCopy

__all__ = ["Fit", "fit"]


@dataclass(frozen=True)
class Fit:
    """A clustering, the dtype and device of its computation, its iterations, and how its k was chosen from several."""

    clustering: "Clustering"
    dtype: str
    device: str
    history: "list[Progress]"
    choice: "KChoice | None" = None


def fit(
    request: Request,
    inputs: Inputs,
    clock: Clock,
    show: Callable[[str], None],
    checkpoint: "Checkpoint | None",
    *,
    report: bool,
) -> Fit:
    """Cluster the data into the wanted number of clusters, or into several and choose one.

    Parameters
    ----------
    request : Request
    inputs : Inputs
    clock : Clock
        Gets the seconds of each phase.
    show : callable
        Shows a text about the work in progress.
    checkpoint : Checkpoint or None
    report : bool
        Whether to show and to keep what every iteration reports.
    """
    import numpy as np

    clock.lap("start")
    matrix = inputs.matrix
    show(f"reading {request.data}: {matrix.shape[0]:,} × {matrix.shape[1]:,} {matrix.dtype}")
    fits = _Fits(request, inputs, clock, show, checkpoint, report)
    best = _one(fits) if len(request.ks) == 1 else _best_of_several(fits)
    if not np.isfinite(best.clustering.inertia):
        raise MatrixError(f"{request.data}: the inertia overflows float64: scale the data down")
    return best


def _one(fits: "_Fits") -> Fit:
    with _opened(fits.request, fits.inputs) as engine:
        found = fits.fit(engine, fits.request.k)
        found.labels = labels_on_host(found.labels)
    return fits.result(found)


def _best_of_several(fits: "_Fits") -> Fit:
    from tsapps.apps.kmeans.number_of_clusters import with_gaps
    from tsapps.apps.kmeans.shared_copy import fit_each

    request = fits.request
    choice, box = _choice_and_box(fits)
    best = fits.result(choice.clusterings[choice.k])
    if box is not None:

        def fitted(reference: "np.ndarray", number: int) -> list[float]:
            fits.prefix = f"reference {number} of {request.gap}, "
            found = fit_each(fits.shared(reference), request.ks, fits.fit, fits.together)
            return [one.inertia for one in found.values()]

        choice = with_gaps(choice, box, fitted, request.gap, request.seed)
    return replace(best, choice=choice)


def _choice_and_box(fits: "_Fits") -> "tuple[KChoice, Box | None]":
    """Return the choice, and what the gap statistic needs of the data, whose copy on a GPU is then free."""
    from tsapps.apps.kmeans.number_of_clusters import DEFAULT_SAMPLE, box_of, request_scores, scored
    from tsapps.apps.kmeans.shared_copy import fit_each

    request, shared = fits.request, fits.shared(fits.inputs.matrix)
    request_scores(shared, request.ks, str(request.metric), DEFAULT_SAMPLE)
    found = fit_each(shared, request.ks, fits.fit, fits.together)
    fits.show("scores")
    with shared.rows() as rows:
        choice = scored(rows, found, metric=str(request.metric), sample=DEFAULT_SAMPLE, seed=request.seed)
        box = box_of(rows, fits.inputs.matrix.dtype) if request.gap else None
    fits.clock.lap("score")
    return choice, box


@dataclass
class _Fits:
    """What the fits of a command have in common, and what they report.

    Attributes
    ----------
    prefix : str
        What is shown before the number of clusters.
    histories : dict of int to list of Progress
        The iterations of the last fit of each number of clusters.
    computed : tuple of str
        The dtype and the device of the last fit.
    """

    request: Request
    inputs: Inputs
    clock: Clock
    show: Callable[[str], None]
    checkpoint: "Checkpoint | None"
    report: bool
    prefix: str = ""
    histories: "dict[int, list[Progress]]" = field(default_factory=dict)
    computed: tuple[str, str] = ("", "")

    def shared(self, data: "Rows | np.ndarray") -> "SharedCopy":
        """Return the engines for fits of the same data."""
        from tsapps.apps.kmeans.shared_copy import SharedCopy

        return SharedCopy(lambda: _engine_here(self.request, self.inputs, data))

    def fit(self, engine: "Engine", k: int) -> "Clustering":
        """Cluster the data of an engine into k clusters."""
        import numpy as np

        from tsapps.apps.kmeans import FaultError, lloyd

        self.clock.lap("read")
        request = self.request
        history = self.histories[k] = []
        ended = list[float]()
        show = self._shown_of(k)

        def tell(progress: "Progress") -> None:
            history.append(progress)
            ended.append(time.perf_counter())
            first = len(ended) == 1 or history[-2].run != progress.run
            show(_describe(progress, request.max_iter, None if first else ended[-1] - ended[-2]))

        choosing = _Choosing(request.init, show)
        show(f"{request.init}: initial centers")
        try:
            with usage_errors():
                found = lloyd.fit(
                    engine,
                    k,
                    init=self.inputs.first_centers,
                    n_init=request.n_init,
                    max_iter=request.max_iter,
                    tol=request.tol,
                    random_state=np.random.RandomState(request.seed),
                    progress=tell if self.report else None,
                    choosing=choosing.tell if self.report else None,
                    protect=request.protect,
                    checkpoint=self.checkpoint,
                )
        except FaultError as error:
            raise CorruptionError(str(error)) from error
        self.clock.add(found.seconds)
        self.computed = str(engine.data.dtype), engine.data.device
        return found

    def together(self, engine: "Engine", ks: Sequence[int]) -> "dict[int, Clustering]":
        """Cluster the data of an engine into several numbers of clusters at the same time, as far as possible."""
        from tsapps.apps.kmeans.sweep.fit import fit_together

        request = self.request
        if request.protect or self.checkpoint is not None:
            return {}
        self.clock.lap("read")
        histories: dict[int, list[Progress]] = {k: [] for k in ks}
        choosing = {k: _Choosing(request.init, self._shown_of(k)) for k in ks}
        began = [time.perf_counter()]

        def tell(k: int, progress: "Progress") -> None:
            histories[k].append(progress)
            if progress.iteration == len(began):  # the first of the fits that go on
                began.append(time.perf_counter())
                seconds = None if progress.iteration == 1 else began[-1] - began[-2]
                self._shown_of(k)(_describe(progress, request.max_iter, seconds))

        with usage_errors():
            found = fit_together(
                engine,
                ks,
                init=self.inputs.first_centers,
                n_init=request.n_init,
                max_iter=request.max_iter,
                tol=request.tol,
                seed=request.seed,
                progress=tell if self.report else None,
                choosing=(lambda k, *done: choosing[k].tell(*done)) if self.report else None,
            )
        for k, one in found.items():
            self.histories[k] = histories[k]
            self.clock.add(one.seconds)
        self.computed = str(engine.data.dtype), engine.data.device
        return found

    def _shown_of(self, k: int) -> Callable[[str], None]:
        """Return a function that shows a text about the fit of k clusters."""
        prefix = f"{self.prefix}k = {k}: " if len(self.request.ks) > 1 else ""
        return lambda text: self.show(prefix + text)

    def result(self, found: "Clustering") -> Fit:
        """Return the result of a fit."""
        return Fit(found, *self.computed, self.histories[len(found.centers)])


@contextmanager
def _opened(request: Request, inputs: Inputs) -> "Iterator[Engine]":
    """Yield the engine of the fit: on this machine, or on the workers of a cluster."""
    import numpy as np

    from tsapps.apps.kmeans.open_engine import compute_dtype

    if request.workers is None:
        yield _engine_here(request, inputs, inputs.matrix)
        return
    on_gpu = request.device == "cuda"
    dtype = compute_dtype(inputs.matrix.dtype, on_gpu=on_gpu) if request.dtype is None else np.dtype(request.dtype)
    with engine_on_workers(request, inputs, dtype) as engine:
        yield engine


def _engine_here(request: Request, inputs: Inputs, data: "Rows | np.ndarray") -> "Engine":
    """Return an engine on this machine, for the data of the command or a reference data set."""
    import numpy as np

    from tsapps.apps.kmeans.open_engine import open_engine

    return open_engine(
        data,
        dtype=None if request.dtype is None else np.dtype(request.dtype),
        sample_weight=inputs.sample_weight,
        device=request.device,
        metric=request.metric,
        precision=request.precision,
        bounds=True if request.algorithm == kmeans_options.Algorithm.elkan else None,
    )


class _Choosing:
    """Shows how many initial centers have been chosen, or passes of k-means‖ done, and how long the others may take."""

    def __init__(self, init: str, show: Callable[[str], None]) -> None:
        self._text = f"{init}: passes" if init == "k-means||" else f"{init}: centers chosen"
        self._show = show
        self._last: tuple[int, int, float] | None = None  # run, done and time of the last report

    def tell(self, run: int, done: int, total: int) -> None:
        """Show the number that are done, of `total`; see `lloyd.fit`."""
        now, last = time.perf_counter(), self._last
        self._last = run, done, now
        text = f"run {run + 1}, " * (run > 0) + f"{self._text} ({done:,} of {total:,})"
        if last is not None and last[0] == run and last[1] < done < total:
            seconds = (now - last[2]) / (done - last[1])
            text += f", {seconds:.2g} s each, about {duration((total - done) * seconds)} left"
        self._show(text)


def _describe(progress: "Progress", max_iter: int, seconds: float | None) -> str:
    """Describe an iteration that took some seconds, and the longest time that its run can still take."""
    run = f"run {progress.run + 1}, " if progress.run else ""
    text = f"{run}iteration {progress.iteration} of at most {max_iter}: inertia {progress.inertia:.6g}, "
    text += f"{progress.n_reassigned:,} labels changed"
    if seconds is None:
        return text
    return f"{text}, {seconds:.2g} s each, at most {duration((max_iter - progress.iteration) * seconds)} left"
