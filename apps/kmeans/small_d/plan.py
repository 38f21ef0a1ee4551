"""Plans of the fused iteration kernels for small d and small k: template arguments and launch, from sizes (pure)."""

from dataclasses import dataclass, replace
from enum import Enum
from math import ceil, inf, log2
from typing import TypeVar

import numpy as np

from tsapps.apps.kmeans.assign.plan import MOST_CLUSTERS
from tsapps.apps.kmeans.data.plan import MOST_EXPONENT
from tsapps.kernels.gpu_specs import GpuSpec
from tsapps.kernels.plan.mma import ELEMENT
from tsapps.kernels.problem import ITEMSIZE

__all__ = [
    "ALIGNMENT",
    "CONSTANT_CENTERS_BYTES",
    "CONSTANT_CENTERS_NAME",
    "PARTS_ROUNDING",
    "PRODUCTS",
    "SMALL_D_ROUNDING",
    "BoundedPlan",
    "FmaPlan",
    "Multiplier",
    "ProductsPlan",
    "bounded_plan",
    "fma_plan",
    "multiply_adds_plan",
    "products_plan",
    "small_d_scale",
]

#: Name of the constant-memory variable in small_d/constant_centers.cuh, and the size of its class, `ConstantCenters`.
CONSTANT_CENTERS_NAME, CONSTANT_CENTERS_BYTES = "constant_centers", 4 * (512 + 64 + 2 * 16 + 4)
#: The C++ class `Products` of small_d/half_centers.cuh, as a NumPy structure.
PRODUCTS = np.dtype(
    [(name, "u8") for name in ("centers_half", "offsets", "center_stats", "mean", "scales")]
    + [(name, "f4") for name in ("scale", "norm", "tensor_error", "rounding")]
)
#: Required alignment of X in bytes: the unit that small_d/tile_pipeline.cuh copies.
ALIGNMENT = 16
#: Relative rounding error of an element in float16.
SMALL_D_ROUNDING = 2.0**-11
#: Relative rounding error of an element that is split into two parts of a 16-bit type.
PARTS_ROUNDING = {"float16": 2.0**-22, "bfloat16": 2.0**-18}
# (d, elements of all centers): the upper limits of the FMA kernels (kMostFeatures, kMostElements).
_MOST_ELEMENTS = ((8, 512), (16, 320))
# iteration_fma_d4.cuh: the largest d; the most elements of all centers, above which its reassigned rows take longer
# than those of iteration_fma.cuh; and the rows of a thread.
_SHORT, _SHORT_ELEMENTS, _D4_ROWS = 4, 128, 8
# iteration_fma.cuh: rows of a thread for d up to `_SHORT`, and for larger d.
_FOUR_ROWS, _TWO_ROWS = 4, 2
# Shared memory per label in small_d/own_score.cuh, in bytes (kRow).
_OWN_BYTES = 384
# The most bytes of a block's sums, which leaves shared memory for the pipelines.
_MOST_SUMS_BYTES = 72 * 1024
# Target exponent of the largest scaled row norm, for mma by warps and for wgmma. Largest exponent of the scale for
# wgmma: centers are multiplied by the square of the scale (scores_wgmma.cuh), and the products must fit in float16.
_SMALL_D_NORM, _WGMMA_NORM, _MOST_SCALE = 10, 6, 7
# The least d, and the least elements of all centers, for which tensor cores were measured faster than FMA kernels,
# although reassigned rows take longer there.
_LEAST_FOR_PRODUCTS, _LEAST_ELEMENTS = 5, 288
# The largest d for the tensor-core kernels, by itemsize. For larger d, reading the half-precision copy of X is faster.
_MOST_FOR_PRODUCTS = {4: 32, 2: 64}
# Warpgroups multiply rows that are not centered, if ‖mean‖ is at most this many times the largest centered row norm.
_MOST_MEAN = 16.0
# Steps of 16 features for which scores_mma.cuh keeps the centers in registers, next to the scores of a tile.
_STEPS_KEPT = 2
# The least row size in bytes for which bounds save time.
_LEAST_BOUNDED_BYTES = 32
# Threads of a block, best first; the most pipeline stages of a warp in iteration_mma.cuh.
_THREADS, _STAGES = (512, 384, 256), 4


