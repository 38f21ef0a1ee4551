"""Batched Lloyd iterations and k-means++ on a GPU: buffers, and launches of the kernels in batched/*.cuh."""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from tsapps.apps.kmeans.assign.large_k_plan import MANY_PRODUCTS
from tsapps.apps.kmeans.assign.plan import tensor_error
from tsapps.apps.kmeans.batched.plan import (
    BATCH,
    CANDIDATES,
    KERNELS,
    LIST_BYTES,
    LIST_PARTS,
    PLUSPLUS_ARGS,
    POINTERS,
    SEED_ROWS,
    SETTLE_ROWS,
    STATUS,
    TILE_ROWS,
    BatchPlan,
    center_blocks,
    update_blocks,
    wide_bits,
)
from tsapps.apps.kmeans.data.plan import norm_limit_of
from tsapps.apps.kmeans.empty_clusters import relocate_empty_clusters
from tsapps.apps.kmeans.results import Assignment
from tsapps.kernels.arrays import address, to_host
from tsapps.kernels.plan.mma import ELEMENT
from tsapps.kernels.runtime.launch import structure
from tsapps.kernels.runtime.machine import Launch, Machine

__all__ = ["BatchedLloyd", "random_states"]

_FOLDER = Path(__file__).parents[1]
_PRODUCT = '#include "kernels/tsm2/gemm_wgmma_streamed.cuh"\n#include "apps/kmeans/batched/candidates.cuh"\n'
# Rows per list of candidates. On most data fewer rows are ambiguous; without a list, a row is compared with all
# centers.
_ROWS_OF_LIST = 4
# Number of iterations between two reads of the status by the host: a read takes as long as an iteration of small
# problems.
_ITERATIONS_PER_READ = 4
# make_half_copy: maximum number of blocks per multiprocessor; and minimum number of rows that a block copies at a time.
_BLOCKS, _COPIED_ROWS = 8, 64
# column_moments: maximum number of blocks per problem; and minimum number of rows per block.
_SLICES, _SLICE_ROWS = 64, 256


def random_states(seeds: Sequence[int]) -> Iterator[np.random.RandomState]:
    """Yield ``RandomState(seed)`` for every seed, always the same object: use a state before requesting the next.

    Creating an object takes 0.1 ms. For a thousand problems, that would take longer than fitting them.
    """
    state = np.random.RandomState(0)
    for seed in seeds:
        state.seed(seed)
        yield state


