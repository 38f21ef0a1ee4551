"""Plans of the k-means++ kernels: template arguments, partition of X into chunks, and shared memory (pure)."""

from dataclasses import dataclass
from math import lcm
from typing import NamedTuple

import numpy as np

from tsapps.kernels.gpu_specs import GpuSpec

__all__ = [
    "COPY",
    "DRAW_THREADS",
    "GROUP",
    "INTERVAL",
    "MOST_TRIALS",
    "TRY_THREADS",
    "WARP",
    "PlusPlusPlan",
    "PrunedPlan",
    "copy_errors",
    "first_pruned_step",
    "lanes_and_chunk",
    "plusplus_chunk",
    "plusplus_plan",
    "point_pitch",
    "point_words",
    "pruned_plan",
    "prunes",
    "quantized_bytes",
    "quantized_groups",
    "quantized_lanes",
    "scale_samples",
]

#: Maximum number of candidates per step: 2 + ⌊ln k⌋ is at most 12 for k up to 59,874. Registers limit it.
MOST_TRIALS = 12
#: The C++ class `QuantizedCopy` of init/quantized_copy.cuh, as a NumPy structure.
COPY = np.dtype(
    [(name, "u8") for name in ("upper", "lower", "rows", "errors", "scales", "largest", "mean")]
    + [("groups", "i4"), ("unit", "f4"), ("roundings", "f4"), ("of_distance", "f4")]
)
#: Number of threads per block of evaluate_candidates and evaluate_candidates_pruned (kTryThreads), and of
#: sample_candidates (kDrawThreads). Number of chunks per group (kGroup).
TRY_THREADS, DRAW_THREADS, GROUP = 256, 512, 128
#: WARP: number of lanes per warp. INTERVAL: maximum number of columns of a row that is split among all lanes of a warp
#: that are summed in the working dtype before a float64 sum adds the result (kInterval).
WARP, INTERVAL = 32, 1024
# Minimum number of pruned steps: making the quantized copy takes about as long as two steps that read X.
_LEAST_PRUNED_STEPS = 8
# _BLOCKS: number of resident blocks of evaluate_candidates per multiprocessor. _LARGE_D: minimum d at which a row is
# split among all lanes of a warp.
_BLOCKS, _LARGE_D = 2, 512
# Maximum number of lanes among which a row is split if d is below _LARGE_D.
_MOST_LANES = 8
# Number of float32 rows that a lane processes together (kTryRows): `_ROWS_OF_SMALL` for up to `_SMALL_BATCH` points,
# otherwise `_ROWS_OF_LARGE`.
_SMALL_BATCH, _ROWS_OF_SMALL, _ROWS_OF_LARGE = 8, 4, 2
# Maximum number of chunks of rows. With more chunks, reading the sums of all chunks would be slow. With fewer chunks,
# reading the rows of the chunk in which a sample is drawn would be slow.
_MOST_CHUNKS = 1 << 14
# Minimum number of rows per chunk. And number of chunks of rows of at most `_SHORT_ROW` bytes from which on chunks have
# at least `_SHORT_CHUNK` such rows: more sums take longer to read than the rows, which are never pruned.
_LEAST_CHUNK, _SHORT_ROW, _SHORT_CHUNK, _SHORT_CHUNKS = 16, 64, 256, 1 << 12
# Shared memory per block in bytes that CUDA reserves.
_RESERVED = 1024
# evaluate_candidates_pruned. _WARPS: number of warps per block. _QUEUED: number of rows that each of the two queues of
# a warp can hold. _TESTS: static shared memory per block in bytes, for up to 16 points (PointTest, and pointers).
# _STAGE_ROWS, _STAGE_OF_ROW: rows of a pipeline stage, and bytes of each without D² and weight (CodePipeline).
_WARPS, _QUEUED, _TESTS, _STAGE_ROWS, _STAGE_OF_ROW = TRY_THREADS // WARP, 64, 16 * (24 + 8), 32, 64 + 8
# Maximum d for which products of codes with 16-bit numbers fit in 32 bits: 15 · 32,639 · d < 2³¹.
_MOST_PRUNED_D = 4386
# Maximum number of rows from which column scales of the quantized copy are computed (kScaleSamples).
_SCALE_SAMPLES = 512
# Bounds of rounding errors. _PRUNED_ROUNDINGS: error of the pruning test, relative to the sum of the squared norms of
# row and candidate, and its part per element of a row. _DISTANCE_ROUNDINGS: relative error of a squared distance, per
# element of a row.
_PRUNED_ROUNDINGS, _PRUNED_ROUNDINGS_PER_ELEMENT, _DISTANCE_ROUNDINGS = 2.0**-18, 2.0**-26, 2.0**-23


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
        Number of chunks of X.
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
        Shape of X; of the whole, if it is distributed over several GPUs.
    trials : int
        Number of candidates per step.
    itemsize : {4, 8}
        Size of an element of X in bytes.
    aligned : bool
        Whether all rows begin at multiples of 16 bytes, on all GPUs.
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
    lanes, chunk = lanes_and_chunk(n, d, trials, itemsize, aligned=aligned)
    points = trials + 1
    window = _window(d, points * itemsize, device)
    if window is None:
        return None
    return PlusPlusPlan(trials, lanes, aligned, chunk, -(-n // chunk), window, window * points * itemsize)


def plusplus_chunk(n: int, d: int, itemsize: int) -> int:
    """Return a number of rows that is a multiple of the chunk of every plan for X of this shape."""
    plans = ((trials, aligned) for trials in (1, MOST_TRIALS) for aligned in (False, True))
    return lcm(*(lanes_and_chunk(n, d, trials, itemsize, aligned=aligned)[1] for trials, aligned in plans))


def lanes_and_chunk(n: int, d: int, trials: int, itemsize: int, *, aligned: bool) -> tuple[int, int]:
    """Return the number of lanes per row, and of rows per chunk; parameters as for `plusplus_plan`."""
    vector, lanes = 16 // itemsize if aligned else 1, WARP
    if d < _LARGE_D:
        lanes = 1
        while lanes < _MOST_LANES and 4 * lanes * vector <= d:
            lanes *= 2
    together = (_ROWS_OF_SMALL if trials < _SMALL_BATCH else _ROWS_OF_LARGE) * 4 // itemsize
    # A chunk is a whole number of tiles of evaluate_candidates and, for large data, of evaluate_candidates_pruned; tile
    # sizes are powers of two. For small data, chunks are as small as possible.
    rows = max(together * WARP // lanes, WARP if n >= WARP * _MOST_CHUNKS else _LEAST_CHUNK)
    chunks = _MOST_CHUNKS
    if d * itemsize <= _SHORT_ROW:
        chunks = min(chunks, max(_SHORT_CHUNKS, -(-n // _SHORT_CHUNK)))
    # Rounded up to 4, 5, 6 or 7 times a power of two: all chunks of X have a small common multiple then, of which
    # shards consist, and there are at least four fifths as many chunks as there may be.
    tiles = -(-n // (rows * chunks))
    step = 1 << max(0, tiles.bit_length() - 3)
    return lanes, rows * step * -(-tiles // step)


def point_pitch(d: int, itemsize: int) -> int:
    """Return the distance in elements between two points of a step (init/step_points.cuh)."""
    vector = 16 // itemsize
    return -(-d // vector) * vector


def point_words(trials: int, d: int, itemsize: int) -> int:
    """Return the size in 8-byte words of the points of a step, with the indices of `trials` candidates."""
    return (trials + 1) * point_pitch(d, itemsize) * itemsize // 8 + trials


def first_pruned_step(trials: int) -> int:
    """Return the index of the first step that is pruned; each step has `trials` candidates.

    At step s there are s centers. For about one row in s + 1, a given candidate is nearer than all centers. So from
    this step on, at most about a quarter of the rows are read from X.
    """
    return 4 * trials


def prunes(steps: int, trials: int) -> bool:
    """Return True if enough of the steps, each with `trials` candidates, can be pruned to pay for the copy."""
    return steps >= first_pruned_step(trials) + _LEAST_PRUNED_STEPS


def quantized_groups(d: int) -> int:
    """Return the number of groups of 32 columns per row of the quantized copy (init/quantized_copy.cuh)."""
    return -(-d // 32)


def quantized_bytes(n: int, d: int) -> int:
    """Return the size in bytes of the quantized copy of n rows of d elements."""
    return n * (32 * quantized_groups(d) + 12)


def quantized_lanes(groups: int) -> int:
    """Return log2 of the number of lanes among which quantize_rows splits a row: the largest that idles least."""
    return min(range(5, -1, -1), key=lambda log2: -(-4 * groups >> log2) << log2)


def scale_samples(n: int) -> np.ndarray:
    """Return the indices of the rows from which the scales of columns are computed, of n rows."""
    count = min(n, _SCALE_SAMPLES)
    return np.arange(count) * n // count


class PrunedPlan(NamedTuple):
    """Plan of the pruned steps of greedy k-means++.

    Attributes
    ----------
    blocks : int
        Number of thread blocks per multiprocessor.
    stages : int
        Number of pipeline stages per warp.
    shared_bytes : int
        Dynamic shared memory per block in bytes.
    """

    blocks: int
    stages: int
    shared_bytes: int


def pruned_plan(plan: PlusPlusPlan, d: int, itemsize: int, *, weighted: bool, device: GpuSpec) -> PrunedPlan | None:
    """Plan the pruned steps of greedy k-means++.

    Parameters
    ----------
    plan : PlusPlusPlan
        The plan of the steps that are not pruned.
    d : int
    itemsize : {4, 8}
        Size of an element of X in bytes.
    weighted : bool
        Whether samples have weights.
    device : GpuSpec

    Returns
    -------
    PrunedPlan or None
        None if one lane reads a whole row: d is so small that pruning saves nothing; or if shared memory is too small.
    """
    if plan.lanes == 1 or d > _MOST_PRUNED_D:
        return None
    points = plan.trials + 1
    # The bytes of the candidates, two per element; and the queues: per row the products (int32) and the row, then the
    # row and a set.
    fixed = 2 * quantized_groups(d) * 32 * -(-points // 8) * 8
    fixed += -(-_WARPS * _QUEUED * (4 * (-(-points // 2) * 2 + 1) + 8) // 16) * 16
    stage = _STAGE_ROWS * (_STAGE_OF_ROW + itemsize * (2 if weighted else 1))
    for blocks, stages in ((2, 3), (2, 2), (1, 6), (1, 4), (1, 2)):
        shared_bytes = fixed + _WARPS * stages * stage
        most = min(device.shared_memory // blocks - _RESERVED, device.shared_memory_per_block) - _TESTS
        if shared_bytes <= most:
            return PrunedPlan(blocks, stages, shared_bytes)
    return None


def copy_errors(d: int) -> tuple[float, float]:
    """Return the error bounds of the pruning test, `roundings` and `of_distance` of a `COPY`.

    Parameters
    ----------
    d : int

    Returns
    -------
    roundings : float
        Bound of the rounding errors of a squared distance that is computed from the copy, relative to the sum of the
        squared norms of row and candidate. Quantization errors are not included.
    of_distance : float
        Factor by which the test multiplies D², the squared distance to the nearest center. It covers the rounding error
        of distances computed from X.
    """
    return _PRUNED_ROUNDINGS + d * _PRUNED_ROUNDINGS_PER_ELEMENT, 1 + (d + 16) * _DISTANCE_ROUNDINGS


def _window(d: int, column: int, device: GpuSpec) -> int | None:
    """Return the number of columns of the candidates that shared memory holds; None if it holds too few.

    A column has `column` bytes. The result is d, or a whole number of intervals (`INTERVAL`). If neither fits with
    `_BLOCKS` blocks per multiprocessor, the result is for one block per multiprocessor.
    """
    for shared_memory in (device.shared_memory // _BLOCKS - _RESERVED, device.shared_memory_per_block):
        fit = min(shared_memory, device.shared_memory_per_block) // column
        if d <= fit:
            return d
        if fit >= INTERVAL:
            return fit // INTERVAL * INTERVAL
    return None
