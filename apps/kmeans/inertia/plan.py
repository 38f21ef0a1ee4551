"""How the inertia is added up on a GPU, chosen from sizes alone; see inertia/inertia.cuh."""

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
    "RUNNING_SUMS",
    "InertiaPlan",
    "RunningSums",
    "difference_of",
    "inertia_from_sums",
    "inertia_plan",
]

#: Threads of a block, and the rows that a lane takes together (kInertiaThreads, kInertiaRows).
THREADS, ROWS_TOGETHER = 640, 4
# Slices at most: the more, the better they are dealt out; their sums are half a megabyte.
_MOST_SLICES = 1 << 16
_VECTOR_BYTES = 16
# Threads where sums are compared, by their digits and the bytes of an element of X: as many as have registers enough.
_COMPARING = {(NARROW, 4): 640, (NARROW, 2): 512, (WIDE, 8): 512, (WIDE, 4): 384, (WIDE, 2): 384}
#: The C++ class `RunningSums` of protect/freivalds.cuh, as a NumPy structure.
RUNNING_SUMS = np.dtype([(name, "u8") for name in ("sums", "scales", "of_clusters", "of_columns", "found")])
#: The largest of the weights that compare them; and the last bits of an element of three digits, which are a number of
#: their own (kLastBits).
MOST_WEIGHT, LAST_BITS = 2**31 - 1, 24


@dataclass(frozen=True)
class RunningSums:
    """The C++ class of protect/freivalds.cuh: running sums that the kernel compares with the rows of the labels.

    Attributes
    ----------
    digits : {2, 3}
        Of an element, see `Integers`.
    argument : NumPy structure
        A `RUNNING_SUMS`.
    """

    digits: int
    argument: Any


@dataclass(frozen=True)
class InertiaPlan:
    """How the kernel of inertia/inertia.cuh is instantiated and launched.

    Attributes
    ----------
    vectors : bool
        Whether lanes read 16 bytes at a time.
    log2_lanes : int
        Of the lanes that share a row.
    slices : int
        Sums that are added up at the end.
    shared_bytes : int
        Dynamic shared memory for the mean and the centers; 0 where they stay in global memory.
    threads : int
        Of a block.
    digits : {2, 3}, optional
        Of the sums that are compared with the rows; None where none are.
    """

    vectors: bool
    log2_lanes: int
    slices: int
    shared_bytes: int
    threads: int
    digits: int | None

    def kernel(self, element: str, work: str, *, weighted: bool) -> str:
        """Return the name expression of the kernel for X of the C++ type `element`, worked on in `work`."""
        flags = (str(flag).lower() for flag in (self.vectors, self.shared_bytes > 0, weighted))
        kept = "" if self.digits is None else f", {self.threads}, kmeans::RunningSums<{self.digits}>"
        return f"kmeans::add_inertia<{element}, {work}, {', '.join(flags)}{kept}>"

    def blocks(self, multiprocessors: int) -> int:
        """Return the blocks of a launch: one a multiprocessor, if there is a slice for each of their warps."""
        return min(multiprocessors, -(-self.slices * 32 // self.threads))


def inertia_plan(
    n: int, d: int, k: int, itemsize: int, work: int, *, aligned: bool, device: GpuSpec, digits: int | None = None
) -> InertiaPlan:
    """Choose how the inertia of n samples is added up.

    Parameters
    ----------
    n, d, k : int
    itemsize, work : int
        Bytes of an element of X, and of a center.
    aligned : bool
        Whether X begins at a multiple of 16 bytes.
    device : GpuSpec
    digits : {2, 3}, optional
        Of sums that are to be compared with the rows.

    Notes
    -----
    The sums are added in an order that `n`, `d`, `itemsize` and `aligned` decide: the device and `digits` have no say.
    """
    vectors = aligned and d * itemsize % _VECTOR_BYTES == 0
    lanes = log2_lanes(d * itemsize // _VECTOR_BYTES if vectors else d)
    tiles = -(-n // (ROWS_TOGETHER * (32 >> lanes)))
    shared = (k + 1) * d * work
    # What is on its way goes through the level-1 cache, which has what shared memory leaves.
    fits = shared <= min(device.shared_memory // 2, device.shared_memory_per_block - 1024)
    threads = THREADS if digits is None else _COMPARING[digits, itemsize]
    return InertiaPlan(vectors, lanes, min(tiles, _MOST_SLICES), shared if fits else 0, threads, digits)


def inertia_from_sums(
    squares: float, sums: np.ndarray, counts: np.ndarray, units: np.ndarray, centers: np.ndarray
) -> tuple[float, float]:
    """Compute the inertia of float32 rows from the sums of their clusters, in float64.

    Parameters
    ----------
    squares : float
        Σ‖x‖² over the rows.
    sums, counts : numpy.ndarray of shape (k, d) and (k,)
        Of the rows of each cluster.
    units : numpy.ndarray of shape (d,)
        What the elements that were added up are rounded to.
    centers : numpy.ndarray of shape (k, d)

    Returns
    -------
    inertia, error : float
        Σ‖x − c‖² = Σ‖x‖² − 2·Σ c·s + Σ n·‖c‖², and no less than what rounding elements may have made of it: each to
        float32, of which ``2·|c·x| ≤ ‖c‖² + ‖x‖²`` gives a half of its ulp at most, and then by half a unit.
    """
    wide = centers.astype(np.float64)
    norms = float(counts @ (wide * wide).sum(axis=1))
    inertia = squares - 2 * float((sums * wide).sum()) + norms
    error = float(np.finfo(np.float32).eps) / 2 * (squares + norms) + float(counts @ np.abs(wide) @ units)
    return inertia, error


def difference_of(words: Sequence[int]) -> int:
    """Return by how much rows and sums differ, modulo 2¹²⁸, from `found` of a `RUNNING_SUMS` but for the first."""
    numbers = (sum(word << 32 * i for i, word in enumerate(words[at : at + 4])) for at in range(0, len(words), 4))
    return sum(number << LAST_BITS * i for i, number in enumerate(numbers)) % 2**128