@dataclass(frozen=True)
class FmaPlan:
    """Template arguments and launch of small_d/iteration_fma.cuh or small_d/iteration_fma_d4.cuh.

    Attributes
    ----------
    dtype : str
        Dtype of X.
    features : int
    clusters : int
        k rounded up to a multiple of four.
    rows : int
        Rows of a tile per thread.
    replicas : int
        Replicas of the sums in shared memory.
    shifts : bool
        Whether scores are computed from centered rows; otherwise the biases include the mean.
    stages : int
        Pipeline stages of a warp: one stage is processed while the others are in flight.
    threads : int
        Threads of a block.
    blocks : int
        Blocks per multiprocessor.
    """

    dtype: str
    features: int
    clusters: int
    rows: int
    replicas: int
    shifts: bool
    stages: int = 3
    threads: int = 512
    blocks: int = 1

    @property
    def sums_bytes(self) -> int:
        """Bytes of a block's sums: two limbs of each feature, and a count, for each cluster and replica."""
        return self.clusters * (2 * self.features + 1) * self.replicas * 4

    @property
    def short(self) -> bool:
        """Whether the kernel is that of small_d/iteration_fma_d4.cuh."""
        return self.features <= _SHORT and self.features * self.clusters <= _SHORT_ELEMENTS

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block in bytes: sums, and for each warp a pipeline and a queue of 64 rows.

        In iteration_fma_d4.cuh, a queued row includes its elements, and shared memory also holds the tables of
        own_score.cuh, one for every label and one for no label.
        """
        row = self.features * ITEMSIZE[self.dtype]
        pipeline = self.stages * self.rows * (row + 1)
        queue = 2 * (8 + (-(-row // 8) * 8 if self.short else 0))
        own = (self.clusters + 1) * _OWN_BYTES if self.short else 0
        return self.sums_bytes + own + self.threads * (pipeline + queue)

    @property
    def file(self) -> str:
        """File of the kernel, relative to apps/kmeans."""
        return "small_d/iteration_fma_d4.cuh" if self.short else "small_d/iteration_fma.cuh"

    @property
    def kernel(self) -> str:
        """Name expression of the kernel in namespace kmeans."""
        name = "assign_d4" if self.short else "assign_rows"
        numbers = f"{self.features}, {self.clusters}, {self.rows}, {str(self.shifts).lower()}, {self.replicas}"
        return f"{name}<{ELEMENT[self.dtype]}, {numbers}, {self.stages}, {self.threads}, {self.blocks}>"

    def grid(self, n: int, multiprocessors: int) -> int:
        """Return the blocks of a launch over n rows: as many as are resident, or fewer if n has fewer tiles."""
        return min(multiprocessors * self.blocks, -(-n // (self.threads * self.rows)))


class Multiplier(Enum):
    """The C++ enum of small_d/iteration_mma.cuh: mma, with the centers in registers or shared memory, or wgmma."""

    WARPS_KEEPING = "kWarpsKeeping"
    WARPS = "kWarps"
    WARPGROUPS = "kWarpgroups"


@dataclass(frozen=True)
class ProductsPlan:
    """Template arguments and launch of small_d/iteration_mma.cuh.

    Attributes
    ----------
    dtype : str
        Dtype of X.
    features : int
    columns : int
        Blocks of eight centers.
    stages : int
        Pipeline stages of a warp.
    multiplier : Multiplier
        Warpgroups require a 16-bit type.
    threads : int
        Threads of a block.
    blocks : int
        Blocks per multiprocessor.
    """

    dtype: str
    features: int
    columns: int
    stages: int
    multiplier: Multiplier
    threads: int = 512
    blocks: int = 1

    @property
    def padded(self) -> int:
        """Elements of a float16 center: features rounded up to a multiple of 16."""
        return -(-self.features // 16) * 16

    @property
    def centers_bytes(self) -> int:
        """Shared memory of biases and, unless these are in registers, centers, in bytes."""
        return {
            Multiplier.WARPS_KEEPING: 64 * self.columns,
            Multiplier.WARPS: (64 + 16 * self.padded) * self.columns,
            # Two parts of the centers, one step of biases, and the 64 constant rows by which the biases are multiplied.
            Multiplier.WARPGROUPS: 16 * (2 * self.padded + 16) * self.columns + 64 * 32,
        }[self.multiplier]

    @property
    def sums_bytes(self) -> int:
        """Shared memory of a block's sums in bytes (small_d/bank_free_sums.cuh).

        It has two words per column and 32 row counts for each cluster, and twelve numbers for each lane of a warp.
        """
        width = 4 << ceil(log2(-(-self.features // 4)))
        return 8 * self.columns * 4 * (2 * max(width, 32) + 32) + 32 * 48

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block in bytes.

        It holds centers and sums, and for each warp a pipeline of tiles of 32 rows with their labels, and queues of 32,
        64 and 128 rows.
        """
        pipeline = self.stages * (self.features * ITEMSIZE[self.dtype] + 1)
        queues = self.threads // 32 * (32 * 8 + 64 * 16 + 128 * 8)
        return self.threads * pipeline + self.centers_bytes + self.sums_bytes + queues

    @property
    def kernel(self) -> str:
        """Name expression of the kernel in namespace kmeans."""
        kinds = f"{self.stages}, kmeans::Multiplier::{self.multiplier.value}, {self.threads}, {self.blocks}"
        return f"assign_by_products<{ELEMENT[self.dtype]}, {self.features}, {self.columns}, {kinds}>"

    def grid(self, n: int, multiprocessors: int) -> int:
        """Return the blocks of a launch over n rows: as many as are resident, or fewer if n has fewer tiles."""
        return min(multiprocessors * self.blocks, -(-n // self.threads))


@dataclass(frozen=True)
class BoundedPlan(ProductsPlan):
    """Template arguments and launch of iteration_bounded.cuh: mma with bounds, for rows of whole 16-byte vectors."""

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block in bytes.

        It holds centers and sums, and for each warp a pipeline of 32 rows with their indices and the words that hold
        their labels, and queues of 64 and 128 rows.
        """
        pipeline = self.stages * (self.features * ITEMSIZE[self.dtype] + 8)
        queues = self.threads // 32 * (64 * 16 + 128 * 8)
        return self.threads * pipeline + self.centers_bytes + self.sums_bytes + queues

    @property
    def kernel(self) -> str:
        """Name expression of the kernel in namespace kmeans."""
        keeps = str(self.multiplier is Multiplier.WARPS_KEEPING).lower()
        numbers = f"{self.features}, {self.columns}, {keeps}, {self.stages}, {self.threads}"
        return f"assign_bounded<{ELEMENT[self.dtype]}, {numbers}>"


P = TypeVar("P", bound=ProductsPlan)


def fma_plan(d: int, k: int, dtype: str, mean: float, norm: float, device: GpuSpec) -> FmaPlan | ProductsPlan | None:
    """Select the kernel of an iteration for small d and small k.

    Parameters
    ----------
    d, k : int
    dtype : {"float32", "float16", "bfloat16"}
        Dtype of X.
    mean : float
        Norm of the mean that is subtracted.
    norm : float
        Upper bound of the centered row norms.
    device : GpuSpec

    Returns
    -------
    FmaPlan, ProductsPlan or None
        None if d or k is too large.

    Notes
    -----
    The FMA kernels need somewhat more than k · (d + 3) instructions per row. The headers iteration_fma.cuh,
    iteration_fma_d4.cuh, scores_mma.cuh and scores_wgmma.cuh state instruction counts.
    """
    shared_memory = device.shared_memory_per_block
    if d < _LEAST_FOR_PRODUCTS or d * k < _LEAST_ELEMENTS:
        plan = multiply_adds_plan(d, k, dtype, mean, norm, shared_memory)
        if plan is not None:
            return plan
    if k > MOST_CLUSTERS or d > _MOST_FOR_PRODUCTS[ITEMSIZE[dtype]]:
        return None
    warpgroups = dtype in PARTS_ROUNDING and device.compute_capability == "9.0" and mean <= _MOST_MEAN * norm
    return products_plan(d, k, dtype, shared_memory, warpgroups=warpgroups)


def multiply_adds_plan(d: int, k: int, dtype: str, mean: float, norm: float, shared_memory: int) -> FmaPlan | None:
    """Return the plan of the FMA kernels; None if the centers exceed constant memory or the sums shared memory.

    `shared_memory` is the limit of a block in bytes. See `fma_plan` for the other parameters.
    """
    clusters = -(-k // 4) * 4
    most = next((elements for features, elements in _MOST_ELEMENTS if d <= features), 0)
    if clusters > MOST_CLUSTERS or d * clusters > most:
        return None
    # If ‖mean‖ <= norm, rows need not be centered: the score error bound at most doubles.
    plan = FmaPlan(dtype, d, clusters, _FOUR_ROWS if d <= _SHORT else _TWO_ROWS, 32, mean > norm)
    if plan.short:
        plan = replace(plan, rows=_D4_ROWS)
    while plan.sums_bytes > _MOST_SUMS_BYTES:
        plan = replace(plan, replicas=plan.replicas // 2)
    # Reduce the number of replicas before the number of warps.
    sizes = ((3, 1), (2, 1), (2, 2), (2, 4))
    plans = (
        replace(plan, threads=threads, stages=stages, replicas=plan.replicas // share)
        for threads in _THREADS
        for stages, share in sizes
    )
    return next((plan for plan in plans if plan.shared_bytes <= shared_memory), None)


def products_plan(d: int, k: int, dtype: str, shared_memory: int, *, warpgroups: bool = False) -> ProductsPlan | None:
    """Return the plan of small_d/iteration_mma.cuh, for d <= 64 and k <= 64; None if it exceeds shared memory.

    `shared_memory` is the limit of a block in bytes. The plan has as many warps as possible, then as many stages.
    `warpgroups` (wgmma) require a 16-bit type.
    """
    multiplier = Multiplier.WARPGROUPS if warpgroups else _by_warps(d)
    return _first_that_fits(ProductsPlan(dtype, d, -(-k // 8), _STAGES, multiplier), shared_memory)


def _by_warps(d: int) -> Multiplier:
    """Return how warps multiply rows of d features by mma."""
    return Multiplier.WARPS_KEEPING if -(-d // 16) <= _STEPS_KEPT else Multiplier.WARPS


def _first_that_fits(plan: P, shared_memory: int) -> P | None:
    """Return `plan` with the most threads, then the most stages, that fit `shared_memory` bytes; None if none fits."""
    sizes = ((threads, stages) for threads in _THREADS for stages in range(_STAGES, 1, -1))
    plans = (replace(plan, threads=threads, stages=stages) for threads, stages in sizes)
    return next((one for one in plans if one.shared_bytes <= shared_memory), None)


def bounded_plan(d: int, k: int, dtype: str, shared_memory: int) -> BoundedPlan | None:
    """Return the plan of small_d/iteration_bounded.cuh.

    None if rows are too short for bounds to save time, if rows are not whole 16-byte vectors, or if no plan fits
    `shared_memory` bytes.
    """
    row = d * ITEMSIZE[dtype]
    if k < 2 or row < _LEAST_BOUNDED_BYTES or row % ALIGNMENT:
        return None
    return _first_that_fits(BoundedPlan(dtype, d, -(-k // 8), _STAGES, _by_warps(d)), shared_memory)


def small_d_scale(norm: float, dtype: str = "float32", *, warpgroups: bool = False) -> float:
    """Return the power of two that scales rows of `dtype` for the tensor cores; `norm` bounds the row norms.

    `warpgroups` (wgmma) multiply rows that are not scaled, so the centers are multiplied by the square of the scale.
    """
    target = _WGMMA_NORM if warpgroups else _SMALL_D_NORM
    most = _MOST_SCALE if warpgroups and dtype == "float16" else MOST_EXPONENT
    exponent = target - ceil(log2(norm)) if 0 < norm < inf else 0
    return float(2.0 ** min(max(exponent, -MOST_EXPONENT), most))
