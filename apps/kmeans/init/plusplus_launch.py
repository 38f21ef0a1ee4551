"""Greedy k-means++ on a GPU: launches, without host synchronization until all centers are drawn (plusplus.cuh)."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tsapps.apps.kmeans.data.device_data import DeviceData
from tsapps.apps.kmeans.data.half_copy import HalfCopy
from tsapps.apps.kmeans.data.load import load_kernels, pointer
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

__all__ = ["GreedyDraw", "draw_plus_plus"]

# evaluate_candidates: number of threads per block and of blocks per multiprocessor. sample_candidates: number of
# threads per block.
_TRY_THREADS, _TRY_BLOCKS, _DRAW_THREADS = 256, 2, 512
# Minimum size of X in the working dtype, in bytes, for which steps may be pruned.
_LEAST_PRUNED_BYTES = 32 << 20
# For 16-bit X, steps are pruned only if this many times the bytes of X are free on the GPU. A copy of X in float32, the
# half-precision copy, and the row lists of iterations need this memory.
_BESIDE_HALF_COPY = 4


class GreedyDraw:
    """The buffers of greedy k-means++ on a GPU, and the launches of its steps.

    Parameters
    ----------
    data : DeviceData
    X : array of shape (n, d)
        The samples in the dtype of `data`, row-major.
    plan : PlusPlusPlan
    first : int
        Index of the sample that is the first center.
    draws : numpy.ndarray of shape (steps, trials)
        Uniform random numbers in [0, 1). Row s draws the candidates of center s + 1.
    half_copy : HalfCopy, optional
        The copy that pruned steps read.

    Attributes
    ----------
    closest : array of shape (n,)
        D², the squared distance of each sample to the nearest center.
    candidates, chosen : arrays of shape (steps + 1, trials) and (steps + 1,)
        Sample indices: the candidates of each center, and the candidate that became the center. All candidates of the
        first center are that center.
    sums : array of shape (trials, chunks)
        For each candidate and chunk of samples, Σ w·D² if the candidate became a center.
    by_rows : Launch
        Evaluates the candidates of a step from X.
    by_copy : Launch, optional
        Evaluates the candidates of a pruned step from the half-precision copy and a part of X. None if steps are not
        pruned.
    """

    def __init__(
        self, data: DeviceData, X: Any, plan: PlusPlusPlan, first: int, draws: np.ndarray, half_copy: HalfCopy | None
    ) -> None:
        (n, d), (steps, trials), weights = X.shape, draws.shape, data.sample_weight
        machine, xp, scalar = data.machine, data.xp, ELEMENT[data.dtype.name]
        names = ("evaluate_candidates", "sample_candidates")
        expressions = (plan.kernel(name, scalar, weighted=weights is not None) for name in names)
        by_rows, self._sample = load_kernels(machine, "init/plusplus.cuh", *expressions)
        by_rows.max_dynamic_shared_size_bytes = plan.shared_bytes
        self.closest = xp.full(n, np.inf, data.dtype)
        self.candidates, self.chosen = (xp.full(size, first, np.int64) for size in ((steps + 1, trials), steps + 1))
        self.sums = xp.empty((trials, plan.chunks))
        self.draws = xp.asarray(draws, dtype=np.float64)
        samples = X, np.int64(n), np.int32(d), pointer(weights)
        chunks, window = (np.int32(plan.chunk), np.int32(plan.chunks)), np.int32(plan.window)
        blocks = min(data.gpu.multiprocessors * _TRY_BLOCKS, plan.chunks)
        tried = *samples, self.chosen, self.candidates, *chunks, window, self.closest, self.sums
        self._read = *samples, self.closest, *chunks, self.sums
        drawn = *self._read, self.candidates, self.draws, self.chosen, self.candidates
        self.by_rows = machine.bind(by_rows, (blocks,), (_TRY_THREADS,), tried, plan.shared_bytes)
        self.by_copy = None if half_copy is None else _bind_pruned(data, half_copy, plan, blocks, tried)
        self._sample_candidates = machine.bind(self._sample, (trials,), (_DRAW_THREADS,), drawn)
        # Positions of the first argument that changes with the step: in evaluate_candidates, the two arguments after
        # the samples change; in sample_candidates, the last four.
        self._tried, self._drawn = len(samples), len(self._read)

    def evaluate(self, step: int, launch: Launch) -> None:
        """Compute the sums of a step's candidates by `launch`, and update `closest` by the previous step's center."""
        launch.change(self._tried, _row(self.chosen, max(step - 1, 0)))
        launch.change(self._tried + 1, _row(self.candidates, step))
        launch()

    def sample(self, step: int) -> None:
        """Choose the best of a step's candidates, and draw the candidates of the next step, if there is one."""
        if step == len(self.draws):
            last = self.candidates[step], pointer(None), self.chosen[step:], pointer(None)
            self._sample((1,), (_DRAW_THREADS,), (*self._read, *last))
            return
        rows = (self.candidates, step), (self.draws, step), (self.chosen, step), (self.candidates, step + 1)
        for place, row in enumerate(rows, self._drawn):
            self._sample_candidates.change(place, _row(*row))
        self._sample_candidates()


def _row(array: Any, step: int) -> int:
    """Return the address of row `step` of an array."""
    return address(array) + step * int(array.strides[0])


def _reads_copy(data: DeviceData) -> bool:
    """Return True if later steps may be pruned: X is on the GPU, is large enough, and leaves enough memory free."""
    X = data.rows_on_gpu
    if X is None or data.n_samples * data.n_features * data.dtype.itemsize < _LEAST_PRUNED_BYTES:
        return False
    return data.held is not None or data.fits(_BESIDE_HALF_COPY * X.nbytes)


def draw_plus_plus(
    data: DeviceData, copy_for: Callable[[int], HalfCopy | None], first: int, draws: np.ndarray
) -> np.ndarray | None:
    """Draw samples by greedy k-means++ on the GPU; implements `plusplus.Draw`.

    Each step reads X once, and stores one distance per sample. If the Lloyd iterations will read the half-precision
    copy of X, later steps are pruned: they read this copy and a part of X. Pruned steps add sums in another order,
    which may change about one draw in 10¹⁰.

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
    draw = GreedyDraw(data, X, plan, first, draws, half_copy)
    for step in range(steps + 1):
        draw.evaluate(step, draw.by_rows if draw.by_copy is None or step < first_pruned else draw.by_copy)
        draw.sample(step)
    return to_host(draw.chosen)


def _bind_pruned(
    data: DeviceData, half_copy: HalfCopy, plusplus: PlusPlusPlan, blocks: int, tried: tuple[Any, ...]
) -> Launch | None:
    """Return the launch of evaluate_candidates_pruned; None if `pruned_plan` has no plan for these sizes.

    The launch has the number of blocks and the arguments (`tried`) of evaluate_candidates, and the copy as one more
    argument.
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
