"""Sums of NumPy arrays in the order in which threads of a GPU add numbers, which gives the same bits."""

import numpy as np

__all__ = ["block_sum", "sum_in_order", "warp_sum"]

_WARP = 32
#: Number of threads per block of kernels with a block per center (kCenterThreads).
_CENTER_THREADS = 256


def sum_in_order(values: np.ndarray, axis: int) -> np.ndarray:
    """Return the sums over an axis, added one after the other: NumPy adds a contiguous axis in pairs."""
    values = np.ascontiguousarray(values)
    if values[(slice(None),) * axis + (0,)].size > 1 and values.shape[-1] > 1 and axis != values.ndim - 1:
        found: np.ndarray = np.add.reduce(values, axis=axis)
        return found
    return np.add.accumulate(values, axis=axis).take(-1, axis=axis)


def warp_sum(values: np.ndarray) -> np.ndarray:
    """Return the sums over the last axis, of 32 numbers, in the order of `simt::warp_sum`."""
    while values.shape[-1] > 1:
        half = values.shape[-1] // 2
        values = values[..., :half] + values[..., half:]
    return values[..., 0]


def block_sum(values: np.ndarray) -> np.ndarray:
    """Return the sums over the last axis, of any length, in the order of a block that calls `over_block`.

    Each of 256 threads adds every 256th number; see kernels/device/block_reduce.cuh.
    """
    *shape, count = values.shape
    padded = np.zeros((*shape, -(-max(count, 1) // _CENTER_THREADS) * _CENTER_THREADS))
    padded[..., :count] = values
    of_threads = sum_in_order(padded.reshape(*shape, -1, _CENTER_THREADS), len(shape))
    of_warps = warp_sum(of_threads.reshape(*shape, -1, _WARP))
    return sum_in_order(of_warps, len(shape))
