"""`ShardedData`: X on several GPUs of this process, as shards of consecutive rows; passes run on all GPUs at a time."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from tsapps.apps.kmeans.data.blocks import Data
from tsapps.apps.kmeans.data.device_data import DeviceData
from tsapps.apps.kmeans.data.fixed_point_data import are_alike
from tsapps.apps.kmeans.data.moments import total_moments
from tsapps.apps.kmeans.data.outliers import sampled_rows, typical_rows
from tsapps.apps.kmeans.data.rows import Rows
from tsapps.apps.kmeans.data.shard import Statistics
from tsapps.apps.kmeans.inertia.launch import total_inertia
from tsapps.kernels.arrays import to_host
from tsapps.kernels.runtime.machine import Machine

__all__ = ["ShardedData", "joined"]

T = TypeVar("T")


class ShardedData(Data):
    """X on several GPUs; see `Data`. Arrays with one element per sample are in host memory.

    Parameters
    ----------
    source : Rows
        X, of shape (n, d).
    dtype : {float32, float64}
        The working dtype.
    sample_weight : numpy.ndarray of shape (n,), optional
    shards : sequence of DeviceData
        The rows of X, in order.
    """

    xp = np
    as_kernels = True
    is_small = False  # small X is on one GPU

    def __init__(
        self, source: Rows, dtype: np.dtype, sample_weight: np.ndarray | None, shards: Sequence[DeviceData]
    ) -> None:
        self.shards = shards
        self.device = f"cuda:{','.join(str(shard.machine.index) for shard in shards)}"
        super().__init__(source, dtype, sample_weight)

    def _borrow(self) -> None:
        return None

    def copies(self) -> bool:
        """Return False: the shards hold the rows."""
        return False

    def fits(self, size: int) -> bool:  # noqa: ARG002 (nobody asks)
        """Return False: nothing is copied."""
        return False

    def block_rows(self, n_columns: int) -> int:
        """Return the number of rows per block of the first shard; see `Data.block_rows`."""
        return self.shards[0].block_rows(n_columns)

    def each_block(self, work: Callable[[int, Any], T], n_columns: int) -> Iterator[T]:
        """Yield ``work(first row, block)`` for every block in row order, while the GPU of the block is current."""
        for shard in self.shards:
            with shard:
                yield from shard.each_block(self._numbered(shard, work), n_columns)

    @staticmethod
    def _numbered(shard: DeviceData, work: Callable[[int, Any], T]) -> Callable[[int, Any], T]:
        return lambda start, block: work(shard.shard.first + start, block)

    def slice_of(self, shard: DeviceData) -> slice:
        """Return the indices in X of the rows of a shard."""
        return slice(shard.shard.first, shard.shard.first + shard.n_samples)

    def rows(self, indices: np.ndarray) -> np.ndarray:
        """Return the samples with these indices, centered, in host memory; shape (len(indices), d)."""
        return self._gathered(indices, lambda shard, some: shard.rows(some))

    def _gathered(self, indices: np.ndarray, rows_of: Callable[[DeviceData, np.ndarray], np.ndarray]) -> np.ndarray:
        """Return the rows with these indices, each read from its shard by `rows_of`."""
        indices, found = np.asarray(indices), np.empty((len(indices), self.n_features), self.dtype)
        for shard in self.shards:
            of = self.slice_of(shard)
            here = np.flatnonzero((indices >= of.start) & (indices < of.stop))
            if here.size:
                with shard:
                    found[here] = rows_of(shard, indices[here] - of.start)
        return found

    def first_row(self) -> np.ndarray:
        """Return a sample; see `Data.first_row`."""
        with self.shards[0] as shard:
            return shard.first_row()

    def host_mean(self) -> np.ndarray:
        """Return a copy in host memory of the mean, (d,), that is subtracted from X; see `Data.host_mean`."""
        return self.shards[0].host_mean()

    def refuse_non_finite(self) -> None:
        """Raise ValueError if X has a NaN or an infinity; see `Data.refuse_non_finite`."""
        for shard in self.shards:
            with shard:
                shard.refuse_non_finite()

    def moments(self) -> tuple[np.ndarray, float]:
        """Return the mean of X and the mean variance of its features; see `Data.moments`. The shards adopt them."""
        mean, variance = super().moments()
        typical = None
        if all(shard.rows_on_gpu is not None for shard in self.shards):
            sampled = self._gathered(np.array(sampled_rows(self.n_samples)), _uncentered)
            typical = typical_rows(sampled, variance, self._largest)
        weights, alike, most = self.sample_weight, True, None
        if weights is not None:
            most, alike = float(weights.max()), are_alike(weights)
        statistics = Statistics(self.origin, (mean, variance, self._largest), typical, most, alike)
        for shard in self.shards:
            shard.adopt(statistics)
        return mean, variance

    def _sums_about(self, origin: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        parts = []
        for shard in self.shards:
            with shard:
                parts.append(shard.partial_moments(origin))
        with self.shards[0] as lead:
            total, square, self._largest = to_host(total_moments(lead.machine, self._joined(parts, axis=1)))
        return total, square

    def _joined(self, parts: Sequence[Any], axis: int = 0) -> Any:
        """Return arrays of the shards, concatenated along an axis, on the GPU of the first shard."""
        return joined([shard.machine for shard in self.shards], parts, axis)

    def square_norm(self) -> float:
        """Return Σ w·‖x‖² over the centered samples, in float64."""
        if self.sample_weight is None:
            return self.n_samples * self.n_features * self.shards[0].spread()[1] ** 2
        total = 0.0
        for shard in self.shards:
            with shard:
                total += shard.square_norm()
        return total

    def extents(self, first: np.ndarray) -> tuple[float, float]:
        """Return the largest ``|x − first|/2`` and the largest ``|x|`` of all elements; see `Data.extents`."""
        found = []
        for shard in self.shards:
            with shard:
                found.append(shard.extents(first))
        return max(one for one, _ in found), max(other for _, other in found)

    def each_centered_block(self, work: Callable[[int, Any], T], n_columns: int) -> Iterator[T]:
        """Yield ``work(first row, block)`` for every block of centered rows; see `Data.each_centered_block`."""
        for shard in self.shards:
            with shard:
                yield from shard.each_centered_block(self._numbered(shard, work), n_columns)

    def weights_of(self, start: int, block: Any) -> Any | None:
        """Return the weights of the samples of a block, on its GPU; None if all are 1."""
        if self.sample_weight is None:
            return None
        shard = next(shard for shard in reversed(self.shards) if shard.shard.first <= start)
        return shard.weights_of(start - shard.shard.first, block)

    def inertia(self, centers: np.ndarray, labels: np.ndarray) -> float:
        """Return Σ w·‖x − c‖²; see `Data.inertia`."""
        parts = []
        for shard in self.shards:
            with shard:
                own = shard.machine.on_gpu(labels[self.slice_of(shard)])
                parts.append(shard.partial_inertia(centers, own))
        return self.total_inertia(parts)

    def total_inertia(self, parts: Sequence[Any]) -> float:
        """Return the inertia from the results of `DeviceData.partial_inertia` for each shard."""
        with self.shards[0] as lead:
            total = float(total_inertia(lead.machine, self._joined(parts)).item())
        return total / (2 if self.spherical else 1)

    def each_own_distance(self, centers: np.ndarray, labels: np.ndarray, *, weighted: bool = False) -> Iterator[Any]:
        """Yield the distances of one block of samples after another; see `Data.each_own_distance`."""
        for shard in self.shards:
            with shard:
                own = shard.machine.on_gpu(labels[self.slice_of(shard)])
                yield from shard.each_own_distance(centers, own, weighted=weighted)

    def square_distances(self, points: np.ndarray) -> np.ndarray:
        """Return ‖x − p‖² for every point p and sample x, shape (len(points), n), in `dtype`."""
        found = np.empty((len(points), self.n_samples), self.dtype)
        for shard in self.shards:
            with shard:
                found[:, self.slice_of(shard)] = to_host(shard.square_distances(points))
        return found

    def centered(self) -> np.ndarray:
        """Return the whole of X, centered, in host memory; shape (n, d)."""
        found = np.empty(self.source.shape, self.dtype)
        for shard in self.shards:
            with shard:
                found[self.slice_of(shard)] = to_host(shard.centered())
        return found


def joined(machines: Sequence[Machine], arrays: Sequence[Any], axis: int) -> Any:
    """Return arrays, each on the GPU of one machine, concatenated along an axis on the GPU of the first machine."""
    for machine in machines:
        with machine.current():
            machine.current_stream().synchronize()
    lead = machines[0]
    with lead.current():
        copies = [lead.xp.empty(array.shape, array.dtype) for array in arrays]
        for copy, array in zip(copies, arrays, strict=True):
            lead.copy(copy, array)
        return lead.xp.concatenate(copies, axis=axis)


def _uncentered(shard: DeviceData, indices: np.ndarray) -> np.ndarray:
    """Return rows of a shard as kernels read them, before they subtract `shift`."""
    return to_host(shard.rows_as_read(indices)).astype(shard.dtype)
