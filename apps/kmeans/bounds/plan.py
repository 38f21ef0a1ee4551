"""Plan of Hamerly bounds: when they start and how many rows may be active (pure); and structures shared with C++."""

import numpy as np

from tsapps.apps.kmeans.assign.plan import ARGMIN
from tsapps.kernels.epilogue import Epilogue

__all__ = [
    "BOUNDED",
    "BOUNDED_EPILOGUE",
    "BOUNDS_BYTES",
    "BOUNDS_STATE",
    "DRIFT",
    "FRESH_BYTES",
    "ROW_BOUNDS",
    "SKIP_FULL_ASSIGN",
    "begin_limit",
    "begins_soon",
    "fresh_bounds_state",
    "most_listed",
    "most_listed_small_d",
]

#: The C++ class `DriftArgs` of bounds/state.cuh, as a NumPy structure.
DRIFT = np.dtype(
    [*((name, "u8") for name in ("center_drift", "limits", "state")), ("begin_limit", "u4"), ("padding", "u4")]
)
#: The C++ class `ArgminEpilogueBounded` of bounds/assign.cuh, as a NumPy structure.
BOUNDED = np.dtype([*ARGMIN.descr, *((name, "u8") for name in ("row_bounds", "limits", "state"))])
#: The GEMM epilogue that labels all rows and computes their row bounds.
BOUNDED_EPILOGUE = Epilogue("apps/kmeans/bounds/assign.cuh", "kmeans::ArgminEpilogueBounded", BOUNDED)
#: The C++ class `RowBounds` of small_d/iteration_bounded.cuh, as a NumPy structure.
ROW_BOUNDS = np.dtype([(name, "u8") for name in ("row_bounds", "limits", "active", "state")])
#: The C++ class `BoundsState` of bounds/state.cuh, as a NumPy structure.
BOUNDS_STATE = np.dtype(
    [
        *((name, "f8") for name in ("most", "last_drift", "failed_drift")),
        *[
            ("pass", "i4"),
            ("active", "u4"),
            ("cooldown", "i4"),
            ("failures", "i4"),
            ("paid_off", "i4"),
            ("skip_full_assign", "i4"),
        ],
        *[("screened", "u8"), ("examined", "u8")],
    ]
)
#: Number of leading bytes of a `BoundsState` that `Bounds.begin` resets. It does not reset the totals after them.
FRESH_BYTES = 48
#: Byte offset of `skip_full_assign` in a `BoundsState`.
SKIP_FULL_ASSIGN = 44
#: Maximum memory per row of X in bytes. Each row has a bound of 4 bytes. The list of active rows has 4 bytes for at
#: most 0.6 of the rows (`_MOST_PART_SMALL_D`).
BOUNDS_BYTES = 7
# The largest fraction of rows that may be scored from the list of active rows; for more rows, a pass over all rows is
# faster. Scoring a listed row of the half-precision copy takes about three times as long as in a pass over all rows.
# For small d it takes little longer.
_MOST_PART, _MOST_PART_SMALL_D = 0.25, 0.6
# The GPU starts bounds when at most n / `_BEGIN_PART` of n rows were reassigned; about forty times as many rows are
# then active. The host launches the kernels of bounds earlier, when at most n / `_SOON_PART` rows were reassigned,
# because it knows only the number of reassigned rows of two iterations ago.
_BEGIN_PART, _SOON_PART = 64, 16
# Number of listed rows that a warp scores at a time.
_TILE = 32


def fresh_bounds_state() -> np.ndarray:
    """Return the initial `BOUNDS_STATE`: the first pass scores all rows without bounds."""
    state = np.zeros((), BOUNDS_STATE)
    state["failed_drift"] = np.inf
    return state


def begin_limit(n: int) -> int:
    """Return the minimum number of reassigned rows, of n rows, with which bounds do not start in the next iteration."""
    return n // _BEGIN_PART + 1


def begins_soon(n: int, n_reassigned: int) -> bool:
    """Return True if `n_reassigned`, the number of reassigned rows two iterations ago, is at most a sixteenth of n.

    Bounds may then start soon, so the host launches their kernels.
    """
    return n_reassigned <= n // _SOON_PART


def most_listed_small_d(n: int) -> int:
    """Return the capacity of the list of active rows for small d and n rows."""
    return max(1, int(n * _MOST_PART_SMALL_D))


def most_listed(n: int, lists: int, capacity: int) -> int:
    """Return the capacity of the list of active rows for n rows and small k.

    Active rows that are ambiguous or reassigned are appended to `lists` lists of `capacity` rows each. Tiles of active
    rows are assigned to these lists in turn. The returned capacity is small enough that no list overflows, even if all
    active rows are appended.
    """
    return min(max(1, int(n * _MOST_PART)), capacity // _TILE * _TILE * lists)
