"""k-means‖ on GPUs: the Lloyd step of the fit labels rows with drawn samples, chunk by chunk (oversampling_chunks.py).

So it needs no kernels of its own, and each row's nearest drawn sample is certified as its label is.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tsapps.apps.kmeans.data.blocks import Data
from tsapps.apps.kmeans.data.device_data import DeviceData
from tsapps.apps.kmeans.init.oversampling_chunks import ChunkedOversampling

__all__ = ["StepOversampling"]

#: Labels rows with points, (k, d). Returns the labels, (n,), int32, of each shard, on its GPU.
Label = Callable[[np.ndarray], Sequence[Any]]


class StepOversampling(ChunkedOversampling):
    """The samples of one or several GPUs; see `ChunkedOversampling`.

    Parameters
    ----------
    data : Data
        X.
    k : int
        Number of clusters of the step.
    shards : sequence of DeviceData
        X, or its rows in order, each on its GPU.
    label : callable
        See `Label`.
    """

    def __init__(self, data: Data, k: int, shards: Sequence[DeviceData], label: Label) -> None:
        super().__init__(data, shards[0].most_weight, k)
        self._shards, self._label = shards, label
        self._on_host: np.ndarray | None = None  # D², a copy
        self._arrays = []  # of each shard: D² of its samples, and the indices of the nearest drawn samples
        for shard in shards:
            with shard:
                closest = shard.xp.full(shard.n_samples, np.inf, shard.dtype)
                self._arrays.append((closest, shard.xp.zeros(shard.n_samples, np.int32)))

    def _closest(self) -> np.ndarray:
        if self._on_host is None:
            self._on_host = self._copied(0)
        return self._on_host

    def _nearest(self) -> np.ndarray:
        return self._copied(1)

    def _copied(self, which: int) -> np.ndarray:
        found, end = np.empty(self._n, self._arrays[0][which].dtype), 0
        for shard, arrays in zip(self._shards, self._arrays, strict=True):
            with shard:
                found[end : end + shard.n_samples] = shard.copy_to_host(arrays[which])
            end += shard.n_samples
        return found

    def _compare(self, points: np.ndarray, numbers: np.ndarray) -> None:
        self._on_host = None
        if len(numbers) == 1:  # the first sample
            labels = [arrays[1] for arrays in self._arrays]
        else:
            labels = self._label(np.concatenate([points, np.repeat(points[-1:], self._k - len(points), axis=0)]))
        for shard, arrays, own in zip(self._shards, self._arrays, labels, strict=True):
            with shard:
                _update(shard, points, numbers, own, *arrays)


def _update(
    shard: DeviceData, points: np.ndarray, numbers: np.ndarray, labels: Any, closest: Any, nearest: Any
) -> None:
    """Replace D² and the nearest drawn sample of each sample if it is nearer to the point of its label."""
    xp, end, of_labels = shard.xp, 0, shard.machine.on_gpu(numbers.astype(np.int32))
    for distances in shard.each_own_distance(points, labels):
        part = slice(end, end + len(distances))
        closer = distances < closest[part]
        nearest[part] = xp.where(closer, of_labels[labels[part]], nearest[part])
        closest[part] = xp.minimum(closest[part], distances)
        end += len(distances)
