"""Batched K-means on a GPU: clusters the problems in parts that fit in the GPU's memory."""

from collections.abc import Iterator
from typing import Any

import cupy
import numpy as np

from tsapps.apps.kmeans.batched.lloyd import BatchedLloyd, random_states
from tsapps.apps.kmeans.batched.plan import MOST_COPIED_ROWS, MOST_PROBLEMS, BatchPlan, batch_plan
from tsapps.kernels.runtime.machine import CudaMachine, cuda_machine

__all__ = ["fit_on_gpu"]

_DTYPES = ("float32", "float16", "bfloat16")


def fit_on_gpu(
    X: Any, k: int, init: Any, max_iter: int, tol: float, seeds: list[int], index: int
) -> tuple[Any, Any, Any, Any] | None:
    """Cluster every X[i] on a GPU, in parts that fit in the GPU's memory.

    Parameters
    ----------
    X : numpy.ndarray or cupy.ndarray of shape (b, n, d)
    k : int
    init : {"k-means++", "random"} or array of shape (b, k, d)
    max_iter, tol
        See `kmeans_batched`.
    seeds : list of int
        Seed of the random numbers of each problem.
    index : int
        CUDA device index.

    Returns
    -------
    labels, centers, inertia, n_iter : cupy.ndarray
        Arrays of shapes (b, n), (b, k, d), (b,) and (b,). The function returns None instead if the kernels do not
        support the shape, the dtype or the GPU.

    Raises
    ------
    ValueError
        If X has a NaN or an infinity.
    """
    machine, (_, n, d) = cuda_machine(index), X.shape
    plan = batch_plan(n, d, k, machine.gpu) if X.dtype.name in _DTYPES else None
    if plan is None:
        return None
    found = []
    with machine.current():
        for part in _parts(X, k, plan, machine):
            on_gpu = cupy.ascontiguousarray(cupy.asarray(X[part]))
            batch = BatchedLloyd(machine, on_gpu, k, plan, max_iter=max_iter, tol=tol, first=part.start)
            if not isinstance(init, str):
                batch.start_at(init[part])
            elif init == "random":
                batch.start_at_random(random_states(seeds[part]))
            else:
                batch.start_at_plusplus(random_states(seeds[part]))
            batch.iterate()
            found.append((batch.labels, batch.final_centers(), batch.inertias(), batch.arrays["iterations"]))
            batch.warn_of_lost_clusters()
            del batch, on_gpu
        labels, centers, inertia, n_iter = (
            ones[0] if len(ones) == 1 else cupy.concatenate(ones) for ones in zip(*found, strict=True)
        )
    return labels, centers, inertia, n_iter


def _parts(X: Any, k: int, plan: BatchPlan, machine: CudaMachine) -> Iterator[slice]:
    """Yield slices of problems; the arrays of all problems of a slice fit in the GPU's memory together."""
    b, n, d = X.shape
    # Bytes per row. The last term is for k-means++, which holds the distances to all candidates of two steps.
    of_row = 4 + 8 + 2 * 4 * (2 + int(np.log(k)))
    of_copy = 2 * plan.padded + 4 + (0 if plan.stream is None else 4 + 8)
    of_center = 2 * plan.center_columns + 8 * (d + 1) + 3 * 4 * d
    of_problem = n * (of_row + (0 if isinstance(X, cupy.ndarray) else d * X.dtype.itemsize))
    of_problem += plan.rows * of_copy + plan.columns * of_center
    most = min(MOST_PROBLEMS, MOST_COPIED_ROWS // plan.rows, int(0.8 * machine.free_bytes()) // of_problem)
    together = max(1, most)
    for start in range(0, b, together):
        yield slice(start, min(start + together, b))
