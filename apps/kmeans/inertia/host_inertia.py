"""Inertia of rows in host memory, with the bits of the kernels in inertia.cuh and sum_terms.cuh."""

import numpy as np

from tsapps.apps.kmeans.data.kernel_order import block_sum, sum_in_order, warp_sum
from tsapps.apps.kmeans.inertia.plan import ROWS_TOGETHER, THREADS, lanes_of_inertia

__all__ = ["partial_inertia", "sum_terms", "total_inertia"]

_WARP = 32
# Maximum number of elements of a row that a lane adds up before it converts the sum to float64 (kVector).
_MOST_ADDED = 4


def partial_inertia(
    rows: np.ndarray,
    centers: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray | None,
    *,
    chunk: int,
    itemsize: int,
) -> np.ndarray:
    """Compute Σ w·‖x − c‖² over each chunk of rows x, where c is the center of the row's label.

    Parameters
    ----------
    rows : numpy.ndarray of shape (n, d)
        Centered, in the working type; begins at the first row of a chunk.
    centers : numpy.ndarray of shape (k, d)
        In the working type.
    labels : numpy.ndarray of shape (n,), int32
    weights : numpy.ndarray of shape (n,), optional
        In the working type.
    chunk : int
        Number of rows per chunk, an `inertia_chunk`.
    itemsize : int
        Size of an element of X in bytes, as a kernel would read it. It determines the order of additions.

    Returns
    -------
    numpy.ndarray of shape (chunks,), float64
    """
    n, d = rows.shape
    vectors, log2 = lanes_of_inertia(d, itemsize, aligned=True)
    lanes, wide = 1 << log2, 16 // itemsize if vectors else 1
    added, groups, steps = min(_MOST_ADDED, wide), _WARP >> log2, -(-d // (wide * lanes))
    chunks, padded = -(-n // chunk), steps * wide * lanes
    # Rows and columns past the end add zeros.
    squares = np.zeros((chunks * chunk, padded), rows.dtype)
    with np.errstate(over="ignore"):
        np.subtract(rows, centers[labels], out=squares[:n, :d])
        squares *= squares
        by_lane = squares.reshape(-1, steps * lanes * (wide // added), added)
        of_row = by_lane[:, :, 0].copy()
        for i in range(1, added):
            of_row += by_lane[:, :, i]
        if weights is not None:
            of_row[:n] *= weights[:, np.newaxis]
        # (chunk, tile, row of a lane, group, step, lane, part of a vector)
        parts = of_row.reshape(chunks, -1, ROWS_TOGETHER, groups, steps, lanes, wide // added)
        if added == 1:  # elements of all rows are added up before the conversion
            parts = sum_in_order(parts, 2)[:, :, np.newaxis]
        # A lane adds up its parts in this order: tile, step, part, row.
        ordered = np.ascontiguousarray(parts.transpose(0, 1, 4, 6, 2, 3, 5), np.float64)
        of_steps = sum_in_order(ordered.reshape(chunks, -1, ordered.shape[3] * ordered.shape[4], _WARP), 2)
        return warp_sum(sum_in_order(of_steps, 1))


def total_inertia(sums: np.ndarray) -> float:
    """Return the sum of the results of `partial_inertia` for all chunks of X in order, (chunks,)."""
    by_thread = np.zeros(-(-len(sums) // THREADS) * THREADS)
    by_thread[: len(sums)] = sums
    with np.errstate(over="ignore"):
        of_warps = warp_sum(sum_in_order(by_thread.reshape(-1, THREADS), 0).reshape(-1, _WARP))
        return float(sum_in_order(of_warps, 0))


def sum_terms(sums: np.ndarray, units: np.ndarray, centers: np.ndarray) -> np.ndarray:
    """Compute the terms of `inertia_from_terms` from running cluster sums; arguments as for `launch.sum_terms`."""
    wide, values = centers.astype(np.float64), sums * units
    terms = np.empty((len(centers), 4))
    terms[:, 0] = values[:, -1]
    for i, products in enumerate((wide * values[:, :-1], wide * wide, abs(wide) * units[:-1]), start=1):
        terms[:, i] = block_sum(products)
    return terms
