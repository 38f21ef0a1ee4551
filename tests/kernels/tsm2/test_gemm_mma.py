"""gemm_mma.cuh, its own source run on the CPU, against float64."""

from dataclasses import replace
from functools import cache

import pytest
from exhaustive import every
from host_cuda import harness
from hypothesis import given, settings
from hypothesis import strategies as st
from products import (
    ARITHMETIC,
    RESULTS,
    Case,
    build_plans_together,
    check,
    check_same_bits,
    check_two_by_two,
    sizes_of,
)

from tsapps.kernels.plan.mma import MmaPlan, instantiate
from tsapps.kernels.problem import ITEMSIZE, Layout, Problem

# Orders of A and B. Where the arithmetic is what differs from another, two will do.
ORDERS = {("float32", 6): ["CC", "FF"], ("bfloat16", 3): ["CC", "FC"]}
EVERY_ORDER = ["CC", "CF", "FC", "FF"]


# --- Cases ----------------------------------------------------------------------------------------------------------


def line(dtype):
    """Elements in 128 bytes."""
    return 128 // ITEMSIZE[dtype]


def tsm2r(dtype, products, orders):
    """m and k large: tiles of rows, some shared by blocks; w = 1, 5, 16, 33, 40; rows of 16 bytes and ragged ones."""
    depth, common = line(dtype), {"products": products}
    yield Case(MmaPlan(dtype, 64, 16, depth, warps_m=4, stages=3, **common), 150, 200, 16, orders)
    yield Case(
        MmaPlan(dtype, 32, 5, depth, warps_m=2, **common),
        70,
        131,
        5,
        orders,
        (3, 1),
        C="F",
        alpha=-0.5,
        beta=2.0,
        grid=9,
    )
    plan = MmaPlan(dtype, 64, 48, depth, warps_m=2, warps_n=2, stages=3, prepare_b=True, **common)
    yield Case(plan, 100, 99, 40, orders, C="strided", alpha=1.5, grid=4)
    plan = MmaPlan(dtype, 32, 33, 2 * depth, warps_m=1, stages=3, prepare_b=True, interval=0, **common)
    yield Case(plan, 77, 300, 33, orders, (5, 2), (1, 3), C="wide", beta=-1.0)
    yield Case(MmaPlan(dtype, 32, 1, depth, warps_m=2, stages=2, **common), 65, 150, 1, orders, grid=3)


