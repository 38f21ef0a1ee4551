"""Plans of protected products on a GPU, from sizes and layouts alone; and structures shared with C++."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil, log2, sqrt
from pathlib import Path
from typing import Any

import numpy as np

from tsapps.apps.abft.product.thresholds import ErrorBounds
from tsapps.kernels.epilogue import Epilogue
from tsapps.kernels.gpu_specs import GpuSpec
from tsapps.kernels.plan.candidates import candidates, fits, most_registers, registers
from tsapps.kernels.plan.mma import ELEMENT, OWN_EPILOGUE, SUM, MmaPlan, WgmmaPlan
from tsapps.kernels.plan.select import plan, predict, tuned_table
from tsapps.kernels.plan.user_table import of_version
from tsapps.kernels.problem import ITEMSIZE, NARROW, Lies, Problem

__all__ = [
    "COUNTS",
    "ELEMENT_BOUNDS",
    "FLAGGED_ROW",
    "FLAGGED_ROWS",
    "MATRIX",
    "MOST_SPILLED",
    "OPERANDS",
    "RECHECK_ARGS",
    "ROWS_PER_LANE",
    "ROW_BOUNDS",
    "TUNED",
    "WRONG_ELEMENT",
    "checked_plan",
    "detect_epilogue",
    "element_bounds",
    "half_step",
    "is_fused",
    "measured",
    "padded_depth",
    "recheck_args",
    "row_bounds",
    "row_size",
    "row_sums_epilogue",
    "store_of",
    "summed",
    "with_row_sums",
]

#: Tuned configurations of protected products, by the device.
TUNED = Path(__file__).with_name("tuned")
#: The C++ classes of kernel arguments and results, as NumPy structures: `Matrix`, `Operands`, `Counts` and so on.
MATRIX = np.dtype([("data", "u8"), ("row_stride", "i8"), ("column_stride", "i8")])
OPERANDS = np.dtype([*((name, MATRIX) for name in "ABC"), *((name, "i8") for name in "mkw")])
COUNTS = np.dtype([(name, "u8") for name in ("flagged", "confirmed", "wrong")])
FLAGGED_ROW = np.dtype([("row", "i8"), ("residual", "f8")])
FLAGGED_ROWS = np.dtype([("rows", "u8"), ("counts", "u8"), ("capacity", "i8")])
WRONG_ELEMENT = np.dtype([("row", "i8"), ("column", "i8"), ("found", "f8"), ("value", "f8")])
ROW_BOUNDS = np.dtype([(name, "f8") for name in ("row", "row_size", "row_absolute", "rounding", "rounding_absolute")])
ELEMENT_BOUNDS = np.dtype(
    [(name, "f8") for name in ("magnitude", "spread", "absolute", "lost", "products")]
    + [(name, "f8") for name in ("rounding", "rounding_absolute", "largest_sum", "largest")]
)
RECHECK_ARGS = np.dtype([("x", "u8"), ("y", "u8"), ("half_step", "f8"), ("bounds", ROW_BOUNDS)])
#: Rows of B per lane (kRowsPerLane).
ROWS_PER_LANE = 4
#: The most bytes that a thread of a protected product may spill, once per tile, for its plan to be selected.
MOST_SPILLED = 32
# The header of the epilogues.
_DETECT = "apps/abft/product/detect.cuh"
# The least ratio of the registers available to an unmeasured plan to its estimated need, by bytes per element: a
# smaller ratio risks spills.
_ROOM = {8: 1.2, 4: 1.5, 2: 1.5}
# Weights that a kernel may read beyond those of the last tile (epilogue.cuh); the least N (product/row_checksums.cuh).
_BEYOND, _LEAST_N = 16, 16


def summed(dtype: str) -> np.dtype:
    """Return the type in which products of a dtype are accumulated."""
    return np.dtype(np.float64 if SUM[dtype] == "double" else np.float32)


def half_step(w: int) -> float:
    """Return 1 / 2N, the step of the weights of w columns (product/row_checksums.cuh)."""
    return 0.5 / max(_LEAST_N, 2 ** ceil(log2(max(1, -(-w // 8) * 2))))


def padded_depth(k: int, one: MmaPlan) -> int:
    """Return the number of weights that a plan's kernel may read for a depth of k."""
    return -(-k // one.depth) * one.depth + _BEYOND


def row_size(bounds: ErrorBounds, w: int) -> float:
    """Return the bound of a row's residual relative to ``Σ_j |c_ij|``, for w columns: the first test of a row.

    The re-check of a row uses its magnitude q instead (`ErrorBounds.row`; symbols: see thresholds.py). If
    ``s_l = Σ_j |b_lj|``, ``Σ_j |c_ij|`` is about q. If s_l = √(Σ_j b_lj² + (Σ_j b_lj)²), ``Σ_j |c_ij| / √w`` is about
    q, and never above √(Σ_j c_ij²).
    """
    return bounds.row / sqrt(w) if bounds.by_spread else bounds.row


def row_bounds(bounds: ErrorBounds, w: int) -> Any:
    """Return the C++ class `RowBounds` for w columns, a `ROW_BOUNDS`."""
    return _from_fields(ROW_BOUNDS, vars(bounds) | {"row_size": row_size(bounds, w)})


def recheck_args(bounds: ErrorBounds, w: int) -> np.ndarray:
    """Return the C++ class `RecheckArgs` for w columns, a `RECHECK_ARGS`; the caller sets x and y."""
    args = np.zeros((), RECHECK_ARGS)
    args["half_step"], args["bounds"] = half_step(w), row_bounds(bounds, w)
    return args


def element_bounds(bounds: ErrorBounds) -> Any:
    """Return the C++ class `ElementBounds`, an `ELEMENT_BOUNDS`."""
    return _from_fields(ELEMENT_BOUNDS, vars(bounds) | {"products": bounds.model.products})


def _from_fields(dtype: np.dtype, values: Mapping[str, float]) -> Any:
    """Return a structure whose fields have the values of the same names."""
    one = np.zeros((), dtype)
    for name in one.dtype.names:
        one[name] = values[name]
    return one[()]


def is_fused(m: int, k: int, w: int) -> bool:
    """Return whether the kernel of a product also checks its rows: C is tall and narrow. Others are checked after."""
    return m > NARROW and k > 0 and 0 < w <= NARROW


def checked_plan(problem: Problem, device: GpuSpec, table: Sequence[Mapping[str, Any]] | None = None) -> MmaPlan | None:
    """Select the plan of a product with checksums of A's rows; None if no kernel of the core supports it.

    The first choice is the device's table of tuned configurations with checks (bench/abft/tune_plans.py), the second is
    the plan of the unprotected product. Either is used only if each warp has all columns of its rows. Otherwise the
    candidate with the shortest predicted time is selected.
    """
    for rows in (measured(device.name), of_version(tuned_table(device.name) if table is None else table, None)):
        tuned = plan(problem, device, rows) if rows else None
        if isinstance(tuned, MmaPlan) and (found := with_row_sums(tuned, device)) is not None:
            return found
    every = [with_row_sums(one, device, roomy=True) for one in candidates(problem, device) if type(one) is MmaPlan]
    return min(filter(None, every), key=lambda one: predict(one, problem, device), default=None)


def measured(device_name: str) -> tuple[Mapping[str, Any], ...]:
    """Return the configurations tuned on a device of this name, as rows of a tuning table (kernels/plan/select.py)."""
    return tuned_table(device_name, TUNED)


def with_row_sums(one: MmaPlan, device: GpuSpec, *, roomy: bool = False) -> MmaPlan | None:
    """Return a plan with weighted sums of A's rows; None if it does not fit. `roomy` requires spare registers."""
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
    """Return the name of the C++ class that stores fragments to a C with w columns and layout `c`."""
    if c in ("aligned columns", "columns"):
        name = "tsm2::StoreColumns"
    elif c in ("packed", "rows") and w % (16 if dtype in ("float16", "bfloat16") else 8) == 0:
        name = "tsm2::StorePairs"
    else:
        name = "abft::StoreEach"
    return f"{name}<{ELEMENT[dtype]}, {SUM[dtype]}>"


def detect_epilogue(dtype: str, w: int, c: Lies) -> Epilogue:
    """Return the epilogue `DetectEpilogue`, which stores a product and flags rows."""
    total = summed(dtype)
    store = [("C", "u8"), *((name, "i8") for name in ("row_stride", "column_stride", "regular"))]
    limits = [(name, total) for name in ("row", "row_size", "row_absolute")]
    checks = [("row_weights", "u8"), ("flagged_rows", FLAGGED_ROWS), *limits]
    arguments = np.dtype([*store, ("alpha", total), ("beta", total), *checks], align=True)
    return Epilogue(_DETECT, f"abft::DetectEpilogue<{SUM[dtype]}, {store_of(dtype, w, c)}>", arguments)


def row_sums_epilogue(dtype: str) -> Epilogue:
    """Return the epilogue `StoreRowSums`, which stores the checksums of A's rows alone."""
    return Epilogue(_DETECT, f"abft::StoreRowSums<{SUM[dtype]}>", np.dtype([("row_weights", "u8"), ("to", "u8")]))
