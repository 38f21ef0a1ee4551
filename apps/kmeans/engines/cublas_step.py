"""Lloyd steps by cuBLAS, as GPU libraries usually have it, in CuPy.

Scores by one cuBLAS product a block of rows, then arg-min, then the sums by label: for small k a second cuBLAS product,
with the one-hot label matrix, for large k a sort of the labels and a sum of each segment. X is read twice an iteration
and the block's scores are written and read. Our own kernels are measured against this step, and it serves every shape
that they do not.

No float is added atomically and every reduction has a fixed order: the same bits on every run.
"""

from pathlib import Path
from typing import Any

import numpy as np

from tsapps.apps.kmeans.data.device_data import DeviceData, row_groups
from tsapps.apps.kmeans.data.labels import launch_over_labels
from tsapps.apps.kmeans.data.load import pointer
from tsapps.apps.kmeans.engines.block_step import BlockStep
from tsapps.kernels.plan.mma import ELEMENT

__all__ = ["CublasStep"]

# With more clusters than this a product with the one-hot label matrix costs more than sorting the labels.
_ONE_HOT_CLUSTERS = 64
_SOURCE = Path(__file__).with_suffix(".cuh")
_THREADS = 256


def _one_hot_sums(xp: Any, one_hot: Any, block: Any) -> tuple[Any, Any]:
    """Return the sums (k, d) and weights (k,) of a block's rows, from their weighted one-hot labels (rows, k)."""
    return one_hot.T @ block, one_hot.T @ xp.ones(len(block), block.dtype)


class CublasStep(BlockStep):
    """A step over `DeviceData`."""

    data: DeviceData

    def reset(self) -> None:
        """Set every label to −1, which is all bits set: a third of the time that a kernel of CuPy's takes."""
        self.data.machine.fill(self.labels, 0xFF)

    def assign_block(
        self, block: Any, weights: Any | None, minus_2_centers: Any, norms: Any, *, update: bool, potential: bool
    ) -> tuple[Any, Any | None, Any, Any]:
        """Assign a block's rows; see `BlockStep.assign_block`."""
        block, dtype, xp = self._shifted(block), self.data.dtype, self.data.xp
        rows, k = len(block), len(norms)
        scores = block @ minus_2_centers
        labels = xp.empty(rows, np.int32)
        lowest = xp.empty(rows, dtype) if potential else None
        one_hot = update and k <= _ONE_HOT_CLUSTERS
        lanes, grid = row_groups(rows, k)
        arguments = (scores, norms, pointer(weights), np.int64(rows), np.int32(k), lanes, np.bool_(one_hot))
        self._kernel("nearest")(grid, (_THREADS,), (*arguments, labels, pointer(lowest)))
        if not update:
            return labels, lowest, 0, 0
        sums = _one_hot_sums(self.data.xp, scores, block) if one_hot else self._segment_sums(block, weights, labels, k)
        return labels, lowest, *sums

    def sum_block(self, block: Any, weights: Any | None, labels: Any, k: int) -> tuple[Any, Any]:
        """Return the sums and weights of a block's rows by label; see `BlockStep.sum_block`."""
        block, xp = self._shifted(block), self.data.xp
        if k > _ONE_HOT_CLUSTERS:
            return self._segment_sums(block, weights, labels, k)
        one_hot = (labels[:, np.newaxis] == xp.arange(k, dtype=np.int32)).astype(self.data.dtype)
        if weights is not None:
            one_hot *= weights[:, np.newaxis]
        return _one_hot_sums(xp, one_hot, block)

    def relabel(self, held: Any, labels: Any) -> Any:
        """Give samples new labels, and return how many differ; see `BlockStep.relabel`."""
        changed = self.data.xp.zeros((), np.uint64)
        launch_over_labels(self.data.machine, "change_labels", labels, held, changed)
        return changed

    def _shifted(self, block: Any) -> Any:
        """Subtract from a block what kernels would subtract on read."""
        return block - self.data.shift if self.data.on_read and bool(self.data.shift.any()) else block

    def _segment_sums(self, block: Any, weights: Any | None, labels: Any, k: int) -> tuple[Any, Any]:
        d, xp = self.data.n_features, self.data.xp
        order = xp.argsort(labels)
        starts = xp.searchsorted(labels[order], xp.arange(k + 1, dtype=np.int32))
        sums, totals = xp.empty((k, d)), xp.empty(k)
        arguments = (block, pointer(weights), order, starts, np.int32(d), sums, totals)
        self._kernel("segment_sums")((k, d // 32 + 1), (32, 8), arguments)
        return sums, totals

    def _kernel(self, name: str) -> Any:
        """Return a kernel of cublas_step.cuh, by its name."""
        full = f"{name}<{ELEMENT[self.data.dtype.name]}>"
        (kernel,) = self.data.machine.kernels(_SOURCE, full)
        return kernel
