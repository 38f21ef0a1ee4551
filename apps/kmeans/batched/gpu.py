"""Many problems at once on a GPU: where they go, and CuPy as the machine that `BatchedLloyd` runs on."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cupy
import numpy as np

from tsapps.apps.kmeans.batched.lloyd import BatchedLloyd, random_states
from tsapps.apps.kmeans.batched.plan import KERNELS, MOST_PROBLEMS, BatchPlan, batch_plan
from tsapps.kernels.gpu_specs import live
from tsapps.kernels.jit.kernel import function

__all__ = ["Gpu", "fit_on_gpu"]

_FOLDER = Path(__file__).parents[1]
_DTYPES = ("float32", "float16", "bfloat16")


class Gpu:
    """A GPU, as `BatchedLloyd` asks for a machine; see `batched_lloyd.Machine`."""

    xp = cupy

    def __init__(self, index: int) -> None:
        self.index = index
        self.multiprocessors = live(index).multiprocessors
        # What finding a kernel again costs, small problems notice.
        self._kernels: dict[tuple[str, str, int], tuple[Any, int]] = {}

    def address(self, array: Any) -> int:
        """Return where an array begins."""
        return int(array.data.ptr)

    def launch(self, kernel: str, template: str, grid: tuple[int, int], shared: int, *arguments: Any) -> None:
        """Launch ``kernel<template>`` on the current stream."""
        key = kernel, template, shared
        if key not in self._kernels:
            self._kernels[key] = self._kernel(*key)
        made, threads = self._kernels[key]
        # Structures go by value.
        given = tuple(one[()] if isinstance(one, np.ndarray) else one for one in arguments)
        made(grid, (threads,), given, shared_mem=shared)

    def _kernel(self, kernel: str, template: str, shared: int) -> tuple[Any, int]:
        """Return ``kernel<template>``, loaded, and the threads of a block."""
        file, threads = KERNELS[kernel]
        name = f"batched::{kernel}<{template}>"
        made = function(_FOLDER / file, (name,), name, self.index)
        # Another shape may have asked for more: that much remains allowed.
        if shared > made.max_dynamic_shared_size_bytes:
            made.max_dynamic_shared_size_bytes = shared
        return made, threads


def fit_on_gpu(
    X: Any, k: int, init: Any, max_iter: int, tol: float, seeds: list[int], index: int
) -> tuple[Any, Any, Any, Any] | None:
    """Cluster every X[i] on a GPU, in as many parts as its memory asks for.

    Parameters
    ----------
    X : numpy.ndarray or cupy.ndarray of shape (b, n, d)
    k : int
    init : {"k-means++", "random"} or array of shape (b, k, d)
    max_iter, tol
        See `kmeans_batched`.
    seeds : list of int
        One a problem.
    index : int
        CUDA's number for the GPU.

    Returns
    -------
    labels, centers, inertia, n_iter : cupy.ndarray
        Or None where the kernels do not serve the shape, the dtype or the GPU.
    """
    _, n, d = X.shape
    plan = batch_plan(n, d, k, live(index)) if X.dtype.name in _DTYPES else None
    if plan is None:
        return None
    machine = Gpu(index)
    found = []
    with cupy.cuda.Device(index):
        for part in _parts(X, k, plan):
            on_gpu = cupy.ascontiguousarray(cupy.asarray(X[part]))
            batch = BatchedLloyd(machine, on_gpu, k, plan, max_iter=max_iter, tol=tol, first=part.start)
            if not isinstance(init, str):
                batch.start_at(init[part])
            elif init == "random":
                batch.start_at_random(random_states(seeds[part]))
            else:
                batch.start_at_plusplus(random_states(seeds[part]))
            batch.iterate()
            batch.warn_of_lost_clusters()
            found.append((batch.labels, batch.final_centers(), batch.inertias(), batch.arrays["iterations"]))
            del batch, on_gpu
        labels, centers, inertia, n_iter = (
            ones[0] if len(ones) == 1 else cupy.concatenate(ones) for ones in zip(*found, strict=True)
        )
    return labels, centers, inertia, n_iter


def _parts(X: Any, k: int, plan: BatchPlan) -> Iterator[slice]:
    """Yield slices of problems whose arrays fit the GPU together."""
    b, n, d = X.shape
    # While seeding, the distances of all candidates of two steps are there as well.
    of_row = 2 * plan.padded + 4 + 4 + 8 + 2 * 4 * (2 + int(np.log(k)))
    of_center = 2 * plan.padded + 8 * (d + 1) + 3 * 4 * d
    of_problem = n * (of_row + (0 if isinstance(X, cupy.ndarray) else d * X.dtype.itemsize)) + plan.columns * of_center
    free = cupy.cuda.runtime.memGetInfo()[0] + cupy.get_default_memory_pool().free_bytes()
    together = max(1, min(MOST_PROBLEMS, int(0.8 * free) // of_problem))
    for start in range(0, b, together):
        yield slice(start, min(start + together, b))
