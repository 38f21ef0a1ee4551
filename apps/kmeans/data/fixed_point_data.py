"""`FixedPointData`: X whose cluster sums are integers, and the statistics of its rows that determine their scales."""

from abc import abstractmethod
from functools import cached_property
from typing import Any

import numpy as np

from tsapps.apps.kmeans.data.blocks import Data
from tsapps.apps.kmeans.data.host_moments import total_moments
from tsapps.apps.kmeans.data.outliers import sampled_rows, typical_rows
from tsapps.apps.kmeans.data.pinned_rows import is_half
from tsapps.apps.kmeans.data.plan import moment_chunk
from tsapps.apps.kmeans.data.rows import Rows
from tsapps.apps.kmeans.data.shard import Shard, Statistics

__all__ = ["WEIGHTS_DIFFER", "FixedPointData", "are_alike"]

#: Why weights have no fixed-point scale; see `FixedPointData.weights_alike`.
WEIGHTS_DIFFER = "weights differ by more orders of magnitude than fixed-point sums represent"

# 16-bit X is not centered if ‖mean‖² is at most this fraction of the total variance of the features.
_NEARLY_CENTERED = 0.25
# Smallest ratio of two weights that the 46-bit fixed-point sums support (update/fixed_point.cuh).
_LEAST_WEIGHT = 2.0**-16


class FixedPointData(Data):
    """X, or some of its rows, on one device, and what fixed-point sums must know of all rows of X; see `Data`.

    Parameters
    ----------
    source, dtype, sample_weight
        See `Data`.
    shard : Shard, optional
        Which rows of a larger matrix `source` has; by default, it has all rows.
    """

    def __init__(self, source: Rows, dtype: np.dtype, sample_weight: Any, shard: Shard | None = None) -> None:
        self.shard = Shard(0, source.shape[0]) if shard is None else shard
        # `cached_moments`, once they are known.
        self.known_moments: tuple[np.ndarray, float, np.ndarray] | None = None
        #: The last result of `integers_of` in update/fixed_point.py, after the `spread` that it is for.
        self.integers: tuple[tuple[np.ndarray, float], Any] | None = None
        # The argument of the last `spread`, the same rounded as `shift`, and the result.
        self._last_spread: tuple[np.ndarray, np.ndarray, tuple[np.ndarray, float]] | None = None
        self._subtracted = np.zeros(source.shape[1])  # the point that passes subtract, in float64, on the host
        super().__init__(source, dtype, sample_weight)

    @property
    def dtype_as_read(self) -> np.dtype:
        """The type of X as kernels read it, or would read it: the working type or a 16-bit type."""
        return self.source.dtype if is_half(self.source.dtype, self.dtype) else self.dtype

    @property
    def itemsize(self) -> int:
        """Size in bytes of an element of X as kernels read it, or would read it."""
        return self.dtype_as_read.itemsize

    @abstractmethod
    def rows_as_read(self, indices: range | np.ndarray) -> Any:
        """Return rows of X as kernels read them, not centered; shape (len(indices), d)."""

    @property
    def n_total(self) -> int:
        """Number of samples of X, of which this may be a shard."""
        return self.shard.n_total

    @property
    def chunk(self) -> int:
        """Number of rows per chunk of the moments, a multiple of `inertia_chunk`: blocks and shards begin at chunks."""
        return moment_chunk(self.n_total, self.n_features, self.dtype.itemsize)

    def moments(self) -> tuple[np.ndarray, float]:
        """Return the mean of X and the mean variance of its features, computed on first use; see `Data.moments`."""
        if self.known_moments is None:
            mean, variance = super().moments()
            self.known_moments, self._last_spread = (mean, variance, self._largest), None
        return self.known_moments[:2]

    def _sums_about(self, origin: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        # Sums, sums of squares, and the largest |x − origin| of each feature.
        total, square, self._largest = self.total_moments(self.partial_moments(origin))
        return total, square

    @abstractmethod
    def partial_moments(self, origin: np.ndarray) -> Any:
        """Return Σ(x − origin), Σ(x − origin)² and max ``|x − origin|`` of each chunk, shape (3, chunks, d), float64.

        Those of all shards, joined along the second axis, are an argument of `total_moments`.
        """

    def total_moments(self, parts: Any) -> np.ndarray:
        """Return the moments of X, (3, d), in host memory, from those of all chunks of X."""
        return total_moments(parts)

    def subtracted(self, mean: np.ndarray) -> np.ndarray:
        """Return the point, (d,), that passes should subtract from the rows that they read: as a rule, the mean.

        It is the median if outliers dominate the mean; see `typical_rows`. It is zero for nearly centered 16-bit X,
        because the half-precision copy of X is then exact.
        """
        if self.known_moments is None:
            return mean
        if self._typical_rows is not None:
            return self._typical_rows[0]
        spread = self.n_features * self.known_moments[1]
        nearly_centered = self.itemsize == 2 and float(mean @ mean) <= _NEARLY_CENTERED * spread
        return np.zeros_like(mean) if nearly_centered else mean

    def spread(self, subtracted: np.ndarray | None = None) -> tuple[np.ndarray, float]:
        """Return upper bounds of ``|x − s|`` per feature, (d,), and the root mean square of x − s over all elements.

        s is `subtracted`, (d,), or by default the point that passes subtract.
        """
        mean, variance, largest = self.cached_moments
        point, last = self._subtracted if subtracted is None else subtracted, self._last_spread
        if last is not None and point is last[0]:
            return last[2]
        about = point.astype(self.dtype).astype(np.float64)
        if last is not None and np.array_equal(about, last[1]):
            found = last[2]
        else:
            with np.errstate(over="ignore"):  # an infinite bound is valid, but certifies no label
                square = variance + float(np.mean((mean - about) ** 2))
            found = largest + np.abs(self.origin - about), square**0.5
        self._last_spread = point, about, found
        return found

    def adopt(self, statistics: Statistics) -> None:
        """Take the statistics of all rows of X for those of these rows, which are a shard of X."""
        self.origin, self.known_moments, self._last_spread = statistics.origin, statistics.moments, None
        self._typical_rows = statistics.typical_rows
        self.most_weight, self.weights_alike = statistics.most_weight, statistics.weights_alike

    @property
    def cached_moments(self) -> tuple[np.ndarray, float, np.ndarray]:
        """Mean of X, mean variance of its features, and largest ``|x − origin|`` of each feature."""
        if self.known_moments is None:
            self.moments()
        assert self.known_moments is not None
        return self.known_moments

    @cached_property
    def most_weight(self) -> float | None:
        """The largest weight; None if all weights are 1."""
        return None if self.sample_weight is None else float(abs(self.sample_weight).max())

    @cached_property
    def weights_alike(self) -> bool:
        """True if the smallest nonzero weight is large enough that one fixed-point scale represents all weights."""
        with self:
            return self.sample_weight is None or are_alike(self.sample_weight)

    @cached_property
    def _typical_rows(self) -> tuple[np.ndarray, float] | None:
        return typical_rows(self.rows_as_read(sampled_rows(self.n_samples)), *self.cached_moments[1:])


def are_alike(weights: Any) -> bool:
    """Return True if one fixed-point scale represents all nonzero weights, (n,), in host memory or on a GPU."""
    weights = abs(weights[weights != 0])
    return not weights.size or float(weights.min()) >= _LEAST_WEIGHT * float(weights.max())
