"""The choice of a kernel, without a GPU: what may run where, what a table decides, what follows from the layouts."""

from dataclasses import replace
from math import gcd

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tsapps.kernels import choose
from tsapps.kernels.candidates import candidates, fits, foldable, registers
from tsapps.kernels.choose import KEY, LIBRARY, key_of, pick_of, plan, promising
from tsapps.kernels.device import KNOWN
from tsapps.kernels.plan import LibraryAlgorithm, Plan, WarpgroupPlan, instantiate
from tsapps.kernels.problem import ITEMSIZE, NARROW, Layout, Problem
from tsapps.kernels.simple import ColumnsPlan, FewPlan, RowsPlan, SplitPlan, WidePlan

DTYPES = list(ITEMSIZE)
OLD = [name for name, device in KNOWN.items() if float(device.compute_capability) < 8]
NEW = [name for name in KNOWN if name not in OLD]
LIES = ["packed", "rows", "aligned columns", "columns", "any"]


def layout(along, outer, depth, size, pad=0, base=16):
    """Return the layout of an operand with `pad` elements between its lines, which begins at a multiple of `base`."""
    leading = (depth if along else outer) + pad
    return Layout(along, leading, gcd(base, leading * size), base)


def problem(m, k, w, dtype="float32", a_along=True, b_along=False, c="packed", pads=(0, 0), bases=(16, 16), gram=False):
    size = ITEMSIZE[dtype]
    a, b = layout(a_along, m, k, size, pads[0], bases[0]), layout(b_along, w, k, size, pads[1], bases[1])
    return Problem(m, k, w, dtype, a, b, gram, c)


TSM2R, TSM2L, TSMTTSM = problem(20_000, 20_000, 8), problem(10**6, 32, 32), problem(32, 10**6, 8, a_along=False)


@st.composite
def problems(draw):
    """Draw any problem whose operands lie at multiples of an element, on either side of what is narrow."""
    sizes = st.one_of(st.integers(1, 70), st.integers(1, 10**7))
    m, k = draw(sizes), draw(sizes)
    w = draw(st.integers(1, min(m, NARROW + 2)))
    dtype = draw(st.sampled_from(DTYPES))
    bases = st.sampled_from([base for base in (2, 4, 8, 16) if base >= ITEMSIZE[dtype]])
    pads = st.one_of(st.just(0), st.integers(0, 40))
    along = draw(st.booleans())
    if m <= NARROW and draw(st.booleans()):  # B is Aᵀ
        made = problem(m, k, m, dtype, along, along, "packed", (draw(pads),) * 2, (draw(bases),) * 2, gram=True)
        return replace(made, b=made.a)
    rest = (draw(pads), draw(pads)), (draw(bases), draw(bases))
    return problem(m, k, w, dtype, along, draw(st.booleans()), draw(st.sampled_from(LIES)), *rest)


# --- What may run where ---------------------------------------------------------------------------------------------


@given(problem=problems(), name=st.sampled_from(list(KNOWN)))
@settings(max_examples=200, deadline=None)
def test_every_candidate_fits_and_the_choice_is_one_of_them(problem, name):
    device = KNOWN[name]
    found = candidates(problem, device)
    for one in found:
        if isinstance(one, Plan):
            shared = one.shared_bytes
            assert fits(one, device)
            assert shared <= device.shared_memory_per_block
            # The system keeps 1 KiB a block.
            assert one.blocks * (shared + 1024) <= device.shared_memory
            assert one.blocks * one.threads <= device.max_threads
            assert one.threads <= 1024
            if isinstance(one, WarpgroupPlan):
                begin, loading, multiplying = one.registers
                assert registers(one) <= multiplying
                dealt = 32 * one.warps * multiplying + 128 * one.loaders * loading
                assert dealt <= begin * one.threads <= device.registers // one.blocks
            else:
                assert registers(one) * one.blocks * one.threads <= device.registers
            assert instantiate(one, problem) == one
    assert len(set(found)) == len(found)
    chosen = plan(problem, device)
    assert chosen in found if found else chosen == LIBRARY
    assert plan(problem, device) == chosen


