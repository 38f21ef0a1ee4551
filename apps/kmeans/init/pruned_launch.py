"""Pruned steps of greedy k-means++ on a GPU: quantized copy and launches (plusplus_pruned.cuh)."""

from typing import Any

import numpy as np

from tsapps.apps.kmeans.data.device_data import DeviceData
from tsapps.apps.kmeans.data.load import load_kernels, pointer
from tsapps.apps.kmeans.data.plan import CENTER_THREADS
from tsapps.apps.kmeans.init.plan import (
    TRY_THREADS,
    PlusPlusPlan,
    PrunedPlan,
    pruned_plan,
    prunes,
    quantized_bytes,
    quantized_groups,
)
from tsapps.apps.kmeans.init.quantized_copy import QuantizedCopy
from tsapps.kernels.plan.mma import ELEMENT

__all__ = ["PrunedSteps", "plan_pruning"]

# Size in bytes of a PointTest.
_TEST_BYTES = 24
# Minimum size of X in the working dtype, in bytes, and of a row. Smaller rows are read as fast as their codes.
_LEAST_BYTES, _LEAST_ROW_BYTES = 32 << 20, 128


class PrunedSteps:
    """The quantized copy of X, and the launches of a pruned step.

    Parameters
    ----------
    data : DeviceData
    X : array of shape (n, d)
        The samples in the dtype of `data`, row-major.
    plan : PlusPlusPlan
        The plan of the steps that are not pruned.
    pruned : PrunedPlan
    closest : array of shape (n,)
        See `GreedyDraw`.
    sums : array of shape (trials, chunks of X)
        A view of `GreedyDraw.sums` that begins with the first chunk of `data`.
    sampled : array, optional
        See `QuantizedCopy`.

    Attributes
    ----------
    copy : QuantizedCopy
    """

    def __init__(
        self,
        data: DeviceData,
        X: Any,
        plan: PlusPlusPlan,
        pruned: PrunedPlan,
        closest: Any,
        sums: Any,
        sampled: Any | None = None,
    ) -> None:
        machine, (n, d), scalar, weights = data.machine, X.shape, ELEMENT[data.dtype.name], data.sample_weight
        points = plan.trials + 1
        name = plan.kernel("evaluate_candidates_pruned", scalar, weighted=weights is not None)
        names = f"quantize_points<{scalar}, {points}>", f"{name[:-1]}, {pruned.stages}>"
        # These compile while the copy is made.
        quantize, evaluate = load_kernels(machine, "init/plusplus_pruned.cuh", *names)
        self.copy = QuantizedCopy(X, data.shift, data.spread()[1], machine, sampled)
        copy = self.copy.argument
        eights = -(-points // 8)  # The table and the tests are for whole blocks of eight points.
        table = machine.xp.zeros((2, quantized_groups(d), 64 * eights), np.uint32)
        tests = machine.xp.zeros((8 * eights, _TEST_BYTES), np.uint8)
        evaluate.max_dynamic_shared_size_bytes = pruned.shared_bytes
        points_of_step = pointer(None)  # changed at each step
        samples, own_chunks = (X, np.int64(n), np.int32(d), pointer(weights)), -(-n // plan.chunk)
        chunks = np.int32(plan.chunk), np.int32(own_chunks), np.int32(plan.chunks)
        quantized = points_of_step, np.int32(d), copy, table, tests
        evaluated = *samples, points_of_step, *chunks, closest, sums, copy, table, tests
        blocks = min(data.gpu.multiprocessors * pruned.blocks, own_chunks)
        # The launches, and the position of the argument that changes.
        self._launches = (
            (machine.bind(quantize, (points,), (CENTER_THREADS,), quantized), 0),
            (machine.bind(evaluate, (blocks,), (TRY_THREADS,), evaluated, pruned.shared_bytes), len(samples)),
        )

    def evaluate(self, points: int) -> None:
        """Compute the sums of a step's candidates, and update `closest` by the center of the previous step.

        `points` is the address of the points of the step; see `GreedyDraw`.
        """
        for launch, place in self._launches:
            launch.change(place, points)
            launch()


def plan_pruning(data: DeviceData, plan: PlusPlusPlan, steps: int) -> PrunedPlan | None:
    """Return the plan of the pruned steps, or None if no step is to be pruned.

    Steps are pruned if X and its rows are large, there are enough of the `steps`, and the copy leaves enough memory
    free. If X is distributed, its size is that of the whole.
    """
    d, size = data.n_features, data.dtype.itemsize
    if not prunes(steps, plan.trials) or not data.fits(quantized_bytes(data.n_samples, d)):
        return None
    if data.n_total * d * size < _LEAST_BYTES or d * size < _LEAST_ROW_BYTES:
        return None
    return pruned_plan(plan, d, size, weighted=data.sample_weight is not None, device=data.gpu)
