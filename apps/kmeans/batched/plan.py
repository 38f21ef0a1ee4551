"""Launch plan of batched K-means: tile sizes, shared memory, structures of kernel arguments."""

from dataclasses import dataclass
from math import ceil, log2

import numpy as np

from tsapps.apps.kmeans.assign.large_k_plan import StreamPlan, batched_stream_plan
from tsapps.kernels.gpu_specs import GpuSpec

__all__ = [
    "BATCH",
    "CANDIDATES",
    "KERNELS",
    "LIST_BYTES",
    "LIST_PARTS",
    "MOST_PROBLEMS",
    "MOST_ROWS",
    "PLUSPLUS_ARGS",
    "POINTERS",
    "SEED_ROWS",
    "SETTLE_ROWS",
    "STATUS",
    "TILE_ROWS",
    "BatchPlan",
    "batch_plan",
    "update_blocks",
    "wide_bits",
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
    + [("tensor_error", "f4"), ("norm_limit", "f4"), ("sum_columns", "i4"), ("panels", "i4"), ("tile_columns", "i4")]
)
CANDIDATES = np.dtype(
    [(name, "u8") for name in ("center_stats", "norms", "found", "lists", "lengths", "n_running")]
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
STATUS = {"running": 0, "strict": 1, "ended": 2, "empty": 3, "place": 4}
#: Number of rows per block of `assign`; of `settle`, and its blocks per list; and of `candidate_distances` and
#: `inertias`.
TILE_ROWS, SETTLE_ROWS, LIST_PARTS, SEED_ROWS = 128, 256, 4, 512
#: Size in bytes of the C++ class `CandidateList` of batched/candidate_list.cuh.
LIST_BYTES = 32
#: Maximum number of problems per launch: CUDA's limit of the second grid dimension. Maximum number of rows of their
#: half-precision copies together, if there are several: indices have 31 bits.
MOST_PROBLEMS, MOST_ROWS = 65_535, 2**31 - 1
# Maximum number of rows and of clusters: row indices have 32 bits, indices of chunks of centers have 16 bits, and a
# k-means++ step has at most 16 candidates.
_MOST_ROWS, _MOST_CLUSTERS = 2**32 - 1, 1 << 20
_LEAST_CAPABILITY = 8.0
# Size in bytes of the candidate lists of `assign` in shared memory: three 4-byte entries for each of 4 rows per thread,
# 128 threads.
_LIST_BYTES = 3 * 4 * 128 * 4
# Maximum size in bytes of the sums of `update_sums` in shared memory, so that two blocks fit on a multiprocessor.
_MOST_SUM_BYTES = 100 << 10
# Number of columns of a slice of the sums of `update_sums`, if the sums of all columns do not fit in shared memory.
_SLICE = 32
# The product streams the centers of problems of more than _FEW clusters and at least _STREAMED_ROWS rows: fewer would
# leave much of a column tile, or of a turn, empty. 16-bit numbers limit the clusters.
_FEW, _STREAMED_ROWS, _MOST_STREAMED = 32, 256, 1 << 16
# Number of threads per block of batched/sums.cuh and batched/centers.cuh: for problems of up to _SMALL elements, and
# for others.
_THREADS, _SMALL = (128, 512), 1 << 14
# Number of bits of a fixed-point element that has more than 30, without the sign.
_WIDE_BITS = 46
# Minimum number of rows per block of `update_sums`, if a problem has several blocks.
_CHANGES = 256


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
        Bytes of dynamic shared memory per block of `assign`, and of `update_sums` (0 if its sums do not fit there).
    update_threads : int
        Threads per block of the kernels of batched/sums.cuh and batched/centers.cuh.
    sum_columns : int
        Number of columns of a slice of the sums; each block of `update_sums` adds to one slice.
    stream : StreamPlan or None
        Plan of the product that assigns rows, if centers stream (batched/candidates.cuh); else, `assign` does.
    """

    rows: int
    padded: int
    width: int
    columns: int
    assign_bytes: int
    update_bytes: int
    update_threads: int
    sum_columns: int
    stream: StreamPlan | None = None

    @property
    def turns(self) -> int:
        """Number of turns of the product per problem, if centers stream."""
        return 0 if self.stream is None else self.rows // (self.stream.ROWS * self.stream.groups)

    @property
    def center_columns(self) -> int:
        """Columns of the float16 centers: with a panel of biases, if centers stream."""
        return self.padded + (0 if self.stream is None else 16)

    @property
    def sums_fit(self) -> bool:
        """True if the sums of a slice fit in shared memory."""
        return self.update_bytes > 0


def batch_plan(n: int, d: int, k: int, device: GpuSpec) -> BatchPlan | None:
    """Plan the kernels for problems of n rows, d features and k clusters.

    Returns
    -------
    BatchPlan or None
        None if the kernels do not support the shape or the GPU.
    """
    stream = (
        batched_stream_plan(d, k, device)
        if _FEW < k <= _MOST_STREAMED and _STREAMED_ROWS <= n <= MOST_ROWS // 2
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
    available = min(device.shared_memory_per_block, _MOST_SUM_BYTES)
    served = n <= _MOST_ROWS and k <= _MOST_CLUSTERS and float(device.compute_capability) >= _LEAST_CAPABILITY
    if not served or max(assign_bytes, 8 * 8 * d) > device.shared_memory_per_block:
        return None
    sliced = next((c for c in (d, _SLICE) if c <= d and _sum_bytes(k, c) <= available), None)
    update_bytes = 0 if sliced is None else _sum_bytes(k, sliced)
    threads = _THREADS[n * d > _SMALL]
    return BatchPlan(rows, padded, width, columns, assign_bytes, update_bytes, threads, sliced or d, stream)


def _sum_bytes(k: int, columns: int) -> int:
    """Return the shared memory for the sums of a slice in bytes: two limbs per column, and for the number of rows."""
    return 2 * 4 * k * (columns + 1)


def wide_bits(n: int) -> int:
    """Return the number of bits of a fixed-point element, if not 30, such that a sum of n elements fits in 64 bits."""
    return min(_WIDE_BITS, 62 - ceil(log2(n)))


def update_blocks(n: int, d: int, problems: int, multiprocessors: int, plan: BatchPlan) -> int:
    """Return the number of blocks of `update_sums` per problem: slices of columns times parts of the rows.

    All problems together get about two blocks per multiprocessor. Each part has at least 256 rows.
    """
    slices = -(-d // plan.sum_columns)
    return slices * max(1, min(-(-2 * multiprocessors // (problems * slices)), -(-n // _CHANGES)))
