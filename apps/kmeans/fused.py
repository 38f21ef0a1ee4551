"""The fused engine: Lloyd on a float16 copy of X, with exact labels and exact sums.

An iteration is one tall-and-skinny product of the core, of X's copy in float16 (`shadow.cuh`) and the centres. Its
epilogue finds the nearest centre of every row and, by a rigorous bound on what float16 rounds away, the few rows for
which it is not sure (`nearest.cuh`). Those are decided in float64 from X itself (`decide.cuh`), and rows whose label
changes move from one cluster's sum to another's (`move.cuh`). So an iteration reads half of float32's bytes and a
quarter of float64's; labels are the float64 arg-min; and sums are integers, the same bits on every run.

What it cannot do it leaves to `CublasEngine`: more clusters than the epilogue has room for, X that does not fit the
GPU, and small data, where scikit-learn's own rounding decides.
"""

from pathlib import Path
from typing import Any

import cupy
import numpy as np

from tsapps.apps.kmeans.cuda import CublasEngine
from tsapps.apps.kmeans.engine import Assignment, Iterated, Report
from tsapps.apps.kmeans.fused_plan import (
    ENTRY_BYTES,
    MOST_CLUSTERS,
    NEAREST,
    OUTCOME,
    ROWS,
    assign_plan,
    capacity,
    log2_lanes,
    moves,
    padded,
    shadow_problem,
    shadow_reach,
    shadow_scale,
    tensor_error,
    vector_of,
)
from tsapps.apps.kmeans.rows import Rows
from tsapps.kernels.arrays import to_host
from tsapps.kernels.build import function
from tsapps.kernels.device import Device, live
from tsapps.kernels.launch import blocks_of, with_epilogue
from tsapps.kernels.plan import ELEMENT, Plan

__all__ = ["FusedEngine"]

#: Bytes of X below which the labels are left to `CublasEngine`: they follow scikit-learn's own rounding there.
LEAST_BYTES = 32 << 20
_FOLDER = Path(__file__).parent
_EPILOGUE, _HEADER = "kmeans::Nearest", "apps/kmeans/nearest.cuh"
_MOVE_THREADS, _DECIDE_THREADS, _SHADOW_THREADS, _CENTRE_THREADS = 512, 256, 256, 128
# Blocks a multiprocessor: of `move`, as many as are resident; of the others, more.
_MOVE_BLOCKS, _OTHER_BLOCKS = 2, 8
# What 32 bits number, and what a row's norm is summed over in float32 (shadow.cuh).
_MOST_SAMPLES, _MOST_FEATURES = 2**32 - 1, 2**18
# Iterations that are launched before the outcome of the first of them is asked for.
_AHEAD = 2
_LEAST_CAPABILITY = 8.0
# The least weight beside the largest: sums have 46 bits for it (fused_plan.py).
_LEAST_WEIGHT = 2.0**-16


