"""The fused engine's choices, and what the compiler makes of them."""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from host_cuda import harness

from tsapps.apps.kmeans.assign.large_k_plan import large_k_plan, stream_plan
from tsapps.apps.kmeans.assign.plan import (
    MOST_CLUSTERS,
    assign_plan,
    capacity,
    center_parts,
    epilogue_of,
    error_coefficients_of,
    product_error,
    tensor_error,
)
from tsapps.apps.kmeans.bounds.plan import BOUNDED_EPILOGUE
from tsapps.apps.kmeans.data.plan import half_copy_scale
from tsapps.apps.kmeans.update.fixed_point import columns_of_block, integers
from tsapps.apps.kmeans.update.plan import LARGE_D, segments_plan, sorts_lists, sorts_rows
from tsapps.kernels import gemm
from tsapps.kernels.gpu_specs import KNOWN
from tsapps.kernels.jit.compiler import build

ARCHITECTURES = {"sm_80": "A100", "sm_90a": "H200", "sm_100a": "H200"}
#: Features and clusters that take each kind of plan: whole rows of each length, and pieces of long ones.
SHAPES = [
    (1, 1),
    (4, 16),
    (16, 16),
    (16, 64),
    (32, 64),
    (64, 33),
    (128, 16),
    (128, 64),
    (256, 64),
    (300, 33),
    (4096, 64),
]
#: Those whose rows are pieces, by the plans that bounds have.
LONG_WITH_BOUNDS = [(300, 33), (4096, 64)]
FOLDER = harness.ROOT / "apps" / "kmeans"


@pytest.mark.parametrize("device", ["A100", "H100", "H200"])
def test_there_is_a_plan_for_every_shape(device):
    for d in (1, 3, 8, 17, 64, 100, 200, 256, 257, 1000, 20_000):
        for k in range(1, MOST_CLUSTERS + 1):
            plan = assign_plan(10**6, d, k, KNOWN[device])
            assert plan is not None
            # What the epilogue asks for: 32 rows of a warp at a time, and all centers.
            assert plan.tile_m // plan.warps_m % 32 == 0
            assert plan.warps_n == 1
            assert plan.tile_n >= k


def test_there_may_be_none_where_shared_memory_is_small():
    small = replace(KNOWN["A100"], shared_memory=100 << 10, shared_memory_per_block=99 << 10)
    assert assign_plan(10**6, 32, 16, small) is not None
    assert assign_plan(10**6, 20_000, 64, small) is None  # and the cuBLAS engine is taken


