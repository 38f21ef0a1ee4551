"""Greedy k-means++ on the CPU in O(n) memory: the samples that a GPU draws.

Distances and sums have the bits of the kernels (plusplus_order.py), and few distances are computed. The score

    ‖p‖² − 2·x·p

of a row x and a candidate p, which BLAS computes, differs from ‖x − p‖² − ‖x‖² by at most γ·(‖x‖² + ‖p‖²). Most rows
are farther from all candidates than from the nearest center so far, by more than that. Their D² stays, and no distance
to a candidate is needed.
"""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np

from tsapps.apps.kmeans.assign.host_labels import MOST_RELATIVE_ERROR
from tsapps.apps.kmeans.data.distances import square_norms
from tsapps.apps.kmeans.data.host_data import HostData, check_memory
from tsapps.apps.kmeans.init.chosen import Chosen
from tsapps.apps.kmeans.init.plusplus_order import PlusPlusOrder
from tsapps.kernels.system.host_memory import available_host_memory

__all__ = ["ChunkedDraw", "ChunkedDraws", "draw_plus_plus", "draw_samples"]

# Approximate number of elements of a block, for which one call of NumPy takes far longer than to begin it.
_BLOCK = 1 << 20
# The new distances of all candidates are kept for the next step if they take at most this many bytes, or at most a
# fourth of the bytes of X.
_MOST_KEPT = 64 << 20
# Maximum number of features of which norms are computed in each pass, because storing them would take as much memory as
# a part of X that counts.
_MOST_COMPUTED = 16
# Number of rows from which the spread of the samples is estimated.
_SAMPLED = 100
# Smaller D² may have larger rounding errors than the bound covers (kLeastExact).
_LEAST_EXACT = {"float32": 2.0**-100, "float64": 2.0**-900}


