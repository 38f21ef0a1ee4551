"""The choices for few features and few clusters, and what the compiler makes of them."""

from dataclasses import replace

import numpy as np
import pytest
from host_cuda import harness

from tsapps.apps.kmeans.assign.plan import MOST_CLUSTERS
from tsapps.apps.kmeans.small_d.plan import (
    PRODUCTS,
    FmaPlan,
    Multiplier,
    ProductsPlan,
    bounded_plan,
    fma_plan,
    multiply_adds_plan,
    products_plan,
    small_d_scale,
)
from tsapps.kernels.gpu_specs import KNOWN
from tsapps.kernels.jit.compiler import build

ARCHITECTURES = ["sm_80", "sm_90a", "sm_100a"]
H200, A100 = KNOWN["H200"], KNOWN["A100"]
ROOM = H200.shared_memory_per_block
FOLDER = harness.ROOT / "apps" / "kmeans"


@pytest.mark.parametrize(
    ("d", "k", "dtype", "found"),
    [
        (4, 16, "float32", FmaPlan),
        (4, 64, "float32", FmaPlan),
        (1, 65, "float32", None),
        (5, 19, "float32", FmaPlan),
        (5, 57, "float32", FmaPlan),
        (5, 58, "float32", ProductsPlan),
        (16, 17, "float32", FmaPlan),
        (16, 18, "float32", ProductsPlan),
        (17, 1, "float32", ProductsPlan),
        (32, 64, "float32", ProductsPlan),
        (33, 2, "float32", None),
        (33, 2, "bfloat16", ProductsPlan),
        (64, 64, "float16", ProductsPlan),
        (65, 2, "float16", None),
    ],
)
def test_what_is_chosen(d, k, dtype, found):
    plan = fma_plan(d, k, dtype, 0.0, 1.0, H200)
    assert plan is None if found is None else isinstance(plan, found)


@pytest.mark.parametrize(
    ("device", "dtype", "mean", "multiplier"),
    [
        (H200, "float32", 0.0, Multiplier.WARPS_KEEPING),
        (H200, "float16", 0.0, Multiplier.WARPGROUPS),
        (H200, "bfloat16", 16.0, Multiplier.WARPGROUPS),
        # Scores of rows as they are would tell too few labels.
        (H200, "bfloat16", 16.1, Multiplier.WARPS_KEEPING),
        (A100, "float16", 0.0, Multiplier.WARPS_KEEPING),
    ],
)
def test_who_multiplies(device, dtype, mean, multiplier):
    assert fma_plan(32, 32, dtype, mean, 1.0, device).multiplier is multiplier


@pytest.mark.parametrize(
    ("d", "k", "found"),
    [
        (4, 16, (16, 8, 32)),
        (16, 16, (16, 2, 32)),
        (16, 20, (20, 2, 16)),
        (16, 21, None),
        (9, 32, (32, 2, 16)),
        (17, 2, None),
        (2, 64, (64, 8, 32)),
        (4, 32, (32, 8, 32)),
        (4, 33, (36, 4, 32)),
        (3, 64, (64, 4, 32)),
        (8, 61, (64, 2, 16)),
        (1, 65, None),
        (1, 1, (4, 8, 32)),
    ],
)
def test_multiply_adds(d, k, found):
    plan = multiply_adds_plan(d, k, "float32", 0.0, 1.0, ROOM)
    assert found == (plan and (plan.clusters, plan.rows, plan.replicas))


def test_few_features_about_a_mean_far_away_are_centered():
    assert not fma_plan(4, 16, "float32", 1.0, 1.0, H200).shifts
    assert fma_plan(4, 16, "float32", 1.1, 1.0, H200).shifts


def test_multiply_adds_by_hand():
    plan = fma_plan(4, 16, "float32", 0.0, 1.0, H200)
    assert plan.kernel == "assign_d4<float, 4, 16, 8, false, 32, 2, 512, 1>"
    assert plan.file == "small_d/iteration_fma_d4.cuh"
    # Sums; of 17 labels a center eight times and two numbers 32 times; two tiles of 256 rows and labels a warp, and 64
    # rows with their numbers and labels.
    assert plan.shared_bytes == 16 * 9 * 32 * 4 + 17 * (8 * 16 + 32 * 8) + 16 * (2 * 256 * 17 + 64 * 24)
    assert [plan.grid(n, 132) for n in (1, 4096, 4097, 10**8)] == [1, 1, 2, 132]
    plan = multiply_adds_plan(16, 16, "float32", 0.0, 1.0, ROOM)
    assert plan.kernel == "assign_rows<float, 16, 16, 2, false, 32, 2, 512, 1>"
    assert plan.file == "small_d/iteration_fma.cuh"
    # Longer rows wait without their elements.
    assert plan.shared_bytes == 16 * 33 * 32 * 4 + 16 * 2 * 64 * 65 + 16 * 64 * 8


