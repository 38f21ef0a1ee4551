"""Rows of X that is distributed over several GPUs: which rows a GPU holds, and what it must know of all rows."""

from dataclasses import dataclass

import numpy as np

__all__ = ["Shard", "Statistics", "cut"]


@dataclass(frozen=True)
class Shard:
    """Consecutive rows of X: those from `first` on, of `n_total` rows in all.

    Sums over rows are computed by chunks, whose rows are a function of `n_total`. Shards consist of whole chunks, so
    that results have the same bits however X is distributed.

    Attributes
    ----------
    first : int
        Index of the first row of the shard in X; a multiple of the rows of a chunk.
    n_total : int
        Number of rows of X.
    """

    first: int
    n_total: int


@dataclass(frozen=True)
class Statistics:
    """What kernels for any rows of X must know of all rows of X.

    Attributes
    ----------
    origin : numpy.ndarray of shape (d,)
        The point about which `largest` was computed.
    moments : tuple
        See `DeviceData.cached_moments`.
    typical_rows : tuple or None
        The result of `outliers.typical_rows`.
    most_weight : float or None
        The largest weight; None if all weights are 1.
    weights_alike : bool
        See `DeviceData.weights_alike`.
    """

    origin: np.ndarray
    moments: tuple[np.ndarray, float, np.ndarray]
    typical_rows: tuple[np.ndarray, float] | None
    most_weight: float | None
    weights_alike: bool


def cut(n: int, chunk: int, shares: list[float]) -> list[range]:
    """Cut n rows into ranges of whole chunks, one for each share; the last chunk may have fewer rows.

    Parameters
    ----------
    n : int
    chunk : int
        Number of rows of a chunk.
    shares : list of float
        Positive numbers. A range has about its share of the sum of all shares, but at least one chunk.

    Returns
    -------
    list of range
        One range for each share, or fewer if there are fewer chunks: then the last shares get no rows.
    """
    chunks = -(-n // chunk)
    shares = shares[:chunks]
    ends = np.rint(np.cumsum(shares) / sum(shares) * chunks).astype(int)
    # At least one chunk for each: a lower limit from the front, and an upper limit from the end.
    numbers = np.arange(1, len(shares) + 1)
    ends = np.minimum(np.maximum.accumulate(np.maximum(ends - numbers, 0)) + numbers, chunks - numbers[::-1] + 1)
    starts = [0, *ends[:-1].tolist()]
    return [range(first * chunk, min(end * chunk, n)) for first, end in zip(starts, ends.tolist(), strict=True)]
