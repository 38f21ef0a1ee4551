"""Plans of protected products on a GPU, from sizes and layouts alone; and NumPy structures that mirror C++ classes."""

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
from tsapps.kernels.plan.predict import predict
from tsapps.kernels.plan.select import plan, tuned_table
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

#: The folder with the tuned configurations of protected products, one file per GPU model.
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
#: Number of rows of B that a lane of the kernel row_checksums reads (kRowsPerLane).
ROWS_PER_LANE = 4
#: Maximum number of bytes that a thread of a protected product may spill to local memory, once per tile. Tuning rejects
#: plans that spill more.
MOST_SPILLED = 32
# The header that defines the epilogues `DetectEpilogue` and `StoreRowSums`.
_DETECT = "apps/abft/product/detect.cuh"
# Minimum ratio of available registers to the estimated need of a plan that was not measured, by bytes per element, with
# keep_b or in float64; and without keep_b. At a smaller ratio, the compiler may spill registers.
_ROOM, _ROOM_WITHOUT_B = {8: 1.2, 4: 1.25, 2: 1.5}, 1.1
# Maximum number of entries of x that a kernel reads beyond the last tile (epilogue.cuh), and minimum value of N.
# product/row_checksums.cuh defines x and N.
_BEYOND, _LEAST_N = 16, 16


def summed(dtype: str) -> np.dtype:
    """Return the dtype in which products of elements of `dtype` are accumulated."""
    return np.dtype(np.float64 if SUM[dtype] == "double" else np.float32)


def half_step(w: int) -> float:
    """Return 1 / 2N for w columns; product/row_checksums.cuh defines N, which determines the weights of the columns."""
    return 0.5 / max(_LEAST_N, 2 ** ceil(log2(max(1, -(-w // 8) * 2))))


def padded_depth(k: int, one: MmaPlan) -> int:
    """Return the length of the checksum vector x of B (k × w), including zeros at the end that a kernel may read."""
    return -(-k // one.depth) * one.depth + _BEYOND


def row_size(bounds: ErrorBounds, w: int) -> float:
    """Return the coefficient of ``Σ_j |c_ij|`` in the bound of a row's residual, for w columns.

    The first test of a row uses ``Σ_j |c_ij|``, the re-check uses q_i instead (`ErrorBounds.row`; symbols: see
    thresholds.py). If ``s_l = Σ_j |b_lj|``, ``Σ_j |c_ij|`` is about q_i. If s_l = √(Σ_j b_lj² + (Σ_j b_lj)²),
    ``Σ_j |c_ij| / √w`` is about q_i, and never above √(Σ_j c_ij²).
    """
    return bounds.row / sqrt(w) if bounds.by_spread else bounds.row


def row_bounds(bounds: ErrorBounds, w: int) -> Any:
    """Return a `ROW_BOUNDS`, which mirrors the C++ class `RowBounds`, for w columns."""
    return _from_fields(ROW_BOUNDS, vars(bounds) | {"row_size": row_size(bounds, w)})


def recheck_args(bounds: ErrorBounds, w: int) -> np.ndarray:
    """Return a `RECHECK_ARGS`, which mirrors the C++ class `RecheckArgs`, for w columns; the caller sets x and y."""
    args = np.zeros((), RECHECK_ARGS)
    args["half_step"], args["bounds"] = half_step(w), row_bounds(bounds, w)
    return args


def element_bounds(bounds: ErrorBounds) -> Any:
    """Return an `ELEMENT_BOUNDS`, which mirrors the C++ class `ElementBounds`."""
    return _from_fields(ELEMENT_BOUNDS, vars(bounds) | {"products": bounds.model.products})


def _from_fields(dtype: np.dtype, values: Mapping[str, float]) -> Any:
    """Return a structure of type `dtype`, each field of which has the value of the same name."""
    one = np.zeros((), dtype)
    for name in one.dtype.names:
        one[name] = values[name]
    return one[()]


def is_fused(m: int, k: int, w: int) -> bool:
    """Return True if C (m × w) is tall and narrow, so that the GEMM kernel also checks the rows of C.

    The rows of any other C are checked after the GEMM.
    """
    return m > NARROW and k > 0 and 0 < w <= NARROW


def checked_plan(problem: Problem, device: GpuSpec, table: Sequence[Mapping[str, Any]] | None = None) -> MmaPlan | None:
    """Select the plan of a GEMM that also computes the checksums of A's rows; None if no kernel supports the problem.

    The first choice is a configuration that was tuned with checks on this device (bench/abft/tune_plans.py). The second
    choice is the plan of the unprotected product; `table` replaces its shipped tuning table. A choice is used only if
    each warp computes all columns of its rows (`with_row_sums`). Otherwise the candidate with the shortest predicted
    time is selected.
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
    """Return the plan `one` with the checksums of A's rows added; None if such a plan does not fit the device.

    Each warp must compute all columns of its rows. `roomy` also requires spare registers (`_ROOM`).
    """
    if one.warps_n > 1 or one.fold > 1:
        return None
    made = replace(one, store=OWN_EPILOGUE, row_sums=True)
    room = _ROOM[ITEMSIZE[made.dtype]] if made.keep_b or made.dtype == "float64" else _ROOM_WITHOUT_B
    if roomy and not isinstance(made, WgmmaPlan) and room * registers(made) > most_registers(made):
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
    """Return the epilogue `DetectEpilogue`, which stores C and flags the rows that disagree with their checksums."""
    total = summed(dtype)
    store = [("C", "u8"), *((name, "i8") for name in ("row_stride", "column_stride", "regular"))]
    limits = [(name, total) for name in ("row", "row_size", "row_absolute")]
    checks = [("row_weights", "u8"), ("flagged_rows", FLAGGED_ROWS), *limits]
    arguments = np.dtype([*store, ("alpha", total), ("beta", total), *checks], align=True)
    return Epilogue(_DETECT, f"abft::DetectEpilogue<{SUM[dtype]}, {store_of(dtype, w, c)}>", arguments)


def row_sums_epilogue(dtype: str) -> Epilogue:
    """Return the epilogue `StoreRowSums`, which stores only the checksums of A's rows, and not the product."""
    return Epilogue(_DETECT, f"abft::StoreRowSums<{SUM[dtype]}>", np.dtype([("row_weights", "u8"), ("to", "u8")]))
