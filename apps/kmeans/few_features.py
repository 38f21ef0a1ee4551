"""A step of the fused engine for few features and few clusters: X is read as it is, see few_features.cuh."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import cupy
import numpy as np

from tsapps.apps.kmeans.fused_plan import FEW_BYTES, FEW_NAME, FewPlan, few_scale, padded
from tsapps.apps.kmeans.fused_step import Placement, Step
from tsapps.kernels.arrays import to_host
from tsapps.kernels.build import architecture, build
from tsapps.kernels.plan import ELEMENT

if TYPE_CHECKING:
    from tsapps.apps.kmeans.fused import FusedEngine

__all__ = ["FewFeatures", "norms_of"]

_FILE = Path(__file__).parent / "few_features.cuh"
_PLACE_THREADS = 128
# More than a norm in float64 may be off by in float32.
_ROUNDED_UP = 1.000001


def norms_of(engine: FusedEngine) -> tuple[float, float]:
    """Return the norm of what is subtracted from rows, and what no row's norm exceeds once it is."""
    return float(np.linalg.norm(to_host(engine.shift).astype(np.float64))), float(np.linalg.norm(engine.spread()[0]))


def _few_features(engine: FusedEngine, plan: FewPlan) -> tuple[Any, Any, int]:
    """Return the kernels of a plan, that which places their constants the second, and where those are.

    They are loaded for the caller alone, whose the constants are: CuPy's own modules of a file are one.
    """
    names = [f"kmeans::{name}" for name in (plan.kernel, f"place_constants<{ELEMENT[engine.dtype.name]}>")]
    source = _FILE.read_text(encoding="utf-8")
    cubin = build(source, names, architecture(engine.gpu_index))
    with cupy.cuda.Device(engine.gpu_index):
        module = cupy.cuda.function.Module()
        module.load_file(str(cubin.path))
        assign, place = (module.get_function(cubin.names[name]) for name in names)
        attribute = cupy.cuda.driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        cupy.cuda.driver.funcSetAttribute(assign.ptr, attribute, plan.shared_bytes)
        return assign, place, module.get_global_var(FEW_NAME)


class FewFeatures(Step):
    """A step for few features and few clusters, of samples without weights in float32 or 16 bits."""

    columns = 4

    def __init__(self, engine: FusedEngine, plan: FewPlan, k: int) -> None:
        of_mean, norm = norms_of(engine)
        scale = few_scale(norm)
        # No row is beyond the reach.
        norm, of_mean = (_ROUNDED_UP * scale * value for value in (norm, of_mean))
        d = engine.n_features
        super().__init__(engine, Placement(padded(d), 0, np.float32(scale), np.float32(norm)), k)
        self._plan = plan
        self._bounds = np.float32(scale), np.float32(norm), np.float32(of_mean), np.bool_(not plan.shifts)
        self._assign, self._place_constants, self._in_constant_memory = _few_features(engine, plan)
        self._constants = cupy.empty(FEW_BYTES, np.uint8)
        self._grid = (plan.grid(engine.n_samples, engine.gpu.multiprocessors),)

    def _move_rows(self, centers: Any) -> None:
        engine, plan, k = self.engine, self._plan, np.int32(self.k)
        d, clusters = np.int32(plan.features), np.int32(plan.clusters)
        given = self._offsets, self._extremes, engine.shift, self.move_scales
        placed = centers, k, d, clusters, *given, *self._bounds, self._constants
        self._place_constants((1,), (_PLACE_THREADS,), placed)
        stream, kind = cupy.cuda.get_current_stream().ptr, cupy.cuda.runtime.memcpyDeviceToDevice
        source = self._constants.data.ptr
        cupy.cuda.runtime.memcpyAsync(self._in_constant_memory, source, FEW_BYTES, kind, stream)
        state = engine.labels, self.device_sums, self.moved, self.stopped
        arguments = (engine.rows_on_gpu, centers, k, np.int64(engine.n_samples), *state)
        self._assign(self._grid, (plan.threads,), arguments, shared_mem=plan.shared_bytes)
