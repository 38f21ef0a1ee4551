"""`Data`: X on one device, read in blocks of rows, with passes that compute moments, distances and inertia.

The mean of X is subtracted from every row, which reduces cancellation in scores. Sums over samples accumulate in
float64. For the cosine metric, X is `UnitRows`, and the mean is not subtracted; ‖x − c‖²/2 equals 1 − cos(x, c).

`host_data.py` implements `Data` on the CPU, `device_data.py` on a GPU.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any, Self, TypeVar

import numpy as np

from tsapps.apps.kmeans.data.rows import ArrayRows, Rows, UnitRows, check_finite
from tsapps.kernels.arrays import to_host
from tsapps.kernels.system.logs import logger_of, timed

__all__ = ["SMALL", "Data"]

_log = logger_of(__name__)
T = TypeVar("T")

#: Maximum size in bytes of a *small* X. For a small X, running sums over the samples are computed on the host with
#: scikit-learn's float32 rounding, since the last bits of a running sum decide which sample a random number selects.
#: For a larger X, running sums are in float64 on the device of X: in float32 they stop growing after 2²⁴ equal terms.
SMALL = 8 << 20


class Data(ABC):
    """X on one device. Passes read the rows centered, which means minus the mean.

    Parameters
    ----------
    source : Rows
        X, of shape (n, d), of any real dtype.
    dtype : numpy.dtype
        The working type: float32 or float64.
    sample_weight : array of shape (n,), optional
        None means that every sample has weight 1.
    """

    #: The array library, `numpy` or `cupy`.
    xp: Any
    #: The device that computes: "cpu", "cuda:i" or "cuda:i,j,…".
    device: str
    #: Whether sums over a row, and the order of equally distant samples, are those of the kernels of a GPU on every
    #: device; otherwise, on the CPU, they are scikit-learn's.
    as_kernels = False
    #: Maximum number of samples of a small X, and maximum product of samples and clusters for draws with scikit-learn's
    #: rounding.
    most_small: float = np.inf
    most_drawn: float = np.inf

    def __init__(self, source: Rows, dtype: np.dtype, sample_weight: np.ndarray | None) -> None:
        self.source = source
        #: The matrix that passes read if `held` is None: the source, or a copy of the source in the source's dtype.
        self.reader = source
        #: True for the cosine metric, for which rows and centers have norm 1.
        self.spherical = isinstance(source, UnitRows)
        self.n_samples, self.n_features = source.shape
        self.dtype = np.dtype(dtype)
        self.mean = self.xp.zeros(self.n_features, self.dtype)
        self.sample_weight = None if sample_weight is None else self.xp.asarray(sample_weight, dtype=self.dtype)
        #: The point that `moments` subtracts before it sums: the first sample, or zero.
        self.origin = np.zeros(self.n_features, self.dtype)
        #: X on this device in `dtype`, centered; None if every pass reads and converts `reader`.
        self.held: Any = self._borrow()
        self._borrowed: Any = self.held
        self.drawn: Any = None  #: A result of `plusplus.kmeans_plusplus`, a `Drawn`.
        if self.held is None and self.copies():
            self._hold()

    @property
    def is_small(self) -> bool:
        """True if X is small (`SMALL`), so that running sums and random draws have scikit-learn's bits."""
        return self.n_total * self.n_features * self.dtype.itemsize <= SMALL and self.n_total <= self.most_small

    @property
    def n_total(self) -> int:
        """Number of samples of the matrix of which `source` has some rows; by default, it has all rows."""
        return self.n_samples

    def rounds_draws(self, n_clusters: int) -> bool:
        """Return True if k-means++ draws `n_clusters` centers with scikit-learn's rounding: from a small float32 X."""
        drawn = self.n_samples * n_clusters
        return self.is_small and self.dtype == np.float32 and drawn <= self.most_drawn

    def copies(self) -> bool:
        """Return True if enough memory is available to hold a copy of X in `dtype` on this device."""
        return self.fits(self.held_bytes())

    def held_bytes(self) -> int:
        """Return the size in bytes of a copy of X held on this device."""
        return self.n_samples * self.n_features * self.dtype.itemsize

    def _hold(self) -> None:
        """Copy X to this device in the working type, not centered yet."""
        self.held = self._copied(self.dtype)

    def _copied(self, dtype: np.dtype) -> Any:
        """Return a copy of X on this device, not centered."""
        copy = self.xp.empty(self.source.shape, dtype)
        with timed(_log, "copied %s to %s as %s", self.source.name, self.device, dtype):
            for start, block in self.source_blocks(self.block_rows(self.n_features)):
                copy[start : start + len(block)] = block
        return copy

    def _borrow(self) -> Any | None:
        """Return the array of the source if it is on this device, row-major and in the working type; else None."""
        if not isinstance(self.source, ArrayRows):
            return None
        array = self.source.array
        usable = isinstance(array, self.xp.ndarray) and array.dtype == self.dtype and array.flags.c_contiguous
        return array if usable else None

    def __enter__(self) -> Self:
        """Make the device of the data current."""
        return self

    def __exit__(self, *_: object) -> None:  # noqa: B027 (no action on the CPU)
        """Restore the previous device."""

    @abstractmethod
    def fits(self, size: int) -> bool:
        """Return True if a copy of X with `size` bytes leaves enough memory for the computation."""

    @abstractmethod
    def block_rows(self, n_columns: int) -> int:
        """Return the number of rows per block for a pass whose widest temporary array has `n_columns` columns."""

    def source_blocks(self, rows: int) -> Iterator[tuple[int, Any]]:
        """Yield (first row, block) of the source on this device, in the source's own dtype, not centered."""
        return self.reader.blocks(rows)

    def blocks(self, n_columns: int) -> Iterator[tuple[int, Any]]:
        """Yield (first row, block) for X; a pass must call `prepared` on each block before it uses the block.

        `n_columns` is the width of the widest temporary array of the pass; it determines the number of rows per block.
        """
        return self.blocks_of(self.block_rows(n_columns))

    def blocks_of(self, rows: int) -> Iterator[tuple[int, Any]]:
        """Yield what `blocks` does, in blocks of at most `rows` rows."""
        if self.held is None:
            yield from self.source_blocks(rows)
            return
        for start in range(0, self.n_samples, rows):
            yield start, self.held[start : start + rows]

    def prepared(self, block: Any) -> Any:
        """Return a block that `blocks` yielded, converted to `dtype`, row-major and centered."""
        if self.held is not None:
            return block
        prepared = block.astype(self.dtype, order="C", copy=False)
        if prepared is block:  # astype did not copy: `block` belongs to the source, whose arrays are never written
            return block - self.mean
        prepared -= self.mean
        return prepared

    def center(self, mean: np.ndarray) -> None:
        """Subtract `mean`, (d,), from all rows that passes read from now on; the caller's arrays are never written.

        A copy of X held by this object is centered in place. If the held array belongs to the caller, it is copied if
        memory suffices; otherwise each pass subtracts the mean.
        """
        self.mean = self.xp.asarray(mean, dtype=self.dtype)
        if self.held is None or not mean.astype(self.dtype).any():
            return
        if self.held is not self._borrowed:
            self.held -= self.mean
        elif self.fits(self.held.nbytes):
            self.held = self.held - self.mean
        else:
            self.held = None

    def center_once(self, mean: np.ndarray) -> None:
        """Check that X is finite, and subtract `mean`, (d,), for a single pass over it.

        Raises
        ------
        ValueError
            If X has a NaN or an infinity; the message names its row and column.
        """
        self.refuse_non_finite()
        self.center(mean)

    @abstractmethod
    def each_block(self, work: Callable[[int, Any], T], n_columns: int) -> Iterator[T]:
        """Yield ``work(first row, block)`` for every block of centered rows in `dtype`, in row order.

        `n_columns` is the number of columns of the widest temporary array that `work` makes for a block.
        """

    def each_centered_block(self, work: Callable[[int, Any], T], n_columns: int) -> Iterator[T]:
        """Yield what `each_block` yields, if kernels do not subtract the mean on read: rows are always centered."""
        return self.each_block(work, n_columns)

    def weights_of(self, start: int, block: Any) -> Any | None:
        """Return the weights of the samples of a block; None if all are 1."""
        return None if self.sample_weight is None else self.sample_weight[start : start + len(block)]

    def rows(self, indices: np.ndarray) -> np.ndarray:
        """Return the samples with these indices, centered, in host memory; shape (len(indices), d)."""
        rows = to_host(self.reader.rows(np.asarray(indices)))
        return rows.astype(self.dtype) - self.host_mean()

    def host_mean(self) -> np.ndarray:
        """Return a copy in host memory of the mean, (d,), that is subtracted from X."""
        return np.array(to_host(self.mean))

    def rows_here(self) -> Rows:
        """Return X, not centered, on this device or in host memory if it is held there, else its source."""
        return self.reader

    def first_row(self) -> np.ndarray:
        """Return a sample, (d,), in `dtype` and in host memory, as a point from which differences are small."""
        return self.rows(np.array([0]))[0]

    def is_surely_finite(self, block: Any) -> bool:  # noqa: ARG002 (for overrides)
        """Return True if a fast test proves that all elements of a block are finite; False means unknown."""
        return False

    def refuse_non_finite(self) -> None:
        """Raise ValueError if X has a NaN or an infinity; the message names the row and column of the first."""

        def work(start: int, block: Any) -> None:
            if self.is_surely_finite(block):
                return
            check_finite(block, self.source, start)

        for _ in self.each_block(work, self.n_features):
            pass

    def centered(self) -> Any:
        """Return the whole of X, centered, as an array of `xp`; shape (n, d)."""
        return self.xp.concatenate(list(self.each_centered_block(lambda _, block: block.copy(), self.n_features)))

    @property
    def temporary_columns(self) -> int:
        """Number of columns of the widest temporary array of `block_moments` and `block_distances`."""
        return 2 * self.n_features

    def block_moments(self, block: Any, origin: Any) -> tuple[Any, Any]:
        """Return Σ(x − origin) and Σ(x − origin)² over a block's rows, each of shape (d,), float64."""
        with np.errstate(over="ignore", invalid="ignore"):  # `moments` handles overflow
            delta = (block - origin).astype(np.float64, copy=False)
            return delta.sum(axis=0), (delta * delta).sum(axis=0)

    def block_distances(self, block: Any, centers: Any, labels: Any) -> Any:
        """Return ‖x − c‖² of each row x of a block and the center c of its label, (rows,), in `dtype`."""
        delta = block - centers[labels]
        delta *= delta
        return delta.sum(axis=1)

    @abstractmethod
    def square_distances(self, points: np.ndarray) -> Any:
        """Return ‖x − p‖² for every point p and sample x, shape (len(points), n), in `dtype`.

        The distances are computed in float64, as scikit-learn does even for float32 data. They are never negative.
        """

    def moments(self) -> tuple[np.ndarray, float]:
        """Return the mean of X, (d,), and the mean variance of its features, in one pass in float64.

        The first sample is subtracted before summing, which avoids cancellation in data far from zero. If a difference
        of two samples overflows, zero is subtracted instead. The variance may overflow to infinity; see `Frame`.

        Raises
        ------
        ValueError
            If X has a NaN or an infinity; the message names its row and column.
        """
        self.origin = self.first_row()
        total, square = self._sums_about(self.origin)
        if not np.isfinite(total).all():
            self.refuse_non_finite()
            self.origin = np.zeros_like(self.origin)
            total, square = self._sums_about(self.origin)
        total, square = total / self.n_samples, square / self.n_samples
        with np.errstate(over="ignore", invalid="ignore"):
            return total + self.origin, float(np.mean(square - total * total))

    def rounded_moments(self) -> tuple[np.ndarray, float] | None:
        """Return the `moments` of X before centering, with NumPy's rounding in `dtype`; None if not supported.

        Only `DeviceData` returns moments; on the CPU the caller computes them by NumPy.
        """
        return None

    def extents(self, first: np.ndarray) -> tuple[float, float]:
        """Return the largest ``|x − first|/2`` and the largest ``|x|`` of all elements x of rows; `first` is a row.

        Differences are computed from halved values, so that they are finite.
        """
        half = self.xp.asarray(0.5 * first)

        def work(_: int, block: Any) -> tuple[float, float]:
            return float(abs(0.5 * block - half).max()), float(abs(block).max())

        extents, sizes = zip(*self.each_block(work, self.n_features), strict=True)
        return max(extents), max(sizes)

    def _sums_about(self, origin: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return Σ(x − origin) and Σ(x − origin)² over the samples, each of shape (d,), float64."""
        about = self.xp.asarray(origin)
        parts = self.each_block(lambda _, block: self.block_moments(block, about), self.temporary_columns)
        with np.errstate(over="ignore", invalid="ignore"):
            total, square = reduce(lambda both, part: (both[0] + part[0], both[1] + part[1]), parts)
        return to_host(total), to_host(square)

    def on_device(self, points: np.ndarray) -> Any:
        """Return points, (k, d), on this device, in `dtype`."""
        return self.xp.asarray(points, dtype=self.dtype)

    def copy_to_host(self, array: Any) -> np.ndarray:
        """Return a copy in host memory of an array on this device; the copy is valid until the next call."""
        return to_host(array)

    def count_labels(self, labels: Any, k: int) -> np.ndarray:
        """Return the number of samples with each of k labels, (k,), int64."""
        return to_host(self.xp.bincount(labels, minlength=k))

    def inertia(self, centers: np.ndarray, labels: Any) -> float:
        """Return Σ w·‖x − c‖² over samples x and the centers c of their labels, computed from the differences x − c.

        For the cosine metric, return Σ w·(1 − cos(x, c)), which is half of that sum.

        Parameters
        ----------
        centers : numpy.ndarray of shape (k, d)
            The centers, minus the same mean as X.
        labels : array of shape (n,), int32
        """
        parts = self.each_own_distance(centers, labels, weighted=True)
        total = sum(part.sum(dtype=np.float64) for part in parts)
        return float(total) / (2 if self.spherical else 1)

    def own_distances(self, centers: np.ndarray, labels: Any) -> np.ndarray:
        """Return ‖x − c‖² of every sample x and the center c of its label: (n,), in `dtype`, in host memory."""
        distances, end = np.empty(self.n_samples, self.dtype), 0
        for part in self.each_own_distance(centers, labels):
            distances[end : end + len(part)] = to_host(part)
            end += len(part)
        return distances

    def each_own_distance(self, centers: np.ndarray, labels: Any, *, weighted: bool = False) -> Iterator[Any]:
        """Yield the `own_distances` of one block of samples after another, times the weights if `weighted`."""
        device_centers = self.on_device(centers)

        def work(start: int, block: Any) -> Any:
            distances = self.block_distances(block, device_centers, labels[start : start + len(block)])
            weights = self.weights_of(start, block) if weighted else None
            return distances if weights is None else distances * weights

        return self.each_block(work, self.temporary_columns)

    def square_norm(self) -> float:
        """Return Σ w·‖x‖² over the centered samples, in float64."""

        def work(start: int, block: Any) -> Any:
            weights = self.weights_of(start, block)
            norms = (block * block).sum(axis=1)
            return (norms if weights is None else norms * weights).sum(dtype=np.float64)

        return float(sum(self.each_centered_block(work, self.n_features)))

    def totals(self) -> tuple[np.ndarray, np.ndarray]:
        """Return Σ w·(x, 1) and ``Σ |w·(x, 1)|`` over the centered samples, each (d + 1,), float64, by one pass."""
        d, weights = self.n_features, self.sample_weight
        totals, magnitudes = np.zeros(d + 1), np.zeros(d + 1)

        def work(start: int, block: Any) -> tuple[Any, Any]:
            wide = block.astype(np.float64)
            of_block = self.weights_of(start, wide)
            if of_block is not None:
                wide *= of_block[:, np.newaxis]
            return wide.sum(axis=0), abs(wide).sum(axis=0)

        for total, magnitude in self.each_centered_block(work, 4 * d):
            totals[:d] += to_host(total)
            magnitudes[:d] += to_host(magnitude)
        totals[d] = magnitudes[d] = self.n_samples
        if weights is not None:
            totals[d] = magnitudes[d] = float(weights.sum(dtype=np.float64))
        return totals, magnitudes

    def distances(self, points: np.ndarray) -> Any:
        """Return ‖x − p‖ for every sample x and point p, (n, len(points)): the result of `transform`.

        For the cosine metric, return 1 − cos(x, p).
        """
        squares = self.square_distances(points)
        return (squares / 2 if self.spherical else self.xp.sqrt(squares)).T
