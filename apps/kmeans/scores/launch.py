"""Scores of several clusterings of an array on a GPU: launches of the kernels of this folder."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tsapps.apps.kmeans.data.load import pointer
from tsapps.apps.kmeans.scores.indices import (
    ClusterSums,
    Labeled,
    Scores,
    columns_of_each,
    indices_of,
    scores_from,
    scores_of_each,
)
from tsapps.apps.kmeans.scores.plan import (
    CLUSTERINGS,
    DISTANCE_ERROR,
    STEPS,
    TEMPLATE_PITCHES,
    THREADS,
    RowScoresPlan,
    SpreadsPlan,
    SumsPlan,
    points_together,
    possible_tiles,
    row_scores_plan,
    spreads_plan,
    sums_plan,
)
from tsapps.kernels.arrays import address, to_host
from tsapps.kernels.gpu_specs import GpuSpec
from tsapps.kernels.plan.mma import ELEMENT
from tsapps.kernels.runtime.launch import structure
from tsapps.kernels.runtime.machine import Machine

__all__ = ["is_supported", "kernels_of", "request_kernels", "scores_on_gpu"]

_FOLDER = Path(__file__).parent
# float64 is not among them: sums of distances have the digits of float32.
_DTYPES = ("float32", "float16", "bfloat16")
# Files of kernels that are not in totals.cuh.
_FILES = {name: f"{name}.cuh" for name in ("sums_by_cluster", "distances_by_cluster", "row_scores", "spreads")}
# Threads of a block of silhouettes and add_blocks.
_TOTAL_THREADS = 64
# Distances from means that are below this multiple of the means are rounding errors of these.
_ROUNDING = 2.0**-20


def is_supported(machine: Machine, X: Any) -> bool:
    """Return True if `scores_on_gpu` takes an array of rows: row-major, of a type in `_DTYPES`."""
    has_bfloat16 = float(machine.gpu.compute_capability) >= 8.0  # in tensor cores
    return bool(has_bfloat16 and X.ndim == 2 and X.flags.c_contiguous and X.dtype.name in _DTYPES)


def kernels_of(element: str, features: int, device: GpuSpec) -> list[tuple[Path, list[str]]]:
    """Return the sources and the names of all kernels for X of a C++ type and kFeatures on a GPU."""
    of_features, of_distances = (possible_tiles(device, distances=distances) for distances in (False, True))
    arguments = [f"true, {tiles}, {pitch}" for tiles in of_distances for pitch in (0, *TEMPLATE_PITCHES)]
    arguments += [f"false, {tiles}, 132" for tiles in of_features]
    sums = [f"sums_by_cluster<{element}, {each}>" for each in arguments]
    products = [f"distances_by_cluster<{element}, {tiles}, {steps}>" for tiles in of_distances for steps in STEPS]
    totals = [f"cluster_means<{tiles}>" for tiles in of_features] + [f"silhouettes<{tiles}>" for tiles in of_distances]
    return [
        (_FOLDER / file, [f"kmeans::{name}" for name in names])
        for file, names in (
            ("sums_by_cluster.cuh", sums),
            ("distances_by_cluster.cuh", products),
            ("row_scores.cuh", [f"row_scores<{element}, {features}>"]),
            ("spreads.cuh", [f"spreads<{element}, {parts}>" for parts in range(3)]),
            ("totals.cuh", [*totals, "add_blocks"]),
        )
    ]


def scores_on_gpu(machine: Machine, X: Any, sample: np.ndarray, found: Sequence[Labeled]) -> list[Scores]:
    """Return the scores of clusterings of the same rows, as `scores_of` in by_blocks.py defines them.

    Distances are computed from differences in float32, or from products whose error is at most `DISTANCE_ERROR`; those
    from rows of the sample are then rounded by at most 2⁻¹⁷. A difference beyond 10¹⁹ has an infinite square, so that
    scores are not finite. Results have the same bits on every run on the same kind of GPU.

    Parameters
    ----------
    machine : Machine
    X : array of shape (n, d)
        On the GPU; see `is_supported`.
    sample : numpy.ndarray of int
        Different indices of rows.
    found : sequence of Labeled
        Labels on the GPU stay there.
    """
    return scores_of_each(found, sample, lambda several: _Launches(machine, X, sample, several).scores())


def request_kernels(machine: Machine, X: Any, numbers: Sequence[int], sampled: int) -> None:
    """Begin to compile the kernels that will score clusterings of X with these numbers of clusters.

    For X, see `is_supported`.
    """
    several = [k for k in numbers if 1 < k < len(X)]
    if several:
        _Plans.of(machine, X, sum(several), len(several), sampled)


def _kernel(machine: Machine, name: str, *arguments: Any) -> Any:
    """Return a kernel by its name and template arguments."""
    named = f"kmeans::{name}<{', '.join(map(str, arguments))}>" if arguments else f"kmeans::{name}"
    (kernel,) = machine.kernels(_FOLDER / _FILES.get(name, "totals.cuh"), named)
    return kernel


class _Plans(NamedTuple):
    """The plans of all launches; `together` rows of the sample are processed at a time."""

    together: int
    features: SumsPlan
    distances: SumsPlan
    spreads: SpreadsPlan
    row_scores: RowScoresPlan

    @classmethod
    def of(cls, machine: Machine, X: Any, columns: int, clusterings: int, sampled: int) -> "_Plans":
        """Plan all launches and request their kernels, which are compiled at the same time if they have to be."""
        (n, d), element, gpu = X.shape, ELEMENT[X.dtype.name], machine.gpu
        together = min(sampled, points_together(columns, device=gpu))
        features, distances = (
            sums_plan(n, d, points, columns, clusterings, distances=distances, device=gpu)
            for points, distances in ((d + 1, False), (together, True))
        )
        spreads = spreads_plan(n, d, columns, clusterings, device=gpu)
        row_scores = row_scores_plan(n, d, clusterings, device=gpu)
        for name, *arguments in (
            (features.kernel, element, features.arguments),
            (distances.kernel, element, distances.arguments),
            ("cluster_means", features.tiles),
            ("spreads", element, spreads.parts),
            ("row_scores", element, row_scores.features),
            ("silhouettes", distances.tiles),
            ("add_blocks",),
        ):
            _kernel(machine, name, *arguments)
        return cls(together, features, distances, spreads, row_scores)


class _Launches:
    """The launches for clusterings with more than one cluster, and fewer than there are rows.

    Results but silhouettes are parts of one array, so that the host waits and copies once: the sums of features of each
    cluster and the number of its rows, its sum of distances from the mean, the sum of squared distances of each
    clustering, and its sum of simplified silhouettes.
    """

    def __init__(self, machine: Machine, X: Any, sample: np.ndarray, found: Sequence[Labeled]) -> None:
        self._machine, self._X, self._sample = machine, X, machine.on_gpu(sample.astype(np.int64))
        d, self._clusterings = X.shape[1], len(found)
        self._slices = columns_of_each(found)
        self._columns = self._slices[-1].stop
        self._plans = _Plans.of(machine, X, self._columns, self._clusterings, len(sample))
        # Of the rows: differences from here lose fewer digits.
        self._origin = found[0].centers.mean(axis=0).astype(np.float32)
        self._centers = machine.on_gpu(
            (np.concatenate([one.centers for one in found]) - self._origin).astype(np.float32)
        )
        self._origin_there = machine.on_gpu(self._origin)
        labels = [self._there(one.labels) for one in found]
        table = machine.on_gpu(np.array([address(each) for each in labels], np.uint64))
        starts = machine.on_gpu(np.array([0, *(own.stop for own in self._slices)], np.int32))
        self._kept = labels, table, starts  # of which the argument has the addresses
        self._argument = structure(CLUSTERINGS, labels=table, starts=starts, count=len(found))
        sizes = self._columns * (d + 1), self._columns + len(found), len(found)
        self._results, self._silhouettes = machine.xp.empty(sum(sizes)), machine.xp.empty((len(found), len(sample)))
        self._ends = np.cumsum(sizes).tolist()

    def _there(self, labels: Any) -> Any:
        if isinstance(labels, np.ndarray):
            return self._machine.on_gpu(labels.astype(np.int32, copy=False))
        is_ready = labels.dtype == np.int32 and labels.flags.c_contiguous
        return labels if is_ready else self._machine.xp.ascontiguousarray(labels, np.int32)

    def _part(self, place: int) -> Any:
        return self._results[self._ends[place - 1] if place else 0 : self._ends[place]]

    def scores(self) -> list[Scores]:
        """Launch all kernels, wait, and return the scores."""
        machine, n = self._machine, len(self._X)
        self._launch_spreads(self._launch_means())
        self._launch_row_scores()
        of_rows, copied = machine.pinned(self._results.shape, np.float64), machine.event()
        machine.copy(of_rows, self._results)
        copied.record()
        try:
            self._launch_silhouettes()
        finally:
            copied.synchronize()
        indices = [indices_of(one) for one in self._sums_of_rows(of_rows)]  # while the GPU computes distances
        return scores_from(n, indices, to_host(self._silhouettes))

    def _sums_of_rows(self, results: np.ndarray) -> Iterator[ClusterSums]:
        """Yield the sums over the rows of each clustering from the results on the host."""
        sums, totals, simplified = np.split(results, self._ends[:-1])
        (n, d), columns = self._X.shape, self._columns
        sums = sums.reshape(columns, d + 1)
        counts, features = sums[:, d], sums[:, :d]
        mean = features[self._slices[0]].sum(axis=0) / n
        apart = features / np.maximum(counts, 1)[:, None] - mean
        # What float32 does not tell apart counts as equal.
        norms = np.linalg.norm(apart, axis=1)
        smallest = _ROUNDING * (np.linalg.norm(mean) + norms)
        apart[norms < smallest] = 0
        spreads = np.where(totals[:columns] > smallest * counts, totals[:columns], 0)
        for own, total, of_centers in zip(self._slices, totals[columns:], simplified, strict=True):
            within = float(total) if spreads[own].any() else 0.0
            yield ClusterSums(n, counts[own], apart[own], spreads[own], within, float(of_centers))

    def _sums_by_cluster(self, plan: SumsPlan, sample: Any | None, points: int) -> Any:
        """Launch the kernel of a plan for some rows of the sample, or for features, and return the partial sums."""
        (n, d), partial = self._X.shape, self._machine.xp.empty(plan.partial_sums)
        given = self._X, np.int64(n), np.int32(d), pointer(sample), np.int32(points), self._origin_there, self._argument
        sizes = (np.float32(0.5 / DISTANCE_ERROR),) if plan.steps else (np.int32(plan.chunk), np.int32(plan.pitch))
        numbers = *sizes, np.int32(plan.range_tiles)
        kernel = self._kernel(plan.kernel, self._element, plan.arguments)
        self._launch(kernel, plan.grid, (*given, *numbers, partial), plan.shared_bytes)
        return partial

    def _launch_means(self) -> Any:
        """Launch what computes sums of features and means, and return the means (columns, pitch)."""
        d, columns, plan, pitch = self._X.shape[1], self._columns, self._plans.features, self._plans.spreads.pitch
        partial = self._sums_by_cluster(plan, None, d + 1)
        means = self._machine.xp.empty((columns, pitch), np.float32)
        groups, of_columns, ranges = plan.grid
        sizes = (np.int32(number) for number in (ranges, groups, of_columns, columns, d, pitch))
        grid = (-(-columns * max(d + 1, pitch) // THREADS),)
        kernel = self._kernel("cluster_means", plan.tiles)
        self._launch(kernel, grid, (partial, *sizes, self._part(0), means))
        return means

    def _launch_spreads(self, means: Any) -> None:
        machine, (n, d), plan = self._machine, self._X.shape, self._plans.spreads
        sums = machine.xp.empty(plan.blocks * (self._columns + self._clusterings))
        scratch = machine.xp.empty(plan.scratch) if plan.scratch else None
        given = self._X, np.int64(n), np.int32(d), self._origin_there, means, np.int32(plan.pitch), self._argument
        self._launch(
            self._kernel("spreads", self._element, plan.parts),
            (plan.blocks,),
            (*given, pointer(scratch), sums),
            plan.shared_bytes,
        )
        self._add_blocks(sums, plan.blocks, self._part(1))

    def _launch_row_scores(self) -> None:
        (n, d), plan = self._X.shape, self._plans.row_scores
        sums = self._machine.xp.empty(plan.blocks * self._clusterings)
        given = self._X, np.int64(n), np.int32(d), self._origin_there, self._centers, self._argument, sums
        self._launch(self._kernel("row_scores", self._element, plan.features), (plan.blocks,), given, plan.shared_bytes)
        self._add_blocks(sums, plan.blocks, self._part(2))

    def _launch_silhouettes(self) -> None:
        d, sampled, together = self._X.shape[1], len(self._sample), self._plans.together
        groups, of_columns, ranges = (np.int32(number) for number in self._plans.distances.grid)
        for first in range(0, sampled, together):
            some = self._sample[first : first + together]
            partial = self._sums_by_cluster(self._plans.distances, some, len(some))
            of_sample = self._part(0), np.int32(d), some, np.int32(len(some)), self._argument, np.int32(sampled)
            grid = -(-len(some) // _TOTAL_THREADS), self._clusterings
            given = partial, ranges, groups, of_columns, *of_sample, self._silhouettes.ravel()[first:]
            self._launch(self._kernel("silhouettes", self._plans.distances.tiles), grid, given, threads=_TOTAL_THREADS)

    def _add_blocks(self, partial: Any, blocks: int, to: Any) -> None:
        given = partial, np.int32(blocks), np.int32(len(to)), to
        self._launch(self._kernel("add_blocks"), (-(-len(to) // _TOTAL_THREADS),), given, threads=_TOTAL_THREADS)

    @property
    def _element(self) -> str:
        return ELEMENT[self._X.dtype.name]

    def _kernel(self, name: str, *arguments: Any) -> Any:
        return _kernel(self._machine, name, *arguments)

    def _launch(self, kernel: Any, grid: tuple, given: tuple, shared_bytes: int = 0, threads: int = THREADS) -> None:
        kernel.max_dynamic_shared_size_bytes = shared_bytes
        kernel(grid, (threads,), given, shared_mem=shared_bytes)