class ChunkedDraws(Protocol):
    """X, from which samples are drawn chunk by chunk, as `order` cuts it."""

    order: PlusPlusOrder

    def rows_as_read(self, indices: np.ndarray) -> np.ndarray:
        """Return the samples with these indices, not centered; shape (len(indices), d)."""

    def add(self, point: np.ndarray) -> None:
        """Take a point, (d,), as a center: D² is the squared distance to the nearest center."""

    def potentials(self, points: np.ndarray) -> np.ndarray:
        """Return Σ w·min(D², ‖x − p‖²) over each chunk for each point p of `points` (m, d), (m, chunks), float64."""

    def sums(self) -> np.ndarray:
        """Return Σ w·D² over each chunk, (chunks,), float64."""

    def find(self, chunks: np.ndarray, passed: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Find in each of these chunks the sample that `PlusPlusOrder.find_row` finds.

        Returns
        -------
        indices : numpy.ndarray of shape (m,)
            Of the samples in X.
        points : numpy.ndarray of shape (m, d)
            The samples, not centered.
        """


def draw_samples(data: ChunkedDraws, first: int, draws: np.ndarray, chosen: Chosen | None = None) -> np.ndarray:
    """Draw samples by greedy k-means++; implements `plusplus.Draw`.

    Parameters
    ----------
    data : ChunkedDraws
    first : int
        Index of the first sample.
    draws : numpy.ndarray of shape (k − 1, trials)
        Uniform random numbers in [0, 1).
    chosen : callable, optional
        See `Chosen`.

    Returns
    -------
    numpy.ndarray of shape (k,)
        Sample indices.
    """
    samples = np.empty(len(draws) + 1, np.int64)
    samples[0] = first
    if len(draws) == 0:
        return samples
    data.add(data.rows_as_read(samples[:1])[0])
    sums = data.sums()
    for step, drawn in enumerate(draws, start=1):
        candidates, points = data.find(*data.order.find_chunks(sums, drawn))
        of_points = data.potentials(points)
        best = int(data.order.totals(of_points).argmin())
        samples[step], sums = candidates[best], of_points[best]
        data.add(points[best])
        if chosen is not None:
            chosen(step + 1, len(samples))
    return samples


class _Nearer(NamedTuple):
    """Rows that are nearer to a point than to all centers: their indices, those of the points, and the distances."""

    rows: np.ndarray
    points: np.ndarray
    distances: np.ndarray


class ChunkedDraw:
    """Samples of one process, or of a shard, from which k-means++ draws; see `ChunkedDraws`.

    Numbers of chunks and samples count from the shard's first.

    Parameters
    ----------
    data : HostData
    trials : int
        Number of candidates per step.
    mean : numpy.ndarray of shape (d,), optional
        The mean of the samples. By default, the point that passes subtract.

    Raises
    ------
    MemoryError
        If the host has no memory for the numbers per sample.
    """

    def __init__(self, data: HostData, trials: int, mean: np.ndarray | None = None) -> None:
        n, d = data.source.shape
        keeps_norms = d > _MOST_COMPUTED
        check_memory(data.source.name, (1 + keeps_norms) * n * data.dtype.itemsize, available_host_memory())
        self._data, self.order = data, PlusPlusOrder.of(data.n_total, d, trials, data.dtype.itemsize)
        # Scores are computed from rows minus the middle; None stands for zero, if zero is near enough.
        self._middle = _middle_of(data, data.host_mean() if mean is None else mean)
        # D² of each sample, and ‖x‖² of the samples minus the middle.
        self._closest = np.full(n, np.inf, data.dtype)
        self._norms = np.full(n, np.nan, data.dtype) if keeps_norms else None
        self._most_kept = max(_MOST_KEPT, n * d * data.source.dtype.itemsize // 4)
        # The points of the last call of `potentials`, and the rows that are nearer to them.
        self._kept: tuple[np.ndarray, list[_Nearer]] | None = None
        eps = float(np.finfo(data.dtype).eps)
        # Products and norms of d terms each, the rounding of centered rows, and the distance that the kernels compute.
        self._relative_error = (2 * d + 40) * eps

    def rows_as_read(self, indices: np.ndarray) -> np.ndarray:
        """Return samples; see `ChunkedDraws.rows_as_read`."""
        return self._data.rows_as_read(indices)

    def add(self, point: np.ndarray) -> None:
        """Take a point as a center; see `ChunkedDraws.add`."""
        kept, self._kept = self._kept, None
        same = np.zeros(0, np.intp) if kept is None else np.flatnonzero((kept[0] == point).all(axis=1))
        if kept is not None and same.size:
            for nearer in kept[1]:
                own = nearer.points == same[0]
                self._closest[nearer.rows[own]] = nearer.distances[own]
            return
        for _, nearer in self._nearer(point[np.newaxis]):
            self._closest[nearer.rows] = nearer.distances

    def potentials(self, points: np.ndarray) -> np.ndarray:
        """Return the potential of each point and chunk; see `ChunkedDraws.potentials`."""
        self._kept = None
        sums, kept, size = [], [], 0
        for of_block, nearer in self._nearer(points, sums=True):
            sums.append(of_block)
            size += sum(array.nbytes for array in nearer)
            if size <= self._most_kept:
                kept.append(nearer)
        if size <= self._most_kept:
            self._kept = points, kept
        return np.concatenate(sums, axis=1)

    def sums(self) -> np.ndarray:
        """Return Σ w·D² over each chunk; see `ChunkedDraws.sums`."""
        rows = max(1, _BLOCK // self.order.chunk) * self.order.chunk
        starts = range(0, len(self._closest), rows)
        return np.concatenate([self.order.chunk_sums(self._by_chunk(start, start + rows)) for start in starts])

    def find(self, chunks: np.ndarray, passed: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Find samples; see `ChunkedDraws.find`."""

        def masses_of(start: int) -> np.ndarray:
            return self._weighted(start, start + self.order.chunk)

        found = self.order.find_rows(masses_of, chunks, passed, targets)
        return found, self.rows_as_read(found)

    def _weighted(self, start: int, stop: int) -> np.ndarray:
        """Return w·D² of some rows, float64."""
        closest = self._closest[start:stop].astype(np.float64)
        weights = self._data.weights_of(start, closest)
        return closest if weights is None else closest * weights.astype(np.float64)

    def _by_chunk(self, start: int, stop: int) -> np.ndarray:
        """Return w·D² of some rows from the first of a chunk on; see `PlusPlusOrder.by_chunk`."""
        return self.order.by_chunk(self._weighted(start, stop))

    def _nearer(self, points: np.ndarray, *, sums: bool = False) -> Iterator[tuple[np.ndarray, _Nearer]]:
        """Yield for one block of rows after another the rows that are nearer to a point (m, d) than to all centers.

        With `sums`, also yield the sum of w·D² for each point and chunk of the block, if it became a center.
        """

        def work(start: int, rows: np.ndarray) -> tuple[np.ndarray, _Nearer]:
            point, row = self._maybe_nearer(start, rows, points)
            found = self.order.square_distances(rows.take(row, axis=0), points.take(point, axis=0))
            lower = np.flatnonzero(found < self._closest[start : start + len(rows)].take(row))
            point, row, found = point[lower], row[lower], found[lower]
            of_block = self._sums_with(start, len(rows), row, point, found, len(points)) if sums else found[:0]
            return of_block, _Nearer(row + start, point, found)

        return self._data.each_block_as_read(work, self.order.chunk, _BLOCK)

    def _maybe_nearer(self, start: int, rows: np.ndarray, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return pairs of a point and a row that may be nearer to each other than the row to its nearest center.

        They are in the order of the points.
        """
        error, closest = self._relative_error, self._closest[start : start + len(rows)]
        if self._middle is not None:
            rows, points = rows - self._middle, points - self._middle
        with np.errstate(over="ignore", invalid="ignore"):
            most = closest * (1 + error) - (1 - error) * self._norms_of(start, rows)
            most[closest < _LEAST_EXACT[rows.dtype.name]] = np.inf
            most[closest == 0] = -np.inf
            if not error <= MOST_RELATIVE_ERROR:
                most[closest > 0] = np.inf
            scores = np.ascontiguousarray((rows @ np.ascontiguousarray(-2 * points.T)).T)
            scores += ((1 - error) * square_norms(points))[:, np.newaxis]
            # Comparisons are negated, so that a score that is not a number rules nothing out.
            some = np.flatnonzero(~(scores.min(axis=0) >= most))
            point, row = np.nonzero(~(scores.take(some, axis=1) >= most[some]))
        return point, some[row]

    def _norms_of(self, start: int, rows: np.ndarray) -> np.ndarray:
        """Return ‖x‖² of rows minus the middle."""
        if self._norms is None:
            return square_norms(rows)
        norms = self._norms[start : start + len(rows)]
        if norms[0] != norms[0]:  # not known yet
            norms[...] = square_norms(rows)
        return norms

    def _sums_with(
        self, start: int, count: int, row: np.ndarray, point: np.ndarray, distances: np.ndarray, m: int
    ) -> np.ndarray:
        """Return the sums of the chunks of a block of `count` rows for each of m points, to which some are nearer."""
        values, new = self._by_chunk(start, start + count), distances.astype(np.float64)
        weights = self._data.weights_of(start, range(count))
        if weights is not None:
            new *= weights[row].astype(np.float64)
        places = self.order.places(count).take(row)
        ends, found = np.searchsorted(point, np.arange(m + 1)), np.empty((m, values.shape[1]))
        for number in range(m):
            own, changed = slice(ends[number], ends[number + 1]), values.copy()
            changed.put(places[own], new[own])
            found[number] = self.order.chunk_sums(changed)
        return found


def _middle_of(data: HostData, mean: np.ndarray) -> np.ndarray | None:
    """Return the mean, or None if it is nearer to zero than twice the usual distance of a sample to it."""
    some = data.rows_as_read(np.arange(0, data.n_samples, -(-data.n_samples // _SAMPLED)))
    with np.errstate(over="ignore", invalid="ignore"):
        near = float(mean @ mean) <= 4 * float(np.median(square_norms(some - mean)))
    return None if near else mean


def draw_plus_plus(data: HostData, first: int, draws: np.ndarray, chosen: Chosen | None = None) -> np.ndarray | None:
    """Draw samples by greedy k-means++; implements `plusplus.Draw`.

    Returns
    -------
    numpy.ndarray of shape (k,) or None
        Sample indices. None for small X that is not processed as by kernels: `plusplus.kmeans_plusplus` then draws
        samples with scikit-learn's sums.
    """
    if not data.as_kernels:
        return None
    return draw_samples(ChunkedDraw(data, draws.shape[1]), first, draws, chosen)
