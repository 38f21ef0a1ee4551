"""Sums of NumPy arrays in the order in which threads of a GPU add numbers, which gives the same bits."""

from typing import Any

import numpy as np

__all__ = ["block_sum", "running_sums", "sum_in_order", "warp_sum"]

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


def warp_sum(values: Any) -> Any:
    """Return the sums over the last axis, whose length is a power of two, in the order of `simt::warp_sum`.

    Halves are added element by element until one number is left, as NumPy and CuPy do alike.
    """
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


def running_sums(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return running sums over the last axis, whose length is a multiple of 32, in the order of a block of threads.

    Each warp computes its own by `simt::warp_running_sum`; the sums of the warps before it are then added.

    Returns
    -------
    up_to, before : numpy.ndarray
        The sums of all numbers up to each number, and before it.
    every : numpy.ndarray
        The sums of all numbers, without the last axis.
    """
    of_warp = np.array(values.reshape(*values.shape[:-1], -1, _WARP), np.float64)
    distance = 1
    while distance < _WARP:
        of_warp[..., distance:] += of_warp[..., :-distance].copy()
        distance *= 2
    ends = np.add.accumulate(of_warp[..., -1], axis=-1)
    base = np.zeros((*ends.shape, 1))
    base[..., 1:, 0] = ends[..., :-1]
    before = np.concatenate([base, base + of_warp[..., :-1]], axis=-1)
    return (base + of_warp).reshape(values.shape), before.reshape(values.shape), ends[..., -1]
