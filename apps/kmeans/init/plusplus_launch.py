"""Greedy k-means++ on a GPU: launches, without host synchronization until all centers are drawn (plusplus.cuh)."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tsapps.apps.kmeans.data.device_data import DeviceData
from tsapps.apps.kmeans.data.load import is_vectorizable, load_kernels, pointer
from tsapps.apps.kmeans.init.chosen import Chosen, Finished
from tsapps.apps.kmeans.init.plan import (
    DRAW_THREADS,
    GROUP,
    TRY_THREADS,
    PlusPlusPlan,
    PrunedPlan,
    first_pruned_step,
    plusplus_plan,
    point_pitch,
    point_words,
    prunes,
)
from tsapps.apps.kmeans.init.pruned_launch import PrunedSteps, plan_pruning
from tsapps.kernels.arrays import address, to_host
from tsapps.kernels.plan.mma import ELEMENT
from tsapps.kernels.runtime.machine import Launch

__all__ = ["BegunDraw", "GreedyDraw", "draw_plus_plus", "greedy_draw", "plan_draw", "rows_to_draw"]

# Number of blocks of evaluate_candidates per multiprocessor.
_TRY_BLOCKS = 2


class GreedyDraw:
    """The buffers of greedy k-means++ on a GPU, and the launches of its steps.

    A step is `evaluate`, then `sample`. If X is distributed over several GPUs, each has a `GreedyDraw` of its shard.
    Then `sums` and `drawn` are zero in what other GPUs write, and `plusplus_shards` adds them over all GPUs, into
    `all_sums` and `points`. On one GPU, these are the same arrays.

    Parameters
    ----------
    data : DeviceData
    X : array of shape (n, d)
        The samples in the dtype of `data`, row-major.
    plan : PlusPlusPlan
    draws : numpy.ndarray of shape (steps, trials)
        Uniform random numbers in [0, 1). Row s draws the candidates of center s + 1.
    pruned : PrunedPlan, optional
        None if no step is pruned.
    sampled : array, optional
        See `QuantizedCopy`.
    stream : int, optional
        The address of the stream of all steps, of which none is pruned; by default the current stream.

    Attributes
    ----------
    closest : array of shape (n,)
        D², the squared distance of each sample to the nearest center.
    chosen : array of shape (steps + 1,)
        The indices of the centers in the whole of X, int64.
    sums, all_sums : arrays of shape (trials, chunks)
        For each candidate and chunk of samples, Σ w·D² if the candidate became a center.
    points, drawn : pairs of arrays of shape (words,), int64
        The points of even and of odd steps, as step_points.cuh lays them out; and what `begin` and `sample` write of
        them.
    pruned : PrunedSteps, optional
    """

    def __init__(
        self,
        data: DeviceData,
        X: Any,
        plan: PlusPlusPlan,
        draws: np.ndarray,
        pruned: PrunedPlan | None = None,
        sampled: Any | None = None,
        stream: int | None = None,
    ) -> None:
        (n, d), (steps, trials), weights = X.shape, draws.shape, data.sample_weight
        machine, xp, scalar = data.machine, data.xp, ELEMENT[data.dtype.name]
        self._stream, self._bind = stream, machine.bind
        self._X, self._trials, self._first = X, trials, data.shard.first
        names = ("evaluate_candidates", "sample_candidates")
        expressions = (plan.kernel(name, scalar, weighted=weights is not None) for name in names)
        by_rows, self._sample, add_up = load_kernels(machine, "init/plusplus.cuh", *expressions, "sum_groups")
        by_rows.max_dynamic_shared_size_bytes = plan.shared_bytes
        self.closest, self.chosen = xp.full(n, np.inf, data.dtype), xp.empty(steps + 1, np.int64)
        self._allocate(xp, plan, point_words(trials, d, data.dtype.itemsize), distributed=n < data.n_total)
        groups, own_chunks = -(-plan.chunks // GROUP), -(-n // plan.chunk)
        group_sums, own_sums = xp.empty((trials, groups)), self.sums[:, self._first // plan.chunk :]
        self.draws = xp.asarray(draws, dtype=np.float64)
        # Before the other launches are bound, so that all kernels compile at the same time.
        self.pruned = None if pruned is None else PrunedSteps(data, X, plan, pruned, self.closest, own_sums, sampled)
        samples = X, np.int64(n), np.int32(d), pointer(weights)
        chunk, chunks = np.int32(plan.chunk), np.int32(plan.chunks)
        sizes = chunk, np.int32(own_chunks), chunks, np.int32(plan.window)
        tried = *samples, self.points[0], *sizes, self.closest, own_sums
        blocks = min(data.gpu.multiprocessors * _TRY_BLOCKS, own_chunks)
        self._evaluate = machine.bind(by_rows, (blocks,), (TRY_THREADS,), tried, plan.shared_bytes)
        added = self.all_sums, chunks, group_sums
        self._add_up = machine.bind(add_up, (groups,), (32 * trials,), added)
        self._read = *samples, self.closest, np.int64(self._first), chunk, chunks, self.all_sums, group_sums
        sampling = *self._read, self.points[0], self.draws, self.chosen, self.drawn[1]
        self._sample_candidates = machine.bind(self._sample, (trials,), (DRAW_THREADS,), sampling)
        # Positions of the first argument that changes with the step: in evaluate_candidates, the points after the
        # samples change; in sample_candidates, the last four arguments.
        self._tried, self._drawn = len(samples), len(self._read)

    def _allocate(self, xp: Any, plan: PlusPlusPlan, words: int, *, distributed: bool) -> None:
        """Allocate sums and points."""
        self.points = xp.zeros(words, np.int64), xp.zeros(words, np.int64)
        self.sums = self.all_sums = xp.empty((plan.trials, plan.chunks))
        self.drawn = self.points
        if distributed:
            self.sums, self.drawn = xp.zeros(self.all_sums.shape), (xp.zeros(words, np.int64),) * 2

    def begin(self, first: int) -> None:
        """Make a sample, of index `first` in the whole of X, all points of step 0, if this GPU has it."""
        row = first - self._first
        if 0 <= row < len(self._X):
            points, candidates = self.parts(self.drawn[0])
            points[...], candidates[...] = self._X[row], first

    def parts(self, points: Any) -> tuple[Any, Any]:
        """Return the rows, (trials + 1, d), and the indices of the candidates, (trials,), in an array of points."""
        d, size = self._X.shape[1], self._X.itemsize
        pitch = point_pitch(d, size)
        rows = points[: -self._trials].view(self._X.dtype).reshape(self._trials + 1, pitch)
        return rows[:, :d], points[-self._trials :]

    def evaluate(self, step: int) -> None:
        """Compute the sums of a step's candidates, and update `closest` by the previous step's center."""
        points = address(self.points[step % 2])
        if self.pruned is not None and step >= first_pruned_step(self._trials):
            self.pruned.evaluate(points)
            return
        self._evaluate.change(self._tried, points)
        self._launch(self._evaluate)

    def sample(self, step: int) -> None:
        """Choose the best of a step's candidates, and draw the candidates of the next step, if there is one."""
        self._launch(self._add_up)
        points, drawn = self.points[step % 2], self.drawn[(step + 1) % 2]
        if step == len(self.draws):
            last = points, pointer(None), self.chosen[step:], pointer(None)
            self._launch(self._bind(self._sample, (1,), (DRAW_THREADS,), (*self._read, *last)))
            return
        changed = address(points), _row(self.draws, step), _row(self.chosen, step), address(drawn)
        for place, argument in enumerate(changed, self._drawn):
            self._sample_candidates.change(place, argument)
        self._launch(self._sample_candidates)

    def _launch(self, launch: Launch) -> None:
        if self._stream is None:
            launch()
        else:
            launch.on(self._stream)


