"""The quantized copy of X, which pruned steps of k-means++ read instead of X; kernels of quantized_copy.cuh make it."""

from typing import Any

import numpy as np

from tsapps.apps.kmeans.data.load import is_aligned, load_kernels
from tsapps.apps.kmeans.data.plan import half_copy_scale
from tsapps.apps.kmeans.init.plan import COPY, copy_errors, quantized_groups, quantized_lanes
from tsapps.kernels.plan.mma import ELEMENT
from tsapps.kernels.runtime.launch import structure
from tsapps.kernels.runtime.machine import Machine

__all__ = ["QuantizedCopy"]

# Number of threads per block of both kernels; number of blocks of quantize_rows per multiprocessor.
_SCALE_THREADS, _THREADS, _BLOCKS = 512, 256, 16


class QuantizedCopy:
    """Eight bits per element of X − mean, in two planes of four bits, and bounds of each row's error.

    Its argument is the C++ class of init/quantized_copy.cuh.

    Parameters
    ----------
    X : array of shape (n, d)
        Row-major, on the GPU, in the working type.
    mean : array of shape (d,)
        The point that is subtracted from each row.
    rms : float
        The root mean square of the elements of X − mean.
    machine : Machine
    sampled : array of shape (rows, d), optional
        The rows that decide the scales of columns: the rows `plan.scale_samples` of a matrix of which X is a shard. By
        default, they are those of X.

    Attributes
    ----------
    upper, lower : arrays of shape (n, 4 · groups), uint32
        The planes.
    rows : array of shape (n, 2), uint32
    errors : array of shape (n,), float32
    scales : array of shape (2, d), float32
    largest : array of shape (1,), int32
        If X is a shard, the caller has to put the largest of all shards here.
    """

    def __init__(self, X: Any, mean: Any, rms: float, machine: Machine, sampled: Any | None = None) -> None:
        (n, d), xp = X.shape, machine.xp
        self.mean, self.groups, self.unit = mean, quantized_groups(d), np.float32(half_copy_scale(rms))
        self.upper, self.lower = (xp.empty((n, 4 * self.groups), np.uint32) for _ in range(2))
        self.rows, self.errors = xp.empty((n, 2), np.uint32), xp.empty(n, np.float32)
        self.scales, self.largest = xp.empty((2, d), np.float32), xp.zeros(1, np.int32)
        scalar, samples = ELEMENT[X.dtype.name], (X, np.int64(n), np.int32(d), mean, self.unit)
        sampled = X if sampled is None else sampled
        names = f"column_scales<{scalar}>", f"quantize_rows<{scalar}, {is_aligned(X)}>"
        scale, quantize = load_kernels(machine, "init/quantized_copy.cuh", *names)
        scale((-(-d // 32),), (_SCALE_THREADS,), (sampled, np.int64(len(sampled)), *samples[2:], self.scales))
        sizes = np.int32(self.groups), np.int32(quantized_lanes(self.groups))
        written = self.upper, self.lower, self.rows, self.errors, self.largest
        blocks = machine.gpu.multiprocessors * _BLOCKS
        quantize((blocks,), (_THREADS,), (*samples, self.scales, *sizes, *written))

    @property
    def argument(self) -> Any:
        """The copy as a kernel argument, a `COPY` structure."""
        roundings, of_distance = copy_errors(len(self.mean))
        arrays = {
            name: getattr(self, name) for name in ("upper", "lower", "rows", "errors", "scales", "largest", "mean")
        }
        numbers = {"groups": self.groups, "unit": self.unit, "roundings": roundings, "of_distance": of_distance}
        return structure(COPY, **arrays, **numbers)
