"""Lloyd step by cuBLAS: a GEMM for the scores of each block of rows, arg-min, and cluster sums.

For small k, a second GEMM with the one-hot label matrix computes the cluster sums. For large k, row indices are sorted
by label, and a kernel adds up the rows of each label. An iteration reads X twice, and writes and reads the scores of
each block. This step runs for data that the other kernels of this package do not support, and as the baseline of their
benchmarks.

No kernel adds floats atomically, and every reduction has a fixed order. So all runs give the same bits.
"""

from pathlib import Path
from typing import Any

import numpy as np

from tsapps.apps.kmeans.data.device_data import DeviceData
from tsapps.apps.kmeans.data.labels import launch_over_labels
from tsapps.apps.kmeans.data.load import pointer
from tsapps.apps.kmeans.data.plan import row_groups
from tsapps.apps.kmeans.engines.block_step import BlockStep
from tsapps.kernels.plan.mma import ELEMENT

__all__ = ["CublasStep"]

# Largest k for which a GEMM with the one-hot label matrix computes the cluster sums. For larger k, sorting is faster.
_ONE_HOT_CLUSTERS = 64
_SOURCE = Path(__file__).with_suffix(".cuh")
_THREADS = 256


def _one_hot_sums(xp: Any, one_hot: Any, block: Any) -> tuple[Any, Any]:
    """Return the sum (k, d) and weight (k,) of each cluster in a block, from its weighted one-hot labels (m, k)."""
    return one_hot.T @ block, one_hot.T @ xp.ones(len(block), block.dtype)


class CublasStep(BlockStep):
    """Lloyd step by cuBLAS, over `DeviceData`."""

    data: DeviceData

    def reset(self) -> None:
        """Set every label to −1, whose bits are all 1: a memset takes a third of the time of a CuPy kernel."""
        self.data.machine.fill(self.labels, 0xFF)

    def assign_block(
        self, block: Any, weights: Any | None, minus_2_centers: Any, norms: Any, *, update: bool, potential: bool
    ) -> tuple[Any, Any | None, Any, Any]:
        """Label the rows of a block, and sum the rows of each label; see `BlockStep.assign_block`."""
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
        """Return the sum and weight of the rows of each label in a block; see `BlockStep.sum_block`."""
        block, xp = self._shifted(block), self.data.xp
        if k > _ONE_HOT_CLUSTERS:
            return self._segment_sums(block, weights, labels, k)
        one_hot = (labels[:, np.newaxis] == xp.arange(k, dtype=np.int32)).astype(self.data.dtype)
        if weights is not None:
            one_hot *= weights[:, np.newaxis]
        return _one_hot_sums(xp, one_hot, block)

    def relabel(self, held: Any, labels: Any) -> Any:
        """Overwrite labels, and return the number of labels that changed; see `BlockStep.relabel`."""
        changed = self.data.xp.zeros((), np.uint64)
        launch_over_labels(self.data.machine, "change_labels", labels, held, changed)
        return changed

    def _shifted(self, block: Any) -> Any:
        """Return the block minus `data.shift`, which cuBLAS, unlike the other kernels, cannot subtract on read."""
        return block - self.data.shift if self.data.on_read and bool(self.data.shift.any()) else block

    def _segment_sums(self, block: Any, weights: Any | None, labels: Any, k: int) -> tuple[Any, Any]:
        """Return the sum (k, d) and weight (k,) of the rows of each label in a block: sorts row indices by label."""
        d, xp = self.data.n_features, self.data.xp
        order = xp.argsort(labels)
        starts = xp.searchsorted(labels[order], xp.arange(k + 1, dtype=np.int32))
        sums, totals = xp.empty((k, d)), xp.empty(k)
        arguments = (block, pointer(weights), order, starts, np.int32(d), sums, totals)
        self._kernel("segment_sums")((k, d // 32 + 1), (32, 8), arguments)
        return sums, totals

    def _kernel(self, name: str) -> Any:
        """Return the kernel `name` of cublas_step.cuh, compiled for the working dtype."""
        full = f"{name}<{ELEMENT[self.data.dtype.name]}>"
        (kernel,) = self.data.machine.kernels(_SOURCE, full)
        return kernel
