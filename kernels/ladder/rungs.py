"""The rungs of the ladder: which kernel each is, and with what blocks and grid it is launched (pure).

From a thread per element of C to tiles in registers; the kernels explain themselves, one file each. Then follow TSM2 as
published (tsm2_paper.cuh) and the kernels of tsm2/.
"""

from dataclasses import dataclass
from math import prod

from tsapps.kernels.gpu_specs import GpuSpec

__all__ = ["MOST_BLOCKS", "PITCH", "RUNGS", "Rung", "rung_named"]

#: Largest number of blocks of a one-dimensional grid.
MOST_BLOCKS = 2**31 - 1
#: Rows of pitched matrices begin at multiples of this many bytes.
PITCH = 256
_WARP = 32
# Maximum number of blocks that a multiprocessor holds.
_MOST_RESIDENT = 32


@dataclass(frozen=True)
class Rung:
    """A kernel of the ladder and its launch.

    Attributes
    ----------
    number : int
        That of the kernel's file.
    name : str
    title : str
        What the rung is, in a few words.
    file : str
        The .cuh file, in this folder.
    kernel : str
        Name of the kernel with template arguments, in which ``{}`` stands for the C++ type of an element.
    block : tuple of int
        Threads of a block, (x,) or (x, y).
    tile : tuple of int, optional
        Rows and columns of C that a block computes. None for a grid-stride loop.
    pitched : bool
        Whether A, B and C are copied to memory whose rows begin at multiples of `PITCH` bytes.
    """

    number: int
    name: str
    title: str
    file: str
    kernel: str
    block: tuple[int, ...]
    tile: tuple[int, int] | None = None
    pitched: bool = False

    def blocks(self, m: int, n: int, gpu: GpuSpec) -> int:
        """Return the number of blocks for C of shape (m, n).

        Raises
        ------
        ValueError
            If a grid cannot have so many.
        """
        if self.tile is None:
            threads = prod(self.block)
            return min(-(-m * n // threads), gpu.multiprocessors * min(_MOST_RESIDENT, gpu.max_threads // threads))
        rows, columns = self.tile
        blocks = -(-m // rows) * -(-n // columns)
        if blocks > MOST_BLOCKS:
            raise ValueError(
                f"C has shape ({m}, {n}); expected at most {MOST_BLOCKS} tiles of {rows} × {columns}, which rung "
                f"{self.name!r} computes with one block each"
            )
        return blocks

    def resident_warps(self, m: int, n: int, gpu: GpuSpec, per_multiprocessor: int) -> int:
        """Return how many warps of the grid the GPU holds at the same time; a block of one thread is a warp.

        `per_multiprocessor` is the number of blocks that a multiprocessor holds, which depends on the registers of the
        kernel. The efficiency of a rung is its speed-up divided by the number of resident warps.
        """
        blocks = min(self.blocks(m, n, gpu), gpu.multiprocessors * per_multiprocessor)
        return blocks * -(-prod(self.block) // _WARP)


def _tiles(number: int, name: str, title: str, kernel: str, edge: int, rows_per_thread: int = 1) -> Rung:
    block = (edge, edge // rows_per_thread)
    return Rung(number, name, title, f"{number:02}_{name.rstrip('_0123456789')}.cuh", kernel, block, (edge, edge))


#: The rungs, from the bottom.
RUNGS = (
    Rung(1, "one_thread_blocks", "blocks of one thread", "01_one_thread_blocks.cuh", "grid_stride<{}>", (1,)),
    Rung(2, "grid_stride", "grid-stride loop", "02_grid_stride.cuh", "grid_stride<{}>", (256,)),
    _tiles(3, "uncoalesced", "2-D blocks, warps down columns", "uncoalesced<{}, 16>", 16),
    _tiles(4, "coalesced", "2-D blocks, warps along rows", "coalesced<{}, 16>", 16),
    _tiles(5, "unrolled", "unrolled by four", "unrolled<{}, 16>", 16),
    *(
        _tiles(6, f"shared_tile_{edge}", f"shared tiles, edge {edge}", f"shared_tile<{{}}, {edge}>", edge)
        for edge in (8, 16, 32)
    ),
    Rung(7, "pitched", "pitched rows", "07_pitched.cuh", "shared_tile<{}, 32>", (32, 32), (32, 32), pitched=True),
    _tiles(8, "bank_conflicts", "bank conflicts", "transposed_tile<{}, 32, 0>", 32),
    _tiles(9, "padded_tile", "padded tile", "transposed_tile<{}, 32, 1>", 32),
    _tiles(10, "unrolled_tile", "inner loop unrolled", "shared_tile<{}, 32, 32>", 32),
    _tiles(11, "two_results", "two results per thread", "two_results<{}, 32>", 32, 2),
    Rung(
        *(12, "register_tile", "8 × 8 results per thread", "12_register_tile.cuh"),
        *("register_tile<{}>", (16, 16), (128, 128)),
    ),
)


def rung_named(name: str) -> Rung:
    """Return a rung by its name; raise ValueError for any other name."""
    found = next((rung for rung in RUNGS if rung.name == name), None)
    if found is None:
        raise ValueError(f"rung must be one of {', '.join(rung.name for rung in RUNGS)}, got {name!r}")
    return found
