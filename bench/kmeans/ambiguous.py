"""Ambiguous rows of a fit by our kernels, by iteration and by the way in which rescoring finds their labels."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tsapps.apps.kmeans import lloyd
from tsapps.apps.kmeans.engines.device_step import DeviceStep
from tsapps.apps.kmeans.engines.engine import Engine
from tsapps.kernels.arrays import to_host

__all__ = ["ambiguous_shares"]


def ambiguous_shares(engine: Engine, initial: np.ndarray, iterations: int) -> list[list[float]] | None:
    """Fit from given centers; return the shares of ambiguous rows in each iteration.

    Open the engine with ``bounds=False``. Otherwise, rows whose label cannot change are not counted.

    Parameters
    ----------
    engine : Engine
        A new engine. The functions that it calls are replaced, so that it is of no further use.
    initial : numpy.ndarray of shape (k, d)
    iterations : int
        Maximum number of iterations.

    Returns
    -------
    list of [float, float] or None
        For each iteration, the share of the rows whose label rescoring selects among a list of candidates, and the
        share of the rows that it compares with all centers. None if the step does not list ambiguous rows: cuBLAS, and
        the kernels for small d, which rescore a row when they find it.
    """
    read: list[tuple[Any, Any]] = []
    step_for = engine.step_for

    def counting_step_for(k: int) -> Any:
        step = step_for(k)
        if isinstance(step, DeviceStep) and step.ambiguous_counts() is not None:
            _read_after_product(step, read)
        return step

    setattr(engine, "step_for", counting_step_for)  # noqa: B010 (mypy forbids to assign a method)
    options: dict[str, Any] = {"n_init": 1, "max_iter": iterations, "tol": 0}
    found = lloyd.fit(engine, len(initial), init=initial, random_state=np.random.RandomState(0), **options)
    # Iterations that were launched after the last one of a run read the counts of the last one once more.
    counts = [to_host(of_iteration) for of_iteration, stopped in read if not int(stopped[0])]
    # The assignment to the final centers is not an iteration.
    return [[int(one) / engine.data.n_samples for one in both] for both in counts[: found.n_iter]] or None


def _read_after_product(step: Any, read: list[tuple[Any, Any]]) -> None:
    """Insert a reading of the counts between the launches of the product and of rescoring.

    Each reading appends two arrays on the GPU to `read`: the counts, and whether the iteration did nothing.
    """
    bind_rows = step._bind_rows

    def counting_bind_rows(centers: Any) -> Sequence[Callable[[], None]]:
        product, *others = bind_rows(centers)
        return [product, lambda: read.append((step.ambiguous_counts(), step.buffers.stopped.copy())), *others]

    step._bind_rows = counting_bind_rows
