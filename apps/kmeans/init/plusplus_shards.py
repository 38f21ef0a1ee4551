"""Greedy k-means++ over X that is distributed over several GPUs: the samples are those that one GPU draws."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tsapps.apps.kmeans.data.device_data import DeviceData
from tsapps.apps.kmeans.data.load import is_vectorizable
from tsapps.apps.kmeans.init.chosen import Chosen
from tsapps.apps.kmeans.init.plan import PlusPlusPlan, PrunedPlan, scale_samples
from tsapps.apps.kmeans.init.plusplus_launch import GreedyDraw, draw_plus_plus, plan_draw, rows_to_draw
from tsapps.apps.kmeans.init.pruned_launch import plan_pruning

__all__ = ["Exchange", "draw_plus_plus_of_shards"]

# Number of steps that are launched before the host waits for them; a step has up to eight launches.
_STEPS_AHEAD = 64

#: Adds int64 arrays of all GPUs, element by element, without host synchronization. Parameters: an array of each GPU,
#: and an array of each GPU of the same shape, to which the sum is written, on the GPU's current stream.
Exchange = Callable[[Sequence[Any], Sequence[Any]], None]


def draw_plus_plus_of_shards(
    shards: Sequence[DeviceData],
    exchange: Exchange,
    first: int,
    draws: np.ndarray,
    wait: Callable[[], None] = lambda: None,
    chosen: Chosen | None = None,
) -> Any:
    """Draw samples by greedy k-means++ from X of which each GPU has a shard.

    Every GPU evaluates the candidates on its chunks. The sums of all chunks are exchanged, and every GPU then finds the
    best candidate and the chunks of the next draws, which takes less time than to tell the others. Only the GPU that
    has the chunk finds the row in it. The rows and their indices are exchanged.

    An exchange adds zeros of all other GPUs to a number, as 64-bit integers, so numbers keep their bits. The samples
    are those of `draw_plus_plus` for the whole of X.

    Parameters
    ----------
    shards : sequence of DeviceData
        All shards of X, each on another GPU, in the order of their rows. `DeviceData.shift` and `DeviceData.spread` are
        the same for all of them.
    exchange : callable
        See `Exchange`.
    first : int
        Index in X of the first sample.
    draws : numpy.ndarray of shape (k − 1, trials)
        Uniform random numbers in [0, 1).
    wait : callable, optional
        Is called from time to time, to wait for the launches so far: CUDA's queue has room for some 1,000 launches, and
        a host that waits for room waits forever if a GPU has failed.
    chosen : callable, optional
        See `Chosen`; it is called after every `wait`.

    Returns
    -------
    array of shape (k,) or None
        Indices of samples in X, on the GPU of the first shard or in host memory. None if a shard does not fit its GPU
        in the working dtype, or the kernels do not support the shape of X.

    Raises
    ------
    ValueError
        If a shard begins within a chunk.
    """
    if len(draws) == 0:
        return np.array([first])
    if len(shards) == 1:
        with shards[0] as data:
            return draw_plus_plus(data, first, draws, chosen)
    drawn = _greedy_draws(shards, exchange, draws)
    if drawn is None:
        return None
    for data, draw in zip(shards, drawn, strict=True):
        with data:
            draw.begin(first)
    exchange([draw.drawn[0] for draw in drawn], [draw.points[0] for draw in drawn])
    for step in range(len(draws) + 1):
        for data, draw in zip(shards, drawn, strict=True):
            with data:
                draw.evaluate(step)
        exchange([draw.sums.view(np.int64) for draw in drawn], [draw.all_sums.view(np.int64) for draw in drawn])
        for data, draw in zip(shards, drawn, strict=True):
            with data:
                draw.sample(step)
        if step % _STEPS_AHEAD == _STEPS_AHEAD - 1:
            wait()
            if chosen is not None:
                chosen(step + 1, len(draws) + 1)
        following = (step + 1) % 2
        if step < len(draws):
            exchange([draw.drawn[following] for draw in drawn], [draw.points[following] for draw in drawn])
    return drawn[0].chosen


def _greedy_draws(shards: Sequence[DeviceData], exchange: Exchange, draws: np.ndarray) -> list[GreedyDraw] | None:
    """Return the launches of each shard, or None if a shard cannot be drawn from."""
    rows, plans, trials = [], [], draws.shape[1]
    for data in shards:
        with data:
            rows.append(rows_to_draw(data))
    if any(X is None for X in rows):
        return None
    # Which is a part of the plan, so it is the same for all GPUs.
    aligned = all(is_vectorizable(X, 16 // X.itemsize) for X in rows)
    for data in shards:
        plan = plan_draw(data, trials, aligned=aligned)
        if plan is None:
            return None
        _check_shard(data, plan)
        plans.append(plan)
    pruned = _plan_pruning(shards, plans, len(draws))
    sampled = _sampled_rows(shards, rows, exchange) if pruned[0] is not None else [None] * len(shards)
    drawn = []
    for data, X, plan, of_pruned, of_scales in zip(shards, rows, plans, pruned, sampled, strict=True):
        with data:
            drawn.append(GreedyDraw(data, X, plan, draws, of_pruned, of_scales))
    if pruned[0] is not None:
        _exchange_largest(shards, drawn, exchange)
    return drawn


def _check_shard(data: DeviceData, plan: PlusPlusPlan) -> None:
    if data.shard.first % plan.chunk != 0:
        raise ValueError(
            f"a shard begins at row {data.shard.first} of {data.n_total}; expected a multiple of {plan.chunk}, "
            "the rows of a chunk: distribute X by whole chunks"
        )


def _plan_pruning(shards: Sequence[DeviceData], plans: list[PlusPlusPlan], steps: int) -> list[PrunedPlan | None]:
    """Return the plans of pruned steps: of all shards, or of none if one has no memory for the copy of its rows."""
    planned = []
    for data, plan in zip(shards, plans, strict=True):
        with data:
            planned.append(plan_pruning(data, plan, steps))
    return planned if None not in planned else [None] * len(planned)


def _sampled_rows(shards: Sequence[DeviceData], rows: Sequence[Any], exchange: Exchange) -> list[Any]:
    """Return for each GPU the rows of the whole of X that decide the scales of columns of the quantized copy."""
    d, wanted, own, total = shards[0].n_features, scale_samples(shards[0].shard.n_total), [], []
    size = len(wanted) * d
    for data, X in zip(shards, rows, strict=True):
        with data:
            here = (wanted >= data.shard.first) & (wanted < data.shard.first + len(X))
            words = -(-size * X.itemsize // 8)
            own.append(data.xp.zeros(words, np.int64))
            total.append(data.xp.empty(words, np.int64))
            place = slice(int(here.argmax()), int(here.argmax() + here.sum()))
            own[-1].view(X.dtype)[:size].reshape(-1, d)[place] = X[data.xp.asarray(wanted[here] - data.shard.first)]
    exchange(own, total)
    return [words.view(X.dtype)[:size].reshape(-1, d) for words, X in zip(total, rows, strict=True)]


def _exchange_largest(shards: Sequence[DeviceData], drawn: Sequence[GreedyDraw], exchange: Exchange) -> None:
    """Replace `largest` of the quantized copies, a maximum over rows, by that over all shards."""
    largest, own, total = [], [], []
    for i, (data, draw) in enumerate(zip(shards, drawn, strict=True)):
        assert draw.pruned is not None
        with data:
            largest.append(draw.pruned.copy.largest)
            own.append(data.xp.zeros(len(shards), np.int64))
            own[i][i : i + 1] = largest[i]
            total.append(data.xp.empty(len(shards), np.int64))
    exchange(own, total)
    for data, of_copy, of_all in zip(shards, largest, total, strict=True):
        with data:
            of_copy[:] = of_all.max()
