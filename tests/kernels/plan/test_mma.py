"""How the kernels are instantiated for a problem: plans that follow from how the operands lie."""

from dataclasses import replace
from math import gcd

import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import problem

from tsapps.kernels.gpu_specs import KNOWN
from tsapps.kernels.plan.candidates import candidates, foldable
from tsapps.kernels.plan.mma import MmaPlan, instantiate
from tsapps.kernels.plan.simt import ColumnsPlan, RowsPlan, SplitPlan, WidePlan
from tsapps.kernels.problem import ITEMSIZE, NARROW

DTYPES, H200 = list(ITEMSIZE), KNOWN["H200"]


def simple(one):
    """Return the plans of the kernels without tensor cores."""
    return [made for made in candidates(one, H200) if not isinstance(made, MmaPlan)]


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


PLAN = MmaPlan("float32", 64, 12, 32, warps_m=4)


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
            MmaPlan("float32", 64, 3, 5, keep_b=True),
            problem(500, 5, 3),
            {"a_unit": 16, "a_packed": True, "b_unit": 4, "b_packed": False},  # 60 bytes of B are no whole vectors
        ),
        (MmaPlan("float32", 64, 3, 8, keep_b=True), problem(500, 8, 3), {"b_unit": 16, "b_packed": True}),
        (MmaPlan("float32", 64, 3, 5, keep_b=True), problem(500, 5, 3, bases=(4, 4)), {"a_unit": 4, "a_packed": True}),
        (MmaPlan("float32", 64, 3, 5, keep_b=True), problem(500, 5, 3, pads=(1, 0)), {"a_unit": 4, "a_packed": False}),
        # The next unit goes on along rows of A of which this one has 128 bytes; not of 256, nor of whole rows.
        (PLAN, problem(500, 1000, 12), {"a_prefetches": True, "b_prefetches": False}),
        (replace(PLAN, depth=64), problem(500, 1000, 12), {"a_prefetches": False}),
        (PLAN, problem(500, 1000, 12, a_along=False, b_along=True), {"a_prefetches": False, "b_prefetches": True}),
        (MmaPlan("float32", 64, 3, 8, keep_b=True), problem(500, 8, 3), {"a_prefetches": False}),
        (MmaPlan("float32", 64, 3, 8, keep_b=True), problem(500, 8, 3, pads=(8, 0)), {"a_prefetches": False}),
        # Several tiles read B, of 16 MiB and no more; one tile does; none but as it begins; there is none.
        (PLAN, problem(65, 349_525, 12), {"b_stays": True}),
        (PLAN, problem(65, 349_526, 12), {"b_stays": False}),
        (PLAN, problem(64, 1000, 12), {"b_stays": False}),
        (MmaPlan("float32", 64, 3, 8, keep_b=True), problem(500, 8, 3), {"b_stays": False}),
        (replace(PLAN, gram=True), problem(65, 1000, 65, gram=True), {"b_stays": False}),
        # Columns of 64 floats: lanes of one warp read rows of the depth that are two apart.
        (PLAN, problem(5000, 1000, 12, a_along=False), {"a_along": False, "stride": 8 // gcd(8, 64) * 2}),
        # Rows of 33 floats fall in banks one apart, and of 33 doubles as well.
        (MmaPlan("float32", 64, 33, 33, keep_b=True), problem(500, 33, 33), {"stride": 8, "a_packed": True}),
        # Four lines of 3 halves are taken as one of 24 bytes.
        (
            MmaPlan("float16", 12, 8, 64, fold=4),
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
    made = MmaPlan(dtype, 64, tile_n, 32, warps_m=2, warps_n=warps_n)
    assert instantiate(made, problem(500, 1000, w, dtype, c=c)).store == store


def test_columns_of_whole_tiles_are_stored_as_lines():
    made = MmaPlan("float16", 64, 16, 9, warps_m=2, keep_b=True)
    assert instantiate(made, problem(5000, 9, 16, "float16", c="columns")).store == "StoreLines"


def test_an_operand_between_elements_is_an_error():
    one = problem(500, 1000, 12, "float64", bases=(4, 16))
    with pytest.raises(ValueError, match="aligned to 4 bytes; expected 8, the size of float64"):
        instantiate(MmaPlan("float64", 64, 12, 16), one)
