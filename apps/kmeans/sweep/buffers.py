"""Device buffers of several fits in common launches, and the addresses of each fit's part."""

import numpy as np

from tsapps.apps.kmeans.assign.plan import AMBIGUOUS_BYTES
from tsapps.apps.kmeans.data.device_data import DeviceData
from tsapps.apps.kmeans.data.half_copy import Placement
from tsapps.apps.kmeans.sweep.plan import FitsPlan
from tsapps.apps.kmeans.update.fixed_point import integers_of
from tsapps.apps.kmeans.update.plan import MOST_RELOCATED, OUTCOME, UPDATE_CENTERS
from tsapps.kernels.arrays import address

__all__ = ["FitBuffers"]


class FitBuffers:
    """The arrays that the launches read and write: those of all fits, one after the other.

    Attributes
    ----------
    fits : int
        Number of fits.
    labels : array of shape (fits, stride), int32
        The first n labels of a row are those of a fit.
    entries : array of shape (fits, bytes), uint8
        The lists of ambiguous rows.
    given, outcomes, flags : numpy.ndarray
        In pinned memory: initial centers, (clusters of all fits, d); outcomes of even and odd iterations, (2, fits);
        and values for `stopped`, (fits,), int32.
    columns, first_clusters : numpy.ndarray of shape (fits,)
        The first column, and the first cluster, of each fit among those of all.

    For the others, see `IterationBuffers`. `counts`, `center_stats`, `n_reassigned`, `arrived`, `stopped` and `empty`
    have a row for each fit, `centers` (2, clusters of all fits, d), `sums` and `found` one for each cluster, and
    `centers_half` and `offsets` one for each column.
    """

    def __init__(self, data: DeviceData, plan: FitsPlan, placement: Placement) -> None:
        xp, d, machine, integers = data.xp, data.n_features, data.machine, integers_of(data)
        numbers, fits = np.array(plan.numbers), len(plan.numbers)
        self._data, self._plan, self._placement, self.fits = data, plan, placement, fits
        ends = np.cumsum(numbers)
        self.first_clusters, self.columns = ends - numbers, np.cumsum(plan.columns) - plan.columns
        clusters, columns = int(ends[-1]), sum(plan.columns)
        self.labels = xp.empty((fits, plan.stride), np.int32)
        self.entries = xp.empty((fits, plan.lists * plan.capacity * AMBIGUOUS_BYTES), np.uint8)
        self.counts = xp.empty((fits, plan.lists + 1), np.uint32)
        self.center_stats, self.empty = xp.empty((fits, 6), np.float32), xp.empty((fits, MOST_RELOCATED), np.int32)
        self.stopped = xp.zeros((fits, 1), np.int32)
        self.arrived, self.n_reassigned = xp.zeros((2, fits, 1), np.uint32)
        self.centers, self.found = xp.empty((2, clusters, d), data.dtype), xp.empty((clusters, 4))
        self.sums = xp.zeros((clusters, d + 1), np.int64)
        self.centers_half = xp.zeros((columns, placement.padded), np.float16)
        self.offsets = xp.empty(columns, np.float32)
        self.rows, self.scales = data.rows_argument(), machine.on_gpu(integers.scales_of_kernels)
        self.units = machine.on_gpu(1 / integers.scales)
        self.given = machine.pinned((clusters, d), data.dtype)
        self.outcomes, self.flags = machine.pinned((2, fits), OUTCOME), machine.pinned(fits, np.int32)

    def clusters_of(self, fit: int) -> slice:
        """Return the places of a fit's clusters among those of all."""
        first = int(self.first_clusters[fit])
        return slice(first, first + self._plan.numbers[fit])

    def each(self, *names: str) -> dict[str, np.ndarray]:
        """Return the addresses, (fits,), of each fit's row of some arrays."""
        arrays = {name: getattr(self, name) for name in names}
        places = np.arange(self.fits, dtype=np.uint64)
        return {name: address(one) + places * np.uint64(one.strides[0]) for name, one in arrays.items()}

    def at_clusters(self, name: str) -> np.ndarray:
        """Return the addresses, (fits,), of each fit's part of an array with a row for each cluster."""
        array = getattr(self, name)
        return address(array) + self.first_clusters.astype(np.uint64) * np.uint64(array.strides[0])

    def at_columns(self, name: str) -> np.ndarray:
        """Return the addresses, (fits,), of each fit's part of an array with a row for each column."""
        array = getattr(self, name)
        return address(array) + self.columns.astype(np.uint64) * np.uint64(array.strides[0])

    def centers_at(self, buffer: int | np.ndarray) -> np.ndarray:
        """Return the addresses, (fits,), of each fit's centers in one of the two buffers."""
        of_buffer, of_cluster, _ = self.centers.strides
        return address(self.centers) + (self.first_clusters * of_cluster + buffer * of_buffer).astype(np.uint64)

    def update_args(self, tol: float) -> np.ndarray:
        """Return `UPDATE_CENTERS` arguments, (3, fits): first of `prepare_fits`, then of `update_fits`.

        The former reads centers in pinned memory; the latter has arguments of even and of odd iterations.
        """
        plan, placement, given = self._plan, self._placement, np.zeros((3, self.fits), UPDATE_CENTERS)
        each = "center_stats", "arrived", "n_reassigned", "counts", "stopped", "empty"
        for name, addresses in self.each(*each).items():
            given[name] = addresses
        given["sums"], given["found"] = self.at_clusters("sums"), self.at_clusters("found")
        given["offsets"], given["centers_half"]["to"] = self.at_columns("offsets"), self.at_columns("centers_half")
        given["centers_half"]["padded"], given["centers_half"]["height"] = placement.padded, 8
        given["units"], given["certifies"], given["tolerance"] = address(self.units), 1, tol
        given["k"], given["d"], given["lists"] = plan.numbers, self._data.n_features, self.counts.shape[1]
        given["scale"], given["norm_limit"] = placement.scale, placement.norm_limit
        given["centers"] = self.at_clusters("given"), self.centers_at(0), self.centers_at(1)
        given["next"] = self.centers_at(0), self.centers_at(1), self.centers_at(0)
        outcomes = address(self.outcomes) + np.arange(2 * self.fits, dtype=np.uint64) * np.uint64(OUTCOME.itemsize)
        given["outcome"][1:] = outcomes.reshape(2, self.fits)
        return given
