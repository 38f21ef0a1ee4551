"""Plan of the update of cluster sums from sizes (pure), and structures shared with C++."""

from dataclasses import dataclass

import numpy as np

from tsapps.apps.kmeans.bounds.plan import DRIFT
from tsapps.apps.kmeans.data.plan import log2_lanes, vector_of
from tsapps.apps.kmeans.update.fixed_point import NARROW

__all__ = [
    "COLUMN_ORDER",
    "HALF_CENTERS",
    "LARGE_D",
    "LEAST_SORTED",
    "LISTS",
    "MOST_PLACED",
    "MOST_RELOCATED",
    "OUTCOME",
    "PLACE_BYTES",
    "SEGMENTS",
    "UPDATE_CENTERS",
    "SegmentsPlan",
    "segments_plan",
    "sorts_lists",
    "sorts_rows",
]

#: Limits for small k. If d is at least `LARGE_D`, reassigned rows are sorted, because scatter_add.cuh would clear and
#: flush more sums than it adds. For smaller d, reassigned rows are sorted if they have at least `LEAST_SORTED` elements
#: in all: sorting was then measured to save more time than its two additional launches take (docs/notes/lloyd.md).
LARGE_D, LEAST_SORTED = 1024, 2**26
# Limit for large k: reassigned rows are sorted if they have at least this many elements in all.
_LEAST_SORTED_LARGE_K = 2**21
#: Maximum number of samples for which reassigned rows can be sorted. Up to two positions per row must be 32-bit numbers
#: (update/sort_reassigned.cuh).
MOST_PLACED = 2**31 - 1024
#: Maximum number of empty clusters that launches relocate (kMostRelocated).
MOST_RELOCATED = 1024
#: The C++ class `Outcome` of update/centers.cuh, as a NumPy structure.
OUTCOME = np.dtype(
    [("stop", "i4"), ("empty", "i4"), ("n_reassigned", "u4"), ("relocated", "i4"), ("shift", "f8"), ("potential", "f8")]
)
#: The C++ classes `Lists` and `Segments` of update/sort_reassigned.cuh, as NumPy structures.
LISTS = np.dtype([("items", "u8"), ("lengths", "u8"), ("capacity", "i8"), ("step", "i4"), ("padding", "i4")])
SEGMENTS = np.dtype([("k", "i4"), ("bits", "i4")])
#: The C++ classes `HalfCenters` and `UpdateCenters` of update/centers.cuh, and `ColumnOrder` of
#: update/column_order.cuh, as NumPy structures.
HALF_CENTERS = np.dtype(
    [("to", "u8"), *[(name, "i4") for name in ("padded", "panels", "height", "second", "split", "each")]]
)
COLUMN_ORDER = np.dtype(
    [(name, "u8") for name in ("norms", "next_norms", "columns", "centers", "tile_bounds")]
    + [(name, "f4") for name in ("of_norm", "of_lost", "of_half_square", "of_level")]
)
UPDATE_CENTERS = np.dtype(
    [
        (name, "u8")
        for name in ("sums", "units", "centers", "next", "found", "offsets", "error_coefficients", "center_stats")
    ]
    + [(name, "u8") for name in ("arrived", "n_reassigned", "counts", "stopped", "empty", "outcome")]
    + [("centers_half", HALF_CENTERS), ("order", COLUMN_ORDER), ("drift", DRIFT), ("tolerance", "f8")]
    + [(name, "i4") for name in ("k", "d", "lists")]
    + [(name, "f4") for name in ("scale", "norm_limit", "of_norm", "of_lost")]
    + [("lets_begin", "i4"), ("certifies", "i4"), ("relocates", "i4")]
)
#: Size of a sorted row index in bytes.
PLACE_BYTES = 4


@dataclass(frozen=True)
class SegmentsPlan:
    """Template arguments of update/segmented_sum.cuh.

    Attributes
    ----------
    vector : int
        Number of elements that a lane loads at a time; 0 if rows are not aligned or not a whole number of vectors.
    lanes : int
        Number of lanes among which a row is split.
    together : int
        Number of rows that a lane loads together.
    blocks : int
        Number of blocks per multiprocessor.
    """

    vector: int
    lanes: int
    together: int
    blocks: int

    @property
    def arguments(self) -> str:
        """The template arguments of the kernel that this plan selects, as C++ text."""
        return f"{self.vector}, {self.lanes}, {self.together}, {self.blocks}"


def segments_plan(itemsize: int, d: int, address: int, digits: int, *, weighted: bool) -> SegmentsPlan:
    """Plan the segmented sum of reassigned rows; docs/notes/lloyd.md has the measurements.

    Parameters
    ----------
    itemsize : int
        Size of an element of X in bytes.
    d : int
    address : int
        Device address of X.
    digits : {2, 3}
        Number of limbs per element of the fixed-point sums.
    weighted : bool
        Whether samples have weights.

    Returns
    -------
    SegmentsPlan
    """
    vector = vector_of(itemsize)
    lanes = 1 << log2_lanes(-(-d // vector))
    whole = d % vector == 0 and address % (vector * itemsize) == 0
    many = itemsize == 2 and digits == NARROW and not weighted and whole and lanes == 32
    # A warp loads 32 sorted row indices at a time.
    together = min(lanes, 2 if weighted else 8 if many else 4)
    return SegmentsPlan(vector if whole else 0, lanes, together, 3 if many else 2)


def sorts_rows(changing: int, d: int) -> bool:
    """Return True if sorting `changing` reassigned rows of d features is faster than a scatter-add, for small k."""
    return d >= LARGE_D or changing * d >= LEAST_SORTED


def sorts_lists(changing: int, d: int) -> bool:
    """Return True if sorting `changing` reassigned rows of d features is faster than adding them, for large k."""
    return changing * d >= _LEAST_SORTED_LARGE_K
