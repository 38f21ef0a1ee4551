"""Plans of the assignment for large k: template arguments of the GEMMs from sizes (pure).

The GEMM is gemm_wgmma_resident.cuh for few features and not too many centers, otherwise gemm_wgmma_streamed.cuh.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np

from tsapps.kernels.gpu_specs import GpuSpec

__all__ = [
    "KEPT_TILES",
    "LEAST_COLUMNS",
    "MANY_PRODUCTS",
    "MOST_COLUMNS",
    "ONE_PRODUCT",
    "RESERVED",
    "SPLIT_ROWS",
    "WINDOW",
    "ResidentPlan",
    "StreamPlan",
    "batched_stream_plan",
    "depth_of",
    "large_k_plan",
    "list_candidates",
    "panels_of",
    "stream_plan",
]

#: The C++ classes `OneProduct` and `ManyProducts` of streamed_turns.cuh, as NumPy structures.
ONE_PRODUCT = np.dtype([("row_tiles", "i4")])
MANY_PRODUCTS = np.dtype([("products", "u8"), ("count", "u8"), ("turns_each", "i4"), ("padding", "i4")])
#: The C++ class `SplitRows` of assign/split_rows.cuh, as a NumPy structure.
SPLIT_ROWS = np.dtype([("X", "u8"), ("shifts", "u8"), ("n", "u4"), ("scale", "f4")])
#: Maximum number of rows that an iteration labels at a time, a multiple of 64. It limits the memory of the lists, which
#: have space for all these rows; and such launches are many times longer than the gaps between launches.
WINDOW = 1 << 26

#: Maximum number of centers per column tile of four warpgroups, which registers limit; minimum number, which the
#: epilogue needs; and bytes of shared memory that the driver and the epilogue use.
MOST_COLUMNS, LEAST_COLUMNS, RESERVED = 128, 32, 1024
#: Maximum number of column tiles of which lanes keep all candidates; registers of four warpgroups limit it.
KEPT_TILES = 3
# For plans that stream the rows. _COLUMNS: possible numbers of centers per column tile. _COLUMNS_LOST: cost of reading
# the rows once per column tile, in units of the cost of one center.
_COLUMNS, _COLUMNS_LOST = (200, 176, 152, 128, 104, 72, 40), 80

# Rows of up to _MOST_SPLIT features are split into two parts if that adds at most _MOST_ADDED panels of centers: more
# would take longer on data without heavy tails than rescoring its ambiguous rows.
_MOST_SPLIT, _MOST_ADDED = 16, 1024
# Maximum number of column tiles for which ResidentPlan unrolls their loop.
_UNROLLED_TILES = 6
# Maximum number of panels per row for short lists of candidates.
_SHORT_PANELS = 4


def list_candidates(row_panels: int) -> int:
    """Return the maximum number of candidates in the list of an ambiguous row, by the number of panels per row.

    A row with more candidates is compared with all centers. If rows are short, that costs less, and memory for long
    lists would be large relative to X.
    """
    return 11 if row_panels <= _SHORT_PANELS else 27


def depth_of(d: int, *, split: bool) -> int:
    """Return the number of columns of a row of d features in the half-precision copy, without padding."""
    return 3 * d if split else d


class _LargeKPlan(ABC):
    """What the plans share: row tiles of 64 rows, distributed over the warpgroups of all blocks; and candidates."""

    groups: int

    #: Number of rows per row tile.
    ROWS = 64

    @property
    @abstractmethod
    def row_panels(self) -> int:
        """Number of panels of 16 columns per row of the half-precision operand."""

    @property
    def candidates(self) -> int:
        """Maximum number of candidates in the list of an ambiguous row; see `list_candidates`."""
        return list_candidates(self.row_panels)

    def blocks(self, n: int, multiprocessors: int) -> int:
        """Return the number of blocks for n rows: one per multiprocessor, or fewer if n rows are too few for them."""
        return min(multiprocessors, -(-n // (self.ROWS * self.groups)))

    def capacity(self, n: int, blocks: int) -> int:
        """Return the maximum number of rows that one block labels if `blocks` blocks label n rows."""
        return -(-n // (self.ROWS * self.groups * blocks)) * self.ROWS * self.groups


@dataclass(frozen=True)
class ResidentPlan(_LargeKPlan):
    """Template arguments of gemm_wgmma_resident.cuh with the rows of X as operand A (assign/split_rows.cuh).

    Attributes
    ----------
    columns : int
        Number of centers per column tile.
    tiles : int
        Number of column tiles.
    features : int
        Number of features, at most 16.
    groups : int
        Number of warpgroups per block.
    """

    columns: int
    tiles: int
    features: int
    groups: int = 4

    #: A constant is added to all scores of a row, as `StreamPlan.levels` describes.
    levels = True

    @property
    def unrolled(self) -> int:
        """Number of column tiles if lanes keep the candidates of all of them, which registers limit; otherwise 0."""
        return self.tiles if self.tiles <= _UNROLLED_TILES else 0

    @property
    def sorts(self) -> bool:
        """Whether columns are sorted by norm, and column tiles have error bounds of their own."""
        return self.unrolled == 0

    @property
    def each(self) -> int:
        """Number of features per lane (data/lane_columns.cuh)."""
        return ceil(self.features / 4)

    @property
    def row_panels(self) -> int:
        """Number of panels of 16 columns per row."""
        return ceil((3 * self.each + 1) / 4)

    @property
    def threads(self) -> int:
        """Number of threads per block."""
        return 128 * self.groups

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block in bytes: all centers, and a barrier."""
        return 32 * self.row_panels * self.columns * self.tiles + 8

    def kernel(self, types: str, *, aligned: bool) -> str:
        """Return the name expression of the kernel.

        `types` are the C++ types of X and of the computation. `aligned` says whether lanes load all their features of a
        row together.
        """
        rows = f"kmeans::SplitRows<{types}, {self.features}, {str(aligned).lower()}>"
        candidates = f"kmeans::StreamedCandidates<{self.columns}, {KEPT_TILES}, true, false>"
        if self.unrolled:
            candidates = f"kmeans::ResidentCandidates<{self.columns}, {self.tiles}>"
        epilogue = f"kmeans::LargeKArgminEpilogue<{candidates}, {self.candidates}>"
        return f"tsm2::gemm_wgmma_resident<{self.columns}, {self.unrolled}, {self.groups}, {rows}, {epilogue}>"


