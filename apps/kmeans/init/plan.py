"""Plans of the k-means++ kernels: template arguments, partition of X into chunks, and shared memory (pure)."""

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

#: Maximum number of candidates per step: 2 + ⌊ln k⌋ is at most 12 for k up to 59,874. Registers limit it.
MOST_TRIALS = 12
#: The C++ class `Copy` of init/plusplus_pruned.cuh, as a NumPy structure.
COPY = np.dtype(
    [("rows", "u8"), ("norms", "u8"), ("padded", "i4"), ("scale", "f4"), ("error", "f4"), ("of_distance", "f4")]
)
# _WARP: number of lanes per warp. _BLOCKS: number of resident blocks of evaluate_candidates per multiprocessor.
_WARP, _BLOCKS = 32, 2
# _LARGE_D: minimum d at which a row is split among all lanes of a warp. _INTERVAL: maximum number of columns of such a
# row that are summed in the working dtype before a float64 sum adds the result (kInterval).
_LARGE_D, _INTERVAL = 512, 1024
# Maximum number of lanes among which a row is split if d is below _LARGE_D.
_MOST_LANES = 8
# Number of float32 rows that a lane processes together (kTryRows): `_ROWS_OF_SMALL` for up to `_SMALL_BATCH` points,
# otherwise `_ROWS_OF_LARGE`.
_SMALL_BATCH, _ROWS_OF_SMALL, _ROWS_OF_LARGE = 8, 4, 2
# Maximum number of chunks of rows. With more chunks, reading the sums of all chunks would be slow. With fewer chunks,
# reading the rows of the chunk in which a sample is drawn would be slow.
_MOST_CHUNKS = 1 << 14
# Shared memory per block in bytes: _RESERVED by CUDA; _DECLARED as static by the kernels.
_RESERVED, _DECLARED = 1024, 256
# evaluate_candidates_pruned. _WARPS: number of warps per block. _TILE, _PANEL_TILE: number of rows per tile, for a
# row-major copy and for a copy in panels. _STAGE: bytes of rows per pipeline stage (PrunedPipeline). _WAITING: number
# of rows for which a warp's queue has space in addition to the rows of one tile (Queue).
_WARPS, _TILE, _PANEL_TILE, _STAGE, _WAITING = 8, 16, 64, 4096, 32
# Bounds of rounding errors. _PRUNED_ROUNDINGS: error of the pruning test, relative to the square of the sum of the
# norms of row and candidate. _DISTANCE_ROUNDINGS: relative error of a squared distance, per element of a row.
_PRUNED_ROUNDINGS, _DISTANCE_ROUNDINGS = 2.0**-20, 2.0**-23


@dataclass(frozen=True)
class PlusPlusPlan:
    """Template arguments and partition of the kernels of init/plusplus.cuh.

    Attributes
    ----------
    trials : int
        Number of candidates per step.
    lanes : int
        Number of lanes among which a row is split.
    aligned : bool
        Whether lanes load 16 bytes at a time.
    chunk : int
        Number of consecutive rows per chunk. A warp sums the potentials of one chunk.
    chunks : int
        Number of chunks.
    window : int
        Number of columns of the candidates that shared memory holds at a time.
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
        Number of candidates per step.
    itemsize : {4, 8}
        Size of an element of X in bytes.
    aligned : bool
        Whether all rows begin at multiples of 16 bytes.
    device : GpuSpec

    Returns
    -------
    PlusPlusPlan or None
        None if `trials` is not in 1 … MOST_TRIALS, or if the candidates do not fit in shared memory.

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
    # A chunk is a whole number of tiles of evaluate_candidates and of evaluate_candidates_pruned; tile sizes are powers
    # of two. For small data, chunks are as small as possible.
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
        Number of pipeline stages per warp.
    shared_bytes : int
        Dynamic shared memory per block in bytes.
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
    """Return the index of the first step that is pruned; each step has `trials` candidates.

    At step s there are s centers. For about one row in s + 1, a given candidate is nearer than all centers. So from
    step `trials` + 1 on, at most about half of the rows are read from X.
    """
    return trials + 1


def pruned_plan(
    plan: PlusPlusPlan, d: int, padded: int, itemsize: int, *, panels: bool, weighted: bool, device: GpuSpec
) -> PrunedPlan | None:
    """Plan the pruned steps of greedy k-means++.

    Parameters
    ----------
    plan : PlusPlusPlan
        The plan of the steps that are not pruned.
    d : int
    padded : int
        Number of elements per row of the half-precision copy.
    itemsize : {4, 8}
        Size of an element of X in bytes.
    panels : bool
        Whether the copy is in panels; otherwise it is row-major.
    weighted : bool
        Whether samples have weights.
    device : GpuSpec

    Returns
    -------
    PrunedPlan or None
        None in four cases. One lane reads a whole row: d is so small that pruning saves nothing. Shared memory does not
        hold all columns of the candidates. A chunk is not a whole number of tiles: small data in panels. Two blocks per
        multiprocessor exceed shared memory.
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
    """Return the error bounds of the pruning test, `error` and `of_distance` of a `COPY`; see init/plusplus_pruned.cuh.

    Parameters
    ----------
    d : int
    padded : int
        Number of elements per row of the half-precision copy.
    rounding : float
        Rounding error of a row of the copy, relative to its norm (ρ of data/half_copy.cuh).

    Returns
    -------
    error : float
        Maximum error of a squared distance computed from the copy. It is relative to the square of the sum of the norms
        of row and candidate.
    of_distance : float
        Factor by which the test multiplies D², the squared distance to the nearest center. It covers the rounding error
        of distances computed from X.
    """
    return 2 * rounding + tensor_error(padded) + _PRUNED_ROUNDINGS, 1 + (d + 16) * _DISTANCE_ROUNDINGS


def _window(d: int, column: int, device: GpuSpec) -> int | None:
    """Return the number of columns of the candidates that shared memory holds; None if it holds too few.

    A column has `column` bytes. The result is d, or a whole number of intervals (`_INTERVAL`). If neither fits with
    `_BLOCKS` blocks per multiprocessor, the result is for one block per multiprocessor.
    """
    for shared_memory in (device.shared_memory // _BLOCKS - _RESERVED, device.shared_memory_per_block):
        fit = (min(shared_memory, device.shared_memory_per_block) - _DECLARED) // column
        if d <= fit:
            return d
        if fit >= _INTERVAL:
            return fit // _INTERVAL * _INTERVAL
    return None
