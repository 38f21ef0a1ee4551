"""Plans of passes over X on a GPU: scale and padding of the half-precision copy, lanes per row, chunks of rows."""

from math import inf, log2, sqrt

import numpy as np

__all__ = [
    "CENTER_THREADS",
    "EXACT",
    "MOST_EXPONENT",
    "PASS_THREADS",
    "ROUNDING",
    "ROWS",
    "SPLIT",
    "UNCERTIFIED",
    "grid_of_lists",
    "half_copy_scale",
    "is_long",
    "lanes_of_row",
    "log2_lanes",
    "moment_chunk",
    "moment_threads",
    "norm_limit_of",
    "padded",
    "row_groups",
    "vector_of",
]

#: Scales are between 2^−MOST_EXPONENT and 2^MOST_EXPONENT, so that float32 represents each scale and its inverse.
MOST_EXPONENT = 96
#: The C++ class `CenteredRows` of assign/row_distances.cuh, as a NumPy structure.
ROWS = np.dtype([("X", "u8"), ("leading", "i8"), ("d", "i4"), ("padding", "i4"), ("mean", "u8"), ("weights", "u8")])
#: Bound ρ of the rounding error of a float16 row relative to its norm (half_copy.cuh): for data that must be rounded,
#: and for data that float16 represents exactly.
ROUNDING, EXACT = 2.0**-12, 2.0**-20
#: The same bound for rows that are split into two parts (split_copy.cuh).
SPLIT = 2.0**-20
#: Factor on the row norms if labels are not certified. It makes the error bound of a score so small that few rows are
#: rescored, except for the part of the bound that does not depend on row norms.
UNCERTIFIED = 2.0**-10
#: Number of threads per block of passes.cuh; and of kernels with a block per center or point (kCenterThreads).
PASS_THREADS, CENTER_THREADS = 256, 256
# column_moments: minimum number of thread blocks for large X; minimum number of rows per thread. There are many blocks,
# so that a partial last wave costs little, unless their threads would have too little work.
_MOMENT_BLOCKS, _THREAD_ROWS = 4096, 16
# Maximum size in bytes of a chunk of moments, so that a buffer of host_stream.py, or of a thread on the CPU, holds one;
# and approximate maximum number of chunks, which takes precedence: a grid has at most 65,535 in y.
_CHUNK_BYTES, _MOST_CHUNKS = 8 << 20, 1 << 14
# Approximate maximum size in bytes of the moments of all chunks, three doubles per column and chunk.
_PARTS_BYTES = 1 << 30
# Minimum number of vectors in a row that is long: two for each thread of a block.
_LONG_ROW = 512
# Root mean square of the scaled data, up to a factor √2: about 1/4096 of float16's largest number.
_TARGET_RMS = 16.0
# A quarter of 2¹⁵, the largest norm of a center in panels: centers are excluded from four times the limit on.
_PANELS_NORM_LIMIT = 2.0**13


def padded(d: int) -> int:
    """Return the row length of the half-precision copy: d rounded up to a multiple of 8 elements (16 bytes)."""
    return -(-d // 8) * 8


def log2_lanes(columns: int) -> int:
    """Return log2 of the number of lanes among which a row of `columns` elements is split, at most 5 (a warp)."""
    return min(5, (columns - 1).bit_length())


def lanes_of_row(d: int, dtype: np.dtype) -> int:
    """Return the number of lanes that compute distances of a row of d features (kLanes in row_distances.cuh)."""
    return 1 << log2_lanes(-(-d // vector_of(dtype.itemsize)))


def is_long(d: int, dtype: np.dtype) -> bool:
    """Return True if a block computes the distances of a row of d features together (rescore_by_block.cuh)."""
    return -(-d // vector_of(dtype.itemsize)) >= _LONG_ROW


def row_groups(rows: int, columns: int) -> tuple[np.int32, tuple[int]]:
    """Return log2 of the number of lanes among which a row is split, up to a warp, and the grid for all rows."""
    shared_by = log2_lanes(columns)
    return np.int32(shared_by), (-((-rows << shared_by) // PASS_THREADS),)


def grid_of_lists(multiprocessors: int, lists: int, blocks: int) -> tuple[int, int]:
    """Return a grid (lists, blocks per list): `blocks` blocks per multiprocessor or fewer, but one per list or more."""
    return lists, max(1, multiprocessors * blocks // lists)


def vector_of(itemsize: int) -> int:
    """Return the number of elements of this size that a lane processes at a time (kVector of data/half_copy.cuh)."""
    return 2 if itemsize == 8 else 4


def moment_threads(d: int, itemsize: int) -> tuple[int, int]:
    """Return the shape (columns, rows) of the thread blocks of column_moments for d features of the working type."""
    columns = min(32, 1 << (-(-d // _moment_vector(d, itemsize)) - 1).bit_length())
    return columns, PASS_THREADS // columns


def moment_chunk(n_total: int, d: int, itemsize: int) -> int:
    """Return the number of rows per chunk of the moments, a power of two.

    The chunk and `moment_threads` determine the order in which rows are added up. So neither depends on the GPU, on the
    address of X, or on which rows a block or a shard has.

    Parameters
    ----------
    n_total : int
        Number of rows of X, on all GPUs.
    d : int
    itemsize : int
        Size of a number of the working type in bytes.
    """
    columns, rows = moment_threads(d, itemsize)
    column_blocks = -(-d // (columns * _moment_vector(d, itemsize)))
    chunk = min(n_total * column_blocks // _MOMENT_BLOCKS, _CHUNK_BYTES // (d * itemsize))
    chunk = max(chunk, _THREAD_ROWS * rows, n_total // _MOST_CHUNKS, 24 * d * n_total // _PARTS_BYTES)
    return 1 << (chunk.bit_length() - 1)


def _moment_vector(d: int, itemsize: int) -> int:
    """Return the number of columns per thread of column_moments if X is aligned to vectors."""
    return vector_of(itemsize) if d % vector_of(itemsize) == 0 else 1


def half_copy_scale(rms: float) -> float:
    """Return the scale of the half-precision copy, a power of two, for data with this root mean square."""
    exponent = round(log2(_TARGET_RMS) - log2(rms)) if 0 < rms < inf else 0
    return float(2.0 ** min(max(exponent, -MOST_EXPONENT), MOST_EXPONENT))


def norm_limit_of(d: int, *, panels: bool = False) -> float:
    """Return the norm limit of the rows of the half-precision copy, which few rows exceed; see update/centers.cuh.

    The limit is twice the norm of a row whose d elements all equal the largest root mean square of scaled data. That
    root mean square is √2 times `_TARGET_RMS`, because scales are powers of two. In `panels` the limit is at least
    `_PANELS_NORM_LIMIT`: a distant center costs no accuracy there (assign/large_k.cuh), but a row beyond the limit is
    rescored with all centers.
    """
    limit = 2.0 * _TARGET_RMS * sqrt(2.0 * d)
    return max(limit, _PANELS_NORM_LIMIT) if panels else limit
