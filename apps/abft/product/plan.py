"""How a product that carries its checks is computed on a GPU, chosen from sizes and layouts alone."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil, log2, sqrt
from pathlib import Path
from typing import Any

import numpy as np

from tsapps.apps.abft.product.thresholds import Bounds
from tsapps.kernels.epilogue import Epilogue
from tsapps.kernels.gpu_specs import GpuSpec
from tsapps.kernels.plan.candidates import candidates, fits, most_registers, registers
from tsapps.kernels.plan.mma import ELEMENT, OWN_EPILOGUE, SUM, MmaPlan, WgmmaPlan
from tsapps.kernels.plan.select import plan, predict, tuned_table
from tsapps.kernels.plan.user_table import of_version
from tsapps.kernels.problem import ITEMSIZE, NARROW, Lies, Problem

__all__ = [
    "COUNTS_BYTES",
    "FLAGGED_BYTES",
    "JUDGED",
    "MOST_SPILLED",
    "ROWS_TOGETHER",
    "SUSPECTS",
    "TUNED",
    "WRONG",
    "checked_dtype",
    "checked_epilogue",
    "checked_plan",
    "element_bounds",
    "half_step",
    "is_fused",
    "matrix_dtype",
    "measured",
    "padded_depth",
    "row_bounds",
    "row_size",
    "row_sums_dtype",
    "row_sums_epilogue",
    "second_look",
    "store_of",
    "summed",
    "with_row_sums",
]

#: Where picks for products that carry their checks are, by the device.
TUNED = Path(__file__).with_name("tuned")
#: C++ classes that kernels take, as NumPy structures: `Judged`, `FlaggedRows` and, of what they give, `Wrong`.
JUDGED = np.dtype(
    [(f"{name}_{field}", kind) for name in "ABC" for field, kind in (("data", "u8"), ("row", "i8"), ("column", "i8"))]
    + [(name, "i8") for name in "mkw"]
)
WRONG = np.dtype([("row", "i8"), ("column", "i8"), ("found", "f8"), ("value", "f8")])
SUSPECTS = np.dtype([("suspects", "u8"), ("counts", "u8"), ("capacity", "i8")])
#: The header of epilogues that check rows.
_DETECT = "apps/abft/product/detect.cuh"
#: Bytes of `FlaggedRow` and of `Counts`.
FLAGGED_BYTES, COUNTS_BYTES = 16, 24
#: Of B's rows, those that lanes have side by side (kRowsTogether).
ROWS_TOGETHER = 4
#: Bytes that a thread of a product that carries its checks may put away, once a tile, for its plan to be picked.
MOST_SPILLED = 32
# Registers that a plan has to have of those that it is estimated to need, where nobody has measured it, for it not to
# spill; by bytes of an element.
_ROOM = {8: 1.2, 4: 1.5, 2: 1.5}
_ROW_BOUNDS = ("row", "row_size", "row_absolute", "rounding", "rounding_absolute")
_OF_SUM, _OF_DTYPE = ("magnitude", "spread", "absolute", "lost", "products"), ("largest_sum", "largest")
_BOUNDS = (*_OF_SUM, "rounding", "rounding_absolute", *_OF_DTYPE)
# Weights behind those of the last tile (epilogue.cuh); and N of the weights (product/row_checksums.cuh), at least.
_BEYOND, _LEAST_N = 16, 16


def summed(dtype: str) -> np.dtype:
    """Return what a product of a dtype is summed in."""
    return np.dtype(np.float64 if SUM[dtype] == "double" else np.float32)


def half_step(w: int) -> float:
    """Return 1 / 2N, by which the weights of w columns are made (product/row_checksums.cuh)."""
    return 0.5 / max(_LEAST_N, 2 ** ceil(log2(max(1, -(-w // 8) * 2))))


def padded_depth(k: int, one: MmaPlan) -> int:
    """Return how many weights a plan's kernel may read of a depth of k."""
    return -(-k // one.depth) * one.depth + _BEYOND


def row_size(bounds: Bounds, w: int) -> float:
    """Return what a row of w columns may be off by, relative to ``Σ_j |c_ij|``, for a second look to be worth while.

    ``Σ_j |c_ij|`` is about q of `Bounds.row` for ``s_l = Σ_j |b_lj|``; of √(Σ_j b_lj² + …), ``Σ_j |c_ij| / √w`` is, and
    never above √(Σ_j c_ij²).
    """
    return bounds.row / sqrt(w) if bounds.by_spread else bounds.row


def row_bounds(bounds: Bounds, w: int) -> Any:
    """Return the C++ class `RowBounds`, for w columns."""
    of_row = bounds.row, row_size(bounds, w), bounds.row_absolute, bounds.rounding, bounds.rounding_absolute
    return np.array(of_row, [(name, "f8") for name in _ROW_BOUNDS])[()]


def second_look(bounds: Bounds, w: int) -> np.ndarray:
    """Return the C++ class `Look` for w columns, less the addresses "x" and "y" of what B's rows give."""
    of_row = row_bounds(bounds, w)
    fields = [("x", "u8"), ("y", "u8"), ("half_step", "f8"), *of_row.dtype.descr]
    return np.array((0, 0, half_step(w), *of_row), fields)


def matrix_dtype() -> np.dtype:
    """Return the C++ class `Matrix` as a NumPy structure."""
    return np.dtype([("data", "u8"), ("row", "i8"), ("column", "i8")])


def checked_dtype(dtype: str) -> np.dtype:
    """Return the C++ class `Checked` for a dtype, with what it stores C by, as a NumPy structure."""
    total = summed(dtype)
    store = [("C", "u8"), ("rows", "i8"), ("columns", "i8"), ("regular", "i8"), ("alpha", total), ("beta", total)]
    limits = [("row", total), ("row_size", total), ("row_absolute", total)]
    return np.dtype([*store, ("row_weights", "u8"), *SUSPECTS.descr, *limits], align=True)


def row_sums_dtype() -> np.dtype:
    """Return the C++ class `StoreRowSums` as a NumPy structure."""
    return np.dtype([("row_weights", "u8"), ("to", "u8")])


def element_bounds(bounds: Bounds) -> Any:
    """Return the C++ class `Bounds`, of an element."""
    given = vars(bounds) | {"products": bounds.walk.products}
    return np.array(tuple(given[name] for name in _BOUNDS), [(name, "f8") for name in _BOUNDS])[()]


def is_fused(m: int, k: int, w: int) -> bool:
    """Whether a product carries its checks: it is tall, and narrow; else it is checked when it is there."""
    return m > NARROW and k > 0 and 0 < w <= NARROW


def checked_plan(problem: Problem, device: GpuSpec, table: Sequence[Mapping[str, Any]] | None = None) -> MmaPlan | None:
    """Choose how a product is computed beside which the rows of A are added up; None where no kernel of the core does.

    By a table of picks that were measured so, if there is one for the device (bench/abft/tune_plans.py). Else it is the
    plan of the product without, if its warps have all of a row's columns each; or, of those whose do, the one that is
    predicted to be the fastest.
    """
    for rows in (measured(device.name), of_version(tuned_table(device.name) if table is None else table, None)):
        picked = plan(problem, device, rows) if rows else None
        if isinstance(picked, MmaPlan) and (found := with_row_sums(picked, device)) is not None:
            return found
    every = [with_row_sums(one, device, roomy=True) for one in candidates(problem, device) if type(one) is MmaPlan]
    return min(filter(None, every), key=lambda one: predict(one, problem, device), default=None)


def measured(device_name: str) -> tuple[Mapping[str, Any], ...]:
    """Return the picks measured on a device of this name, as rows of `choose.KEY` and `choose.PICKED`."""
    return tuned_table(device_name, TUNED)


def with_row_sums(one: MmaPlan, device: GpuSpec, *, roomy: bool = False) -> MmaPlan | None:
    """Return a plan with sums of A's rows, if there is one that fits: `roomy`, with registers to spare."""
    if one.warps_n > 1 or one.fold > 1:
        return None
    made = replace(one, store=OWN_EPILOGUE, row_sums=True)
    if (
        roomy
        and not isinstance(made, WgmmaPlan)
        and _ROOM[ITEMSIZE[made.dtype]] * registers(made) > most_registers(made)
    ):
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


def checked_epilogue(dtype: str, w: int, c: Lies) -> Epilogue:
    """Return the epilogue that stores a product and checks its rows."""
    return Epilogue(_DETECT, f"abft::Checked<{SUM[dtype]}, {store_of(dtype, w, c)}>", checked_dtype(dtype))


def row_sums_epilogue(dtype: str) -> Epilogue:
    """Return the epilogue that stores the weighted sums of A's rows alone."""
    return Epilogue(_DETECT, f"abft::StoreRowSums<{SUM[dtype]}>", row_sums_dtype())
