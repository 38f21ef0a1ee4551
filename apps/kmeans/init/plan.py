"""How a step of k-means++ goes through X on a GPU, chosen from sizes alone."""

from dataclasses import dataclass

import numpy as np

from tsapps.apps.kmeans.assign.plan import tensor_error
from tsapps.kernels.gpu_specs import GpuSpec

__all__ = [
    "COPY",
    "MOST_TRIALS",
    "PlusPlusPlan",
    "PrunedPlan",
    "copy_error",
    "first_screened",
    "plusplus_plan",
    "pruned_plan",
]

#: Candidates a step that the kernels have registers for: enough for 59,874 clusters.
MOST_TRIALS = 12
#: init/plusplus_pruned.cuh's `Copy`, as a NumPy structure.
COPY = np.dtype(
    [("rows", "u8"), ("norms", "u8"), ("padded", "i4"), ("scale", "f4"), ("error", "f4"), ("of_distance", "f4")]
)
# Of evaluate_candidates: its warps and blocks a multiprocessor.
_WARP, _BLOCKS = 32, 2
# Rows of so many elements are shared by a whole warp, so many columns at a time (kInterval).
_LONG, _INTERVAL = 512, 1024
# The most lanes that share a shorter row; each has two vectors of it or more, where the row has.
_MOST_LANES = 8
# float32 rows that a lane takes together, of up to so many points and of more (kTryRows).
_SMALL_BATCH, _ROWS_OF_SMALL, _ROWS_OF_LARGE = 8, 4, 2
# Chunks at most: with more, the sums of chunks take long to read; with fewer, the rows of one.
_MOST_CHUNKS = 1 << 14
# Bytes of shared memory that the system keeps of every block, and that kernels declare themselves.
_RESERVED, _DECLARED = 1024, 256
# Of evaluate_candidates_pruned: warps of a block; rows of a tile, where they lie one after the other and in panels;
# bytes of them that a stage has (PrunedPipeline); and rows that may wait beside a tile's (Queue).
_WARPS, _TILE, _PANEL_TILE, _STAGE, _WAITING = 8, 16, 64, 4096, 32
# What its own roundings come to, of the square of both norms; and a distance's, of each of its elements.
_PRUNED_ROUNDINGS, _DISTANCE_ROUNDINGS = 2.0**-20, 2.0**-23


@dataclass(frozen=True)
class PlusPlusPlan:
    """How the kernels of init/plusplus.cuh are instantiated and launched.

    Attributes
    ----------
    trials : int
        Candidates a step.
    lanes : int
        That share a row.
    aligned : bool
        Whether lanes read 16 bytes at a time.
    chunk, chunks : int
        Rows of one sum, and how many sums there are.
    window : int
        Columns of the candidates in shared memory.
    shared_bytes : int
        Dynamic shared memory of evaluate_candidates.
    """

    trials: int
    lanes: int
    aligned: bool
    chunk: int
    chunks: int
    window: int
    shared_bytes: int

    def kernel(self, name: str, scalar: str, *, weighted: bool) -> str:
        """Return the name expression of a kernel for data of the C++ type `scalar`."""
        flags = f"{str(self.aligned).lower()}, {str(weighted).lower()}"
        return f"{name}<{scalar}, {self.trials}, {self.lanes}, {flags}>"


