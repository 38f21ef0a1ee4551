"""The choice of a kernel, without a GPU: what may run where, and what a table decides."""

from dataclasses import replace

import pytest
from exhaustive import property_test
from hypothesis import strategies as st
from problems import problem

from tsapps.kernels.gpu_specs import KNOWN
from tsapps.kernels.plan import select
from tsapps.kernels.plan.candidates import candidates, fits, registers
from tsapps.kernels.plan.library_algorithm import LibraryAlgorithm
from tsapps.kernels.plan.mma import MmaPlan, WgmmaPlan, instantiate
from tsapps.kernels.plan.predict import predict
from tsapps.kernels.plan.select import KEY, LIBRARY, configuration_of, key_of, plan, promising
from tsapps.kernels.plan.simt import RowsPlan, SmallTsmttsmPlan, SplitPlan
from tsapps.kernels.problem import ITEMSIZE, NARROW

DTYPES = list(ITEMSIZE)
OLD = [name for name, device in KNOWN.items() if float(device.compute_capability) < 8]
NEW = [name for name in KNOWN if name not in OLD]
LIES = ["packed", "rows", "aligned columns", "columns", "any"]
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


@property_test(20, 200, problem=problems(), name=st.sampled_from(list(KNOWN)))
def test_every_candidate_fits_and_the_choice_is_one_of_them(problem, name):
    device = KNOWN[name]
    found = candidates(problem, device)
    for one in found:
        if isinstance(one, MmaPlan):
            shared = one.shared_bytes
            assert fits(one, device)
            assert shared <= device.shared_memory_per_block
            # The system keeps 1 KiB a block.
            assert one.blocks * (shared + 1024) <= device.shared_memory
            assert one.blocks * one.threads <= device.max_threads
            assert one.threads <= 1024
            if isinstance(one, WgmmaPlan):
                begin, loading, multiplying = one.registers
                assert registers(one) <= multiplying
                dealt = 32 * one.warps * multiplying + 128 * one.loaders * loading
                assert dealt <= begin * one.threads <= device.registers // one.blocks
            else:
                assert registers(one) * one.blocks * one.threads <= device.registers
            assert instantiate(one, problem) == one
    assert len(set(found)) == len(found)
    chosen = plan(problem, device)
    assert chosen in found or (chosen == LIBRARY and (not found or problem.c != "any"))
    assert plan(problem, device) == chosen


@property_test(30, 100, problem=problems(), name=st.sampled_from(NEW))
def test_a_plan_covers_its_problem(problem, name):
    for one in candidates(problem, KNOWN[name]):
        if not isinstance(one, MmaPlan):
            assert one.dtype == problem.dtype
            if isinstance(one, SplitPlan):
                assert one.splits * one.per_split >= problem.k > (one.splits - 1) * one.per_split
            elif isinstance(one, SmallTsmttsmPlan):
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


@pytest.mark.each_choice
@pytest.mark.parametrize("name", NEW)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("w", [1, 2, 3, 5, 16, 33, 64])
def test_no_narrow_product_is_without_a_plan(name, dtype, w):
    """Whatever its layout; but for a wide B of few, large numbers, which leaves no room in shared memory."""
    little = KNOWN[name].shared_memory_per_block < 100 << 10
    if (dtype == "float64" and w > 16) or (dtype == "float32" and w > 32 and little):
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
        assert chosen == LIBRARY or (not isinstance(chosen, MmaPlan) and dtype != "bfloat16")
    assert isinstance(plan(problem(10**6, 4, 4), KNOWN[name]), RowsPlan)


@pytest.mark.parametrize("one", [TSM2R, TSM2L, TSMTTSM], ids=lambda one: one.shape)
def test_promising_plans_are_the_candidates_that_are_predicted_fastest(one):
    device = KNOWN["H200"]
    few, found = promising(one, device, 5), candidates(one, device)
    assert set(few) <= set(found)
    plans = [made for made in few if isinstance(made, MmaPlan)]
    seconds = [predict(made, one, device) for made in plans]
    assert len(plans) == 5
    assert seconds == sorted(seconds)
    assert seconds[0] == min(predict(made, one, device) for made in found if isinstance(made, MmaPlan)) > 0


def test_plans_of_other_kernels_are_promising_in_addition():
    """However fast they are predicted to be: the table's measurements decide between kernels."""
    one, device = problem(20_480, 20_480, 32), KNOWN["H200"]
    few, found = promising(one, device, 5), candidates(one, device)
    assert [type(made) for made in few[:5]] == [MmaPlan] * 5
    assert few[5:] == [made for made in found if type(made) is not MmaPlan]
    assert any(isinstance(made, WgmmaPlan) for made in few)


