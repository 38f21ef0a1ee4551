"""The checks of a protected fit on a GPU.

Of iterations, without the host: see check_iteration.cuh. Of the sums of a run's result: see freivalds.cuh.
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

__all__ = ["FAULTS", "LOST", "StepCheck", "SumsCheck"]

#: What a check finds wrong, in the order in which it tells the host.
FAULTS = (
    "the clusters' sums did not add up to what they did before, or their weights to that of all samples",
    "the next centers were not the means of the sums",
    "samples had labels of centers that are not their nearest",
    "the centers changed after they were computed",
)
#: Which of them leaves no centers to make the iteration again with; what a check says of centers that came to the host.
LOST = 3
# Of the check's arguments those that change: whether totals are known, the first row, and the check's number.
_KNOWN, _FIRST, _NUMBER = 7, 8, 9
_LABELS = {"int8": "signed char", "int32": "int"}


class StepCheck:
    """Checks a step's iterations, some ahead of those whose outcome is known.

    Parameters
    ----------
    data : DeviceData
    buffers : IterationBuffers
    k : int
    weight_scale : float
        The scale of the weights in the sums.
    ahead : int
        Iterations that are launched before the outcome of the first of them is asked for.
    """

    def __init__(self, data: DeviceData, buffers: IterationBuffers, k: int, weight_scale: float, ahead: int) -> None:
        n, d = data.source.shape
        self._machine, self._buffers, self._n, self._k = data.machine, buffers, n, k
        xp, pinned = data.xp, data.machine.pinned
        self._stride, self._turn = stride_of(n), 0
        # What sums over the clusters are to be, and whether they are known but for the weight.
        self._totals, self._known = xp.empty(d + 1, np.uint64), False
        # Of the centers that even iterations begin with, and odd ones: each check writes that of the next.
        self._hashes, self._expected = xp.empty((2, d), np.uint64), pinned(d, np.uint64)
        # The check after which iterations ended.
        self._over = xp.zeros(1, np.int64)
        self._seen = pinned((ahead, len(FAULTS)), np.uint32)
        self._seen_at = [np.uint64(address(place)) for place in self._seen]
        weight = n  # each is the integer 1
        if data.sample_weight is not None:
            scaled = data.sample_weight.astype(np.float64) * weight_scale
            weight = int(xp.rint(scaled).astype(np.int64).sum())
        self._totals[d] = np.uint64(weight % 2**64)
        self._launches: dict[tuple[int, ...], Launch] = {}
        whole = is_aligned(data.rows_on_gpu)
        sizes = -(-n // self._stride), d, k, data.dtype.itemsize, data.gpu.multiprocessors
        self._log2_threads, self._each, self._blocks = check_plan(*sizes, whole=whole == "true")
        types = types_of(data.rows_on_gpu, data.dtype)
        kernel = f"check<{whole}, {types}, {_LABELS[buffers.labels.dtype.name]}>"
        (self._check,) = load_kernels(data.machine, "protect/check_iteration.cuh", kernel)

    def forget(self) -> None:
        """Forget what sums add up to: the next iteration begins with no sample in any cluster."""
        self._known = False

    def begin(self) -> None:
        """Begin to iterate: none has ended."""
        self._machine.fill(self._over, 0)

    def expect(self, centers: np.ndarray) -> None:
        """Say at which centers (k, d) the first iteration is to be, before its check is launched."""
        self._expected[...] = hash_of(centers)
        self._machine.copy(self._hashes[0], self._expected)

    def launch(self, now: Any, following: Any, place: int, parity: int) -> None:
        """Launch the check of the iteration that was launched last.

        Parameters
        ----------
        now, following : array of shape (k, d)
            The centers that it was of, and those that it made.
        place : int
            Where it leaves what it finds for the host, below `ahead`.
        parity : {0, 1}
            Of the iterations since `expect`, 0 for the first.
        """
        self._seen[place] = 0  # it is written to where something is wrong
        key = address(now), place
        if key not in self._launches:
            self._launches[key] = self._bind(now, following, place, parity)
        launch = self._launches[key]
        for argument, value in ((_KNOWN, self._known), (_FIRST, self._turn % self._stride), (_NUMBER, self._turn + 1)):
            launch.change(argument, value)
        launch()
        self._turn += 1
        self._known = True

    def _bind(self, now: Any, following: Any, place: int, parity: int) -> Launch:
        """Return the launch of a check, of which some arguments are changed for each."""
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
        sums = buffers.sums, buffers.units, self._totals, np.int32(0)
        counted = np.int64(0), np.int64(0), self._over, buffers.stopped, self._seen_at[place]
        hashes = structure(HASHES, of_centers=self._hashes[parity], of_next=self._hashes[1 - parity])
        arguments = buffers.rows, now, following, checked, *sums, *counted, hashes
        return self._machine.bind(self._check, (self._blocks,), (THREADS,), arguments)

    def fault(self, place: int) -> str | None:
        """Return what a check found wrong that has ended, or None."""
        return "; ".join(what for what, found in zip(FAULTS, self._seen[place], strict=True) if found) or None

    def lost(self, place: int) -> bool:
        """Tell whether a check found centers wrong that its iteration began with."""
        return bool(self._seen[place][LOST])

    def are_right(self, centers: np.ndarray, parity: int) -> bool:
        """Tell whether centers (k, d) that came to the host, of an iteration of this parity, are those of the check."""
        return bool((hash_of(centers) == to_host(self._hashes[parity])).all())


class SumsCheck:
    """Checks once that the sums which a step keeps are those of its labels, by weights that are drawn for it.

    Parameters
    ----------
    xp : module
        The array library of the buffers.
    buffers : IterationBuffers
    sums : Integers
        The fixed-point format of the sums.

    Attributes
    ----------
    kept : RunningSums
        What the pass that adds up the inertia is to compare with the rows.
    """

    def __init__(self, xp: Any, buffers: IterationBuffers, sums: Integers) -> None:
        (k, d), generator = buffers.centers[0].shape, np.random.default_rng()
        of_clusters = 1 + generator.choice(MOST_WEIGHT, k, replace=False)
        of_columns = generator.integers(1, MOST_WEIGHT, d + 1, endpoint=True) * generator.choice((-1, 1), d + 1)
        self._weights = tuple(xp.asarray(weights, np.int32) for weights in (of_clusters, of_columns))
        # Four words for each of the numbers that an element is: one of two digits, two of three.
        self._found = xp.zeros(1 + 4 * (sums.digits - 1), np.uint64)
        of = {"of_clusters": self._weights[0], "of_columns": self._weights[1], "found": self._found}
        argument = structure(RUNNING_SUMS, sums=buffers.sums, scales=buffers.scales, **of)
        self.kept = RunningSums(sums.digits, argument)

    def fault(self) -> str | None:
        """Return what was found wrong, after the pass; or None."""
        strays, *words = map(int, to_host(self._found))
        if strays:
            return "samples had labels of no cluster"
        return "the sums of its clusters were not those of its labels" if difference_of(words) else None
