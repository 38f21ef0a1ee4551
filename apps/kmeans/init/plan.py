"""Plans of the k-means++ kernels: template arguments, partition of X and shared memory, from sizes (pure)."""

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
    "first_pruned_step",
    "plusplus_plan",
    "pruned_plan",
]

#: The most candidates per step, limited by the kernels' registers; enough for up to 59,874 clusters.
MOST_TRIALS = 12
#: The C++ class `Copy` of init/plusplus_pruned.cuh, as a NumPy structure.
COPY = np.dtype(
    [("rows", "u8"), ("norms", "u8"), ("padded", "i4"), ("scale", "f4"), ("error", "f4"), ("of_distance", "f4")]
)
# Lanes of a warp; resident blocks per multiprocessor of evaluate_candidates.
_WARP, _BLOCKS = 32, 2
# The least d at which a row is split among all lanes of a warp; the columns that these lanes sum at a time (kInterval).
_LARGE_D, _INTERVAL = 512, 1024
# The most lanes among which a row is split for smaller d. Each lane has at least two vectors of a row that is long
# enough.
_MOST_LANES = 8
# Float32 rows that a lane processes together (kTryRows): `_ROWS_OF_SMALL` for up to `_SMALL_BATCH` points, otherwise
# `_ROWS_OF_LARGE`.
_SMALL_BATCH, _ROWS_OF_SMALL, _ROWS_OF_LARGE = 8, 4, 2
# The most chunks. With more chunks, reading their sums would be slow; with fewer, reading the rows of one chunk.
_MOST_CHUNKS = 1 << 14
# Shared memory of a block in bytes: what CUDA reserves, and what the kernels declare as static.
_RESERVED, _DECLARED = 1024, 256
# evaluate_candidates_pruned: warps of a block; rows of a tile, for a row-major copy and for a copy in panels; bytes of
# rows in a pipeline stage (PrunedPipeline); rows that a queue can hold in addition to those of a tile (Queue).
_WARPS, _TILE, _PANEL_TILE, _STAGE, _WAITING = 8, 16, 64, 4096, 32
# Bounds of rounding errors: of the pruning test, relative to the square of the sum of both norms; and of a distance,
# relative and per element.
_PRUNED_ROUNDINGS, _DISTANCE_ROUNDINGS = 2.0**-20, 2.0**-23


@dataclass(frozen=True)
class PlusPlusPlan:
    """Template arguments and partition of the kernels of init/plusplus.cuh.

    Attributes
    ----------
    trials : int
        Candidates per step.
    lanes : int
        Lanes among which a row is split.
    aligned : bool
        Whether lanes load 16 bytes at a time.
    chunk : int
        Rows of a chunk, which are summed together.
    chunks : int
        Number of chunks.
    window : int
        Columns of the candidates that are in shared memory at a time.
    shared_bytes : int
        Dynamic shared memory of evaluate_candidates in bytes.
    """

    trials: int
    lanes: int
    aligned: bool
    chunk: int
    chunks: int
    window: int
    shared_bytes: int

    def kernel(self, name: str, scalar: str, *, weighted: bool) -> str:
        """Return the name expression of kernel `name` for X of the C++ type `scalar`."""
        flags = f"{str(self.aligned).lower()}, {str(weighted).lower()}"
        return f"{name}<{scalar}, {self.trials}, {self.lanes}, {flags}>"