@given(problem=problems(), name=st.sampled_from(NEW))
@settings(max_examples=100, deadline=None)
def test_a_plan_covers_its_problem(problem, name):
    for one in candidates(problem, KNOWN[name]):
        if not isinstance(one, Plan):
            assert one.dtype == problem.dtype
            if isinstance(one, SplitPlan):
                assert one.splits * one.per_split >= problem.k > (one.splits - 1) * one.per_split
            elif isinstance(one, FewPlan):
                assert (one.m, one.w) == (problem.m, problem.w)
            else:
                assert (one.k, one.w) == (problem.k, problem.w)
            continue
        assert one.dtype == problem.dtype
        assert one.tile_n >= problem.w * one.fold or problem.shape == "tsm2r"
        if one.keep_b:
            assert (one.depth, one.tile_n) == (problem.k, problem.w)
        if one.gram:
            assert problem.gram
            assert one.tile_m == one.tile_n == problem.m * one.fold
        assert one.units(problem.m * one.fold, -(-problem.k // one.fold), problem.w * one.fold) >= 1


@pytest.mark.parametrize("name", NEW)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("w", [1, 2, 3, 5, 16, 33, 64])
def test_no_narrow_product_is_without_a_plan(name, dtype, w):
    """Whatever its layout; but for float64, whose widest B leaves no room in shared memory."""
    if dtype == "float64" and w > 16:
        return
    for m, k in ((20_000, 20_000), (10**6, 64), (64, 10**6)):
        for along in (True, False):
            for base in (ITEMSIZE[dtype], 16):
                assert candidates(problem(m, k, w, dtype, along, not along, "any", (1, 1), (base, base)), KNOWN[name])


@pytest.mark.parametrize("name", KNOWN)
def test_a_product_that_is_not_narrow_is_the_librarys(name):
    wide = problem(10**4, 10**4, NARROW + 1)
    assert wide.shape == "other"
    assert candidates(wide, KNOWN[name]) == []
    assert plan(wide, KNOWN[name]) == LIBRARY


@pytest.mark.parametrize("name", OLD)
@pytest.mark.parametrize("dtype", DTYPES)
def test_without_tensor_cores_only_the_simple_kernels_run(name, dtype):
    """And not even they for bfloat16, whose conversions came with compute capability 8.0."""
    for one in (TSM2R, TSMTTSM, TSM2L, problem(10**6, 4, 4), problem(10**6, 4, 4, a_along=False, c="aligned columns")):
        chosen = plan(replace(one, dtype=dtype), KNOWN[name])
        assert chosen == LIBRARY or (not isinstance(chosen, Plan) and dtype != "bfloat16")
    assert isinstance(plan(problem(10**6, 4, 4), KNOWN[name]), RowsPlan)


@pytest.mark.parametrize("one", [TSM2R, TSM2L, TSMTTSM], ids=lambda one: one.shape)
def test_promising_plans_are_the_candidates_that_are_predicted_fastest(one):
    device = KNOWN["H200"]
    few, found = promising(one, device, 5), candidates(one, device)
    assert set(few) <= set(found)
    plans = [made for made in few if isinstance(made, Plan)]
    seconds = [choose.predict(made, one, device) for made in plans]
    assert len(plans) == 5
    assert seconds == sorted(seconds)
    assert seconds[0] == min(choose.predict(made, one, device) for made in found if isinstance(made, Plan)) > 0


# --- Tables ---------------------------------------------------------------------------------------------------------

H200 = KNOWN["H200"]


def row(one, picked):
    """Return a table's row for a problem."""
    return key_of(one) | pick_of(picked)


@pytest.mark.parametrize("one", [TSM2R, TSM2L, TSMTTSM], ids=lambda one: one.shape)
def test_a_row_decides(one):
    found = [made for made in candidates(one, H200) if isinstance(made, Plan)]
    for pick in (found[0], found[len(found) // 2], found[-1]):
        assert plan(one, H200, [row(one, pick)]) == pick
    assert plan(one, H200, [row(one, LIBRARY)]) == LIBRARY
    assert plan(one, H200, []) == plan(one, H200)  # no table is named H200


def test_a_row_may_name_a_simple_kernel():
    one = problem(10**6, 4, 4)
    rows = [made for made in candidates(one, H200) if isinstance(made, RowsPlan)]
    assert len(rows) == 2
    for pick in rows:
        assert plan(one, H200, [row(one, pick)]) == pick
    # Where C lies otherwise, that kernel does not apply, and one that does is taken.
    assert isinstance(plan(replace(one, c="any"), H200, [row(one, rows[0])]), Plan)


def test_bfloat16_takes_the_rows_of_float16():
    half, brain = replace(TSM2L, dtype="float16"), replace(TSM2L, dtype="bfloat16")
    pick = candidates(half, H200)[-1]
    table = [row(half, pick), row(TSM2L, LIBRARY)]
    assert plan(brain, H200, table) == replace(pick, dtype="bfloat16")
    assert plan(replace(TSM2L, dtype="float64"), H200, table) == plan(replace(TSM2L, dtype="float64"), H200, [])


@pytest.mark.parametrize(
    ("k", "w", "taken"),
    [
        (32, 32, (32, 32)),
        (31, 32, (32, 32)),
        (16, 4, (16, 16)),
        (17, 4, (32, 32)),
        (33, 4, (64, 64)),
        (64, 64, (64, 64)),
    ],
)
def test_the_smallest_row_that_holds_a_product_is_taken(k, w, taken):
    rows = [
        row(one, next(made for made in candidates(one, H200) if isinstance(made, Plan)))
        for one in (problem(10**6, size, size) for size in (64, 16, 32))
    ]
    found = choose._look_up(rows, problem(10**6, k, w))
    assert (found["k"], found["w"]) == taken


def test_where_the_library_was_faster_says_nothing_of_other_sizes():
    large = problem(10**6, 64, 64)
    ours = row(large, candidates(large, H200)[0])
    table = [row(problem(10**6, 32, 32), LIBRARY), ours]
    assert choose._look_up(table, problem(10**6, 32, 32))["kernel"] == LIBRARY
    for k, w in ((31, 32), (32, 31), (33, 33)):
        assert choose._look_up(table, problem(10**6, k, w)) == ours
    assert choose._look_up(table[:1], problem(10**6, 31, 32)) is None


def test_where_the_library_was_faster_says_nothing_of_a_result_that_lies_otherwise():
    by_rows, by_columns = (problem(10**6, 32, 32, c=c) for c in ("packed", "aligned columns"))
    for one, other in ((by_rows, by_columns), (by_columns, by_rows)):
        table = [row(one, LIBRARY)]
        assert plan(one, H200, table) == LIBRARY
        assert plan(other, H200, table) == plan(other, H200, []) != LIBRARY


def test_of_rows_for_the_same_k_and_w_the_one_of_the_nearest_length_is_taken():
    rows = [row(problem(m, 32, 32), LIBRARY) for m in (10**4, 10**6, 10**7)]
    for m, taken in ((500, 10**4), (50_000, 10**4), (300_000, 10**6), (10**8, 10**7)):
        assert choose._look_up(rows, problem(m, 32, 32))["m"] == taken


def test_of_equally_large_products_the_one_of_the_nearest_depth_is_taken():
    rows = [row(problem(m, 36 * 10**8 // m, 8), LIBRARY) for m in (20_000, 60_000, 180_000)]
    for m, taken in ((15_000, 20_000), (60_000, 60_000), (100_000, 60_000), (300_000, 180_000)):
        found = choose._look_up(rows, problem(m, 36 * 10**8 // m, 8))
        assert found["depth"] == 36 * 10**8 // taken


def test_an_algorithm_of_the_library_is_for_the_very_sizes_and_layouts():
    ours = candidates(TSM2R, H200)[0]
    table = [row(TSM2R, ours) | pick_of(LibraryAlgorithm(3, True))]
    assert plan(TSM2R, H200, table) == LibraryAlgorithm(3, True)
    others = [
        *(problem(m, k, 8) for m, k in ((20_001, 20_000), (20_000, 20_001), (10_000, 40_000))),
        problem(20_000, 20_000, 8, c="aligned columns"),
        *(problem(20_000, 20_000, 8, c=c) for c in ("any", "rows", "columns")),
        *(problem(20_000, 20_000, 8, bases=bases) for bases in ((8, 16), (16, 8))),
        problem(20_000, 20_000, 8, pads=(4, 0)),
        problem(20_000, 20_000, 8, pads=(0, 4)),
        problem(20_000, 20_000, 8, b_along=True),
    ]
    for one in others:
        picked = plan(one, H200, table)
        assert picked.kernel_name == ours.kernel_name
        assert picked == plan(one, H200, [row(TSM2R, ours)])


def test_a_pick_for_float16_is_for_bfloat16_too_but_no_algorithm():
    half = problem(20_000, 20_000, 8, "float16")
    other = replace(half, dtype="bfloat16")
    table = [row(half, LIBRARY) | pick_of(LibraryAlgorithm(2))]
    assert plan(other, H200, table) == LIBRARY
    # A row may say no more than that.
    assert plan(other, H200, [*table, row(other, LibraryAlgorithm(5))]) == LibraryAlgorithm(5, False)


@pytest.mark.parametrize("other", ["shape", "dtype", "along", "k", "w"])
def test_without_a_row_the_model_decides(other):
    """A row that is for another shape, dtype or layout, or for smaller products, says nothing."""
    one = {
        "shape": TSM2R,
        "dtype": replace(TSM2L, dtype="float64"),
        "along": problem(10**6, 32, 32, a_along=False),
        "k": problem(10**6, 31, 32),
        "w": problem(10**6, 32, 31),
    }[other]
    assert plan(TSM2L, H200, [row(one, LIBRARY)]) == plan(TSM2L, H200, []) != LIBRARY


def test_a_key_says_what_a_row_is_for():
    assert tuple(key_of(TSM2L)) == KEY
    about = {"dtype": "float32", "c_by_rows": True}
    sizes = {"k": 32, "w": 32, "m": 10**6, "depth": 32}
    assert key_of(TSM2L) == {"shape": "tsm2l", "along": True, **sizes, **about}
    sizes = {"k": 32, "w": 8, "m": 32, "depth": 10**6}
    assert key_of(TSMTTSM) == {"shape": "tsmttsm", "along": False, **sizes, **about}
    # Of TSM2R both are long: any k is one row's.
    sizes = {"k": NARROW, "w": 8, "m": 400, "depth": 900}
    assert key_of(problem(400, 900, 8)) == {"shape": "tsm2r", "along": True, **sizes, **about}


# --- Plans that follow from the layouts -----------------------------------------------------------------------------


def simple(one):
    """Return the plans of the kernels without tensor cores."""
    return [made for made in candidates(one, H200) if not isinstance(made, Plan)]


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({}, RowsPlan),
        ({"c": "rows"}, None),
        ({"pads": (1, 0)}, None),
        ({"pads": (0, 1), "b_along": True}, RowsPlan),  # B may have any strides
        ({"bases": (8, 16)}, None),
        ({"m": NARROW}, None),
        ({"k": 9, "w": 8}, None),  # more of B than a thread keeps
        ({"k": 8, "w": 8}, RowsPlan),
        ({"a_along": False}, None),
        ({"a_along": False, "c": "aligned columns"}, ColumnsPlan),
        ({"a_along": False, "c": "aligned columns", "pads": (4, 1)}, ColumnsPlan),
        ({"a_along": False, "c": "aligned columns", "pads": (1, 0)}, None),
        ({"a_along": False, "c": "columns"}, None),
        ({"a_along": False, "c": "aligned columns", "k": 33, "w": 33}, ColumnsPlan),
        ({"a_along": False, "c": "aligned columns", "k": 34, "w": 34}, None),  # more than a thread keeps
        ({"a_along": False, "c": "aligned columns", "k": 64, "w": 2}, ColumnsPlan),
        ({"a_along": False, "c": "any", "k": 1000}, SplitPlan),  # any result
        ({"a_along": False, "c": "any", "k": 1000, "w": 5}, None),
        ({"a_along": False, "c": "any", "k": 1000, "pads": (1, 0)}, None),
        ({"c": "any", "k": 1000}, None),
    ],
)
def test_when_a_simple_kernel_applies(change, kind):
    found = simple(problem(**{"m": 1000, "k": 4, "w": 4} | change))
    assert {type(one) for one in found} == ({kind} if kind else set())


@given(k=st.integers(1, NARROW), w=st.integers(1, NARROW), dtype=st.sampled_from(DTYPES))
def test_pieces_of_rows_are_whole_vectors_that_a_thread_can_hold(k, w, dtype):
    for one in simple(problem(1000, k, w, dtype)):
        if isinstance(one, WidePlan):
            vectors = one.threads * 16 // ITEMSIZE[dtype]
            assert vectors == one.rows * w
            assert one.threads <= 256
            assert k <= 8
            continue
        piece = one.rows * k * ITEMSIZE[dtype]
        assert piece % 16 == 0
        assert piece <= 128
        assert k * w <= 64


@pytest.mark.parametrize(
    ("m", "w", "change", "fold"),
    [
        (1, 1, {}, 16),
        (2, 1, {}, 8),
        (4, 4, {}, 4),
        (5, 3, {}, 2),
        (8, 8, {}, 2),
        (9, 1, {}, 1),
        (4, 4, {"pads": (1, 0)}, 1),
        (4, 4, {"pads": (0, 1)}, 1),
        (4, 4, {"a_along": True}, 1),
        (4, 4, {"b_along": True}, 1),
    ],
)
def test_lines_are_folded_where_they_are_short_and_without_gaps(m, w, change, fold):
    assert foldable(problem(m, 10**6, w, **{"a_along": False} | change)) == fold


PLAN = Plan("float32", 64, 12, 32, warps_m=4)


@pytest.mark.parametrize(
    ("made", "one", "expected"),
    [
        # A row-major with rows of 1000·4 bytes, B row-major with rows of 12·4.
        (PLAN, problem(500, 1000, 12), {"a_unit": 16, "b_unit": 16, "a_packed": False, "b_packed": False, "stride": 1}),
        # Rows of A are 1001·4 bytes apart, those of B 14·4.
        (PLAN, problem(500, 1001, 12, pads=(0, 2)), {"a_unit": 4, "b_unit": 8, "a_packed": False, "b_packed": False}),
        # A begins at a multiple of 8 bytes.
        (PLAN, problem(500, 1000, 12, bases=(8, 16)), {"a_unit": 8, "b_unit": 16}),
        # A stage is whole rows of A, of 5·4 bytes, and all of B: each is one piece.
        (
            Plan("float32", 64, 3, 5, keep_b=True),
            problem(500, 5, 3),
            {"a_unit": 16, "a_packed": True, "b_unit": 4, "b_packed": False},  # 60 bytes of B are no whole vectors
        ),
        (Plan("float32", 64, 3, 8, keep_b=True), problem(500, 8, 3), {"b_unit": 16, "b_packed": True}),
        (Plan("float32", 64, 3, 5, keep_b=True), problem(500, 5, 3, bases=(4, 4)), {"a_unit": 4, "a_packed": True}),
        (Plan("float32", 64, 3, 5, keep_b=True), problem(500, 5, 3, pads=(1, 0)), {"a_unit": 4, "a_packed": False}),
        # The next unit goes on along rows of A of which this one has 128 bytes; not of 256, nor of whole rows.
        (PLAN, problem(500, 1000, 12), {"a_prefetches": True, "b_prefetches": False}),
        (replace(PLAN, depth=64), problem(500, 1000, 12), {"a_prefetches": False}),
        (PLAN, problem(500, 1000, 12, a_along=False, b_along=True), {"a_prefetches": False, "b_prefetches": True}),
        (Plan("float32", 64, 3, 8, keep_b=True), problem(500, 8, 3), {"a_prefetches": False}),
        (Plan("float32", 64, 3, 8, keep_b=True), problem(500, 8, 3, pads=(8, 0)), {"a_prefetches": False}),
        # Columns of 64 floats: lanes of one warp read rows of the depth that are two apart.
        (PLAN, problem(5000, 1000, 12, a_along=False), {"a_along": False, "stride": 8 // gcd(8, 64) * 2}),
        # Rows of 33 floats fall in banks one apart, and of 33 doubles as well.
        (Plan("float32", 64, 33, 33, keep_b=True), problem(500, 33, 33), {"stride": 8, "a_packed": True}),
        # Four lines of 3 halves are taken as one of 24 bytes.
        (
            Plan("float16", 12, 8, 64, fold=4),
            problem(3, 4000, 2, "float16", a_along=False),
            {"a_unit": 16, "a_packed": True, "b_unit": 16, "b_packed": False, "store": "StoreFolded"},
        ),
    ],
)
def test_units_packing_and_stride_by_hand(made, one, expected):
    found = instantiate(made, one)
    assert {name: getattr(found, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("w", "tile_n", "warps_n", "dtype", "c", "store"),
    [
        (8, 8, 1, "float32", "packed", "StorePairs"),
        (8, 8, 1, "float32", "rows", "StorePairs"),
        (8, 8, 1, "float32", "any", "Store"),
        (8, 8, 1, "float16", "packed", "Store"),
        (16, 16, 1, "float16", "packed", "StorePairs"),
        (16, 16, 2, "float16", "packed", "Store"),
        (32, 32, 2, "float16", "packed", "StorePairs"),
        (9, 9, 1, "float64", "packed", "Store"),
        (9, 9, 1, "float64", "columns", "StoreColumns"),
        (16, 16, 1, "float16", "aligned columns", "StoreColumns"),
    ],
)
def test_the_epilogue_follows_from_how_the_result_lies(w, tile_n, warps_n, dtype, c, store):
    made = Plan(dtype, 64, tile_n, 32, warps_m=2, warps_n=warps_n)
    assert instantiate(made, problem(500, 1000, w, dtype, c=c)).store == store


def test_columns_of_whole_tiles_are_stored_as_lines():
    made = Plan("float16", 64, 16, 9, warps_m=2, keep_b=True)
    assert instantiate(made, problem(5000, 9, 16, "float16", c="columns")).store == "StoreLines"


def test_an_operand_between_elements_is_an_error():
    one = problem(500, 1000, 12, "float64", bases=(4, 16))
    with pytest.raises(ValueError, match="float64 lies at a multiple of 4 bytes only"):
        instantiate(Plan("float64", 64, 12, 16), one)
