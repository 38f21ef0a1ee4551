"""Launch plan of batched K-means: tile sizes, shared memory, structures of kernel arguments."""

from dataclasses import dataclass
from math import ceil, log2

import numpy as np

from tsapps.apps.kmeans.assign.large_k_mma_plan import batched_mma_stream_plan
from tsapps.apps.kmeans.assign.large_k_plan import StreamPlan, batched_stream_plan
from tsapps.kernels.gpu_specs import GpuSpec

__all__ = [
    "BATCH",
    "CANDIDATES",
    "CANDIDATE_LIST_BYTES",
    "KERNELS",
    "LEAST_SHARE",
    "LIST_PARTS",
    "MOST_COPIED_ROWS",
    "MOST_PROBLEMS",
    "MOST_SHARE",
    "MOST_SORTED",
    "PLUSPLUS_ARGS",
    "POINTERS",
    "SEED_ROWS",
    "SETTLE_ROWS",
    "SLICE",
    "STATUS",
    "TILE_ROWS",
    "BatchPlan",
    "batch_plan",
    "center_blocks",
    "update_blocks",
    "wide_bits",
]

#: Pointer members of the C++ class `Batch` of batched/problem.cuh, in order.
POINTERS = (
    *(
        "X",
        "means",
        "half_copy_scales",
        "roundings",
        "sum_scales",
        "sum_units",
        "tolerances",
        "narrow",
        "half_copy",
        "norms",
        "labels",
        "centers",
    ),
    *(
        "centers_half",
        "half_squares",
        "center_stats",
        "placed",
        "sums",
        "changes",
        "counts",
        "n_reassigned",
        "status",
        "iterations",
        "running",
        "n_running",
        "arrived",
    ),
)
#: The C++ classes `Batch` of batched/problem.cuh, `CandidatesEpilogue` of batched/candidates.cuh and `PlusPlusArgs` of
#: batched/init.cuh, as NumPy structures.
BATCH = np.dtype(
    [(name, "u8") for name in POINTERS]
    + [(name, "i8") for name in ("n", "rows")]
    + [(name, "i4") for name in ("d", "k", "padded", "columns", "max_iter")]
    + [("tensor_error", "f4"), ("norm_limit", "f4"), ("panels", "i4"), ("tile_columns", "i4"), ("padding", "i4")]
)
CANDIDATES = np.dtype(
    [(name, "u8") for name in ("center_stats", "roundings", "norms", "found", "lists", "lengths", "n_running")]
    + [("capacity", "u4"), ("tensor_error", "f4")]
)
PLUSPLUS_ARGS = np.dtype(
    [(name, "u8") for name in ("uniforms", "candidates", "distances", "potentials", "best")]
    + [("trials", "i4"), ("tiles", "i4")]
)
#: Source file and number of threads per block of every kernel, or None for the threads of the plan.
KERNELS = {
    "column_moments": ("batched/problem.cuh", 256),
    "problem_scales": ("batched/scales.cuh", 256),
    "make_half_copy": ("batched/problem.cuh", 256),
    "assign": ("batched/assign.cuh", 128),
    "settle": ("batched/settle.cuh", 256),
    "prepare_centers": ("batched/centers.cuh", None),
    "update_sums": ("batched/sums.cuh", None),
    "update_centers": ("batched/centers.cuh", None),
    "sample_candidates": ("batched/init.cuh", 256),
    "candidate_distances": ("batched/init.cuh", 256),
    "inertias": ("batched/init.cuh", 256),
}
#: The C++ enum `Status` of batched/problem.cuh.
STATUS = {"place": 0, "running": 1, "strict": 2, "ended": 3, "empty": 4}
#: Number of rows per block of `assign`; of `settle`, and its blocks per list; and of `candidate_distances` and
#: `inertias`.
TILE_ROWS, SETTLE_ROWS, LIST_PARTS, SEED_ROWS = 128, 256, 4, 512
#: Size in bytes of the C++ class `CandidateList` of batched/candidate_list.cuh.
CANDIDATE_LIST_BYTES = 32
#: Maximum number of problems per launch: CUDA's limit of the second grid dimension. Maximum number of rows of their
#: half-precision copies together, if there are several: indices have 31 bits.
MOST_PROBLEMS, MOST_COPIED_ROWS = 65_535, 2**31 - 1
# Maximum number of rows and of clusters: row indices have 32 bits, indices of chunks of centers have 16 bits, and a
# k-means++ step has at most 16 candidates.
_MOST_ROWS, _MOST_CLUSTERS = 2**32 - 1, 1 << 20
_LEAST_CAPABILITY = 8.0
# Size in bytes of the candidate lists of `assign` in shared memory: three 4-byte entries for each of 4 rows per thread,
# 128 threads.
_LIST_BYTES = 3 * 4 * 128 * 4
#: Maximum and minimum number of reassigned rows that a block of `update_sums` processes; the maximum k for which it
#: sorts them; and the number of columns of a slice of the sums: see batched/sums.cuh.
MOST_SHARE, LEAST_SHARE, MOST_SORTED, SLICE = 4096, 256, 8192, 32
# The product streams the centers of problems of _LEAST_STREAMED clusters or more and _STREAMED_ROWS rows or more. Fewer
# would leave much of a column tile, or of a turn, empty. 16-bit numbers limit the clusters.
_LEAST_STREAMED, _MOST_STREAMED, _STREAMED_ROWS = 33, 1 << 16, 256
# Number of threads per block of batched/sums.cuh and batched/centers.cuh: for problems of up to _SMALL elements, and
# for others.
_THREADS, _SMALL = (128, 256), 1 << 14
# Number of bits of a fixed-point element that has more than 30, without the sign.
_WIDE_BITS = 46