@dataclass(frozen=True)
class StreamPlan(_LargeKPlan):
    """Template arguments of gemm_wgmma_streamed.cuh. Operand A is the rows of X; operand B is the centers.

    Rows and centers are in the core-matrix layout, in panels of 16 columns. A chunk is several adjacent panels.

    Attributes
    ----------
    panels : int
        Number of panels per chunk.
    chunks : int
        Number of chunks per row.
    groups : int
        Number of consumer warpgroups; each computes a tile of 64 rows.
    stages_a : int
        Number of pipeline stages of A. A stage holds one row tile if `stays`; otherwise, one chunk of the row tiles of
        all warpgroups.
    stages_b : int
        Number of pipeline stages of B. A stage holds one chunk of a column tile.
    columns : int
        Number of centers per column tile.
    stays : bool
        Whether row tiles remain in shared memory while the centers stream. Otherwise rows and centers stream.
    levels : bool
        Whether a constant is added to all scores of a row to make them positive. This requires row norms that bound
        the rounding error. It takes shared memory for one more panel per warpgroup.
    tiles : int or None
        Number of column tiles, if lanes keep the candidates of all of them; see kKeepsAll in streamed_candidates.cuh.
    split : bool
        Whether rows and centers are split into two float16 parts each (data/split_copy.cuh).
    """

    panels: int
    chunks: int
    groups: int
    stages_a: int
    stages_b: int
    columns: int = 128
    stays: bool = True
    levels: bool = True
    tiles: int | None = None
    split: bool = False

    #: Columns are sorted by norm, and column tiles have error bounds of their own.
    sorts = True
    #: The kernel and its header, and the class of C++ that has its code.
    NAME, CLASS = "gemm_wgmma_streamed", "GemmWgmmaStreamed"

    @property
    def row_panels(self) -> int:
        """Number of panels per row of the half-precision copy."""
        return self.panels * self.chunks

    @property
    def threads(self) -> int:
        """Number of threads per block: the consumer warpgroups and one producer warpgroup."""
        return 128 * self.groups + 128

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block in bytes (kSharedBytes in streamed_pipeline.cuh)."""
        bytes_a, bytes_b = 32 * self.panels * self.ROWS, 32 * (self.panels + 1) * self.columns
        pieces = self.stages_a * (self.chunks if self.stays else self.groups)
        barriers = 2 * ((2 * self.groups * self.chunks if self.stays else pieces) + self.stages_b)
        constants = 32 * self.ROWS * (self.groups if self.levels else 1)
        return pieces * bytes_a + self.stages_b * bytes_b + constants + 8 * barriers

    def kernel_of(self, products: str, epilogue: str) -> str:
        """Return the name expression of the kernel for C++ classes of products and of an epilogue."""
        sizes = self.columns, self.panels, self.chunks, self.groups, self.stages_a, self.stages_b
        numbers = ", ".join(map(str, sizes))
        return f"tsm2::{self.NAME}<{numbers}, {str(self.stays).lower()}, tsm2::{products}, {epilogue}>"

    @property
    def kernel(self) -> str:
        """Name expression of the kernel for one problem."""
        return self.kernel_of(
            "OneProduct", f"kmeans::LargeKArgminEpilogue<kmeans::StreamedCandidates<{self.kept}>, {self.candidates}>"
        )

    @property
    def kept(self) -> str:
        """Template arguments of `StreamedCandidates`."""
        units = self.tiles or self.kept_units
        return f"{self.columns}, {units}, {str(self.levels).lower()}, {str(self.tiles is not None).lower()}"

    @property
    def kept_units(self) -> int:
        """Number of units whose candidates a lane keeps, if not all. Registers of four warpgroups limit it to three."""
        return KEPT_TILES if self.groups > 3 else 5


def large_k_plan(d: int, k: int, device: GpuSpec, *, certifies: bool = True) -> ResidentPlan | StreamPlan | None:
    """Plan the GEMM of an iteration for large k; parameters and result as for `stream_plan`.

    Notes
    -----
    Rows of up to 16 features are split into two parts as they are read, if shared memory holds all centers: 1,792 of 16
    features, and 7,168 of up to 4.
    """
    if certifies and d <= _MOST_SPLIT and device.has_wgmma:
        tiles = ceil(k / MOST_COLUMNS)
        plan = ResidentPlan(8 * ceil(k / tiles / 8), tiles, d)
        if plan.shared_bytes <= device.shared_memory_per_block - RESERVED:
            return plan
    return stream_plan(d, k, device, certifies=certifies)


def stream_plan(d: int, k: int, device: GpuSpec, *, certifies: bool = True) -> StreamPlan | None:
    """Plan the GEMM of an iteration for large k.

    Parameters
    ----------
    d, k : int
    device : GpuSpec
    certifies : bool
        Whether row norms bound the rounding error of rows, so that scores can certify labels.

    Returns
    -------
    StreamPlan or None
        None if the GPU has no wgmma instructions: its compute capability is not 9.0.

    Notes
    -----
    Shared memory holds the rows of a block and several chunks of centers; chunks are as large as this allows. If the
    rows of a block do not fit, they stream as the centers do. Short rows are split into two parts, which makes score
    error bounds two orders of magnitude smaller. Measurements are in docs/notes/lloyd.md.
    """
    panels_of_row, split = panels_of(d, k, certifies=certifies)
    return _plan(panels_of_row, k, device, levels=certifies, split=split)


def panels_of(d: int, k: int, *, certifies: bool) -> tuple[int, bool]:
    """Return the number of panels per row for k centers, and whether rows are split; see `StreamPlan.split`."""
    single, double = (-(-depth_of(d, split=split) // 16) for split in (False, True))
    split = certifies and d <= _MOST_SPLIT and (double - single) * k <= _MOST_ADDED
    return double if split else single, split


def batched_stream_plan(d: int, k: int, device: GpuSpec) -> StreamPlan | None:
    """Plan the GEMM of an iteration of many problems, which is worth its price if k is not much below a column tile.

    Returns
    -------
    StreamPlan or None
        None if the GPU has no wgmma instructions.
    """
    return _plan(ceil(d / 16), k, device, levels=True, split=False)


def _plan(panels_of_row: int, k: int, device: GpuSpec, *, levels: bool, split: bool) -> StreamPlan | None:
    """Plan a GEMM whose row tiles stay in shared memory if they fit; `levels`: whether it may add them to scores."""
    if not device.has_wgmma:
        return None
    resident = _resident_plan(panels_of_row, k, device, levels=levels, split=split)
    return resident or _streamed_rows_plan(panels_of_row, k, device)


def _resident_plan(panels_of_row: int, k: int, device: GpuSpec, *, levels: bool, split: bool) -> StreamPlan | None:
    """Plan a GEMM whose row tiles stay in shared memory while the centers stream, if they fit.

    Column tiles are as wide as the fewest that hold k centers need. With few of them, levels would take longer than
    they save.
    """
    tiles = ceil(k / MOST_COLUMNS)
    columns, keeps_all = max(LEAST_COLUMNS, 8 * ceil(k / tiles / 8)), tiles <= KEPT_TILES
    for most in (8, 4):
        chunks = -(-panels_of_row // most)
        panels = -(-panels_of_row // chunks)
        for stages_a, stages_b in ((6, 4), (6, 3), (5, 4), (5, 3), (4, 4)):
            options: Any = {"levels": levels and not keeps_all, "tiles": tiles if keeps_all else None, "split": split}
            plan = StreamPlan(panels, chunks, 4, stages_a, stages_b, columns, **options)
            if plan.shared_bytes <= device.shared_memory_per_block - RESERVED:
                return plan
    return None


def _streamed_rows_plan(panels_of_row: int, k: int, device: GpuSpec) -> StreamPlan:
    """Plan a GEMM whose row tiles stream as the centers do."""
    # Larger column tiles read the rows less often, but multiply more padding after the last center.
    columns = min(_COLUMNS, key=lambda columns: -(-k // columns) * (columns + _COLUMNS_LOST))
    # For such large d the GEMM takes much longer than its epilogue. So three warpgroups suffice, and levels, which
    # shorten the epilogue, would save little.
    plans = (StreamPlan(4, -(-panels_of_row // 4), 3, s, s, columns, stays=False, levels=False) for s in (5, 4))
    return next(plan for plan in plans if plan.shared_bytes <= device.shared_memory_per_block - RESERVED)