def test_products_by_hand():
    plan = fma_plan(16, 32, "float32", 0.0, 1.0, H200)
    assert plan.kernel == "assign_by_products<float, 16, 4, 4, kmeans::Multiplier::kWarpsKeeping, 512, 1>"
    assert plan.padded == 16
    # Four tiles a warp; offsets, twelve numbers a lane; of a cluster twice 32 words and 32 counts; 16 queues.
    queues = 32 * 8 + 64 * 16 + 128 * 8
    assert plan.shared_bytes == 16 * 4 * 32 * 65 + 4 * 64 + 32 * 48 + 32 * 96 * 4 + 16 * queues
    assert [plan.grid(n, 132) for n in (1, 512, 513, 10**8)] == [1, 1, 2, 132]
    plan = fma_plan(40, 60, "bfloat16", 0.0, 1.0, A100)
    assert plan.kernel == "assign_by_products<ptx::Bfloat16, 40, 8, 2, kmeans::Multiplier::kWarps, 384, 1>"
    assert plan.padded == 48
    # And the centers: 64 of 48 elements. Words are of 64 columns.
    of_clusters = 64 * 48 * 2 + 64 * 160 * 4
    assert plan.shared_bytes == 12 * 2 * 32 * 81 + 8 * 64 + 32 * 48 + of_clusters + 12 * queues
    plan = fma_plan(40, 60, "bfloat16", 0.0, 1.0, H200)
    assert plan.kernel == "assign_by_products<ptx::Bfloat16, 40, 8, 3, kmeans::Multiplier::kWarpgroups, 512, 1>"
    # The centers in two parts and a step of offsets, and the 64 × 16 elements that those are multiplied by.
    of_clusters = 64 * (2 * 48 + 16) * 2 + 64 * 16 * 2 + 64 * 160 * 4
    assert plan.shared_bytes == 16 * 3 * 32 * 81 + 32 * 48 + of_clusters + 16 * queues
    assert PRODUCTS.itemsize == 56


def test_a_gpu_with_little_shared_memory_has_fewer_stages_and_warps():
    plans = [products_plan(32, 64, "float32", room << 10) for room in (227, 163, 120, 48)]
    assert [plan and (plan.threads, plan.stages) for plan in plans] == [(512, 2), (384, 2), (256, 2), None]
    adds = [multiply_adds_plan(4, 16, "float32", 0.0, 1.0, room << 10) for room in (227, 163, 100)]
    assert [(plan.threads, plan.stages, plan.replicas) for plan in adds] == [(512, 2, 32), (384, 2, 32), (256, 2, 16)]
    assert multiply_adds_plan(4, 16, "float32", 0.0, 1.0, 48 << 10) is None


def test_scale():
    assert small_d_scale(1.0) == 1024.0
    assert small_d_scale(1000.0) == 1.0
    assert small_d_scale(0.0) == small_d_scale(np.inf) == 1.0
    assert small_d_scale(1e-30) == 2.0**96


def test_scale_by_warpgroups():
    # A center is multiplied by its square: float16 has room for 2⁷ · 2⁷ · ‖c‖, as long as ‖c‖ · 2⁷ is 2⁸ at most.
    assert small_d_scale(1.0, "float16", warpgroups=True) == small_d_scale(1.0, "bfloat16", warpgroups=True) == 64.0
    assert small_d_scale(1e-3, "float16", warpgroups=True) == 2.0**7
    assert small_d_scale(1e-3, "bfloat16", warpgroups=True) == 2.0**15
    assert small_d_scale(65504.0, "float16", warpgroups=True) == 2.0**-10


@pytest.mark.parametrize("device", [A100, H200], ids=lambda device: device.name)
def test_there_is_room(device):
    for dtype in ("float32", "bfloat16"):
        for d in range(1, 65):
            for k in range(1, MOST_CLUSTERS + 1):
                plan = fma_plan(d, k, dtype, 0.0, 1.0, device)
                assert plan is None or plan.blocks * plan.shared_bytes <= device.shared_memory_per_block
                # Whole warpgroups.
                assert plan is None or plan.threads % 128 == 0


