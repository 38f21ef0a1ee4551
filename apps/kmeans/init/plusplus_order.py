"""Distances and sums of greedy k-means++ in NumPy, in the order of additions of a GPU, which gives the same bits.

The kernels are those of plusplus.cuh. Pruned steps (plusplus_pruned.cuh) add the rows of a chunk in another order.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tsapps.apps.kmeans.data.kernel_order import running_sums, sum_in_order, warp_sum
from tsapps.apps.kmeans.init.plan import DRAW_THREADS, GROUP, INTERVAL, WARP, lanes_and_chunk

__all__ = ["PlusPlusOrder"]


@dataclass(frozen=True)
class PlusPlusOrder:
    """How the kernels of a step split rows and sums.

    Attributes
    ----------
    lanes : int
        Number of lanes among which a row is split.
    wide : int
        Number of consecutive columns that a lane reads at a time.
    chunk : int
        Number of consecutive rows per chunk.
    """

    lanes: int
    wide: int
    chunk: int

    @classmethod
    def of(cls, n: int, d: int, trials: int, itemsize: int) -> "PlusPlusOrder":
        """Return the order for X of shape (n, d) and `trials` candidates per step; see `plusplus_plan`."""
        aligned = d * itemsize % 16 == 0
        lanes, chunk = lanes_and_chunk(n, d, trials, itemsize, aligned=aligned)
        return cls(lanes, 16 // itemsize if aligned else 1, chunk)

    def square_distances(self, rows: np.ndarray, points: np.ndarray) -> np.ndarray:
        """Return ‖x − p‖² of each row x and the point p of the same place, (m, d) both; (m,), in their type.

        The order is that of `Distances` in candidate_distances.cuh.
        """
        squares = (rows - points).T
        squares *= squares
        d = len(squares)
        if self.lanes < WARP:
            return self._sum_of_columns(squares)
        total = np.zeros(len(rows))
        for begin in range(0, d, INTERVAL):
            total += self._sum_of_columns(squares[begin : begin + INTERVAL])
        return total.astype(rows.dtype)

    def _sum_of_columns(self, squares: np.ndarray) -> np.ndarray:
        """Return the sums over the first axis of squares, (columns, m): each lane adds up its own, then all lanes."""
        columns, m = squares.shape
        steps = -(-columns // (self.lanes * self.wide))
        padded = np.zeros((steps * self.lanes * self.wide, m), squares.dtype)
        padded[:columns] = squares
        of_step = padded.reshape(steps, self.lanes, self.wide, m)
        sums = np.zeros((self.lanes, m), squares.dtype)
        for step in range(steps):
            for i in range(self.wide):
                sums += of_step[step, :, i]
        return warp_sum(sums.T)

    def by_chunk(self, values: np.ndarray) -> np.ndarray:
        """Return values of consecutive rows, (m,), as float64 of shape (chunk, chunks); zeros follow the last."""
        chunks = -(-len(values) // self.chunk)
        found = np.zeros((self.chunk, chunks))
        whole = len(values) // self.chunk
        found[:, :whole] = values[: whole * self.chunk].reshape(whole, self.chunk).T
        if whole < chunks:
            found[: len(values) - whole * self.chunk, whole] = values[whole * self.chunk :]
        return found

    def places(self, count: int) -> np.ndarray:
        """Return the flat index of each of `count` rows in the array that `by_chunk` returns."""
        return _places(self.chunk, count)

    def chunk_sums(self, values: np.ndarray) -> np.ndarray:
        """Return the sum of each chunk of what `by_chunk` returns, (chunks,), as evaluate_candidates adds them."""
        groups = WARP // self.lanes
        return warp_sum(sum_in_order(values.reshape(self.chunk // groups, groups, -1), 0).T)

    def totals(self, sums: np.ndarray) -> np.ndarray:
        """Return the sums over all chunks of X, (m,), from the sums of the chunks, (m, chunks)."""
        return _sum_by_lane(_group_sums(sums))

    def find_chunks(self, sums: np.ndarray, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Find the chunks in which samples are drawn, as sample_candidates does.

        Parameters
        ----------
        sums : numpy.ndarray of shape (chunks,)
            Σ w·D² of each chunk of X.
        draws : numpy.ndarray of shape (trials,)
            Uniform random numbers in [0, 1).

        Returns
        -------
        chunks : numpy.ndarray of shape (trials,)
            The first chunk at whose end the running sum of w·D² reaches a target, each draw times the sum of all.
        passed : numpy.ndarray of shape (trials,)
            The running sum before it.
        targets : numpy.ndarray of shape (trials,)
        """
        of_groups = _group_sums(sums[np.newaxis])
        targets = draws * _sum_by_lane(of_groups)[0]
        every = np.full(len(draws), of_groups.shape[1])
        group, passed = _first_at_least(of_groups, np.zeros(len(draws)), targets, every)
        padded = np.zeros(of_groups.shape[1] * GROUP)
        padded[: len(sums)] = sums
        of_group = padded.reshape(-1, GROUP)[group]
        inner, passed = _first_at_least(of_group, passed, targets, np.minimum(len(sums) - group * GROUP, GROUP))
        return group * GROUP + inner, passed, targets

    def find_rows(
        self, masses_of: Callable[[int], np.ndarray], chunks: np.ndarray, passed: np.ndarray, targets: np.ndarray
    ) -> np.ndarray:
        """Return for each target the row that `find_row` finds in its chunk; indices count from the first chunk.

        `masses_of` returns w·D² of the rows of the chunk that begins at a row.
        """
        found = np.empty(len(chunks), np.int64)
        for i, (chunk, before, target) in enumerate(zip(chunks.tolist(), passed, targets, strict=True)):
            start = chunk * self.chunk
            found[i] = start + self.find_row(masses_of(start), before, target)
        return found

    def find_row(self, masses: np.ndarray, passed: float, target: float) -> int:
        """Return the first row of a chunk at which `passed` plus the running sum of w·D² (m,) reaches a target.

        If rounding puts the target past the end, it is the last row with a positive w·D², or the last row.
        """
        for tile in range(0, len(masses), DRAW_THREADS):
            values = np.zeros(DRAW_THREADS)
            some = masses[tile : tile + DRAW_THREADS]
            values[: len(some)] = some
            up_to, _, every = running_sums(values)
            reached = np.flatnonzero(passed + up_to[: len(some)] >= target)
            if reached.size:
                return tile + int(reached[0])
            passed += float(every)
        positive = np.flatnonzero(masses)
        return int(positive[-1]) if positive.size else len(masses) - 1


