"""How the inertia is added up on a GPU, chosen from sizes alone; see inertia.cuh."""

from dataclasses import dataclass

from tsapps.apps.kmeans.fused_plan import log2_lanes
from tsapps.kernels.device import Device

__all__ = ["InertiaPlan", "inertia_plan"]

#: Threads of a block, and the rows that a lane takes together (kInertiaThreads, kInertiaRows).
THREADS, ROWS_TOGETHER = 640, 4
# Slices at most: the more, the better they are dealt out; their sums are half a megabyte.
_MOST_SLICES = 1 << 16
_VECTOR_BYTES = 16


@dataclass(frozen=True)
class InertiaPlan:
    """How the kernel of inertia.cuh is instantiated and launched.

    Attributes
    ----------
    vectors : bool
        Whether lanes read 16 bytes at a time.
    log2_lanes : int
        Of the lanes that share a row.
    slices : int
        Sums that are added up at the end.
    shared_bytes : int
        Dynamic shared memory for the mean and the centres; 0 where they stay in global memory.
    """

    vectors: bool
    log2_lanes: int
    slices: int
    shared_bytes: int

    def kernel(self, element: str, work: str, *, weighted: bool) -> str:
        """Return the name expression of the kernel for X of the C++ type `element`, worked on in `work`."""
        flags = (str(flag).lower() for flag in (self.vectors, self.shared_bytes > 0, weighted))
        return f"kmeans::add_inertia<{element}, {work}, {', '.join(flags)}>"

    def blocks(self, multiprocessors: int) -> int:
        """Return the blocks of a launch: one a multiprocessor, if there is a slice for each of their warps."""
        return min(multiprocessors, -(-self.slices * 32 // THREADS))


def inertia_plan(n: int, d: int, k: int, itemsize: int, work: int, *, aligned: bool, device: Device) -> InertiaPlan:
    """Choose how the inertia of n samples is added up.

    Parameters
    ----------
    n, d, k : int
    itemsize, work : int
        Bytes of an element of X, and of a centre.
    aligned : bool
        Whether X begins at a multiple of 16 bytes.
    device : Device

    Notes
    -----
    The sums are added in an order that `n`, `d`, `itemsize` and `aligned` decide: the device has no say.
    """
    vectors = aligned and d * itemsize % _VECTOR_BYTES == 0
    lanes = log2_lanes(d * itemsize // _VECTOR_BYTES if vectors else d)
    tiles = -(-n // (ROWS_TOGETHER * (32 >> lanes)))
    shared = (k + 1) * d * work
    # What is on its way goes through the level-1 cache, which has what shared memory leaves.
    fits = shared <= min(device.shared_memory // 2, device.shared_memory_per_block - 1024)
    return InertiaPlan(vectors, lanes, min(tiles, _MOST_SLICES), shared if fits else 0)
