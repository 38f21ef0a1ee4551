"""The update of sums and centers, from sizes alone; and structures shared with C++."""

from dataclasses import dataclass

import numpy as np

from tsapps.apps.kmeans.bounds.plan import DRIFT
from tsapps.apps.kmeans.data.plan import log2_lanes, vector_of
from tsapps.apps.kmeans.update.fixed_point import NARROW

__all__ = [
    "HALF_CENTERS",
    "LARGE_D",
    "LEAST_SORTED",
    "LISTS",
    "MOST_PLACED",
    "OUTCOME",
    "PLACE_BYTES",
    "SEGMENTS",
    "UPDATE_CENTERS",
    "SegmentsPlan",
    "segments_plan",
    "sorts_rows",
]

#: Features from which on rows of few clusters are always sorted to be moved: scatter_add.cuh would clear and flush more
#: than it adds. Of fewer, the elements of changing rows from which on sorting saves more than its two launches more
#: cost, by measurement (docs/notes/lloyd.md).
LARGE_D, LEAST_SORTED = 1024, 2**26
#: Rows that can be sorted where each has two places, which are counted by 32 bits (update/sort_reassigned.cuh).
MOST_PLACED = 2**31 - 1024
OUTCOME = np.dtype(
    [("stop", "i4"), ("empty", "i4"), ("n_reassigned", "u4"), ("padding", "i4"), ("shift", "f8"), ("potential", "f8")]
)
LISTS = np.dtype([("items", "u8"), ("lengths", "u8"), ("capacity", "i8"), ("step", "i4"), ("padding", "i4")])
SEGMENTS = np.dtype([("k", "i4"), ("bits", "i4")])
HALF_CENTERS = np.dtype([("to", "u8"), *[(name, "i4") for name in ("padded", "panels", "height", "second")]])
UPDATE_CENTERS = np.dtype(
    [
        (name, "u8")
        for name in ("sums", "units", "centers", "next", "found", "offsets", "error_coefficients", "center_stats")
    ]
    + [(name, "u8") for name in ("arrived", "n_reassigned", "counts", "stopped", "outcome")]
    + [("centers_half", HALF_CENTERS), ("drift", DRIFT), ("tolerance", "f8")]
    + [(name, "i4") for name in ("k", "d", "lists")]
    + [(name, "f4") for name in ("scale", "norm_limit", "of_norm", "of_lost")]
    + [("lets_begin", "i4")]
)
#: Bytes of a place.
PLACE_BYTES = 4


@dataclass(frozen=True)
class SegmentsPlan:
    """How update/segmented_sum.cuh adds up rows: its template arguments.

    Attributes
    ----------
    vector : int
        Elements of a row that a lane takes by one load; 0 where rows do not begin so.
    lanes : int
        Lanes that share a row.
    together : int
        Rows that a lane asks for together.
    blocks : int
        Blocks of a multiprocessor.
    """

    vector: int
    lanes: int
    together: int
    blocks: int

    @property
    def arguments(self) -> str:
        """The last of the kernel's template arguments."""
        return f"{self.vector}, {self.lanes}, {self.together}, {self.blocks}"


def segments_plan(itemsize: int, d: int, address: int, digits: int, *, weighted: bool) -> SegmentsPlan:
    """Choose how rows of `d` elements, the first at an address, are added up; measured in docs/notes/lloyd.md."""
    vector = vector_of(itemsize)
    lanes = 1 << log2_lanes(-(-d // vector))
    whole = d % vector == 0 and address % (vector * itemsize) == 0
    many = itemsize == 2 and digits == NARROW and not weighted and whole and lanes == 32
    # A warp has 32 places at hand.
    together = min(lanes, 2 if weighted else 8 if many else 4)
    return SegmentsPlan(vector if whole else 0, lanes, together, 3 if many else 2)


def sorts_rows(changing: int, d: int) -> bool:
    """Tell whether so many rows that change are sorted by the pair of their clusters, where there are few clusters."""
    return d >= LARGE_D or changing * d >= LEAST_SORTED