# --- Tables ---------------------------------------------------------------------------------------------------------

H200 = KNOWN["H200"]


def row(one, picked):
    """Return a table's row for a problem."""
    return key_of(one) | configuration_of(picked)


@pytest.mark.parametrize("one", [TSM2R, TSM2L, TSMTTSM], ids=lambda one: one.shape)
def test_a_row_decides(one):
    found = [made for made in candidates(one, H200) if isinstance(made, MmaPlan)]
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
    assert isinstance(plan(replace(one, c="any"), H200, [row(one, rows[0])]), MmaPlan)


@pytest.mark.parametrize("one", [TSM2R, TSM2L, TSMTTSM], ids=lambda one: one.shape)
def test_cublas_is_not_selected_for_a_result_that_it_cannot_store(one):
    other = replace(one, c="any")
    assert plan(one, H200, [row(one, LIBRARY)]) == LIBRARY
    assert plan(other, H200, [row(other, LIBRARY)]) in candidates(other, H200)


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
        row(one, next(made for made in candidates(one, H200) if isinstance(made, MmaPlan)))
        for one in (problem(10**6, size, size) for size in (64, 16, 32))
    ]
    found = select._look_up(rows, problem(10**6, k, w))
    assert (found["k"], found["w"]) == taken


def test_where_the_library_was_faster_says_nothing_of_other_sizes():
    large = problem(10**6, 64, 64)
    ours = row(large, candidates(large, H200)[0])
    table = [row(problem(10**6, 32, 32), LIBRARY), ours]
    assert select._look_up(table, problem(10**6, 32, 32))["kernel"] == LIBRARY
    for k, w in ((31, 32), (32, 31), (33, 33)):
        assert select._look_up(table, problem(10**6, k, w)) == ours
    assert select._look_up(table[:1], problem(10**6, 31, 32)) is None


def test_where_warpgroups_were_faster_says_nothing_of_what_they_do_not_take():
    fast = problem(10**6, 64, 64, "float32")
    groups = next(one for one in candidates(fast, H200) if isinstance(one, WgmmaPlan))
    others = next(one for one in candidates(fast, H200) if type(one) is MmaPlan)
    table = [row(fast, groups), row(problem(10**7, 64, 64, "float32"), others)]
    assert plan(fast, H200, table) == groups
    odd = problem(10**6, 33, 64, "float32")
    assert not any(isinstance(one, WgmmaPlan) for one in candidates(odd, H200))
    taken = plan(odd, H200, table)
    assert (taken.tile_m, taken.teams, taken.stages) == (others.tile_m, others.teams, others.stages)


def test_where_the_library_was_faster_says_nothing_of_a_result_that_lies_otherwise():
    by_rows, by_columns = (problem(10**6, 32, 32, c=c) for c in ("packed", "aligned columns"))
    for one, other in ((by_rows, by_columns), (by_columns, by_rows)):
        table = [row(one, LIBRARY)]
        assert plan(one, H200, table) == LIBRARY
        assert plan(other, H200, table) == plan(other, H200, []) != LIBRARY


def test_of_rows_for_the_same_k_and_w_the_one_of_the_nearest_length_is_taken():
    rows = [row(problem(m, 32, 32), LIBRARY) for m in (10**4, 10**6, 10**7)]
    for m, taken in ((500, 10**4), (50_000, 10**4), (300_000, 10**6), (10**8, 10**7)):
        assert select._look_up(rows, problem(m, 32, 32))["m"] == taken


def test_of_equally_large_products_the_one_of_the_nearest_depth_is_taken():
    rows = [row(problem(m, 36 * 10**8 // m, 8), LIBRARY) for m in (20_000, 60_000, 180_000)]
    for m, taken in ((15_000, 20_000), (60_000, 60_000), (100_000, 60_000), (300_000, 180_000)):
        found = select._look_up(rows, problem(m, 36 * 10**8 // m, 8))
        assert found["depth"] == 36 * 10**8 // taken


def test_an_algorithm_of_the_library_is_for_the_very_sizes_and_layouts():
    ours = candidates(TSM2R, H200)[0]
    table = [row(TSM2R, ours) | configuration_of(LibraryAlgorithm(3, True))]
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
    table = [row(half, LIBRARY) | configuration_of(LibraryAlgorithm(2))]
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
