"""The choice of a kernel for a product: a pure function of the problem and of the device.

`candidates` lists the plans that a device can run for a problem; `plan` takes one of them. Where a table of measured
picks for the device is given (kernels/tuned/, or the user's own made by ``tsapps tune``), it decides, and it also knows
where the library was faster. Else `predict` does: Little's law for the bytes on their way, and the instructions and
tensor-core products of a stage.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from math import log2
from pathlib import Path
from typing import Any

from tsapps.kernels.device import Device
from tsapps.kernels.plan import Plan, RowsPlan, instantiate, rows_plan
from tsapps.kernels.problem import ITEMSIZE, NARROW, Problem

__all__ = ["LIBRARY", "candidates", "plan", "predict", "tuned_table"]

#: What `plan` returns where cuBLAS is to be called.
LIBRARY = "library"

_TUNED = Path(__file__).resolve().parent / "tuned"
# Tensor-core instructions that the kernel is made of came with compute capability 8.0.
_LEAST_CAPABILITY = 8
# Shared memory that the system keeps of every block.
_RESERVED = 1024
# Registers of a thread beside its sums; and of an SM, and how many a thread may have.
_OTHER_REGISTERS, _REGISTERS, _MOST_REGISTERS = 64, 65_536, 255


def registers(plan: Plan) -> int:
    """Return about how many registers a thread needs: its sums, and those of the stretch that is being added up."""
    rows, columns = plan.tile_m // plan.warps_m, plan.tile_n // plan.warps_n
    sums = 4 * -(-rows // 16) * -(-columns // 8)
    # float64 takes two registers; float32 holds a stretch's sums too.
    return (2 if plan.dtype == "float64" or plan.stretch else 1) * sums + _OTHER_REGISTERS


def fits(plan: Plan, device: Device) -> bool:
    """Whether a multiprocessor of the device holds the plan's blocks."""
    shared = plan.shared_bytes
    kept = plan.tile_n * plan.depth * ITEMSIZE[plan.dtype] if plan.keep_b else 0
    return (
        # A B that is kept arrives where the ring will be.
        kept <= plan.stages * stage_bytes(plan)
        and shared <= device.shared_memory_per_block
        and plan.blocks * (shared + _RESERVED) <= device.shared_memory
        and plan.blocks * plan.threads <= device.max_threads
        and registers(plan) <= min(_MOST_REGISTERS, _REGISTERS // (plan.blocks * plan.threads))
    )


def candidates(problem: Problem, device: Device) -> list[Plan]:
    """Return every plan worth trying, as instances for the problem's layouts; none where no kernel of ours applies."""
    generators = {"tsm2r": _tsm2r, "tsm2l": _tsm2l, "tsmttsm": _tsmttsm}
    shape = problem.shape
    if shape == "other" or float(device.compute_capability) < _LEAST_CAPABILITY:
        return []
    found = []
    for one in generators[shape](problem):
        made = instantiate(one, problem)
        if fits(made, device) and made not in found:
            found.append(made)
    return found


def _stretch(problem: Problem) -> int:
    """Return how many words the tensor cores may add up before a rounded addition.

    They truncate. Of float32 that would show; of halves it is far below the rounding of the result.
    """
    return 8 if problem.dtype == "float32" else 0


def _tsm2r(problem: Problem) -> Iterator[Plan]:
    """Yield plans of a tile of many rows, B beside A in every stage."""
    for line_bytes in (128, 256):
        depth = line_bytes // problem.itemsize
        for tile_m, warps_m, warps_n in (
            *((128, 4, 1), (256, 8, 1), (64, 4, 1), (128, 8, 1), (256, 16, 1)),
            *((128, 4, 2), (256, 8, 2), (256, 4, 2), (64, 2, 2), (128, 2, 2), (128, 2, 4)),
        ):
            if warps_n > 1 and problem.w < 32:
                continue
            tile_n = -(-problem.w // (8 * warps_n)) * 8 * warps_n if warps_n > 1 else problem.w
            for stages, blocks, prepare_b in product((3, 4, 5), (1, 2, 3), (False, True)):
                yield Plan(
                    problem.dtype,
                    tile_m,
                    tile_n,
                    depth,
                    warps_m=warps_m,
                    warps_n=warps_n,
                    stages=stages,
                    blocks=blocks,
                    prepare_b=prepare_b,
                    stretch=_stretch(problem),
                )


def _tsm2l(problem: Problem) -> Iterator[Plan]:
    """Yield plans of tiles of whole rows, B kept in shared memory."""
    for rows in (16, 32, 64, 128, 256):
        for warps, blocks in ((4, 1), (4, 2), (8, 1), (8, 2), (4, 3), (4, 4)):
            for stages in (2, 3, 5):
                stage = rows * warps * problem.k * problem.itemsize
                if 2048 <= stage <= 65_536:
                    yield Plan(
                        problem.dtype,
                        rows * warps,
                        problem.w,
                        problem.k,
                        warps_m=warps,
                        stages=stages,
                        blocks=blocks,
                        keep_b=True,
                        stretch=_stretch(problem),
                    )


def _tsmttsm(problem: Problem) -> Iterator[Plan]:
    """Yield plans of one tile, whose depth blocks and warps share."""
    fold = foldable(problem)
    m, w = problem.m * fold, problem.w * fold
    line = (m + (0 if problem.gram else w)) * problem.itemsize
    for warps_n, warps_k in ((1, 8), (1, 4), (2, 4), (4, 2), (1, 16)):
        if warps_n > 1 and (fold > 1 or problem.gram or w <= 8):
            continue
        tile_n = -(-w // (8 * warps_n)) * 8 * warps_n if warps_n > 1 else w
        least = warps_k * 128 // problem.itemsize
        for stage in (8192, 16_384, 32_768, 65_536):
            depth = max(least, stage // line // least * least)
            for stages in (3, 4, 6):
                for blocks in (1, 2):
                    yield Plan(
                        problem.dtype,
                        m,
                        tile_n,
                        depth,
                        warps_n=warps_n,
                        warps_k=warps_k,
                        stages=stages,
                        blocks=blocks,
                        gram=problem.gram,
                        fold=fold,
                        stretch=_stretch(problem),
                    )


def foldable(problem: Problem) -> int:
    """Return how many lines of both operands of a TSMTTSM can be taken as one, to fill the tensor cores' 16 × 8 blocks.

    Taken so, A and B have fold times the columns, and the product's diagonal blocks add up to the one that is wanted.
    """
    across = not problem.a.along_depth and not problem.b.along_depth
    packed = problem.a.leading == problem.m and problem.b.leading == problem.w
    if not across or not packed:
        return 1
    fold = 1
    while 2 * fold * max(problem.m, problem.w) <= 16:
        fold *= 2
    return fold


def predict(plan: Plan, problem: Problem, device: Device) -> float:
    """Return about how many seconds a plan takes, as the memory, the schedulers or the tensor cores bound it.

    Parameters
    ----------
    plan : Plan
        Of `candidates`.
    problem : Problem
    device : Device

    Returns
    -------
    float

    Notes
    -----
    Of a stage, every warp issues its copies, its reads of fragments, what makes tf32 parts of them, products and
    rounded additions. Bytes on their way are those of all stages but one; Little's law says how many keep the memory
    busy. A barrier each stage leaves the warps waiting for one latency of shared memory and tensor cores, which other
    blocks fill. The constants that are no rates were fitted to 600 plans on an H200.
    """
    size = problem.itemsize
    m, w, k = problem.m * plan.fold, problem.w * plan.fold, -(-problem.k // plan.fold)
    units = plan.units(m, k, w)
    resident = device.multiprocessors * plan.blocks
    rounds = -(-units // min(units, resident))  # of stages, in the busiest block
    stage = plan.depth * (plan.tile_m + (0 if plan.keep_b or plan.gram else plan.tile_n)) * size
    out = plan.tile_m * plan.tile_n * size * plan.depth / max(k, plan.depth)
    need = device.memory_latency / device.clock_hz * device.bandwidth / device.multiprocessors
    on_their_way = plan.blocks * (plan.stages - 1) * stage
    memory = (stage + out) * plan.blocks * device.multiprocessors / (device.bandwidth * min(1.0, on_their_way / need))
    words = {8: 1, 4: 1, 2: 2}[size]
    row_blocks, column_blocks = -(-plan.tile_m // plan.warps_m // 16), -(-plan.tile_n // plan.warps_n // 8)
    pairs = plan.depth / plan.warps_k / (8 * words)
    a_words, b_words = 4 * row_blocks, 2 * column_blocks
    steps = plan.products if size == 4 else 1
    products = steps * row_blocks * column_blocks
    parts = 3 if size == 4 else 1
    shares_parts = plan.keep_b or plan.prepare_b
    taking_apart = parts * a_words + b_words * (0.5 if shares_parts else parts)
    per_pair = taking_apart + products + (4 * row_blocks * column_blocks / 4 if size < 8 else 0)
    warps = plan.threads // 32
    copies = 4 * stage / 512
    epilogue = 6 * row_blocks * column_blocks * warps * plan.depth / max(k, plan.depth)
    preparing = pairs * b_words * plan.warps_n * (parts + 2) if plan.prepare_b else 0
    issue = plan.blocks * (warps * (pairs * per_pair + 60) + preparing + copies + epilogue) / 4
    # Cycles of a multiprocessor's tensor cores for one product, from its rate: 2·16·8·(8·words) flops.
    unit = {8: "float64_tensor", 4: "tf32", 2: problem.dtype}[size]
    flops = 2 * 16 * 8 * 8 * words
    try:
        rate = device.peak(unit) / device.multiprocessors / device.clock_hz
    except ValueError:
        rate = 1024.0
    tensor = plan.blocks * warps * pairs * products * flops / rate
    waiting = 2500 / plan.blocks
    busiest = max(issue, tensor)
    # Loads, issue and tensor cores overlap, but for about a fifth.
    return rounds * (max(memory, busiest / device.clock_hz) + 0.2 * (busiest + waiting) / device.clock_hz)


def plan(problem: Problem, device: Device, table: Sequence[Mapping[str, Any]] | None = None) -> Plan | RowsPlan | str:
    """Choose how a product is computed.

    Parameters
    ----------
    problem : Problem
    device : Device
    table : sequence of mappings, optional
        Measured picks; those that come with tsapps for this device, if not given.

    Returns
    -------
    Plan, RowsPlan or LIBRARY
    """
    tensor_cores = float(device.compute_capability) >= _LEAST_CAPABILITY
    rows = rows_plan(problem) if tensor_cores else rows_plan(problem, most=64)
    if rows is not None:
        return rows
    found = candidates(problem, device)
    if not found:
        return LIBRARY
    pick = _look_up(tuned_table(device.name) if table is None else table, problem)
    if pick is None:
        return min(found, key=lambda one: predict(one, problem, device))
    if pick["library"]:
        return LIBRARY
    return min(found, key=lambda one: (_unlike(one, pick), predict(one, problem, device)))


#: What tells one row of a table from another; `k` and `w` are the largest that it is for.
KEY = ("shape", "dtype", "along", "k", "w")
#: What a row says of the plan; its `stage` is the bytes of A in one.
PICKED = ("warps_m", "warps_n", "warps_k", "stages", "blocks", "prepare_b")


def stage_bytes(plan: Plan) -> int:
    """Return the bytes of A in a stage."""
    return plan.tile_m * plan.depth * ITEMSIZE[plan.dtype]


def _unlike(plan: Plan, pick: Mapping[str, Any]) -> tuple[int, float]:
    """Return how far a plan is from a table's row, whose k and w may be larger."""
    differing = sum(getattr(plan, name) != pick[name] for name in PICKED)
    return differing, abs(log2(stage_bytes(plan) / pick["stage"]))


def _look_up(table: Sequence[Mapping[str, Any]], problem: Problem) -> Mapping[str, Any] | None:
    """Return the table's row for the smallest k and w that hold the problem's, or None."""
    like = "float16" if problem.dtype == "bfloat16" else problem.dtype  # the same bytes and the same instructions
    short = problem.m if problem.shape == "tsmttsm" else problem.k if problem.shape == "tsm2l" else NARROW
    rows = [
        row
        for row in table
        if (row["shape"], row["dtype"], row["along"]) == (problem.shape, like, problem.a.along_depth)
        and row["k"] >= short
        and row["w"] >= problem.w
    ]
    return min(rows, key=lambda row: (row["k"] + row["w"], row["w"]), default=None)


@cache
def tuned_table(device_name: str) -> tuple[Mapping[str, Any], ...]:
    """Return the picks measured on a device of this name: none where there is no table."""
    path = _TUNED / f"{'-'.join(device_name.lower().split())}.json"
    return tuple(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else ()
