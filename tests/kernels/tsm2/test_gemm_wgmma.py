"""gemm_wgmma.cuh, its own source run on the CPU, against float64; and bugs that are put into it."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from exhaustive import every
from faults import fault
from host_cuda import harness
from hypothesis import given, settings
from hypothesis import strategies as st
from products import (
    Case,
    build_plans_together,
    check,
    check_in_any_order,
    check_same_bits,
    check_two_by_two,
    operands,
    placed,
    run,
    sizes_of,
)

from tsapps.kernels.dispatch import compile_any
from tsapps.kernels.plan.mma import WgmmaPlan
from tsapps.kernels.problem import ITEMSIZE

#: Where the arithmetic is what differs from another dtype, two orders of A and B will do.
ORDERS = {"float64": ["CC", "FF"], "float32": ["CC", "CF", "FC", "FF"], "float16": ["CF", "FC"], "bfloat16": ["CC"]}


def plan(dtype, tile_m, tile_n, groups, *, splits=1, loaders=1, job_pairs=2, line_bytes=128, stages=4, gram=False):
    """One group leaves room for a second block."""
    depth, blocks = line_bytes // ITEMSIZE[dtype], 2 if groups * splits == 1 else 1
    return WgmmaPlan(
        dtype,
        tile_m,
        tile_n,
        depth,
        warps_m=4 * groups,
        warps_k=splits,
        stages=stages,
        blocks=blocks,
        gram=gram,
        loaders=loaders,
        job_pairs=job_pairs,
    )


def kept(dtype, tile_m, w, k, groups, *, stages=4):
    """Return a plan of tiles of whole rows."""
    blocks = 2 if groups == 1 else 1
    return WgmmaPlan(dtype, tile_m, w, k, warps_m=4 * groups, stages=stages, blocks=blocks, keep_b=True, loaders=1)


def cases_of(dtype, orders):
    """Tiles that one block has and that several share, ragged edges, gaps between lines; w = 5, 24, 33, 40, 64."""
    yield Case(plan(dtype, 64, 24, 1, job_pairs=4), 150, 300, 24, orders)
    yield Case(
        plan(dtype, 128, 64, 2, loaders=2, stages=6),
        200,
        203,
        64,
        orders,
        (5, 0),
        C="padded",
        alpha=-0.5,
        beta=2.0,
        grid=3,
    )
    yield Case(
        plan(dtype, 192, 33, 3, job_pairs=1, stages=3), 391, 131, 33, orders, (0, 3), (1, 2), C="F", alpha=1.5, grid=7
    )
    yield Case(plan(dtype, 256, 40, 2, loaders=2), 300, 170, 40, orders, C="strided", beta=-1.0, grid=4)
    yield Case(plan(dtype, 128, 5, 1, line_bytes=64, stages=6), 130, 640, 5, orders, C="wide", grid=9)
    # TSM2L: B is kept.
    yield Case(kept(dtype, 128, 64, 32, 2), 700, 32, 64, orders, C="padded", alpha=-0.5, beta=2.0, grid=2)
    yield Case(kept(dtype, 128, 24, 32, 1, stages=3), 391, 20, 24, orders, (3, 0), C="F", grid=3)
    # TSMTTSM: one tile.
    yield Case(plan(dtype, 40, 33, 1), 40, 900, 33, orders, (8, 0), C="F")
    yield Case(
        plan(dtype, 33, 64, 1, splits=2, loaders=2, line_bytes=256, stages=6), 33, 700, 64, orders, beta=0.5, grid=3
    )
    yield Case(plan(dtype, 64, 40, 1, splits=2, line_bytes=256), 64, 2000, 40, orders, C="F")


def grams(dtype):
    for w, orders in ((64, "FC"), (33, "FC"), (48, "CF")):
        yield Case(plan(dtype, w, w, 1, gram=True), w, 500, w, orders, gram=True)
    yield Case(plan(dtype, 64, 64, 1, splits=2, line_bytes=256, gram=True), 64, 900, 64, "FC", gram=True)


CASES = [
    *(case for dtype, every in ORDERS.items() for orders in every for case in cases_of(dtype, orders)),
    *(case for dtype in ORDERS for case in grams(dtype)),
]
HAND = [Case(plan(dtype, 64, 2, 1), 2, 2, 2) for dtype in ORDERS]
SCHEDULED = [*cases_of("float32", "CC"), *cases_of("float16", "FC")]
# A prime, so that those which make test runs are of all tiles, dtypes and orders.
EVERY = 17
SOME = CASES[::EVERY]


@pytest.fixture(scope="module", autouse=True)
def _build_together():
    """Every instance that a test here needs; first those that make test needs."""
    some = [case.instance for case in [*HAND, *SOME, *SCHEDULED[::EVERY]]]
    build_plans_together([*some, *(case.instance for case in CASES)])


@cache
def sizes():
    return sizes_of(case.instance for case in [*HAND, *CASES])


# --- Results --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", HAND, ids=str)
def test_two_by_two_by_hand(case):
    check_two_by_two(case)


@pytest.mark.parametrize("case", every(EVERY, CASES), ids=str)
def test_against_float64(case):
    check(case)


@pytest.mark.parametrize("case", [*HAND, *every(EVERY, CASES)], ids=str)
def test_a_plan_knows_the_kernels_own_sizes(case):
    plan = case.instance
    assert sizes()[plan] == [plan.shared_bytes, plan.tile_sums, plan.threads]


def any_product_of(cases):
    """What a property test draws: a case, sizes, and a schedule."""
    return {
        "case": st.sampled_from([case for case in cases if not case.gram]),
        "m": st.integers(1, 500),
        "k": st.integers(1, 400),
        "grid": st.integers(1, 24),
        "seed": st.integers(0, 2**16),
        "copies": st.sampled_from(["late", "early"]),
    }


def check_any_product(case, m, k, grid, seed, copies):
    # A TSMTTSM's m is the tile's. Gaps leave every line where the instance needs it.
    m, k = case.m if case.m <= 64 else m, min(k, case.plan.depth) if case.plan.keep_b else k
    instance, multiple = case.instance, 16 // ITEMSIZE[case.plan.dtype]
    lengths = (k if case.orders[0] == "C" else m, case.w if case.orders[1] == "C" else k)
    packed = instance.a_packed, instance.b_packed
    pads = tuple(0 if gapless else -length % multiple for length, gapless in zip(lengths, packed, strict=True))
    with harness.schedule(seed=seed, copies=copies):
        check(replace(case, m=m, k=k, pads=pads, grid=grid), seed, instance)


@given(**any_product_of(SOME))
@settings(max_examples=8, deadline=None)
def test_any_sizes_and_schedule(**drawn):
    check_any_product(**drawn)


@pytest.mark.exhaustive
@given(**any_product_of(CASES))
@settings(max_examples=120, deadline=None)
def test_many_sizes_and_schedules(**drawn):
    check_any_product(**drawn)


# --- Schedules ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", every(EVERY, SCHEDULED), ids=str)
def test_same_bits_in_any_schedule(case):
    check_same_bits(case)


@pytest.mark.parametrize("grid", [1, 2, 16, 64])
@pytest.mark.parametrize("case", every(EVERY, SCHEDULED), ids=str)
def test_any_number_of_blocks(case, grid):
    check(replace(case, grid=grid))


def test_float32_is_as_exact_as_sums_of_float32():
    """Three products of tf32: what they leave out is a few roundings of float32, with cancellation or without."""
    case = next(iter(cases_of("float32", "CC")))
    A, B = operands(case)
    for left, right in ((A, B), (abs(A), abs(B))):
        C = np.full((case.m, case.w), np.nan, np.float32)
        run(case, placed(left, "C"), placed(right, "C"), C)
        exact, magnitude = left.astype("f8") @ right.astype("f8"), abs(left).astype("f8") @ abs(right).astype("f8")
        plain = abs((left @ right).astype("f8") - exact) / magnitude
        assert (abs(C - exact) / magnitude).max() <= 2 * max(plain.max(), 2.0**-24)


# --- Faults ---------------------------------------------------------------------------------------------------------

WARPGROUPS, FRAGMENTS, LOADER = (f"kernels/tsm2/{name}.cuh" for name in ("gemm_wgmma", "fragments", "wgmma_producer"))
STREAM = Case(plan("float32", 128, 24, 2, stages=4), 300, 411, 24, pads=(1, 0), C="tall", grid=4)
SHARED = replace(STREAM, m=500, grid=9)
SPLIT = Case(plan("float32", 64, 24, 1, splits=2, line_bytes=256), 64, 1000, 24, grid=3)
STORED = Case(plan("float16", 64, 24, 1), 150, 300, 24, C="wide", grid=2)

#: What is changed in which file, at which occurrence, and a product that shows it.
FAULTS = {
    "B is taken apart before it is whole": (
        LOADER,
        "ptx::barrier_sync(Block::landed(place), Block::kProducers * Block::kGroup);",
        "",
        0,
        STREAM,
    ),
    "a wait for one stage too few": (LOADER, "<Plan::kStages - 3>", "<Plan::kStages - 2>", 0, STREAM),
    "a unit is used before it is prepared": (
        WARPGROUPS,
        "ptx::barrier_sync(full((unit + 1) % 2, group_), kFull);",
        "",
        0,
        STREAM,
    ),
    "the first unit is used before it is prepared": (
        WARPGROUPS,
        "ptx::barrier_sync(full(unit % 2, group_), kFull);",
        "",
        1,
        STREAM,
    ),
    "stages and parts are written over while they are used": (
        LOADER,
        "ptx::barrier_sync(Block::empty(place, group), Block::kEmpty);",
        ";",
        0,
        STREAM,
    ),
    "a unit is given back before it is multiplied": (
        WARPGROUPS,
        "ptx::wgmma_wait<",
        "if (false) ptx::wgmma_wait<",
        0,
        STREAM,
    ),
    "a job is added up before it ends": (WARPGROUPS, "end_job<1>", "end_job<2>", 0, STREAM),
    "the next job's words of A are the last one's": (
        WARPGROUPS,
        "words[(job + 1) % 2], job + 1",
        "words[job % 2], job + 1",
        0,
        STREAM,
    ),
    "a warpgroup reads another's rows": (WARPGROUPS, "group_ % kRowGroups * kMatrices + matrix", "matrix", 0, STREAM),
    "a warpgroup multiplies another's depth": (
        WARPGROUPS,
        "return kSplits > 1 ? group_ / kRowGroups : 0;",
        "return 0;",
        0,
        SPLIT,
    ),
    "sums of the second split are read too early": (
        WARPGROUPS,
        "    sync();\n    if (split() == 0)",
        "    if (split() == 0)",
        0,
        SPLIT,
    ),
    "sums of the last tile": (
        WARPGROUPS,
        "Sum sums[kMatrices][kSumBlocks][4] = {};",
        "static thread_local Sum sums[kMatrices][kSumBlocks][4] = {};",
        0,
        STREAM,
    ),
    "sums of the last unit": (WARPGROUPS, "kAlone && step == 0 && pair == 0", "false", 0, STREAM),
    "told before all have handed over": (
        WARPGROUPS,
        "ptx::barrier_sync(Block::kConsumersBarrier, kConsumers);",
        "",
        0,
        SHARED,
    ),
    "the smaller part of B": (FRAGMENTS, "- left(step);", "- 0 * left(step);", 0, STREAM),
    "rows are stored before they are whole": ("kernels/tsm2/epilogue_staging.cuh", "__syncwarp();", "", 1, STORED),
}


@pytest.mark.parametrize("case", every(4, [STREAM, SHARED, SPLIT, STORED]), ids=["stream", "shared", "split", "stored"])
def test_without_a_fault_nothing_is_found(case):
    check_in_any_order(case)


@pytest.mark.parametrize("name", every(4, FAULTS))
def test_a_fault_is_found(name):
    *change, case = FAULTS[name]
    edit = fault(*change)
    with pytest.raises((AssertionError, harness.KernelError)):
        check_in_any_order(case, edit=edit)


# --- Out of bounds --------------------------------------------------------------------------------------------------


def run_in_exact_memory():
    """For a process under AddressSanitizer: operands whose memory ends with their last element."""
    cases = [replace(STREAM, C="C"), STORED, *cases_of("float16", "CF")]
    build_plans_together((case.instance for case in cases), len(cases))
    for case in cases:
        check(case, flags=harness.SANITIZE)


@pytest.mark.exhaustive
def test_nothing_is_touched_out_of_bounds():
    ended = harness.run_sanitized(f"import runpy; runpy.run_path({__file__!r})['run_in_exact_memory']()")
    assert ended.returncode == 0, ended.stderr


# --- Compiled -------------------------------------------------------------------------------------------------------


@pytest.mark.compile
@pytest.mark.parametrize(
    ("dtype", "tile_m", "tile_n", "groups", "splits", "loaders", "line_bytes"),
    [
        ("float32", 256, 64, 2, 1, 2, 64),
        ("float32", 192, 16, 3, 1, 1, 128),
        ("float32", 256, 33, 2, 1, 2, 128),
        ("float32", 64, 64, 1, 2, 2, 256),
        ("float16", 256, 64, 2, 1, 2, 128),
        ("bfloat16", 128, 24, 2, 1, 2, 128),
    ],
)
def test_compiles_without_spills(dtype, tile_m, tile_n, groups, splits, loaders, line_bytes):
    made = plan(dtype, tile_m, tile_n, groups, splits=splits, loaders=loaders, line_bytes=line_bytes)
    used = compile_any(Case(made, 20_480, 20_480, tile_n).instance, "sm_90a")
    assert used.stack == used.spill_stores == used.spill_loads == 0
    assert not used.waits
    # What setmaxnreg deals out again: with fewer, those who ask for more would wait for ever.
    assert used.registers == made.registers[0]
