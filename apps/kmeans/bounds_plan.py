"""What bounds keep of a row, and how many rows are listed, from sizes alone; see bounds.cuh."""

import numpy as np

from tsapps.apps.kmeans.fused_plan import NEAREST

__all__ = ["BOUNDS_BYTES", "FRESH_BYTES", "UNTIL", "WATCH", "WITHOUT", "fresh_watch", "most_listed"]

#: C++ classes that kernels take and keep, as NumPy structures: `NearestUntil`, `NearestWithout` and `Watch`.
UNTIL = np.dtype([*NEAREST.descr, *((name, "u8") for name in ("expiries", "limits", "watch"))])
WITHOUT = np.dtype([*NEAREST.descr, ("watch", "u8")])
WATCH = np.dtype(
    [
        *((name, "f8") for name in ("most", "latest", "hopeless")),
        *[("pass", "i4"), ("active", "u4"), ("wait", "i4"), ("failures", "i4"), ("paid", "i4")],
        *[("screened", "u4"), ("examined", "u8")],
    ]
)
#: Bytes of a `Watch` that begin anew with an iteration; what was counted in all stays.
FRESH_BYTES = 44
#: Bytes a row: its expiry, and a place in the list for one in four.
BOUNDS_BYTES = 5
# The part of the rows that are listed at most: reading one by one, they cost some three times as much.
_MOST_PART = 4
# Rows that a warp examines at a time.
_TILE = 32
# Iterations without bounds at first, in which most rows change their labels.
_FIRST = 2


def fresh_watch() -> np.ndarray:
    """Return what is known before the first iteration, a `WATCH`: all rows are scored, without bounds."""
    watch = np.zeros((), WATCH)
    watch["hopeless"], watch["wait"] = np.inf, _FIRST
    return watch


def most_listed(n: int, lists: int, room: int) -> int:
    """Return how many of n rows are listed at most: what is examined is listed again, in `lists` with room for `room`.

    Tiles of rows are dealt to all lists in turn.
    """
    return min(max(1, n // _MOST_PART), room // _TILE * _TILE * lists)
