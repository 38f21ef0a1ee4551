"""How a product that carries its checks is computed on a GPU, chosen from sizes and layouts alone."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tsapps.apps.abft.thresholds import Bounds
from tsapps.kernels.candidates import candidates, fits, registers
from tsapps.kernels.choose import plan, predict, tuned_table
from tsapps.kernels.device import Device
from tsapps.kernels.plan import ELEMENT, SUM, Plan, WarpgroupPlan, instantiate
from tsapps.kernels.problem import NARROW, Layout, Lies, Problem
from tsapps.kernels.tables import of_version

__all__ = [
    "CHECKS",
    "JUDGED",
    "PARTS",
    "WRONG",
    "checked_dtype",
    "checked_epilogue",
    "checked_plan",
    "checked_problem",
    "element_bounds",
    "is_fused",
    "matrix_dtype",
    "store_of",
    "summed",
]

#: Columns of the checks (kChecks), and the parts in which a column is kept of which B's type holds too few bits.
CHECKS = 8
PARTS = {"float64": 1, "float32": 1, "float16": 2, "bfloat16": 3}
#: The C++ classes that kernels take, as NumPy structures: `Judged` and, of what they give, `Wrong`.
JUDGED = np.dtype(
    [(f"{name}_{field}", kind) for name in "ABC" for field, kind in (("data", "u8"), ("row", "i8"), ("column", "i8"))]
    + [(name, "i8") for name in "mkw"]
)
WRONG = np.dtype([("row", "i8"), ("column", "i8"), ("found", "f8"), ("value", "f8")])
# Registers that a plan has to have of those that it is estimated to need, where nobody has measured it, for it not to
# spill; by bytes of an element. And of an SM, and how many a thread may have.
_ROOM, _REGISTERS, _MOST_REGISTERS = {8: 1.2, 4: 1.5, 2: 1.5}, 65_536, 255
_BOUNDS = ("magnitude", "spread", "absolute", "rounding", "rounding_absolute", "largest_sum", "largest")


def summed(dtype: str) -> np.dtype:
    """Return what a product of a dtype is summed in."""
    return np.dtype(np.float64 if SUM[dtype] == "double" else np.float32)


def matrix_dtype() -> np.dtype:
    """Return the C++ class `Matrix` as a NumPy structure."""
    return np.dtype([("data", "u8"), ("row", "i8"), ("column", "i8")])


def checked_dtype(dtype: str) -> np.dtype:
    """Return the C++ class `Checked` for a dtype, with what it stores C by, as a NumPy structure."""
    total = summed(dtype)
    store = [("C", "u8"), ("rows", "i8"), ("columns", "i8"), ("regular", "i8"), ("alpha", total), ("beta", total)]
    suspects = [("suspects", "u8"), ("count", "u8"), ("capacity", "i8"), ("scale", "u8"), ("width", "i8")]
    limits = [("row", total), ("row_absolute", total), ("step", total), ("padding", total)]
    return np.dtype([*store, *suspects, *limits])


def element_bounds(bounds: Bounds) -> Any:
    """Return the C++ class `Bounds`, of an element."""
    return np.array(tuple(getattr(bounds, name) for name in _BOUNDS), [(name, "f8") for name in _BOUNDS])[()]


def is_fused(m: int, k: int, w: int) -> bool:
    """Whether a product carries its checks: it is tall, and narrow; else it is checked when it is there."""
    return m > NARROW and k > 0 and 0 < w <= NARROW


def checked_problem(m: int, k: int, w: int, dtype: str, a: Layout) -> Problem:
    """Return the product by B's w columns, filled up to whole blocks of eight, and those of the checks.

    `w` may be 0, for the checks alone. What is multiplied by is row-major and without gaps.
    """
    columns = -(-w // CHECKS) * CHECKS + CHECKS
    return Problem(m, k, columns, dtype, a, Layout(False, columns, 16, 16), False, "rows")


def checked_plan(problem: Problem, device: Device, table: Sequence[Mapping[str, Any]] | None = None) -> Plan | None:
    """Choose how a `checked_problem` is computed; None where none of the core's kernels with epilogues will do.

    It is the plan of the table, if that has one whose warps have all of a row's columns each; else the one that is
    predicted to be the fastest. Plans are made for 64 columns at most, and widened.
    """
    narrow = replace(problem, w=min(problem.w, NARROW))
    rows = of_version(tuned_table(device.name) if table is None else table, None)
    picked = plan(narrow, device, rows)
    if isinstance(picked, Plan) and (found := _widened(picked, problem, device, roomy=not rows)) is not None:
        return found
    every = [_widened(one, problem, device, roomy=True) for one in candidates(narrow, device) if type(one) is Plan]
    return min(filter(None, every), key=lambda one: predict(one, problem, device), default=None)


def _widened(one: Plan, problem: Problem, device: Device, *, roomy: bool) -> Plan | None:
    """Return a plan with tiles of all columns, if there is one that fits: `roomy`, with registers to spare."""
    if one.warps_n > 1 or one.fold > 1 or (isinstance(one, WarpgroupPlan) and problem.w > NARROW):
        return None
    # The epilogue takes no shared memory, as StorePairs does not.
    made = replace(instantiate(replace(one, tile_n=problem.w), problem), store="StorePairs")
    if (roomy or problem.w > NARROW) and not isinstance(one, WarpgroupPlan):
        most = min(_MOST_REGISTERS, _REGISTERS // (made.blocks * made.threads))
        if _ROOM[problem.itemsize] * registers(made) > most:
            return None
    return made if fits(made, device) else None


def store_of(dtype: str, w: int, c: Lies) -> str:
    """Return the C++ class that stores a C of w columns that lies so, of those that take fragments."""
    if c in ("aligned columns", "columns"):
        name = "tsm2::StoreColumns"
    elif c in ("packed", "rows") and w % (16 if dtype in ("float16", "bfloat16") else 8) == 0:
        name = "tsm2::StorePairs"
    else:
        name = "abft::StoreEach"
    return f"{name}<{ELEMENT[dtype]}, {SUM[dtype]}>"


def checked_epilogue(dtype: str, w: int, c: Lies) -> str:
    """Return the C++ class by which a product that carries its checks is stored and checked."""
    return f"abft::Checked<{SUM[dtype]}, {store_of(dtype, w, c)}, {PARTS[dtype]}>"
