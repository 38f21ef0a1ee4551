"""k-means‖ by chunks of rows: draws depend neither on the device nor on how rows are cut into blocks or shards.

Potentials are summed by chunks of consecutive rows. The nearest drawn sample of a row is certified, as labels are, and
its distance is computed from differences in float64. Newly drawn samples are compared k at a time, so that a GPU labels
rows with the kernels of the fit (oversampling_step.py); the CPU does the same (oversampling_host.py).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from math import ceil, log2
from typing import Any, Protocol

import numpy as np

from tsapps.apps.kmeans.data.blocks import Data
from tsapps.apps.kmeans.data.kernel_order import warp_sum
from tsapps.apps.kmeans.data.plan import moment_chunk
from tsapps.kernels.arrays import to_host

__all__ = ["ChunkedOversampling", "ChunkedOversamplings", "OversamplingByChunks", "oversampling_chunk"]

# Approximate number of elements of a chunk, which is added up and searched as a whole.
_CHUNK_ELEMENTS = 1 << 18
# Approximate number of samples whose D² are added up by one call.
_SUMMED = 1 << 24
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
    pieces : sequence of Data
        `data`, or its rows in order, each on its device; whole chunks, except the last.
    """

    def __init__(self, data: Data, most_weight: float | None, k: int, pieces: Sequence[Data]) -> None:
        self.chunk = oversampling_chunk(data.n_total, data.n_features, data.dtype.itemsize)
        self._n_total, self._k, self._most_weight = data.n_total, k, most_weight
        self._drawn = np.empty((0, data.n_features), data.dtype)
        self._pieces, self._ends = pieces, np.cumsum([piece.n_samples for piece in pieces])
        # Of each piece: D² of each sample, in the working type, and the index of the nearest drawn sample, int32.
        self._closest: list[Any] = []
        self._nearest: list[Any] = []
        for piece in pieces:
            with piece:
                self._closest.append(piece.xp.full(piece.n_samples, np.inf, piece.dtype))
                self._nearest.append(piece.xp.zeros(piece.n_samples, np.int32))

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
        found: list[float] = []
        for i, piece in enumerate(self._pieces):
            rows = max(1, _SUMMED // self.chunk) * self.chunk
            with piece:
                parts = [self._weighted(i, slice(at, at + rows)) for at in range(0, piece.n_samples, rows)]
                for part in parts:
                    found.extend(to_host(_chunk_sums(part, self.chunk, piece.xp)).tolist())
        return np.array(found)

    def found(self, chunks: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Return the indices of samples; see `ChunkedOversamplings.found`."""
        found = np.empty(len(chunks), np.int64)
        for number, (chunk, target) in enumerate(zip(chunks.tolist(), targets.tolist(), strict=True)):
            start = chunk * self.chunk
            i = int(np.searchsorted(self._ends, start, side="right"))
            at = start - int(self._ends[i]) + self._pieces[i].n_samples
            with self._pieces[i]:
                weighted = to_host(self._weighted(i, slice(at, at + self.chunk))).astype(np.float64)
            place = int(np.searchsorted(np.cumsum(weighted), target))
            if place == len(weighted):
                positive = np.flatnonzero(weighted)
                place = int(positive[-1]) if positive.size else place - 1
            found[number] = start + place
        return found

    def _weighted(self, i: int, part: slice) -> Any:
        """Return w·D² of some samples of a piece, on its device."""
        closest, weights = self._closest[i][part], self._pieces[i].sample_weight
        return closest if weights is None else closest * weights[part]

    def weights(self) -> np.ndarray:
        """Return the total weight of each drawn sample; see `ChunkedOversamplings.weights`.

        Weights are rounded to whole numbers of a unit, so that sums do not depend on the order of rows. The unit is so
        large that float64 represents the sum of all weights.
        """
        exponent, total = 0, np.zeros(len(self._drawn))
        if self._most_weight is not None:
            exponent = min(_WEIGHT_BITS, 52 - self._n_total.bit_length()) - ceil(log2(self._most_weight))
        for piece, nearest in zip(self._pieces, self._nearest, strict=True):
            with piece:
                xp, numbers = piece.xp, None
                if self._most_weight is not None and piece.sample_weight is not None:
                    numbers = xp.rint(xp.ldexp(piece.sample_weight.astype(np.float64), exponent))
                total += to_host(xp.bincount(nearest, weights=numbers, minlength=len(total)))
        return np.ldexp(total, -exponent)


def _chunk_sums(values: Any, chunk: int, xp: Any) -> Any:
    """Return the sum of each chunk of values, (n,), whose size is a power of two, float64; see `warp_sum`."""
    chunks = -(-len(values) // chunk)
    if len(values) % chunk:
        values = xp.concatenate([values, xp.zeros(chunks * chunk - len(values), values.dtype)])
    return warp_sum(values.reshape(chunks, chunk).astype(np.float64))


def _comparisons(first: int, stop: int, k: int) -> Iterator[np.ndarray]:
    """Yield indices of drawn samples, k at a time, that together have all from `first` to `stop`.

    The last are completed by samples before them, to which rows have been compared: a row that is nearest to one of
    these is nearer to none of the others.
    """
    for start in range(first, stop, k):
        end = min(start + k, stop)
        yield np.arange(max(0, end - k), end)
