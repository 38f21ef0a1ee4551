"""simt/tsmttsm_small.cuh, its own source run on the CPU, against float64."""

from functools import cache

import numpy as np
import pytest
from host_cuda import harness
from host_cuda.tall_skinny import DTYPES, UNTOUCHED, assert_product, libraries_of, result
from hypothesis import given, settings
from hypothesis import strategies as st

from tsapps.kernels.plan.mma import ELEMENT, SUM, MmaPlan
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


PLANS = [plan_of(dtype, m, w, along) for dtype in DTYPES for m, w in SIZES for along in (True, False)]


def name_of(plan):
    return f"run_{plan.dtype}_{plan.m}_{plan.w}_{'along' if plan.along else 'across'}"


def source(plans):
    entries = [
        f"""
extern "C" void {name_of(plan)}(const void* A, long long lda, const void* B, long long ldb, void* C, long long c_row,
    long long c_column, long long k, void* partial, unsigned* arrived, double alpha, double beta, long long grid) {{
  using T = {ELEMENT[plan.dtype]};
  using Sum = {SUM[plan.dtype]};
  cuda_host::launch(dim3(grid), {plan.threads}, 0, [=] {{
    {plan.kernel()}(static_cast<const T*>(A), lda, static_cast<const T*>(B), ldb, static_cast<T*>(C), c_row, c_column,
                    k, static_cast<Sum*>(partial), arrived, Sum(alpha), Sum(beta));
  }});
}}"""
        for plan in plans
    ]
    return "\n".join(['#include "kernels/tsm2/simt/tsmttsm_small.cuh"', *entries])


@cache
def libraries():
    return libraries_of(PLANS, source, name_of)


@pytest.fixture(scope="module", name="libraries")
def _libraries():
    return libraries()


def lines(values, along, pad):
    """Return an operand of n × k as the kernel reads it, in memory that ends with it, and its leading dimension."""
    n, k = values.shape
    if not along:
        return np.ascontiguousarray(values.T), n
    leading = -(-k // (16 // values.itemsize)) * (16 // values.itemsize) + pad * (16 // values.itemsize)
    memory = np.full((n - 1) * leading + k, np.nan, values.dtype)
    np.lib.stride_tricks.as_strided(memory, (n, k), (leading * values.itemsize, values.itemsize))[...] = values
    return memory, leading


def check(libraries, plan, k, seed=0, pad=0, how="C", alpha=1.0, beta=0.0, grid=3):
    rng, dtype = np.random.default_rng(seed), DTYPES[plan.dtype]
    A, B = (rng.standard_normal((n, k)).astype(dtype) for n in (plan.m, plan.w))
    (a, lda), (b, ldb) = lines(A, plan.along, pad), lines(B, plan.along, pad)
    C, memory = result(plan.m, plan.w, dtype, how)
    C[...] = rng.standard_normal(C.shape).astype(dtype) if beta else np.nan
    before = C.astype(np.float64)
    partial = np.full(grid * plan.m * plan.w, np.nan, np.float64 if SUM[plan.dtype] == "double" else np.float32)
    arrived, name = np.zeros(1, np.uint32), name_of(plan)
    strides = (stride // C.itemsize for stride in C.strides)
    libraries[name].call(name, a, lda, b, ldb, C, *strides, k, partial, arrived, alpha, beta, grid)
    assert not arrived.any()
    # float32 is not taken apart here: the bound of six products is the least that there is.
    assert_product(C, A, B.T, MmaPlan(plan.dtype, 16, 8, 8, products=6), alpha, beta, before)
    bits = C.tobytes()
    C[...] = UNTOUCHED
    assert (memory == dtype(UNTOUCHED)).all(), "memory around C was written"
    return bits


@pytest.mark.parametrize("along", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_two_by_two_by_hand(libraries, dtype, along):
    plan = plan_of(dtype, 2, 2, along)
    A, B = (np.array(values).astype(DTYPES[dtype]) for values in ([[1, 2], [3, 4]], [[5, 7], [6, 8]]))  # B is Bᵀ
    (a, lda), (b, ldb) = lines(A, along, 0), lines(B, along, 0)
    C, partial, arrived = np.full((2, 2), np.nan, DTYPES[dtype]), np.zeros(4), np.zeros(1, np.uint32)
    for alpha, beta in ((1.0, 0.0), (2.0, -1.0)):
        libraries[name_of(plan)].call(name_of(plan), a, lda, b, ldb, C, 2, 1, 2, partial, arrived, alpha, beta, 1)
        assert C.tolist() == [[19, 22], [43, 50]]


@pytest.mark.each_choice
@pytest.mark.parametrize("plan", PLANS, ids=name_of)
def test_every_remainder_of_depths(libraries, plan):
    """Fewer depths than a piece, and blocks that go round twice and some depths more."""
    for rest in range(plan.depth):
        check(libraries, plan, rest + 1)
        check(libraries, plan, 2 * 3 * THREADS * plan.depth + rest)


@given(
    plan=st.sampled_from(PLANS),
    k=st.integers(1, 5000),
    pad=st.integers(0, 2),
    how=st.sampled_from(["C", "F", "wide", "strided"]),
    scale=st.sampled_from([(1.0, 0.0), (-0.5, 0.0), (2.0, 1.0), (0.0, 3.0), (1.5, -0.25)]),
    grid=st.integers(1, 70),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=200, deadline=None)
def test_any_depth_layout_and_grid(libraries, plan, k, pad, how, scale, grid, seed):
    with harness.schedule(seed=seed):
        check(libraries, plan, k, seed, pad, how, *scale, grid)


@pytest.mark.parametrize("plan", PLANS[::7], ids=name_of)
def test_the_same_bits_whoever_is_last(libraries, plan):
    expected = check(libraries, plan, 3000, grid=20)
    for seed in range(1, 6):
        with harness.schedule(seed=seed):
            assert check(libraries, plan, 3000, grid=20) == expected


@pytest.mark.parametrize("barrier", range(2))
def test_a_missing_barrier_is_caught(barrier):
    pieces = (
        (harness.ROOT / "kernels/tsm2/simt/tsmttsm_small.cuh").read_text(encoding="utf-8").split("__syncthreads();")
    )
    assert len(pieces) == 3
    text = "__syncthreads();".join(pieces[: barrier + 1]) + "__syncthreads();".join(pieces[barrier + 1 :])
    plan = plan_of("float32", 8, 4, True)
    library = harness.build(source([plan]).replace('#include "kernels/tsm2/simt/tsmttsm_small.cuh"', text))
    with pytest.raises(AssertionError, match="elements are off"):
        check_in_schedules(library, plan)


def check_in_schedules(library, plan):
    for seed in range(12):
        with harness.schedule(seed=seed):
            check({name_of(plan): library}, plan, 3000)


def run_in_exact_memory():
    """For a process under AddressSanitizer: no element beyond the operands' last."""
    plans = [plan_of(dtype, m, w, along) for dtype in DTYPES for m, w in ((3, 2), (8, 4)) for along in (True, False)]
    library = harness.build(source(plans), harness.SANITIZE)
    for plan in plans:
        for k in (1, 7, 64, 3 * 64 * 8 - 1):
            check({name_of(plan): library}, plan, k)


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
