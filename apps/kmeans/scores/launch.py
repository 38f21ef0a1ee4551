"""Scores of several clusterings of an array on a GPU: launches of the kernels of this folder."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tsapps.apps.kmeans.data.load import pointer
from tsapps.apps.kmeans.scores.indices import ClusterSums, Labeled, Scores, scores_from, scores_of_each
from tsapps.apps.kmeans.scores.plan import (
    CLUSTERINGS,
    TEMPLATE_PITCHES,
    THREADS,
    SumsPlan,
    points_together,
    row_scores_plan,
    spreads_plan,
    sums_plan,
)
from tsapps.kernels.arrays import address, to_host
from tsapps.kernels.plan.mma import ELEMENT
from tsapps.kernels.runtime.launch import structure
from tsapps.kernels.runtime.machine import Machine

__all__ = ["is_supported", "kernels_of", "scores_on_gpu"]

_FOLDER = Path(__file__).parent
# float64 is not among them: sums of distances have the digits of float32.
_DTYPES = ("float32", "float16", "bfloat16")
# Threads of a block of silhouettes and add_blocks.
_TOTAL_THREADS = 64
# Distances that are below this multiple of the coordinates they are between are rounding errors of the means.
_ROUNDING = 2.0**-21


def is_supported(machine: Machine, X: Any) -> bool:
    """Return True if `scores_on_gpu` takes an array of rows: row-major, of a type in `_DTYPES`."""
    has_bfloat16 = float(machine.gpu.compute_capability) >= 8.0  # in tensor cores
    return bool(has_bfloat16 and X.ndim == 2 and X.flags.c_contiguous and X.dtype.name in _DTYPES)


def kernels_of(element: str, features: int, tiles: Sequence[int]) -> list[tuple[Path, list[str]]]:
    """Return the sources and the names of all kernels for X of a C++ type, kFeatures, and several kTiles."""
    pitches = *(("true", pitch) for pitch in (0, *TEMPLATE_PITCHES)), ("false", 132)
    sums = [f"sums_by_cluster<{element}, {flag}, {each}, {pitch}>" for flag, pitch in pitches for each in tiles]
    totals = [f"{name}<{each}>" for name in ("cluster_means", "silhouettes") for each in tiles]
    return [
        (_FOLDER / file, [f"kmeans::{name}" for name in names])
        for file, names in (
            ("sums_by_cluster.cuh", sums),
            ("row_scores.cuh", [f"row_scores<{element}, {features}>"]),
            ("spreads.cuh", [f"spreads<{element}>"]),
            ("totals.cuh", [*totals, "add_blocks"]),
        )
    ]


def scores_on_gpu(machine: Machine, X: Any, sample: np.ndarray, found: Sequence[Labeled]) -> list[Scores]:
    """Return the scores of clusterings of the same rows, as `scores_of` in by_blocks.py defines them.

    Distances are computed from differences in float32; those from rows of the sample are then rounded by at most 2⁻¹⁷.
    A difference beyond 10¹⁹ has an infinite square, so that scores are not finite. Results have the same bits on every
    run on the same kind of GPU.

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


