"""k-means‖ on the CPU: certified labels (assign/host_labels.py), chunk by chunk (oversampling_chunks.py)."""

from typing import Any

import numpy as np

from tsapps.apps.kmeans.assign.host_labels import MOST_RELATIVE_ERROR, HostCenters
from tsapps.apps.kmeans.data.distances import square_norms
from tsapps.apps.kmeans.data.host_data import HostData, check_memory
from tsapps.apps.kmeans.init.oversampling_chunks import ChunkedOversampling
from tsapps.kernels.system.host_memory import available_host_memory

__all__ = ["HostOversampling"]


class HostOversampling(ChunkedOversampling):
    """The samples of `HostData`; see `ChunkedOversampling`.

    Raises
    ------
    MemoryError
        If the host has no memory for two numbers per sample.
    """

    def __init__(self, data: HostData, k: int) -> None:
        check_memory(data.source.name, data.n_samples * (data.dtype.itemsize + 4), available_host_memory())
        super().__init__(data, data.most_weight, k, [data])
        self._data = data

    def _compare(self, points: np.ndarray, numbers: np.ndarray) -> None:
        centers, wide, numbers = HostCenters(points), points.astype(np.float64), numbers.astype(np.int32)

        # Errors of the scores, of the norms of rows and of the rounded distances, relative to norms and D².
        error, most = (2 * points.shape[1] + 40) * float(np.finfo(points.dtype).eps), float(square_norms(points).max())

        def work(start: int, rows: Any) -> None:
            part, lowest = slice(start, start + len(rows)), np.empty(len(rows), rows.dtype)
            closest, nearest = self._closest[0][part], self._nearest[0][part]
            labels = centers.labels(rows, centers.largest_norms(rows), lowest)
            with np.errstate(over="ignore", invalid="ignore"):
                least = lowest + (1 - error) * square_norms(rows) - error * most
                # Also if a score is not a number, or the bound is not valid.
                some = np.flatnonzero(~((least > closest * (1 + error)) & (error <= MOST_RELATIVE_ERROR)))
            labels = labels[some]
            distances = square_norms(rows[some].astype(np.float64) - wide[labels]).astype(rows.dtype)
            closer = distances < closest[some]
            some = some[closer]
            nearest[some], closest[some] = numbers[labels[closer]], distances[closer]

        for _ in self._data.each_block(work, max(len(points), self._data.temporary_columns)):
            pass
