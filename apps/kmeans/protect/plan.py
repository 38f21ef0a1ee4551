"""Plan of the ABFT check of an iteration (check_iteration.cuh): grid and work partition; and its hash of centers."""

import numpy as np

from tsapps.apps.kmeans.data.plan import log2_lanes, vector_of

__all__ = ["CENTERS", "CHECKED", "COLUMNS", "HASHES", "HASH_FACTOR", "ROWS", "THREADS", "check_plan", "hash_of"]

#: Threads per block, rows and centers that a thread processes at a time, and columns of the sums per block:
#: kCheckThreads, kCheckRows, kCheckCenters and kCheckColumns.
THREADS, ROWS, CENTERS, COLUMNS = 128, 4, 8, 16
#: The C++ class `Checked` of check_iteration.cuh as a NumPy structure: labels to check, and the work partition.
CHECKED = np.dtype(
    [
        *[("labels", "u8"), ("n", "i8"), ("stride", "i8")],
        *[("k", "i4"), ("log2_threads", "i4"), ("each", "i4"), ("padding", "i4")],
    ]
)
#: The C++ class `Hashes` of check_iteration.cuh as a NumPy structure: hashes of the columns of the centers.
HASHES = np.dtype([("of_centers", "u8"), ("of_next", "u8")])
#: Multiplier of the hash (kHashFactor): 2⁶⁴ divided by the golden ratio, rounded to an odd number.
HASH_FACTOR = 0x9E3779B97F4A7C15
# Minimum number of threads among which a row is split. With 4 or more, the reduction leaves each lane with distances of
# one row only.
_FEWEST = 4
# Resident blocks per multiprocessor, by the itemsize of the centers.
_BLOCKS = {4: 3, 8: 2}


def check_plan(
    samples: int, d: int, k: int, itemsize: int, multiprocessors: int, *, whole: bool
) -> tuple[int, int, int]:
    """Partition the ABFT check of an iteration over threads and blocks.

    Parameters
    ----------
    samples : int
        Number of rows whose labels one iteration checks.
    d, k : int
    itemsize : {4, 8}
        Bytes of an element of a center.
    multiprocessors : int
    whole : bool
        True if rows are aligned to vectors and consist of whole vectors, so that a thread loads a vector at a time.

    Returns
    -------
    log2_threads : int
        Log2 of the number of threads among which a row is split: one thread per vector, up to a warp. If
        multiprocessors would otherwise be idle, more threads, up to a block.
    each : int
        Maximum number of centers that a block compares its rows with, besides the centers of the labels of `ROWS` rows.
        `each` + `ROWS` is a multiple of `CENTERS`.
    blocks : int
        Number of blocks of the launch: first those that check labels, then those that check columns of the sums.
    """
    vectors = -(-d // (vector_of(itemsize) if whole else 1))

    def groups(log2_threads: int) -> int:
        return -(-samples // (ROWS * THREADS >> log2_threads))

    fewest, most = _FEWEST.bit_length() - 1, THREADS.bit_length() - 1
    log2_threads = max(fewest, log2_lanes(vectors))
    most_parts = -(-k // (CENTERS - ROWS))
    while log2_threads < most and vectors > 1 << log2_threads and groups(log2_threads) * most_parts < multiprocessors:
        log2_threads += 1
    parts = max(1, _BLOCKS[itemsize] * multiprocessors // groups(log2_threads))
    each = -(-(-(-k // parts) + ROWS) // CENTERS) * CENTERS - ROWS
    return log2_threads, each, groups(log2_threads) * -(-k // each) + d // COLUMNS + 1


def hash_of(centers: np.ndarray) -> np.ndarray:
    """Return the hash of each column of centers (k, d), (d,), uint64: the sum of `hash_word` of check_iteration.cuh."""
    bits = centers.view(f"u{centers.dtype.itemsize}")
    if bits.itemsize == 8:
        bits = bits ^ bits >> np.uint64(32)
    odd = (2 * np.arange(len(centers), dtype=np.uint64) + 1) * np.uint64(HASH_FACTOR)
    return np.einsum("k,kd->d", odd, bits, dtype=np.uint64)
