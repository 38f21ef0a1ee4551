"""Blockwise Lloyd step: assignment and cluster sums, one block of rows after the other, for NumPy and CuPy.

The center c nearest to a row x has the lowest score

    score(x, c) = ‖c‖² − 2·x·c  =  ‖x − c‖² − ‖x‖²

One matrix product computes the scores of a block of rows, so the full n × k score matrix is never stored.
`host_step.py` and `cublas_step.py` implement the assignment and the sums of one block.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from typing import Any

import numpy as np

from tsapps.apps.kmeans.data.distances import square_norms
from tsapps.apps.kmeans.engines.step import Step
from tsapps.apps.kmeans.protect.checks import same_bits
from tsapps.apps.kmeans.results import Assignment
from tsapps.kernels.arrays import to_host

__all__ = ["BlockStep"]


class BlockStep(Step):
    """Lloyd step for any number of clusters, one block of rows at a time."""

    @cached_property
    def labels(self) -> Any:
        """Label of each sample, (n,), int32, on the device of the data."""
        return self.data.xp.empty(self.data.n_samples, np.int32)

    def reset(self) -> None:
        """Set every label to −1; see `Step.reset`."""
        self.labels.fill(-1)

    @abstractmethod
    def assign_block(
        self, block: Any, weights: Any | None, minus_2_centers: Any, norms: Any, *, update: bool, potential: bool
    ) -> tuple[Any, Any | None, Any, Any]:
        """Label the rows of a block, and sum the rows of each label if `update`.

        Parameters
        ----------
        block : array of shape (m, d)
            Rows in the working dtype.
        weights : array of shape (m,), optional
            Sample weights; None means that every row weighs 1.
        minus_2_centers : array of shape (d, k)
            −2·cᵀ for the centers c.
        norms : array of shape (k,)
            ‖c‖² of each center.
        update : bool
            Also compute `sums` and `totals`.
        potential : bool
            Also compute `scores`.

        Returns
        -------
        labels : array of shape (m,), int32
            Index of the center with the lowest score, the lowest index on a tie.
        scores : array of shape (m,) or None
            Lowest score of each row; None unless `potential`.
        sums, totals : arrays of shape (k, d) and (k,)
            Weighted sum and total weight of the rows with each label; the numbers 0 and 0 without `update`.
        """

    def nearest(self, block: Any, minus_2_points: Any, norms: Any) -> Any:
        """Return the index of the point nearest to each row of a block (m, d), (m,), int32; see `plusplus.Nearest`."""
        return self.assign_block(block, None, minus_2_points, norms, update=False, potential=False)[0]

    @abstractmethod
    def sum_block(self, block: Any, weights: Any | None, labels: Any, k: int) -> tuple[Any, Any]:
        """Return the sum (k, d) and weight (k,) of the rows of each label in a block; same bits as `assign_block`."""

    def relabel(self, held: Any, labels: Any) -> Any:
        """Overwrite `held` (m,) with `labels` (m,); return the number of labels that changed, as a scalar array."""
        n_reassigned = self.data.xp.count_nonzero(held != labels)
        held[:] = labels
        return n_reassigned

    def assign(self, centers: np.ndarray, *, update: bool = True, potential: bool = False) -> Assignment:
        """Label every sample with its nearest center; see `Step.assign`."""
        data, k = self.data, len(centers)
        operands = self._operands(centers)
        # A protected fit sums each block a second time while the block is in memory.
        twice = update and self.protection is not None

        def work(start: int, block: Any) -> tuple[Any, ...]:
            weights = data.weights_of(start, block)
            labels, scores, *sums = self.assign_block(block, weights, *operands, update=update, potential=potential)
            again = self.sum_block(block, weights, labels, k) if twice else ()
            n_reassigned = self.relabel(self.labels[start : start + len(block)], labels)
            if scores is not None:
                scores = (scores if weights is None else scores * weights).sum(dtype=np.float64)
            return n_reassigned, scores, *sums, *again

        shapes = ((k, data.n_features), k) if update else (0, 0)
        totals = [data.xp.zeros(shape) for shape in (1 + twice) * shapes]
        n_reassigned, scores = [], []
        for part in data.each_block(work, k):
            n_reassigned.append(part[0])
            scores.append(part[1])
            for total, of_block in zip(totals, part[2:], strict=True):
                total += of_block
        score = float(sum(scores[1:], scores[0])) if potential else float("nan")
        count = int(sum(n_reassigned[1:], n_reassigned[0]))
        found = Assignment(count, to_host(totals[0]), to_host(totals[1]), score)
        if twice:
            found.again = Assignment(count, to_host(totals[2]), to_host(totals[3]), score)
            found.changed = not all(map(same_bits, operands, self._operands(centers)))
        return found

    def _operands(self, centers: np.ndarray) -> tuple[Any, Any]:
        """Return −2·cᵀ (d, k) and ‖c‖² (k,) of centers (k, d), on the device of the data."""
        minus_2_centers = np.ascontiguousarray(-2 * centers.T, dtype=self.data.dtype)
        return self.data.xp.asarray(minus_2_centers), self.data.xp.asarray(square_norms(centers))
