"""Plan of the inertia kernel (inertia/inertia.cuh) from sizes (pure)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tsapps.apps.kmeans.data.plan import log2_lanes
from tsapps.apps.kmeans.update.fixed_point import NARROW, WIDE
from tsapps.kernels.gpu_specs import GpuSpec

__all__ = [
    "LAST_BITS",
    "MOST_WEIGHT",
    "ROWS_TOGETHER",
    "RUNNING_SUMS",
    "THREADS",
    "InertiaPlan",
    "RunningSums",
    "difference_of",
    "inertia_chunk",
    "inertia_plan",
    "lanes_of_inertia",
]

#: Number of threads per block (kInertiaThreads); number of rows that a lane processes together (kInertiaRows).
THREADS, ROWS_TOGETHER = 640, 4
# Maximum number of chunks of X, each of which has a partial sum. More chunks balance the warps better, but need more
# memory for partial sums, half a megabyte for this number, and more time to add these up.
_MOST_CHUNKS = 1 << 16
_VECTOR_BYTES = 16
# Number of threads per block with the Freivalds check, by (limbs of the sums, itemsize of X): the maximum that
# registers allow.
_COMPARING = {(NARROW, 4): 640, (NARROW, 2): 512, (WIDE, 8): 512, (WIDE, 4): 384, (WIDE, 2): 384}
#: The C++ class `RunningSums` of protect/freivalds.cuh, as a NumPy structure.
RUNNING_SUMS = np.dtype([(name, "u8") for name in ("sums", "scales", "of_clusters", "of_columns", "found")])
#: MOST_WEIGHT: the largest random weight of the Freivalds check. LAST_BITS: the number of low bits of a three-limb
#: element that the check sums separately from the element's high bits (kLastBits).
MOST_WEIGHT, LAST_BITS = 2**31 - 1, 24


@dataclass(frozen=True)
class RunningSums:
    """Running sums and random weights for the Freivalds check: the C++ class of protect/freivalds.cuh.

    Attributes
    ----------
    digits : {2, 3}
        Number of 16-bit limbs of an element of the sums; see `Integers`.
    argument : NumPy structure
        A `RUNNING_SUMS`: the argument of the kernel.
    """

    digits: int
    argument: Any

    def of_more_rows(self) -> "RunningSums":
        """Return the argument of a launch for more rows, after one that has subtracted the side of the sums."""
        argument = self.argument.copy()
        argument["sums"] = 0
        return RunningSums(self.digits, argument)


@dataclass(frozen=True)
class InertiaPlan:
    """Template arguments and launch of inertia/inertia.cuh.

    Attributes
    ----------
    vectors : bool
        Whether lanes load 16 bytes at a time.
    log2_lanes : int
        Log2 of the number of lanes among which a row is split.
    chunk, chunks : int
        Number of rows per chunk, and number of chunks. Each has a partial sum; the last block adds them in order.
    shared_bytes : int
        Dynamic shared memory for the mean and the centers in bytes; 0 if the kernel reads them from global memory.
    threads : int
        Number of threads per block.
    digits : {2, 3}, optional
        Number of limbs per element of the running sums, for the Freivalds check; None without the check.
    """

    vectors: bool
    log2_lanes: int
    chunk: int
    chunks: int
    shared_bytes: int
    threads: int
    digits: int | None

    def kernel(self, element: str, work: str, *, weighted: bool) -> str:
        """Return the name expression of the kernel. X has the C++ type `element`; the working dtype is `work`."""
        flags = (str(flag).lower() for flag in (self.vectors, self.shared_bytes > 0, weighted))
        kept = "" if self.digits is None else f", {self.threads}, kmeans::RunningSums<{self.digits}>"
        return f"kmeans::add_inertia<{element}, {work}, {', '.join(flags)}{kept}>"

    def blocks(self, multiprocessors: int) -> int:
        """Return the number of blocks: one per multiprocessor, or fewer if there are fewer chunks than warps."""
        return min(multiprocessors, -(-self.chunks * 32 // self.threads))


def inertia_chunk(n_total: int, d: int, itemsize: int) -> int:
    """Return the number of rows per chunk of the inertia, a power of two and a whole number of tiles.

    The chunk determines the order in which rows are added up. So it does not depend on the GPU, on the address of X, or
    on which rows a block or a shard has.

    Parameters
    ----------
    n_total : int
        Number of rows of X, on all GPUs.
    d : int
    itemsize : int
        Size of an element of X in bytes, as kernels read it.
    """
    # Tiles of rows that are not aligned have fewer rows.
    tile = ROWS_TOGETHER * (32 >> lanes_of_inertia(d, itemsize, aligned=True)[1])
    return max(tile, 1 << (-(-n_total // _MOST_CHUNKS) - 1).bit_length())


def lanes_of_inertia(d: int, itemsize: int, *, aligned: bool) -> tuple[bool, int]:
    """Return whether lanes load vectors, and log2 of the number of lanes among which a row is split."""
    vectors = aligned and d * itemsize % _VECTOR_BYTES == 0
    return vectors, log2_lanes(d * itemsize // _VECTOR_BYTES if vectors else d)


def inertia_plan(
    n: int,
    d: int,
    k: int,
    itemsize: int,
    work: int,
    *,
    aligned: bool,
    device: GpuSpec,
    digits: int | None = None,
    n_total: int | None = None,
) -> InertiaPlan:
    """Plan the inertia of n samples.

    Parameters
    ----------
    n, d, k : int
    itemsize : int
        Size of an element of X in bytes.
    work : int
        Size of an element of a center in bytes.
    aligned : bool
        Whether X begins at a multiple of 16 bytes.
    device : GpuSpec
    digits : {2, 3}, optional
        Number of limbs per element of the running sums, for the Freivalds check; None without the check.
    n_total : int, optional
        Number of rows of X, of which these are consecutive rows; by default n.

    Returns
    -------
    InertiaPlan

    Notes
    -----
    The order of additions depends on `n_total`, `d`, `itemsize` and `aligned` only. So the inertia has the same bits on
    all GPUs, with and without the Freivalds check.
    """
    vectors, lanes = lanes_of_inertia(d, itemsize, aligned=aligned)
    chunk = inertia_chunk(n if n_total is None else n_total, d, itemsize)
    shared = (k + 1) * d * work
    # Shared memory reduces the L1 cache, through which the loads in flight pass. So the mean and the centers take at
    # most half of it.
    fits = shared <= min(device.shared_memory // 2, device.shared_memory_per_block - 1024)
    threads = THREADS if digits is None else _COMPARING[digits, itemsize]
    return InertiaPlan(vectors, lanes, chunk, -(-n // chunk), shared if fits else 0, threads, digits)


def difference_of(words: Sequence[int]) -> int:
    """Return the difference of the two sides of the Freivalds check, modulo 2¹²⁸; see protect/freivalds.cuh.

    `words` is the array `found` of a `RUNNING_SUMS` without its first element. An element of the running sums is split
    into parts. For each part, `words` has four numbers; each counts 32 bits of the difference, with carries.
    """
    numbers = (sum(word << 32 * i for i, word in enumerate(words[at : at + 4])) for at in range(0, len(words), 4))
    return sum(number << LAST_BITS * i for i, number in enumerate(numbers)) % 2**128
