"""Lloyd iterations of several fits on a GPU: four launches each, in which all fits that go on take part.

    sweep/assign.cuh → sweep/rescore.cuh → scatter_add_fits → update_fits (sweep/update.cuh)

Each fit has the bits that it has alone. Labels are certified, so they do not depend on the product that found the
candidates; cluster sums are integers, which may be added in any order; and new centers are computed by the same code.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tsapps.apps.kmeans.assign.plan import AMBIGUOUS_BYTES, ARGMIN, tensor_error
from tsapps.apps.kmeans.data.device_data import DeviceData
from tsapps.apps.kmeans.data.load import load_kernels, types_of
from tsapps.apps.kmeans.data.plan import CENTER_THREADS, lanes_of_row, log2_lanes
from tsapps.apps.kmeans.inertia.from_sums import inertia_of_sums, may_use_sums
from tsapps.apps.kmeans.inertia.launch import sum_terms
from tsapps.apps.kmeans.results import Run
from tsapps.apps.kmeans.sweep.plan import FITS_TO_ADD, FITS_TO_LABEL, FITS_TO_RESCORE, FitsPlan
from tsapps.apps.kmeans.update.buffers import IterationBuffers, Layout, low_word
from tsapps.apps.kmeans.update.fixed_point import columns_of_block, integers_of
from tsapps.apps.kmeans.update.launch import update_args
from tsapps.apps.kmeans.update.plan import MOST_RELOCATED, OUTCOME, UPDATE_CENTERS
from tsapps.kernels.arrays import address, to_host
from tsapps.kernels.gemm import sizes_of
from tsapps.kernels.plan.mma import ELEMENT
from tsapps.kernels.runtime.launch import structure
from tsapps.kernels.runtime.machine import Launch

__all__ = ["Iterations"]

# Threads per block of the kernels that rescore rows and that add them up, and their blocks per multiprocessor.
_RESCORE_THREADS, _RESCORE_BLOCKS, _ADD_THREADS, _ADD_BLOCKS = 256, 8, 512, 2
# Maximum number of iterations in flight.
_AHEAD = 2

#: Called after each iteration of a fit. Arguments: number of clusters; number of the iteration, from 1; number of
#: reassigned samples; potential (see `Assignment`).
Report = Callable[[int, int, int, float], None]


@dataclass(frozen=True)
class _Ended:
    """The last iteration of a fit: its number, from 0, and its `OUTCOME`."""

    iteration: int
    outcome: Any

    @property
    def following(self) -> int:
        """Index of the buffer with the centers that follow."""
        return 1 - self.iteration % 2

    @property
    def is_strict(self) -> bool:
        """True if the last iteration changed no label."""
        return bool(self.outcome["n_reassigned"] == 0)


class Iterations:
    """The buffers and launches of fits in common launches.

    Parameters
    ----------
    data : DeviceData
        X on a GPU, whose point to subtract is final.
    plan : FitsPlan
        A plan for the shape of X.
    """

    def __init__(self, data: DeviceData, plan: FitsPlan) -> None:
        machine, d = data.machine, data.n_features
        self._data, self._plan, self._integers = data, plan, integers_of(data)
        scalar, types = ELEMENT[data.dtype.name], types_of(data.rows_on_gpu, data.dtype)
        weighted = str(data.sample_weight is not None).lower()
        self._half_copy = data.half_copy(0, certifies=True)
        # All are requested before the first is needed, so that they compile at the same time.
        (self._label,) = machine.kernels(plan.source, plan.kernel)
        (self._rescore,) = load_kernels(
            machine, "sweep/rescore.cuh", f"rescore_fits<{types}, {lanes_of_row(d, data.dtype)}>"
        )
        self._add, self._prepare, self._update = load_kernels(
            machine,
            "sweep/update.cuh",
            f"scatter_add_fits<{types}, {self._integers.digits}, {weighted}>",
            f"prepare_fits<{scalar}>",
            f"update_fits<{scalar}>",
        )
        self._label.max_dynamic_shared_size_bytes = plan.product.shared_bytes
        self._add.max_dynamic_shared_size_bytes = self._integers.shared_bytes
        self._buffers = _Buffers(data, plan, self._half_copy.placement)

    def run(
        self, starts: Sequence[np.ndarray], max_iter: int, tol: float, report: Report | None = None
    ) -> list[tuple[Run, np.ndarray] | None]:
        """Iterate from initial centers, (k, d) of each fit, until all fits converge or `max_iter`; see `single_run`.

        Returns
        -------
        list
            The result of each fit, and the sizes of its clusters, (k,), int64. Labels are parts of one array on the
            GPU. None for a fit that left a cluster empty: it ended there.
        """
        of, machine = self._buffers, self._data.machine
        of.given[...] = np.concatenate(starts)
        machine.fill(of.all_labels, 0xFF)
        machine.fill(of.own, 0)
        self._bind_iterations(tol)
        try:
            ended = self._iterate(max_iter, report)
        finally:
            machine.current_stream().synchronize()  # iterations in flight still write to the buffers
        self._label_finally(ended)
        return self._runs(ended, tol)

    def _iterate(self, max_iter: int, report: Report | None) -> dict[int, _Ended]:
        """Return the last iteration of each fit."""
        self._first()
        numbers, outcomes = self._plan.numbers, self._buffers.outcomes
        going, ended, launched = np.ones(len(numbers), bool), dict[int, _Ended](), 0
        for known in range(max_iter):
            for count in range(launched, min(known + _AHEAD, max_iter)):
                for launch in self._launches[count % 2]:
                    launch()
                self._events[count % 2].record()
            launched = min(known + _AHEAD, max_iter)
            self._events[known % 2].synchronize()
            now = outcomes[known % 2]
            if report is not None:
                for fit in np.flatnonzero(going & (now["empty"] == 0)):
                    one = now[fit]
                    report(numbers[fit], known + 1, int(one["n_reassigned"]), float(one["potential"]))
            ends = going & ((now["stop"] != 0) | (known + 1 == max_iter))
            if ends.any():
                ended |= {int(fit): _Ended(known, now[fit].copy()) for fit in np.flatnonzero(ends)}
                going &= ~ends
                if not going.any():
                    break
        return ended

    def _bind_iterations(self, tol: float) -> None:
        """Bind the launches of even and odd iterations, and the launch before the first."""
        of, machine, plan = self._buffers, self._data.machine, self._plan
        numbers = plan.numbers
        # The arguments of `prepare_fits`, and of `update_fits` in even and odd iterations.
        arguments = np.zeros((3, len(numbers)), UPDATE_CENTERS)
        for fit, fixed in enumerate(of.update_args()):
            arguments[:, fit] = fixed
            own = of.centers_of(fit)
            arguments[0, fit]["centers"], arguments[0, fit]["next"] = address(of.given[own]), address(of.centers[0, own])
            for now in (0, 1):
                one = arguments[1 + now, fit]
                one["centers"], one["next"] = address(of.centers[now, own]), address(of.centers[1 - now, own])
                one["outcome"], one["tolerance"] = address(of.outcomes[now, fit:]), tol
        self._arguments = machine.on_gpu(arguments.view(np.uint8))
        columns, threads = (max(plan.columns), len(numbers)), (CENTER_THREADS,)
        self._first = machine.bind(self._prepare, columns, threads, (self._arguments[0],))
        self._label_rows = self._bind_label()
        self._add_rows = self._bind_add()
        centers = max(numbers), len(numbers)
        self._launches = [
            [
                self._label_rows,
                self._bind_rescore([now] * len(numbers)),
                self._add_rows,
                machine.bind(self._update, centers, threads, (self._arguments[1 + now], of.stopped)),
            ]
            for now in (0, 1)
        ]
        self._events = [machine.event() for _ in range(_AHEAD)]

    def _bind_label(self) -> Launch:
        of, plan, half_copy = self._buffers, self._plan, self._half_copy
        given, first = np.zeros((), FITS_TO_LABEL), 0
        n, d = self._data.source.shape
        for fit, columns in enumerate(plan.columns):
            epilogue = structure(
                ARGMIN,
                offsets=of.offsets[first:],
                center_stats=of.center_stats[fit],
                norms=half_copy.norms,
                labels=of.labels[fit],
                entries=of.entries[fit],
                counts=of.counts[fit],
                stopped=of.stopped,
                capacity=plan.capacity,
                n=n,
                ahead=plan.product.teams * plan.lists * plan.product.tile_m,
                tensor_error=tensor_error(d),
                rounding=half_copy.rounding,
            )
            given["at"][fit] = epilogue, first // 8, columns // 8
            first += columns
        given["stopped"], given["count"] = address(of.stopped), len(plan.numbers)
        given["labels"], given["stride"] = address(of.all_labels), plan.stride
        a, b, work = sizes_of(plan.product, plan.problem)
        a["data"], b["data"] = address(half_copy.rows), address(of.centers_half)
        return self._data.machine.bind(
            self._label,
            (plan.lists,),
            (plan.product.threads,),
            (a[()], b[()], work, given[()]),
            plan.product.shared_bytes,
        )

    def _bind_rescore(self, buffers: Iterable[int]) -> Launch:
        """Return the launch that rescores the rows of each fit, with its centers in one of the two buffers."""
        of, plan, given = self._buffers, self._plan, np.zeros((), FITS_TO_RESCORE)
        for fit, (k, index) in enumerate(zip(plan.numbers, buffers, strict=True)):
            centers = address(of.centers[index, of.centers_of(fit)])
            given["at"][fit] = centers, address(of.entries[fit]), address(of.counts[fit]), k, 0
        given["stopped"], given["capacity"] = address(of.stopped), plan.capacity
        given["count"], given["lists"] = len(plan.numbers), plan.lists
        grid = (self._data.gpu.multiprocessors * _RESCORE_BLOCKS,)
        return self._data.machine.bind(self._rescore, grid, (_RESCORE_THREADS,), (of.rows, given[()]))

    def _bind_add(self) -> Launch:
        of, plan, given, data = self._buffers, self._plan, np.zeros((), FITS_TO_ADD), self._data
        columns, chunks = columns_of_block(data.n_features, max(plan.numbers), self._integers.digits)
        for fit, (k, buffers) in enumerate(zip(plan.numbers, of.fits, strict=True)):
            lists = address(of.entries[fit]), address(of.counts[fit]), address(buffers.labels)
            given["at"][fit] = *lists, address(buffers.sums), address(buffers.n_reassigned), k, 0
        given["stopped"], given["capacity"] = address(of.stopped), plan.capacity
        given["count"], given["lists"], given["columns"] = len(plan.numbers), plan.lists, columns
        given["log2_lanes"] = log2_lanes(min(data.n_features, columns))
        grid = max(1, data.gpu.multiprocessors * _ADD_BLOCKS // chunks), chunks
        arguments = of.rows, of.scales, given[()]
        return data.machine.bind(self._add, grid, (_ADD_THREADS,), arguments, self._integers.shared_bytes)

    def _label_finally(self, ended: dict[int, _Ended]) -> None:
        """Label the rows of each fit whose last iteration changed labels by the centers that follow."""
        of, machine = self._buffers, self._data.machine
        done = [bool(one.is_strict or one.outcome["empty"]) for _, one in sorted(ended.items())]
        if all(done):
            return
        of.flags[...] = done
        machine.copy(of.stopped, of.flags)
        rescore = self._bind_rescore(one.following for _, one in sorted(ended.items()))
        for launch in (self._label_rows, rescore, self._add_rows):
            launch()

    def _runs(self, ended: dict[int, _Ended], tol: float) -> list[tuple[Run, np.ndarray] | None]:
        of, data, numbers = self._buffers, self._data, self._plan.numbers
        parts = [of.centers[ended[fit].following, of.centers_of(fit)] for fit in range(len(numbers))]
        terms = [
            sum_terms(data.machine, buffers.sums, of.units, centers)
            for buffers, centers in zip(of.fits, parts, strict=True)
        ]
        all_terms, centers = to_host(data.xp.concatenate(terms)), to_host(data.xp.concatenate(parts))
        found = list[tuple[Run, np.ndarray] | None]()
        for fit, k in enumerate(numbers):
            one, own = ended[fit], of.centers_of(fit)
            if one.outcome["empty"]:
                found.append(None)
                continue
            labels, here = of.labels[fit], centers[own].copy()
            inertia = inertia_of_sums(data, all_terms[own]) if may_use_sums(data, k) else None
            if inertia is None:
                inertia = data.inertia(here, labels)
            converged = one.is_strict or float(one.outcome["shift"]) <= tol
            weighted = data.sample_weight is not None
            sizes = data.count_labels(labels, k) if weighted else all_terms[own][:, 0].astype(np.int64)
            found.append((Run(labels, here, inertia, one.iteration + 1, converged), sizes))
        return found


class _Buffers:
    """The arrays that the launches read and write: those of all fits, side by side.

    Attributes
    ----------
    fits : list of IterationBuffers
        The arrays of each fit.
    all_labels, labels : array of shape (fits, stride) and (fits, n), int32
    entries : array of shape (fits, bytes), uint8
        The lists of ambiguous rows.
    given, outcomes, flags : numpy.ndarray
        In pinned memory: initial centers, (clusters of all fits, d); outcomes of even and odd iterations, (2, fits);
        and values for `stopped`, (fits,), int32.

    For the others, see `IterationBuffers`: `counts`, `center_stats` and `stopped` have a row for each fit, `centers`
    (2, clusters of all fits, d) and `centers_half` and `offsets` have those of all fits one after the other.
    """

    def __init__(self, data: DeviceData, plan: FitsPlan, placement: Any) -> None:
        xp, d, numbers, machine = data.xp, data.n_features, plan.numbers, data.machine
        fits, integers = len(numbers), integers_of(data)
        self._data, self._layout = data, Layout(placement, 8, 1, plan.lists)
        self._ends = np.cumsum(numbers).tolist()
        clusters, columns = self._ends[-1], sum(plan.columns)
        self.all_labels = xp.empty((fits, plan.stride), np.int32)
        self.labels = self.all_labels[:, : data.n_samples]
        self.entries = xp.empty((fits, plan.lists * plan.capacity * AMBIGUOUS_BYTES), np.uint8)
        self.counts = xp.empty((fits, plan.lists), np.uint32)
        self.center_stats = xp.empty((fits, 6), np.float32)
        self.stopped, self._arrived = xp.zeros(fits, np.int32), xp.zeros(fits, np.uint32)
        self.centers = xp.empty((2, clusters, d), data.dtype)
        self.centers_half = xp.zeros((columns, placement.padded), np.float16)
        self.offsets = xp.empty(columns, np.float32)
        self._found, self._empty = xp.empty((clusters, 4)), xp.empty((fits, MOST_RELOCATED), np.int32)
        self.own = xp.zeros(clusters * (d + 1) + fits, np.int64)
        self.rows, self.scales = data.rows_argument(), machine.on_gpu(integers.scales_of_kernels)
        self.units = machine.on_gpu(1 / integers.scales)
        self.given = machine.pinned((clusters, d), data.dtype)
        self.outcomes, self.flags = machine.pinned((2, fits), OUTCOME), machine.pinned(fits, np.int32)
        self.numbers = numbers
        self.fits = list(self._of_each(plan))

    def centers_of(self, fit: int) -> slice:
        """Return the places of a fit's clusters among those of all."""
        return slice(self._ends[fit] - self.numbers[fit], self._ends[fit])

    def _of_each(self, plan: FitsPlan) -> Iterator[IterationBuffers]:
        d, column, word = self._data.n_features, 0, 0
        for fit, (k, columns) in enumerate(zip(plan.numbers, plan.columns, strict=True)):
            own, clusters = self.own[word : word + k * (d + 1) + 1], self.centers_of(fit)
            yield IterationBuffers(
                rows=self.rows,
                labels=self.labels[fit],
                centers=(self.centers[0, clusters], self.centers[1, clusters]),
                centers_half=self.centers_half[column : column + columns],
                offsets=self.offsets[column : column + columns],
                center_stats=self.center_stats[fit],
                found=self._found[clusters],
                sums=own[:-1].reshape(k, d + 1),
                scales=self.scales,
                units=self.units,
                n_reassigned=low_word(own),
                arrived=self._arrived[fit : fit + 1],
                stopped=self.stopped[fit : fit + 1],
                empty=self._empty[fit],
                counts=self.counts[fit],
                own=own,
                total=own,
            )
            column, word = column + columns, word + len(own)

    def update_args(self) -> Iterator[Any]:
        """Yield the `UPDATE_CENTERS` argument of each fit without the fields that differ between launches."""
        for k, buffers in zip(self.numbers, self.fits, strict=True):
            yield update_args(self._data, k, self._layout, buffers, starts_early=False, certifies=True)