def assert_no_spills(file, plans, arch, *more, but=0):
    """Compile kernels; none may use the stack, for more than `but` bytes."""
    threads = {f"kmeans::{plan.kernel}": plan.threads * plan.blocks for plan in plans}
    source = (FOLDER / file).read_text(encoding="utf-8")
    for kernel, used in build(source, [*threads, *more], arch).resources.items():
        assert max(used.stack, used.spill_stores, used.spill_loads) <= but, kernel
        assert not used.waits, kernel
        assert -(-used.registers // 8) * 8 * threads.get(kernel, 128) <= 65_536, kernel


@pytest.mark.compile
@pytest.mark.parametrize(
    "arch", ["sm_90a", *(pytest.param(f"sm_{cc}", marks=pytest.mark.exhaustive) for cc in ("80", "100a"))]
)
def test_multiply_adds_compile_without_spills(arch):
    shapes = [(1, 1), (2, 9), (3, 16), (4, 16), (4, 32), (4, 64), (5, 9), (8, 64), (9, 32), (16, 16), (16, 20)]
    plans = [multiply_adds_plan(d, k, "float32", mean, 1.0, ROOM) for d, k in shapes for mean in (0.0, 2.0)]
    plans += [multiply_adds_plan(d, 16, dtype, 2.0, 1.0, ROOM) for d in (4, 16) for dtype in ("float16", "bfloat16")]
    for file in ("small_d/iteration_fma_d4.cuh", "small_d/iteration_fma.cuh"):
        of_file = [plan for plan in plans if plan.file == file]
        assert of_file
        assert_no_spills(file, of_file, arch, "kmeans::place_constants<float>")


@pytest.mark.each_choice
@pytest.mark.compile
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("d", [5, 16, 24, 32, 64])
def test_products_compile_without_spills(d, arch):
    dtypes = ("float32", "bfloat16") if d <= 32 else ("bfloat16",)
    room = KNOWN["A100" if arch == "sm_80" else "H200"].shared_memory_per_block
    plans = [products_plan(d, k, dtype, room) for dtype in dtypes for k in (16, 32, 64)]
    # Rows whose last product is half empty take some registers more than there are.
    assert_no_spills("small_d/iteration_mma.cuh", plans, arch, but=32 if d == 24 else 0)


@pytest.mark.each_choice
@pytest.mark.compile
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize(("d", "dtype"), [(16, "float32"), (32, "float32"), (64, "float16")])
def test_until_compiles_with_few_spills(d, dtype, arch):
    room = KNOWN["A100" if arch == "sm_80" else "H200"].shared_memory_per_block
    plans = [bounded_plan(d, k, dtype, room) for k in (16, 64)]
    assert all(plan.threads == 512 for plan in plans if plan and arch != "sm_80")
    # Gaps take a few registers more than there are beside 64 clusters.
    assert_no_spills("small_d/iteration_bounded.cuh", [plan for plan in plans if plan], arch, but=48)


@pytest.mark.parametrize(
    ("d", "k", "dtype", "found"),
    [
        (8, 2, "float32", True),
        (8, 1, "float32", False),  # nothing is another's
        (4, 16, "float32", False),
        (9, 16, "float32", False),  # no whole 16 bytes
        (12, 16, "float16", False),
        (16, 16, "float16", True),
        (64, 64, "bfloat16", True),
    ],
)
def test_rows_that_have_bounds(d, k, dtype, found):
    for device in (H200, A100):
        plan = bounded_plan(d, k, dtype, device.shared_memory_per_block)
        assert (plan is not None) == found
        assert plan is None or plan.shared_bytes <= device.shared_memory_per_block


@pytest.mark.compile
@pytest.mark.parametrize("d", [5, 16, 24, 32, 48, 64])
def test_warpgroups_compile_without_spills(d):
    plans = [products_plan(d, k, "float16", ROOM, warpgroups=True) for k in (16, 32, 64)]
    assert_no_spills("small_d/iteration_mma.cuh", plans, "sm_90a")


def test_knobs_are_in_the_name():
    plan = fma_plan(16, 32, "float32", 0.0, 1.0, H200)
    changed = [{"stages": 2}, {"multiplier": Multiplier.WARPS}, {"threads": 256}, {"blocks": 2}]
    assert len({plan.kernel, *(replace(plan, **one).kernel for one in changed)}) == 1 + len(changed)
