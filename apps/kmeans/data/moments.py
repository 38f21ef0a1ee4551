"""Launches of the kernels of passes.cuh that compute the moments of the columns of X."""

from typing import Any

import numpy as np

from tsapps.apps.kmeans.data.load import is_vectorizable, pass_kernel, types_of
from tsapps.apps.kmeans.data.plan import PASS_THREADS, vector_of
from tsapps.kernels.arrays import to_host
from tsapps.kernels.plan.mma import ELEMENT
from tsapps.kernels.runtime.machine import Machine

__all__ = ["add_moments", "rounded_moments"]

# column_moments: approximate number of thread blocks, and minimum number of rows per thread. Thread-block shape of
# fold_moments (columns, rows).
_BLOCKS, _ROWS, _FOLDED = 4096, 16, (32, 32)


def add_moments(machine: Machine, block: Any, origin: Any, totals: Any) -> None:
    """Add Σ(x − origin) and Σ(x − origin)² over the rows of a block to `totals[0]` and `totals[1]`.

    Parameters
    ----------
    machine : Machine
    block : array of shape (rows, d)
    origin : array of shape (d,)
        In the working type.
    totals : array of shape (3, d), float64
        `totals[2]` becomes the maximum of its old value and of ``|x − origin|``.
    """
    rows, d = block.shape
    wide = vector_of(block.itemsize)
    vectors = is_vectorizable(block, wide)
    wide = wide if vectors else 1
    width = min(32, 1 << (-(-d // wide) - 1).bit_length())
    columns, threads = -(-d // (width * wide)), PASS_THREADS // width
    # There are many thread blocks, so that a partial last wave costs little, unless their threads would have too little
    # work. The number of blocks determines the rounding of the sums, so it must not depend on the GPU.
    slices = min(max(1, _BLOCKS // columns), -(-rows // (_ROWS * threads)))
    parts, sizes = machine.xp.empty((3, slices, d)), (np.int64(rows), np.int32(d))
    add_up = pass_kernel(machine, f"column_moments<{types_of(block, origin.dtype)}, {str(vectors).lower()}>")
    add_up((columns, slices), (width, threads), (block, origin, *sizes, *parts))
    fold = pass_kernel(machine, "fold_moments")
    fold((-(-d // _FOLDED[0]), 3), _FOLDED, (parts, np.int32(slices), np.int32(d), totals))


def rounded_moments(machine: Machine, X: Any) -> tuple[np.ndarray, float]:
    """Return the mean of X, (d,), and the mean variance of its features, d > 1, with NumPy's rounding.

    NumPy sums several columns row by row, as the kernel add_in_order does. (It sums a single column pairwise.)
    """
    n, d = X.shape

    def means(about: np.ndarray, *, squares: bool) -> np.ndarray:
        kernel = pass_kernel(machine, f"add_in_order<{ELEMENT[X.dtype.name]}, {str(squares).lower()}>")
        sums = machine.xp.empty(d, X.dtype)
        kernel((-(-d // 32),), (32,), (X, machine.on_gpu(about), np.int64(n), np.int32(d), sums))
        return (to_host(sums) / np.intp(n)).astype(X.dtype)

    mean = means(np.zeros(d, X.dtype), squares=False)
    return mean, float(np.mean(means(mean, squares=True)))
