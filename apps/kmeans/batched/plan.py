"""What iterations of many problems at once are made of, chosen from sizes alone; see batched*.cuh."""

from dataclasses import dataclass
from math import ceil, log2

import numpy as np

from tsapps.apps.kmeans.data.plan import MOST_EXPONENT
from tsapps.kernels.gpu_specs import GpuSpec

__all__ = [
    "BATCH",
    "KERNELS",
    "MOST_PROBLEMS",
    "PLUSPLUS_ARGS",
    "POINTERS",
    "SEED_ROWS",
    "STATUS",
    "TILE_ROWS",
    "BatchPlan",
    "batch_plan",
    "fixed_point_scales",
    "update_parts",
]

#: Arrays that the C++ class `Batch` points to.
POINTERS = (
    *(
        "X",
        "means",
        "half_copy_scales",
        "sum_scales",
        "sum_units",
        "tolerances",
        "half_copy",
        "norms",
        "labels",
        "centers",
    ),
    *(
        "centers_half",
        "half_squares",
        "center_stats",
        "sums",
        "changes",
        "counts",
        "n_reassigned",
        "arrived",
        "status",
        "iterations",
    ),
)
#: `Batch` and `PlusPlusArgs` as NumPy structures.
BATCH = np.dtype(
    [(name, "u8") for name in POINTERS]
    + [("n", "i8"), ("d", "i4"), ("k", "i4"), ("padded", "i4"), ("columns", "i4"), ("max_iter", "i4")]
    + [("tensor_error", "f4"), ("norm_limit", "f4"), ("padding", "i4")]
)
PLUSPLUS_ARGS = np.dtype(
    [(name, "u8") for name in ("uniforms", "candidates", "distances", "potentials", "best")]
    + [("trials", "i4"), ("tiles", "i4")]
)
#: The file and the threads of a block of every kernel.
KERNELS = {
    "column_moments": ("batched/problem.cuh", 256),
    "make_half_copy": ("batched/problem.cuh", 256),
    "assign": ("batched/assign.cuh", 128),
    "prepare_centers": ("batched/update.cuh", 512),
    "update": ("batched/update.cuh", 512),
    "sample_candidates": ("batched/init.cuh", 256),
    "candidate_distances": ("batched/init.cuh", 256),
    "inertias": ("batched/init.cuh", 256),
}
#: `Status`.
STATUS = {"running": 0, "strict": 1, "ended": 2, "empty": 3, "place": 4}
#: Rows of a block of `assign`, and of a block while seeding.
TILE_ROWS, SEED_ROWS = 128, 512
#: What a grid's second dimension numbers.
MOST_PROBLEMS = 65_535
# Rows are numbered in 32 bits, chunks of centers in 16; and candidates of a step of k-means++ are 16 at most.
_MOST_ROWS, _MOST_CLUSTERS = 2**32 - 1, 1 << 20
_LEAST_CAPABILITY = 8.0
# Of `assign`: three further chunks of four rows a thread.
_LIST_BYTES = 3 * 4 * 128 * 4
# Two blocks of `update` share a multiprocessor's memory.
_MOST_SUM_BYTES = 100 << 10
# Bits of an element of the sums, beside its sign: of two digits in shared memory, and of 64-bit additions.
_NARROW_BITS, _WIDE_BITS = 30, 46
# How far a feature's largest element may lie above the mean square for 30 bits to be as exact as float32.
_SPREAD = 2.0**8
_LEAST_EXPONENT = -900
# Changes that are worth a block.
_CHANGES = 256


@dataclass(frozen=True)
class BatchPlan:
    """How problems of n rows, d features and k clusters are worked on.

    Attributes
    ----------
    padded : int
        Elements of a row of the shadow.
    width, columns : int
        Centers of a chunk, and k rounded up to whole chunks.
    assign_bytes, update_bytes : int
        Dynamic shared memory of a block of `assign`, and of one of `update` that has its sums there.
    sums_fit : bool
        Whether it can have.
    """

    padded: int
    width: int
    columns: int
    assign_bytes: int
    update_bytes: int
    sums_fit: bool


def batch_plan(n: int, d: int, k: int, device: GpuSpec) -> BatchPlan | None:
    """Choose how problems are worked on; None where the kernels do not serve the shape or the GPU."""
    padded = -(-d // 16) * 16
    width = 16 if k <= 16 else 32 if k <= 32 else 64
    columns = -(-k // width) * width
    buffers = min(2, columns // width)
    assign_bytes = _LIST_BYTES + 2 * 4 * width + (TILE_ROWS + buffers * width) * (padded + 8) * 2
    update_bytes = 2 * 4 * k * (d + 1)
    room = min(device.shared_memory_per_block, _MOST_SUM_BYTES)
    served = n <= _MOST_ROWS and k <= _MOST_CLUSTERS and float(device.compute_capability) >= _LEAST_CAPABILITY
    if not served or max(assign_bytes, 8 * 8 * d) > device.shared_memory_per_block:
        return None
    return BatchPlan(padded, width, columns, assign_bytes, update_bytes, update_bytes <= room)


def fixed_point_scales(n: int, largest: np.ndarray, middle: np.ndarray) -> tuple[np.ndarray, bool]:
    """Choose the powers of two that make elements integers of the sums.

    Parameters
    ----------
    n : int
    largest : numpy.ndarray of shape (b, d)
        No less than the largest ``|x − mean|`` of each feature.
    middle : numpy.ndarray of shape (b,)
        The root of the mean square of all x − mean of a problem.

    Returns
    -------
    scales : numpy.ndarray of shape (b, d)
    narrow : bool
        Whether integers of 30 bits are as exact as float32; else they have 46, or what leaves room for n of them.
    """
    exponents = np.clip(np.ceil(np.log2(np.where(largest > 0, largest, 1.0))), _LEAST_EXPONENT, None)
    alike = bool((largest.max(axis=1) <= _SPREAD * middle).all())
    narrow = alike and bool((abs(exponents) < MOST_EXPONENT).all())
    bits = _NARROW_BITS if narrow else min(_WIDE_BITS, 62 - ceil(log2(n)))
    return np.exp2(bits - exponents), narrow


def update_parts(n: int, problems: int, multiprocessors: int) -> int:
    """Return the blocks of `update` that share a problem's changes: two a multiprocessor in all, and none for few."""
    return max(1, min(-(-2 * multiprocessors // problems), -(-n // _CHANGES)))
