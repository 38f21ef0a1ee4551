"""Lloyd steps for small d and small k: one launch reads X once, labels the rows and updates the cluster sums.

Kernels: small_d/iteration_fma_d4.cuh, iteration_fma.cuh and iteration_mma.cuh; with Hamerly bounds
iteration_bounded.cuh.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tsapps.apps.kmeans.assign.plan import tensor_error
from tsapps.apps.kmeans.bounds.launch import Bounds
from tsapps.apps.kmeans.bounds.plan import ROW_BOUNDS, most_listed_small_d
from tsapps.apps.kmeans.data.device_data import DeviceData
from tsapps.apps.kmeans.data.half_copy import Placement
from tsapps.apps.kmeans.data.load import load_kernels
from tsapps.apps.kmeans.engines.device_step import DeviceStep
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
from tsapps.apps.kmeans.update.buffers import Layout
from tsapps.kernels.arrays import address, to_host
from tsapps.kernels.plan.mma import ELEMENT
from tsapps.kernels.runtime.launch import structure
from tsapps.kernels.runtime.machine import Launch

__all__ = ["SmallDFmaStep", "SmallDMmaStep", "norms_of"]

_FOLDER = Path(__file__).parents[1]
_PLACE_THREADS = 128
# widen_labels of data/labels.cuh: threads per block, and resident blocks per multiprocessor.
_WIDEN_THREADS, _WIDEN_BLOCKS = 256, 8
# Factor by which upper bounds of norms are raised, so that they remain upper bounds after rounding to float32.
_ROUNDED_UP = 1.000001


def norms_of(data: DeviceData, subtracted: np.ndarray | None = None) -> tuple[float, float]:
    """Return ‖s‖, and an upper bound of ‖x − s‖ over the rows x.

    s is `subtracted` (d,), the point that kernels subtract from rows on read; by default `data.shift`.
    """
    shift = to_host(data.shift) if subtracted is None else subtracted.astype(data.dtype)
    return float(np.linalg.norm(shift.astype(np.float64))), float(np.linalg.norm(data.spread(subtracted)[0]))


class SmallDStep(DeviceStep):
    """Lloyd step for small d and small k, on unweighted samples in float32 or a 16-bit type."""

    # The kernel that labels all rows and updates the sums, without bounds.
    _assign: Any

    def __init__(self, data: DeviceData, plan: FmaPlan | ProductsPlan, k: int, *, bounds: bool) -> None:
        of_mean, norm = norms_of(data)
        warpgroups = isinstance(plan, ProductsPlan) and plan.multiplier is Multiplier.WARPGROUPS
        if warpgroups:  # scores_wgmma.cuh multiplies rows of X without subtracting the mean
            norm += of_mean
        self._scale = np.float32(small_d_scale(norm, plan.dtype, warpgroups=warpgroups))
        # `_norm` is an upper bound of the norms of all scaled rows, so it also serves as the norm limit of
        # update/centers.cuh.
        self._mean_norm, self._norm = (np.float32(_ROUNDED_UP * self._scale * value) for value in (of_mean, norm))
        self._padded = -(-plan.features // 16) * 16
        # iteration_mma.cuh and iteration_bounded.cuh score centers in blocks of 8.
        layout = Layout(Placement(self._padded, 0, self._scale, self._norm), 8, labels="int8")
        super().__init__(data, k, layout, bounds=bounds, certifies=True)
        # Copy of the labels as int32, and whether that copy is up to date.
        self._labels_int32: Any = None
        self._labels_are_current = False
        (self._widen,) = load_kernels(data.machine, "data/labels.cuh", "widen_labels")
        self._threads, self._shared_bytes = (plan.threads,), plan.shared_bytes
        self._grid = (plan.grid(data.n_samples, data.gpu.multiprocessors),)

    @property
    def labels(self) -> Any:
        """Label of each sample, (n,), int32, widened from int8 on demand."""
        if self._labels_int32 is None:
            self._labels_int32 = self.data.xp.empty(self.data.n_samples, np.int32)
        if not self._labels_are_current:
            grid, n = self.data.gpu.multiprocessors * _WIDEN_BLOCKS, np.int64(self.data.n_samples)
            self._widen((grid,), (_WIDEN_THREADS,), (self.buffers.labels, n, self._labels_int32))
            self._labels_are_current = True
        return self._labels_int32

    def reset(self) -> None:
        """Set every label to −1 and the sums to zero; see `Step.reset`."""
        super().reset()
        self._labels_are_current = False

    def assign_final(self, centers: np.ndarray) -> None:
        """Label every sample with the nearest center; see `Step.assign_final`."""
        self._labels_are_current = False
        super().assign_final(centers)

    def begin(self, centers: np.ndarray) -> None:
        self._labels_are_current = False
        super().begin(centers)

    def _products_argument(self, tensor_error: float, rounding: float) -> Any:
        """Return the `PRODUCTS` argument of the kernels that use tensor cores.

        The heads of scores_mma.cuh and scores_wgmma.cuh call `tensor_error` γ, and `rounding` ρ or r.
        """
        of = self.buffers
        return structure(
            PRODUCTS,
            centers_half=of.centers_half,
            offsets=of.offsets,
            center_stats=of.center_stats,
            mean=self.data.shift,
            scales=of.scales,
            scale=self._scale,
            norm=self._norm,
            tensor_error=tensor_error,
            rounding=rounding,
        )

    def _mma_products(self) -> Any:
        """Return the `PRODUCTS` argument of scores_mma.cuh, which rounds rows to float16."""
        exact = self.data.rows_on_gpu.itemsize == 2 and not bool(self.data.shift.any())
        return self._products_argument(tensor_error(self._padded), 0.0 if exact else SMALL_D_ROUNDING)

    def _new_bounds(self) -> Bounds | None:
        data = self.data
        dtype, shared_memory = data.rows_on_gpu.dtype.name, data.gpu.shared_memory_per_block
        plan = bounded_plan(data.n_features, self.k, dtype, shared_memory)
        if plan is None:
            return None
        (self._assign_bounded,) = load_kernels(data.machine, "small_d/iteration_bounded.cuh", plan.kernel)
        self._assign_bounded.max_dynamic_shared_size_bytes = plan.shared_bytes
        self._bounded_plan, self._bounded_products = plan, self._mma_products()
        return Bounds(data, self.k, most_listed_small_d(data.n_samples), "kmeans::Label")

    def _bind_rows(self, centers: Any) -> Sequence[Callable[[], None]]:
        bounds, stopped = self.bounds, self.buffers.stopped
        if bounds is None or not self._bounded:
            return self._bind_all_rows(centers, stopped)
        plan, kept = self._bounded_plan, ("row_bounds", "limits", "active", "state")
        row_bounds = structure(ROW_BOUNDS, **{name: getattr(bounds, name) for name in kept})
        grid = (plan.grid(self.data.n_samples, self.data.gpu.multiprocessors),)
        given = self._arguments(centers, stopped, self._bounded_products, row_bounds)
        return [
            bounds.bind_select(self.buffers.labels, stopped),
            self.data.machine.bind(self._assign_bounded, grid, (plan.threads,), given, plan.shared_bytes),
            *self._bind_all_rows(centers, bounds.skip_full_assign),
        ]

    @abstractmethod
    def _bind_all_rows(self, centers: Any, stopped: Any) -> Sequence[Callable[[], None]]:
        """Return the launches that label all rows without bounds; their kernels do nothing if `stopped` is nonzero."""

    def _arguments(self, centers: Any, stopped: Any, *more: Any) -> tuple[Any, ...]:
        """Return the arguments of an assignment kernel; `more` are the arguments that only that kernel has."""
        of = self.buffers
        given = self.data.rows_on_gpu, centers, np.int32(self.k), np.int64(self.data.n_samples)
        return *given, *more, of.labels, of.sums, of.n_reassigned, stopped

    def _bind_assign(self, centers: Any, stopped: Any, *more: Any, dependent: bool) -> Launch:
        """Return a bound launch of the kernel `_assign`; see `_arguments` for the arguments.

        `dependent` selects programmatic dependent launch.
        """
        arguments = self._arguments(centers, stopped, *more)
        grid, threads = self._grid, self._threads
        return self.data.machine.bind(self._assign, grid, threads, arguments, self._shared_bytes, dependent=dependent)


class SmallDFmaStep(SmallDStep):
    """Small-d Lloyd step by FMA, with centers in constant memory: iteration_fma.cuh and iteration_fma_d4.cuh."""

    def __init__(self, data: DeviceData, plan: FmaPlan, k: int, *, bounds: bool) -> None:
        super().__init__(data, plan, k, bounds=bounds)
        self._plan = plan
        self._norms = self._scale, self._norm, self._mean_norm, np.bool_(not plan.shifts)
        names = [f"kmeans::{name}" for name in (plan.kernel, f"place_constants<{ELEMENT[data.dtype.name]}>")]
        kernels, self._in_constant_memory = data.machine.private_kernels(
            _FOLDER / plan.file, names, CONSTANT_CENTERS_NAME
        )
        self._assign, self._place_constants = kernels
        self._assign.max_dynamic_shared_size_bytes = plan.shared_bytes
        self._constants = data.xp.empty(CONSTANT_CENTERS_BYTES, np.uint8)

    def _bind_all_rows(self, centers: Any, stopped: Any) -> Sequence[Callable[[], None]]:
        plan, k = self._plan, np.int32(self.k)
        d, clusters = np.int32(plan.features), np.int32(plan.clusters)
        given = self.buffers.offsets, self.data.shift, self.buffers.scales
        placed = centers, k, d, clusters, *given, *self._norms, self._constants
        machine = self.data.machine
        return [
            machine.bind(self._place_constants, (1,), (_PLACE_THREADS,), placed),
            machine.bind_copy(self._in_constant_memory, address(self._constants), CONSTANT_CENTERS_BYTES),
            self._bind_assign(centers, stopped, dependent=False),
        ]


class SmallDMmaStep(SmallDStep):
    """Small-d Lloyd step by tensor cores: small_d/iteration_mma.cuh."""

    starts_early = True

    def __init__(self, data: DeviceData, plan: ProductsPlan, k: int, *, bounds: bool) -> None:
        super().__init__(data, plan, k, bounds=bounds)
        (self._assign,) = load_kernels(data.machine, "small_d/iteration_mma.cuh", plan.kernel)
        self._assign.max_dynamic_shared_size_bytes = plan.shared_bytes
        if plan.multiplier is Multiplier.WARPGROUPS:
            self._products_of = self._products_argument(tensor_error(2 * plan.padded), PARTS_ROUNDING[plan.dtype])
        else:
            self._products_of = self._mma_products()

    def _bind_all_rows(self, centers: Any, stopped: Any) -> Sequence[Callable[[], None]]:
        return [self._bind_assign(centers, stopped, self._products_of, dependent=True)]
