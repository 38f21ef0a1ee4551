"""Plan of the assignment for large k: template arguments of gemm_wgmma_streamed.cuh from sizes (pure)."""

from dataclasses import dataclass

from tsapps.kernels.gpu_specs import GpuSpec

__all__ = ["StreamPlan", "stream_plan"]

# If rows stream: possible numbers of centers per column tile, and the cost of reading the rows, as a number of centers.
_COLUMNS, _COLUMNS_LOST = (200, 176, 152, 128, 104), 80


@dataclass(frozen=True)
class StreamPlan:
    """Template arguments of gemm_wgmma_streamed.cuh: A has the rows, B the centers.

    Attributes
    ----------
    panels : int
        Panels of 16 columns per chunk.
    chunks : int
        Chunks per row.
    groups : int
        Consumer warpgroups; each has 64 rows.
    stages_a : int
        Pipeline stages of A: row tiles if `stays`; otherwise chunks of the row tiles of all warpgroups.
    stages_b : int
        Pipeline stages of B: chunks of centers.
    columns : int
        Centers of a column tile.
    stays : bool
        Whether rows stay in shared memory while centers stream; otherwise both stream.
    levels : bool
        Whether each row adds a level that makes its scores positive, which requires row norms to be bounds. It takes
        a panel per warpgroup.
    """

    panels: int
    chunks: int
    groups: int
    stages_a: int
    stages_b: int
    columns: int = 128
    stays: bool = True
    levels: bool = True

    #: Rows of a row tile.
    ROWS = 64

    @property
    def row_panels(self) -> int:
        """Panels per row of the half-precision copy."""
        return self.panels * self.chunks

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 128 * self.groups + 128

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block in bytes (kSharedBytes in streamed_pipeline.cuh)."""
        bytes_a, bytes_b = 32 * self.panels * self.ROWS, 32 * (self.panels + 1) * self.columns
        pieces = self.stages_a * (self.chunks if self.stays else self.groups)
        barriers = 2 * ((2 * self.groups * self.chunks if self.stays else pieces) + self.stages_b) + self.groups
        constants = 32 * self.ROWS * (self.groups if self.levels else 1)
        return pieces * bytes_a + self.stages_b * bytes_b + constants + 8 * barriers

    @property
    def kernel(self) -> str:
        """Name expression of the kernel."""
        sizes = self.columns, self.panels, self.chunks, self.groups, self.stages_a, self.stages_b
        numbers = ", ".join(map(str, sizes))
        return f"tsm2::gemm_wgmma_streamed<{numbers}, {str(self.stays).lower()}, {self.epilogue}>"

    @property
    def epilogue(self) -> str:
        """C++ class of the epilogue. With four warpgroups it has fewer registers, so it keeps fewer candidates."""
        kept = 3 if self.groups > 3 else 5
        return f"kmeans::StreamedArgminEpilogue<{self.columns}, {kept}, {str(self.levels).lower()}>"

    def blocks(self, n: int, multiprocessors: int) -> int:
        """Return the blocks of a launch over n rows: one per multiprocessor, or fewer if n has fewer row tiles."""
        return min(multiprocessors, -(-n // (self.ROWS * self.groups)))

    def capacity(self, n: int, blocks: int) -> int:
        """Return an upper bound of the rows that one of `blocks` blocks labels, of n rows."""
        return -(-n // (self.ROWS * self.groups * blocks)) * self.ROWS * self.groups


def stream_plan(d: int, k: int, device: GpuSpec, *, certifies: bool = True) -> StreamPlan | None:
    """Plan the GEMM of an iteration for large k.

    Parameters
    ----------
    d, k : int
    device : GpuSpec
    certifies : bool
        Whether row norms are bounds that certify the labels.

    Returns
    -------
    StreamPlan or None
        None without wgmma (compute capability other than 9.0).

    Notes
    -----
    Chunks are as large as shared memory allows for the rows of a block and several chunks of centers. If the rows of a
    block do not fit, rows stream too. Measurements are in docs/notes/lloyd.md.
    """
    if device.compute_capability != "9.0":
        return None
    panels_of_row, shared_memory = -(-d // 16), device.shared_memory_per_block - 1024
    for most in (8, 4):
        chunks = -(-panels_of_row // most)
        panels = -(-panels_of_row // chunks)
        for stages_a, stages_b in ((6, 4), (6, 3), (5, 4), (5, 3), (4, 4)):
            plan = StreamPlan(panels, chunks, 4, stages_a, stages_b, levels=certifies)
            if chunks <= stages_b and plan.shared_bytes <= shared_memory:
                return plan
    # Larger column tiles read the rows less often, but multiply more padding after the last center.
    columns = min(_COLUMNS, key=lambda columns: -(-k // columns) * (columns + _COLUMNS_LOST))
    # For such large d the GEMM outweighs its epilogue, so three warpgroups suffice and levels would save little.
    plans = (StreamPlan(4, -(-panels_of_row // 4), 3, s, s, columns, stays=False, levels=False) for s in (5, 4))
    return next(plan for plan in plans if plan.shared_bytes <= shared_memory)
