"""Plans of fits in common launches: groups, and kernels that compile without spills."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsapps.apps.kmeans.assign.plan import MOST_CLUSTERS
from tsapps.apps.kmeans.data.load import _FOLDER
from tsapps.apps.kmeans.sweep.plan import MOST_FITS, AllRowsPlan, all_rows_plan, fits_plan, groups_of
from tsapps.kernels.gpu_specs import KNOWN
from tsapps.kernels.jit.compiler import architecture_of, build

GPUS = ("A100", "A10", "H200", "B200", "RTX 5090")


def test_by_hand():
    plan = fits_plan(1_000_000, 64, range(20, 1, -1), KNOWN["H200"])
    assert plan.columns == [24] * 4 + [16] * 8 + [8] * 7
    assert (plan.problem.w, plan.product.tile_n) == (280, 320)  # columns in all, and rounded up to 64
    assert (plan.product.teams, plan.lists, plan.stride) == (16, 132, 1_000_000)
    assert plan.list_bytes >= 19 * 16 * 1_000_000  # every row of every fit may be listed


def test_what_has_no_plan():
    h200 = KNOWN["H200"]
    assert fits_plan(1000, 257, (4, 2), h200) is None
    assert fits_plan(1000, 64, (MOST_CLUSTERS + 1, 2), h200) is None
    assert fits_plan(10_000, 8, range(MOST_FITS + 1), h200) is None


@given(
    st.integers(1, 10**7),
    st.integers(1, 256),
    st.sets(st.integers(1, MOST_CLUSTERS), min_size=2),
    st.sampled_from(GPUS),
    st.integers(20, 40),
)
def test_groups_have_every_number_but_single_ones(n, d, numbers, gpu, log2_bytes):
    descending = sorted(numbers, reverse=True)
    free, spec = n * 4 * len(numbers) + (1 << log2_bytes), KNOWN[gpu]
    groups = [plan.numbers for plan in groups_of(n, d, descending, spec, free)]
    grouped = [k for group in groups for k in group]
    assert grouped == [k for k in descending if k in grouped]
    assert all(1 < len(group) <= MOST_FITS for group in groups)
    for group in groups:
        plan = fits_plan(n, d, group, spec)
        assert plan.list_bytes <= 1 << log2_bytes
        assert plan.lists * plan.capacity >= n
    for k in set(numbers) - set(grouped):  # no neighbour has room beside it
        for other in (one for one in descending if abs(descending.index(one) - descending.index(k)) == 1):
            beside = fits_plan(n, d, sorted((k, other), reverse=True), spec)
            assert beside is None or beside.list_bytes > 1 << log2_bytes or other in grouped


def test_sums_of_all_rows_by_hand():
    # 209 clusters × 65 columns of 2 limbs fit 120 KB; a third limb leaves 48 columns at a time.
    h200 = KNOWN["H200"]
    assert all_rows_plan(64, 209, 2, h200) == AllRowsPlan(15_360, 65, (132, 1), 8 * 15_360 + 36_864)
    assert all_rows_plan(64, 209, 3, h200) == AllRowsPlan(10_240, 33, (66, 2), 12 * 10_240 + 36_864)


@given(
    st.integers(1, 256),
    st.integers(2, MOST_FITS * MOST_CLUSTERS),
    st.sampled_from((2, 3)),
    st.sampled_from(GPUS),
)
def test_sums_of_all_rows_fit_shared_memory(d, clusters, digits, gpu):
    plan = all_rows_plan(d, clusters, digits, KNOWN[gpu])
    assert plan.shared_bytes <= KNOWN[gpu].shared_memory_per_block
    assert clusters * plan.columns <= plan.sums <= 1 << 16  # places have 16 bits
    assert (plan.grid[1] - 1) * plan.columns < d + 1 <= plan.grid[1] * plan.columns


@pytest.mark.compile
@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize(
    ("d", "numbers"),
    [
        (3, range(20, 1, -1)),
        (64, range(20, 1, -1)),
        (64, (32, 31, 2)),
        (64, (64, 40, 2)),
        (128, range(20, 1, -1)),
        (128, (64, 33)),
        (256, (9, 2)),
        (256, (64, 8)),
    ],
)
def test_products_compile_without_spills(d, numbers, gpu):
    plan = next(groups_of(1_000_000, d, numbers, KNOWN[gpu], 1 << 40), None)
    if plan is None:  # long rows of two fits need the shared memory of a large GPU
        assert d == 256
        assert KNOWN[gpu].shared_memory_per_block < 200_000
        return
    resources = build(plan.source, [plan.kernel], architecture_of(KNOWN[gpu].compute_capability)).resources[plan.kernel]
    assert resources.spill_stores <= 4  # a register outside of loops, at compute capability 8.0
    assert resources.registers * plan.product.threads <= 65_536
    assert plan.product.shared_bytes + resources.shared <= KNOWN[gpu].shared_memory_per_block


@pytest.mark.compile
@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize(
    ("file", "names"),
    [
        ("rescore.cuh", [f"rescore_fits<float, float, {lanes}>" for lanes in (1, 4, 16, 32)]),
        ("rescore.cuh", ["rescore_fits<double, double, 16>", "rescore_fits<ptx::Bfloat16, float, 32>"]),
        ("update.cuh", [f"scatter_add_fits<float, float, {digits}, false>" for digits in (2, 3)]),
        ("first_sums.cuh", ["place_labels", "add_all_rows<float, float, 2, false, 15360>"]),
        (
            "first_sums.cuh",
            [f"add_all_rows<{types}, 3, true, 10240>" for types in ("double, double", "ptx::Half, float")],
        ),
        ("update.cuh", ["prepare_fits<float>", "prepare_fits<double>", "update_fits<float>", "update_fits<double>"]),
    ],
)
def test_other_kernels_compile_without_spills(file, names, gpu):
    source = Path(_FOLDER, "sweep", file).read_text(encoding="utf-8")
    names = [f"kmeans::{name}" for name in names]
    resources = build(source, names, architecture_of(KNOWN[gpu].compute_capability)).resources
    for name in names:
        most = 96 if "rescore" in name else 0  # what a thread holds outside of loops
        assert resources[name].spill_stores <= most, name
