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
        X, or its rows in order, each on its GPU; whole chunks, except the last.
    label : callable
        See `Label`.
    """

    def __init__(self, data: Data, k: int, shards: Sequence[DeviceData], label: Label) -> None:
        super().__init__(data, shards[0].most_weight, k, shards)
        self._shards, self._label = shards, label

    def _compare(self, points: np.ndarray, numbers: np.ndarray) -> None:
        labels: Sequence[Any] = self._nearest
        if len(numbers) > 1:  # all are nearest to the first sample
            labels = self._label(np.concatenate([points, np.repeat(points[-1:], self._k - len(points), axis=0)]))
        for shard, *arrays in zip(self._shards, labels, self._closest, self._nearest, strict=True):
            with shard:
                _update(shard, points, numbers, *arrays)


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