class BegunDraw:
    """A draw of `draw_plus_plus` whose steps run on a stream of their own; see `begin`.

    Attributes
    ----------
    first : int
    draws : numpy.ndarray of shape (k − 1, trials)
        What it draws from.
    """

    def __init__(self, draw: GreedyDraw, first: int, draws: np.ndarray) -> None:
        self.first, self.draws, self._draw = first, draws, draw

    @classmethod
    def begin(cls, data: DeviceData, numbers: Sequence[tuple[int, np.ndarray]]) -> "list[BegunDraw]":
        """Launch draws with these first samples and random numbers, which run side by side.

        Draws that the kernels do not support, of which steps are pruned, or that need a copy of X, are left out. The
        current stream waits for all of them, so that memory is not used again before.
        """
        begun, streams, machine, X = list[BegunDraw](), list[Any](), data.machine, _given_rows(data)
        if X is None or not _needs_no_copy(data, X):
            return begun
        try:
            for first, draws in numbers:
                stream, ready = machine.stream(), machine.event()
                draw = None if prunes(*draws.shape) or not len(draws) else greedy_draw(data, first, draws, stream.ptr)
                if draw is None:
                    continue
                begun.append(cls(draw, first, draws))
                streams.append(stream)
                ready.record()
                stream.wait_event(ready)
                for step in range(len(draws) + 1):
                    draw.evaluate(step)
                    draw.sample(step)
        finally:
            for stream in streams:
                end = machine.event()
                end.record(stream)
                machine.current_stream().wait_event(end)
        return begun

    def samples(self) -> np.ndarray:
        """Return the sample indices of the centers, (k,)."""
        return to_host(self._draw.chosen)


