"""Plan of the assignment for small k: GEMM, arg-min epilogue and error bounds (pure); structures shared with C++."""

from dataclasses import replace
from functools import lru_cache
from math import ceil
from typing import NamedTuple

import numpy as np

from tsapps.apps.kmeans.data.plan import padded
from tsapps.kernels.epilogue import Epilogue
from tsapps.kernels.gpu_specs import GpuSpec
from tsapps.kernels.plan.candidates import fits
from tsapps.kernels.plan.mma import OWN_EPILOGUE, MmaPlan, instantiate
from tsapps.kernels.problem import Layout, Problem

__all__ = [
    "AMBIGUOUS_BYTES",
    "AMBIGUOUS_LARGE_K_BYTES",
    "ARGMIN",
    "LARGE_K_ARGMIN",
    "MOST_CLUSTERS",
    "MOST_LARGE_K",
    "REASSIGNMENT_BYTES",
    "TILE_BOUND",
    "TileCoefficients",
    "assign_plan",
    "capacity",
    "center_parts",
    "columns_of",
    "epilogue_of",
    "error_coefficients_of",
    "half_copy_problem",
    "parts_of",
    "product_error",
    "tensor_error",
    "tile_coefficients",
]

#: The largest k that assign/small_k.cuh supports.
MOST_CLUSTERS = 64
#: The largest k that assign/large_k.cuh supports (kMostCenters).
MOST_LARGE_K = 1 << 16
#: The C++ classes `ArgminEpilogue`, `TileBound` and `LargeKArgminEpilogue`, as NumPy structures.
ARGMIN = np.dtype(
    [(name, "u8") for name in ("offsets", "center_stats", "norms", "labels", "entries", "counts", "stopped")]
    + [("capacity", "i8"), ("n", "u4"), ("ahead", "u4"), ("tensor_error", "f4"), ("rounding", "f4")]
)
TILE_BOUND = np.dtype([("of_norm", "f4"), ("always", "f4")])
LARGE_K_ARGMIN = np.dtype(
    [(name, "u8") for name in ("center_stats", "tile_bounds", "centers", "norms", "labels")]
    + [(name, "u8") for name in ("changes", "ambiguous", "lengths", "stopped")]
    + [("capacity", "i8"), ("n", "u4"), ("tensor_error", "f4"), ("rounding", "f4"), ("padding", "f4")]
)
#: Sizes in bytes of the C++ classes `AmbiguousRow` and `Reassignment`, and of `AmbiguousLargeK` by its maximum number
#: of candidates.
AMBIGUOUS_BYTES, REASSIGNMENT_BYTES, AMBIGUOUS_LARGE_K_BYTES = 16, 16, {11: 32, 27: 64}
# Error bound of the tensor cores per 16 products that they add, relative to the sum of the products' magnitudes. Tensor
# cores add 4, 8 or 16 terms at a time. They truncate each term about 24 bits below the largest term.
_TENSOR_ERROR = 2.0**-20
# Maximum relative rounding error of one float32 addition.
_ROUNDED = 2.0**-24
# Maximum rounding error of the float32 operations that compute a score in the epilogue (assign/small_k.cuh). It is
# relative to the product of the norms of row and center.
_SCORE_ROUNDINGS = 2.0**-22
# Upper bound of a row's level relative to c₀ norm + c₀²/2, with the minimum center norm c₀ (assign/large_k.cuh).
_MOST_LEVEL = 1.03
# The minimum d at which each center is split into two float16 parts. The second part doubles the columns of the GEMM,
# but rescoring then saves more time than this costs.
_TWO_PARTS = 2048
# _MOST_DEPTH: the largest d for which a pipeline stage holds whole rows. _SMALL_DEPTH, _SMALL_TILE: the largest d and
# the largest number of columns of the GEMM for which row tiles of 64 rows are tried.
_MOST_DEPTH, _SMALL_DEPTH, _SMALL_TILE = 256, 16, 16


class TileCoefficients(NamedTuple):
    """Factors in the score error bound of a column tile (update/column_order.cuh).

    Attributes
    ----------
    of_norm : float
        Factor of ‖c‖ · norm, where norm is the row's norm.
    of_lost : float
        Factor of ‖c − ĉ‖ · norm.
    of_half_square : float
        Factor of ‖c‖²/2.
    of_level : float
        Factor of c₀ norm + c₀²/2, where c₀ is the minimum center norm.
    """

    of_norm: float
    of_lost: float
    of_half_square: float
    of_level: float


def tensor_error(d: int, interval: int = 0) -> float:
    """Return γ, the error bound of an inner product on tensor cores, relative to the product of the vectors' norms.

    The vectors have d elements. If `interval` is not 0, the tensor cores sum `interval` products at a time, and
    float32 additions add these sums.
    """
    together = min(d, interval) or d
    return (together / 16 + 2) * _TENSOR_ERROR + (ceil(d / together) - 1) * _ROUNDED


def parts_of(plan: MmaPlan, k: int) -> int:
    """Return the number of parts, 1 or 2, into which each of k centers is split for the GEMM of a plan."""
    return plan.tile_n // columns_of(k)