class BatchedLloyd:
    """b K-means problems of n samples, d features and k clusters each, on a GPU.

    Call one of the `start_at` methods, then `iterate`. The result is then in `labels`, ``arrays["iterations"]`` and
    what `final_centers()` and `inertias()` return.

    Parameters
    ----------
    machine : Machine
    X : array of shape (b, n, d), C-contiguous
        float32, float16 or bfloat16, of the machine's array library.
    k : int
    plan : BatchPlan
    max_iter : int
        Maximum number of iterations of a problem.
    tol : float
        Convergence threshold of the squared center shift, relative to the mean variance of the problem's features.
    first : int
        Index of the first problem in the caller's X, for messages.

    Raises
    ------
    ValueError
        If X has a NaN or an infinity; the message names its problem, row and column.
    """

    def __init__(
        self, machine: Machine, X: Any, k: int, plan: BatchPlan, *, max_iter: int, tol: float, first: int = 0
    ) -> None:
        self.machine, self.X, self.k, self.plan, self._first = machine, X, k, plan, first
        self.xp = xp = machine.xp
        # Cache of kernels, because looking up a kernel takes about as long as a launch.
        self._kernels: dict[tuple[str, str, int], tuple[Any, int]] = {}
        b, n, d = self.b, self.n, self.d = X.shape
        arrays = {
            "X": X,
            **{name: xp.empty((b, d), dtype) for name, dtype in (("means", np.float32), ("sum_scales", np.float64))},
            **{name: xp.empty(b, np.float32) for name in ("half_copy_scales", "roundings")},
            "sum_units": xp.empty((b, d)),
            "tolerances": xp.empty(b),
            "narrow": xp.empty(b, np.int32),
            "half_copy": xp.empty((b, plan.rows, plan.padded), np.float16),
            "norms": xp.empty((b, plan.rows), np.float32),
            "labels": xp.full((b, n), -1, np.int32),
            "centers": xp.empty((b, k, d), np.float32),
            "centers_half": xp.zeros((b, plan.columns, plan.center_columns), np.float16),
            "half_squares": xp.full((b, plan.columns), np.inf, np.float32),
            "center_stats": xp.empty((b, 6), np.float32),
            "placed": xp.empty((b, k, 3)),
            "sums": xp.zeros((b, k, d + 1), np.int64),
            "changes": xp.empty((b, n, 2), np.int32),
            **{name: xp.zeros(b, np.uint32) for name in ("counts", "n_reassigned")},
            "status": xp.full(b, STATUS["place"], np.int32),
            "iterations": xp.zeros(b, np.int32),
            "arrived": xp.zeros(b + 1, np.uint32),
            **{name: None if plan.stream is None else xp.zeros(b, np.int32) for name in ("running", "n_running")},
        }
        self.arrays = arrays
        self.labels, self.centers, self.status = arrays["labels"], arrays["centers"], arrays["status"]
        self._used = xp.zeros((b, k), np.bool_)
        self._max_iter = max_iter
        self._batch = structure(
            BATCH,
            **{name: arrays[name] for name in POINTERS},
            n=n,
            rows=plan.rows,
            d=d,
            k=k,
            padded=plan.padded,
            columns=plan.columns,
            max_iter=max_iter,
            tensor_error=tensor_error(d),
            norm_limit=norm_limit_of(d, panels=plan.stream is not None),
            panels=0 if plan.stream is None else plan.stream.row_panels,
            tile_columns=plan.width,
        )
        # Whether lanes can load vectors of eight elements, and the number of rows that a warp loads at a time.
        aligned = d % 8 == 0 and address(X) % 16 == 0
        self._by_rows = f", {str(aligned).lower()}, {16 if plan.padded == 16 else 8}"
        self._prepare(tol)

    def _launch(self, kernel: str, grid: tuple[int, int], *arguments: Any, option: str = "", shared: int = 0) -> None:
        """Launch a kernel of `KERNELS` on all problems.

        `option` is the text of the template arguments after the type of X, and `shared` the dynamic shared memory in
        bytes.
        """
        key = kernel, option, shared
        if key not in self._kernels:
            self._kernels[key] = self._kernel(*key)
        made, threads = self._kernels[key]
        made(grid, (threads,), (self._batch, *arguments), shared_mem=shared)

    def _kernel(self, kernel: str, option: str, shared: int) -> tuple[Any, int]:
        """Return a kernel that may use `shared` bytes of dynamic shared memory, and its threads per block."""
        file, threads = KERNELS[kernel]
        (made,) = self.machine.kernels(_FOLDER / file, f"batched::{kernel}<{ELEMENT[self.X.dtype.name]}{option}>")
        # All batches use the same kernel objects, so a batch of another shape may have raised the limit further.
        if shared > made.max_dynamic_shared_size_bytes:
            made.max_dynamic_shared_size_bytes = shared
        return made, threads or self.plan.update_threads

    def _prepare(self, tol: float) -> None:
        """Compute the means and scales of all problems, and the half-precision copy."""
        xp, (b, n, d) = self.xp, self.X.shape
        slices = min(_SLICES, -(-n // _SLICE_ROWS))
        moments, refused = xp.empty((b, slices, 3, d)), xp.full(1, b, np.int32)
        self._launch("column_moments", (slices, b), moments)
        given = moments, np.int32(slices), np.int32(wide_bits(n)), np.float64(tol), refused
        self._launch("problem_scales", (1, b), *given)
        blocks = min(-(-n // _COPIED_ROWS), -(-self.machine.gpu.multiprocessors * _BLOCKS // b))
        self._launch("make_half_copy", (blocks, b), option=self._by_rows)
        first = int(to_host(refused)[0])
        if first < b:
            self._refuse(first)

    def _refuse(self, problem: int) -> None:
        rows = to_host(self.X[problem]).astype(np.float32)
        row, column = np.argwhere(~np.isfinite(rows))[0]
        raise ValueError(
            f"X: problem {self._first + problem}, row {row}, column {column} is {rows[row, column]}: "
            "K-means needs finite numbers; remove or replace such rows first"
        )

    def start_at(self, centers: Any) -> None:
        """Start at the given centers, (b, k, d), in the units of X (not centered)."""
        self.centers[:] = self.xp.asarray(centers, dtype=np.float32) - self.arrays["means"][:, np.newaxis]

    def start_at_random(self, states: Iterable[np.random.RandomState]) -> None:
        """Start at k random samples of each problem, with scikit-learn's draws."""
        weights = self._probabilities()
        rows = [state.choice(self.n, size=self.k, replace=False, p=weights) for state in states]
        index = self.xp.asarray(np.stack(rows))
        self.start_at(self.X[self.xp.arange(self.b)[:, np.newaxis], index].astype(np.float32))

    def _probabilities(self) -> np.ndarray:
        weights = np.ones(self.n, np.float32)
        return weights / weights.sum()

    def start_at_plusplus(self, states: Iterable[np.random.RandomState]) -> None:
        """Start at centers from greedy k-means++, with scikit-learn's draws."""
        xp, b, k = self.xp, self.b, self.k
        trials = 2 + int(np.log(k))
        # Draw the first samples of all problems at once, by the inverse transform sampling of RandomState.choice.
        running = self._probabilities().astype(np.float64).cumsum()
        running /= running[-1]
        samples, uniforms = np.empty(b), np.empty((b, k - 1, trials))
        for problem, state in enumerate(states):
            samples[problem], uniforms[problem] = state.random_sample(), state.uniform(size=(k - 1, trials))
        tiles = -(-self.n // SEED_ROWS)
        candidates = xp.zeros((b, trials), np.uint32)
        candidates[:, 0] = xp.asarray(running.searchsorted(samples, side="right").astype(np.uint32))
        arrays = {
            "uniforms": xp.asarray(uniforms),
            "candidates": candidates,
            "distances": xp.empty((2, b, trials, self.n), np.float32),
            "potentials": xp.empty((b, tiles, trials)),
            "best": xp.zeros(b, np.int32),
        }
        plusplus = structure(PLUSPLUS_ARGS, **arrays, trials=trials, tiles=tiles)
        for step in range(k):
            self._launch("candidate_distances", (tiles, b), plusplus, np.int32(step), shared=8 * 8 * self.d)
            self._launch("sample_candidates", (1, b), plusplus, np.int32(step + 1))

    def iterate(self) -> None:
        """Iterate until every problem has converged or reached `max_iter`; then assign the final labels."""
        assign, update = self._bind_assign(), self._bind_update()
        self._prepare_centers()
        done = 0
        while True:
            for _ in range(max(1, min(_ITERATIONS_PER_READ, self._max_iter - done))):
                done += 1
                for launch in (*assign, *update):
                    launch()
            status = to_host(self.status).copy()
            empty = np.flatnonzero(status == STATUS["empty"]).tolist()
            for problem in empty:
                status[problem] = self._fill_empty(problem)
            if empty:
                self.status[:] = self.xp.asarray(status)
            if (status == STATUS["place"]).any():
                self._prepare_centers()
            elif not (status == STATUS["running"]).any():
                break
        # In problems without strict convergence, assign the samples to the final centers.
        self.status[:] = self.xp.asarray(np.where(status == STATUS["ended"], STATUS["place"], status))
        self._prepare_centers()
        for launch in assign:
            launch()

    def _bind(self, kernel: str, blocks: int, option: str, shared: int = 0) -> Launch:
        """Return a launch of a kernel with `blocks` blocks per problem, for kernels that are launched many times."""
        made, threads = self._kernel(kernel, option, shared)
        return self.machine.bind(made, (blocks, self.b), (threads,), (self._batch,), shared, dependent=False)

    def _bind_assign(self) -> list[Launch]:
        """Return the launches that assign the samples and list those that are reassigned."""
        plan = self.plan
        if plan.stream is None:
            return [self._bind("assign", -(-self.n // TILE_ROWS), f", {plan.width}", plan.assign_bytes)]
        stream, machine, rows = plan.stream, self.machine, self.b * plan.rows
        blocks = min(machine.gpu.multiprocessors, self.b * plan.turns)
        capacity = -(-self.b * plan.turns // blocks) * stream.ROWS * stream.groups // _ROWS_OF_LIST
        written = {
            "found": self.xp.empty(rows, np.int32),
            "lists": self.xp.empty((blocks * capacity, LIST_BYTES), np.uint8),
            "lengths": self.xp.empty(blocks, np.uint32),
        }
        self.arrays |= written
        of = {name: self.arrays[name] for name in ("center_stats", "roundings", "norms", "n_running")}
        sizes = {"capacity": capacity, "tensor_error": tensor_error(self.d)}
        epilogue = structure(CANDIDATES, **of, **written, **sizes)
        running = self.arrays["running"], self.arrays["n_running"]
        products = structure(MANY_PRODUCTS, products=running[0], count=running[1], turns_each=plan.turns)
        name = stream.kernel_of("ManyProducts", f"batched::CandidatesEpilogue<{stream.kept}>")
        (product,) = machine.kernels(_PRODUCT, name)
        product.max_dynamic_shared_size_bytes = stream.shared_bytes
        matrices = self.arrays["half_copy"], self.arrays["centers_half"]
        given = *matrices, products, np.int32(plan.columns // plan.width), epilogue
        settle, threads = self._kernel("settle", "", 0)
        tiles = -(-self.n // SETTLE_ROWS)
        lists = self._batch, *written.values(), *map(np.uint32, (capacity, blocks, tiles))
        return [
            machine.bind(product, (blocks,), (stream.threads,), given, stream.shared_bytes, dependent=False),
            machine.bind(settle, (blocks * LIST_PARTS + self.b * tiles,), (threads,), lists, dependent=False),
        ]

    def _bind_update(self) -> list[Launch]:
        """Return the launches that update the sums by the reassigned samples, and compute the new centers."""
        plan, multiprocessors = self.plan, self.machine.gpu.multiprocessors
        blocks = update_blocks(self.n, self.b, multiprocessors)
        aligned = self.d % 4 == 0 and address(self.X) % 16 == 0
        sums, threads = self._kernel(
            "update_sums", f", {str(aligned).lower()}, {plan.update_threads}", plan.update_bytes
        )
        given = self._batch, np.uint32(plan.share)
        return [
            self.machine.bind(sums, (blocks, self.b), (threads,), given, plan.update_bytes, dependent=False),
            self._bind("update_centers", self._center_blocks, f", {plan.update_threads}"),
        ]

    @property
    def _center_blocks(self) -> int:
        return center_blocks(self.k, self.b, self.machine.gpu.multiprocessors, self.plan)

    def _prepare_centers(self) -> None:
        self._launch("prepare_centers", (self._center_blocks, self.b), option=f", {self.plan.update_threads}")

    def _fill_empty(self, problem: int) -> int:
        """Relocate the empty clusters of a problem on the host, as `lloyd.fit` does; return the new status."""
        values = to_host(self.arrays["sums"][problem]).astype(np.float64)
        n_reassigned = int(to_host(self.arrays["n_reassigned"])[problem])
        units = to_host(self.arrays["sum_units"][problem])
        step = Assignment(n_reassigned, values[:, :-1] * units, values[:, -1], float("nan"))
        before = to_host(self.centers[problem])
        one: Any = _Problem(self, problem)
        relocate_empty_clusters(one, one.labels, step, before)
        centers = step.means().astype(np.float32)
        shift = float(((centers.astype(np.float64) - before) ** 2).sum())
        self.centers[problem] = self.xp.asarray(centers)
        if n_reassigned == 0 and shift == 0:
            return STATUS["strict"]
        # Relocation moved centers. The status "ended", unlike "strict", causes a final assignment.
        last = n_reassigned == 0 or int(to_host(self.arrays["iterations"])[problem]) >= self._max_iter
        return STATUS["ended" if last or shift <= float(to_host(self.arrays["tolerances"])[problem]) else "place"]

    def inertias(self) -> Any:
        """Return the inertia Σ ‖x − c‖² of every problem, (b,), float64."""
        tiles = -(-self.n // SEED_ROWS)
        parts = self.xp.empty((self.b, tiles))
        self._launch("inertias", (tiles, self.b), parts, self._used, option=self._by_rows)
        return parts.sum(axis=1)

    def final_centers(self) -> Any:
        """Return the centers in the units of X, with the means added, (b, k, d), float32."""
        return self.centers + self.arrays["means"][:, np.newaxis]

    def warn_of_lost_clusters(self) -> None:
        """Warn, as scikit-learn does, if problems have empty clusters, as a rule because of duplicate samples.

        Call `inertias` before.
        """
        lost = np.flatnonzero(~to_host(self._used).all(axis=1))
        if len(lost):
            warnings.warn(
                f"Number of distinct clusters found smaller than n_clusters ({self.k}) in {len(lost)} problems, of "
                f"which problem {self._first + lost[0]} is the first. Possibly due to duplicate points in X.",
                ConvergenceWarning,
                stacklevel=4,
            )


class _Problem:
    """One problem of a batch, with the members of `Data` that `relocate_empty_clusters` needs."""

    def __init__(self, of: BatchedLloyd, problem: int) -> None:
        self.xp, self.sample_weight = of.xp, None
        self.labels = of.labels[problem]
        self._X, self._mean = of.X[problem], of.arrays["means"][problem]

    def rows(self, indices: np.ndarray) -> np.ndarray:
        """Return the samples with these indices, centered, in host memory; see `Data.rows`."""
        return to_host(self._X[self.xp.asarray(indices)].astype(np.float32) - self._mean)

    def own_distances(self, centers: np.ndarray, labels: Any) -> np.ndarray:
        """Return ‖x − c‖² of every sample and its center, (n,), in host memory; see `Data.own_distances`."""
        return to_host(next(self.each_own_distance(centers, labels)))

    def each_own_distance(self, centers: np.ndarray, labels: Any) -> Iterator[Any]:
        """Yield the distances of `own_distances` where the samples are; see `Data.each_own_distance`."""
        delta = self._X.astype(np.float32) - self._mean - self.xp.asarray(centers)[labels]
        yield (delta * delta).sum(axis=1)