def _row(array: Any, step: int) -> int:
    """Return the address of row `step` of an array."""
    return address(array) + step * int(array.strides[0])


def draw_plus_plus(data: DeviceData, first: int, draws: np.ndarray, chosen: Chosen | None = None) -> np.ndarray | None:
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
    chosen : callable, optional
        See `Chosen`; it learns what has finished while the host launches steps, and nothing after the last.

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
    finished = None if chosen is None else Finished(data.machine, chosen, len(draws) + 1)
    for step in range(len(draws) + 1):
        draw.evaluate(step)
        draw.sample(step)
        if finished is not None:
            finished.launched()
    return to_host(draw.chosen)


def greedy_draw(data: DeviceData, first: int, draws: np.ndarray, stream: int | None = None) -> GreedyDraw | None:
    """Return the launches of `draw_plus_plus`, or None if it returns None; there is at least one row of `draws`."""
    X = rows_to_draw(data)
    plan = None if X is None else plan_draw(data, draws.shape[1], aligned=is_vectorizable(X, 16 // X.itemsize))
    if plan is None:
        return None
    draw = GreedyDraw(data, X, plan, draws, plan_pruning(data, plan, len(draws)), None, stream)
    draw.begin(first)
    return draw


def rows_to_draw(data: DeviceData) -> Any:
    """Return row-major X in the working dtype, from which samples are drawn; None if it does not fit the GPU.

    If only its address keeps lanes from loading vectors, it is copied, because that changes the order of additions.
    """
    X, size = _given_rows(data), data.n_samples * data.n_features * data.dtype.itemsize
    if X is None or _needs_no_copy(data, X):
        return X
    return X.astype(data.dtype) if data.fits(size) else None


def _given_rows(data: DeviceData) -> Any | None:
    return data.rows_on_gpu if data.uncentered is None else data.uncentered


def _needs_no_copy(data: DeviceData, X: Any) -> bool:
    """Return False for a 16-bit type, and for an address within a vector."""
    wide = 16 // data.dtype.itemsize
    right_type = X.dtype == data.dtype
    return right_type and bool(data.n_features % wide or is_vectorizable(X, wide) or not data.fits(X.nbytes))


def plan_draw(data: DeviceData, trials: int, *, aligned: bool) -> PlusPlusPlan | None:
    """Return the plan of the steps, or None if the kernels do not support the shape; see `plusplus_plan`."""
    n, d, size = data.n_total, data.n_features, data.dtype.itemsize
    return plusplus_plan(n, d, trials, size, aligned=aligned, device=data.gpu)
