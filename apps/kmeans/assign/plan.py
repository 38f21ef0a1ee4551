"""What an iteration of the fused engine is made of, chosen from sizes alone: its product, its integers, its blocks."""

from dataclasses import dataclass, replace
from math import ceil, inf, log2, sqrt

import numpy as np

from tsapps.kernels.gpu_specs import GpuSpec
from tsapps.kernels.plan.candidates import fits
from tsapps.kernels.plan.mma import MmaPlan, instantiate
from tsapps.kernels.problem import Layout, Problem

__all__ = [
    "AMBIGUOUS_BYTES",
    "AMBIGUOUS_LARGE_K_BYTES",
    "ARGMIN",
    "DRIFT",
    "EXACT",
    "LARGE_D",
    "LEAST_SORTED",
    "LISTS",
    "MOST_CLUSTERS",
    "MOST_EXPONENT",
    "MOST_LARGE_K",
    "MOST_PLACED",
    "NARROW",
    "OUTCOME",
    "PLACE_BYTES",
    "REASSIGNMENT_BYTES",
    "ROUNDING",
    "ROWS",
    "SEGMENTS",
    "STREAMED_ARGMIN",
    "UNPROVED",
    "UPDATE_CENTERS",
    "WIDE",
    "Integers",
    "SegmentsPlan",
    "assign_plan",
    "capacity",
    "center_parts",
    "columns_of",
    "columns_of_block",
    "epilogue_of",
    "error_coefficients_of",
    "half_copy_problem",
    "half_copy_scale",
    "half_copy_scales",
    "integers",
    "log2_lanes",
    "norm_limit_of",
    "padded",
    "parts_of",
    "product_error",
    "segments_plan",
    "sorts_rows",
    "tensor_error",
    "vector_of",
]

#: The clusters that assign/small_k.cuh has room for; more are for assign/large_k.cuh.
MOST_CLUSTERS = 64
#: And what that has room for (kMostCenters).
MOST_LARGE_K = 1 << 16
#: Features from which on rows of few clusters are always sorted to be moved: scatter_add.cuh would clear and flush more
#: than it adds. Of fewer, the elements of changing rows from which on sorting saves more than its two launches more
#: cost, by measurement (docs/notes/lloyd.md).
LARGE_D, LEAST_SORTED = 1024, 2**26
#: Rows that can be sorted where each has two places, which are counted by 32 bits (update/sort_reassigned.cuh).
MOST_PLACED = 2**31 - 1024
#: Powers of two that float32 can be scaled by, back and forth.
MOST_EXPONENT = 96
#: The C++ classes that kernels take and give, as NumPy structures: `ArgminEpilogue`, `Rows`, `Outcome` and so on.
ARGMIN = np.dtype(
    [(name, "u8") for name in ("offsets", "center_stats", "norms", "labels", "entries", "counts", "stopped")]
    + [("capacity", "i8"), ("n", "u4"), ("ahead", "u4"), ("tensor_error", "f4"), ("rounding", "f4")]
)
ROWS = np.dtype([("X", "u8"), ("leading", "i8"), ("d", "i4"), ("padding", "i4"), ("mean", "u8"), ("weights", "u8")])
OUTCOME = np.dtype(
    [("stop", "i4"), ("empty", "i4"), ("n_reassigned", "u4"), ("padding", "i4"), ("shift", "f8"), ("potential", "f8")]
)
STREAMED_ARGMIN = np.dtype(
    [(name, "u8") for name in ("center_stats", "norms", "labels", "changes", "ambiguous", "lengths", "stopped")]
    + [("capacity", "i8"), ("n", "u4"), ("tensor_error", "f4"), ("rounding", "f4"), ("padding", "f4")]
)
#: What float16 loses of a row beside its norm, but for few rows: of data rounded to it, and of data that it holds.
ROUNDING, EXACT = 2.0**-12, 2.0**-20
#: What norms, and with them the bound, are multiplied by where labels are not proved: the roundings of a score remain.
UNPROVED = 2.0**-10
LISTS = np.dtype([("items", "u8"), ("lengths", "u8"), ("capacity", "i8"), ("step", "i4"), ("padding", "i4")])
SEGMENTS = np.dtype([("k", "i4"), ("bits", "i4")])
_HALF_CENTERS = np.dtype([("to", "u8"), *[(name, "i4") for name in ("padded", "panels", "height", "second")]])
DRIFT = np.dtype([*((name, "u8") for name in ("n_reassigned", "limits", "state")), ("few", "u4"), ("padding", "u4")])
UPDATE_CENTERS = np.dtype(
    [
        (name, "u8")
        for name in ("sums", "units", "centers", "next", "found", "offsets", "error_coefficients", "center_stats")
    ]
    + [(name, "u8") for name in ("arrived", "n_reassigned", "counts", "stopped", "outcome")]
    + [("centers_half", _HALF_CENTERS), ("drift", DRIFT), ("tolerance", "f8")]
    + [(name, "i4") for name in ("k", "d", "lists")]
    + [(name, "f4") for name in ("scale", "norm_limit", "of_norm", "of_lost")]
    + [("lets_begin", "i4")]
)
#: Bytes of an `AmbiguousRow`, a `Reassignment`, an `AmbiguousLargeK` and a place.
AMBIGUOUS_BYTES, REASSIGNMENT_BYTES, AMBIGUOUS_LARGE_K_BYTES, PLACE_BYTES = 16, 16, 32, 4
# What the tensor cores may lose of each sum of 16 products, relative to all that was added: of 4, 8 or 16 terms at a
# time, they truncate what lies some 24 bits below the largest.
_TENSOR_ERROR = 2.0**-20
# What a rounded addition may lose of a sum.
_ROUNDED = 2.0**-24
# What the roundings of a score may be, relative to the norms of its row and center (assign/small_k.cuh).
_SCORE_ROUNDINGS = 2.0**-22
# Likewise of float64, by which integers are scaled.
_MOST_OF_DOUBLE = 900
# Where float16 is to hold the data: about so large in the mean square, a four-thousandth of its largest number.
_MIDDLE = 16.0
# Features from which on what fewer rows in doubt save is more than what twice the columns of few centers cost.
_TWO_PARTS = 2048
# Longest rows that one stage of the ring holds whole; and rows so short, and columns so few, that 64 rows are a tile.
_MOST_DEPTH, _SHORT, _SMALL_TILE = 256, 16, 16
#: Digits of 16 bits of a sum's elements, and the most bits that they use beside the sign.
NARROW, WIDE = 2, 3
_BITS = {NARROW: 30, WIDE: 46}
# How far a feature's largest element may lie above the mean square for two digits to be as exact as float32.
_SPREAD = 2.0**8
# Bytes of a block's sums (kPlane in update/scatter_add.cuh).
_PLANES = 66 * 1024


