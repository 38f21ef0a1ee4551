"""Batched Lloyd iterations and k-means++ on a GPU: buffers, and launches of the kernels in batched/*.cuh."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import prod
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from tsapps.apps.kmeans.assign.large_k_plan import MANY_PRODUCTS, StreamPlan
from tsapps.apps.kmeans.assign.plan import tensor_error
from tsapps.apps.kmeans.batched.empty_clusters import relocate
from tsapps.apps.kmeans.batched.plan import (
    BATCH,
    CANDIDATE_LIST_BYTES,
    CANDIDATES,
    KERNELS,
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
from tsapps.apps.kmeans.data.load import is_vectorizable, load_kernels
from tsapps.apps.kmeans.data.plan import norm_limit_of
from tsapps.kernels.arrays import to_host
from tsapps.kernels.plan.mma import ELEMENT
from tsapps.kernels.runtime.launch import structure
from tsapps.kernels.runtime.machine import Launch, Machine

__all__ = ["BatchedLloyd", "product_kernel", "random_states"]

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


def product_kernel(stream: StreamPlan) -> tuple[str, str]:
    """Return the source and the name expression of the product that assigns rows."""
    source = f'#include "kernels/tsm2/{stream.NAME}.cuh"\n#include "apps/kmeans/batched/candidates.cuh"\n'
    return source, stream.kernel_of("ManyProducts", f"batched::CandidatesEpilogue<{stream.kept}>")


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
            "labels": xp.empty((b, n), np.int32),
            "centers": xp.empty((b, k, d), np.float32),
            "half_squares": xp.empty((b, plan.columns), np.float32),
            "center_stats": xp.empty((b, 6), np.float32),
            "placed": xp.empty((b, k, 3)),
            "changes": xp.empty((b, n, 2), np.int32),
            **_zeros(
                xp,
                sums=((b, k, d + 1), np.int64),
                centers_half=((b, plan.columns, plan.center_columns), np.float16),
                used=((b, k), np.bool_),
                state=((3, b), np.int32),
                **dict.fromkeys(("counts", "n_reassigned"), ((b,), np.uint32)),
                arrived=((b + 1,), np.uint32),
            ),
            **{name: None if plan.stream is None else xp.empty(b, np.int32) for name in ("running", "n_running")},
        }
        # What the host reads: the status and the number of iterations of every problem, and b minus the index of the
        # first problem that is not finite, or 0.
        arrays["status"], arrays["iterations"], arrays["refused"] = arrays["state"]
        self.arrays = arrays
        self.labels, self.centers, self.status = arrays["labels"], arrays["centers"], arrays["status"]
        machine.fill(self.labels, 0xFF)
        self.max_iter = max_iter
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
        aligned = d % 8 == 0 and is_vectorizable(X, 16 // X.itemsize)
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
        name = f"{kernel}<{ELEMENT[self.X.dtype.name]}{option}>"
        (made,) = load_kernels(self.machine, file, name, namespace="batched")
        # All batches use the same kernel objects, so a batch of another shape may have raised the limit further.
        if shared > made.max_dynamic_shared_size_bytes:
            made.max_dynamic_shared_size_bytes = shared
        return made, threads or self.plan.update_threads

    def _prepare(self, tol: float) -> None:
        """Compute the means and scales of all problems, and the half-precision copy.

        The host does not wait. `iterate` refuses X if it is not finite.
        """
        xp, (b, n, d) = self.xp, self.X.shape
        slices = min(_SLICES, -(-n // _SLICE_ROWS))
        moments = xp.empty((b, slices, 3, d))
        self._launch("column_moments", (slices, b), moments)
        given = moments, np.int32(slices), np.int32(wide_bits(n)), np.float64(tol), self.arrays["refused"]
        self._launch("problem_scales", (1, b), *given)
        blocks = min(-(-n // _COPIED_ROWS), -(-self.machine.gpu.multiprocessors * _BLOCKS // b))
        self._launch("make_half_copy", (blocks, b), option=self._by_rows)

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
        """Iterate until every problem has converged or reached `max_iter`; then assign the final labels.

        Raises
        ------
        ValueError
            If X has a NaN or an infinity; the message names its problem, row and column.
        """
        assign, update = self._bind_assign(), self._bind_update()
        self._prepare_centers("place")
        done, reads, relocated = 0, [self._read_state()], False
        while True:
            for _ in range(max(1, min(_ITERATIONS_PER_READ, self.max_iter - done))):
                done += 1
                for launch in (*assign, *update):
                    launch()
            reads = [reads[-1], self._read_state()]
            last = done >= self.max_iter
            ends = last and not relocated  # no problem is running
            if ends:
                self._finish(assign)
            # Unless it is the last, the state before these iterations is read: they run while the host waits.
            status = reads[last]()
            empty = np.flatnonzero(status == STATUS["empty"]).tolist()
            if len(empty) == 0 and not (status == STATUS["running"]).any():
                break
            if empty:
                now = {problem: relocate(self, problem) for problem in empty}
                if ends:  # these have had their final assignment
                    now |= dict.fromkeys(np.flatnonzero(status == STATUS["ended"]).tolist(), STATUS["strict"])
                self.status[self.xp.asarray(list(now))] = self.xp.asarray(list(now.values()), dtype=np.int32)
                self._prepare_centers("place")
                reads, relocated = [self._read_state()], True
        if not ends:
            self._finish(assign)

    def _read_state(self) -> Callable[[], np.ndarray]:
        """Copy the state to the host; return a function that waits for it and returns the status of every problem."""
        state, event = self.machine.pinned((3, self.b), np.int32), self.machine.event()
        self.machine.copy(state, self.arrays["state"])
        event.record(self.machine.current_stream())

        def wait() -> np.ndarray:
            event.synchronize()
            if state[2, 0]:
                self._refuse(self.b - int(state[2, 0]))
            return state[0]

        return wait

    def _finish(self, assign: list[Launch]) -> None:
        """Assign the samples of problems without strict convergence to the final centers."""
        self._prepare_centers("ended")
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
            "lists": self.xp.empty((blocks * capacity, CANDIDATE_LIST_BYTES), np.uint8),
            "lengths": self.xp.empty(blocks, np.uint32),
        }
        self.arrays |= written
        of = {name: self.arrays[name] for name in ("center_stats", "roundings", "norms", "n_running")}
        sizes = {"capacity": capacity, "tensor_error": tensor_error(self.d)}
        epilogue = structure(CANDIDATES, **of, **written, **sizes)
        running = self.arrays["running"], self.arrays["n_running"]
        products = structure(MANY_PRODUCTS, products=running[0], count=running[1], turns_each=plan.turns)
        (product,) = machine.kernels(*product_kernel(stream))
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
        blocks = update_blocks(self.n, self.d, self.b, multiprocessors)
        option = f", {str(is_vectorizable(self.X, 4)).lower()}, {plan.update_threads}"
        sums, threads = self._kernel("update_sums", option, plan.update_bytes)
        given = self._batch, np.uint32(plan.share)
        return [
            self.machine.bind(sums, (blocks, self.b), (threads,), given, plan.update_bytes, dependent=False),
            self._bind("update_centers", self._center_blocks, f", {plan.update_threads}"),
        ]

    @property
    def _center_blocks(self) -> int:
        return center_blocks(self.k, self.b, self.machine.gpu.multiprocessors, self.plan)

    def _prepare_centers(self, status: str) -> None:
        """Prepare the centers of the problems of a status, which then are running."""
        given = np.int32(STATUS[status])
        self._launch("prepare_centers", (self._center_blocks, self.b), given, option=f", {self.plan.update_threads}")

    def inertias(self) -> Any:
        """Return the inertia Σ ‖x − c‖² of every problem, (b,), float64."""
        tiles = -(-self.n // SEED_ROWS)
        parts = self.xp.empty((self.b, tiles))
        self._launch("inertias", (tiles, self.b), parts, self.arrays["used"], option=self._by_rows)
        return parts.sum(axis=1)

    def final_centers(self) -> Any:
        """Return the centers in the units of X, with the means added, (b, k, d), float32."""
        return self.centers + self.arrays["means"][:, np.newaxis]

    def warn_of_lost_clusters(self) -> None:
        """Warn, as scikit-learn does, if problems have empty clusters, as a rule because of duplicate samples.

        Call `inertias` before.
        """
        lost = np.flatnonzero(~to_host(self.arrays["used"]).all(axis=1))
        if len(lost):
            warnings.warn(
                f"Number of distinct clusters found smaller than n_clusters ({self.k}) in {len(lost)} problems, of "
                f"which problem {self._first + lost[0]} is the first. Possibly due to duplicate points in X.",
                ConvergenceWarning,
                stacklevel=4,
            )


def _zeros(xp: Any, **arrays: tuple[tuple[int, ...], Any]) -> dict[str, Any]:
    """Return arrays of zeros of the given shapes and dtypes, from one allocation: each costs the host about 10 µs."""
    ends = np.cumsum([-(-prod(shape) * np.dtype(dtype).itemsize // 256) * 256 for shape, dtype in arrays.values()])
    memory, begins = xp.zeros(int(ends[-1]), np.uint8), [0, *ends[:-1].tolist()]
    return {
        name: memory[begin : begin + prod(shape) * np.dtype(dtype).itemsize].view(dtype).reshape(shape)
        for begin, (name, (shape, dtype)) in zip(begins, arrays.items(), strict=True)
    }
