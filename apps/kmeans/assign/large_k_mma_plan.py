"""Plans of the assignment for large k without wgmma: template arguments of gemm_mma_streamed.cuh (pure)."""

from collections.abc import Sequence
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

__all__ = ["MmaStreamPlan", "batched_mma_stream_plan", "mma_stream_plan"]

# The least compute capability that has mma of float16 pairs, asynchronous copies and mbarriers; that has bulk copies.
_LEAST_CAPABILITY, _BULK_CAPABILITY = 8.0, 9.0
# The compute capability for which ptxas leaves registers for the candidates of three units, if rows stream and there
# is one problem.
_ROOMY = "9.0"
# Maximum number of panels of a chunk, turns whose row tiles shared memory holds, and stages; the best first.
# _SHORT: for up to two column tiles of one chunk, which shared memory then holds, too.
_SHORT = ((8, 2, 2), (8, 1, 2))
_STAYS = ((8, 1, 4), (8, 1, 3), (8, 1, 2), (4, 1, 4), (4, 1, 3))
_STREAMS = ((8, 0, 2), (6, 0, 2), (3, 0, 2), (2, 0, 2))


@dataclass(frozen=True)
class MmaStreamPlan(StreamPlan):
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
    bulk : bool
        True if stages are filled by bulk copies.
    kept_units : int
        See `StreamPlan`.
    """

    levels: bool = False
    bulk: bool = False
    kept_units: int = KEPT_TILES

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
        bulk = str(self.bulk).lower()
        return f"tsm2::{self.NAME}<{', '.join(map(str, sizes))}, {bulk}, tsm2::{products}, {epilogue}>"


def mma_stream_plan(d: int, k: int, device: GpuSpec, *, certifies: bool = True) -> MmaStreamPlan | None:
    """Plan the GEMM of an iteration for large k without wgmma; parameters as for `stream_plan`.

    Returns
    -------
    MmaStreamPlan or None
        None if the compute capability of the GPU is below 8.0, or its shared memory too small.

    Notes
    -----
    Of 128 columns and four row tiles, every one of eight warps has 128 sums per lane, as many as its registers allow:
    the more, the fewer loads a product takes. Large chunks need fewer steps. Measurements are in docs/notes/lloyd.md.
    """
    panels_of_row, split = panels_of(d, k, certifies=certifies)
    sizes = (_SHORT if k <= 2 * MOST_COLUMNS else ()) + _STAYS + _STREAMS
    is_roomy = device.compute_capability == _ROOMY
    return _plan(panels_of_row, k, device, sizes, split=split, keeps=KEPT_TILES if is_roomy else 2)


def batched_mma_stream_plan(d: int, k: int, device: GpuSpec) -> MmaStreamPlan | None:
    """Plan the GEMM of an iteration of many problems without wgmma; parameters and result as for `mma_stream_plan`."""
    return _plan(ceil(d / 16), k, device, _STAYS + _STREAMS, split=False, keeps=KEPT_TILES)


def _plan(
    panels_of_row: int, k: int, device: GpuSpec, sizes: Sequence[tuple[int, int, int]], *, split: bool, keeps: int
) -> MmaStreamPlan | None:
    """Return the first plan that fits, of these maximum numbers of panels, turns and stages.

    `keeps`: number of units whose candidates a lane keeps if rows stream.
    """
    if float(device.compute_capability) < _LEAST_CAPABILITY:
        return None
    tiles = ceil(k / MOST_COLUMNS)
    columns = max(LEAST_COLUMNS, 16 * ceil(k / tiles / 16))
    for most, buffers, stages in sizes:
        chunks = -(-panels_of_row // most)
        plan = MmaStreamPlan(
            -(-panels_of_row // chunks),
            chunks,
            4,
            buffers,
            stages,
            columns,
            stays=buffers > 0,
            tiles=tiles if tiles <= KEPT_TILES and not (buffers and chunks > 1) else None,
            split=split,
            bulk=float(device.compute_capability) >= _BULK_CAPABILITY,
            kept_units=KEPT_TILES if chunks == 1 else 2 if buffers else keeps,
        )
        if buffers and stages == 2 and chunks > 1:
            continue  # ptxas spills registers of these kernels
        if plan.shared_bytes <= device.shared_memory_per_block - RESERVED:
            return plan
    return None
