"""Accumulation order of a plan's kernel, the input of the bit-exact emulation in emulated_gemm.cuh. Pure."""

from typing import Any

import numpy as np

from tsapps.kernels.plan.mma import MmaPlan, WgmmaPlan
from tsapps.kernels.problem import Problem

__all__ = ["ORDER", "UNKNOWN", "one_after_another", "order_of"]

#: The C++ class `Order` of emulated_gemm.cuh as a NumPy structure.
ORDER = np.dtype(
    [(name, "i8") for name in ("units", "tile_units", "tile_rows", "depth", "k")]
    + [(name, "i4") for name in ("blocks", "splits", "stride", "interval", "products", "by_steps")]
)
#: The value of `ORDER` for an unknown order: `blocks` is 0.
UNKNOWN = np.zeros((), ORDER)[()]


def order_of(plan: MmaPlan, problem: Problem, blocks: int) -> Any:
    """Return the accumulation order, as the C++ class `Order`, of a tensor-core plan launched with `blocks` blocks.

    Raises
    ------
    ValueError
        If a tile has fewer columns than C, or if the plan folds lines: the emulation supports neither.
    """
    if plan.tile_n < problem.w or plan.fold > 1:
        raise ValueError(f"the plan has tiles of {plan.tile_n} columns and a fold of {plan.fold}; expected all, and 1")
    by_steps = isinstance(plan, WgmmaPlan)
    # In a float32 WgmmaPlan, an interval is one job, which has `job_pairs` pairs of words. Other WgmmaPlans accumulate
    # all words without intervals.
    interval = plan.interval
    if isinstance(plan, WgmmaPlan):
        interval = 2 * plan.job_pairs if plan.dtype == "float32" else 0
    order = np.zeros((), ORDER)
    order["units"] = plan.units(problem.m, problem.k, problem.w)
    order["tile_units"] = -(-problem.k // plan.depth)
    order["tile_rows"], order["depth"], order["k"] = plan.tile_m, plan.depth, problem.k
    order["blocks"], order["splits"], order["stride"] = blocks, plan.warps_k, plan.stride
    order["interval"], order["products"], order["by_steps"] = interval, plan.products, by_steps
    return order[()]


def one_after_another(k: int) -> Any:
    """Return the order, as the C++ class `Order`, of a sum over k that one warp computes instruction by instruction."""
    order, depth = np.zeros((), ORDER), 16
    order["units"] = order["tile_units"] = -(-k // depth)
    order["tile_rows"], order["depth"], order["k"] = 2**62, depth, k
    order["blocks"] = order["splits"] = order["stride"] = 1
    order["products"] = 3
    return order[()]
