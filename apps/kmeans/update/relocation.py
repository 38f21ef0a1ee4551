"""Relocation of empty clusters on a GPU without the host: launches of an iteration (relocate.cuh)."""

from typing import Any

import numpy as np

from tsapps.apps.kmeans.data.device_data import DeviceData
from tsapps.apps.kmeans.data.load import label_argument, load_kernels, types_of
from tsapps.apps.kmeans.data.own_distances import bind_distances
from tsapps.apps.kmeans.update.buffers import IterationBuffers
from tsapps.apps.kmeans.update.plan import MOST_RELOCATED
from tsapps.kernels.plan.mma import ELEMENT
from tsapps.kernels.runtime.machine import Launch

__all__ = ["FAR_ROW", "MOST_ORDERED", "SELECTION", "FarthestRows", "Relocation"]

#: Up to this many samples, the farthest samples come in scikit-learn's order. It is that of `numpy.argpartition`, which
#: needs all distances on the host. Launches relocate clusters of more samples.
MOST_ORDERED = 1 << 18
# Beyond this many samples, their keys would need more bits (farthest_rows.cuh).
_MOST_SAMPLES = (1 << 32) - 1
#: The C++ classes `FarRow` and `Selection` of farthest_rows.cuh, as NumPy structures.
FAR_ROW = np.dtype([("row", "i8"), ("distance", "f8")])
SELECTION = np.dtype([("distance", "u8"), ("rest", "u8"), ("wanted", "i4"), ("ends", "i4")])
# Bits per digit of a key, and digits of a distance by its number of bytes.
_DIGIT_BITS, _DISTANCE_DIGITS = 11, {4: 3, 8: 6}
# Threads per block of the kernels of farthest_rows.cuh and of relocate.cuh; maximum number of blocks of the latter.
_SEARCH_THREADS, _THREADS, _MOST_BLOCKS = 512, 128, 128


class FarthestRows:
    """Launches that find the samples farthest from their centers (farthest_rows.cuh), and their memory on the GPU.

    Parameters
    ----------
    data : DeviceData
        Data of less than 2³² samples, all on the GPU.
    labels : array of shape (n,), int32 or int8
        The labels of the samples when the launches run.

    Attributes
    ----------
    found : array of FAR_ROW, of shape (MOST_RELOCATED,)
        The samples found, the farthest first.
    """

    def __init__(self, data: DeviceData, labels: Any) -> None:
        self._data, self._labels, xp = data, labels, data.xp
        scalar = ELEMENT[data.dtype.name]
        names = f"select_digit<{scalar}>", f"list_farthest_rows<{scalar}>"
        self._select, self._list = load_kernels(data.machine, "update/farthest_rows.cuh", *names)
        blocks = min(-(-data.n_samples // _SEARCH_THREADS), 2 * data.gpu.multiprocessors)
        self._launch = (blocks,), (_SEARCH_THREADS,)
        self._distances, self._histogram = xp.empty(data.n_samples, data.dtype), xp.zeros(1 << _DIGIT_BITS, np.uint32)
        self._selection = xp.empty(SELECTION.itemsize, np.uint8)
        self._listed, self._arrived = xp.zeros((2, 1), np.uint32)
        self._unsorted, self.found = xp.empty((2, MOST_RELOCATED * FAR_ROW.itemsize), np.uint8)

    def bind_distances(self, centers: Any, stopped: Any) -> Launch:
        """Return the first launch, which computes the distances to `centers` (k, d), on the GPU."""
        data, labels = self._data, self._labels
        return bind_distances(data.machine, data.rows_on_gpu, data.shift, centers, labels, self._distances, stopped)

    def bind_search(self, stopped: Any) -> list[Launch]:
        """Return the other launches. They find as many samples as there are clusters to relocate (stopped.cuh)."""
        n, bind, itemsize = self._data.n_samples, self._data.machine.bind, self._data.dtype.itemsize
        digits = _DISTANCE_DIGITS[itemsize] + -(-n.bit_length() // _DIGIT_BITS)
        of_rows = self._distances, np.int64(n)
        counted = np.int32(digits), self._selection, self._histogram, self._arrived, stopped
        selects = (bind(self._select, *self._launch, (*of_rows, np.int32(i), *counted)) for i in range(digits))
        listed = self._selection, self._unsorted, self._listed, self._arrived, self.found, stopped
        return [*selects, bind(self._list, *self._launch, (*of_rows, *listed))]


class Relocation:
    """Launches that move the samples farthest from their centers to empty clusters, and back.

    Parameters
    ----------
    data : DeviceData
    buffers : IterationBuffers
    digits : {2, 3}
        Number of limbs per element of the fixed-point sums.

    Attributes
    ----------
    back : Launch
        The launch that moves the samples back, after the new centers are computed.
    """

    def __init__(self, data: DeviceData, buffers: IterationBuffers, digits: int) -> None:
        self._stopped, self._farthest = buffers.stopped, FarthestRows(data, buffers.labels)
        types = f"{types_of(data.rows_on_gpu, data.dtype)}, {digits}{label_argument(buffers.labels)}"
        (relocate,) = load_kernels(data.machine, "update/relocate.cuh", f"relocate<{types}>")
        of, n_relocated = buffers, data.xp.zeros(1, np.int32)
        given = self._farthest.found, of.empty, of.rows, of.labels, of.scales, of.sums, of.stopped
        there, self.back = (
            data.machine.bind(relocate, (_MOST_BLOCKS,), (_THREADS,), (*given, np.bool_(back), n_relocated))
            for back in (False, True)
        )
        self._search = [*self._farthest.bind_search(of.stopped), there]

    @staticmethod
    def serves(data: DeviceData) -> bool:
        """Return True if launches can relocate clusters of these samples."""
        in_range = MOST_ORDERED < data.n_samples <= _MOST_SAMPLES
        return in_range and data.fits(data.n_samples * data.dtype.itemsize)

    def bind(self, centers: Any) -> list[Launch]:
        """Return the launches that move samples to the empty clusters; `centers` (k, d) are those of the assignment."""
        return [self._farthest.bind_distances(centers, self._stopped), *self._search]
