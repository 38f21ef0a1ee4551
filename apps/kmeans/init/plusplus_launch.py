"""Greedy k-means++ on a GPU, without the host until every center is drawn; see init/plusplus.cuh."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tsapps.apps.kmeans.data.device_data import DeviceData
from tsapps.apps.kmeans.data.half_copy import HalfCopy
from tsapps.apps.kmeans.data.load import load_kernels
from tsapps.apps.kmeans.init.plan import (
    COPY,
    PlusPlusPlan,
    copy_error,
    first_screened,
    plusplus_plan,
    pruned_plan,
)
from tsapps.kernels.arrays import address, to_host
from tsapps.kernels.plan.mma import ELEMENT
from tsapps.kernels.runtime.launch import structure
from tsapps.kernels.runtime.machine import Launch

__all__ = ["draw_plus_plus"]

# Threads and blocks a multiprocessor of evaluate_candidates, and threads of sample_candidates.
_TRY_THREADS, _TRY_BLOCKS, _DRAW_THREADS = 256, 2, 512
# Bytes of X, as it is worked on, from which on steps read its copy, which iterations want too, but not of small data.
_LEAST_SCREENED = 32 << 20
# Of halves, how many times their bytes are to be free: for X in float32, the copy, and what iterations list.
_BESIDE_HALF_COPY = 4


def _reads_copy(data: DeviceData) -> bool:
    """Tell whether steps are to read X's copy, if iterations do."""
    X = data.rows_on_gpu
    if X is None or data.n_samples * data.n_features * data.dtype.itemsize < _LEAST_SCREENED:
        return False
    return data.held is not None or data.fits(_BESIDE_HALF_COPY * X.nbytes)


def draw_plus_plus(
    data: DeviceData, copy_for: Callable[[int], HalfCopy | None], first: int, draws: np.ndarray
) -> np.ndarray | None:
    """Draw samples by greedy k-means++, see `plusplus.Draw`; None where X is not held or there is no plan.

    X is read once for each center, or its copy and a part of X where iterations will read the copy and some centers are
    drawn; beside it, n numbers are kept. By the copy sums are added up in another order, so that one draw in some 10¹⁰
    may be another. `copy_for(k)` is the half-precision copy that iterations for k clusters read, or None.
    """
    steps, trials = draws.shape
    screened_from = first_screened(trials)
    half_copy = copy_for(steps + 1) if steps >= screened_from and _reads_copy(data) else None
    X = data.held
    if X is None and data.rows_on_gpu is not None and data.fits(2 * data.rows_on_gpu.nbytes):
        X = data.rows_on_gpu.astype(data.dtype)  # halves
    if X is None:
        return None
    if steps == 0:
        return np.array([first])
    (n, d), size = X.shape, data.dtype.itemsize
    aligned = d * size % 16 == 0 and address(X) % 16 == 0
    plan = plusplus_plan(n, d, trials, size, aligned=aligned, device=data.gpu)
    if plan is None:
        return None
    weights, machine, xp = data.sample_weight, data.machine, data.xp
    names, scalar = ("evaluate_candidates", "sample_candidates"), ELEMENT[data.dtype.name]
    by_rows, draw = load_kernels(
        machine,
        "init/plusplus.cuh",
        *(plan.kernel(name, scalar, weighted=weights is not None) for name in names),
    )
    by_rows.max_dynamic_shared_size_bytes = plan.shared_bytes
    closest = xp.full(n, np.inf, data.dtype)
    # Row s holds the candidates of center s: for the first, itself.
    candidates, chosen = (xp.full(shape, first, np.int64) for shape in ((steps + 1, trials), steps + 1))
    sums = xp.empty((trials, plan.chunks))
    numbers = xp.asarray(draws, dtype=np.float64)
    nothing = np.intp(0)
    samples = X, np.int64(n), np.int32(d), nothing if weights is None else weights
    chunks = np.int32(plan.chunk), np.int32(plan.chunks)
    blocks = min(data.gpu.multiprocessors * _TRY_BLOCKS, plan.chunks)
    tried = *samples, chosen, candidates, *chunks, np.int32(plan.window), closest, sums
    drawn = *samples, closest, *chunks, sums, candidates, numbers, chosen, candidates
    evaluate_candidates = machine.bind(by_rows, (blocks,), (_TRY_THREADS,), tried, plan.shared_bytes)
    sample_candidates = machine.bind(draw, (trials,), (_DRAW_THREADS,), drawn)
    # The arguments that go on with every step: two behind the samples, and the last four.
    of_tried, of_drawn = len(samples), len(drawn) - 4

    def row(array: Any, step: int) -> int:
        return address(array) + step * int(array.strides[0])

    screened = None if half_copy is None else _screening(data, half_copy, plan, blocks, tried)
    for step in range(steps + 1):
        attempt = evaluate_candidates if screened is None or step < screened_from else screened
        attempt.change(of_tried, row(chosen, max(step - 1, 0)))
        attempt.change(of_tried + 1, row(candidates, step))
        attempt()
        if step < steps:
            following = row(candidates, step), row(numbers, step), row(chosen, step), row(candidates, step + 1)
            for place, at in enumerate(following, of_drawn):
                sample_candidates.change(place, at)
            sample_candidates()
    # Of the last only the best is to be told.
    told = *drawn[:of_drawn], candidates[steps], nothing, chosen[steps:], nothing
    draw((1,), (_DRAW_THREADS,), told)
    return to_host(chosen)


def _screening(
    data: DeviceData, half_copy: HalfCopy, plusplus: PlusPlusPlan, blocks: int, tried: tuple[Any, ...]
) -> Launch | None:
    """Return the launch of a step that reads X's copy; None where there is no room.

    `blocks` and the arguments `tried` are those of evaluate_candidates.
    """
    d, weighted, size = data.n_features, data.sample_weight is not None, data.dtype.itemsize
    panels = half_copy.panels > 0
    plan = pruned_plan(plusplus, d, half_copy.padded, size, panels=panels, weighted=weighted, device=data.gpu)
    if plan is None:
        return None
    (kernel,) = load_kernels(
        data.machine, "init/plusplus_pruned.cuh", plan.kernel(ELEMENT[data.dtype.name], weighted=weighted)
    )
    kernel.max_dynamic_shared_size_bytes = plan.shared_bytes
    errors = copy_error(d, half_copy.padded, float(half_copy.rounding))
    sizes = {"padded": half_copy.padded, "scale": half_copy.scale, "error": errors[0], "of_distance": errors[1]}
    arguments = *tried, structure(COPY, rows=half_copy.rows, norms=half_copy.norms, **sizes)
    return data.machine.bind(kernel, (blocks,), (_TRY_THREADS,), arguments, plan.shared_bytes)