@dataclass(frozen=True)
class BatchPlan:
    """Tile sizes and shared memory of the kernels for problems of n rows, d features and k clusters.

    Attributes
    ----------
    rows, padded : int
        Rows of a problem in the half-precision copy, and elements per row.
    width, columns : int
        Number of centers per chunk or column tile; and k rounded up to a multiple of `width`.
    assign_bytes, update_bytes : int
        Bytes of dynamic shared memory per block of `assign` and of `update_sums`.
    share : int
        Number of reassigned rows that a block of `update_sums` sorts at a time.
    update_threads : int
        Threads per block of the kernels of batched/sums.cuh and batched/centers.cuh.
    stream : StreamPlan or None
        Plan of the product that assigns rows, if centers stream (batched/candidates.cuh); else, `assign` does.
    """

    rows: int
    padded: int
    width: int
    columns: int
    assign_bytes: int
    update_bytes: int
    share: int
    update_threads: int
    stream: StreamPlan | None = None

    @property
    def turns(self) -> int:
        """Number of turns of the product per problem, if centers stream."""
        return 0 if self.stream is None else self.rows // (self.stream.ROWS * self.stream.groups)

    @property
    def center_columns(self) -> int:
        """Columns of the float16 centers: with a panel of biases, if centers stream."""
        return self.padded + (0 if self.stream is None else 16)


def batch_plan(n: int, d: int, k: int, device: GpuSpec) -> BatchPlan | None:
    """Plan the kernels for problems of n rows, d features and k clusters.

    Returns
    -------
    BatchPlan or None
        None if the kernels do not support the shape or the GPU.
    """
    stream = (
        batched_stream_plan(d, k, device) or batched_mma_stream_plan(d, k, device)
        if _LEAST_STREAMED <= k <= _MOST_STREAMED and _STREAMED_ROWS <= n <= MOST_COPIED_ROWS // 2
        else None
    )
    if stream is not None:
        together = stream.ROWS * stream.groups
        rows, padded, width, assign_bytes = -(-n // together) * together, 16 * stream.row_panels, stream.columns, 0
    else:
        rows, padded, width = n, -(-d // 16) * 16, 16 if k <= 16 else 32 if k <= 32 else 64
        buffers = 1 if k <= width else 2
        assign_bytes = _LIST_BYTES + 2 * 4 * width + (TILE_ROWS + buffers * width) * (padded + 8) * 2
    columns = -(-k // width) * width
    served = n <= _MOST_ROWS and k <= _MOST_CLUSTERS and float(device.compute_capability) >= _LEAST_CAPABILITY
    if not served or max(assign_bytes, 8 * 8 * d) > device.shared_memory_per_block:
        return None
    share = min(MOST_SHARE, max(LEAST_SHARE, n))
    # Per row: three numbers and two moves; and a number per cluster.
    update_bytes = (3 * 4 + 2 * 2) * share + (4 * k if k <= MOST_SORTED else 0)
    return BatchPlan(rows, padded, width, columns, assign_bytes, update_bytes, share, _THREADS[n * d > _SMALL], stream)


def wide_bits(n: int) -> int:
    """Return the number of bits of a fixed-point element, if not 30, such that a sum of n elements fits in 64 bits."""
    return min(_WIDE_BITS, 62 - ceil(log2(n)))


def update_blocks(n: int, d: int, problems: int, multiprocessors: int) -> int:
    """Return the number of blocks of `update_sums` per problem: parts of the rows times slices of the columns.

    All problems together get at least about two blocks per multiprocessor, if each part then has 256 rows or more. No
    block has to sort more than once.
    """
    slices = -(-d // SLICE)
    wanted = max(-(-2 * multiprocessors // (problems * slices)), -(-n // MOST_SHARE))
    return slices * max(1, min(wanted, -(-n // LEAST_SHARE)))


def center_blocks(k: int, problems: int, multiprocessors: int, plan: BatchPlan) -> int:
    """Return the number of blocks of `update_centers` per problem: about four per multiprocessor in all.

    Each warp has at least one center.
    """
    return min(-(-4 * multiprocessors // problems), -(-k // (plan.update_threads // 32)))