def padded(d: int) -> int:
    """Return the elements of a row of the shadow: d rounded up to 16 bytes."""
    return -(-d // 8) * 8


def log2_lanes(columns: int) -> int:
    """Return log2 of the lanes that share a row of so many columns: at most a warp."""
    return min(5, (columns - 1).bit_length())


def vector_of(itemsize: int) -> int:
    """Return the elements that a lane of data/half_copy.cuh takes at a time (its kVector)."""
    return 2 if itemsize == 8 else 4


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


def tensor_error(d: int, interval: int = 0) -> float:
    """Return γ: what the sum of d products by tensor cores may be off by, relative to the product of the norms.

    If `interval` is not 0, they add up that many products at a time, and rounded additions add up the results.
    """
    together = min(d, interval) or d
    return (together / 16 + 2) * _TENSOR_ERROR + (ceil(d / together) - 1) * _ROUNDED


def parts_of(plan: MmaPlan, k: int) -> int:
    """Return the parts that a plan's product has of each of k centers."""
    return plan.tile_n // columns_of(k)


def product_error(plan: MmaPlan, d: int, k: int) -> float:
    """Return γ of the scores of `assign/small_k.cuh` by a plan."""
    # A word is two features, and four lanes have some of a row's. What a second part adds is rounded once more.
    return tensor_error(d, 8 * plan.interval) + (parts_of(plan, k) - 1) * 4 * _ROUNDED


def epilogue_of(plan: MmaPlan, k: int) -> str:
    """Return the class of small_k.cuh by which a plan's product has the nearest of k centers, in its namespace."""
    # Of long rows: by the stretch, as there are none with bounds (assign_plan).
    return f"ArgminEpilogueLargeD<{parts_of(plan, k)}>" if plan.interval else "ArgminEpilogue"


def error_coefficients_of(plan: MmaPlan, d: int, k: int, rounding: float) -> tuple[float, float]:
    """Return what a score may be off by, beside norm · ‖c‖, and beside norm · ‖c − ĉ‖ (assign/small_k.cuh).

    `rounding` is what float16 loses of a row, beside its norm.
    """
    error = product_error(plan, d, k)
    return rounding + error + _SCORE_ROUNDINGS, 1.0 + error


def center_parts(d: int, k: int) -> int:
    """Return the parts that a product has of every center: two of few, where rows are long; see assign/small_k.cuh."""
    return 2 if d >= _TWO_PARTS and columns_of(k) <= _SMALL_TILE else 1


def columns_of(k: int) -> int:
    """Return the columns of the product of so many centers, of one part."""
    return -(-k // 8) * 8


def half_copy_scale(middle: float) -> float:
    """Return the power of two that the shadow's elements are multiplied by; `middle` is the data's root mean square."""
    exponent = round(log2(_MIDDLE) - log2(middle)) if 0 < middle < inf else 0
    return float(2.0 ** min(max(exponent, -MOST_EXPONENT), MOST_EXPONENT))


def half_copy_scales(middles: np.ndarray) -> np.ndarray:
    """Return the `half_copy_scale` of each of many data sets, float32."""
    there = (middles > 0) & (middles < inf)
    exponents = np.rint(log2(_MIDDLE) - np.log2(np.where(there, middles, _MIDDLE)))
    return np.exp2(np.clip(exponents, -MOST_EXPONENT, MOST_EXPONENT)).astype(np.float32)


def norm_limit_of(d: int) -> float:
    """Return the norm that few rows of the shadow exceed: twice the root of the mean square; see update/centers.cuh."""
    return 2.0 * _MIDDLE * sqrt(2.0 * d)


def half_copy_problem(n: int, d: int, k: int, parts: int = 1) -> Problem:
    """Return the product of an iteration: the shadow's n rows by k centers, in one part or two."""
    layout, columns = Layout(True, padded(d), 16, 16), k if parts == 1 else parts * columns_of(k)
    return Problem(n, padded(d), columns, "float16", layout, layout, False, "rows")


def assign_plan(n: int, d: int, k: int, device: GpuSpec, *, bounds: bool = False) -> MmaPlan | None:
    """Choose how an iteration's product is computed; None where none of the core's kernels will do.

    Short rows are multiplied by warps that have a ring each, with the centers in shared memory; of long ones, pieces
    of 256 bytes go through a ring that a block shares, and are added up by rounded additions, as the tensor cores would
    lose more of long sums. Not so with `bounds`: what scores single rows (bounds/assign.cuh) has neither these nor
    centers in two parts. What was measured is in docs/notes/lloyd.md.
    """
    parts = 1 if bounds else center_parts(d, k)
    problem = half_copy_problem(n, d, k, parts)
    tile_n = parts * columns_of(k)
    found: list[MmaPlan] = []
    if problem.k <= _MOST_DEPTH:
        for tile_m in (64, 32) if problem.k <= _SHORT and tile_n <= _SMALL_TILE else (32,):
            for blocks, teams in ((2, 12), (1, 16), (1, 12), (1, 8), (1, 4)):
                short = MmaPlan(
                    "float16", tile_m, tile_n, problem.k, teams=teams, blocks=blocks, keep_b=True, interval=0
                )
                found += [replace(short, stages=stages) for stages in ((3, 2) if problem.k <= _SHORT else (2,))]
    long = MmaPlan("float16", 128, tile_n, 128, warps_m=4, stages=3, interval=0 if bounds else 16)
    found += [replace(long, tile_m=256, warps_m=8)] if parts > 1 else []
    found += [replace(long, blocks=blocks, stages=stages) for blocks, stages in ((2, 3), (2, 2), (1, 3))]
    for plan in found:
        # The epilogue takes no shared memory, as StorePairs does not.
        made = replace(instantiate(plan, problem), store="StorePairs")
        if fits(made, device):
            return made
    return None


def capacity(plan: MmaPlan, n: int, blocks: int) -> int:
    """Return the most rows that one of `blocks` blocks of a plan's kernel can be the one to end."""
    tiles = -(-n // plan.tile_m)
    if plan.keep_b:  # tiles are dealt in turn, to all blocks and then to their next team
        return plan.teams * -(-tiles // (blocks * plan.teams)) * plan.tile_m
    return (-(-tiles // blocks) + 2) * plan.tile_m


@dataclass(frozen=True)
class Integers:
    """How elements become integers; see update/fixed_point.cuh.

    Attributes
    ----------
    digits : {2, 3}
        Of 16 bits each.
    scales : tuple of float
        For each feature, and for the weights, the power of two that an element is multiplied by.
    """

    digits: int
    scales: tuple[float, ...]

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block of `move`."""
        return _PLANES // (4 * self.digits) * 4 * self.digits


def integers(n: int, dtype: np.dtype, largest: np.ndarray, middle: float, most_weight: float | None) -> Integers:
    """Choose how sums are kept.

    Parameters
    ----------
    n : int
    dtype : {float32, float64}
    largest : numpy.ndarray of shape (d,)
        No less than the largest ``|x − mean|`` of each feature.
    middle : float
        The root of the mean square of all x − mean.
    most_weight : float, optional
        The largest ``|weight|``; None where all are 1.

    Notes
    -----
    An element is exact to 2⁻³¹ of its feature's largest where float32 is no better in the mean, else to 2⁻⁴⁷ or to what
    leaves room for n of them in 64 bits.
    """
    most = largest * (1.0 if most_weight is None else most_weight)
    # A feature that is always the same adds zeros, whatever its scale.
    exponents = np.clip(np.ceil(np.log2(np.where(most > 0, most, 1.0))), -_MOST_OF_DOUBLE, None)
    # Weights may differ by much, and a cluster of small ones is no empty cluster.
    narrow = dtype == np.float32 and most_weight is None and float(largest.max()) <= _SPREAD * middle
    narrow = narrow and bool((np.abs(exponents) < MOST_EXPONENT).all())
    digits = NARROW if narrow else WIDE
    bits = min(_BITS[digits], 62 - ceil(log2(n)))
    of_weight = 0 if not most_weight else bits - ceil(log2(most_weight))
    return Integers(digits, tuple(np.exp2(np.append(bits - exponents, of_weight)).tolist()))


def columns_of_block(d: int, k: int, digits: int) -> tuple[int, int]:
    """Return the columns of the sums that a block of `move` has, and how many blocks have them all."""
    chunks = -(-(d + 1) // (_PLANES // (4 * digits) // k))
    return -(-(d + 1) // chunks), chunks
