"""Steps of the fused engine for few features and few clusters: X is read as it is.

See iteration_fma_d4.cuh, iteration_fma.cuh and iteration_mma.cuh, and with bounds iteration_bounded.cuh.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cupy
import numpy as np

from tsapps.apps.kmeans.assign.plan import tensor_error
from tsapps.apps.kmeans.bounds.launch import Bounds
from tsapps.apps.kmeans.bounds.plan import ROW_BOUNDS, most_listed_small_d
from tsapps.apps.kmeans.data.half_copy import Placement, load_kernels
from tsapps.apps.kmeans.engines.device_step import Step
from tsapps.apps.kmeans.small_d.plan import (
    CONSTANT_CENTERS_BYTES,
    CONSTANT_CENTERS_NAME,
    PARTS_ROUNDING,
    PRODUCTS,
    SMALL_D_ROUNDING,
    FmaPlan,
    Multiplier,
    ProductsPlan,
    bounded_plan,
    small_d_scale,
)
from tsapps.kernels.arrays import to_host
from tsapps.kernels.jit.compiler import architecture, build
from tsapps.kernels.plan.mma import ELEMENT
from tsapps.kernels.runtime.launch import BoundLaunch, DependentLaunch

if TYPE_CHECKING:
    from tsapps.apps.kmeans.engines.fused import FusedEngine

__all__ = ["SmallDFmaStep", "SmallDMmaStep", "SmallDStep", "norms_of", "small_d_step"]

_FOLDER = Path(__file__).parents[1]
_PLACE_THREADS = 128
# As many blocks a multiprocessor as are resident.
_WIDEN_THREADS, _WIDEN_BLOCKS = 256, 8
# More than a norm in float64 may be off by in float32.
_ROUNDED_UP = 1.000001


def norms_of(engine: FusedEngine) -> tuple[float, float]:
    """Return the norm of what is subtracted from rows, and what no row's norm exceeds once it is."""
    return float(np.linalg.norm(to_host(engine.shift).astype(np.float64))), float(np.linalg.norm(engine.spread()[0]))


def small_d_step(engine: FusedEngine, plan: FmaPlan | ProductsPlan, k: int) -> SmallDStep:
    """Return the step of a plan."""
    return SmallDFmaStep(engine, plan, k) if isinstance(plan, FmaPlan) else SmallDMmaStep(engine, plan, k)


