"""Rescoring of rows without candidates by the triangle inequality: center_distances.cuh and rescore_by_pivot.cuh."""

from typing import Any

import numpy as np

from tsapps.apps.kmeans.data.device_data import DeviceData
from tsapps.apps.kmeans.data.load import load_kernels
from tsapps.apps.kmeans.data.plan import grid_of_lists
from tsapps.kernels.plan.mma import ELEMENT
from tsapps.kernels.runtime.machine import Launch

__all__ = ["Pivots"]

# Minimum n · d · k: an iteration then takes many times as long as two launches that do nothing. Maximum k: the
# distances between 4096 centers take 64 MiB.
_LEAST, _MOST_CENTERS = 1 << 36, 4096
# kTileCenters, and threads per block of the two kernels. Blocks of rescore_by_pivot per multiprocessor.
_TILE_CENTERS, _DISTANCE_THREADS, _THREADS, _BLOCKS = 32, 256, 256, 6


class Pivots:
    """Launches that find the nearest centers of rows without candidates, if there are many of them.

    Parameters
    ----------
    data : DeviceData
    k : int
    lists : int
        Number of lists of ambiguous rows.
    candidates : int
        Maximum number of candidates of a row in a list.
    """

    def __init__(self, data: DeviceData, k: int, lists: int, candidates: int) -> None:
        self._machine, self._sizes, self._lists = data.machine, (np.int32(k), np.int32(data.n_features)), lists
        # The squared distances between centers, and whether they are known.
        self._between = data.xp.empty((k, k), np.float32), data.xp.zeros(1, np.int32)
        tiles = -(-k // _TILE_CENTERS)
        self._tiles = tiles, tiles
        self._grid = grid_of_lists(data.gpu.multiprocessors, lists, _BLOCKS)
        (self._distances,) = load_kernels(data.machine, "assign/center_distances.cuh", "center_distances")
        name = f"rescore_by_pivot<{ELEMENT[data.rows_on_gpu.dtype.name]}, {candidates}>"
        (self._rescore,) = load_kernels(data.machine, "assign/rescore_by_pivot.cuh", name)

    @staticmethod
    def serves(data: DeviceData, k: int) -> bool:
        """Return True if this may save time for data of a float32 working type in k clusters."""
        is_large = data.n_samples * data.n_features * k >= _LEAST and k <= _MOST_CENTERS
        return is_large and data.dtype == np.float32 and data.fits(4 * k * k)

    def bind(
        self, rows: Any, centers: Any, ambiguous: Any, lengths: Any, capacity: np.int64, stopped: Any
    ) -> list[Launch]:
        """Return the launches, between the product and the rescoring of its lists.

        `rows` is a `ROWS` structure, and `centers` (k, d) are on the GPU. `ambiguous`, `lengths` and `capacity`
        describe the lists, as for rescore_large_k.cuh.
        """
        bind, listed = self._machine.bind, (ambiguous, lengths, capacity, stopped)
        pairs = centers, *self._sizes, lengths, np.int32(self._lists), *self._between, stopped
        given = rows, centers, self._sizes[0], *self._between, *listed
        return [
            bind(self._distances, self._tiles, (_DISTANCE_THREADS,), pairs),
            bind(self._rescore, self._grid, (_THREADS,), given),
        ]
