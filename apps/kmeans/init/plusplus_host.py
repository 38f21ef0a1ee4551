"""Greedy k-means++ on the CPU in O(n) memory, by chunks of rows.

Potentials are summed by chunks of consecutive rows, whose size is a function of the shape of X. Each chunk and point
has a product of its own, because BLAS rounds products differently if their shapes differ. So samples do not depend on
how rows are cut into blocks or shards: a shard consists of whole chunks.
"""

from typing import Any, Protocol

import numpy as np

from tsapps.apps.kmeans.data.distances import square_norms
from tsapps.apps.kmeans.data.host_data import HostData, check_memory
from tsapps.apps.kmeans.data.plan import moment_chunk
from tsapps.kernels.system.host_memory import available_host_memory

__all__ = [
    "ChunkedDistances",
    "ChunkedDraw",
    "ChunkedDraws",
    "chunk_and_rest",
    "draw_plus_plus",
    "draw_samples",
    "plusplus_host_chunk",
]

# Approximate number of elements of a chunk, so that products of a chunk take longer than their calls.
_CHUNK_ELEMENTS = 1 << 18
# Distances of samples to all candidates are kept for the next step if they take at most this many bytes, or at most a
# fourth of the bytes of X.
_MOST_DISTANCES = 64 << 20


def plusplus_host_chunk(n_total: int, d: int, itemsize: int) -> int:
    """Return the number of rows per chunk of k-means++ on the CPU, a multiple of `moment_chunk`; both powers of two.

    Parameters
    ----------
    n_total : int
        Number of rows of X, of which a shard has some.
    d : int
    itemsize : int
        Size of a number of the working type in bytes.
    """
    return max(moment_chunk(n_total, d, itemsize), 1 << (max(1, _CHUNK_ELEMENTS // d).bit_length() - 1))


class ChunkedDraws(Protocol):
    """X, from which samples are drawn chunk by chunk."""

    def rows(self, indices: np.ndarray) -> np.ndarray:
        """Return the samples with these indices, centered; shape (len(indices), d)."""

    def add(self, point: np.ndarray) -> None:
        """Take a point, (d,), as a center: D² is the squared distance to the nearest center."""

    def potentials(self, points: np.ndarray) -> np.ndarray:
        """Return Σ w·min(D², ‖x − p‖²) over each chunk for each point p of `points` (m, d), (m, chunks), float64."""

    def sums(self) -> np.ndarray:
        """Return Σ w·D² over each chunk, (chunks,), float64."""

    def find(self, chunks: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Find in each of these chunks the first sample at which the running sum of w·D² reaches a target.

        If rounding puts a target past the end, it is the last sample with a positive w·D².

        Returns
        -------
        indices : numpy.ndarray of shape (m,)
            Of the samples in X.
        points : numpy.ndarray of shape (m, d)
            The samples, centered.
        """


def draw_samples(data: ChunkedDraws, first: int, draws: np.ndarray) -> np.ndarray:
    """Draw samples by greedy k-means++; implements `plusplus.Draw`.

    Parameters
    ----------
    data : ChunkedDraws
    first : int
        Index of the first sample.
    draws : numpy.ndarray of shape (k − 1, trials)
        Uniform random numbers in [0, 1).

    Returns
    -------
    numpy.ndarray of shape (k,)
        Sample indices.
    """
    samples = np.empty(len(draws) + 1, np.int64)
    samples[0] = first
    data.add(data.rows(samples[:1])[0])
    running = np.cumsum(data.sums())
    for step, drawn in enumerate(draws, start=1):
        candidates, points = data.find(*chunk_and_rest(running, drawn * running[-1]))
        of_points = np.cumsum(data.potentials(points), axis=1)
        best = int(of_points[:, -1].argmin())
        samples[step], running = candidates[best], of_points[best]
        data.add(points[best])
    return samples


def chunk_and_rest(running: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the first chunk at whose end a running sum reaches each target, and the target minus the sum before it.

    `running` (chunks,) are the running sums at the ends of chunks. If rounding puts a target past the end, it is in the
    last chunk.
    """
    chunks = np.minimum(np.searchsorted(running, targets), len(running) - 1)
    return chunks, targets - np.where(chunks > 0, running[chunks - 1], 0.0)


class ChunkedDistances:
    """D² of the samples of one process, or of a shard: squared distances to the nearest of some points.

    Numbers of chunks and samples count from the shard's first.

    Raises
    ------
    MemoryError
        If the host has no memory for one distance per sample.
    """

    def __init__(self, data: HostData) -> None:
        n, d = data.source.shape
        check_memory(data.source.name, n * data.dtype.itemsize, available_host_memory())
        self._data, self.chunk = data, plusplus_host_chunk(data.n_total, d, data.dtype.itemsize)
        self._closest = np.full(n, np.inf, data.dtype)

    def sums(self) -> np.ndarray:
        """Return Σ w·D² over each chunk; see `ChunkedDraws.sums`."""
        chunks = range(0, len(self._closest), self.chunk)
        return np.array([self._weighted(start // self.chunk).sum(dtype=np.float64) for start in chunks])

    def found(self, chunks: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Return the indices of samples; see `ChunkedDraws.find`."""
        return np.array([self._found(*one) for one in zip(chunks.tolist(), targets.tolist(), strict=True)], np.int64)

    def _found(self, chunk: int, target: float) -> int:
        weighted = self._weighted(chunk).astype(np.float64)
        found = int(np.searchsorted(np.cumsum(weighted), target))
        if found == len(weighted):
            positive = np.flatnonzero(weighted)
            found = int(positive[-1]) if positive.size else found - 1
        return chunk * self.chunk + found

    def _weighted(self, chunk: int) -> np.ndarray:
        """Return w·D² of each sample of a chunk."""
        own = self._of_chunk(self._closest, chunk)
        weights = self._data.weights_of(chunk * self.chunk, own)
        return own if weights is None else own * weights

    def _of_chunk(self, array: np.ndarray, chunk: int) -> np.ndarray:
        return array[..., chunk * self.chunk : (chunk + 1) * self.chunk]


def _square_distances(points: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return ‖p − x‖² for every point p and row x of a chunk, (m, n), in their type, computed in float64.

    Each point has a product of its own, so that its distances have the same bits beside other points.
    """
    wide, found = rows.astype(np.float64, copy=False), np.empty((len(points), len(rows)), rows.dtype)
    norms = square_norms(wide)
    for point, distances in zip(points.astype(np.float64), found, strict=True):
        squares = wide @ (-2 * point)
        squares += norms
        squares += point @ point
        np.maximum(squares, 0, out=distances, casting="same_kind")
    return found


class ChunkedDraw(ChunkedDistances):
    """Samples of one process, or of a shard, from which k-means++ draws; see `ChunkedDraws`."""

    def __init__(self, data: HostData) -> None:
        super().__init__(data)
        n, d = data.source.shape
        self._most_kept = max(_MOST_DISTANCES, n * d * data.source.dtype.itemsize // 4)
        # The points of the last call of `potentials`, and the squared distance of each sample to each of them.
        self._kept: tuple[np.ndarray, np.ndarray] | None = None

    def rows(self, indices: np.ndarray) -> np.ndarray:
        """Return samples; see `ChunkedDraws.rows`."""
        return self._data.rows(indices)

    def add(self, point: np.ndarray) -> None:
        """Take a point as a center; see `ChunkedDraws.add`."""
        if self._kept is not None:
            points, distances = self._kept
            same = np.flatnonzero((points == point).all(axis=1))
            if same.size:
                np.minimum(self._closest, distances[same[0]], out=self._closest)
                return

        def work(number: int, rows: Any) -> None:
            own = self._of_chunk(self._closest, number)
            np.minimum(own, _square_distances(point[np.newaxis], rows)[0], out=own)

        for _ in self._data.each_chunk(work, self.chunk):
            pass

    def potentials(self, points: np.ndarray) -> np.ndarray:
        """Return the potential of each point and chunk; see `ChunkedDraws.potentials`."""
        data, self._kept = self._data, None
        kept = None
        if len(points) * self._closest.nbytes <= self._most_kept:
            kept = np.empty((len(points), len(self._closest)), data.dtype)

        def work(number: int, rows: Any) -> np.ndarray:
            distances = _square_distances(points, rows)
            np.minimum(distances, self._of_chunk(self._closest, number), out=distances)
            if kept is not None:
                self._of_chunk(kept, number)[:] = distances
            weights = data.weights_of(number * self.chunk, rows)
            return (distances if weights is None else distances * weights).sum(axis=1, dtype=np.float64)

        found = np.column_stack(list(data.each_chunk(work, self.chunk)))
        self._kept = None if kept is None else (points, kept)
        return found

    def find(self, chunks: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Find samples; see `ChunkedDraws.find`."""
        found = self.found(chunks, targets)
        return found, self.rows(found)


def draw_plus_plus(data: HostData, first: int, draws: np.ndarray) -> np.ndarray | None:
    """Draw samples by greedy k-means++; implements `plusplus.Draw`.

    Returns
    -------
    numpy.ndarray of shape (k,) or None
        Sample indices. None for small X, of which `plusplus.kmeans_plusplus` draws samples with scikit-learn's sums.
    """
    return None if data.is_small else draw_samples(ChunkedDraw(data), first, draws)
