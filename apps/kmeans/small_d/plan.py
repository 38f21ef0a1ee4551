"""What an iteration for few features and few clusters is made of, chosen from sizes alone."""

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

#: The variable in constant memory of small_d/constant_centers.cuh, and the bytes of its class, `ConstantCenters`.
CONSTANT_CENTERS_NAME, CONSTANT_CENTERS_BYTES = "constant_centers", 4 * (512 + 64 + 2 * 16 + 4)
#: The C++ class `Products` of small_d/half_centers.cuh, as a NumPy structure.
PRODUCTS = np.dtype(
    [(name, "u8") for name in ("centers_half", "offsets", "center_stats", "mean", "scales")]
    + [(name, "f4") for name in ("scale", "norm", "tensor_error", "rounding")]
)
#: Bytes that X begins at a multiple of: those that small_d/tile_pipeline.cuh copies at a time.
ALIGNMENT = 16
#: The most that float16 loses of an element, beside it.
SMALL_D_ROUNDING = 2.0**-11
#: The most that two parts of a type lose of an element, beside it.
PARTS_ROUNDING = {"float16": 2.0**-22, "bfloat16": 2.0**-18}
# Up to so many features, the elements of centers that constant memory has (kMostFeatures, kMostElements).
_MOST_ELEMENTS = ((8, 512), (16, 320))
# Up to so many features, and elements of centers, rows are iteration_fma_d4.cuh's, of a thread so many at a time. (Of
# more, rows that move cost more there.) Those of small_d/iteration_fma.cuh, of as few features and of more.
_SHORT, _SHORT_ELEMENTS, _D4_ROWS = 4, 128, 8
_FOUR_ROWS, _TWO_ROWS = 4, 2
# What small_d/own_score.cuh has of a label, in bytes (kRow).
_OWN_BYTES = 384
# The bytes of a block's sums, which leave the rings room.
_MOST_SUMS_BYTES = 72 * 1024
# The exponents of the norm that the largest row of few features is scaled to, by warps and by warpgroups; and the most
# of the scale by warpgroups, whose square a center is multiplied by (scores_wgmma.cuh): float16 then has room for it.
_SMALL_D_NORM, _NORM_AS_IT_LIES, _MOST_SCALE = 10, 6, 7
# Features and elements of centers from which on tensor cores were faster, though rows that move cost more there; and
# the most features, by the bytes of one: of more, an iteration reads less of X's copy.
_LEAST_FOR_PRODUCTS, _LEAST_ELEMENTS = 5, 288
_MOST_FOR_PRODUCTS = {4: 32, 2: 64}
# The norm of the mean, beside the largest of what is left of rows, up to which warpgroups multiply rows as they are.
_MOST_MEAN = 16.0
# Steps of the product of which small_d/scores_mma.cuh has room for the centers in registers, beside a tile's scores.
_STEPS_KEPT = 2
# Bytes of a row from which on it has bounds.
_LEAST_LEFT_OUT = 32
# The threads of a block, those that are better first; and the most stages of a warp's ring in iteration_mma.cuh.
_THREADS, _STAGES = (512, 384, 256), 4


