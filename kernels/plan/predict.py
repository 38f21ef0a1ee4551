"""Predicted times of plans and of cuBLAS, by which `select.plan` selects where no table has a measured row. Pure.

The time of a plan is bounded by memory, instruction issue or tensor cores. All rates are those of the device
(gpu_specs.py). The other constants were fitted to times on an H200: of plans of 1,900 products, and of cuBLAS
for 5,000. docs/notes/tsm2.md says how far predictions are from measurements.
"""

from collections.abc import Callable, Mapping
from math import exp, inf
from typing import Any

from tsapps.kernels.gpu_specs import GpuSpec
from tsapps.kernels.plan.mma import MmaPlan, WgmmaPlan
from tsapps.kernels.plan.simt import AnyPlan, ColumnsPlan, RowsPlan, SmallTsmttsmPlan, SplitPlan, WidePlan
from tsapps.kernels.problem import Problem

__all__ = ["library_seconds", "predict"]

# Seconds from the launch of a kernel to its first load and from its last store to its end.
_LAUNCH = 5e-6
# The share of the peak bandwidth that a plain copy of large arrays reaches.
_STREAM = 0.9
# Bytes of a line in a column-major matrix that take as long as starting the line.
_LINE_START = 34
# Cycles of latency of a tile of whole rows. Cycles between two instructions of a warp: at best, and at least the other
# number divided by the warps that share a scheduler.
_TILE_CYCLES, _BETWEEN, _BETWEEN_ALONE = 600, 1.3, 4
# Cycles of a multiply-add of float64 in a warp that has no other to wait with.
_FLOAT64_CYCLES = 6.5
# Warps that a scheduler needs to issue an instruction per cycle.
_ENOUGH_WARPS = 2
# Instructions to store 16 × 8 elements of C.
_STORING = 65
# The share of the tensor cores' peak that mma reaches: of float64; and of other types on GPUs of these compute
# capabilities, whose peak needs other instructions.
_OF_PEAK, _OF_FASTER_PEAK, _FASTER = 0.72, 0.44, ("9.0", "10.0")
# The share of B's bytes that count, if the level-2 cache holds B.
_OF_CACHED = 0.2
# Seconds in which sums of splits are added.
_ADDING_SPLITS = 2e-6
# Cycles in which a thread adds a number of another block to its own, and of another warp.
_ADDING, _ADDING_WARPS = 8, 2
# Seconds in which blocks of a tall product wait for each other's sums, while they have a multiprocessor to themselves.
_SHARING = 5.5e-6
# Seconds of a tall product that cuBLAS does not spend on memory or arithmetic.
_LIBRARY_LAUNCH = 7e-6
# Elements of the smallest of the three matrices from which on cuBLAS is near the bound of memory.
_ENOUGH = 1024
# Bytes of a product that occupies all threads; that takes cuBLAS little more than its launch.
_FULL, _SMALL = 16 << 20, 4 << 20
# Lanes of a multiprocessor that issue an ordinary instruction per cycle.
_LANES = 128


def predict(plan: AnyPlan, problem: Problem, device: GpuSpec) -> float:
    """Predict the time of a plan in seconds; infinity for a cublasLt algorithm, whose rank says nothing of its time.

    Parameters
    ----------
    plan : AnyPlan
        One of `candidates`.
    problem : Problem
    device : GpuSpec

    Returns
    -------
    float

    Notes
    -----
    For tensor-core kernels: per stage, every warp issues copies, fragment reads, splits into tf32 parts, products and
    rounded additions. All stages except one are in flight; Little's law gives the bytes in flight that keep the memory
    busy. For the other kernels: a share of the bandwidth, which depends on how many bytes a thread loads and stores
    together, or the instructions of a thread.
    """
    seconds_of = _SECONDS_OF.get(type(plan))
    return inf if seconds_of is None else seconds_of(plan, problem, device)