def plusplus_plan(n: int, d: int, trials: int, itemsize: int, *, aligned: bool, device: GpuSpec) -> PlusPlusPlan | None:
    """Choose how a step is computed; None where the kernels have no room for it.

    Parameters
    ----------
    n, d : int
    trials : int
        Candidates a step.
    itemsize : {4, 8}
        Bytes of an element.
    aligned : bool
        Whether rows begin at multiples of 16 bytes.
    device : GpuSpec

    Notes
    -----
    Where X is read, sums are added in an order that `n`, `d`, `trials`, `itemsize` and `aligned` decide: the device has
    no say.
    """
    if not 1 <= trials <= MOST_TRIALS:
        return None
    points, vector = trials + 1, 16 // itemsize if aligned else 1
    lanes = _WARP
    if d < _LONG:
        lanes = 1
        while lanes < _MOST_LANES and 4 * lanes * vector <= d:
            lanes *= 2
    together = (_ROWS_OF_SMALL if points <= _SMALL_BATCH else _ROWS_OF_LARGE) * 4 // itemsize
    # Whole tiles of both kernels, which are powers of two; of small data as many chunks as there can be.
    rows = max(together * _WARP // lanes, _PANEL_TILE if n >= _PANEL_TILE * _MOST_CHUNKS else _TILE)
    chunk = rows * -(-n // (rows * _MOST_CHUNKS))
    window = _window(d, points * itemsize, device)
    if window is None:
        return None
    return PlusPlusPlan(trials, lanes, aligned, chunk, -(-n // chunk), window, window * points * itemsize)


@dataclass(frozen=True)
class PrunedPlan:
    """How the kernel of init/plusplus_pruned.cuh is instantiated and launched.

    Attributes
    ----------
    seeding : PlusPlusPlan
        The plan of the steps that read X.
    panels : bool
        Whether the copy lies in panels.
    stages : int
        What a warp copies at a time, so often in shared memory.
    shared_bytes : int
        Dynamic shared memory.
    """

    plusplus: PlusPlusPlan
    panels: bool
    stages: int
    shared_bytes: int

    def kernel(self, scalar: str, *, weighted: bool) -> str:
        """Return the kernel's name expression for data of the C++ type `scalar`."""
        flag = str(self.panels).lower()
        name = self.plusplus.kernel("evaluate_candidates_pruned", scalar, weighted=weighted)
        return f"{name[:-1]}, {flag}, {self.stages}>"


def first_screened(trials: int) -> int:
    """Return the step, of so many candidates, from which on X's copy is read: so many centers have then been drawn.

    As a candidate is nearer to one of s + 1 rows, X is read for no more than about half of the rows then.
    """
    return trials + 1


def pruned_plan(
    plan: PlusPlusPlan, d: int, padded: int, itemsize: int, *, panels: bool, weighted: bool, device: GpuSpec
) -> PrunedPlan | None:
    """Choose how a step reads X's copy, of rows of `padded` elements; None where there is no room for two blocks.

    Nor is there a plan of rows that a lane has alone, which are no longer than a distance, nor of small data whose copy
    lies in panels, of which chunks are no whole tiles.
    """
    tile = _PANEL_TILE if panels else _TILE
    if plan.lanes == 1 or plan.window < d or plan.chunk % tile:
        return None
    points = plan.trials + 1
    copies = -(-padded // 32) * 32 * -(-points // 8) * 8 * 2
    fixed = -(-points * plan.window * itemsize // 16) * 16 + copies + _WARPS * (tile + _WAITING) * 4
    stage = _STAGE + tile * (4 + itemsize * (2 if weighted else 1))
    for stages in (3, 2):
        shared_bytes = fixed + _WARPS * stages * stage
        if shared_bytes <= device.shared_memory // _BLOCKS - _RESERVED - _DECLARED:
            return PrunedPlan(plan, panels, stages, shared_bytes)
    return None


def copy_error(d: int, padded: int, rounding: float) -> tuple[float, float]:
    """Return what square distances are off by: of the copy's rows, beside the square of both norms; of X's, a factor.

    `rounding` is what the copy lost of a row beside its norm.
    """
    return 2 * rounding + tensor_error(padded) + _PRUNED_ROUNDINGS, 1 + (d + 16) * _DISTANCE_ROUNDINGS


def _window(d: int, column: int, device: GpuSpec) -> int | None:
    """Return the columns, of `column` bytes each, that fit: in as many blocks as can be resident, else in one."""
    for room in (device.shared_memory // _BLOCKS - _RESERVED, device.shared_memory_per_block):
        fit = (min(room, device.shared_memory_per_block) - _DECLARED) // column
        if d <= fit:
            return d
        if fit >= _INTERVAL:
            return fit // _INTERVAL * _INTERVAL
    return None