@lru_cache(maxsize=4)
def _places(chunk: int, count: int) -> np.ndarray:
    row, chunks = np.arange(count), -(-count // chunk)
    return row % chunk * chunks + row // chunk


def _group_sums(sums: np.ndarray) -> np.ndarray:
    """Return the sums of groups of chunks, (m, groups), from those of chunks, (m, chunks), as sum_groups does."""
    m, chunks = sums.shape
    padded = np.zeros((m, -(-chunks // GROUP) * GROUP))
    padded[:, :chunks] = sums
    return warp_sum(sum_in_order(padded.reshape(m, -1, GROUP // WARP, WARP), 2))


def _sum_by_lane(sums: np.ndarray) -> np.ndarray:
    """Return the sums over the last axis, each lane of a warp first adding every 32nd number."""
    m, count = sums.shape
    padded = np.zeros((m, -(-count // WARP) * WARP))
    padded[:, :count] = sums
    return warp_sum(sum_in_order(padded.reshape(m, -1, WARP), 1))


def _first_at_least(
    values: np.ndarray, passed: np.ndarray, targets: np.ndarray, count: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return for each target what `Search::first_at_least` does: an index, and the sum before it.

    `values` is (m, threads), or (1, threads) for all targets, of which `count` (m,) are present; zeros follow.
    """
    padded = np.zeros((len(values), DRAW_THREADS))
    padded[:, : values.shape[1]] = values
    up_to, before, _ = running_sums(padded)
    reached = (passed[:, np.newaxis] + up_to >= targets[:, np.newaxis]) & (
        np.arange(DRAW_THREADS) < count[:, np.newaxis]
    )
    positive = padded > 0
    last = np.where(positive.any(axis=1), DRAW_THREADS - 1 - positive[:, ::-1].argmax(axis=1), 0)
    found = np.where(reached.any(axis=1), reached.argmax(axis=1), last)
    return found, passed + np.broadcast_to(before, reached.shape)[np.arange(len(found)), found]