def _of_mma(plan: MmaPlan, problem: Problem, device: GpuSpec) -> float:
    size = problem.itemsize
    m, w, k = problem.m * plan.fold, problem.w * plan.fold, -(-problem.k // plan.fold)
    units = plan.units(m, k, w)
    together = plan.blocks * plan.teams  # tiles in progress per multiprocessor
    resident = device.multiprocessors * together
    rounds = -(-units // min(units, resident))  # number of stages that the busiest team processes
    of_a = plan.depth * plan.tile_m * size  # bytes of a stage
    of_b = 0 if plan.keep_b or plan.gram else plan.depth * plan.tile_n * size
    tiles = plan.depth / max(k, plan.depth)  # that end in a stage
    out = plan.tile_m * plan.tile_n * size * tiles
    from_memory = of_a + of_b * (_OF_CACHED if problem.shape == "tsm2r" else 1) + out
    memory = from_memory * resident / device.bandwidth / _busy(plan, together * (of_a + of_b), device)
    if plan.keep_b and not plan.a_along:  # a tile has short lines of A and of C
        memory *= 1 + _LINE_START / (plan.tile_m * size)
    words = {8: 1, 4: 1, 2: 2}[size]
    row_blocks, column_blocks = -(-plan.tile_m // plan.warps_m // 16), -(-plan.tile_n // plan.warps_n // 8)
    pairs = plan.depth / plan.warps_k / (8 * words)
    products = (plan.products if size == 4 else 1) * row_blocks * column_blocks
    parts = 3 if size == 4 else 1
    reads_a, reads_b = parts * 4 * row_blocks, 2 * column_blocks
    additions = row_blocks * column_blocks if size < 8 else 0
    copies, preparing = (of_a + of_b) / 128, pairs * reads_b * plan.warps_n * (parts + 2)
    stores = row_blocks * column_blocks * plan.warps * tiles
    # The tensor-core cycles per instruction follow from the peak rate: an instruction computes 2·16·8·(8·words) flops.
    tensor = together * plan.warps * pairs * products * 2 * 16 * 8 * 8 * words / _tensor_rate(problem, device)
    warps = together * plan.warps / 4  # of a scheduler
    if isinstance(plan, WgmmaPlan):
        # Consumers read A, and wait for products of their warpgroup. Producers copy, and prepare B.
        of_warp = pairs * (6 * reads_a + 0.15 * (products + additions)) + 90
        issue = together * (plan.warps * of_warp + 6 * preparing + 3.5 * (copies + 6 * stores)) / 4
        cycles, least = max(issue, tensor), 0.0
    else:
        of_warp = pairs * (reads_a + reads_b * (0.5 if plan.shares_parts else parts) + additions) + 60
        issue = together * (plan.warps * of_warp + preparing * plan.prepare_b + copies + _STORING * stores) / 4
        share = _OF_PEAK if size == 8 else _OF_FASTER_PEAK if device.compute_capability in _FASTER else 1.0
        cycles = issue * max(1, _ENOUGH_WARPS / warps) + tensor / share  # which do not overlap
        of_tile = pairs * (reads_a + reads_b + products) + 60 + _STORING * row_blocks * column_blocks
        least = _TILE_CYCLES + max(_BETWEEN, _BETWEEN_ALONE / warps) * of_tile if plan.keep_b else 0.0
    # Sums of a tile that several warps or blocks share.
    of_thread = plan.tile_m * plan.tile_n / plan.threads
    blocks = 0 if plan.keep_b else min(units, resident) / (-(-m // plan.tile_m) * -(-w // plan.tile_n))
    adding = _ADDING * of_thread * (blocks if blocks > 1 else 0)
    of_warps = _ADDING_WARPS * of_thread * (plan.warps_k - 1) * tiles
    # Loads overlap with the rest, except for about a quarter of the shorter of the two times.
    busy = cycles / device.clock_hz
    each = max(memory, busy, least / device.clock_hz) + 0.26 * min(memory, busy) + of_warps / device.clock_hz
    sharing = _SHARING / together if problem.shape == "tsm2r" else 0.0
    return rounds * each + _launches(problem) + sharing + adding / device.clock_hz


def _busy(plan: MmaPlan, stage: int, device: GpuSpec) -> float:
    """Return the share of the bandwidth that the bytes in flight keep busy, for stages of this size."""
    need = _bytes_in_flight(device)
    if isinstance(plan, WgmmaPlan):  # of whose stages two are not in flight
        return 1 - exp(-max((plan.stages - 2) * stage, 0.3 * need) / (2 * need))
    return 1 - exp(-(plan.stages - 1) * stage / (0.9 * need))


def _bytes_in_flight(device: GpuSpec) -> float:
    """Return the bytes that a multiprocessor must have in flight to keep the memory busy, by Little's law."""
    return device.memory_latency / device.clock_hz * device.bandwidth / device.multiprocessors


def _tensor_rate(problem: Problem, device: GpuSpec) -> float:
    """Return the flops per cycle of the tensor cores of a multiprocessor; a typical number if they are not known."""
    rate = _peak(problem, device)
    return 1024.0 if rate is None else rate / device.multiprocessors / device.clock_hz


def _peak(problem: Problem, device: GpuSpec) -> float | None:
    """Return the flop/s of mma, or None; GPUs without float64 tensor cores have the rate of ordinary instructions."""
    units = {8: ("float64_tensor", "float64"), 4: ("tf32",), 2: (problem.dtype,)}[problem.itemsize]
    rates = dict(device.peaks)
    return next((rates[unit] for unit in units if unit in rates), None)


def _launches(problem: Problem) -> float:
    """Return the seconds that are not work; blocks that share a result wait for each other once more."""
    return _LAUNCH * (1.7 if problem.shape == "tsmttsm" else 1)


def _streamed(problem: Problem, device: GpuSpec, share: float) -> float:
    """Return the seconds in which a share of the stream's bandwidth moves all operands."""
    return _launches(problem) + problem.bytes / (_STREAM * device.bandwidth * share)


def _of_rows(plan: RowsPlan, problem: Problem, device: GpuSpec) -> float:
    stored = plan.rows * plan.w * problem.itemsize  # bytes by one thread
    share = 0.92 if stored <= 32 else 0.3 if stored > 64 else 0.75 if plan.w <= plan.k else 0.5
    if problem.itemsize == 2 and plan.k * plan.w > 32:  # bound by conversions
        share *= 0.75
    return _streamed(problem, device, share)


def _of_wide(plan: WidePlan, problem: Problem, device: GpuSpec) -> float:
    half = problem.itemsize == 2
    share = 0.84 if plan.w * problem.itemsize > 64 else 0.5
    if half and plan.k > 4:  # bound by conversions
        share = min(share, 0.65)
    if plan.w * problem.itemsize % 16:  # a vector of C spans two rows
        share = 0.78 if not half else 0.68 if plan.k <= 2 else 0.4 if plan.k <= 4 else 0.15
    # Rows of A that are loaded ahead hide latency, but are too many for a product that the cache holds in part.
    return _streamed(problem, device, share * (1 if (plan.ahead > 1) == (problem.bytes > 2 * device.l2) else 0.85))


def _of_columns(plan: ColumnsPlan, problem: Problem, device: GpuSpec) -> float:
    large, half = problem.bytes > device.l2, problem.itemsize == 2
    share = 0.92 if plan.w < 64 else 0.8
    if (large or half) and not plan.streams:  # C displaces A in the cache
        share *= 0.97 if plan.w < max(4, plan.k) else 0.4 if half else 0.9
    if plan.k > plan.w >= 32:  # registers hold neither the columns of A nor those of C
        share *= 0.65
    # Many threads of a block hide latency, but are too few blocks for a small product.
    if (plan.threads > 128) != large:
        share *= 0.95
    # Instructions to load, convert and multiply a row; more if registers do not hold the columns.
    of_row = 1.6 * plan.k * plan.w + 26 * plan.k + 11 * plan.w if half else plan.k * plan.w + 8 * plan.k + 4 * plan.w
    of_row *= 1.5 if plan.k > 32 else 1
    # Cycles of a thread, whose loads of `ahead` columns of A are in flight together.
    of_product = _FLOAT64_CYCLES * plan.k * plan.w if problem.itemsize == 8 else of_row
    of_thread = (16 // problem.itemsize * of_product + _TILE_CYCLES * plan.k / plan.ahead) / device.clock_hz
    of_all = problem.m * of_row / (device.multiprocessors * _LANES * device.clock_hz) if half else 0.0
    return max(_streamed(problem, device, share), _LAUNCH + max(of_thread, of_all))


def _of_split(plan: SplitPlan, problem: Problem, device: GpuSpec) -> float:
    is_slow = plan.width > (1 if problem.itemsize == 2 else 4)
    # Bytes that the blocks of a multiprocessor load together, of those that keep the memory busy.
    blocks = -(-problem.m * problem.itemsize // (16 * plan.threads)) * -(-problem.w // plan.width) * plan.splits
    loaded = min(plan.blocks, blocks / device.multiprocessors) * plan.threads * plan.unroll * 16
    busy = 1 - exp(-loaded / (2 * _bytes_in_flight(device)))
    return _streamed(problem, device, busy * (0.88 if is_slow else 1)) + _ADDING_SPLITS


def _of_small(plan: SmallTsmttsmPlan, problem: Problem, device: GpuSpec) -> float:
    # At the end, the sums of all threads are added; a small product has fewer threads.
    adding = 0.25e-6 * plan.m * plan.w * min(1.0, problem.bytes / _FULL)
    share = 0.85 if problem.itemsize == 2 else 0.95
    if not plan.along and plan.depth * plan.m * problem.itemsize > 64:  # threads load pieces that are far apart
        share *= 0.6
    return 1.1 * _LAUNCH + adding + problem.bytes / (device.bandwidth * share)


def library_seconds(problem: Problem, device: GpuSpec) -> float:
    """Predict the time of cuBLAS in seconds where it is near the bound of memory or arithmetic; elsewhere infinity.

    It is near if all matrices are aligned to 16 bytes: tsm2r of 16-bit elements and float64, tsm2l likewise and tsmttsm
    of 16-bit elements if the smallest matrix is not tiny, and small products of 16-bit elements. Tsm2r with a single
    column is near in any case. If C is neither row- nor column-major, cuBLAS does not support it.
    """
    rate, flops = _peak(problem, device), 2 * problem.m * problem.k * problem.w
    if problem.c == "any" or problem.gram or rate is None:
        return inf
    is_half, is_small = problem.itemsize == 2, problem.bytes < _SMALL
    is_aligned = problem.a.alignment == problem.b.alignment == 16 and problem.c != "columns" and problem.itemsize != 4
    if problem.shape == "tsm2r" and (is_aligned or problem.w == 1):
        return _LIBRARY_LAUNCH + max(problem.bytes / (_STREAM * device.bandwidth), flops / (0.62 * rate))
    is_tiny = problem.w * min(problem.m, problem.k) < _ENOUGH and not (is_half and is_small)
    if not is_aligned or is_tiny or not (is_half or problem.shape == "tsm2l"):
        return inf
    share = 0.4 if is_small else 0.88 if problem.shape == "tsm2l" else 0.75
    return max(_streamed(problem, device, share), _LAUNCH + flops / (0.62 * rate))


_SECONDS_OF: Mapping[type, Callable[[Any, Problem, GpuSpec], float]] = {
    MmaPlan: _of_mma,
    WgmmaPlan: _of_mma,
    RowsPlan: _of_rows,
    WidePlan: _of_wide,
    ColumnsPlan: _of_columns,
    SplitPlan: _of_split,
    SmallTsmttsmPlan: _of_small,
}