class FusedEngine(CublasEngine):
    """Passes over X on a GPU by the kernels of this package; see `Engine`.

    Parameters
    ----------
    source, dtype, sample_weight, index
        As for `CublasEngine`.
    always : bool
        Whether small data is served too.
    """

    def __init__(
        self, source: Rows, dtype: np.dtype, sample_weight: np.ndarray | None, index: int, *, always: bool = False
    ) -> None:
        super().__init__(source, dtype, sample_weight, index)
        self.gpu: Device = live(index)
        large = always or self.n_samples * self.n_features * self.dtype.itemsize >= LEAST_BYTES
        tensor_cores = float(self.gpu.compute_capability) >= _LEAST_CAPABILITY
        room = self.held is not None and self.n_samples < _MOST_SAMPLES and self.n_features <= _MOST_FEATURES
        self._applies = large and tensor_cores and room and self._weights_are_alike()
        self._found: tuple[np.ndarray, np.ndarray, float] | None = None
        self._shadow: _Shadow | None = None
        self._step: _Step | None = None

    def _weights_are_alike(self) -> bool:
        """Tell whether integers of one scale hold every weight well."""
        if self.sample_weight is None:
            return True
        with self._gpu:
            weights = abs(self.sample_weight[self.sample_weight != 0])
            return not weights.size or float(weights.min()) >= _LEAST_WEIGHT * float(weights.max())

    def moments(self) -> tuple[np.ndarray, float]:
        """Return the mean of X and the mean variance of its features; see `Engine.moments`."""
        origin = self.rows(np.array([0]))[0]
        mean, variance = super().moments()
        self._found = origin, mean, variance
        return mean, variance

    def centre(self, mean: np.ndarray) -> None:
        """Subtract `mean` from every row read from here on, as it is read."""
        if not self._applies:
            super().centre(mean)
            return
        self.mean = self.shift = cupy.asarray(mean, dtype=self.dtype)

    def _centre_held(self) -> None:
        """Subtract the mean once for all, for passes that expect centred rows."""
        if bool(self.shift.any()):
            self.shift = cupy.zeros_like(self.shift)
            super().centre(self.mean)
            self._applies = self._applies and self.held is not None

    def square_norm(self) -> float:
        """Return Σ w·‖x‖² over the (centred) samples, in float64."""
        if self._applies and self._found is not None and self.sample_weight is None:
            return self.n_samples * self.n_features * self.spread()[1] ** 2
        self._centre_held()
        return super().square_norm()

    def centred(self) -> Any:
        """Return the whole of X, centred, as an array of `xp`; shape (n, d)."""
        self._centre_held()
        return super().centred()

    def forget_labels(self) -> None:
        """Set every label to −1, so that the next assignment moves every sample."""
        super().forget_labels()
        if self._step is not None:
            self._step.forget()

    def assign(self, centers: np.ndarray, *, update: bool = True, potential: bool = False) -> Assignment:
        """Give every sample the label of its nearest centre; see `Engine.assign`."""
        step = self._step_for(len(centers))
        if step is None:
            return super().assign(centers, update=update, potential=potential)
        moved = step.assign(centers)
        sums, weights = step.sums()
        wide = centers.astype(np.float64)
        score = float(weights @ (wide * wide).sum(axis=1) - 2 * (sums * wide).sum())
        return Assignment(moved, sums, weights, score)

    def iterate(self, centers: np.ndarray, before: int, last: int, tol: float, report: Report | None) -> Iterated:
        """Iterate on the GPU, without the host; see `Engine.iterate`."""
        step = self._step_for(len(centers))
        if step is None or self.spherical:  # `advance` has means, of which none has norm 1
            return super().iterate(centers, before, last, tol, report)
        return step.iterate(centers, before, last, tol, report)

    def _step_for(self, k: int) -> "_Step | None":
        """Return what makes iterations for k clusters; None where `CublasEngine` is to."""
        if self._applies and self._step is not None and self._step.k == k:
            return self._step
        plan = assign_plan(*self.source.shape, k, self.gpu) if self._applies and k <= MOST_CLUSTERS else None
        shadow = self._made_shadow() if plan is not None else None
        if plan is None or shadow is None:
            self._step = None
            self._centre_held()
            return None
        self._step = _Step(self, shadow, plan, k)
        self.forget_labels()
        return self._step

    def _made_shadow(self) -> "_Shadow | None":
        """Return the copy that iterations read; None where there is none to be."""
        if self._applies and self._shadow is None:
            if self._found is None:
                self.moments()
            self._applies = self.fits(_Shadow.size(*self.source.shape))
            self._shadow = _Shadow(self) if self._applies else None
        return self._shadow if self._applies else None

    def spread(self) -> tuple[np.ndarray, float]:
        """Return no less than the largest |x − mean| of each feature, and the root of the mean square over all."""
        if self._found is None:
            raise RuntimeError("the moments of X have not been taken")
        origin, mean, variance = self._found
        subtracted = to_host(self.mean).astype(np.float64)
        square = variance + float(np.mean((mean - subtracted) ** 2))
        return to_host(self.largest) + np.abs(origin - subtracted), square**0.5

    @property
    def gpu_index(self) -> int:
        """CUDA's number for the engine's GPU."""
        return int(self._gpu.id)

    def kernels(self, file: str, *names: str) -> list[Any]:
        """Return kernels of a file of this package, compiled together and loaded on the engine's GPU."""
        full = tuple(f"kmeans::{name}" for name in names)
        return [function(_FOLDER / file, full, name, self.gpu_index) for name in full]


