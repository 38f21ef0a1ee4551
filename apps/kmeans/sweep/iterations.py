"""Lloyd iterations of several fits on a GPU: four launches each, in which all fits that go on take part.

    sweep/assign.cuh → sweep/rescore.cuh → scatter_add_fits → update_fits (sweep/update.cuh)

In the first iteration every row gets a label, and sweep/first_sums.cuh adds up all rows.

Each fit has the bits that it has alone. Labels are certified, so they do not depend on the product that found the
candidates; cluster sums are integers, which may be added in any order; and new centers are computed by the same code.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tsapps.apps.kmeans.assign.plan import ARGMIN, tensor_error
from tsapps.apps.kmeans.data.device_data import DeviceData
from tsapps.apps.kmeans.data.load import load_kernels, types_of
from tsapps.apps.kmeans.data.plan import CENTER_THREADS, lanes_of_row, log2_lanes
from tsapps.apps.kmeans.engines.device_step import RESCORE_THREADS
from tsapps.apps.kmeans.engines.small_k_step import RESIDENT_BLOCKS
from tsapps.apps.kmeans.inertia.from_sums import inertias_of_sums, may_use_sums
from tsapps.apps.kmeans.inertia.launch import sum_terms
from tsapps.apps.kmeans.results import Run
from tsapps.apps.kmeans.sweep.buffers import FitBuffers
from tsapps.apps.kmeans.sweep.plan import (
    ALL_FITS,
    FITS_TO_ADD,
    FITS_TO_LABEL,
    FITS_TO_RESCORE,
    FitsPlan,
    all_rows_plan,
)
from tsapps.apps.kmeans.update.fixed_point import columns_of_block, integers_of
from tsapps.kernels.arrays import address, to_host
from tsapps.kernels.gemm import sizes_of
from tsapps.kernels.plan.mma import ELEMENT
from tsapps.kernels.runtime.launch import structure
from tsapps.kernels.runtime.machine import Launch

__all__ = ["Iterations"]

# Threads per block of the kernels that add rows up, blocks per multiprocessor of the one that adds lists, and threads
# per block of the one that writes the first labels.
_ADD_THREADS, _ADD_BLOCKS, _PLACE_THREADS = 512, 2, 256
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
        self._all_rows = all_rows_plan(d, sum(plan.numbers), self._integers.digits, data.gpu)
        self._place, self._add_all = load_kernels(
            machine,
            "sweep/first_sums.cuh",
            "place_labels",
            f"add_all_rows<{types}, {self._integers.digits}, {weighted}, {self._all_rows.sums}>",
        )
        self._label.max_dynamic_shared_size_bytes = plan.product.shared_bytes
        self._add_all.max_dynamic_shared_size_bytes = self._all_rows.shared_bytes
        self._add.max_dynamic_shared_size_bytes = self._integers.shared_bytes
        self._buffers = FitBuffers(data, plan, self._half_copy.placement)

    def bind(self, tol: float) -> None:
        """Bind the launches of even and odd iterations, and those before the first; `tol` as for `single_run`."""
        of, machine, plan = self._buffers, self._data.machine, self._plan
        self._tol = tol
        for array, byte in ((of.labels, 0xFF), (of.sums, 0)):
            machine.fill(array, byte)
        arguments = of.update_args(tol)
        self._arguments = machine.on_gpu(arguments.view(np.uint8))  # (3, bytes of all fits)
        fits, threads = len(plan.numbers), (CENTER_THREADS,)
        self._first = machine.bind(self._prepare, (max(plan.columns), fits), threads, (self._arguments[0],))
        lists, chunks = self._fits_to_add()
        self._label_rows, self._add_rows = self._bind_label(), self._bind_add(lists, chunks)
        self._launches = [
            [
                self._label_rows,
                self._bind_rescore(now),
                self._add_rows,
                machine.bind(self._update, (max(plan.numbers), fits), threads, (self._arguments[1 + now], of.stopped)),
            ]
            for now in (0, 1)
        ]
        label, rescore, _, update = self._launches[0]
        self._first_launches = [label, rescore, *self._bind_add_all(lists), update]
        self._events = [machine.event() for _ in range(_AHEAD)]

    def run(
        self, starts: Sequence[np.ndarray], max_iter: int, report: Report | None = None
    ) -> list[tuple[Run, np.ndarray] | None]:
        """Iterate from initial centers, (k, d) of each fit, until all fits converge or `max_iter`; see `single_run`.

        It is called once, after `bind`.

        Returns
        -------
        list
            The result of each fit, and the sizes of its clusters, (k,), int64. Labels are parts of one array on the
            GPU. None for a fit that left a cluster empty: it ended there.
        """
        self._buffers.given[...] = np.concatenate(starts)
        try:
            ended = self._iterate(max_iter, report)
        finally:
            self._data.machine.current_stream().synchronize()  # iterations in flight still write to the buffers
        self._label_finally(ended)
        return self._runs(ended)

    def _iterate(self, max_iter: int, report: Report | None) -> list[_Ended]:
        """Return the last iteration of each fit."""
        self._first()
        numbers, outcomes = self._plan.numbers, self._buffers.outcomes
        going, ended, launched = np.ones(len(numbers), bool), dict[int, _Ended](), 0
        for known in range(max_iter):
            for count in range(launched, min(known + _AHEAD, max_iter)):
                for launch in self._launches[count % 2] if count > 0 else self._first_launches:
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
        return [one for _, one in sorted(ended.items())]

    def _bind_label(self) -> Launch:
        of, plan, half_copy = self._buffers, self._plan, self._half_copy
        n, d = self._data.source.shape
        first = structure(
            ARGMIN,
            offsets=of.offsets,
            center_stats=of.center_stats,
            norms=half_copy.norms,
            labels=of.labels,
            entries=of.entries,
            counts=of.counts,
            stopped=of.stopped,
            capacity=plan.capacity,
            n=n,
            ahead=plan.product.teams * plan.lists * plan.product.tile_m,
            tensor_error=tensor_error(d),
            rounding=half_copy.rounding,
        )
        given = np.zeros((), FITS_TO_LABEL)
        given["first"], given["count"] = first, of.fits
        given["tiles_apart"] = plan.stride // plan.product.tile_m
        given["k"][: of.fits], given["first_block"][: of.fits] = plan.numbers, of.columns // 8
        a, b, work = sizes_of(plan.product, plan.problem)
        a["data"], b["data"] = address(half_copy.rows), address(of.centers_half)
        arguments, sizes = (a[()], b[()], work, given[()]), ((plan.lists,), (plan.product.threads,))
        return self._data.machine.bind(self._label, *sizes, arguments, plan.product.shared_bytes)

    def _of_all_lists(self) -> dict[str, Any]:
        """Return the fields of FITS_TO_RESCORE and FITS_TO_ADD that are the same for all fits."""
        of, plan = self._buffers, self._plan
        return {
            "stopped": of.stopped,
            "counts": of.counts,
            "capacity": plan.capacity,
            "count": of.fits,
            "lists": plan.lists,
        }

    def _bind_rescore(self, buffer: int | np.ndarray) -> Launch:
        """Return the launch that rescores the rows of each fit, with its centers in one of the two buffers."""
        of, plan = self._buffers, self._plan
        given = _structure(FITS_TO_RESCORE, **self._of_all_lists())
        one = given["at"][: of.fits]
        one["centers"], one["k"] = of.centers_at(buffer), plan.numbers
        for name, addresses in of.each("entries").items():
            one[name] = addresses
        grid = (max(of.fits, self._data.gpu.multiprocessors * RESIDENT_BLOCKS),)
        return self._data.machine.bind(self._rescore, grid, (RESCORE_THREADS,), (of.rows, given[()]))

    def _bind_add(self, lists: Any, chunks: int) -> Launch:
        """Return the launch that adds up lists; arguments are the results of `_fits_to_add`."""
        of, data = self._buffers, self._data
        grid = max(of.fits, data.gpu.multiprocessors * _ADD_BLOCKS // chunks), chunks
        arguments = of.rows, of.scales, lists
        return data.machine.bind(self._add, grid, (_ADD_THREADS,), arguments, self._integers.shared_bytes)

    def _bind_add_all(self, lists: Any) -> list[Launch]:
        """Return the launches of the first iteration in place of those of `_bind_add`."""
        of, plan, data, all_rows = self._buffers, self._plan, self._data, self._all_rows
        given = _structure(ALL_FITS, labels=of.labels, sums=of.sums, labels_apart=plan.stride, count=of.fits)
        given["first_cluster"][: of.fits] = of.first_clusters
        given["clusters"], given["columns"] = sum(plan.numbers), all_rows.columns
        given["log2_lanes"] = log2_lanes(min(data.n_features, all_rows.columns))
        arguments = of.rows, of.scales, np.uint32(data.n_samples), given[()]
        bind, threads = data.machine.bind, (_ADD_THREADS,)
        return [
            bind(self._place, (plan.lists, of.fits), (_PLACE_THREADS,), (lists,)),
            bind(self._add_all, all_rows.grid, threads, arguments, all_rows.shared_bytes),
        ]

    def _fits_to_add(self) -> tuple[Any, int]:
        """Return the argument of kernels that add up lists, and the number of blocks for all columns of the sums."""
        of, plan, data = self._buffers, self._plan, self._data
        columns, chunks = columns_of_block(data.n_features, max(plan.numbers), self._integers.digits)
        given = _structure(
            FITS_TO_ADD,
            **self._of_all_lists(),
            columns=columns,
            log2_lanes=log2_lanes(min(data.n_features, columns)),
        )
        one = given["at"][: of.fits]
        one["k"] = plan.numbers
        for name, addresses in of.each("entries", "labels", "n_reassigned").items():
            one[name] = addresses
        one["sums"] = of.at_clusters("sums")
        return given[()], chunks

    def _label_finally(self, ended: Sequence[_Ended]) -> None:
        """Label the rows of each fit whose last iteration changed labels by the centers that follow."""
        of = self._buffers
        done = [bool(one.is_strict or one.outcome["empty"]) for one in ended]
        if all(done):
            return
        of.flags[...] = done
        self._data.machine.copy(of.stopped, of.flags)
        rescore = self._bind_rescore(np.array([one.following for one in ended]))
        for launch in (self._label_rows, rescore, self._add_rows):
            launch()

    def _runs(self, ended: Sequence[_Ended]) -> list[tuple[Run, np.ndarray] | None]:
        of, data, numbers = self._buffers, self._data, self._plan.numbers
        clusters = [of.clusters_of(fit) for fit in range(of.fits)]
        centers = data.xp.concatenate(
            [of.centers[one.following, own] for one, own in zip(ended, clusters, strict=True)]
        )
        all_terms = to_host(sum_terms(data.machine, of.sums, of.units, centers))
        all_centers, terms = to_host(centers), [all_terms[own] for own in clusters]
        inertias = inertias_of_sums(data, terms) if may_use_sums(data, min(numbers)) else [None] * len(numbers)
        found = list[tuple[Run, np.ndarray] | None]()
        for fit, (k, one, own, inertia) in enumerate(zip(numbers, ended, clusters, inertias, strict=True)):
            if one.outcome["empty"]:
                found.append(None)
                continue
            labels, here = of.labels[fit, : data.n_samples], all_centers[own].copy()
            if inertia is None or not may_use_sums(data, k):
                inertia = data.inertia(here, labels)
            converged = one.is_strict or float(one.outcome["shift"]) <= self._tol
            weighted = data.sample_weight is not None
            sizes = data.count_labels(labels, k) if weighted else terms[fit][:, 0].astype(np.int64)
            found.append((Run(labels, here, inertia, one.iteration + 1, converged), sizes))
        return found


def _structure(dtype: np.dtype, **fields: Any) -> np.ndarray:
    """Return a structure with these fields, where an array stands for its address, and zero in the others."""
    given = np.zeros((), dtype)
    for name, value in fields.items():
        given[name] = value if isinstance(value, int) else address(value)
    return given