class _Launches:
    """The launches for clusterings with more than one cluster, and fewer than there are rows.

    Results are parts of one array, so that the host waits and copies once: the sums of features of each cluster and the
    number of its rows, its sum of distances from the mean, the sum of squared distances of each clustering, its sum of
    simplified silhouettes, and the silhouettes of its sample.
    """

    def __init__(self, machine: Machine, X: Any, sample: np.ndarray, found: Sequence[Labeled]) -> None:
        self._machine, self._X, self._sample = machine, X, machine.on_gpu(sample.astype(np.int64))
        self._clusterings = len(found)
        ends = np.cumsum([len(one.centers) for one in found])
        self._columns = int(ends[-1])
        self._slices = [slice(int(end) - len(one.centers), int(end)) for one, end in zip(found, ends, strict=True)]
        # Of the rows: differences from here lose fewer digits.
        self._origin = found[0].centers.mean(axis=0).astype(np.float32)
        self._centers = machine.on_gpu(np.concatenate([one.centers for one in found]).astype(np.float32))
        self._origin_there = machine.on_gpu(self._origin)
        labels = [self._there(one.labels) for one in found]
        table = machine.on_gpu(np.array([address(each) for each in labels], np.uint64))
        starts = machine.on_gpu(np.array([0, *ends], np.int32))
        self._kept = labels, table, starts  # of which the argument has the addresses
        self._argument = structure(CLUSTERINGS, labels=table, starts=starts, count=len(found))
        sizes = self._columns * (X.shape[1] + 1), self._columns + len(found), len(found), len(found) * len(sample)
        self._results = machine.xp.empty(sum(sizes))
        self._ends = np.cumsum(sizes).tolist()

    def _there(self, labels: Any) -> Any:
        if isinstance(labels, np.ndarray):
            return self._machine.on_gpu(labels.astype(np.int32, copy=False))
        return self._machine.xp.ascontiguousarray(labels, np.int32)

    def _part(self, place: int) -> Any:
        return self._results[self._ends[place - 1] if place else 0 : self._ends[place]]

    def scores(self) -> Iterator[Scores]:
        """Launch all kernels, wait, and yield the scores."""
        self._launch_spreads(self._launch_means())
        self._launch_row_scores()
        self._launch_silhouettes()
        host = to_host(self._results)
        sums, totals, simplified, silhouettes = np.split(host, self._ends[:-1])
        (n, d), columns = self._X.shape, self._columns
        sums, silhouettes = sums.reshape(columns, d + 1), silhouettes.reshape(self._clusterings, -1)
        counts, features = sums[:, d], sums[:, :d]
        mean = features[self._slices[0]].sum(axis=0) / n
        apart = features / np.maximum(counts, 1)[:, None] - mean
        # What float32 does not tell apart counts as equal.
        smallest = _ROUNDING * (np.linalg.norm(self._origin + mean) + np.linalg.norm(apart, axis=1))
        apart[np.linalg.norm(apart, axis=1) < smallest] = 0
        spreads = np.where(totals[:columns] > smallest * counts, totals[:columns], 0)
        for place, own in enumerate(self._slices):
            within = float(totals[columns + place]) if spreads[own].any() else 0.0
            of_rows = ClusterSums(n, counts[own], apart[own], spreads[own], within, float(simplified[place]))
            yield scores_from(of_rows, silhouettes[place])

    def _sums_by_cluster(self, sample: Any | None, points: int) -> tuple[SumsPlan, Any]:
        """Launch sums_by_cluster for some rows of the sample, or for features; return the plan and the partial sums."""
        machine, X, (n, d) = self._machine, self._X, self._X.shape
        distances = sample is not None
        sizes = n, d, points, self._columns, self._clusterings
        plan = sums_plan(*sizes, distances=distances, device=machine.gpu)
        flags = f"{str(distances).lower()}, {plan.tiles}, {plan.template_pitch}"
        kernel = self._kernel(f"sums_by_cluster<{self._element}, {flags}>")
        kernel.max_dynamic_shared_size_bytes = plan.shared_bytes
        partial = machine.xp.empty(plan.partial_sums)
        numbers = (np.int32(number) for number in (plan.chunk, plan.pitch, plan.range_tiles))
        given = X, np.int64(n), np.int32(d), pointer(sample), np.int32(points), self._origin_there, self._argument
        kernel(plan.grid, (THREADS,), (*given, *numbers, partial), shared_mem=plan.shared_bytes)
        return plan, partial

    def _launch_means(self) -> Any:
        """Launch what computes sums of features and means, and return the means (columns, pitch)."""
        d, columns = self._X.shape[1], self._columns
        plan, partial = self._sums_by_cluster(None, d + 1)
        pitch = -(-d // 4) * 4
        means = self._machine.xp.empty((columns, pitch), np.float32)
        groups, of_columns, ranges = plan.grid
        sizes = (np.int32(number) for number in (ranges, groups, of_columns, columns, d, pitch))
        grid = (-(-columns * max(d + 1, pitch) // THREADS),)
        kernel = self._kernel(f"cluster_means<{plan.tiles}>", "totals.cuh")
        kernel(grid, (THREADS,), (partial, *sizes, self._origin_there, self._part(0), means))
        return means

    def _launch_spreads(self, means: Any) -> None:
        machine, (n, d), width = self._machine, self._X.shape, self._columns + self._clusterings
        plan = spreads_plan(n, self._columns, self._clusterings, device=machine.gpu)
        sums = machine.xp.empty(plan.blocks * width)
        scratch = machine.xp.empty(plan.scratch) if plan.scratch else None
        kernel = self._kernel(f"spreads<{self._element}>", "spreads.cuh")
        kernel.max_dynamic_shared_size_bytes = plan.shared_bytes
        sizes = np.int64(n), np.int32(d), means, np.int32(means.shape[1])
        given = self._X, *sizes, self._argument, pointer(scratch), sums
        kernel((plan.blocks,), (THREADS,), given, shared_mem=plan.shared_bytes)
        self._add_blocks(sums, plan.blocks, self._part(1))

    def _launch_row_scores(self) -> None:
        machine, (n, d) = self._machine, self._X.shape
        plan = row_scores_plan(n, d, self._clusterings, device=machine.gpu)
        sums = machine.xp.empty(plan.blocks * self._clusterings)
        kernel = self._kernel(f"row_scores<{self._element}, {plan.features}>", "row_scores.cuh")
        kernel.max_dynamic_shared_size_bytes = plan.shared_bytes
        given = self._X, np.int64(n), np.int32(d), self._centers, self._argument, sums
        kernel((plan.blocks,), (THREADS,), given, shared_mem=plan.shared_bytes)
        self._add_blocks(sums, plan.blocks, self._part(2))

    def _launch_silhouettes(self) -> None:
        d, sampled = self._X.shape[1], len(self._sample)
        together = points_together(self._columns)
        for first in range(0, sampled, together):
            some = self._sample[first : first + together]
            plan, partial = self._sums_by_cluster(some, len(some))
            groups, of_columns, ranges = plan.grid
            of_partial = partial, np.int32(ranges), np.int32(groups), np.int32(of_columns)
            of_sample = self._part(0), np.int32(d), some, np.int32(len(some)), self._argument, np.int32(sampled)
            kernel = self._kernel(f"silhouettes<{plan.tiles}>", "totals.cuh")
            grid = -(-len(some) // _TOTAL_THREADS), self._clusterings
            kernel(grid, (_TOTAL_THREADS,), (*of_partial, *of_sample, self._part(3)[first:]))

    def _add_blocks(self, partial: Any, blocks: int, to: Any) -> None:
        grid = (-(-len(to) // _TOTAL_THREADS),)
        self._kernel("add_blocks", "totals.cuh")(
            grid, (_TOTAL_THREADS,), (partial, np.int32(blocks), np.int32(len(to)), to)
        )

    @property
    def _element(self) -> str:
        return ELEMENT[self._X.dtype.name]

    def _kernel(self, name: str, file: str = "sums_by_cluster.cuh") -> Any:
        (kernel,) = self._machine.kernels(_FOLDER / file, f"kmeans::{name}")
        return kernel
