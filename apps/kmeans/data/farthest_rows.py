"""The samples farthest from their centers: launch of farthest_rows.cuh for X in GPU memory."""

from typing import Any, NamedTuple, TypeGuard

import numpy as np

from tsapps.apps.kmeans.data.blocks import Data
from tsapps.apps.kmeans.data.device_data import DeviceData
from tsapps.apps.kmeans.data.load import load_kernels, pointer, types_of
from tsapps.apps.kmeans.data.rows import RescaledRows
from tsapps.kernels.arrays import to_host

__all__ = ["MOST_FARTHEST", "FarthestRows", "farthest_rows", "holds_rows"]

#: Maximum number of samples: for more, sorting takes less time.
MOST_FARTHEST = 1024
# Number of samples that a launch finds; threads per block; bytes of an entry of a list; elements of a found row before
# those of X.
_EACH, _THREADS, _ENTRY_BYTES, _FIELDS = 32, 512, 16, 4


class FarthestRows(NamedTuple):
    """The samples farthest from their centers, farthest first, in host memory.

    Attributes
    ----------
    indices, labels : numpy.ndarray of shape (count,), int64
    weights : numpy.ndarray of shape (count,), float64
    rows : numpy.ndarray of shape (count, d), float64
        The samples, centered.
    """

    indices: np.ndarray
    labels: np.ndarray
    weights: np.ndarray
    rows: np.ndarray


def holds_rows(data: Data) -> TypeGuard[DeviceData]:
    """Return True if a GPU holds all of X, and the held rows minus `shift` have the same bits as `Data.rows`.

    The bits of `RescaledRows` may differ, because `Data.rows` rescales single rows, possibly on the host.
    """
    if not isinstance(data, DeviceData) or isinstance(data.source, RescaledRows) or data.rows_on_gpu is None:
        return False
    return data.held is not None or data.on_read  # otherwise the mean is subtracted before kernels read the rows


def farthest_rows(data: DeviceData, centers: np.ndarray, labels: Any, count: int) -> FarthestRows | None:
    """Return the samples with the largest distances to their centers; of equal distances, the lower index is first.

    Parameters
    ----------
    data : DeviceData
        Data for which `holds_rows` returns True.
    centers : numpy.ndarray of shape (k, d)
    labels : array of shape (n,), int32
    count : int
        Number of samples to return, from 1 to n and at most `MOST_FARTHEST`.

    Returns
    -------
    FarthestRows or None
        None if all distances are zero.
    """
    machine, X, n = data.machine, data.rows_on_gpu, data.n_samples
    # Requested before the distances, so that all kernels compile at the same time.
    (kernel,) = load_kernels(machine, "data/farthest_rows.cuh", f"farthest_rows<{types_of(X, data.dtype)}>")
    (distances,) = data.each_own_distance(centers, labels)
    blocks = min(-(-n // _THREADS), machine.gpu.multiprocessors)
    lists, arrived = machine.workspace(blocks * min(count, _EACH) * _ENTRY_BYTES, 1)
    out = machine.xp.empty((count, _FIELDS + data.n_features))
    given = distances, X, data.shift, labels, pointer(data.sample_weight), np.int64(n), np.int32(data.n_features)
    for first in range(0, count, _EACH):
        some = np.int32(first), np.int32(min(count - first, _EACH))
        kernel((blocks,), (_THREADS,), (*given, *some, lists, arrived, out))
    found = to_host(out)  # so small that pinned memory would not copy faster
    if found[0, 1] == 0:
        return None
    return FarthestRows(found[:, 0].astype(np.int64), found[:, 2].astype(np.int64), found[:, 3], found[:, _FIELDS:])
