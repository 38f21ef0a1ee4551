"""Plans of the assignment for large k without wgmma: template arguments of gemm_mma_streamed.cuh (pure)."""

from dataclasses import dataclass
from math import ceil

from tsapps.apps.kmeans.assign.large_k_plan import (
    KEPT_TILES,
    LEAST_COLUMNS,
    MOST_COLUMNS,
    RESERVED,
    StreamPlan,
    panels_of,
)
from tsapps.kernels.gpu_specs import GpuSpec

__all__ = ["MmaPlan", "mma_plan"]

# The least compute capability that has mma of float16 pairs, asynchronous copies and mbarriers.
_LEAST_CAPABILITY = 8.0
# Maximum number of centers per column tile if rows stream, whose addresses take registers, too.
_MOST_STREAMED = 112


@dataclass(frozen=True)
class MmaPlan(StreamPlan):
    """Template arguments of gemm_mma_streamed.cuh, for GPUs without wgmma.

    Attributes
    ----------
    panels, chunks, columns, tiles, split
        See `StreamPlan`.
    groups : int
        Number of row tiles of a turn, of which each warpgroup computes two.
    stages_a : int
        Number of turns whose row tiles shared memory holds, 1 or 2; 0 if rows stream.
    stages_b : int
        Number of pipeline stages. A stage holds one chunk of a column tile and, if rows stream, of all row tiles.
    """

    levels: bool = False

    NAME, CLASS = "gemm_mma_streamed", "GemmMmaStreamed"

    @property
    def threads(self) -> int:
        """Number of threads per block."""
        return 64 * self.groups

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block in bytes (kSharedBytes in mma_streamed_pipeline.cuh)."""
        piece, chunk = 32 * self.panels * self.ROWS, 32 * (self.panels + 1) * self.columns
        stage = chunk + (0 if self.stages_a else self.groups * piece)
        barriers = 2 * self.stages_b + 2 * self.stages_a * self.groups
        return self.stages_a * self.groups * self.chunks * piece + self.stages_b * stage + 8 * barriers

    def kernel_of(self, products: str, epilogue: str) -> str:
        """Return the name expression of the kernel; see `StreamPlan.kernel_of`."""
        sizes = self.columns, self.panels, self.chunks, self.groups // 2, self.stages_a, self.stages_b
        return f"tsm2::{self.NAME}<{', '.join(map(str, sizes))}, tsm2::{products}, {epilogue}>"


def mma_plan(d: int, k: int, device: GpuSpec, *, certifies: bool = True) -> MmaPlan | None:
    """Plan the GEMM of an iteration for large k without wgmma; parameters as for `stream_plan`.

    Returns
    -------
    MmaPlan or None
        None if the compute capability of the GPU is below 8.0.

    Notes
    -----
    With four row tiles, a block has eight warps of 255 registers each, which 128 columns take. Large chunks need fewer
    steps; a second buffer of row tiles hides their copies, and more stages let warps be further apart.
    """
    if float(device.compute_capability) < _LEAST_CAPABILITY:
        return None
    panels_of_row, split = panels_of(d, k, certifies=certifies)

    def plan(most: int, buffers: int, stages: int) -> MmaPlan:
        chunks = -(-panels_of_row // most)
        panels = -(-panels_of_row // chunks)
        tiles = ceil(k / (MOST_COLUMNS if buffers else _MOST_STREAMED))
        columns, kept = max(LEAST_COLUMNS, 16 * ceil(k / tiles / 16)), tiles if tiles <= KEPT_TILES else None
        return MmaPlan(panels, chunks, 4, buffers, stages, columns, stays=buffers > 0, tiles=kept, split=split)

    # Panels of a chunk at most, turns whose row tiles are held, and stages.
    two_turns = (8, 2, 4), (8, 2, 3), (4, 2, 4)
    one_turn = (8, 1, 4), (8, 1, 3), (4, 1, 4), (4, 1, 3), (2, 1, 4), (2, 1, 3), (2, 1, 2)
    streams = (4, 0, 3), (2, 0, 4), (2, 0, 3), (1, 0, 3), (1, 0, 2)
    plans = (plan(*sizes) for sizes in two_turns + one_turn + streams)
    return next(plan for plan in plans if plan.shared_bytes <= device.shared_memory_per_block - RESERVED)
