"""How gemm_wgmma_streamed.cuh computes the product of an iteration for large k, from sizes alone."""

from dataclasses import dataclass

from tsapps.kernels.gpu_specs import GpuSpec

__all__ = ["StreamPlan", "stream_plan"]

# Centers that rows which stream by are multiplied with at a time; and what reading those rows costs, in such.
_COLUMNS, _COLUMNS_LOST = (200, 176, 152, 128, 104), 80


@dataclass(frozen=True)
class StreamPlan:
    """How gemm_wgmma_streamed.cuh multiplies: its template arguments, and the chunks of a row.

    Attributes
    ----------
    panels : int
        Slabs of 16 columns in a chunk.
    chunks : int
        Chunks in a row.
    groups : int
        Warpgroups that multiply, each 64 rows.
    stages_a, stages_b : int
        What shared memory holds: tiles of rows, or chunks of all warpgroups' tiles where these stream by; and chunks of
        centers.
    columns : int
        Centers that are multiplied at a time.
    stays : bool
        Whether rows stay while centers stream by.
    levels : bool
        Whether scores are made to be above zero, which norms have to bound; it takes a panel for each warpgroup.
    """

    panels: int
    chunks: int
    groups: int
    stages_a: int
    stages_b: int
    columns: int = 128
    stays: bool = True
    levels: bool = True

    #: Rows of a tile.
    ROWS = 64

    @property
    def row_panels(self) -> int:
        """Slabs in a row of the shadow."""
        return self.panels * self.chunks

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 128 * self.groups + 128

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block: chunks, constants, and barriers (kSharedBytes in streamed_pipeline.cuh)."""
        bytes_a, bytes_b = 32 * self.panels * self.ROWS, 32 * (self.panels + 1) * self.columns
        pieces = self.stages_a * (self.chunks if self.stays else self.groups)
        barriers = 2 * ((2 * self.groups * self.chunks if self.stays else pieces) + self.stages_b) + self.groups
        constants = 32 * self.ROWS * (self.groups if self.levels else 1)
        return pieces * bytes_a + self.stages_b * bytes_b + constants + 8 * barriers

    @property
    def kernel(self) -> str:
        """The name expression of the kernel."""
        sizes = self.columns, self.panels, self.chunks, self.groups, self.stages_a, self.stages_b
        numbers = ", ".join(map(str, sizes))
        return f"tsm2::gemm_wgmma_streamed<{numbers}, {str(self.stays).lower()}, {self.epilogue}>"

    @property
    def epilogue(self) -> str:
        """The class of the epilogue; four warpgroups leave it few registers."""
        kept = 3 if self.groups > 3 else 5
        return f"kmeans::StreamedArgminEpilogue<{self.columns}, {kept}, {str(self.levels).lower()}>"

    def blocks(self, n: int, multiprocessors: int) -> int:
        """Return the blocks of a launch: one a multiprocessor."""
        return min(multiprocessors, -(-n // (self.ROWS * self.groups)))

    def capacity(self, n: int, blocks: int) -> int:
        """Return the most rows that one of `blocks` blocks has."""
        return -(-n // (self.ROWS * self.groups * blocks)) * self.ROWS * self.groups


def stream_plan(d: int, k: int, device: GpuSpec, *, certifies: bool = True) -> StreamPlan | None:
    """Choose how k centers are multiplied; None where there are no warpgroups.

    `certifies` says whether norms are bounds, and labels are certified by them. Chunks are as large as leaves room
    for a block's rows and some chunks of centers; what was measured is in docs/notes/lloyd.md. Rows that are too
    long stream by as the centers do.
    """
    if device.compute_capability != "9.0":
        return None
    every, room = -(-d // 16), device.shared_memory_per_block - 1024
    for most in (8, 4):
        chunks = -(-every // most)
        panels = -(-every // chunks)
        for stages_a, stages_b in ((6, 4), (6, 3), (5, 4), (5, 3), (4, 4)):
            plan = StreamPlan(panels, chunks, 4, stages_a, stages_b, levels=certifies)
            if chunks <= stages_b and plan.shared_bytes <= room:
                return plan
    # The more columns at a time, the less is read; but what is past the last center is multiplied too.
    columns = min(_COLUMNS, key=lambda columns: -(-k // columns) * (columns + _COLUMNS_LOST))
    # Their epilogue is little beside the products.
    plans = (StreamPlan(4, -(-every // 4), 3, s, s, columns, stays=False, levels=False) for s in (5, 4))
    return next(plan for plan in plans if plan.shared_bytes <= room)
