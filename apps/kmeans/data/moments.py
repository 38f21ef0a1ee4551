"""Launches of the kernels of passes.cuh that compute the moments of the columns of X."""

from typing import Any

import numpy as np

from tsapps.apps.kmeans.data.load import is_vectorizable, pass_kernel, types_of
from tsapps.apps.kmeans.data.plan import moment_threads, vector_of
from tsapps.kernels.arrays import to_host
from tsapps.kernels.plan.mma import ELEMENT
from tsapps.kernels.runtime.machine import Machine

__all__ = ["partial_moments", "rounded_moments", "total_moments"]

# Thread-block shape of fold_moments (columns, rows).
_FOLDED = 8, 128


def partial_moments(machine: Machine, block: Any, origin: Any, chunk: int, parts: Any) -> None:
    """Compute the moments of each chunk of a block of rows x: Σ(x − origin), Σ(x − origin)² and max ``|x − origin|``.

    Parameters
    ----------
    machine : Machine
    block : array of shape (rows, d)
        Begins at the first row of a chunk.
    origin : array of shape (d,)
        In the working type.
    chunk : int
        Number of rows per chunk, a `moment_chunk`; the last chunk of X may have fewer.
    parts : array of shape (3, chunks, d), float64
        Where to write the moments: for example those of the block's chunks in an array of all. Each ``parts[i]`` is
        row-major.
    """
    rows, d = block.shape
    vector, (width, threads) = vector_of(block.itemsize), moment_threads(d, origin.dtype.itemsize)
    vectors = is_vectorizable(block, vector)
    columns = -(-d // (width * (vector if vectors else 1)))
    kernel = pass_kernel(machine, f"column_moments<{types_of(block, origin.dtype)}, {str(vectors).lower()}>")
    sizes = np.int64(rows), np.int32(d), np.int32(chunk)
    kernel((columns, -(-rows // chunk)), (width, threads), (block, origin, *sizes, *parts))


def total_moments(machine: Machine, parts: Any) -> Any:
    """Return the moments of X, shape (3, d), from those of all chunks, an array of shape (3, chunks, d)."""
    _, chunks, d = parts.shape
    totals = machine.xp.empty((3, d))
    kernel = pass_kernel(machine, "fold_moments")
    kernel((-(-d // _FOLDED[0]), 3), _FOLDED, (parts, np.int32(chunks), np.int32(d), totals))
    return totals


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
