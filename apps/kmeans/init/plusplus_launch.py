"""Greedy k-means++ on a GPU, without host synchronisation until all centers are drawn; see init/plusplus.cuh."""

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
    first_pruned_step,
    plusplus_plan,
    pruned_plan,
)
from tsapps.kernels.arrays import address, to_host
from tsapps.kernels.plan.mma import ELEMENT
from tsapps.kernels.runtime.launch import structure
from tsapps.kernels.runtime.machine import Launch

__all__ = ["draw_plus_plus"]

# evaluate_candidates: threads of a block and blocks per multiprocessor. sample_candidates: threads of a block.
_TRY_THREADS, _TRY_BLOCKS, _DRAW_THREADS = 256, 2, 512
# Steps may be pruned from this many bytes of X in the working dtype on.
_LEAST_PRUNED_BYTES = 32 << 20
# For 16-bit X, this many times its bytes must be free: for X in float32, the half-precision copy, and row lists of
# iterations.
_BESIDE_HALF_COPY = 4


def _reads_copy(data: DeviceData) -> bool:
    """Tell whether later steps may be pruned by the half-precision copy of X, if iterations read it too."""
    X = data.rows_on_gpu
    if X is None or data.n_samples * data.n_features * data.dtype.itemsize < _LEAST_PRUNED_BYTES:
        return False
    return data.held is not None or data.fits(_BESIDE_HALF_COPY * X.nbytes)


def draw_plus_plus(
    data: DeviceData, copy_for: Callable[[int], HalfCopy | None], first: int, draws: np.ndarray
) -> np.ndarray | None:
    """Draw samples by greedy k-means++ on the GPU; implements `plusplus.Draw`.

    Each step reads X once, and stores one distance per sample. If iterations will read the half-precision copy, later
    steps are pruned: they read the copy and a part of X. Pruned steps add sums in another order, which may change about
    one draw in 10¹⁰.

    Parameters
    ----------
    data : DeviceData
    copy_for : callable
        Returns the half-precision copy that iterations for k clusters read, or None.
    first : int
        Index of the first sample.
    draws : numpy.ndarray of shape (k − 1, trials)
        Uniform random numbers in [0, 1).

    Returns
    -------
    numpy.ndarray of shape (k,) or None
        Sample indices. None if X does not fit the GPU in the working dtype, or the kernels do not support its shape.
    """
    steps, trials = draws.shape
    first_pruned = first_pruned_step(trials)
    half_copy = copy_for(steps + 1) if steps >= first_pruned and _reads_copy(data) else None
    X = data.held
    if X is None and data.rows_on_gpu is not None and data.fits(2 * data.rows_on_gpu.nbytes):
        X = data.rows_on_gpu.astype(data.dtype)  # of a 16-bit type
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
    # Row s has the candidates of center s; those of the first center are all the first sample.
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
    # Positions of the arguments that change with each step: two after `samples`, and the last four.
    of_tried, of_drawn = len(samples), len(drawn) - 4

    def row(array: Any, step: int) -> int:
        return address(array) + step * int(array.strides[0])

    pruned = None if half_copy is None else _bind_pruned(data, half_copy, plan, blocks, tried)
    for step in range(steps + 1):
        attempt = evaluate_candidates if pruned is None or step < first_pruned else pruned
        attempt.change(of_tried, row(chosen, max(step - 1, 0)))
        attempt.change(of_tried + 1, row(candidates, step))
        attempt()
        if step < steps:
            following = row(candidates, step), row(numbers, step), row(chosen, step), row(candidates, step + 1)
            for place, at in enumerate(following, of_drawn):
                sample_candidates.change(place, at)
            sample_candidates()
    # After the last step, only the best candidate is selected, and none is sampled.
    told = *drawn[:of_drawn], candidates[steps], nothing, chosen[steps:], nothing
    draw((1,), (_DRAW_THREADS,), told)
    return to_host(chosen)


def _bind_pruned(
    data: DeviceData, half_copy: HalfCopy, plusplus: PlusPlusPlan, blocks: int, tried: tuple[Any, ...]
) -> Launch | None:
    """Return the launch of a pruned step, which reads the half-precision copy; None if there is no plan for it.

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