def product_error(plan: MmaPlan, d: int, k: int) -> float:
    """Return γ, the relative error bound of the products that a plan's GEMM computes; see `tensor_error`."""
    # `plan.interval` counts words per lane. One word per lane is 8 features: four lanes with two features each. Adding
    # the products of the second part of the centers causes further roundings.
    return tensor_error(d, 8 * plan.interval) + (parts_of(plan, k) - 1) * 4 * _ROUNDED


def epilogue_of(plan: MmaPlan, k: int) -> Epilogue:
    """Return the arg-min epilogue of small_k.cuh for a plan's GEMM with k centers."""
    # Only plans for large d without bounds have an accumulation interval; see `assign_plan`.
    name = f"ArgminEpilogueLargeD<{parts_of(plan, k)}>" if plan.interval else "ArgminEpilogue"
    return Epilogue("apps/kmeans/assign/small_k.cuh", f"kmeans::{name}", ARGMIN)


def error_coefficients_of(plan: MmaPlan, d: int, k: int, rounding: float) -> tuple[float, float]:
    """Return the coefficients a and b of a score's error bound, norm · (a ‖c‖ + b ‖c − ĉ‖); see assign/small_k.cuh.

    `norm` is the norm of a row, c is a center, and ĉ is this center in float16. `rounding` is ρ, the float16 rounding
    error of a row relative to its norm.
    """
    error = product_error(plan, d, k)
    return rounding + error + _SCORE_ROUNDINGS, 1.0 + error


def tile_coefficients(d: int, rounding: float, *, levels: bool) -> TileCoefficients:
    """Return the coefficients of the score error bounds of column tiles for d features (assign/large_k.cuh).

    `rounding` is ρ, the float16 rounding error of a row relative to its norm. `levels` says whether rows have a level.
    """
    error = tensor_error(d)
    of_sums = error + _SCORE_ROUNDINGS
    return TileCoefficients(
        rounding + error + _SCORE_ROUNDINGS, 1.0 + error, of_sums, _MOST_LEVEL * of_sums if levels else 0.0
    )


def center_parts(d: int, k: int) -> int:
    """Return the number of parts into which each center is split: two for large d and small k, otherwise one."""
    return 2 if d >= _TWO_PARTS and columns_of(k) <= _SMALL_TILE else 1


def columns_of(k: int) -> int:
    """Return the number of GEMM columns for k centers that are not split: k rounded up to a multiple of 8."""
    return -(-k // 8) * 8


def half_copy_problem(n: int, d: int, k: int, parts: int = 1) -> Problem:
    """Return the GEMM of an iteration: the half-precision copy of n rows times k centers in `parts` parts (1 or 2)."""
    layout, columns = Layout(True, padded(d), 16, 16), k if parts == 1 else parts * columns_of(k)
    return Problem(n, padded(d), columns, "float16", layout, layout, False, "rows")


@lru_cache
def assign_plan(n: int, d: int, k: int, device: GpuSpec, *, bounds: bool = False) -> MmaPlan | None:
    """Plan the GEMM of an iteration for small k.

    Parameters
    ----------
    n, d, k : int
    device : GpuSpec
    bounds : bool
        Whether Hamerly bounds may skip rows, so that some iterations score only the active rows.

    Returns
    -------
    MmaPlan or None
        None if no kernel fits the device.

    Notes
    -----
    For d up to 256, each warp has a pipeline of whole rows. Each block loads the centers once and keeps them in shared
    memory. For larger d, the warps of a block have a common pipeline of 256-byte pieces of rows. There, the tensor
    cores sum only short intervals of products, because their error grows with the length of a sum; float32 additions
    add the interval sums. Plans with `bounds` use neither intervals nor centers in two parts, because the kernel that
    scores active rows (bounds/assign.cuh) supports neither. Measurements are in docs/notes/lloyd.md.
    """
    parts = 1 if bounds else center_parts(d, k)
    problem = half_copy_problem(n, d, k, parts)
    tile_n = parts * columns_of(k)
    found: list[MmaPlan] = []
    if problem.k <= _MOST_DEPTH:
        for tile_m in (64, 32) if problem.k <= _SMALL_DEPTH and tile_n <= _SMALL_TILE else (32,):
            for blocks, teams in ((2, 12), (1, 16), (1, 12), (1, 8), (1, 4)):
                short = MmaPlan(
                    "float16", tile_m, tile_n, problem.k, teams=teams, blocks=blocks, keep_b=True, interval=0
                )
                found += [replace(short, stages=stages) for stages in ((3, 2) if problem.k <= _SMALL_DEPTH else (2,))]
    long = MmaPlan("float16", 128, tile_n, 128, warps_m=4, stages=3, interval=0 if bounds else 16)
    found += [replace(long, tile_m=256, warps_m=8)] if parts > 1 else []
    found += [replace(long, blocks=blocks, stages=stages) for blocks, stages in ((2, 3), (2, 2), (1, 3))]
    for plan in found:
        made = replace(instantiate(plan, problem), store=OWN_EPILOGUE)
        if fits(made, device):
            return made
    return None


def capacity(plan: MmaPlan, n: int, blocks: int) -> int:
    """Return the maximum number of rows that one block labels, if `blocks` blocks of a plan's GEMM label n rows."""
    tiles = -(-n // plan.tile_m)
    if plan.keep_b:  # tiles go in turn to the first team of warps of every block, then to the second, …
        return plan.teams * -(-tiles // (blocks * plan.teams)) * plan.tile_m
    return (-(-tiles // blocks) + 2) * plan.tile_m
