"""ABFT checks of a protected fit by kernels of this package.

check_iteration.cuh checks each iteration without host synchronisation. freivalds.cuh checks the running cluster sums
once, at the end of a run.
"""

from typing import Any

import numpy as np

from tsapps.apps.kmeans.data.device_data import DeviceData
from tsapps.apps.kmeans.data.load import is_aligned, load_kernels, types_of
from tsapps.apps.kmeans.inertia.plan import MOST_WEIGHT, RUNNING_SUMS, RunningSums, difference_of
from tsapps.apps.kmeans.protect.checks import stride_of
from tsapps.apps.kmeans.protect.plan import CHECKED, HASHES, THREADS, check_plan, hash_of
from tsapps.apps.kmeans.update.buffers import IterationBuffers
from tsapps.apps.kmeans.update.fixed_point import Integers
from tsapps.kernels.arrays import address, to_host
from tsapps.kernels.runtime.launch import structure
from tsapps.kernels.runtime.machine import Launch

__all__ = ["FAULTS", "LOST", "StepCheck", "SumsCheck", "fixed_point_weight"]

#: Descriptions of the faults that check_iteration.cuh reports, in the order of its fault bits.
FAULTS = (
    "the total of the cluster sums changed, or the cluster weights did not add up to the weight of all samples",
    "the new centers were not the means of the cluster sums",
    "some samples had a label whose center was not the nearest",
    "the centers changed after they were computed",
)
#: Index in `FAULTS` of the fault that leaves no correct centers, so that the iteration cannot be repeated.
LOST = 3
# Positions of the kernel arguments that change with each launch: `known`, `first` and `number` of check_iteration.cuh.
_KNOWN, _FIRST, _NUMBER = 7, 8, 9
_LABELS = {"int8": "signed char", "int32": "int"}


def fixed_point_weight(data: DeviceData, scale: float) -> int:
    """Return the weight of these samples as in the sums, whose weights have this fixed-point scale."""
    if data.sample_weight is None:
        return data.n_samples  # each counts as the integer 1
    scaled = data.sample_weight.astype(np.float64) * scale
    return int(data.xp.rint(scaled).astype(np.int64).sum())


