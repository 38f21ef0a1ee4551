"""simt/tsmttsm_small.cuh, its own source run on the CPU, against float64."""

import numpy as np
import pytest
from exhaustive import property_test
from faults import fault
from host_cuda import harness
from hypothesis import strategies as st
from products import assert_only_written, assert_product, build_simt_together, multiply, result

from tsapps.kernels.plan.simt import small_tsmttsm_plan
from tsapps.kernels.problem import ITEMSIZE, Layout, Problem

SIZES = [(1, 1), (2, 2), (3, 1), (3, 2), (5, 3), (4, 4), (8, 4), (16, 2)]
THREADS = 64  # fewer than there are sums of the largest, and two warps


def plan_of(dtype, m, w, along):
    size = ITEMSIZE[dtype]
    a, b = (Layout(along, 1 << 20 if along else n, 16 if along else size, 16) for n in (m, w))
    plan = small_tsmttsm_plan(Problem(m, 10_000, w, dtype, a, b))
    assert plan is not None
    return plan.__class__(plan.dtype, m, w, along, plan.depth, THREADS)


PLANS = [plan_of(dtype, m, w, along) for dtype in ITEMSIZE for m, w in SIZES for along in (True, False)]


def lines(values, along, pad=0):
    """Return an operand of n × k in memory that ends with it: lines along the depth, or across it without gaps."""
    n, k = values.shape
    if not along:
        return np.ascontiguousarray(values.T).T
    vector = 16 // values.itemsize
    leading = -(-k // vector) * vector + pad * vector
    memory = np.full((n - 1) * leading + k, np.nan, values.dtype)
    view = np.lib.stride_tricks.as_strided(memory, (n, k), (leading * values.itemsize, values.itemsize))
    view[...] = values
    return view


def check(plan, k, seed=0, pad=0, how="C", alpha=1.0, beta=0.0, multiprocessors=3, **machine):
    rng = np.random.default_rng(seed)
    A, B = (lines(rng.standard_normal((n, k)).astype(plan.dtype), plan.along, pad) for n in (plan.m, plan.w))
    C, memory = result(plan.m, plan.w, plan.dtype, how)
    C[...] = rng.standard_normal(C.shape).astype(plan.dtype) if beta else np.nan
    before = C.astype(np.float64)
    multiply(plan, A, B.T, C, alpha, beta, multiprocessors=multiprocessors, **machine)
    assert_product(C, A, B.T, alpha, beta, before)
    bits = C.tobytes()
    assert_only_written(C, memory)
    return bits


@pytest.mark.parametrize("along", [True, False])
@pytest.mark.parametrize("dtype", ITEMSIZE)
def test_two_by_two_by_hand(dtype, along):
    A, B = (lines(np.array(values).astype(dtype), along) for values in ([[1, 2], [3, 4]], [[5, 7], [6, 8]]))  # B is Bᵀ
    C = np.full((2, 2), np.nan, dtype)
    for alpha, beta in ((1.0, 0.0), (2.0, -1.0)):
        multiply(plan_of(dtype, 2, 2, along), A, B.T, C, alpha, beta)
        assert C.tolist() == [[19, 22], [43, 50]]


@pytest.mark.each_choice
@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_every_remainder_of_depths(plan):
    """Fewer depths than a piece, and blocks that go round twice and some depths more."""
    for rest in range(plan.depth):
        check(plan, rest + 1)
        check(plan, 2 * 3 * THREADS * plan.depth + rest)


@property_test(
    50,
    400,
    plan=st.sampled_from(PLANS),
    k=st.integers(1, 5000),
    pad=st.integers(0, 2),
    how=st.sampled_from(["C", "F", "wide", "strided"]),
    scale=st.sampled_from([(1.0, 0.0), (-0.5, 0.0), (2.0, 1.0), (0.0, 3.0), (1.5, -0.25)]),
    grid=st.integers(1, 70),
    seed=st.integers(0, 2**16),
)
def test_any_depth_layout_and_grid(plan, k, pad, how, scale, grid, seed):
    with harness.schedule(seed=seed):
        check(plan, k, seed, pad, how, *scale, multiprocessors=grid)


@pytest.mark.parametrize("plan", PLANS[::7], ids=str)
def test_the_same_bits_whoever_is_last(plan):
    expected = check(plan, 3000, multiprocessors=20)
    for seed in range(1, 6):
        with harness.schedule(seed=seed):
            assert check(plan, 3000, multiprocessors=20) == expected


@pytest.mark.parametrize("barrier", range(2))
def test_a_missing_barrier_is_caught(barrier):
    plan = plan_of("float32", 8, 4, True)
    edit = fault(plan.header, "__syncthreads();", occurrence=barrier)
    with pytest.raises(AssertionError, match="elements are off"):
        check_in_schedules(plan, edit)


def check_in_schedules(plan, edit):
    for seed in range(12):
        with harness.schedule(seed=seed):
            check(plan, 3000, edit=edit)


def run_in_exact_memory():
    """For a process under AddressSanitizer: no element beyond the operands' last."""
    plans = [plan_of(dtype, m, w, along) for dtype in ITEMSIZE for m, w in ((3, 2), (8, 4)) for along in (True, False)]
    build_simt_together(plans, len(plans))
    for plan in plans:
        for k in (1, 7, 64, 3 * 64 * 8 - 1):
            check(plan, k, flags=harness.SANITIZE)


@pytest.mark.exhaustive
def test_nothing_is_touched_out_of_bounds():
    run = harness.run_sanitized(f"import runpy; runpy.run_path({__file__!r})['run_in_exact_memory']()")
    assert run.returncode == 0, run.stderr


def test_which_products_it_is_for():
    def plan(m, w, a, b, dtype="float32"):
        return small_tsmttsm_plan(Problem(m, 10_000, w, dtype, a, b))

    across, along = Layout(False, 4, 16, 16), Layout(True, 10_000, 16, 16)
    assert plan(4, 4, across, across).depth == 1
    assert plan(4, 4, along, along).depth == 4
    assert plan(4, 3, across, Layout(False, 3, 4, 16)).depth == 4
    assert plan(4, 4, across, along) is None
    assert plan(4, 4, Layout(False, 5, 4, 16), across) is None  # a gap between lines
    assert plan(4, 4, along, Layout(True, 10_001, 4, 16)) is None  # lines that are not aligned
    assert plan(9, 8, along, along) is None
    assert plan(8, 8, along, along, "float64") is None
