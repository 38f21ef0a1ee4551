"""Candidate plans of a problem: all plans worth trying that a device can run. Pure."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import ceil

from tsapps.kernels.gpu_specs import GpuSpec
from tsapps.kernels.plan.mma import MmaPlan, WgmmaPlan, instantiate
from tsapps.kernels.plan.simt import AnyPlan, simt_plans
from tsapps.kernels.problem import ITEMSIZE, Problem

__all__ = ["RESERVED", "candidates", "fits", "foldable", "most_registers", "registers", "stage_bytes"]

#: Bytes of shared memory that CUDA reserves per block.
RESERVED = 1024
# Bytes of static shared memory per block: the flag of simt::last_to_arrive, with padding for alignment.
_STATIC = 128
# The tensor-core instructions of gemm_mma.cuh need this compute capability or a later one.
_LEAST_CAPABILITY = 8
# The largest k at which a float32 product is computed as six tf32 products instead of three.
_SMALL = 4
# Maximum w of all products, m of a TSMTTSM, and k of a TSM2L for which gemm_wgmma.cuh is not tried: it is not faster.
_NARROW_FOR_WARPGROUPS, _SMALL_FOR_WARPGROUPS, _SHALLOW_FOR_WARPGROUPS = 8, 32, 32
# Estimated registers per consumer thread of gemm_wgmma.cuh that hold neither sums nor words of A.
_CONSUMERS_OTHER = 24
# Estimated registers per thread of gemm_mma.cuh that hold no sums: by bytes per element, with keep_b or in float64;
# otherwise if warps share the depth, for an odd number of 8-column blocks, and for an even number. Float32 numbers have
# two parts in tf32, and need more for each block of 16 × 8 sums. Fitted to 200 kernels for compute capability 9.0.
_OTHER_REGISTERS, _OF_FLOAT32 = {8: 63, 4: 48, 2: 48}, 2.5
_OF_SHARED_DEPTH, _OF_ODD_COLUMNS, _OF_EVEN_COLUMNS = 76, 80, 100
# _REGISTERS: registers per multiprocessor. _MOST_REGISTERS: maximum registers per thread.
_REGISTERS, _MOST_REGISTERS = 65_536, 255


def stage_bytes(plan: MmaPlan) -> int:
    """Return the number of bytes of A in a stage of the pipeline."""
    return plan.tile_m * plan.depth * ITEMSIZE[plan.dtype]


def registers(plan: MmaPlan) -> int:
    """Estimate the registers per thread: sums, separate sums of the current accumulation interval, and a constant."""
    rows, columns = plan.tile_m // plan.warps_m, plan.tile_n // plan.warps_n
    row_blocks, column_blocks = -(-rows // 16), -(-columns // 8)
    sums = 4 * row_blocks * (column_blocks + plan.row_sums)
    if isinstance(plan, WgmmaPlan):
        # A float64 number occupies two registers. A float64 thread holds two words of A, other threads the words of two
        # jobs. A float32 thread holds each word as two tf32 parts, and has separate sums for the current job.
        jobs, alone = 2 * 4 * plan.job_pairs, 2 * 4 * column_blocks
        needed = {"float64": 2 * sums + row_blocks * 16, "float32": sums + alone + 2 * jobs}
        return needed.get(plan.dtype, sums + jobs) + _CONSUMERS_OTHER
    # A float64 sum occupies two registers, and without keep_b, ptxas needs twice as many. With an accumulation
    # interval, a second sum of each element accumulates the current interval.
    size = ITEMSIZE[plan.dtype]
    sums *= 1 + bool(plan.interval) if size < 8 else 2 if plan.keep_b else 4
    if plan.warps_k > 1 and size < 8:
        return sums + _OF_SHARED_DEPTH
    of_parts = ceil(_OF_FLOAT32 * row_blocks * column_blocks) if size == 4 else 0
    if plan.keep_b or size == 8:
        return sums + _OTHER_REGISTERS[size] + of_parts
    return sums + (_OF_ODD_COLUMNS if (column_blocks + plan.row_sums) % 2 else _OF_EVEN_COLUMNS) + of_parts


def most_registers(plan: MmaPlan) -> int:
    """Return the maximum number of registers per thread at which `plan.blocks` blocks fit on a multiprocessor."""
    return min(_MOST_REGISTERS, _REGISTERS // (plan.blocks * plan.threads))


def fits(plan: MmaPlan, device: GpuSpec) -> bool:
    """Return True if a multiprocessor of the device has the resources to hold `plan.blocks` blocks at once."""
    shared = plan.shared_bytes + _STATIC
    kept = plan.tile_n * plan.depth * ITEMSIZE[plan.dtype] if plan.keep_b else 0
    most = most_registers(plan)
    if isinstance(plan, WgmmaPlan):
        at_launch, of_producer, most = plan.registers
        if not (of_producer <= at_launch <= most and plan.has_whole_jobs):
            return False
    return (
        # With keep_b, the kernel first copies B to the shared memory of the pipeline, so B must fit there.
        kept <= plan.teams * plan.stages * stage_bytes(plan)
        and shared <= device.shared_memory_per_block
        and plan.blocks * (shared + RESERVED) <= device.shared_memory
        and plan.blocks * plan.threads <= device.max_threads
        and registers(plan) <= most
    )


def candidates(problem: Problem, device: GpuSpec) -> list[AnyPlan]:
    """Return all plans worth trying, instantiated for the problem; empty if no kernel of tsapps computes it."""
    generators = {"tsm2r": _tsm2r, "tsm2l": _tsm2l, "tsmttsm": _tsmttsm}
    shape = problem.shape
    tensor_cores = float(device.compute_capability) >= _LEAST_CAPABILITY
    if shape == "other" or (problem.dtype == "bfloat16" and not tensor_cores):
        return []
    found: list[AnyPlan] = [*simt_plans(problem, device.multiprocessors)]
    if not tensor_cores:
        return found
    plans: list[MmaPlan] = [*generators[shape](problem)]
    if device.has_wgmma:
        plans += _warpgroups(problem)
    for one in plans:
        made = instantiate(one, problem)
        if fits(made, device) and made not in found:
            found.append(made)
    return found


def _interval(problem: Problem) -> int:
    """Return `MmaPlan.interval`: the number of words that tensor cores accumulate before a rounded addition.

    0 means all words. Tensor cores truncate their sums. The truncation error is visible in a float32 result. In a
    16-bit result it is far below the rounding error of the result.
    """
    return 8 if problem.dtype == "float32" else 0


def _products(problem: Problem) -> int:
    """Return the number of tf32 products per float32 product.

    Three tf32 products leave an error of up to 4·2⁻²⁴ per float32 product. For k up to `_SMALL`, ordinary float32
    arithmetic has an error of less than 8·2⁻²⁴, beside which this error would be visible. So six products are computed.
    """
    return 6 if problem.dtype == "float32" and problem.k <= _SMALL else 3


def _tsm2r(problem: Problem) -> Iterator[MmaPlan]:
    """Yield plans for TSM2R: tiles of many rows, with A and B in every stage."""
    # A shape is (bytes of one row of A in a stage, (rows of a tile, warps_m, warps_n, warps_k)).
    wide = ((128, 4, 1, 1), (256, 8, 1, 1), (64, 4, 1, 1), (128, 8, 1, 1), (256, 16, 1, 1))
    wider = ((128, 4, 2, 1), (256, 8, 2, 1), (256, 4, 2, 1), (64, 2, 2, 1), (128, 2, 2, 1), (128, 2, 4, 1))
    if problem.a.along_depth:
        long = ((64, 2, 1, 2), (32, 2, 1, 2), (32, 2, 1, 4), (64, 4, 1, 2), (32, 1, 1, 4), (16, 1, 1, 4), (16, 1, 1, 8))
        shapes = [*product((128, 256), (*wide, *wider)), *product((512, 1024, 2048), long)]
    else:
        shapes = [*product((128, 256), (*wide, *wider)), *product((32, 64), ((512, 8, 1, 1), (512, 16, 1, 1)))]
    for line_bytes, (tile_m, warps_m, warps_n, warps_k) in shapes:
        depth = line_bytes // problem.itemsize
        if warps_n > 1 and problem.w < 32:
            continue
        one = _of_tile(problem, tile_m, problem.w, depth, (warps_m, warps_n, warps_k))
        for stages, blocks, prepare_b in product((3, 4, 5), (1, 2, 3), (False, True)):
            if not (prepare_b and warps_k > 1):
                yield replace(one, stages=stages, blocks=blocks, prepare_b=prepare_b)


def _of_tile(problem: Problem, tile_m: int, w: int, depth: int, warps: tuple[int, int, int]) -> MmaPlan:
    """Return a plan whose tiles have `tile_m` rows and at least `w` columns; `warps` is (warps_m, warps_n, warps_k)."""
    warps_m, warps_n, warps_k = warps
    tile_n = -(-w // (8 * warps_n)) * 8 * warps_n if warps_n > 1 else w
    return MmaPlan(problem.dtype, tile_m, tile_n, depth, warps_m, warps_n, warps_k, interval=_interval(problem))


def _warpgroups(problem: Problem) -> Iterator[WgmmaPlan]:
    """Yield plans of gemm_wgmma.cuh; none if the product has too little arithmetic for that kernel to be faster."""
    if problem.w <= _NARROW_FOR_WARPGROUPS:
        return
    if problem.shape == "tsm2r":
        # Tall tiles, whose rows are split between two consumer warpgroups. For float64, one producer
        # warpgroup may suffice.
        every_producers = (1, 2) if problem.dtype == "float64" else (2,)
        for tile_m, line_bytes, stages, loaders in product((128, 256), (256, 128, 64), (3, 4, 6), every_producers):
            yield WgmmaPlan(
                problem.dtype,
                tile_m,
                problem.w,
                line_bytes // problem.itemsize,
                warps_m=8,
                stages=stages,
                loaders=loaders,
            )
    if problem.shape == "tsm2l" and problem.k > _SHALLOW_FOR_WARPGROUPS:
        # A tile has whole rows of A; each block keeps B in shared memory.
        for (multiplying, blocks), rows, stages, job_pairs in product(_GROUPS, (64, 128), (3, 4), (2, 4)):
            yield WgmmaPlan(
                problem.dtype,
                rows * multiplying,
                problem.w,
                problem.k,
                warps_m=4 * multiplying,
                stages=stages,
                blocks=blocks,
                keep_b=True,
                products=_products(problem),
                loaders=1,
                job_pairs=job_pairs,
            )
    if problem.shape == "tsmttsm" and problem.m > _SMALL_FOR_WARPGROUPS:
        # C is one tile; the sum over k is split among blocks and warpgroups.
        depths, groups = (16, 32, 64, 128), ((1, 1, 2), (2, 2, 1))
        jobs = (2,) if problem.dtype == "float64" else (2, 4)
        for depth, stages, (splits, loaders, blocks), job_pairs in product(depths, (3, 4, 6, 8), groups, jobs):
            yield WgmmaPlan(
                problem.dtype,
                problem.m,
                problem.w,
                depth,
                warps_m=4,
                warps_k=splits,
                stages=stages,
                blocks=blocks,
                gram=problem.gram,
                loaders=loaders,
                job_pairs=job_pairs,
            )


# gemm_wgmma.cuh with keep_b: (consumer warpgroups per block, blocks per multiprocessor).
_GROUPS = ((1, 2), (2, 1), (3, 1))
# gemm_mma.cuh with keep_b. _TEAMS: (one-warp teams per block, blocks per multiprocessor). _WARPS: (warps per block, all
# of them one team; blocks per multiprocessor).
_TEAMS = ((8, 1), (12, 1), (16, 1), (4, 2), (8, 2), (16, 2), (4, 4), (8, 3))
# _LITTLE_SHARED: bytes of shared memory per block of GPUs with little. If two stages of the smallest of _TEAMS exceed
# it, four teams are tried, too.
_LITTLE_SHARED = 99 << 10
_WARPS = ((4, 1), (4, 2), (4, 3), (4, 4), (8, 1), (8, 2))


def _tsm2l(problem: Problem) -> Iterator[MmaPlan]:
    """Yield plans for TSM2L: tiles of whole rows, with B in shared memory.

    One warp computes a tile. If lines of A run across the depth (column-major A), further plans let all warps of a
    block compute one tile, because several warps read long lines faster.
    """
    row = problem.k * problem.itemsize
    # Minimum bytes of A in flight per multiprocessor; smaller if writes of C are a larger part of the memory traffic.
    least = 24_576 * problem.k / (problem.k + problem.w)
    shapes = [
        (rows, 1, teams, blocks, stages)
        for rows, (teams, blocks), stages in product((16, 32, 64, 128), _TEAMS, (2, 3, 4, 6))
        if least <= rows * row * teams * blocks * (stages - 1) <= 163_840
    ]
    if 2 * 8 * 16 * row > _LITTLE_SHARED:
        shapes += [(16, 1, 4, 1, stages) for stages in (2, 3)]
    if not problem.a.along_depth:
        shapes += [
            (rows, warps, 1, blocks, stages)
            for rows, (warps, blocks), stages in product((16, 32, 64), _WARPS, (2, 3, 4))
            if 4096 <= rows * warps * row <= 65_536
        ]
    for rows, warps, teams, blocks, stages in shapes:
        yield MmaPlan(
            problem.dtype,
            rows * warps,
            problem.w,
            problem.k,
            warps_m=warps,
            teams=teams,
            stages=stages,
            blocks=blocks,
            keep_b=True,
            products=_products(problem),
            # An ordinary float32 sum of few products has small rounding errors. The shorter interval keeps the error of
            # truncation as small.
            interval=_interval(problem) // 2,
        )


def _tsmttsm(problem: Problem) -> Iterator[MmaPlan]:
    """Yield plans for TSMTTSM: C is one tile, and the sum over k is split among blocks and warps."""
    fold = foldable(problem)
    m, w = problem.m * fold, problem.w * fold
    line = (m + (0 if problem.gram else w)) * problem.itemsize
    for warps_m, warps_n, warps_k in ((1, 1, 8), (1, 1, 4), (2, 1, 4), (2, 1, 2), (1, 2, 4), (1, 4, 2), (1, 1, 16)):
        if (warps_n > 1 and (fold > 1 or problem.gram or w <= 8)) or (warps_m > 1 and m % (16 * warps_m) != 0):
            continue
        depths = {
            max(least, stage // line // least * least)
            for least in (warps_k * 128 // problem.itemsize, warps_k * 64 // problem.itemsize)
            for stage in (8192, 16_384, 32_768, 65_536)
        }
        for depth, stages, blocks in product(sorted(depths), (3, 4, 6), (1, 2)):
            one = _of_tile(problem, m, w, depth, (warps_m, warps_n, warps_k))
            yield replace(one, stages=stages, blocks=blocks, gram=problem.gram, fold=fold)


def foldable(problem: Problem) -> int:
    """Return the fold of a TSMTTSM: the number of lines of each operand that the kernel treats as one line.

    Longer lines fill more of the 16 × 8 blocks of the tensor cores. The product of the folded operands has fold × fold
    blocks of the size of C. C is the sum of its diagonal blocks.
    """
    across = not problem.a.along_depth and not problem.b.along_depth
    packed = problem.a.leading == problem.m and problem.b.leading == problem.w
    if not across or not packed:
        return 1
    fold = 1
    while 2 * fold * max(problem.m, problem.w) <= 16:
        fold *= 2
    return fold