class _Shadow:
    """The copy of X in float16, scaled, and the norms of its rows; see shadow.cuh."""

    def __init__(self, engine: FusedEngine) -> None:
        n, d = engine.source.shape
        _, middle = engine.spread()
        self.scale = np.float32(shadow_scale(middle))
        self.rows = cupy.empty((n, padded(d)), np.float16)
        self.norms = cupy.empty(n, np.float32)
        scalar, size = ELEMENT[engine.dtype.name], engine.dtype.itemsize
        vector = vector_of(size)
        aligned = d % vector == 0 and engine.held.data.ptr % (vector * size) == 0
        sizes = np.int64(d), np.int64(n), np.int32(d), np.int32(padded(d))
        lanes = np.int32(log2_lanes(padded(d) // vector))
        (kernel,) = engine.kernels("shadow.cuh", f"make_shadow<{scalar}, {scalar}, {str(aligned).lower()}>")
        arguments = (engine.held, *sizes, engine.shift, self.scale, lanes, self.rows, self.norms)
        kernel((engine.gpu.multiprocessors * _OTHER_BLOCKS,), (_SHADOW_THREADS,), arguments)

    @staticmethod
    def size(n: int, d: int) -> int:
        """Return about the bytes of a shadow and of an iteration's lists."""
        return n * (2 * padded(d) + 4) + 2 * n * ENTRY_BYTES


class _Step:
    """One iteration for k clusters, and the clusters' sums as the labels are."""

    def __init__(self, engine: FusedEngine, shadow: _Shadow, plan: Plan, k: int) -> None:
        self._engine, self._shadow, self.k = engine, shadow, k
        n, d = engine.source.shape
        index = engine.gpu_index
        problem = shadow_problem(n, d, k)
        self._product = with_epilogue(plan, problem, index, _EPILOGUE, _HEADER)
        lists = blocks_of(plan, problem, index)
        self._capacity = capacity(plan, n, lists)
        self._ahead = plan.teams * lists * plan.tile_m if plan.keep_b else n
        self._entries = cupy.empty(lists * self._capacity * ENTRY_BYTES, np.uint8)
        # Zero before every iteration: the lists' lengths, rows that moved, blocks that arrived, whether to stop.
        self._zeroed = cupy.empty(lists + 3, np.uint32)
        self._counts = self._zeroed[:lists]
        self._moved, self._arrived, self._stopped = (self._zeroed[lists + i : lists + i + 1] for i in range(3))
        self._centers = cupy.empty((2, k, d), engine.dtype)  # of an iteration, and of the next
        self._halves = cupy.empty((k, padded(d)), np.float16)
        self._half_squares = cupy.empty(-(-k // 8) * 8, np.float32)
        self._extremes, self._found = cupy.empty(4, np.float32), cupy.empty((k, 4))
        self._outcomes = cupy.empty(_AHEAD, OUTCOME)
        memory = cupy.cuda.alloc_pinned_memory(_AHEAD * OUTCOME.itemsize)
        self._seen = np.frombuffer(memory, OUTCOME, _AHEAD)
        self._sums = cupy.empty((k, d + 1), np.int64)
        # What both kernels that place centres are told of them.
        sizes = np.int32(k), np.int32(d), np.int32(padded(d))
        self._sizes = *sizes, shadow.scale, np.float32(shadow_reach(d))
        self._prepare_moves(lists)

    def _prepare_moves(self, lists: int) -> None:
        engine, k = self._engine, self.k
        n, d = engine.source.shape
        weights = engine.sample_weight
        largest, middle = engine.spread()
        most_weight = None if weights is None else float(abs(weights).max())
        plan = moves(n, k, engine.dtype, largest, middle, most_weight)
        self._scales = np.array(plan.scales)
        self._device_scales = cupy.asarray(self._scales)
        self._move_scales = self._device_scales.astype(np.float32 if plan.digits == 2 else np.float64)
        multiprocessors = engine.gpu.multiprocessors
        parts = max(1, -(-multiprocessors * _MOVE_BLOCKS // (lists * plan.chunks)))
        self._move_grid = lists, parts, plan.chunks
        self._decide_grid = lists, max(1, multiprocessors * _OTHER_BLOCKS // lists)
        lanes = log2_lanes(min(d, plan.columns))
        self._move_sizes = np.int32(k), np.int32(plan.columns), np.int32(lanes)
        self._shared = plan.shared_bytes
        scalar = ELEMENT[engine.dtype.name]
        decide = f"decide<{scalar}, {scalar}>"
        move = f"move<{scalar}, {scalar}, {plan.digits}, {str(weights is not None).lower()}>"
        self._decide, self._move = engine.kernels("move.cuh", decide, move)
        self._place, self._advance = engine.kernels("centers.cuh", f"place_centers<{scalar}>", f"advance<{scalar}>")
        self._move.max_dynamic_shared_size_bytes = self._shared

    def forget(self) -> None:
        """Begin again, with no sample in any cluster."""
        self._sums.fill(0)

    def assign(self, centers: np.ndarray) -> int:
        """Give every sample the label of its nearest centre; return how many labels changed."""
        self._begin(centers)
        self._move_rows(self._centers[0])
        return int(self._moved[0])

    def iterate(self, centers: np.ndarray, before: int, last: int, tol: float, report: Report | None) -> Iterated:
        """Launch iterations, some ahead of those whose outcome is known; see `Engine.iterate`."""
        self._begin(centers)
        events: list[Any] = []
        try:
            for count in range(last - before + _AHEAD - 1):
                if before + count < last:
                    self._launch(count, tol)
                    events.append(cupy.cuda.Event(disable_timing=True))
                    events[-1].record()
                known = count - _AHEAD + 1
                if known < 0:
                    continue
                events[known].synchronize()
                outcome = self._seen[known % _AHEAD].copy()
                if report is not None:
                    report(before + known + 1, int(outcome["moved"]), float(outcome["potential"]))
                if outcome["stop"]:
                    break
        finally:
            # What is ahead is still writing to memory of this step.
            cupy.cuda.get_current_stream().synchronize()
        strict, now = bool(outcome["moved"] == 0), known % 2
        if outcome["empty"]:
            sums, weights = self.sums()
            empty = Assignment(int(outcome["moved"]), sums, weights, float(outcome["potential"]))
            return Iterated(to_host(self._centers[now]), known + 1, strict, float("nan"), empty)
        return Iterated(to_host(self._centers[1 - now]), known + 1, strict, float(outcome["shift"]))

    def _begin(self, centers: np.ndarray) -> None:
        """Put centres where the first iteration expects them."""
        self._centers[0].set(np.ascontiguousarray(centers, dtype=self._engine.dtype))
        self._zeroed.fill(0)
        found = self._found, self._arrived, self._extremes
        arguments = (self._centers[0], *self._sizes, self._halves, self._half_squares, *found)
        self._place((self._half_squares.size,), (_CENTRE_THREADS,), arguments)

    def _launch(self, count: int, tol: float) -> None:
        """Launch one iteration, and the copy of its outcome to the host."""
        now, place = count % 2, count % _AHEAD
        self._move_rows(self._centers[now])
        results = self._centers[1 - now], self._halves, self._half_squares, self._found, self._arrived, self._extremes
        state = self._counts, np.int32(self._counts.size), self._moved, self._stopped, self._outcomes[place:]
        arguments = (
            self._sums,
            self._device_scales,
            self._centers[now],
            *self._sizes,
            np.float64(tol),
            *results,
            *state,
        )
        self._advance((self.k,), (_CENTRE_THREADS,), arguments)
        source, size = self._outcomes[place:].data.ptr, OUTCOME.itemsize
        stream = cupy.cuda.get_current_stream().ptr
        to_host_kind = cupy.cuda.runtime.memcpyDeviceToHost
        cupy.cuda.runtime.memcpyAsync(self._seen[place:].ctypes.data, source, size, to_host_kind, stream)

    def _move_rows(self, centers: Any) -> None:
        """Launch what gives every sample its label at the centres that were placed, and keeps the sums."""
        engine, shadow, k = self._engine, self._shadow, np.int32(self.k)
        n, d = engine.source.shape
        pointers = self._half_squares, self._extremes, shadow.norms, engine.labels, self._entries, self._counts
        addresses = (one.data.ptr for one in (*pointers, self._stopped))
        nearest = np.array((*addresses, self._capacity, n, self._ahead, tensor_error(d), 0.0), NEAREST)[()]
        self._product(shadow.rows.data.ptr, self._halves.data.ptr, nearest)
        weights = 0 if engine.sample_weight is None else engine.sample_weight.data.ptr
        rows = np.array((engine.held.data.ptr, d, d, 0, engine.shift.data.ptr, weights), ROWS)[()]
        lists = self._entries, self._counts, np.int64(self._capacity)
        self._decide(self._decide_grid, (_DECIDE_THREADS,), (rows, centers, k, *lists, self._stopped))
        state = engine.labels, self._sums, self._moved, self._stopped
        arguments = (rows, self._move_scales, *self._move_sizes, *lists, *state)
        self._move(self._move_grid, (_MOVE_THREADS,), arguments, shared_mem=self._shared)

    def sums(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the clusters' weighted sums (k, d) and weights (k,), in float64."""
        values = to_host(self._sums) / self._scales
        return values[:, :-1], values[:, -1]