def tsm2l(dtype, products, orders):
    """m large, all of B kept: k and w = 1, 2, 3, 5, 8, 12, 33, 40."""
    for k, w, rows, warps, teams, pads, C, scale in (
        (2, 3, 32, 1, 4, (0, 0), "C", (1.0, 0.0)),
        (12, 12, 64, 4, 1, (0, 0), "C", (2.0, -0.5)),
        (33, 33, 16, 1, 2, (0, 0), "F", (1.0, 0.0)),
        (5, 8, 32, 1, 3, (3, 1), "C", (-1.0, 1.0)),
        (24, 40, 64, 2, 1, (8, 8), "C", (1.0, 0.0)),
        (1, 1, 32, 2, 1, (0, 0), "C", (1.0, 0.0)),
    ):
        plan = MmaPlan(dtype, rows, w, k, warps_m=warps, teams=teams, stages=3, keep_b=True, products=products)
        yield Case(plan, 323, k, w, orders, pads, C=C, alpha=scale[0], beta=scale[1], grid=3)
    # Columns from multiples of 16 bytes on: a tile's rows in one line of them and in several, the last tile's not all.
    for k, w, rows, warps, beta in ((12, 33, 16, 1, 0.0), (33, 24, 128, 1, -0.5), (9, 5, 64, 2, 0.0)):
        plan = MmaPlan(dtype, rows, w, k, warps_m=warps, teams=2 // warps, stages=2, keep_b=True, products=products)
        yield Case(plan, 328, k, w, orders, C="F", alpha=0.5, beta=beta, grid=2)


def tsmttsm(dtype, products, orders):
    """Only k large: one tile that blocks and warps share; m and w = 2, 3, 5, 33, 48, 64."""
    depth, common = line(dtype), {"products": products, "stages": 3}
    yield Case(MmaPlan(dtype, 3, 2, 2 * depth, warps_k=2, **common), 3, 700, 2, orders)
    yield Case(
        MmaPlan(dtype, 33, 5, 4 * depth, warps_k=4, **common), 33, 999, 5, orders, (0, 3), C="F", alpha=3.0, beta=1.0
    )
    yield Case(MmaPlan(dtype, 48, 64, 2 * depth, warps_n=2, warps_k=2, **common), 48, 500, 64, orders, (8, 0), C="wide")


def folded(dtype, products):
    """AᵀD of few columns: lines taken as one."""
    for m, w, fold, k in ((4, 4, 4, 1000), (2, 3, 4, 900), (5, 3, 2, 640), (1, 1, 16, 4096)):
        plan = MmaPlan(dtype, m * fold, w * fold, line(dtype), warps_k=2, stages=3, products=products, fold=fold)
        yield Case(plan, m, k, w, "FC", alpha=-1.0, beta=0.5, C="F")


def grams(dtype, products):
    """DᵀD with one copy of D in shared memory, row- and column-major."""
    for w, fold in ((12, 1), (33, 1), (4, 4)):
        for orders in ("FC", "CF") if fold == 1 else ("FC",):
            plan = MmaPlan(
                dtype,
                w * fold,
                w * fold,
                2 * line(dtype),
                warps_k=2,
                stages=3,
                gram=True,
                products=products,
                fold=fold,
            )
            yield Case(plan, w, 600, w, orders, gram=True)


def by_hand(dtype, products):
    return Case(MmaPlan(dtype, 16, 2, 2, stages=2, keep_b=True, products=products), 2, 2, 2)


CASES = [
    *(
        case
        for of in (tsm2r, tsm2l, tsmttsm)
        for a in ARITHMETIC
        for orders in ORDERS.get(a, EVERY_ORDER)
        for case in of(*a, orders)
    ),
    *(case for of in (folded, grams) for a in ARITHMETIC for case in of(*a)),
]
HAND = [by_hand(*a) for a in ARITHMETIC]
#: One or two of each shape, and all epilogues.
SCHEDULED = [
    case
    for a in (("float64", 3), ("float32", 3), ("bfloat16", 3))
    for case in [*tsm2r(*a, "CC"), *tsm2l(*a, "FC"), *tsmttsm(*a, "FC"), *list(folded(*a))[:1], *list(grams(*a))[:2]]
]
# Primes, so that those which make test runs are of all shapes, arithmetics, orders and epilogues.
EVERY, EVERY_SCHEDULED = 31, 13


def with_stride(plan):
    """Return an instance whose stride of depths follows from its lines, as `instantiate` has it."""
    a, b = Layout(plan.a_along, 4096, 16, 16), Layout(plan.b_along, 4096, 16, 16)
    return replace(plan, stride=instantiate(plan, Problem(4096, 4096, 4096, plan.dtype, a, b)).stride)


#: Instances that the property test draws from: their units of copy and their epilogues say how the operands may lie.
PLANS = [
    with_stride(plan)
    for plan in (
        MmaPlan("float64", 32, 8, 16, warps_m=2, stages=3, a_unit=8, b_unit=8, store="StorePairs"),
        MmaPlan("float64", 12, 20, 32, warps_k=2, a_along=False),
        MmaPlan("float64", 33, 33, 16, warps_k=2, gram=True, a_along=False, a_unit=8, b_unit=8, store="StoreColumns"),
        MmaPlan("float32", 48, 24, 32, warps_m=3, stages=3, prepare_b=True, b_unit=4, store="StorePairs"),
        MmaPlan("float32", 64, 5, 16, warps_m=2, stages=2, a_along=False, b_along=True, a_unit=8, b_unit=8, products=6),
        MmaPlan("float32", 33, 7, 64, warps_k=4, stages=3, a_along=False, a_unit=4, b_unit=4, store="StoreColumns"),
        MmaPlan("float32", 32, 9, 20, teams=3, stages=3, keep_b=True, b_unit=4),
        MmaPlan("float32", 64, 3, 5, warps_m=2, stages=3, keep_b=True, a_packed=True, b_unit=4),
        MmaPlan("float32", 12, 8, 32, warps_k=2, stages=3, fold=4, a_along=False, store="StoreFolded"),
        MmaPlan("float16", 32, 32, 32, warps_m=2, warps_n=2, b_along=True, interval=0, store="StorePairs"),
        MmaPlan("float16", 32, 7, 8, teams=2, keep_b=True, a_unit=2, b_packed=True, b_unit=8, store="StoreLines"),
        MmaPlan("float32", 64, 12, 16, warps_m=2, stages=2, keep_b=True, a_along=False, a_unit=4, store="StoreLines"),
        MmaPlan("bfloat16", 16, 6, 32, warps_k=2, stages=3, a_along=False, a_unit=2, b_unit=2),
        MmaPlan("bfloat16", 64, 16, 64, warps_m=4, stages=3, interval=0, a_unit=4, b_unit=8),
        MmaPlan(
            "bfloat16", 6, 4, 64, warps_k=2, fold=2, a_along=False, a_packed=True, b_packed=True, store="StoreFolded"
        ),
    )
]
#: The results that an epilogue can store.
STORES = {"Store": RESULTS, "StorePairs": ("C", "tall", "padded"), "StoreFolded": RESULTS}
STORES |= dict.fromkeys(("StoreColumns", "StoreLines"), ("F",))


@pytest.fixture(scope="module", autouse=True)
def _build_together():
    """Every instance that a test here needs; first those that make test needs."""
    some = [case.instance for case in [*HAND, *CASES[::EVERY], *SCHEDULED[::EVERY_SCHEDULED]]]
    build_plans_together([*some, *PLANS, *(case.instance for case in CASES)])


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


# --- Properties -----------------------------------------------------------------------------------------------------


@st.composite
def drawn(draw):
    """Draw an instance of `PLANS`, and a product whose operands lie so that it is made for them."""
    plan = draw(st.sampled_from(PLANS))
    size = ITEMSIZE[plan.dtype]
    m, k, w = draw(st.integers(1, 150)), draw(st.integers(1, 300)), draw(st.integers(1, min(64, 3 * plan.tile_n)))
    if plan.keep_b:
        k, w = draw(st.integers(1, plan.depth)), draw(st.integers(1, plan.tile_n))
    if plan.gram:
        m = draw(st.integers(1, plan.tile_m))
    if plan.fold > 1:
        m, w = plan.tile_m // plan.fold, plan.tile_n // plan.fold
    # A packed tile is whole lines.
    if plan.a_packed:
        m, k = (m, plan.depth) if plan.a_along else (plan.tile_m // plan.fold, k)
    if plan.b_packed:
        k, w = (plan.depth, w) if plan.b_along else (k, plan.tile_n // plan.fold)
    if plan.gram:
        w = m
    if plan.store == "StorePairs":
        blocks = 16 if size == 2 else 8
        w = -(-w // blocks) * blocks
    pads, offsets = [], []
    for along, outer, unit, packed in (
        (plan.a_along, m, plan.a_unit, plan.a_packed),
        (plan.b_along, w, plan.b_unit, plan.b_packed),
    ):
        length, elements = k if along else outer, unit // size
        gapless = packed or plan.fold > 1
        pads.append(0 if gapless else -length % elements + elements * draw(st.integers(0, 3)))
        offsets.append(elements * draw(st.integers(0, 3)))
    if plan.gram:
        pads[1], offsets[1] = pads[0], offsets[0]
    alpha, beta = draw(st.sampled_from([(1.0, 0.0), (-0.5, 0.0), (2.0, 1.0), (0.0, 3.0), (1.5, -0.25)]))
    return Case(
        plan,
        m,
        k,
        w,
        ("C" if plan.a_along else "F") + ("F" if plan.b_along else "C"),
        tuple(pads),
        tuple(offsets),
        gram=plan.gram,
        C=draw(st.sampled_from(STORES[plan.store])),
        alpha=alpha,
        beta=beta,
        grid=draw(st.integers(1, 24)),
    )


ANY_PRODUCT = {"case": drawn(), "seed": st.integers(0, 2**16), "copies": st.sampled_from(["late", "early"])}


@given(**ANY_PRODUCT)
@settings(max_examples=8, deadline=None)
def test_any_sizes_layouts_and_schedule(**drawn):
    check_any_product(**drawn)


@pytest.mark.exhaustive
@given(**ANY_PRODUCT)
@settings(max_examples=400, deadline=None)
def test_many_sizes_layouts_and_schedules(**drawn):
    check_any_product(**drawn)


def check_any_product(case, seed, copies):
    plan, made = case.plan, case.instance
    # The operands lie as the instance needs it: `instantiate` would make the same, or one with larger pieces.
    assert (made.stride, made.a_along, made.b_along) == (plan.stride, plan.a_along, plan.b_along)
    for side in "ab":
        packed, was_packed = getattr(made, f"{side}_packed"), getattr(plan, f"{side}_packed")
        assert packed >= was_packed
        if packed == was_packed:
            assert getattr(made, f"{side}_unit") % getattr(plan, f"{side}_unit") == 0
    with harness.schedule(seed=seed, copies=copies):
        check(case, seed, plan)


# --- Schedules ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", every(EVERY_SCHEDULED, SCHEDULED), ids=str)
def test_same_bits_in_any_schedule(case):
    check_same_bits(case)


@pytest.mark.each_choice
@pytest.mark.parametrize("grid", [1, 2, 7, 64])
@pytest.mark.parametrize("case", every(EVERY_SCHEDULED, SCHEDULED), ids=str)
def test_any_number_of_blocks(case, grid):
    check(replace(case, grid=grid))


@pytest.mark.each_choice
@pytest.mark.parametrize("grid", [15, 16, 17, 32, 33, 49])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_many_blocks_share_a_tile(dtype, grid):
    """Their sums are added 16 at a time, then those."""
    two, split = list(tsmttsm(dtype, 3, "FC"))[:2]
    check(replace(two, k=50 * two.plan.depth - 1, grid=grid))
    check(replace(split, k=33 * split.plan.depth + 1, grid=grid))
    # Blocks that end one tile and begin the next.
    first = next(tsm2r(dtype, 3, "CC"))
    check(replace(first, m=3 * first.plan.tile_m - 5, k=26 * first.plan.depth, grid=grid))
