"""Lloyd steps over blocks of rows, written once for every array library.

Distances are ranked by the score

    score(x, c) = ‖c‖² − 2·x·c  =  ‖x − c‖² − ‖x‖²

one matrix product a block, so that at most a block's scores exist at any time and never an n×k matrix.
`host_step.py` and `cublas_step.py` say how a block is assigned, and how its rows are summed by label.
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
    """A step for any number of clusters, block by block."""

    @cached_property
    def labels(self) -> Any:
        """The label of every sample, (n,), int32."""
        return self.data.xp.empty(self.data.n_samples, np.int32)

    def reset(self) -> None:
        """Set every label to −1; see `Step.reset`."""
        self.labels.fill(-1)

    @abstractmethod
    def assign_block(
        self, block: Any, weights: Any | None, minus_2_centers: Any, norms: Any, *, update: bool, potential: bool
    ) -> tuple[Any, Any | None, Any, Any]:
        """Assign a block's rows; see `assign`.

        Returns
        -------
        labels : array of shape (rows,), int32
            The arg-min of the score, the lowest index on a tie.
        scores : array of shape (rows,) or None
            The lowest score of each row, where `potential` asks for it.
        sums, totals : arrays of shape (k, d) and (k,)
            The weighted sum of the rows with each label, and their weight; 0 and 0 without `update`.
        """

    def nearest(self, block: Any, minus_2_points: Any, norms: Any) -> Any:
        """Return the label of the point nearest to each row of a block; see `plusplus.Nearest`."""
        return self.assign_block(block, None, minus_2_points, norms, update=False, potential=False)[0]

    @abstractmethod
    def sum_block(self, block: Any, weights: Any | None, labels: Any, k: int) -> tuple[Any, Any]:
        """Return the weighted sum of a block's rows with each label, and their weight: the bits of `assign_block`."""

    def relabel(self, held: Any, labels: Any) -> Any:
        """Give samples that have labels `held` (m,) others; return the number that differ, of the array library."""
        n_reassigned = self.data.xp.count_nonzero(held != labels)
        held[:] = labels
        return n_reassigned

    def assign(self, centers: np.ndarray, *, update: bool = True, potential: bool = False) -> Assignment:
        """Give every sample the label of its nearest center; see `Step.assign`."""
        data, k = self.data, len(centers)
        operands = self._operands(centers)
        # Protected, rows are added up a second time while they are at hand, apart from the first.
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
        """Return −2·cᵀ (d, k) and ‖c‖² (k,) of centers, on the device of the data, for `assign_block`."""
        minus_2_centers = np.ascontiguousarray(-2 * centers.T, dtype=self.data.dtype)
        return self.data.xp.asarray(minus_2_centers), self.data.xp.asarray(square_norms(centers))
