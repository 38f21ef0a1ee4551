"""Certified labels on the CPU: scores by BLAS, and float64 distances where scores do not decide.

The center c nearest to a row x has the lowest score ‖c‖² − 2·x·c. A score that BLAS computes in the working type, in
whatever order, differs from the exact score by at most E = γ·(2·‖x‖·‖c‖ + ‖c‖²). Here γ = (d + 8)·u/(1 − (d + 8)·u),
and u is half the machine epsilon: d products and additions, the squared norm, and a few operations more. So the nearest
center is among the *candidates* of the row, whose scores are at most 2·E above the lowest. A row with one candidate has
its label. An *ambiguous* row, with several, gets the candidate with the smallest float64 distance, and of equally near
candidates the one with the lowest index. So labels depend neither on BLAS nor on which rows are multiplied together,
and are those of the kernels of a GPU. (Two float64 distances that differ by less than their rounding errors, 2⁻⁵⁰ of
either, may be ordered in another way on a GPU.)

E takes the largest norm of the centers that can be the nearest of any row of the block. A center c is farther than the
center of the smallest norm c₀ if ‖c‖ > 2·‖x‖ + c₀; as in error_bound.cuh, a few percent cover the errors of the scores.
So a few distant centers do not widen the bounds.

References
----------
Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed. (2002), section 3.1.
"""

from threading import local

import numpy as np

from tsapps.apps.kmeans.data.distances import square_norms

__all__ = ["MOST_RELATIVE_ERROR", "HostCenters"]

# Maximum number of scores per GEMM: 0.5 MiB of float32 or 1 MiB of float64, so that they stay in the L2 cache. Minimum
# number of rows per GEMM.
_SCORE_ELEMENTS, _LEAST_ROWS = 1 << 17, 256
# Maximum number of features, and of bytes of the scores of a row (256 scores at most), for which the scores of a center
# are contiguous: 1.1 to 2.1 times as fast as contiguous scores of a row there; beyond, the product is slower.
_MOST_FEATURES, _MOST_SCORE_BYTES = 16, 128
# Maximum number of elements of float64 differences at a time.
_DIFFERENCES = 1 << 17
# Squares of numbers between these neither overflow nor lose bits, nor do their sums.
_LEAST_SQUARED, _MOST_SQUARED = 1e-140, 1e145
#: If a relative error of scores is larger, their bounds are not valid: every center is a candidate.
MOST_RELATIVE_ERROR = 2.0**-5


