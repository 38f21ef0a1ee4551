"""Launch plan of batched K-means: tile sizes, shared memory, structures of kernel arguments, fixed-point scales."""

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

#: Pointer members of the C++ class `Batch` of batched/problem.cuh, in order.
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
#: The C++ classes `Batch` of batched/problem.cuh and `PlusPlusArgs` of batched/init.cuh, as NumPy structures.
BATCH = np.dtype(
    [(name, "u8") for name in POINTERS]
    + [("n", "i8"), ("d", "i4"), ("k", "i4"), ("padded", "i4"), ("columns", "i4"), ("max_iter", "i4")]
    + [("tensor_error", "f4"), ("norm_limit", "f4"), ("padding", "i4")]
)
PLUSPLUS_ARGS = np.dtype(
    [(name, "u8") for name in ("uniforms", "candidates", "distances", "potentials", "best")]
    + [("trials", "i4"), ("tiles", "i4")]
)
#: Source file and number of threads per block of every kernel.
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
#: The C++ enum `Status` of batched/problem.cuh.
STATUS = {"running": 0, "strict": 1, "ended": 2, "empty": 3, "place": 4}
#: Number of rows per block of `assign`; and of `candidate_distances` and `inertias`.
TILE_ROWS, SEED_ROWS = 128, 512
#: Maximum number of problems per launch: CUDA's limit of the second grid dimension.
MOST_PROBLEMS = 65_535
# Maximum number of rows and of clusters: row indices have 32 bits, indices of chunks of centers have 16 bits, and a
# k-means++ step has at most 16 candidates.
_MOST_ROWS, _MOST_CLUSTERS = 2**32 - 1, 1 << 20
_LEAST_CAPABILITY = 8.0
# Size in bytes of the candidate lists of `assign` in shared memory: three 4-byte entries for each of 4 rows per thread,
# 128 threads.
_LIST_BYTES = 3 * 4 * 128 * 4
# Maximum size in bytes of the sums of `update` in shared memory, so that two blocks fit on a multiprocessor.
_MOST_SUM_BYTES = 100 << 10
# Number of bits of a fixed-point element, without the sign: if added as two limbs in shared memory; and if added as a
# 64-bit number in global memory.
_NARROW_BITS, _WIDE_BITS = 30, 46
# Maximum ratio of the largest |x − mean| of a feature to the root mean square for which 30 bits are as exact as
# float32.
_SPREAD = 2.0**8
_LEAST_EXPONENT = -900
# Minimum number of rows per block of `update`, if a problem has several blocks.
_CHANGES = 256


@dataclass(frozen=True)
class BatchPlan:
    """Tile sizes and shared memory of the kernels for problems of n rows, d features and k clusters.

    Attributes
    ----------
    padded : int
        Elements per row of the half-precision copy.
    width, columns : int
        Number of centers per chunk; and k rounded up to a multiple of `width`.
    assign_bytes, update_bytes : int
        Bytes of dynamic shared memory per block of `assign`; and of `update` if its sums are in shared memory.
    sums_fit : bool
        True if the sums of `update` fit in shared memory.
    """

    padded: int
    width: int
    columns: int
    assign_bytes: int
    update_bytes: int
    sums_fit: bool


def batch_plan(n: int, d: int, k: int, device: GpuSpec) -> BatchPlan | None:
    """Plan the kernels for problems of n rows, d features and k clusters.

    Returns
    -------
    BatchPlan or None
        None if the kernels do not support the shape or the GPU.
    """
    padded = -(-d // 16) * 16
    width = 16 if k <= 16 else 32 if k <= 32 else 64
    columns = -(-k // width) * width
    buffers = min(2, columns // width)
    assign_bytes = _LIST_BYTES + 2 * 4 * width + (TILE_ROWS + buffers * width) * (padded + 8) * 2
    update_bytes = 2 * 4 * k * (d + 1)
    available = min(device.shared_memory_per_block, _MOST_SUM_BYTES)
    served = n <= _MOST_ROWS and k <= _MOST_CLUSTERS and float(device.compute_capability) >= _LEAST_CAPABILITY
    if not served or max(assign_bytes, 8 * 8 * d) > device.shared_memory_per_block:
        return None
    return BatchPlan(padded, width, columns, assign_bytes, update_bytes, update_bytes <= available)


def fixed_point_scales(n: int, largest: np.ndarray, rms: np.ndarray) -> tuple[np.ndarray, bool]:
    """Choose the scales of the fixed-point sums; all are powers of two.

    Parameters
    ----------
    n : int
        Number of rows of a problem.
    largest : numpy.ndarray of shape (b, d)
        An upper bound of ``|x − mean|`` for each feature.
    rms : numpy.ndarray of shape (b,)
        The root mean square of all elements x − mean of a problem.

    Returns
    -------
    scales : numpy.ndarray of shape (b, d)
    narrow : bool
        True if elements have 30 bits, because these are as exact as float32. Otherwise elements have 46 bits, or fewer
        if the sum of n elements would overflow.
    """
    exponents = np.clip(np.ceil(np.log2(np.where(largest > 0, largest, 1.0))), _LEAST_EXPONENT, None)
    alike = bool((largest.max(axis=1) <= _SPREAD * rms).all())
    narrow = alike and bool((abs(exponents) < MOST_EXPONENT).all())
    bits = _NARROW_BITS if narrow else min(_WIDE_BITS, 62 - ceil(log2(n)))
    return np.exp2(bits - exponents), narrow


def update_parts(n: int, problems: int, multiprocessors: int) -> int:
    """Return the number of blocks of `update` per problem.

    All problems together get about two blocks per multiprocessor. Each problem gets at most one block per 256 rows.
    """
    return max(1, min(-(-2 * multiprocessors // problems), -(-n // _CHANGES)))
