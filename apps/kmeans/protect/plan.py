"""The launch of check_iteration.cuh, from sizes alone, and its hash of centers."""

import numpy as np

from tsapps.apps.kmeans.data.plan import log2_lanes, vector_of

__all__ = ["CENTERS", "CHECKED", "COLUMNS", "HASHES", "HASH_FACTOR", "ROWS", "THREADS", "check_plan", "hash_of"]

#: Threads of a block, the rows and centers that one has at a time, and columns of a block's sums (kCheckThreads, …).
THREADS, ROWS, CENTERS, COLUMNS = 128, 4, 8, 16
#: The C++ class of the labels that are checked, and how (Checked).
CHECKED = np.dtype(
    [
        *[("labels", "u8"), ("n", "i8"), ("stride", "i8")],
        *[("k", "i4"), ("log2_threads", "i4"), ("each", "i4"), ("padding", "i4")],
    ]
)
#: The C++ class of the hashes of centers (Hashes).
HASHES = np.dtype([("of_centers", "u8"), ("of_next", "u8")])
#: The factor of the hash (kHashFactor): 2⁶⁴ over the golden ratio, made odd.
HASH_FACTOR = 0x9E3779B97F4A7C15
# Threads that share a row at least, so that every lane ends with distances of one row.
_FEWEST = 4
# Blocks a multiprocessor, as many as are resident, by the bytes of a center's element.
_BLOCKS = {4: 3, 8: 2}


def check_plan(
    samples: int, d: int, k: int, itemsize: int, multiprocessors: int, *, whole: bool
) -> tuple[int, int, int]:
    """Choose how labels are checked.

    Parameters
    ----------
    samples, d, k : int
        Rows whose labels are checked at a time, their features, and the clusters.
    itemsize : int
        Bytes of an element of a center.
    multiprocessors : int
    whole : bool
        Whether rows are whole vectors, which a thread reads at a time.

    Returns
    -------
    log2_threads : int
        Of the threads that share a row: its vectors, and more than a warp as long as there are multiprocessors with
        nothing to do.
    each : int
        Centers that a block compares its rows with. With its rows' own, they are a multiple of `CENTERS`.
    blocks : int
        Of labels, and of columns.
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
    """Return the hash of each column of centers (k, d), as the kernel has it (`hash_word`); shape (d,), uint64."""
    bits = centers.view(f"u{centers.dtype.itemsize}")
    if bits.itemsize == 8:
        bits = bits ^ bits >> np.uint64(32)
    odd = (2 * np.arange(len(centers), dtype=np.uint64) + 1) * np.uint64(HASH_FACTOR)
    return np.einsum("k,kd->d", odd, bits, dtype=np.uint64)
