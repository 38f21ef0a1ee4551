"""In which order a plan's kernel adds up the products of an element: what emulated_gemm.cuh follows. Pure."""

from typing import Any

import numpy as np

from tsapps.kernels.plan.mma import MmaPlan, WgmmaPlan
from tsapps.kernels.problem import Problem

__all__ = ["ORDER", "UNKNOWN", "one_after_another", "order_of"]

#: The C++ class `Order` as a NumPy structure.
ORDER = np.dtype(
    [(name, "i8") for name in ("units", "tile_units", "tile_rows", "depth", "k")]
    + [(name, "i4") for name in ("blocks", "splits", "stride", "interval", "products", "by_steps")]
)
#: The order of sums of which nobody knows it.
UNKNOWN = np.zeros((), ORDER)[()]


def order_of(plan: MmaPlan, problem: Problem, blocks: int) -> Any:
    """Return the C++ class `Order` of a product by a plan on tensor cores that is launched with some blocks.

    Raises
    ------
    ValueError
        If it is not known: a tile has not all of C's columns, or lines are folded.
    """
    if plan.tile_n < problem.w or plan.fold > 1:
        raise ValueError(f"the plan has tiles of {plan.tile_n} columns and a fold of {plan.fold}; expected all, and 1")
    by_steps = isinstance(plan, WgmmaPlan)
    # Of a warpgroup, a job of float32; a pair is two words.
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
    """Return the C++ class `Order` of sums that nobody shares: of k products, as many at once as an instruction has."""
    order, depth = np.zeros((), ORDER), 16
    order["units"] = order["tile_units"] = -(-k // depth)
    order["tile_rows"], order["depth"], order["k"] = 2**62, depth, k
    order["blocks"] = order["splits"] = order["stride"] = 1
    order["products"] = 3
    return order[()]
