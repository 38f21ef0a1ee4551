"""`DeviceData`: X on a GPU, copied, read in place, or streamed from the host; its passes launch CUDA kernels.

Reductions have a fixed order, and no floating-point sum uses atomics, so results have the same bits on every run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np

from tsapps.apps.kmeans.assign.large_k_plan import ResidentPlan
from tsapps.apps.kmeans.data.gpu_rows import GpuRows
from tsapps.apps.kmeans.data.half_copy import HalfCopy
from tsapps.apps.kmeans.data.labels import launch_over_labels
from tsapps.apps.kmeans.data.load import is_vectorizable, pass_kernel
from tsapps.apps.kmeans.data.moments import partial_moments, rounded_moments, total_moments
from tsapps.apps.kmeans.data.own_distances import bind_distances
from tsapps.apps.kmeans.data.plan import PASS_THREADS, row_groups, vector_of
from tsapps.apps.kmeans.data.rows import ArrayRows, Rows
from tsapps.apps.kmeans.data.shard import Shard, Statistics
from tsapps.apps.kmeans.data.split_operand import SplitOperand
from tsapps.apps.kmeans.inertia.launch import partial_inertia, total_inertia
from tsapps.apps.kmeans.inertia.plan import RunningSums
from tsapps.kernels.arrays import to_host
from tsapps.kernels.plan.mma import ELEMENT
from tsapps.kernels.runtime.machine import Machine
from tsapps.kernels.runtime.pin_in_place import PinningError

__all__ = ["DeviceData"]

T = TypeVar("T")

# Number of points per launch of point_distances (POINTS in passes.cuh).
_POINTS = 8


class DeviceData(GpuRows):
    """X on a GPU; see `Data`.

    Parameters
    ----------
    source, dtype, sample_weight, machine, **options
        As for `GpuRows`.

    Attributes
    ----------
    on_read : bool
        True if kernels subtract the mean when they read rows; False if rows are centered before a kernel reads them.
    shift : array of shape (d,)
        The point that kernels subtract from the rows that they read: the mean, or zero if rows are already centered.
    """

    most_small, most_drawn = 1 << 19, 1 << 25  # 10 ns per sample, and 7 ns per sample and cluster

    def __init__(self, source: Rows, dtype: np.dtype, sample_weight: Any, machine: Machine, **options: Any) -> None:
        self.on_read = self._centered = False
        self._half_copy: HalfCopy | None = None
        self._split_operand: SplitOperand | None = None
        super().__init__(source, dtype, sample_weight, machine, **options)

    @property
    def temporary_columns(self) -> int:
        """0: the kernels of `moments` and `block_distances` need no temporary arrays."""
        return 0

    def prepared(self, block: Any) -> Any:
        """Return a block that `blocks` yielded, in `dtype`; kernels subtract `shift` from it. See `Data.prepared`."""
        if self.held is None and self.on_read:
            return block.astype(self.dtype, order="C")
        return super().prepared(block)

    def each_block(self, work: Callable[[int, Any], T], n_columns: int) -> Iterator[T]:
        """Yield ``work(first row, block)`` for every block in row order. Rows of a block minus `shift` are centered.

        With `n_columns` = 0, `work` only launches a kernel, blocks may have a 16-bit type instead of `dtype`, and each
        block begins at a multiple of `chunk`.
        """
        if n_columns == 0 and not self._centered:
            on_gpu = not self.over_link and self.rows_on_gpu is not None
            for start, window in self.windows(self.n_samples if on_gpu else self.block_rows(0)):
                if start % self.chunk != 0:
                    raise ValueError(
                        f"{self.source.name}: a block begins at row {start}; expected multiples of {self.chunk}"
                    )
                yield work(start, window)
            return
        for start, block in self.blocks(n_columns):
            yield work(start, self.prepared(block))

    def host_mean(self) -> np.ndarray:
        """Return a copy in host memory of the mean, (d,), that is subtracted from X; see `Data.host_mean`."""
        return self._subtracted.astype(self.dtype) if self.on_read else super().host_mean()

    def first_row(self) -> np.ndarray:
        """Return a sample; see `Data.first_row`."""
        X = None if self.over_link else self.rows_on_gpu  # one copy must not cross two parts of pinned pages
        first: np.ndarray = super().first_row() if X is None else to_host(X[0]).astype(self.dtype)
        return first

    def total_moments(self, parts: Any) -> np.ndarray:
        """Return the moments of X, (3, d), from those of all chunks of X; see `FixedPointData.total_moments`."""
        return to_host(total_moments(self.machine, parts))

    def partial_moments(self, origin: np.ndarray) -> Any:
        """Return the moments of each chunk, shape (3, chunks, d), float64; see `FixedPointData.partial_moments`."""
        chunk, about = self.chunk, self.machine.on_gpu(origin)
        parts = self.xp.empty((3, -(-self.n_samples // chunk), self.n_features))

        def work(start: int, block: Any) -> None:
            first = start // chunk
            of_block = parts[:, first : first - (-len(block) // chunk)]
            partial_moments(self.machine, block, about, chunk, of_block)

        try:
            for _ in self.each_block(work, 0):
                pass
        except PinningError as error:  # this is the first pass, during which pages are pinned
            self.copy_or_stream(error)
            return self.partial_moments(origin)
        return parts

    def center(self, mean: np.ndarray, *, on_read: bool = False) -> None:
        """Subtract `mean` from all rows that are read from now on; see `Data.center`.

        Parameters
        ----------
        mean : numpy.ndarray of shape (d,)
        on_read : bool
            If True, kernels subtract the mean as `shift` when they read rows. Otherwise the mean is subtracted before
            kernels read the rows: from a copy of X on the GPU if that fits, else in each pass.
        """
        self._half_copy = self._split_operand = None
        if on_read != self.on_read:
            self.drawn = None  # from rows that are rounded differently
        self.on_read, self._centered = on_read, not on_read
        if on_read:
            mean = self.subtracted(mean)
            self.mean = self.shift = self.machine.on_gpu(mean.astype(self.dtype))
            self._subtracted = mean.astype(self.dtype).astype(np.float64)
            return
        self.shift, self._subtracted = self.xp.zeros(self.n_features, self.dtype), np.zeros(self.n_features)
        if self.held is None:
            self.hold_numbers()
        super().center(mean)

    @property
    def is_as_read(self) -> bool:
        """True if the GPU holds X, and no pass has centered it: kernels do that when they read rows."""
        return self.rows_on_gpu is not None and not self.over_link and not self._centered

    def rows_here(self) -> Rows:
        """Return X, not centered, from the GPU if it holds that; see `Data.rows_here`."""
        return ArrayRows(self.rows_on_gpu, self.source.name) if self.is_as_read else super().rows_here()

    def each_centered_block(self, work: Callable[[int, Any], T], n_columns: int) -> Iterator[T]:
        """Yield ``work(first row, block)`` for every block of centered rows; see `Data.each_centered_block`."""
        if not self.on_read:
            return self.each_block(work, n_columns)
        return self.each_block(lambda start, block: work(start, block - self.shift), n_columns)

    def square_norm(self) -> float:
        """Return Σ w·‖x‖² over the centered samples, in float64."""
        if self.on_read and self.sample_weight is None:
            return self.n_samples * self.n_features * self.spread()[1] ** 2
        return super().square_norm()

    def half_copy(self, panels: int, *, certifies: bool, split: bool = False) -> HalfCopy:
        """Return the half-precision copy of X − `shift`; cached. See `HalfCopy` for the parameters.

        If X is in host memory, the copy is not made yet: `copy_half` makes it, window by window.
        """
        if self._half_copy is None or (self._half_copy.panels, self._half_copy.is_split) != (panels, split):
            self._half_copy = None  # free the memory of the old copy before the new copy is made
            X, numbers = self.rows_on_gpu, (self.shift, self.dtype, self._typical_rms)
            vector = vector_of(X.itemsize)
            aligned = X.shape[1] % vector == 0 if self.over_link else is_vectorizable(X, vector)
            self._half_copy = HalfCopy(
                len(X), X.dtype, aligned, *numbers, panels, self.machine, certifies=certifies, split=split
            )
            if not self.over_link:
                self._half_copy.copy(X)
        return self._half_copy

    def copy_half(self, rows: Any, first: int = 0) -> None:
        """Make the half-precision copy, which `half_copy` has returned, of the rows of X from `first` on."""
        assert self._half_copy is not None
        self._half_copy.copy(rows, first)

    def window(self, rows: int) -> DeviceData:
        """Return data of `rows` rows on the GPU, not initialized, which passes take for rows of this centered X."""
        array = ArrayRows(self.xp.empty((rows, self.n_features), self.dtype_as_read), self.source.name)
        array.device = self.machine.index
        weights = None if self.sample_weight is None else self.xp.empty(rows, self.dtype)
        shard = Shard(0, max(self.n_total, rows))
        window = DeviceData(array, self.dtype, weights, self.machine, takes_16_bit=True, shard=shard)
        moments, weights_alike = self.cached_moments, self.weights_alike
        window.adopt(Statistics(self.origin, moments, self._typical_rows, self.most_weight, weights_alike))
        window.on_read, window._centered = True, False
        window.mean = window.shift = self.shift
        window._subtracted, window.spherical = self._subtracted, self.spherical
        return window

    def split_operand(self, plan: ResidentPlan) -> SplitOperand:
        """Return the rows of X as a kernel of this plan splits them; cached."""
        if self._split_operand is None or self._split_operand.plan != plan:
            source = self.rows_on_gpu, self._subtracted
            self._split_operand = SplitOperand(*source, self.dtype, self._typical_rms, plan, self.machine)
        return self._split_operand

    @property
    def _typical_rms(self) -> float:
        """The root mean square of the elements of X − `shift`; without the outliers if they dominate it."""
        if self._typical_rows is None:
            return self.spread()[1]
        middle, typical = self._typical_rows
        return float(np.hypot(typical, np.sqrt(np.mean((middle - self._subtracted) ** 2))))

    @property
    def half_copy_bytes(self) -> int:
        """Size in bytes of the cached half-precision copy, and of the norms of split rows."""
        return sum(0 if made is None else made.nbytes for made in (self._half_copy, self._split_operand))

    def count_labels(self, labels: Any, k: int) -> np.ndarray:
        """Return the number of samples with each of k labels, (k,), int64."""
        counts = self.xp.zeros(k, np.int64)
        launch_over_labels(self.machine, "count_labels", labels, np.int32(k), counts)
        return to_host(counts)

    def rounded_moments(self) -> tuple[np.ndarray, float] | None:
        """Return the moments of X with NumPy's rounding; None if X has one column, or if the GPU holds no copy of X."""
        return None if self.held is None or self.n_features == 1 else rounded_moments(self.machine, self.held)

    def block_distances(self, block: Any, centers: Any, labels: Any) -> Any:
        """Return ‖x − c‖² of each row x of a block and the center c of its label, (rows,), in `dtype`."""
        distances = self.xp.empty(len(block), self.dtype)
        bind_distances(self.machine, block, self.shift, centers, labels, distances)()
        return distances

    def inertia(self, centers: np.ndarray, labels: Any, kept: RunningSums | None = None) -> float:
        """Return Σ w·‖x − c‖²; see `Data.inertia`, and for `kept` `inertia.launch.partial_inertia`."""
        total = self.xp.empty(())
        first, *others = self._inertia_of_blocks(centers, labels, kept, total)
        if others:
            total = total_inertia(self.machine, self.xp.concatenate([first, *others]))
        return float(total.item()) / (2 if self.spherical else 1)

    def partial_inertia(self, centers: np.ndarray, labels: Any, kept: RunningSums | None = None) -> Any:
        """Return Σ w·‖x − c‖² of each chunk, shape (chunks,), float64; `kept` as for `inertia`.

        Those of all shards, joined, are the argument of `total_inertia`.
        """
        return self.xp.concatenate(list(self._inertia_of_blocks(centers, labels, kept, None)))

    def _inertia_of_blocks(
        self, centers: np.ndarray, labels: Any, kept: RunningSums | None, total: Any | None
    ) -> Iterator[Any]:
        on_gpu = self.on_device(centers)

        def work(start: int, block: Any) -> Any:
            own, weights = labels[start : start + len(block)], self.weights_of(start, block)
            given = self.machine, block, self.shift, on_gpu, own, weights
            of_block = kept if kept is None or start == 0 else kept.of_more_rows()
            return partial_inertia(*given, n_total=self.n_total, kept=of_block, total=total)

        return self.each_block(work, self.temporary_columns)

    def square_distances(self, points: np.ndarray) -> Any:
        """Return ‖x − p‖² for every point p and sample x, shape (len(points), n), in `dtype`."""
        out = self.xp.empty((len(points), self.n_samples), self.dtype)
        kernel = pass_kernel(self.machine, f"point_distances<{ELEMENT[self.dtype.name]}>")
        groups = []
        for first in range(0, len(points), _POINTS):
            group = np.zeros((_POINTS, self.n_features))
            wanted = points[first : first + _POINTS]
            group[: len(wanted)] = wanted
            groups.append((self.machine.on_gpu(group), len(wanted), out[first:]))

        def work(start: int, block: Any) -> None:
            rows, d = block.shape
            lanes, grid = row_groups(rows, d)
            for group, count, distances in groups:
                sizes = (np.int32(count), np.int64(rows), np.int32(d), lanes, np.int64(self.n_samples))
                arguments = (block, self.shift, group, *sizes, distances[:, start:])
                kernel(grid, (PASS_THREADS,), arguments)

        for _ in self.each_block(work, self.n_features):
            pass
        return out
