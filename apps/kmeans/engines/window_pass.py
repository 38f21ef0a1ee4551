"""A pass of a Lloyd step over X, of which the GPU holds one window of rows at a time.

    for each window     rows of X (copied by the link, or streamed) and their labels  →  memory of the window
                        half-precision copy → assign → rescore → sums of reassigned rows
                        labels  →  labels of all rows

The kernels are those of X on the GPU, on a window; cluster sums are integers and labels are certified row by row. So
the result has the same bits. Windows are so large that launches take a small part of the time.

If the half-precision copy of X fits the GPU, only the first iteration is such a pass. It also makes the copy, which
later iterations read.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from tsapps.apps.kmeans.data.device_data import DeviceData
from tsapps.apps.kmeans.engines.device_step import DeviceStep

__all__ = ["WindowPass", "window_rows"]

# Size in bytes of a window of X; number of rows of which a window has a multiple, the tiles of all kernels.
_WINDOW_BYTES, _TILE = 128 << 20, 64


def window_rows(n: int, d: int, itemsize: int) -> int:
    """Return the number of rows of a window of X, (n, d), whose elements have `itemsize` bytes as kernels read them."""
    return min(n, max(1, _WINDOW_BYTES // (d * itemsize * _TILE)) * _TILE)


class WindowPass:
    """Launches of one Lloyd step for the rows of one window after another.

    Parameters
    ----------
    data : DeviceData
        X, centered.
    new_step : callable
        Takes the `DeviceData` of a window, and returns a Lloyd step on it without bounds.

    Attributes
    ----------
    step : DeviceStep
        The step on the window. Its buffers have the centers, and the running sums of all rows.
    """

    def __init__(self, data: DeviceData, new_step: Callable[[DeviceData], DeviceStep]) -> None:
        self._data = data
        self._rows = window_rows(*data.source.shape, data.dtype_as_read.itemsize)
        self._window = data.window(self._rows)
        self.step = new_step(self._window)

    def first_iteration(self, of: DeviceStep, centers: np.ndarray) -> None:
        """Label all rows for a step on all rows, whose labels are all −1, and make the half-precision copy of X.

        `centers` (k, d) are those of the iteration. The step's sums and number of reassigned rows are set.
        """
        self.step.reset()
        self.step.begin(centers)
        self.launch(of.labels, copies=True)
        self._data.machine.copy(of.buffers.own, self.step.buffers.own)

    def launch(self, labels: Any, *, copies: bool = False) -> None:
        """Label all rows by the centers of `DeviceStep.begin`; add to the running sums and number of reassigned rows.

        Parameters
        ----------
        labels : array of shape (n,), int32
            The labels of all rows, which are changed.
        copies : bool
            Whether to make the half-precision copy of X, too.
        """
        step, copy = self.step, self._data.machine.copy
        for start, block in self._data.windows(self._rows):
            first = self._load(start, block)
            own = labels[first : first + self._rows]
            copy(step.labels, own)
            self._window.copy_half(self._window.rows_on_gpu)
            self._data.machine.fill(step.buffers.counts, 0)
            step.launch_rows(0)
            copy(own, step.labels)
            if copies:
                self._data.copy_half(block, start)

    def _load(self, start: int, block: Any) -> int:
        """Copy rows of X from `start` on, and their weights, to the window; return the index of its first row.

        A last block with fewer rows follows rows of the block before it. These have their new labels already, so they
        are not reassigned.
        """
        to, count = self._window.rows_on_gpu, len(block)
        kept = self._rows - count
        if kept:
            to[:kept] = to[count:].copy()
        self._data.machine.copy(to[kept:], block)
        weights, first = self._data.sample_weight, start - kept
        if weights is not None:
            self._data.machine.copy(self._window.sample_weight, weights[first : first + self._rows])
        return first
