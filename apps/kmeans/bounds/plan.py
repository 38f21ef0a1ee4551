"""What bounds keep of a row, and how many rows are listed, from sizes alone; see bounds/state.cuh."""

import numpy as np

from tsapps.apps.kmeans.assign.plan import NEAREST

__all__ = [
    "BOUNDS_BYTES",
    "EXPIRING",
    "FRESH_BYTES",
    "OTHERS",
    "UNTIL",
    "WATCH",
    "begins_soon",
    "few_moved",
    "fresh_watch",
    "most_listed",
    "most_of_few_listed",
]

#: C++ classes that kernels take and keep, as NumPy structures: `NearestUntil`, `Expiring` and `Watch`.
UNTIL = np.dtype([*NEAREST.descr, *((name, "u8") for name in ("expiries", "limits", "watch"))])
EXPIRING = np.dtype([(name, "u8") for name in ("expiries", "limits", "active", "watch")])
WATCH = np.dtype(
    [
        *((name, "f8") for name in ("most", "latest", "hopeless")),
        *[("pass", "i4"), ("active", "u4"), ("wait", "i4"), ("failures", "i4"), ("paid", "i4"), ("others", "i4")],
        *[("screened", "u8"), ("examined", "u8")],
    ]
)
#: Bytes of a `Watch` that begin anew with an iteration; what was counted in all stays.
FRESH_BYTES = 48
#: Where a `Watch` has `others`.
OTHERS = 44
#: Bytes a row at most: its expiry, and a place in the list for some.
BOUNDS_BYTES = 7
# The part of the rows that are listed at most. Of X's copy, reading one by one, they cost some three times as much; of
# few features little more.
_MOST_PART, _MOST_OF_FEW = 0.25, 0.6
# The part of the rows that may move in an iteration for bounds to begin, as some forty times as many are not safe; and
# for what has to do with them to be launched, as the host knows of two iterations before.
_FEW_PART, _SOON_PART = 64, 16
# Rows that a warp examines at a time.
_TILE = 32


def fresh_watch() -> np.ndarray:
    """Return what is known before the first iteration, a `WATCH`: all rows are scored, without bounds."""
    watch = np.zeros((), WATCH)
    watch["hopeless"] = np.inf
    return watch


def few_moved(n: int) -> int:
    """Return the fewest rows of n that move in an iteration for bounds not to begin in the next."""
    return n // _FEW_PART + 1


def begins_soon(n: int, moved: int) -> bool:
    """Tell whether bounds may begin soon, as so many rows of n moved two iterations before."""
    return moved <= n // _SOON_PART


def most_of_few_listed(n: int) -> int:
    """Return how many of n rows of few features are listed at most."""
    return max(1, int(n * _MOST_OF_FEW))


def most_listed(n: int, lists: int, room: int) -> int:
    """Return how many of n rows are listed at most: what is examined is listed again, in `lists` with room for `room`.

    Tiles of rows are dealt to all lists in turn.
    """
    return min(max(1, int(n * _MOST_PART)), room // _TILE * _TILE * lists)
