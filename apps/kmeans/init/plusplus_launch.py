"""Greedy k-means++ on a GPU: launches, without host synchronization until all centers are drawn (plusplus.cuh)."""

from typing import Any

import numpy as np

from tsapps.apps.kmeans.data.device_data import DeviceData
from tsapps.apps.kmeans.data.load import load_kernels, pointer
from tsapps.apps.kmeans.init.plan import TRY_THREADS, PlusPlusPlan, first_pruned_step, plusplus_plan
from tsapps.apps.kmeans.init.pruned_launch import pruned_steps
from tsapps.kernels.arrays import address, to_host
from tsapps.kernels.plan.mma import ELEMENT

__all__ = ["GreedyDraw", "draw_plus_plus", "greedy_draw"]

# Number of blocks of evaluate_candidates per multiprocessor, and of threads per block of sample_candidates.
_TRY_BLOCKS, _DRAW_THREADS = 2, 512
# Number of chunks per group (kGroup).
_GROUP = 128


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

    Attributes
    ----------
    closest : array of shape (n,)
        D², the squared distance of each sample to the nearest center.
    candidates, chosen : arrays of shape (steps + 1, trials) and (steps + 1,)
        Sample indices: the candidates of each center, and the candidate that became the center. All candidates of the
        first center are that center.
    sums : array of shape (trials, chunks)
        For each candidate and chunk of samples, Σ w·D² if the candidate became a center.
    pruned : PrunedSteps, optional
        None if no step is pruned.
    """

    def __init__(self, data: DeviceData, X: Any, plan: PlusPlusPlan, first: int, draws: np.ndarray) -> None:
        (n, d), (steps, trials), weights = X.shape, draws.shape, data.sample_weight
        machine, xp, scalar = data.machine, data.xp, ELEMENT[data.dtype.name]
        names = ("evaluate_candidates", "sample_candidates")
        expressions = (plan.kernel(name, scalar, weighted=weights is not None) for name in names)
        by_rows, self._sample, add_up = load_kernels(machine, "init/plusplus.cuh", *expressions, "sum_groups")
        by_rows.max_dynamic_shared_size_bytes = plan.shared_bytes
        self.closest = xp.full(n, np.inf, data.dtype)
        self.candidates, self.chosen = (xp.full(size, first, np.int64) for size in ((steps + 1, trials), steps + 1))
        groups = -(-plan.chunks // _GROUP)
        self.sums, group_sums = xp.empty((trials, plan.chunks)), xp.empty((trials, groups))
        self.draws = xp.asarray(draws, dtype=np.float64)
        # Before the other launches are bound, so that all kernels compile at the same time.
        self.pruned = pruned_steps(data, X, plan, steps, self.closest, self.sums)
        samples = X, np.int64(n), np.int32(d), pointer(weights)
        chunks, window = (np.int32(plan.chunk), np.int32(plan.chunks)), np.int32(plan.window)
        blocks = min(data.gpu.multiprocessors * _TRY_BLOCKS, plan.chunks)
        tried = *samples, self.chosen, self.candidates, *chunks, window, self.closest, self.sums
        self._read = *samples, self.closest, *chunks, self.sums, group_sums
        drawn = *self._read, self.candidates, self.draws, self.chosen, self.candidates
        self._evaluate = machine.bind(by_rows, (blocks,), (TRY_THREADS,), tried, plan.shared_bytes)
        added = self.sums, chunks[1], group_sums
        self._add_up = machine.bind(add_up, (groups,), (32 * trials,), added)
        self._sample_candidates = machine.bind(self._sample, (trials,), (_DRAW_THREADS,), drawn)
        # Positions of the first argument that changes with the step: in evaluate_candidates, the two arguments after
        # the samples change; in sample_candidates, the last four.
        self._tried, self._drawn = len(samples), len(self._read)

    def evaluate(self, step: int) -> None:
        """Compute the sums of a step's candidates, and update `closest` by the previous step's center."""
        last, candidates = _row(self.chosen, max(step - 1, 0)), _row(self.candidates, step)
        if self.pruned is not None and step >= first_pruned_step(self.candidates.shape[1]):
            self.pruned.evaluate(last, candidates)
            return
        self._evaluate.change(self._tried, last)
        self._evaluate.change(self._tried + 1, candidates)
        self._evaluate()

    def sample(self, step: int) -> None:
        """Choose the best of a step's candidates, and draw the candidates of the next step, if there is one."""
        self._add_up()
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


def draw_plus_plus(data: DeviceData, first: int, draws: np.ndarray) -> np.ndarray | None:
    """Draw samples by greedy k-means++ on the GPU; implements `plusplus.Draw`.

    Each step reads X once, and stores one distance per sample. For large X, later steps are pruned: they read a
    quantized copy and a part of X. Pruned steps add sums in another order, which may change about one draw in 10¹⁰.

    Parameters
    ----------
    data : DeviceData
    first : int
        Index of the first sample.
    draws : numpy.ndarray of shape (k − 1, trials)
        Uniform random numbers in [0, 1).

    Returns
    -------
    numpy.ndarray of shape (k,) or None
        Sample indices. None if X does not fit the GPU in the working dtype, or the kernels do not support its shape.
    """
    if len(draws) == 0:
        return np.array([first])
    draw = greedy_draw(data, first, draws)
    if draw is None:
        return None
    for step in range(len(draws) + 1):
        draw.evaluate(step)
        draw.sample(step)
    return to_host(draw.chosen)


def greedy_draw(data: DeviceData, first: int, draws: np.ndarray) -> GreedyDraw | None:
    """Return the launches of `draw_plus_plus`, or None if it returns None; there is at least one row of `draws`."""
    X = data.rows_on_gpu if data.uncentered is None else data.uncentered
    if X is not None and X.dtype != data.dtype:  # a 16-bit type
        X = X.astype(data.dtype) if data.fits(2 * X.nbytes) else None
    if X is None:
        return None
    (n, d), size = X.shape, data.dtype.itemsize
    aligned = d * size % 16 == 0 and address(X) % 16 == 0
    plan = plusplus_plan(n, d, draws.shape[1], size, aligned=aligned, device=data.gpu)
    return None if plan is None else GreedyDraw(data, X, plan, first, draws)
