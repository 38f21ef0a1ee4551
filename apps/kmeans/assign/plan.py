"""The product of an iteration and its arg-min epilogue, from sizes alone; and structures shared with C++."""

from dataclasses import replace
from math import ceil

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
    "MOST_CLUSTERS",
    "MOST_LARGE_K",
    "REASSIGNMENT_BYTES",
    "STREAMED_ARGMIN",
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
]

#: The clusters that assign/small_k.cuh has room for; more are for assign/large_k.cuh.
MOST_CLUSTERS = 64
#: And what that has room for (kMostCenters).
MOST_LARGE_K = 1 << 16
#: The C++ classes `ArgminEpilogue` and `StreamedArgminEpilogue`, as NumPy structures.
ARGMIN = np.dtype(
    [(name, "u8") for name in ("offsets", "center_stats", "norms", "labels", "entries", "counts", "stopped")]
    + [("capacity", "i8"), ("n", "u4"), ("ahead", "u4"), ("tensor_error", "f4"), ("rounding", "f4")]
)
STREAMED_ARGMIN = np.dtype(
    [(name, "u8") for name in ("center_stats", "norms", "labels", "changes", "ambiguous", "lengths", "stopped")]
    + [("capacity", "i8"), ("n", "u4"), ("tensor_error", "f4"), ("rounding", "f4"), ("padding", "f4")]
)
#: Bytes of an `AmbiguousRow`, a `Reassignment` and an `AmbiguousLargeK`.
AMBIGUOUS_BYTES, REASSIGNMENT_BYTES, AMBIGUOUS_LARGE_K_BYTES = 16, 16, 32
# What the tensor cores may lose of each sum of 16 products, relative to all that was added: of 4, 8 or 16 terms at a
# time, they truncate what lies some 24 bits below the largest.
_TENSOR_ERROR = 2.0**-20
# What a rounded addition may lose of a sum.
_ROUNDED = 2.0**-24
# What the roundings of a score may be, relative to the norms of its row and center (assign/small_k.cuh).
_SCORE_ROUNDINGS = 2.0**-22
# Features from which on fewer ambiguous rows save more than twice the columns of few centers cost.
_TWO_PARTS = 2048
# The longest rows that one stage of the pipeline holds whole; and the most features and columns for tiles of 64 rows.
_MOST_DEPTH, _SHORT, _SMALL_TILE = 256, 16, 16


def tensor_error(d: int, interval: int = 0) -> float:
    """Return γ: what the sum of d products by tensor cores may be off by, relative to the product of the norms.

    If `interval` is not 0, they add up that many products at a time, and rounded additions add up the results.
    """
    together = min(d, interval) or d
    return (together / 16 + 2) * _TENSOR_ERROR + (ceil(d / together) - 1) * _ROUNDED


def parts_of(plan: MmaPlan, k: int) -> int:
    """Return the parts that a plan's product has of each of k centers."""
    return plan.tile_n // columns_of(k)


def product_error(plan: MmaPlan, d: int, k: int) -> float:
    """Return γ of the scores of `assign/small_k.cuh` by a plan."""
    # A word is two features, and four lanes have some of a row's. What a second part adds is rounded once more.
    return tensor_error(d, 8 * plan.interval) + (parts_of(plan, k) - 1) * 4 * _ROUNDED


def epilogue_of(plan: MmaPlan, k: int) -> Epilogue:
    """Return the epilogue of small_k.cuh by which a plan's product finds the nearest of k centers."""
    # Of long rows: by the interval, as there are none with bounds (assign_plan).
    name = f"ArgminEpilogueLargeD<{parts_of(plan, k)}>" if plan.interval else "ArgminEpilogue"
    return Epilogue("apps/kmeans/assign/small_k.cuh", f"kmeans::{name}", ARGMIN)


def error_coefficients_of(plan: MmaPlan, d: int, k: int, rounding: float) -> tuple[float, float]:
    """Return what a score may be off by, beside norm · ‖c‖, and beside norm · ‖c − ĉ‖ (assign/small_k.cuh).

    `rounding` is what float16 loses of a row, beside its norm.
    """
    error = product_error(plan, d, k)
    return rounding + error + _SCORE_ROUNDINGS, 1.0 + error


def center_parts(d: int, k: int) -> int:
    """Return the parts that a product has of every center: two of few, where rows are long; see assign/small_k.cuh."""
    return 2 if d >= _TWO_PARTS and columns_of(k) <= _SMALL_TILE else 1


def columns_of(k: int) -> int:
    """Return the columns of the product of so many centers, of one part."""
    return -(-k // 8) * 8


def half_copy_problem(n: int, d: int, k: int, parts: int = 1) -> Problem:
    """Return the product of an iteration: the shadow's n rows by k centers, in one part or two."""
    layout, columns = Layout(True, padded(d), 16, 16), k if parts == 1 else parts * columns_of(k)
    return Problem(n, padded(d), columns, "float16", layout, layout, False, "rows")


def assign_plan(n: int, d: int, k: int, device: GpuSpec, *, bounds: bool = False) -> MmaPlan | None:
    """Choose how an iteration's product is computed; None where none of the core's kernels will do.

    Short rows are multiplied by warps that have a ring each, with the centers in shared memory; of long ones, pieces
    of 256 bytes go through a ring that a block shares, and are added up by rounded additions, as the tensor cores would
    lose more of long sums. Not so with `bounds`: what scores single rows (bounds/assign.cuh) has neither these nor
    centers in two parts. What was measured is in docs/notes/lloyd.md.
    """
    parts = 1 if bounds else center_parts(d, k)
    problem = half_copy_problem(n, d, k, parts)
    tile_n = parts * columns_of(k)
    found: list[MmaPlan] = []
    if problem.k <= _MOST_DEPTH:
        for tile_m in (64, 32) if problem.k <= _SHORT and tile_n <= _SMALL_TILE else (32,):
            for blocks, teams in ((2, 12), (1, 16), (1, 12), (1, 8), (1, 4)):
                short = MmaPlan(
                    "float16", tile_m, tile_n, problem.k, teams=teams, blocks=blocks, keep_b=True, interval=0
                )
                found += [replace(short, stages=stages) for stages in ((3, 2) if problem.k <= _SHORT else (2,))]
    long = MmaPlan("float16", 128, tile_n, 128, warps_m=4, stages=3, interval=0 if bounds else 16)
    found += [replace(long, tile_m=256, warps_m=8)] if parts > 1 else []
    found += [replace(long, blocks=blocks, stages=stages) for blocks, stages in ((2, 3), (2, 2), (1, 3))]
    for plan in found:
        made = replace(instantiate(plan, problem), store=OWN_EPILOGUE)
        if fits(made, device):
            return made
    return None


def capacity(plan: MmaPlan, n: int, blocks: int) -> int:
    """Return the most rows that one of `blocks` blocks of a plan's kernel can be the one to end."""
    tiles = -(-n // plan.tile_m)
    if plan.keep_b:  # tiles are dealt in turn, to all blocks and then to their next team
        return plan.teams * -(-tiles // (blocks * plan.teams)) * plan.tile_m
    return (-(-tiles // blocks) + 2) * plan.tile_m
