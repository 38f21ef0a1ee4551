"""Steps of the fused engine for few features and few clusters: X is read as it is.

See short_rows.cuh, few_features.cuh and few_products.cuh.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cupy
import numpy as np

from tsapps.apps.kmeans.few_plan import (
    FEW_BYTES,
    FEW_NAME,
    FEW_ROUNDING,
    PARTS_ROUNDING,
    PRODUCTS,
    FewPlan,
    Multiplier,
    ProductsPlan,
    few_scale,
)
from tsapps.apps.kmeans.fused_plan import padded, tensor_error
from tsapps.apps.kmeans.fused_step import Step
from tsapps.apps.kmeans.shadow import Placement, load_kernels
from tsapps.kernels.arrays import to_host
from tsapps.kernels.build import architecture, build
from tsapps.kernels.packed import OverlappingLaunch, PackedLaunch
from tsapps.kernels.plan import ELEMENT

if TYPE_CHECKING:
    from tsapps.apps.kmeans.fused import FusedEngine

__all__ = ["FewFeatures", "FewMultiplyAdds", "FewProducts", "few_step", "norms_of"]

_FOLDER = Path(__file__).parent
_PLACE_THREADS = 128
# As many blocks a multiprocessor as are resident.
_WIDEN_THREADS, _WIDEN_BLOCKS = 256, 8
# More than a norm in float64 may be off by in float32.
_ROUNDED_UP = 1.000001


def norms_of(engine: FusedEngine) -> tuple[float, float]:
    """Return the norm of what is subtracted from rows, and what no row's norm exceeds once it is."""
    return float(np.linalg.norm(to_host(engine.shift).astype(np.float64))), float(np.linalg.norm(engine.spread()[0]))


def few_step(engine: FusedEngine, plan: FewPlan | ProductsPlan, k: int) -> FewFeatures:
    """Return the step of a plan."""
    return FewMultiplyAdds(engine, plan, k) if isinstance(plan, FewPlan) else FewProducts(engine, plan, k)


class FewFeatures(Step):
    """A step for few features and few clusters, of samples without weights in float32 or 16 bits."""

    keeps_labels = True

    def __init__(self, engine: FusedEngine, plan: FewPlan | ProductsPlan, k: int, columns: int) -> None:
        of_mean, norm = norms_of(engine)
        warpgroups = isinstance(plan, ProductsPlan) and plan.multiplier is Multiplier.WARPGROUPS
        if warpgroups:  # they multiply rows from which no mean is subtracted
            norm += of_mean
        self._scale = np.float32(few_scale(norm, plan.dtype, warpgroups=warpgroups))
        # No row is beyond the reach.
        self._of_mean, self._norm = (np.float32(_ROUNDED_UP * self._scale * value) for value in (of_mean, norm))
        super().__init__(engine, Placement(columns, 0, self._scale, self._norm), k)
        # A byte each, in whole words; and the array that they were given to, and are still those of.
        self._labels = cupy.empty(-(-engine.n_samples // 4) * 4, np.int8)
        self._given: Any = None
        (self._widen,) = load_kernels(engine, "labels.cuh", "widen_labels")
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

    def _bind_assign(self, launch: type[PackedLaunch], kernel: Any, centers: Any, *more: Any) -> PackedLaunch:
        """Return the launch that gives every sample its label; what it is told beside is `more`."""
        engine = self.engine
        state = self._labels, self.device_sums, self.moved, self.stopped
        arguments = engine.rows_on_gpu, centers, np.int32(self.k), np.int64(engine.n_samples), *more, *state
        return launch(kernel, self._grid, self._threads, arguments, self._shared_bytes)


@cache
def _compiled(plan: FewPlan, scalar: str, device: int) -> tuple[str, str, str]:
    """Return where the machine code of a plan is, and its kernels: that which places their constants the second."""
    names = [f"kmeans::{name}" for name in (plan.kernel, f"place_constants<{scalar}>")]
    cubin = build((_FOLDER / plan.file).read_text(encoding="utf-8"), names, architecture(device))
    assign, place = (cubin.names[name] for name in names)
    return str(cubin.path), assign, place


def _with_constants(engine: FusedEngine, plan: FewPlan) -> tuple[Any, Any, int]:
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
        return assign, place, module.get_global_var(FEW_NAME)


class FewMultiplyAdds(FewFeatures):
    """Scores by multiply-adds, centres in constant memory: few_features.cuh and short_rows.cuh."""

    columns = 4

    def __init__(self, engine: FusedEngine, plan: FewPlan, k: int) -> None:
        super().__init__(engine, plan, k, padded(engine.n_features))
        self._plan = plan
        self._bounds = self._scale, self._norm, self._of_mean, np.bool_(not plan.shifts)
        self._assign, self._place_constants, self._in_constant_memory = _with_constants(engine, plan)
        self._constants = cupy.empty(FEW_BYTES, np.uint8)

    def _bind_rows(self, centers: Any) -> list[Callable[[], None]]:
        plan, k = self._plan, np.int32(self.k)
        d, clusters = np.int32(plan.features), np.int32(plan.clusters)
        given = self._offsets, self.engine.shift, self.move_scales
        placed = centers, k, d, clusters, *given, *self._bounds, self._constants
        stream, kind = cupy.cuda.get_current_stream().ptr, cupy.cuda.runtime.memcpyDeviceToDevice
        copied = self._in_constant_memory, self._constants.data.ptr, FEW_BYTES, kind, stream
        return [
            OverlappingLaunch(self._place_constants, (1,), (_PLACE_THREADS,), placed),
            partial(cupy.cuda.runtime.memcpyAsync, *copied),
            self._bind_assign(PackedLaunch, self._assign, centers),
        ]


class FewProducts(FewFeatures):
    """Scores by products on tensor cores: few_products.cuh."""

    columns = 8
    comes_early = True

    def __init__(self, engine: FusedEngine, plan: ProductsPlan, k: int) -> None:
        super().__init__(engine, plan, k, plan.padded)
        (self._assign,) = load_kernels(engine, "few_products.cuh", plan.kernel)
        self._assign.max_dynamic_shared_size_bytes = plan.shared_bytes
        exact = engine.rows_on_gpu.itemsize == 2 and not bool(engine.shift.any())
        given = self._halves, self._offsets, self._extremes, engine.shift, self.move_scales
        addresses = (one.data.ptr for one in given)
        if plan.multiplier is Multiplier.WARPGROUPS:
            lost = tensor_error(2 * plan.padded), PARTS_ROUNDING[plan.dtype]
        else:
            lost = tensor_error(plan.padded), 0.0 if exact else FEW_ROUNDING
        bounds = self._scale, self._norm, *lost
        self._products = np.array((*addresses, *bounds), PRODUCTS)[()]

    def _bind_rows(self, centers: Any) -> list[Callable[[], None]]:
        return [self._bind_assign(OverlappingLaunch, self._assign, centers, self._products)]
