"""What bounds keep of a row, and how many rows are listed, from sizes alone; see bounds/state.cuh."""

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

DRIFT = np.dtype(
    [*((name, "u8") for name in ("center_drift", "limits", "state")), ("begin_limit", "u4"), ("padding", "u4")]
)
#: C++ classes that kernels take and keep, as NumPy structures: `ArgminEpilogueBounded`, `RowBounds` and `BoundsState`.
BOUNDED = np.dtype([*ARGMIN.descr, *((name, "u8") for name in ("row_bounds", "limits", "state"))])
#: The epilogue of assignment with bounds.
BOUNDED_EPILOGUE = Epilogue("apps/kmeans/bounds/assign.cuh", "kmeans::ArgminEpilogueBounded", BOUNDED)
ROW_BOUNDS = np.dtype([(name, "u8") for name in ("row_bounds", "limits", "active", "state")])
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
#: Bytes of a `BoundsState` that begin anew with an iteration; what was counted in all stays.
FRESH_BYTES = 48
#: Where a `BoundsState` has `skip_full_assign`.
SKIP_FULL_ASSIGN = 44
#: Bytes a row at most: its expiry, and a place in the list for some.
BOUNDS_BYTES = 7
# The part of the rows that are listed at most. Of X's copy, reading one by one, they cost some three times as much; of
# few features little more.
_MOST_PART, _MOST_PART_SMALL_D = 0.25, 0.6
# The part of the rows that may move in an iteration for bounds to begin, as some forty times as many are not safe; and
# for what has to do with them to be launched, as the host knows of two iterations before.
_BEGIN_PART, _SOON_PART = 64, 16
# Rows that a warp examines at a time.
_TILE = 32


def fresh_bounds_state() -> np.ndarray:
    """Return what is known before the first iteration, a `BOUNDS_STATE`: all rows are scored, without bounds."""
    state = np.zeros((), BOUNDS_STATE)
    state["failed_drift"] = np.inf
    return state


def begin_limit(n: int) -> int:
    """Return the fewest rows of n that move in an iteration for bounds not to begin in the next."""
    return n // _BEGIN_PART + 1


def begins_soon(n: int, n_reassigned: int) -> bool:
    """Tell whether bounds may begin soon, as so many rows of n moved two iterations before."""
    return n_reassigned <= n // _SOON_PART


def most_listed_small_d(n: int) -> int:
    """Return how many of n rows of few features are listed at most."""
    return max(1, int(n * _MOST_PART_SMALL_D))


def most_listed(n: int, lists: int, room: int) -> int:
    """Return how many of n rows are listed at most: what is examined is listed again, in `lists` with room for `room`.

    Tiles of rows are dealt to all lists in turn.
    """
    return min(max(1, int(n * _MOST_PART)), room // _TILE * _TILE * lists)
