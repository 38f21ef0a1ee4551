"""Moments of the columns of rows in host memory, with the bits of the kernels in passes.cuh."""

import numpy as np

from tsapps.apps.kmeans.data.kernel_order import sum_in_order
from tsapps.apps.kmeans.data.plan import moment_threads

__all__ = ["partial_moments", "total_moments"]

# Number of threads among which `fold_moments` splits the chunks (FOLD_ROWS in passes.cuh).
_FOLD_ROWS = 128


def partial_moments(block: np.ndarray, origin: np.ndarray, chunk: int) -> np.ndarray:
    """Compute the moments of each chunk of a block of rows x: Σ(x − origin), Σ(x − origin)² and max ``|x − origin|``.

    Parameters
    ----------
    block : numpy.ndarray of shape (rows, d)
        In the working type; begins at the first row of a chunk.
    origin : numpy.ndarray of shape (d,)
        In the working type.
    chunk : int
        Number of rows per chunk, a `moment_chunk`.

    Returns
    -------
    numpy.ndarray of shape (3, chunks, d), float64
        The sums are added in the order of the threads of column_moments: each adds every `together`-th row of the
        chunk, and the results of the threads are added one after the other.
    """
    rows, d = block.shape
    together = moment_threads(d, origin.dtype.itemsize)[1]
    of_last = rows % chunk  # rows of the last chunk, if it is not whole
    parts = [_moments(block[: rows - of_last], origin, chunk, together)] if rows > of_last else []
    if of_last:
        last = np.empty((-(-of_last // together) * together, d), block.dtype)
        last[:of_last] = block[rows - of_last :]
        last[of_last:] = origin  # adds zero
        parts.append(_moments(last, origin, len(last), together))
    return np.concatenate(parts, axis=1)


def _moments(block: np.ndarray, origin: np.ndarray, chunk: int, together: int) -> np.ndarray:
    """Return the `partial_moments` of a block of whole chunks; `chunk` is a multiple of `together`."""
    with np.errstate(over="ignore", invalid="ignore"):  # `Data.moments` handles overflow
        delta = (block - origin).reshape(-1, chunk, block.shape[1])
        most = np.maximum(delta.max(axis=1), -delta.min(axis=1))
        wide = delta.astype(np.float64).reshape(len(delta), -1, together, block.shape[1])
        sums = sum_in_order(sum_in_order(wide, 1), 1)
        wide *= wide
        return np.stack([sums, sum_in_order(sum_in_order(wide, 1), 1), most])


def total_moments(parts: np.ndarray) -> np.ndarray:
    """Return the moments of X, shape (3, d), from those of all chunks (3, chunks, d), in the order of fold_moments."""
    _, chunks, d = parts.shape
    padded = np.zeros((3, -(-chunks // _FOLD_ROWS) * _FOLD_ROWS, d))
    padded[:, :chunks] = parts
    by_thread = padded.reshape(3, -1, _FOLD_ROWS, d)
    with np.errstate(over="ignore", invalid="ignore"):
        totals = sum_in_order(sum_in_order(by_thread, 1), 1)
    totals[2] = padded[2].max(axis=0)
    return totals
