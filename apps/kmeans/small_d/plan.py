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

#: Name of the constant-memory variable of small_d/constant_centers.cuh, and size of the variable in bytes.
CONSTANT_CENTERS_NAME, CONSTANT_CENTERS_BYTES = "constant_centers", 4 * (512 + 64 + 2 * 16 + 4)
#: The C++ class `Products` of small_d/half_centers.cuh, as a NumPy structure.
PRODUCTS = np.dtype(
    [(name, "u8") for name in ("centers_half", "offsets", "center_stats", "mean", "scales")]
    + [(name, "f4") for name in ("scale", "norm", "tensor_error", "rounding")]
)
#: Required alignment of X in bytes: the size of one asynchronous copy in small_d/tile_pipeline.cuh.
ALIGNMENT = 16
#: Maximum relative error of rounding an element to float16.
SMALL_D_ROUNDING = 2.0**-11
#: Maximum relative error of representing an element by the sum of two numbers of a 16-bit type.
PARTS_ROUNDING = {"float16": 2.0**-22, "bfloat16": 2.0**-18}
# Limits of the FMA kernels (kMostFeatures, kMostElements), as pairs: for d up to the first number, all centers together
# have at most the second number of elements.
_MOST_ELEMENTS = ((8, 512), (16, 320))
# iteration_fma_d4.cuh. _SHORT: the largest d. _SHORT_ELEMENTS: maximum number of elements of all centers; with more,
# reassigned rows take longer than in iteration_fma.cuh. _D4_ROWS: number of rows of a tile per thread.
_SHORT, _SHORT_ELEMENTS, _D4_ROWS = 4, 128, 8
# iteration_fma.cuh: number of rows of a tile per thread, for d up to `_SHORT` and for larger d.
_FOUR_ROWS, _TWO_ROWS = 4, 2
# Shared memory per label in small_d/own_score.cuh, in bytes (kRow).
_OWN_BYTES = 384
# Maximum size of a block's sums in bytes, which leaves shared memory for the pipelines.
_MOST_SUMS_BYTES = 72 * 1024
# The scale of rows is 2^e. _SMALL_D_NORM, _WGMMA_NORM: the largest scaled row norm is at most 2 to this power, for mma
# and for wgmma. _MOST_SCALE: the largest e for wgmma and float16, because centers are multiplied by the square of the
# scale (scores_wgmma.cuh) and must then fit in float16.
_SMALL_D_NORM, _WGMMA_NORM, _MOST_SCALE = 10, 6, 7
# Minimum d, and minimum number of elements of all centers, for which the tensor-core kernels were measured faster than
# the FMA kernels, although tensor-core kernels take longer for reassigned rows.
_LEAST_FOR_PRODUCTS, _LEAST_ELEMENTS = 5, 288
# The largest d for the tensor-core kernels, by itemsize. For larger d, reading the half-precision copy of X is faster.
_MOST_FOR_PRODUCTS = {4: 32, 2: 64}
# wgmma multiplies rows from which the mean is not subtracted. It is used only if ‖mean‖ is at most this many times the
# largest centered row norm.
_MOST_MEAN = 16.0
# Maximum number of steps of 16 features with which scores_mma.cuh keeps the centers in registers.
_STEPS_KEPT = 2
# Minimum size of a row in bytes for which bounds save time.
_LEAST_BOUNDED_BYTES = 32
# _THREADS: possible numbers of threads per block, best first. _STAGES: maximum number of pipeline stages per warp in
# iteration_mma.cuh.
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
        Number of rows of a tile that a thread processes.
    replicas : int
        Number of replicas of the cluster sums in shared memory.
    shifts : bool
        Whether scores are computed from centered rows; otherwise the biases include the mean.
    stages : int
        Number of pipeline stages per warp. The warp processes one stage while the copies to the others are in flight.
    threads : int
        Number of threads per block.
    blocks : int
        Number of blocks per multiprocessor.
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
        """Size of a block's sums in bytes: two limbs per feature and one count, for each cluster and replica."""
        return self.clusters * (2 * self.features + 1) * self.replicas * 4

    @property
    def short(self) -> bool:
        """True if the kernel is that of iteration_fma_d4.cuh: d ≤ 4, and all centers have at most 128 elements."""
        return self.features <= _SHORT and self.features * self.clusters <= _SHORT_ELEMENTS

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block in bytes: sums, and for each warp a pipeline and a queue of 64 rows.

        In iteration_fma_d4.cuh, a queued row includes its elements. Shared memory also holds the entries of
        own_score.cuh, one for each label and one for rows without a label.
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
    """The C++ enum of iteration_mma.cuh: mma with centers in registers, mma with centers in shared memory, or wgmma."""

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
        Number of blocks of eight centers.
    stages : int
        Number of pipeline stages per warp.
    multiplier : Multiplier
        The instruction that multiplies rows by centers. WARPGROUPS (wgmma) requires a 16-bit dtype of X.
    threads : int
        Number of threads per block.
    blocks : int
        Number of blocks per multiprocessor.
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
        """Number of elements of a float16 center: the number of features rounded up to a multiple of 16."""
        return -(-self.features // 16) * 16

    @property
    def centers_bytes(self) -> int:
        """Shared memory of the biases, and of the centers unless they are in registers, in bytes."""
        return {
            Multiplier.WARPS_KEEPING: 64 * self.columns,
            Multiplier.WARPS: (64 + 16 * self.padded) * self.columns,
            # Two parts of the centers, one step of biases, and the 64 constant rows that multiply the biases.
            Multiplier.WARPGROUPS: 16 * (2 * self.padded + 16) * self.columns + 64 * 32,
        }[self.multiplier]

    @property
    def sums_bytes(self) -> int:
        """Shared memory of a block's sums in bytes (small_d/bank_free_sums.cuh).

        The sums have two words per column and 32 row counts for each cluster. A table has twelve numbers for each of 32
        lanes.
        """
        width = 4 << ceil(log2(-(-self.features // 4)))
        return 8 * self.columns * 4 * (2 * max(width, 32) + 32) + 32 * 48

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block in bytes.

        It holds centers and sums. For each warp, it holds a pipeline of tiles of 32 rows with their labels, and queues
        of 32, 64 and 128 rows.
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
    """Template arguments and launch of iteration_bounded.cuh: mma with Hamerly bounds.

    The size of a row must be a multiple of 16 bytes.
    """

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block in bytes.

        It holds centers and sums. For each warp, it holds a pipeline of tiles of 32 rows, with the row indices and the
        words that hold the labels, and queues of 64 and 128 rows.
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
        Norm of the mean that kernels subtract from rows.
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
    warpgroups = dtype in PARTS_ROUNDING and device.has_wgmma and mean <= _MOST_MEAN * norm
    return products_plan(d, k, dtype, shared_memory, warpgroups=warpgroups)


def multiply_adds_plan(d: int, k: int, dtype: str, mean: float, norm: float, shared_memory: int) -> FmaPlan | None:
    """Return the plan of the FMA kernels; None if the centers exceed their limit or the sums exceed shared memory.

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
    # If shared memory is too small, reduce the number of replicas before the number of threads.
    sizes = ((3, 1), (2, 1), (2, 2), (2, 4))
    plans = (
        replace(plan, threads=threads, stages=stages, replicas=plan.replicas // share)
        for threads in _THREADS
        for stages, share in sizes
    )
    return next((plan for plan in plans if plan.shared_bytes <= shared_memory), None)


def products_plan(d: int, k: int, dtype: str, shared_memory: int, *, warpgroups: bool = False) -> ProductsPlan | None:
    """Return the plan of small_d/iteration_mma.cuh, for d <= 64 and k <= 64; None if it exceeds shared memory.

    `shared_memory` is the limit of a block in bytes. The plan has as many threads as fit, and then as many stages. If
    `warpgroups`, the kernel uses wgmma, which requires a 16-bit dtype; otherwise it uses mma.
    """
    multiplier = Multiplier.WARPGROUPS if warpgroups else _by_warps(d)
    return _first_that_fits(ProductsPlan(dtype, d, -(-k // 8), _STAGES, multiplier), shared_memory)


def _by_warps(d: int) -> Multiplier:
    """Return the place of the centers for mma: registers if the centers of d features fit, otherwise shared memory."""
    return Multiplier.WARPS_KEEPING if -(-d // 16) <= _STEPS_KEPT else Multiplier.WARPS


def _first_that_fits(plan: P, shared_memory: int) -> P | None:
    """Return `plan` with the most threads, then the most stages, that fit `shared_memory` bytes; None if none fits."""
    sizes = ((threads, stages) for threads in _THREADS for stages in range(_STAGES, 1, -1))
    plans = (replace(plan, threads=threads, stages=stages) for threads, stages in sizes)
    return next((one for one in plans if one.shared_bytes <= shared_memory), None)


def bounded_plan(d: int, k: int, dtype: str, shared_memory: int) -> BoundedPlan | None:
    """Return the plan of small_d/iteration_bounded.cuh.

    None if k is 1, if rows are too short for bounds to save time, if the size of a row is not a multiple of 16 bytes,
    or if no plan fits in `shared_memory` bytes.
    """
    row = d * ITEMSIZE[dtype]
    if k < 2 or row < _LEAST_BOUNDED_BYTES or row % ALIGNMENT:
        return None
    return _first_that_fits(BoundedPlan(dtype, d, -(-k // 8), _STAGES, _by_warps(d)), shared_memory)


def small_d_scale(norm: float, dtype: str = "float32", *, warpgroups: bool = False) -> float:
    """Return the power of two by which rows of `dtype` are scaled for the tensor cores.

    `norm` is an upper bound of the row norms. If `warpgroups`, wgmma multiplies rows that are not scaled; instead, the
    centers are multiplied by the square of the scale.
    """
    target = _WGMMA_NORM if warpgroups else _SMALL_D_NORM
    most = _MOST_SCALE if warpgroups and dtype == "float16" else MOST_EXPONENT
    exponent = target - ceil(log2(norm)) if 0 < norm < inf else 0
    return float(2.0 ** min(max(exponent, -MOST_EXPONENT), most))