class StepCheck:
    """Launches the check of each iteration of a Lloyd step on the GPU, and reads the outcomes.

    Parameters
    ----------
    data : DeviceData
    buffers : IterationBuffers
    k : int
    weight : int
        The weight of all samples of X, as in the sums; see `fixed_point_weight`.
    ahead : int
        Maximum number of iterations in flight, and number of slots for the outcomes of their checks.
    """

    def __init__(self, data: DeviceData, buffers: IterationBuffers, k: int, weight: int, ahead: int) -> None:
        n, d = data.source.shape
        self._machine, self._buffers, self._n, self._k = data.machine, buffers, n, k
        xp, pinned = data.xp, data.machine.pinned
        self._stride, self._turn = stride_of(n), 0
        # Expected total of each column of the sums over the clusters. The total weight is computed here; the first
        # check writes the other totals.
        self._totals, self._known = xp.empty(d + 1, np.uint64), False
        # Hashes of the centers that even and odd iterations start from. Each check writes those of the next iteration.
        self._hashes, self._expected = xp.empty((2, d), np.uint64), pinned(d, np.uint64)
        # The number of the check of the last iteration, 0 while unknown: `over` of check_iteration.cuh.
        self._over = xp.zeros(1, np.int64)
        self._seen = pinned((ahead, len(FAULTS)), np.uint32)
        self._seen_at = [np.uint64(address(flags)) for flags in self._seen]
        self._totals[d] = np.uint64(weight % 2**64)
        self._launches: dict[tuple[int, ...], Launch] = {}
        whole = is_aligned(data.rows_on_gpu)
        sizes = -(-n // self._stride), d, k, data.dtype.itemsize, data.gpu.multiprocessors
        self._log2_threads, self._each, self._blocks = check_plan(*sizes, whole=whole == "true")
        types = types_of(data.rows_on_gpu, data.dtype)
        kernel = f"check<{whole}, {types}, {_LABELS[buffers.labels.dtype.name]}>"
        (self._check,) = load_kernels(data.machine, "protect/check_iteration.cuh", kernel)

    def forget(self) -> None:
        """Discard the expected totals, because labels and sums were reset; the next check writes new totals."""
        self._known = False

    def begin(self) -> None:
        """Prepare for a new sequence of iterations: the number of the last check is unknown again."""
        self._machine.fill(self._over, 0)

    def expect(self, centers: np.ndarray) -> None:
        """Set the expected centers (k, d) of the first iteration. Call it before that iteration's check is launched."""
        self._expected[...] = hash_of(centers)
        self._machine.copy(self._hashes[0], self._expected)

    def launch(self, now: Any, following: Any, slot: int, parity: int) -> None:
        """Launch the check of the iteration that was launched last.

        Parameters
        ----------
        now : array of shape (k, d)
            The centers of the iteration, on the GPU.
        following : array of shape (k, d)
            The new centers that it computed, on the GPU.
        slot : int
            Slot for the outcome of the check, below `ahead`; see `fault`.
        parity : {0, 1}
            Number of the iteration since `expect`, modulo 2; the first is 0.
        """
        self._seen[slot] = 0  # the kernel only writes flags of faults
        key = address(now), slot
        if key not in self._launches:
            self._launches[key] = self._bind(now, following, slot, parity)
        launch = self._launches[key]
        for argument, value in ((_KNOWN, self._known), (_FIRST, self._turn % self._stride), (_NUMBER, self._turn + 1)):
            launch.change(argument, value)
        launch()
        self._turn += 1
        self._known = True

    def _bind(self, now: Any, following: Any, slot: int, parity: int) -> Launch:
        """Return a bound launch of the check; `launch` sets the arguments that change with each launch."""
        buffers = self._buffers
        checked = structure(
            CHECKED,
            labels=buffers.labels,
            n=self._n,
            stride=self._stride,
            k=self._k,
            log2_threads=self._log2_threads,
            each=self._each,
        )
        sums = buffers.total_sums, buffers.units, self._totals, np.int32(0)
        counted = np.int64(0), np.int64(0), self._over, buffers.stopped, self._seen_at[slot]
        hashes = structure(HASHES, of_centers=self._hashes[parity], of_next=self._hashes[1 - parity])
        arguments = buffers.rows, now, following, checked, *sums, *counted, hashes
        return self._machine.bind(self._check, (self._blocks,), (THREADS,), arguments)

    @property
    def totals(self) -> np.ndarray:
        """Expected total of each column of the sums, (d + 1,), uint64, which the first check has written."""
        return to_host(self._totals)

    def fault(self, slot: int) -> str | None:
        """Return descriptions of the faults in an outcome slot, or None. The check must have ended."""
        return "; ".join(what for what, found in zip(FAULTS, self._seen[slot], strict=True) if found) or None

    def lost(self, slot: int) -> bool:
        """Return True if a check found that its iteration started from wrong centers. The check must have ended."""
        return bool(self._seen[slot][LOST])

    def are_right(self, centers: np.ndarray, parity: int) -> bool:
        """Return True if centers (k, d) on the host have the latest hash for iterations of this parity."""
        return bool((hash_of(centers) == to_host(self._hashes[parity])).all())


class SumsCheck:
    """Freivalds check of the running cluster sums of a Lloyd step against X and the labels. Use each instance once.

    The random factors are drawn at construction. The pass that computes the inertia compares the sums with the rows.

    Parameters
    ----------
    xp : module
        The array library of the buffers.
    buffers : IterationBuffers
    sums : Integers
        Fixed-point format of the sums.

    Attributes
    ----------
    kept : RunningSums
        The cluster sums and the random factors, an argument of `DeviceData.inertia`.
    """

    def __init__(self, xp: Any, buffers: IterationBuffers, sums: Integers) -> None:
        (k, d), generator = buffers.centers[0].shape, np.random.default_rng()
        of_clusters = 1 + generator.choice(MOST_WEIGHT, k, replace=False)
        of_columns = generator.integers(1, MOST_WEIGHT, d + 1, endpoint=True) * generator.choice((-1, 1), d + 1)
        self._weights = tuple(xp.asarray(weights, np.int32) for weights in (of_clusters, of_columns))
        # 1 if a label is invalid, then a 128-bit difference in four words for each part of an element. Elements of two
        # limbs have one part; elements of three limbs have two parts.
        self._found = xp.zeros(1 + 4 * (sums.digits - 1), np.uint64)
        of = {"of_clusters": self._weights[0], "of_columns": self._weights[1], "found": self._found}
        argument = structure(RUNNING_SUMS, sums=buffers.sums, scales=buffers.scales, **of)
        self.kept = RunningSums(sums.digits, argument)

    def fault(self) -> str | None:
        """Return a description of the fault that the inertia pass found, or None. The pass must have been launched."""
        strays, *words = map(int, to_host(self._found))
        if strays:
            return "some samples had an invalid label"
        return "the cluster sums were not those of the labels" if difference_of(words) else None
