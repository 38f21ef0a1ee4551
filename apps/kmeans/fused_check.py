"""The checks of a protected fit on iterations of the fused engine, without the host: see protect.cuh."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cupy
import numpy as np
from cupyx import empty_pinned

from tsapps.apps.kmeans.protection import stride_of
from tsapps.apps.kmeans.shadow import load_kernels, types_of

if TYPE_CHECKING:
    from tsapps.apps.kmeans.fused_step import Step

__all__ = ["FAULTS", "StepCheck"]

_THREADS = 256
# Blocks a multiprocessor, as many as are resident.
_BLOCKS = 3
# Elements of centres that a warp compares a row with, about.
_ELEMENTS = 8192
#: What the bits say that a check leaves with the host.
FAULTS = {
    1: "the clusters' sums did not add up to what they did before, or their weights to that of all samples",
    2: "the next centres were not the means of the sums",
    4: "samples had labels of centres that are not their nearest",
}
_LABELS = {"int8": "signed char", "int32": "int"}


class StepCheck:
    """Checks a step's iterations, some ahead of those whose outcome is known.

    Parameters
    ----------
    step : Step
    ahead : int
        Iterations that are launched before the outcome of the first of them is asked for.
    """

    def __init__(self, step: Step, ahead: int) -> None:
        engine = step.engine
        n = engine.n_samples
        self._step = step
        self._stride, self._turn = stride_of(n), 0
        # Sums over the clusters, which are zero between two checks, and what they are to be.
        self._columns = cupy.zeros((2, engine.n_features + 1), np.uint64)
        # `Checks`
        self._state = cupy.zeros(4, np.uint32)
        self._seen = empty_pinned(ahead, np.uint32)
        weight = n  # each is the integer 1
        if engine.sample_weight is not None:
            scaled = engine.sample_weight.astype(np.float64) * step.integers.scales[-1]
            weight = int(cupy.rint(scaled).astype(np.int64).sum())
        self._weight = np.uint64(weight % 2**64)
        checked, blocks, warps = -(-n // self._stride), engine.gpu.multiprocessors * _BLOCKS, _THREADS // 32
        # So many warps share a row, each with two centres at least: as long as there are warps with nothing to do, too.
        parts = max(step.k * engine.n_features // _ELEMENTS, blocks * warps // checked)
        self._parts = max(1, min(parts, step.k // 2))
        self._grid = (min(blocks, max(step.k, -(-checked * self._parts // warps))),)
        kernel = f"check<{types_of(engine)}, {_LABELS[step.own_labels.dtype.name]}>"
        (self._check,) = load_kernels(engine, "protect.cuh", kernel)

    def forget(self) -> None:
        """Forget what sums add up to: the next iteration begins with no sample in any cluster."""
        self._state[3:].data.memset_async(0, 4)

    def begin(self) -> None:
        """Begin to iterate: none has ended."""
        self._state[2:3].data.memset_async(0, 4)

    def launch(self, now: Any, following: Any, place: int) -> None:
        """Launch the check of the iteration that was launched last.

        Parameters
        ----------
        now, following : cupy.ndarray of shape (k, d)
            The centres that it was of, and those that it made.
        place : int
            Where it leaves what it finds for the host, below `ahead`.
        """
        step, engine = self._step, self._step.engine
        first, self._turn = self._turn % self._stride, self._turn + 1
        some = np.int64(first), np.int64(self._stride), np.int32(self._parts)
        sums = step.device_sums, step.units, self._weight, self._columns
        results = self._state, step.stopped, np.uint64(self._seen[place:].ctypes.data)
        arguments = (step.rows(), now, following, np.int32(step.k), step.own_labels, np.int64(engine.n_samples))
        self._check(self._grid, (_THREADS,), (*arguments, *some, *sums, *results))

    def fault(self, place: int) -> str | None:
        """Return what a check found wrong that has ended, or None."""
        found = int(self._seen[place])
        return "; ".join(what for bit, what in FAULTS.items() if found & bit) or None
