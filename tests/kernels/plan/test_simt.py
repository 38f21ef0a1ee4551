"""Plans of the kernels without tensor cores, and what they compile to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsapps.kernels.dispatch import compile_any
from tsapps.kernels.plan.simt import SPLIT_INSTANCES, split_plan
from tsapps.kernels.problem import Layout, Problem

ARCHITECTURES = ["sm_80", "sm_90a", "sm_100a"]
REGISTERS_OF_AN_SM = 65_536


def columns(m, k, w, dtype, *, lead=None, alignment=16):
    """The problem of a column-major A, B and C."""
    a = Layout(False, lead or m, alignment, alignment)
    return Problem(m, k, w, dtype, a, Layout(True, k, 16, 16), c="columns")


@pytest.mark.each_choice
@pytest.mark.compile
@pytest.mark.parametrize("alignment", [16, 4])
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize(("itemsize", "w"), SPLIT_INSTANCES)
def test_every_plan_compiles_without_spills_and_as_small_as_planned(arch, itemsize, w, alignment):
    dtype = {2: "float16", 4: "float32", 8: "float64"}[itemsize]
    plan = split_plan(columns(10_000, 10_000, w, dtype, alignment=max(alignment, itemsize)), 132)
    used = compile_any(plan, arch)
    assert used.stack == used.spill_stores == used.spill_loads == 0
    # Registers are given out by eight to a thread.
    if alignment == 16 and arch == "sm_90a":
        blocks = SPLIT_INSTANCES[itemsize, w][2]
        assert -(-used.registers // 8) * 8 * plan.threads * blocks <= REGISTERS_OF_AN_SM, used.registers


@given(
    m=st.integers(65, 10**6),
    k=st.integers(65, 10**6),
    w=st.integers(1, 4),
    dtype=st.sampled_from(["float16", "bfloat16", "float32", "float64"]),
    multiprocessors=st.integers(1, 200),
)
def test_splits_cover_k_and_fill_one_wave_at_most(m, k, w, dtype, multiprocessors):
    problem = columns(m, k, w, dtype)
    plan = split_plan(problem, multiprocessors)
    assert plan.splits * plan.per_split >= k > (plan.splits - 1) * plan.per_split
    assert plan.per_split % 64 == 0
    assert 1 <= plan.splits <= 65_535
    blocks = -(-m // (plan.threads * 16 // problem.itemsize)) * -(-w // plan.width)
    resident = multiprocessors * SPLIT_INSTANCES[problem.itemsize, plan.width][2]
    assert plan.splits == 1 or plan.splits * blocks <= resident


def test_plan_by_hand():
    # 10240 rows of float32, four to a thread, 128 threads a block: 20 blocks. Five fit an SM, so 132 SMs hold 660: 33
    # splits of k. 10240 columns are 160 tiles of 64, five to a split: 32 splits.
    plan = split_plan(columns(10_240, 10_240, 1, "float32"), 132)
    assert (plan.width, plan.threads, plan.splits, plan.per_split) == (1, 128, 32, 320)