class SmallDStep(Step):
    """A step for few features and few clusters, of samples without weights in float32 or 16 bits."""

    #: Those of small_d/iteration_bounded.cuh's product.
    columns = 8
    keeps_labels = True

    def __init__(self, engine: FusedEngine, plan: FmaPlan | ProductsPlan, k: int) -> None:
        of_mean, norm = norms_of(engine)
        warpgroups = isinstance(plan, ProductsPlan) and plan.multiplier is Multiplier.WARPGROUPS
        if warpgroups:  # they multiply rows from which no mean is subtracted
            norm += of_mean
        self._scale = np.float32(small_d_scale(norm, plan.dtype, warpgroups=warpgroups))
        # No row is beyond the reach.
        self._of_mean, self._norm = (np.float32(_ROUNDED_UP * self._scale * value) for value in (of_mean, norm))
        self._padded = -(-plan.features // 16) * 16
        super().__init__(engine, Placement(self._padded, 0, self._scale, self._norm), k)
        # A byte each, in whole words; and the array that they were given to, and are still those of.
        self._labels = cupy.empty(-(-engine.n_samples // 4) * 4, np.int8)
        self._given: Any = None
        (self._widen,) = load_kernels(engine, "data/labels.cuh", "widen_labels")
        self._threads, self._shared_bytes = (plan.threads,), plan.shared_bytes
        self._grid = (plan.grid(engine.n_samples, engine.gpu.multiprocessors),)

    def forget(self) -> None:
        """Begin again, with no sample in any cluster."""
        super().forget()
        self._labels.data.memset_async(0xFF, self._labels.nbytes)
        self._given = None

    @property
    def own_labels(self) -> Any:
        """The labels as iterations keep them, in whole words."""
        return self._labels

    def give_labels(self, labels: Any) -> None:
        """Write to `labels` (n,), int32, those of this step, if it does not have them."""
        if self._given is not labels:
            grid, n = self.engine.gpu.multiprocessors * _WIDEN_BLOCKS, np.int64(self.engine.n_samples)
            self._widen((grid,), (_WIDEN_THREADS,), (self._labels, n, labels))
            self._given = labels

    def _begin(self, centers: np.ndarray) -> None:
        self._given = None
        super()._begin(centers)

    def _products(self, tensor_error: float, rounding: float) -> Any:
        """Return what kernels that multiply are told of centers and data, a `PRODUCTS`."""
        given = self._centers_half, self._offsets, self._center_stats, self.engine.shift, self.move_scales
        addresses = (one.data.ptr for one in given)
        return np.array((*addresses, self._scale, self._norm, tensor_error, rounding), PRODUCTS)[()]

    def _of_warps(self) -> Any:
        """Return what small_d/scores_mma.cuh is told of them, which rounds rows to float16."""
        exact = self.engine.rows_on_gpu.itemsize == 2 and not bool(self.engine.shift.any())
        return self._products(tensor_error(self._padded), 0.0 if exact else SMALL_D_ROUNDING)

    def _made_bounds(self) -> Bounds | None:
        engine = self.engine
        dtype, room = engine.rows_on_gpu.dtype.name, engine.gpu.shared_memory_per_block
        plan = bounded_plan(engine.n_features, self.k, dtype, room)
        if plan is None:
            return None
        (self._assign_bounded,) = load_kernels(engine, "small_d/iteration_bounded.cuh", plan.kernel)
        self._assign_bounded.max_dynamic_shared_size_bytes = plan.shared_bytes
        self._bounded_plan, self._bounded_products = plan, self._of_warps()
        return Bounds(engine, self.k, most_listed_small_d(engine.n_samples), "kmeans::Label")

    def _bind_rows(self, centers: Any) -> list[Callable[[], None]]:
        bounds = self.bounds
        if bounds is None or not self._bounded:
            return self._bind_all_rows(centers, self.stopped)
        plan, kept = self._bounded_plan, (bounds.row_bounds, bounds.limits, bounds.active, bounds.state)
        row_bounds = np.array(tuple(one.data.ptr for one in kept), ROW_BOUNDS)[()]
        grid = (plan.grid(self.engine.n_samples, self.engine.gpu.multiprocessors),)
        given = self._arguments(centers, self.stopped, self._bounded_products, row_bounds)
        return [
            bounds.screening(self._labels, self.stopped),
            DependentLaunch(self._assign_bounded, grid, (plan.threads,), given, plan.shared_bytes),
            *self._bind_all_rows(centers, bounds.skip_full_assign),
        ]

    @abstractmethod
    def _bind_all_rows(self, centers: Any, stopped: Any) -> list[Callable[[], None]]:
        """Return what scores all rows, without bounds, if `stopped` is not set."""

    def _arguments(self, centers: Any, stopped: Any, *more: Any) -> tuple[Any, ...]:
        """Return what kernels that give samples their labels are told; beside what all are, `more`."""
        engine = self.engine
        given = engine.rows_on_gpu, centers, np.int32(self.k), np.int64(engine.n_samples)
        return *given, *more, self._labels, self.device_sums, self.n_reassigned, stopped

    def _bind_assign(
        self, launch: type[BoundLaunch], kernel: Any, centers: Any, stopped: Any, *more: Any
    ) -> BoundLaunch:
        """Return the launch that gives every sample its label; what it is told beside is `more`."""
        arguments = self._arguments(centers, stopped, *more)
        return launch(kernel, self._grid, self._threads, arguments, self._shared_bytes)


@cache
def _compiled(plan: FmaPlan, scalar: str, device: int) -> tuple[str, str, str]:
    """Return where the machine code of a plan is, and its kernels: that which places their constants the second."""
    names = [f"kmeans::{name}" for name in (plan.kernel, f"place_constants<{scalar}>")]
    cubin = build((_FOLDER / plan.file).read_text(encoding="utf-8"), names, architecture(device))
    assign, place = (cubin.names[name] for name in names)
    return str(cubin.path), assign, place


def _with_constants(engine: FusedEngine, plan: FmaPlan) -> tuple[Any, Any, int]:
    """Return the kernels of a plan as `_compiled`, and where their constants are.

    They are loaded for the caller alone, whose the constants are: CuPy's own modules of a file are one.
    """
    path, *names = _compiled(plan, ELEMENT[engine.dtype.name], engine.gpu_index)
    with cupy.cuda.Device(engine.gpu_index):
        module = cupy.cuda.function.Module()
        module.load_file(path)
        assign, place = (module.get_function(name) for name in names)
        attribute = cupy.cuda.driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        cupy.cuda.driver.funcSetAttribute(assign.ptr, attribute, plan.shared_bytes)
        return assign, place, module.get_global_var(CONSTANT_CENTERS_NAME)


class SmallDFmaStep(SmallDStep):
    """Scores by multiply-adds, centers in constant memory: iteration_fma.cuh and iteration_fma_d4.cuh."""

    def __init__(self, engine: FusedEngine, plan: FmaPlan, k: int) -> None:
        super().__init__(engine, plan, k)
        self._plan = plan
        self._norms = self._scale, self._norm, self._of_mean, np.bool_(not plan.shifts)
        self._assign, self._place_constants, self._in_constant_memory = _with_constants(engine, plan)
        self._constants = cupy.empty(CONSTANT_CENTERS_BYTES, np.uint8)

    def _bind_all_rows(self, centers: Any, stopped: Any) -> list[Callable[[], None]]:
        plan, k = self._plan, np.int32(self.k)
        d, clusters = np.int32(plan.features), np.int32(plan.clusters)
        given = self._offsets, self.engine.shift, self.move_scales
        placed = centers, k, d, clusters, *given, *self._norms, self._constants
        stream, kind = cupy.cuda.get_current_stream().ptr, cupy.cuda.runtime.memcpyDeviceToDevice
        copied = self._in_constant_memory, self._constants.data.ptr, CONSTANT_CENTERS_BYTES, kind, stream
        return [
            DependentLaunch(self._place_constants, (1,), (_PLACE_THREADS,), placed),
            partial(cupy.cuda.runtime.memcpyAsync, *copied),
            self._bind_assign(BoundLaunch, self._assign, centers, stopped),
        ]


class SmallDMmaStep(SmallDStep):
    """Scores by products on tensor cores: small_d/iteration_mma.cuh."""

    comes_early = True

    def __init__(self, engine: FusedEngine, plan: ProductsPlan, k: int) -> None:
        super().__init__(engine, plan, k)
        (self._assign,) = load_kernels(engine, "small_d/iteration_mma.cuh", plan.kernel)
        self._assign.max_dynamic_shared_size_bytes = plan.shared_bytes
        if plan.multiplier is Multiplier.WARPGROUPS:
            self._of = self._products(tensor_error(2 * plan.padded), PARTS_ROUNDING[plan.dtype])
        else:
            self._of = self._of_warps()

    def _bind_all_rows(self, centers: Any, stopped: Any) -> list[Callable[[], None]]:
        return [self._bind_assign(DependentLaunch, self._assign, centers, stopped, self._of)]