@pytest.mark.parametrize("blocks", [1, 7, 132])
@pytest.mark.parametrize(("d", "k"), [(16, 16), (128, 64), (4096, 16)])
@pytest.mark.parametrize("n", [1, 33, 5000, 10**6])
def test_lists_have_room_for_every_row_of_a_block(n, d, k, blocks):
    plan = assign_plan(n, d, k, KNOWN["H200"])
    tiles = -(-n // plan.tile_m)
    if plan.keep_b:  # in turn
        most = max(len(range(block, tiles, blocks)) for block in range(blocks))
    else:  # units in equal shares; a block may be the one to end any tile that it has a unit of
        units, of_tile = plan.units(n, d, k), -(-d // plan.depth)
        shares = [(units * block // blocks, units * (block + 1) // blocks) for block in range(blocks)]
        most = max((end - 1) // of_tile - begin // of_tile + 1 if end > begin else 0 for begin, end in shares)
    assert most * plan.tile_m <= capacity(plan, n, blocks)


def test_shadow_scale():
    assert half_copy_scale(1.0) == 16.0
    assert half_copy_scale(16.0) == 1.0
    assert half_copy_scale(0.0) == 1.0
    assert half_copy_scale(1e300) == 2.0**-96
    assert half_copy_scale(1e-320) == 2.0**96
    assert half_copy_scale(np.inf) == 1.0


def test_integers_by_hand():
    found = integers(1000, np.dtype(np.float32), np.array([3.0, 0.0, 0.25]), 1.0, None)
    assert found.digits == 2
    # 30 bits of what is at most 4, 1 and a quarter; samples are counted as they are.
    assert tuple(found.scales) == (2.0**28, 2.0**30, 2.0**32, 1.0)
    assert columns_of_block(3, 16, 2) == (4, 1)


@pytest.mark.parametrize(
    ("change", "digits"),
    [
        ({}, 2),
        ({"dtype": np.dtype(np.float64)}, 3),
        ({"largest": np.full(64, 1e3)}, 3),
        ({"largest": np.full(64, 1e-35)}, 3),
        ({"largest": np.full(64, 1e-310)}, 3),
    ],
)
def test_digits(change, digits):
    given = {"n": 10**6, "dtype": np.dtype(np.float32), "largest": np.full(64, 4.0), "middle": 1.0}
    found = integers(**(given | {"most_weight": None} | change))
    assert found.digits == digits


@pytest.mark.parametrize("n", [1, 1000, 2**31, 2**32 - 2])
@pytest.mark.parametrize("weight", [None, 1e-3, 7.0])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sums_do_not_overflow(n, weight, dtype):
    largest = np.array([1e-6, 1.0, 5.0, 1e5])
    found = integers(n, np.dtype(dtype), largest, 1.0, weight)
    most = np.append(largest, 1.0) * (1.0 if weight is None else weight)
    elements = found.scales * most
    assert (elements <= 2.0 ** (16 * found.digits - 1) - 1).all()
    assert (elements * n < 2.0**63).all()


@pytest.mark.parametrize("d", [1, 128, 4096, 100_000])
@pytest.mark.parametrize("k", [1, 16, 64])
def test_sums_of_a_block_fit(d, k):
    for dtype in (np.float32, np.float64):
        found = integers(10**6, np.dtype(dtype), np.ones(d), 1.0, None)
        columns, chunks = columns_of_block(d, k, found.digits)
        assert columns * chunks >= d + 1
        assert columns * k * found.digits * 4 <= found.shared_bytes <= 66 << 10


def test_many_elements_are_sorted_and_few_are_not():
    # Of 10M rows of 128 features, those of the first iterations.
    assert [sorts_rows(share * 10**5, 128) for share in (100, 55, 18, 7, 3, 1, 0)] == [True] * 4 + [False] * 3
    assert not sorts_rows(100_000, 64)
    assert [sorts_lists(changing, 16) for changing in (2**17, 2**17 - 1)] == [True, False]
    assert not sorts_rows(2**20 - 1, 64)
    assert sorts_rows(2**20, 64)
    assert not sorts_rows(10_000, LARGE_D - 1)
    assert sorts_rows(0, LARGE_D)


def test_error_of_tensor_cores_by_hand():
    # A step of 16 products loses 2⁻²⁰ of all that is added, and so do two more.
    assert tensor_error(32) == 4 * 2.0**-20
    # 33 stretches of 128: eight steps and two, and 32 rounded additions.
    assert tensor_error(4100, 128) == 10 * 2.0**-20 + 32 * 2.0**-24
    assert tensor_error(100, 128) == tensor_error(100)
    # And second parts, which are added once more.
    plan = assign_plan(10**6, 4096, 16, KNOWN["H200"])
    assert product_error(plan, 4096, 16) == tensor_error(4096, 128) + 2.0**-22
    # Rows that one stage holds are added up at once, and so are those that have bounds.
    for d, bounds in ((256, False), (4096, True)):
        plan = assign_plan(10**6, d, 16, KNOWN["H200"], bounds=bounds)
        assert product_error(plan, d, 16) == tensor_error(d)
        assert epilogue_of(plan, 16).name == "kmeans::ArgminEpilogue"


@pytest.mark.parametrize(("d", "k", "parts"), [(257, 1, 1), (4096, 17, 1), (4096, 16, 2)])
def test_long_rows_have_a_margin_of_each_center(d, k, parts):
    plan = assign_plan(10**6, d, k, KNOWN["H200"])
    assert epilogue_of(plan, k).name == f"kmeans::ArgminEpilogueLargeD<{parts}>"
    of_norm, of_lost = error_coefficients_of(plan, d, k, 2.0**-12)
    error = product_error(plan, d, k)
    assert (of_norm, of_lost) == (2.0**-12 + 2.0**-22 + error, 1 + error)


def test_centers_have_two_parts_where_rows_are_long_and_they_are_few():
    assert [center_parts(d, 16) for d in (16, 2047, 2048, 10**5)] == [1, 1, 2, 2]
    assert [center_parts(4096, k) for k in (1, 16, 17, 64)] == [2, 2, 1, 1]


@pytest.mark.each_choice
@pytest.mark.compile
@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("ArgminEpilogue", [shape for shape in SHAPES if shape[0] <= 256]),
        ("ArgminEpilogueLargeD<1>", [(257, 1), (300, 33), (1024, 16), (4096, 24), (4096, 64)]),
        ("ArgminEpilogueLargeD<2>", [(2048, 1), (4096, 16)]),
        ("ArgminEpilogue", LONG_WITH_BOUNDS),
        ("ArgminEpilogueBounded", SHAPES),
    ],
)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_products_compile_without_spills(arch, name, shapes):
    bounds = name == BOUNDED_EPILOGUE.name.removeprefix("kmeans::")
    plans = [
        assign_plan(10**7, *shape, KNOWN[ARCHITECTURES[arch]], bounds=bounds or shapes is LONG_WITH_BOUNDS)
        for shape in shapes
    ]
    epilogue = BOUNDED_EPILOGUE if bounds else epilogue_of(plans[0], shapes[0][1])
    assert epilogue.name == f"kmeans::{name}"
    compiled = partial(gemm.compiled_plan, arch=arch, epilogue=epilogue)
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
        for shape, plan, (cubin, name) in zip(shapes, plans, pool.map(compiled, plans), strict=True):
            used = cubin.resources[name]
            # Some registers too many on Blackwell, where nothing was measured.
            most = 16 if arch == "sm_100a" else 0
            assert max(used.stack, used.spill_stores, used.spill_loads) <= most, shape
            assert -(-used.registers // 8) * 8 * plan.threads * plan.blocks <= 65_536, shape


@pytest.mark.compile
@pytest.mark.parametrize(
    ("d", "k"), [(d, 256) for d in (16, 96, 128, 160, 200, 256)] + [(768, k) for k in (100, 1000, 1024, 256, 304)]
)
def test_products_of_many_compile_without_spills(d, k):
    plan = stream_plan(d, k, KNOWN["H200"])
    headers = "kernels/tsm2/gemm_wgmma_streamed.cuh", "apps/kmeans/assign/large_k.cuh"
    cubin = build("".join(f'#include "{header}"\n' for header in headers), [plan.kernel], "sm_90a")
    used = cubin.resources[plan.kernel]
    # At d = 160 a register too many, in the code that appends ambiguous rows to lists.
    assert max(used.stack, used.spill_stores, used.spill_loads) <= 8
    assert not used.waits
    assert used.shared + plan.shared_bytes <= KNOWN["H200"].shared_memory_per_block
    assert used.registers * plan.threads <= 65_536


@pytest.mark.compile
@pytest.mark.parametrize(
    ("d", "k"),
    [
        (4, 70),
        (16, 128),
        (2, 300),
        (5, 256),
        (8, 384),
        (11, 100),
        (12, 768),
        (16, 256),
        (16, 700),
        (16, 768),
        (16, 1000),
    ],
)
@pytest.mark.parametrize(
    ("types", "aligned"), [("float, float", True), ("ptx::Half, float", False), ("double, double", True)]
)
def test_products_of_split_rows_compile_without_spills(types, aligned, d, k):
    plan = large_k_plan(d, k, KNOWN["H200"])
    headers = "kernels/tsm2/gemm_wgmma_resident", "apps/kmeans/assign/large_k", "apps/kmeans/assign/split_rows"
    name = plan.kernel(types, aligned=aligned and d in (4, 8, 16))
    cubin = build("".join(f'#include "{header}.cuh"\n' for header in headers), [name], "sm_90a")
    used = cubin.resources[name]
    assert max(used.stack, used.spill_stores, used.spill_loads) == 0
    assert not used.waits
    assert used.shared + plan.shared_bytes <= KNOWN["H200"].shared_memory_per_block
    assert used.registers * plan.threads <= 65_536


@pytest.mark.each_choice
@pytest.mark.compile
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("scalar", ["float", "double"])
def test_other_kernels_compile_without_spills(scalar, arch):
    digits = (2, 3) if scalar == "float" else (3,)
    names = {
        "data/half_copy.cuh": [
            f"make_half_copy<{element}, {scalar}, {aligned}>"
            for element in (("float", "ptx::Half", "ptx::Bfloat16") if scalar == "float" else ("double",))
            for aligned in ("true", "false")
        ],
        "data/split_copy.cuh": [
            f"make_split_copy<{element}, {scalar}, {d}, {-(-3 * d // 16)}, {aligned}>"
            for element in (("float", "ptx::Half", "ptx::Bfloat16") if scalar == "float" else ("double",))
            for d, aligned in ((1, "false"), (4, "true"), (15, "false"), (16, "true"))
        ],
        "update/centers.cuh": [f"prepare_centers<{scalar}>", f"update_centers<{scalar}>"],
        "assign/rescore.cuh": [f"rescore<{scalar}, {scalar}, {lanes}>" for lanes in (1, 16, 32)],
        "assign/rescore_by_block.cuh": [
            f"rescore_by_block<{element}, {scalar}>"
            for element in (("float", "ptx::Half", "ptx::Bfloat16") if scalar == "float" else ("double",))
        ],
        "bounds/state.cuh": ["select_active_rows<int>", "select_active_rows<kmeans::Label>"],
        "bounds/assign.cuh": [f"assign_active_rows<{blocks}>" for blocks in range(1, MOST_CLUSTERS // 8 + 1)],
        "update/scatter_add.cuh": [
            f"scatter_add<{scalar}, {scalar}, {count}, {weighted}>"
            for count in digits
            for weighted in ("true", "false")
        ],
        "protect/check_iteration.cuh": [
            f"check<{aligned}, {element}, {scalar}, {label}>"
            for aligned in ("true", "false")
            for element in (("float", "ptx::Half", "ptx::Bfloat16") if scalar == "float" else ("double",))
            for label in ("int", "signed char")
        ],
        "assign/rescore_large_k.cuh": [
            f"rescore_large_k<{scalar}, {scalar}, {most}, {lanes}>" for most, lanes in ((11, 1), (11, 16), (27, 32))
        ],
        "update/add_reassigned.cuh": [
            f"add_reassigned<{element}, {scalar}, {count}, true>"
            for element in (("float", "ptx::Half") if scalar == "float" else ("double",))
            for count in digits
        ],
        "update/sort_reassigned.cuh": [
            f"{name}_reassigned<kmeans::{item}>"
            for name in ("count", "sort")
            for item in ("AmbiguousRow", "Reassignment")
        ],
        "update/segmented_sum.cuh": [
            f"segmented_sum<{element}, {scalar}, {count}, {str(weighted).lower()}, {arguments}>"
            for element, size in (("float", 4), ("ptx::Half", 2), ("double", 8))
            if (element == "double") == (scalar == "double")
            for count in digits
            for weighted in (False, True)
            for arguments in {
                segments_plan(size, d, 0, count, weighted=weighted).arguments for d in (3, 16, 60, 128, 130, 1024)
            }
        ],
    }
    for file, kernels in names.items():
        source = (FOLDER / file).read_text(encoding="utf-8")
        for kernel, used in build(source, [f"kmeans::{name}" for name in kernels], arch).resources.items():
            # As above; and where a block compares eight rows with all centers.
            most = 24 if "rescore" in kernel else 16 if arch == "sm_100a" else 0
            assert max(used.stack, used.spill_stores, used.spill_loads) <= most, kernel


@pytest.mark.each_choice
@pytest.mark.compile
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("scalar", ["float", "double"])
def test_seeding_compiles_without_spills(scalar, arch):
    # Candidates, lanes and whether vectors are read; weights take a few registers more.
    kinds = [(6, 8, True), (7, 1, True), (7, 32, True), (12, 32, False)]
    names = [f"evaluate_candidates<{scalar}, {t}, {lanes}, {str(a).lower()}, true>" for t, lanes, a in kinds]
    names.append(f"sample_candidates<{scalar}, 12, 32, true, true>")
    source = (FOLDER / "init/plusplus.cuh").read_text(encoding="utf-8")
    for kernel, used in build(source, [f"kmeans::{name}" for name in names], arch).resources.items():
        assert used.stack == used.spill_stores == used.spill_loads == 0, kernel
    kinds = [(6, 8, "true, true"), (8, 8, "true, false"), (8, 32, "true, false"), (12, 32, "false, true")]
    names = [f"evaluate_candidates_pruned<{scalar}, {trials}, {lanes}, {flags}, 3>" for trials, lanes, flags in kinds]
    names += [f"quantize_points<{scalar}, 13>", f"quantize_rows<{scalar}, false>", f"column_scales<{scalar}>"]
    source = (FOLDER / "init/plusplus_pruned.cuh").read_text(encoding="utf-8")
    for kernel, used in build(source, [f"kmeans::{name}" for name in names], arch).resources.items():
        # With two blocks of points there are just enough registers.
        most = 0 if "pruned" not in kernel else 16 if arch == "sm_90a" else 32
        assert max(used.stack, used.spill_stores, used.spill_loads) <= most, (kernel, used)


def test_vectors_of_segments():
    vectors = [segments_plan(size, 1024, 4096, 2, weighted=False).vector for size in (2, 4, 8)]
    assert vectors == [4, 4, 2]
    assert [segments_plan(2, d, 4096, 2, weighted=False).vector for d in (128, 256, 260, 262)] == [4, 4, 4, 0]
    assert [segments_plan(2, 256, address, 2, weighted=False).vector for address in (16, 8, 4)] == [4, 4, 0]
    # Rows of a whole warp and more: many of them together, and three blocks, where registers are few.
    assert {segments_plan(2, d, 8, 2, weighted=False).arguments for d in (128, 4096)} == {"4, 32, 8, 3"}
    others = [(2, 60, 2, False), (2, 130, 2, False), (2, 128, 3, False), (2, 128, 2, True), (4, 128, 2, False)]
    for itemsize, d, digits, weighted in others:
        assert segments_plan(itemsize, d, 8, digits, weighted=weighted).blocks == 2


@pytest.mark.parametrize("itemsize", [2, 4, 8])
@pytest.mark.parametrize("weighted", [False, True])
def test_lanes_of_segments(itemsize, weighted):
    for d in range(1, 300):
        for digits in (2, 3):
            plan = segments_plan(itemsize, d, 0, digits, weighted=weighted)
            elements = plan.vector or (2 if itemsize == 8 else 4)
            # No fewer lanes than have a row, or all; and no more than twice as many.
            assert plan.lanes == 32 or d <= plan.lanes * elements
            assert plan.lanes == 1 or d > plan.lanes // 2 * elements
            # Whole steps of 32 places.
            assert 32 % (32 // plan.lanes * plan.together) == 0
