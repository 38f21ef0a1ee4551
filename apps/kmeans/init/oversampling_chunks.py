"""k-means‖ by chunks of rows: draws depend neither on the device nor on how rows are cut into blocks or shards.

Potentials are summed by chunks of consecutive rows. The nearest drawn sample of a row is certified, as labels are, and
its distance is computed from differences in float64. Newly drawn samples are compared k at a time, so that a GPU labels
rows with the kernels of the fit (oversampling_step.py); the CPU does the same (oversampling_host.py).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from math import ceil, log2
from typing import Protocol

import numpy as np

from tsapps.apps.kmeans.data.blocks import Data
from tsapps.apps.kmeans.data.plan import moment_chunk
from tsapps.kernels.arrays import to_host

__all__ = ["ChunkedOversampling", "ChunkedOversamplings", "OversamplingByChunks", "oversampling_chunk"]

# Approximate number of elements of a chunk: rows of a chunk are added up and searched by one NumPy call each.
_CHUNK_ELEMENTS = 1 << 18
# Number of bits to which weights are rounded, of few rows.
_WEIGHT_BITS = 30


def oversampling_chunk(n_total: int, d: int, itemsize: int) -> int:
    """Return the number of rows per chunk of k-means‖, a multiple of `moment_chunk`; both powers of two.

    Parameters
    ----------
    n_total : int
        Number of rows of X, of which a shard has some.
    d : int
    itemsize : int
        Size of a number of the working type in bytes.
    """
    return max(moment_chunk(n_total, d, itemsize), 1 << (max(1, _CHUNK_ELEMENTS // d).bit_length() - 1))


class ChunkedOversamplings(Protocol):
    """X, and for each sample the nearest drawn sample, chunk by chunk."""

    def add(self, points: np.ndarray) -> None:
        """Add newly drawn samples; see `Oversampling.add`."""

    def sums(self) -> np.ndarray:
        """Return Σ w·D² over each chunk, (chunks,), float64."""

    def found(self, chunks: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Find in each of these chunks the first sample at which the running sum of w·D² reaches a target.

        If rounding puts a target past the end, it is the last sample with a positive w·D². Returns the indices, (m,).
        """

    def weights(self) -> np.ndarray:
        """Return the total weight of the samples nearest to each drawn sample; see `Oversampling.weights`."""


class OversamplingByChunks:
    """The `Oversampling` of X from its chunks."""

    def __init__(self, chunks: ChunkedOversamplings) -> None:
        self._chunks = chunks
        self._running = np.zeros(0)

    def add(self, points: np.ndarray) -> None:
        """Add newly drawn samples; see `Oversampling.add`."""
        self._chunks.add(points)

    def potential(self) -> float:
        """Return Σ w·D² over all samples; see `Oversampling.potential`."""
        self._running = np.cumsum(self._chunks.sums())
        return float(self._running[-1])

    def at(self, targets: np.ndarray) -> np.ndarray:
        """Return indices of samples; see `Oversampling.at`."""
        running = self._running
        chunks = np.minimum(np.searchsorted(running, targets), len(running) - 1)
        return self._chunks.found(chunks, targets - np.where(chunks > 0, running[chunks - 1], 0.0))

    def weights(self) -> np.ndarray:
        """Return the total weight of each drawn sample; see `Oversampling.weights`."""
        return self._chunks.weights()


class ChunkedOversampling(ABC):
    """The samples of one process, or of a shard; see `ChunkedOversamplings`. Indices count from the shard's first.

    Parameters
    ----------
    data : Data
    most_weight : float or None
        The largest weight of all samples of X; None if all weights are 1.
    k : int
        Number of drawn samples that rows are compared with at a time.
    """

    def __init__(self, data: Data, most_weight: float | None, k: int) -> None:
        self.chunk = oversampling_chunk(data.n_total, data.n_features, data.dtype.itemsize)
        self._n, self._n_total, self._k = data.n_samples, data.n_total, k
        self._weights = None if data.sample_weight is None else to_host(data.sample_weight)
        self._most_weight, self._drawn = most_weight, np.empty((0, data.n_features), data.dtype)

    @abstractmethod
    def _closest(self) -> np.ndarray:
        """Return D² of each sample, (n,), in host memory, in the working type."""

    @abstractmethod
    def _nearest(self) -> np.ndarray:
        """Return the index of the nearest drawn sample of each sample, (n,), int32, in host memory."""

    @abstractmethod
    def _compare(self, points: np.ndarray, numbers: np.ndarray) -> None:
        """Update D² and the nearest drawn sample of each sample by drawn samples, (m, d), with these indices (m,)."""

    def add(self, points: np.ndarray) -> None:
        """Add newly drawn samples; see `Oversampling.add`."""
        first, self._drawn = len(self._drawn), np.concatenate([self._drawn, points])
        for numbers in _comparisons(first, len(self._drawn), self._k):
            self._compare(self._drawn[numbers], numbers)

    def sums(self) -> np.ndarray:
        """Return Σ w·D² over each chunk; see `ChunkedOversamplings.sums`."""
        closest, chunks = self._closest(), range(-(-self._n // self.chunk))
        return np.array([self._weighted(closest, chunk).sum(dtype=np.float64) for chunk in chunks])

    def found(self, chunks: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Return the indices of samples; see `ChunkedOversamplings.found`."""
        closest, found = self._closest(), np.empty(len(chunks), np.int64)
        for i, (chunk, target) in enumerate(zip(chunks.tolist(), targets.tolist(), strict=True)):
            weighted = self._weighted(closest, chunk).astype(np.float64)
            place = int(np.searchsorted(np.cumsum(weighted), target))
            if place == len(weighted):
                positive = np.flatnonzero(weighted)
                place = int(positive[-1]) if positive.size else place - 1
            found[i] = chunk * self.chunk + place
        return found

    def _weighted(self, closest: np.ndarray, chunk: int) -> np.ndarray:
        """Return w·D² of each sample of a chunk."""
        part = slice(chunk * self.chunk, (chunk + 1) * self.chunk)
        return closest[part] if self._weights is None else closest[part] * self._weights[part]

    def weights(self) -> np.ndarray:
        """Return the total weight of each drawn sample; see `ChunkedOversamplings.weights`.

        Weights are rounded to whole numbers of a unit, so that sums do not depend on the order of rows. The unit is so
        large that float64 represents the sum of all weights.
        """
        nearest, count = self._nearest(), len(self._drawn)
        if self._most_weight is None or self._weights is None:
            return np.bincount(nearest, minlength=count).astype(np.float64)
        exponent = min(_WEIGHT_BITS, 52 - self._n_total.bit_length()) - ceil(log2(self._most_weight))
        numbers = np.rint(np.ldexp(self._weights.astype(np.float64), exponent))
        return np.ldexp(np.bincount(nearest, weights=numbers, minlength=count), -exponent)


def _comparisons(first: int, stop: int, k: int) -> Iterator[np.ndarray]:
    """Yield indices of drawn samples, k at a time, that together have all from `first` to `stop`.

    The last are completed by samples before them, to which rows have been compared: a row that is nearest to one of
    these is nearer to none of the others.
    """
    for start in range(first, stop, k):
        end = min(start + k, stop)
        yield np.arange(max(0, end - k), end)
