"""Greedy k-means++ on the CPU in O(n) memory, for n too large to store the distances to all candidates."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from tsapps.apps.kmeans.data.distances import square_distances
from tsapps.apps.kmeans.data.host_data import HostData, check_memory
from tsapps.kernels.system.host_memory import available_host_memory

__all__ = ["draw_plus_plus"]

# Number of samples for which the running sum is computed at a time; few enough for the L2 cache.
_PIECE = 1 << 16
# If the distances of all samples to all candidates take at most this many bytes, or at most a fourth of the bytes of X,
# `plusplus.kmeans_plusplus` stores them instead.
_MOST_DISTANCES = 64 << 20


def draw_plus_plus(data: HostData, first: int, draws: np.ndarray) -> np.ndarray | None:
    """Draw samples by greedy k-means++, storing one distance per sample; implements `plusplus.Draw`.

    Each step reads X twice: for the potential of every candidate, then for the distances to the best candidate. Running
    sums are bit-identical to `numpy.cumsum`. Potentials are summed block by block.

    Parameters
    ----------
    data : HostData
    first : int
        Index of the first sample.
    draws : numpy.ndarray of shape (k − 1, trials)
        Uniform random numbers in [0, 1).

    Returns
    -------
    numpy.ndarray of shape (k,) or None
        Sample indices. None if distances to all candidates fit in memory: `plusplus.kmeans_plusplus` is then faster.

    Raises
    ------
    MemoryError
        If the host has no memory for one distance per sample.
    """
    n, d = data.source.shape
    distances = draws.shape[1] * n * data.dtype.itemsize
    if distances <= max(_MOST_DISTANCES, n * d * data.source.dtype.itemsize // 4):
        return None
    check_memory(data.source.name, n * data.dtype.itemsize, available_host_memory())
    samples = np.empty(len(draws) + 1, np.int64)
    samples[0] = first
    closest = data.square_distances(data.rows(samples[:1]))[0]
    potential = sum(float(part.sum(dtype=np.float64)) for part in _weighted(data, closest))
    for step, drawn in enumerate(draws, start=1):
        candidates = _search(data, closest, drawn * potential)
        points = data.rows(candidates)
        best = int(_potentials(data, closest, points).argmin())
        samples[step] = candidates[best]
        potential = float(_potentials(data, closest, points[best : best + 1], update=True)[0])
    return samples


def _potentials(data: HostData, closest: np.ndarray, points: np.ndarray, *, update: bool = False) -> np.ndarray:
    """Return the potential Σ w·min(D², ‖x − p‖²) over the samples x for each point p of `points` (m, d): (m,), float64.

    `closest` (n,) is D², the squared distance of each sample to the nearest center. If `update`, it is replaced by
    min(D², ‖x − p‖²) for the first point p.
    """

    def work(start: int, block: Any) -> np.ndarray:
        own = closest[start : start + len(block)]
        distances = square_distances(points, block)
        np.minimum(distances, own, out=distances)
        if update:
            own[:] = distances[0]
        weights = data.weights_of(start, block)
        return (distances if weights is None else distances * weights).sum(axis=1, dtype=np.float64)

    return sum(data.each_block(work, len(points)), start=np.zeros(len(points)))


def _search(data: HostData, closest: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Return the index of the first sample at which the running sum of w·D² reaches each threshold, (trials,)."""
    found = np.zeros(len(thresholds), np.int64)
    total = 0.0
    for part in _weighted(data, closest):
        running = part.astype(np.float64)
        running[0] += total
        np.cumsum(running, out=running)
        found += np.searchsorted(running, thresholds)
        total = running[-1]
        if (thresholds <= total).all():
            break
    # Rounding can put a draw past the end of the running sum.
    return np.minimum(found, data.n_samples - 1)


def _weighted(data: HostData, closest: np.ndarray) -> Iterator[np.ndarray]:
    """Yield w·D² of each sample, `_PIECE` samples at a time; `closest` (n,) is D²."""
    for start in range(0, len(closest), _PIECE):
        part = closest[start : start + _PIECE]
        weights = data.weights_of(start, part)
        yield part if weights is None else part * weights