def plusplus_plan(n: int, d: int, trials: int, itemsize: int, *, aligned: bool, device: GpuSpec) -> PlusPlusPlan | None:
    """Plan the steps of greedy k-means++.

    Parameters
    ----------
    n, d : int
    trials : int
        Candidates per step.
    itemsize : {4, 8}
        Bytes of an element of X.
    aligned : bool
        Whether all rows begin at multiples of 16 bytes.
    device : GpuSpec

    Returns
    -------
    PlusPlusPlan or None
        None if there are too many candidates for the registers or for shared memory.

    Notes
    -----
    The order in which sums over X are added depends on `n`, `d`, `trials`, `itemsize` and `aligned` only, so all GPUs
    give the same bits.
    """
    if not 1 <= trials <= MOST_TRIALS:
        return None
    points, vector = trials + 1, 16 // itemsize if aligned else 1
    lanes = _WARP
    if d < _LARGE_D:
        lanes = 1
        while lanes < _MOST_LANES and 4 * lanes * vector <= d:
            lanes *= 2
    together = (_ROWS_OF_SMALL if points <= _SMALL_BATCH else _ROWS_OF_LARGE) * 4 // itemsize
    # A chunk is a whole number of tiles of both kernels; the sizes of tiles are powers of two. For small data, chunks
    # are as small as possible.
    rows = max(together * _WARP // lanes, _PANEL_TILE if n >= _PANEL_TILE * _MOST_CHUNKS else _TILE)
    chunk = rows * -(-n // (rows * _MOST_CHUNKS))
    window = _window(d, points * itemsize, device)
    if window is None:
        return None
    return PlusPlusPlan(trials, lanes, aligned, chunk, -(-n // chunk), window, window * points * itemsize)


@dataclass(frozen=True)
class PrunedPlan:
    """Template arguments of the kernel of init/plusplus_pruned.cuh.

    Attributes
    ----------
    plusplus : PlusPlusPlan
        The plan of the steps that are not pruned.
    panels : bool
        Whether the half-precision copy is in panels; otherwise it is row-major.
    stages : int
        Pipeline stages of a warp.
    shared_bytes : int
        Dynamic shared memory in bytes.
    """

    plusplus: PlusPlusPlan
    panels: bool
    stages: int
    shared_bytes: int

    def kernel(self, scalar: str, *, weighted: bool) -> str:
        """Return the name expression of the kernel for X of the C++ type `scalar`."""
        flag = str(self.panels).lower()
        name = self.plusplus.kernel("evaluate_candidates_pruned", scalar, weighted=weighted)
        return f"{name[:-1]}, {flag}, {self.stages}>"


def first_pruned_step(trials: int) -> int:
    """Return the first step that is pruned, given the candidates per step.

    At step s there are s centers. For about one row in s + 1, a candidate is nearer than all centers. So from step
    `trials` + 1 on, at most about half of the rows are read from X.
    """
    return trials + 1


def pruned_plan(
    plan: PlusPlusPlan, d: int, padded: int, itemsize: int, *, panels: bool, weighted: bool, device: GpuSpec
) -> PrunedPlan | None:
    """Plan the pruned steps of greedy k-means++.

    Parameters
    ----------
    plan : PlusPlusPlan
        The plan of the other steps.
    d : int
    padded : int
        Elements of a row of the half-precision copy.
    itemsize : {4, 8}
        Bytes of an element of X.
    panels : bool
        Whether the copy is in panels.
    weighted : bool
        Whether samples have weights.
    device : GpuSpec

    Returns
    -------
    PrunedPlan or None
        None if one lane reads a whole row (d is so small that pruning saves nothing), if a chunk is not a whole number
        of tiles (small data in panels), or if two blocks per multiprocessor exceed shared memory.
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
    """Return the error bounds of the pruning test, `error` and `of_distance` of a `COPY`.

    Parameters
    ----------
    d : int
    padded : int
        Elements of a row of the half-precision copy.
    rounding : float
        Rounding error of a row of the copy, relative to its norm (ρ of data/half_copy.cuh).

    Returns
    -------
    error : float
        Error of a squared distance of the copy, relative to the square of the sum of both norms.
    of_distance : float
        Factor on D² that covers the rounding of distances computed from X.
    """
    return 2 * rounding + tensor_error(padded) + _PRUNED_ROUNDINGS, 1 + (d + 16) * _DISTANCE_ROUNDINGS


def _window(d: int, column: int, device: GpuSpec) -> int | None:
    """Return how many columns of the candidates, of `column` bytes each, fit in shared memory; None if too few do.

    With `_BLOCKS` blocks per multiprocessor, all d columns or a whole number of intervals must fit. Otherwise the plan
    is for one block per multiprocessor.
    """
    for shared_memory in (device.shared_memory // _BLOCKS - _RESERVED, device.shared_memory_per_block):
        fit = (min(shared_memory, device.shared_memory_per_block) - _DECLARED) // column
        if d <= fit:
            return d
        if fit >= _INTERVAL:
            return fit // _INTERVAL * _INTERVAL
    return None