@dataclass(frozen=True)
class FmaPlan:
    """How small_d/iteration_fma.cuh, or small_d/iteration_fma_d4.cuh, computes an iteration: their template arguments.

    Attributes
    ----------
    dtype : str
        Of X.
    features : int
    clusters : int
        Rounded up to whole fours.
    rows : int
        Of a thread at a time.
    replicas : int
        Of the sums in shared memory.
    shifts : bool
        Whether scores are of rows from which the mean was subtracted.
    stages : int
        Tiles of a warp in shared memory, of which one is computed.
    threads, blocks : int
        Threads of a block, and blocks of a multiprocessor.
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
        """Bytes of a block's sums: two digits of every feature and a count, in every replica."""
        return self.clusters * (2 * self.features + 1) * self.replicas * 4

    @property
    def short(self) -> bool:
        """Whether rows are small_d/iteration_fma_d4.cuh's."""
        return self.features <= _SHORT and self.features * self.clusters <= _SHORT_ELEMENTS

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block: sums, a ring a warp, and a queue a warp of 64 rows.

        Short rows wait with their elements; and of their labels, and of none, there are the score's constants.
        """
        row = self.features * ITEMSIZE[self.dtype]
        pipeline = self.stages * self.rows * (row + 1)
        queue = 2 * (8 + (-(-row // 8) * 8 if self.short else 0))
        own = (self.clusters + 1) * _OWN_BYTES if self.short else 0
        return self.sums_bytes + own + self.threads * (pipeline + queue)

    @property
    def file(self) -> str:
        """The file of the kernel."""
        return "small_d/iteration_fma_d4.cuh" if self.short else "small_d/iteration_fma.cuh"

    @property
    def kernel(self) -> str:
        """The name expression of the kernel, in its namespace."""
        name = "assign_d4" if self.short else "assign_rows"
        numbers = f"{self.features}, {self.clusters}, {self.rows}, {str(self.shifts).lower()}, {self.replicas}"
        return f"{name}<{ELEMENT[self.dtype]}, {numbers}, {self.stages}, {self.threads}, {self.blocks}>"

    def grid(self, n: int, multiprocessors: int) -> int:
        """Return the blocks of a launch: those that are resident, if there is a tile for each of their warps."""
        return min(multiprocessors * self.blocks, -(-n // (self.threads * self.rows)))


class Multiplier(Enum):
    """The C++ enum of small_d/iteration_mma.cuh: what multiplies, and where it has the centers."""

    WARPS_KEEPING = "kWarpsKeeping"
    WARPS = "kWarps"
    WARPGROUPS = "kWarpgroups"


@dataclass(frozen=True)
class ProductsPlan:
    """How small_d/iteration_mma.cuh computes an iteration: its template arguments.

    Attributes
    ----------
    dtype : str
        Of X.
    features : int
    columns : int
        Blocks of eight centers.
    stages : int
        Tiles of a warp that are in shared memory, or on their way there.
    multiplier : Multiplier
        Warpgroups take 16 bits.
    threads, blocks : int
        Threads of a block, and blocks of a multiprocessor.
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
        """Elements of a center in float16."""
        return -(-self.features // 16) * 16

    @property
    def centers_bytes(self) -> int:
        """Shared memory of what is multiplied by: offsets, and centers if they are not in registers."""
        return {
            Multiplier.WARPS_KEEPING: 64 * self.columns,
            Multiplier.WARPS: (64 + 16 * self.padded) * self.columns,
            # Two parts, a step for offsets, and its 64 rows of weights.
            Multiplier.WARPGROUPS: 16 * (2 * self.padded + 16) * self.columns + 64 * 32,
        }[self.multiplier]

    @property
    def sums_bytes(self) -> int:
        """Shared memory of a block's sums.

        Twelve numbers a lane, and of every cluster two words of each column and 32 counts of rows.
        """
        width = 4 << ceil(log2(-(-self.features // 4)))
        return 8 * self.columns * 4 * (2 * max(width, 32) + 32) + 32 * 48

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block.

        A ring a warp, of 32 rows and their labels; what is multiplied by; sums; and three queues a warp, of 32 rows, 64
        and 128.
        """
        pipeline = self.stages * (self.features * ITEMSIZE[self.dtype] + 1)
        queues = self.threads // 32 * (32 * 8 + 64 * 16 + 128 * 8)
        return self.threads * pipeline + self.centers_bytes + self.sums_bytes + queues

    @property
    def kernel(self) -> str:
        """The name expression of the kernel, in its namespace."""
        kinds = f"{self.stages}, kmeans::Multiplier::{self.multiplier.value}, {self.threads}, {self.blocks}"
        return f"assign_by_products<{ELEMENT[self.dtype]}, {self.features}, {self.columns}, {kinds}>"

    def grid(self, n: int, multiprocessors: int) -> int:
        """Return the blocks of a launch: those that are resident, if there is a tile for each of their warps."""
        return min(multiprocessors * self.blocks, -(-n // self.threads))


@dataclass(frozen=True)
class BoundedPlan(ProductsPlan):
    """How iteration_bounded.cuh computes an iteration with bounds, by warps, of rows of whole 16-byte units."""

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block.

        A ring a warp, of 32 rows, their numbers and the words of their labels; what is multiplied by; sums; and two
        queues a warp, of 64 rows and 128.
        """
        pipeline = self.stages * (self.features * ITEMSIZE[self.dtype] + 8)
        queues = self.threads // 32 * (64 * 16 + 128 * 8)
        return self.threads * pipeline + self.centers_bytes + self.sums_bytes + queues

    @property
    def kernel(self) -> str:
        """The name expression of the kernel, in its namespace."""
        keeps = str(self.multiplier is Multiplier.WARPS_KEEPING).lower()
        numbers = f"{self.features}, {self.columns}, {keeps}, {self.stages}, {self.threads}"
        return f"assign_bounded<{ELEMENT[self.dtype]}, {numbers}>"


P = TypeVar("P", bound=ProductsPlan)


def fma_plan(d: int, k: int, dtype: str, mean: float, norm: float, device: GpuSpec) -> FmaPlan | ProductsPlan | None:
    """Choose how an iteration for few features and few clusters is computed; None where they are too many.

    Parameters
    ----------
    d, k : int
    dtype : {float32, float16, bfloat16}
        Of X.
    mean, norm : float
        Of the mean that is subtracted; and what no row's norm exceeds once it is.
    device : GpuSpec

    Notes
    -----
    By multiply-adds, a row takes clusters · (d + 3) instructions and some more; counts are in iteration_fma.cuh,
    small_d/iteration_fma_d4.cuh, small_d/scores_mma.cuh and small_d/scores_wgmma.cuh.
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
    """Return how iteration_fma.cuh computes an iteration; None where it has no room for the centers or their sums."""
    clusters = -(-k // 4) * 4
    most = next((elements for features, elements in _MOST_ELEMENTS if d <= features), 0)
    if clusters > MOST_CLUSTERS or d * clusters > most:
        return None
    # Scores of rows as they are, whose bound is up to twice as wide.
    plan = FmaPlan(dtype, d, clusters, _FOUR_ROWS if d <= _SHORT else _TWO_ROWS, 32, mean > norm)
    if plan.short:
        plan = replace(plan, rows=_D4_ROWS)
    while plan.sums_bytes > _MOST_SUMS_BYTES:
        plan = replace(plan, replicas=plan.replicas // 2)
    # Rather fewer replicas than fewer warps.
    sizes = ((3, 1), (2, 1), (2, 2), (2, 4))
    plans = (
        replace(plan, threads=threads, stages=stages, replicas=plan.replicas // share)
        for threads in _THREADS
        for stages, share in sizes
    )
    return next((plan for plan in plans if plan.shared_bytes <= shared_memory), None)


def products_plan(d: int, k: int, dtype: str, shared_memory: int, *, warpgroups: bool = False) -> ProductsPlan | None:
    """Return how small_d/iteration_mma.cuh computes an iteration; for up to 64 features and 64 clusters.

    `shared_memory` is what a block may have, in bytes: as many warps as registers allow for come first, then stages.
    None where there is too little. `warpgroups` take 16 bits.
    """
    multiplier = Multiplier.WARPGROUPS if warpgroups else _by_warps(d)
    return _first_that_fits(ProductsPlan(dtype, d, -(-k // 8), _STAGES, multiplier), shared_memory)


def _by_warps(d: int) -> Multiplier:
    return Multiplier.WARPS_KEEPING if -(-d // 16) <= _STEPS_KEPT else Multiplier.WARPS


def _first_that_fits(plan: P, shared_memory: int) -> P | None:
    """Return a plan of as many threads as there can be, and then of as many stages; None where there is no room."""
    sizes = ((threads, stages) for threads in _THREADS for stages in range(_STAGES, 1, -1))
    plans = (replace(plan, threads=threads, stages=stages) for threads, stages in sizes)
    return next((one for one in plans if one.shared_bytes <= shared_memory), None)


def bounded_plan(d: int, k: int, dtype: str, shared_memory: int) -> BoundedPlan | None:
    """Return the plan of iteration_bounded.cuh; None where rows are too short for bounds to pay."""
    row = d * ITEMSIZE[dtype]
    if k < 2 or row < _LEAST_LEFT_OUT or row % ALIGNMENT:
        return None
    return _first_that_fits(BoundedPlan(dtype, d, -(-k // 8), _STAGES, _by_warps(d)), shared_memory)


def small_d_scale(norm: float, dtype: str = "float32", *, warpgroups: bool = False) -> float:
    """Return the power of two that few features of `dtype` are scaled by; `norm` is what no row's norm exceeds."""
    target = _NORM_AS_IT_LIES if warpgroups else _SMALL_D_NORM
    most = _MOST_SCALE if warpgroups and dtype == "float16" else MOST_EXPONENT
    exponent = target - ceil(log2(norm)) if 0 < norm < inf else 0
    return float(2.0 ** min(max(exponent, -MOST_EXPONENT), most))
