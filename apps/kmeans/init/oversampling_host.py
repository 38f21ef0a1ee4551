"""k-means‖ on the CPU by chunks of rows: draws do not depend on how rows are cut into blocks or shards.

The nearest drawn sample is certified (assign/host_labels.py), and its distance is computed from differences in float64.
"""

from math import ceil, log2
from typing import Any, Protocol

import numpy as np

from tsapps.apps.kmeans.assign.host_labels import HostCenters
from tsapps.apps.kmeans.data.distances import square_norms
from tsapps.apps.kmeans.data.host_data import HostData
from tsapps.apps.kmeans.init.plusplus_host import ChunkedDistances, chunk_and_rest

__all__ = ["ChunkedOversampling", "ChunkedOversamplings", "OversamplingByChunks"]

# Number of bits to which weights are rounded, of few rows.
_WEIGHT_BITS = 30


class ChunkedOversamplings(Protocol):
    """X, and for each sample the nearest drawn sample, chunk by chunk."""

    def add(self, points: np.ndarray) -> None:
        """Add newly drawn samples; see `Oversampling.add`."""

    def sums(self) -> np.ndarray:
        """Return Σ w·D² over each chunk, (chunks,), float64."""

    def found(self, chunks: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Return the indices of the samples that are found in these chunks; see `ChunkedDraws.find`."""

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
        return self._chunks.found(*chunk_and_rest(self._running, targets))

    def weights(self) -> np.ndarray:
        """Return the total weight of each drawn sample; see `Oversampling.weights`."""
        return self._chunks.weights()


class ChunkedOversampling(ChunkedDistances):
    """The samples of one process, or of a shard; see `ChunkedOversamplings`. Indices count from the shard's first."""

    def __init__(self, data: HostData) -> None:
        super().__init__(data)
        self._nearest, self._count = np.zeros(data.n_samples, np.int32), 0

    def add(self, points: np.ndarray) -> None:
        """Add newly drawn samples; see `Oversampling.add`."""
        data, centers, first = self._data, HostCenters(points), self._count
        wide = points.astype(np.float64)

        def work(number: int, rows: Any) -> None:
            labels = centers.labels(rows, centers.largest_norms(rows))
            distances = square_norms(rows.astype(np.float64) - wide[labels]).astype(data.dtype)
            closest, nearest = self._of_chunk(self._closest, number), self._of_chunk(self._nearest, number)
            closer = distances < closest
            nearest[closer] = labels[closer] + np.int32(first)
            closest[closer] = distances[closer]

        for _ in data.each_chunk(work, self.chunk):
            pass
        self._count += len(points)

    def weights(self) -> np.ndarray:
        """Return the total weight of each drawn sample; see `ChunkedOversamplings.weights`.

        Weights are rounded to whole numbers of a unit, so that sums do not depend on the order of rows. The unit is so
        large that float64 represents the sum of all weights.
        """
        data, most, weights = self._data, self._data.most_weight, self._data.sample_weight
        if most is None or weights is None:
            return np.bincount(self._nearest, minlength=self._count).astype(np.float64)
        exponent = min(_WEIGHT_BITS, 52 - data.n_total.bit_length()) - ceil(log2(most))
        numbers = np.rint(np.ldexp(weights.astype(np.float64), exponent))
        return np.ldexp(np.bincount(self._nearest, weights=numbers, minlength=self._count), -exponent)