class HostCenters:
    """Centers with which rows in host memory are labeled.

    Parameters
    ----------
    centers : numpy.ndarray of shape (k, d), float32 or float64
        The same point is subtracted from centers and rows.

    Attributes
    ----------
    centers : numpy.ndarray of shape (k, d)
    piece : int
        Number of rows that are multiplied at a time.
    """

    def __init__(self, centers: np.ndarray) -> None:
        self.centers = centers
        with np.errstate(over="ignore"):
            self._minus_2_centers = np.ascontiguousarray(-2 * centers.T)
        self._norms = square_norms(centers)
        self._lengths = np.sort(np.sqrt(square_norms(centers.astype(np.float64))))
        k, d = centers.shape
        self._relative_error = (d + 8) * float(np.finfo(centers.dtype).eps) / 2
        self._repeated = _repeated(centers, self._norms)
        self._norms[self._repeated] = np.inf
        self._by_center = d <= _MOST_FEATURES and self._norms.nbytes <= _MOST_SCORE_BYTES
        self.piece = max(_LEAST_ROWS, _SCORE_ELEMENTS // k)
        self._of_thread = local()

    def is_equal(self, other: "HostCenters") -> bool:
        """Return True if everything that determines labels has the same bits in both."""
        return all(
            one.tobytes() == another.tobytes()
            for one, another in (
                (self.centers, other.centers),
                (self._minus_2_centers, other._minus_2_centers),
                (self._norms, other._norms),
                (self._lengths, other._lengths),
            )
        )

    def largest_norms(self, rows: np.ndarray) -> np.ndarray:
        """Return an upper bound of the norms of each `piece` of rows, float64: the argument of `labels`."""
        squares = square_norms(rows)
        most = np.maximum.reduceat(squares, np.arange(0, len(rows), self.piece)).astype(np.float64)
        return np.sqrt(most * (1 + 2 * self._relative_error) + float(np.finfo(rows.dtype).tiny))

    def labels(
        self, rows: np.ndarray, largest_norms: np.ndarray, lowest_scores: np.ndarray | None = None
    ) -> np.ndarray:
        """Return the index of the center nearest to each row, the lowest index on a tie; (m,), int32.

        Parameters
        ----------
        rows : numpy.ndarray of shape (m, d)
            In the type of the centers.
        largest_norms : numpy.ndarray
            See the method of this name.
        lowest_scores : numpy.ndarray of shape (m,), optional
            Receives the lowest score of each row, as BLAS computes it.
        """
        labels = np.empty(len(rows), np.int32)
        bounds = self._bounds(largest_norms, rows.dtype)
        ambiguous: list[np.ndarray] = []
        their_scores: list[np.ndarray] = []

        def rescore() -> None:
            if ambiguous:
                some = np.concatenate(ambiguous)
                labels[some] = self._rescored(rows[some], np.concatenate(their_scores))
                ambiguous.clear()
                their_scores.clear()

        with np.errstate(over="ignore", invalid="ignore"):
            for start, bound in zip(range(0, len(rows), self.piece), bounds, strict=True):
                part = slice(start, start + self.piece)
                scored = self._scores_by_center if self._by_center else self._scores_by_row
                labels[part], lowest, scores, some = scored(rows[part], bound)
                if lowest_scores is not None:
                    lowest_scores[part] = lowest
                if not bound < np.inf:  # scores may have overflowed
                    some = np.arange(len(scores))
                if some.size:
                    ambiguous.append(start + some)
                    their_scores.append(scores[some])
                # A few rows at a time take long, because NumPy does; many take much memory.
                if sum(one.size for one in their_scores) > _SCORE_ELEMENTS:
                    rescore()
            rescore()
        return labels

    def _scratch(self, *shape: int) -> tuple[np.ndarray, np.ndarray]:
        """Return arrays of scores and of bools, not initialized, which the next call in the same thread reuses.

        New arrays for each product would take longer than it, where freed memory goes back to the system at once, as in
        workers of Dask.
        """
        size = shape[0] * shape[1]
        if getattr(self._of_thread, "size", 0) < size:
            self._of_thread.arrays = np.empty(size, self.centers.dtype), np.empty(size, np.bool_)
            self._of_thread.size = size
        scores, near = self._of_thread.arrays
        return scores[:size].reshape(shape), near[:size].reshape(shape)

    def _scores_by_row(self, rows: np.ndarray, bound: np.floating) -> tuple[np.ndarray, ...]:
        """Return the labels of rows, their lowest scores, all scores (m, k), and the indices of ambiguous rows."""
        scores, mask = self._scratch(len(rows), len(self.centers))
        np.matmul(rows, self._minus_2_centers, out=scores)
        scores += self._norms
        labels = scores.argmin(axis=1)
        places = np.arange(0, scores.size, scores.shape[1]) + labels
        lowest = scores.ravel().take(places)
        near = np.less_equal(scores, (lowest + bound)[:, np.newaxis], out=mask).ravel()
        near[places] = False
        ambiguous = np.unique(np.flatnonzero(near) // scores.shape[1]) if near.any() else places[:0]
        return labels.astype(np.int32), lowest, scores, ambiguous

    def _scores_by_center(self, rows: np.ndarray, bound: np.floating) -> tuple[np.ndarray, ...]:
        """Return what `_scores_by_row` does; the scores of a center are contiguous."""
        scores, mask = self._scratch(len(self.centers), len(rows))
        np.matmul(np.ascontiguousarray(self._minus_2_centers.T), rows.T, out=scores)
        scores += self._norms[:, np.newaxis]
        lowest = scores.min(axis=0)
        near = np.less_equal(scores, lowest + bound, out=mask).view(np.uint8)
        ambiguous = np.flatnonzero(near.sum(axis=0, dtype=np.uint8) != 1)
        # The first candidate is the one of most centers that follow it.
        near *= np.arange(len(near) - 1, -1, -1, dtype=np.uint8)[:, np.newaxis]
        return len(near) - 1 - near.max(axis=0).astype(np.int32), lowest, scores.T, ambiguous

    def _bounds(self, norms: np.ndarray, dtype: np.dtype) -> np.ndarray:
        """Return 2·E for rows of these norms, in the type of the scores; infinite if scores may overflow."""
        relative, least = self._relative_error, self._lengths[0]
        nearest = np.searchsorted(self._lengths, 2.2 * norms + 1.1 * least + float(np.finfo(dtype).tiny), side="right")
        lengths = self._lengths[nearest - 1]
        with np.errstate(over="ignore", invalid="ignore"):
            errors = relative / (1 - relative) * (2 * norms * lengths + lengths * lengths)
            # Products may underflow, and the sum of the lowest score and the bound is rounded.
            bounds = 2.04 * errors + 4.0 * self.centers.shape[1] * float(np.finfo(dtype).smallest_subnormal)
            largest = self._lengths[-1]
            bounds[~(2 * norms * largest + largest * largest < float(np.finfo(dtype).max) / 4)] = np.inf
            if not relative <= MOST_RELATIVE_ERROR:
                bounds[...] = np.inf
            return np.nextafter(bounds.astype(dtype), dtype.type(np.inf))

    def _rescored(self, rows: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """Return the labels of ambiguous rows, whose scores (m, k) are given."""
        wide = rows.astype(np.float64)
        # The bound for the norm of the row itself is often smaller than that for the norms of all rows.
        bounds = self._bounds(np.sqrt(square_norms(wide)) * (1 + 2.0**-20), rows.dtype)
        candidates = scores <= (scores.min(axis=1) + bounds)[:, np.newaxis]
        candidates[~(bounds < np.inf)] = True
        candidates[:, self._repeated] = False
        labels = np.empty(len(rows), np.int32)
        each = max(1, _DIFFERENCES // (rows.shape[1] * int(np.count_nonzero(candidates, axis=1).max())))
        for start in range(0, len(rows), each):
            part = slice(start, start + each)
            labels[part] = self._nearest(wide[part], candidates[part])
        return labels

    def _nearest(self, rows: np.ndarray, candidates: np.ndarray) -> np.ndarray:
        """Return the nearest candidate of each float64 row, by float64 distances; the lowest index on a tie."""
        row, center = np.nonzero(candidates)
        distances = _square_distances(rows, self.centers, row, center)
        starts = np.flatnonzero(np.diff(row, prepend=-1))
        # A center that is no number, after a memory error, is not the nearest.
        least = np.repeat(np.fmin.reduceat(distances, starts), np.diff(starts, append=len(row)))
        nearest = np.flatnonzero((distances <= least) | np.isnan(least))
        return center[nearest[np.flatnonzero(np.diff(row[nearest], prepend=-1))]]


def _square_distances(rows: np.ndarray, centers: np.ndarray, row: np.ndarray, center: np.ndarray) -> np.ndarray:
    """Return ‖x − c‖² of pairs of float64 rows and centers; out of range, times a power of two that a row has.

    The smallest distance of a row is then in range; larger ones may be infinite.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        differences = rows[row] - centers[center]
        if _LEAST_SQUARED < abs(differences).max() < _MOST_SQUARED:
            return square_norms(differences)
        differences = 0.5 * rows[row] - 0.5 * centers[center]
        largest = abs(differences).max(axis=1)
        smallest = np.full(len(rows), np.inf)
        np.fmin.at(smallest, row, np.where(largest > 0, largest, np.inf))
        exponents = np.frexp(np.where(smallest < np.inf, smallest, 1.0))[1]
        return square_norms(np.ldexp(differences, -exponents[row, np.newaxis]))


def _repeated(centers: np.ndarray, norms: np.ndarray) -> np.ndarray:
    """Return the indices of centers that equal an earlier one, which is then the label of the rows of both."""
    if len(np.unique(norms)) == len(norms):
        return np.zeros(0, np.intp)
    first = np.unique(centers + 0.0, axis=0, return_index=True)[1]  # −0.0 equals 0.0
    return np.setdiff1d(np.arange(len(centers)), first)
