"""simt/tsm2l_rows.cuh and simt/tsm2l_wide.cuh, their own source run on the CPU, against float64."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from host_cuda import harness
from host_cuda.tall_skinny import DTYPES, UNTOUCHED, assert_product, libraries_of
from hypothesis import given, settings
from hypothesis import strategies as st

from tsapps.kernels.gpu_specs import KNOWN
from tsapps.kernels.plan.candidates import candidates
from tsapps.kernels.plan.mma import ELEMENT, SUM, MmaPlan
from tsapps.kernels.plan.simt import RowsPlan, WidePlan
from tsapps.kernels.problem import Layout, Problem

# k and w: with 1, powers of two and others, and the most elements of B.
SIZES = [(1, 1), (1, 2), (2, 2), (2, 3), (3, 1), (3, 3), (4, 4), (5, 6), (7, 9), (8, 4), (8, 8), (16, 2), (16, 4)]
THREADS = 32


def plan_of(dtype, k, w):
    """Return the plan that is made for operands without gaps, of few threads so that few rows are many blocks."""
    a, b = Layout(True, k, 16, 16), Layout(False, w, 16, 16)
    return replace(candidates(Problem(10_000, k, w, dtype, a, b, c="packed"), KNOWN["H200"])[0], threads=THREADS)


PLANS = [plan_of(dtype, k, w) for dtype in DTYPES for k, w in SIZES]
# Two pieces on their way, and rows that are more than are whole vectors.
PLANS += [RowsPlan(dtype, 2, 3, 16, ahead=2, threads=THREADS) for dtype in DTYPES]
# Rows of whole vectors, and rows that begin anywhere in one.
WIDE = [(1, 64, 4), (2, 33, 1), (3, 40, 2), (4, 17, 4), (8, 9, 1)]
PLANS += [WidePlan(dtype, *sizes) for dtype in DTYPES for sizes in WIDE]


def name_of(plan):
    return f"run_{plan.kernel_name}_{plan.dtype}_{plan.k}_{plan.w}_{plan.rows}_{plan.ahead}"


def block_rows(plan):
    """Rows that a block has at a time."""
    return plan.rows * plan.threads if isinstance(plan, RowsPlan) else plan.rows


def source(plans):
    entries = [
        f"""
extern "C" void {name_of(plan)}(const void* A, const void* B, long long b_row, long long b_column, void* C, long long m,
                               double alpha, double beta, long long grid) {{
  using T = {ELEMENT[plan.dtype]};
  using Sum = {SUM[plan.dtype]};
  cuda_host::launch(dim3(grid), {plan.threads}, 0, [=] {{
    {plan.kernel()}(static_cast<const T*>(A), static_cast<const T*>(B), b_row, b_column, static_cast<T*>(C), m,
                    Sum(alpha), Sum(beta));
  }});
}}"""
        for plan in plans
    ]
    return "\n".join([*(f'#include "kernels/tsm2/simt/tsm2l_{kind}.cuh"' for kind in ("rows", "wide")), *entries])


@cache
def libraries():
    return libraries_of(PLANS, source, name_of)


@pytest.fixture(scope="module", name="libraries")
def _libraries():
    return libraries()


def multiply(libraries, plan, A, B, C, alpha=1.0, beta=0.0, grid=3):
    strides = (stride // B.itemsize for stride in B.strides)
    name = name_of(plan)
    libraries[name].call(name, A, B, *strides, C, len(A), alpha, beta, grid)


def laid(B, how):
    """Return B with the strides of a row-major, a column-major or a strided matrix; what lies between is NaN."""
    if how == "strided":
        memory = np.full((3 * B.shape[0], 2 * B.shape[1]), np.nan, B.dtype)
        memory[::3, ::2] = B
        return memory[::3, ::2]
    return np.asarray(B, order=how)


def check(libraries, plan, m, seed=0, how="C", alpha=1.0, beta=0.0, grid=3):
    rng, dtype = np.random.default_rng(seed), DTYPES[plan.dtype]
    A = rng.standard_normal((m, plan.k)).astype(dtype)
    B = laid(rng.standard_normal((plan.k, plan.w)).astype(dtype), how)
    memory = np.full((m + 64, plan.w), UNTOUCHED, dtype)
    C = memory[:m]
    # With beta = 0, C is not read.
    C[...] = rng.standard_normal(C.shape).astype(dtype) if beta else np.nan
    before = C.astype(np.float64)
    multiply(libraries, plan, A, B, C, alpha, beta, grid)
    # Float32 is not taken apart here: the bound of six products is larger than that of one.
    assert_product(C, A, B, MmaPlan(plan.dtype, 16, 8, 8, products=6), alpha, beta, before)
    assert (memory[m:] == dtype(UNTOUCHED)).all(), "memory beyond C was written"


@pytest.mark.parametrize("dtype", DTYPES)
def test_two_by_two_by_hand(libraries, dtype):
    A, B = (np.array(values).astype(DTYPES[dtype]) for values in ([[1, 2], [3, 4]], [[5, 6], [7, 8]]))
    C = np.full((2, 2), np.nan, DTYPES[dtype])
    multiply(libraries, plan_of(dtype, 2, 2), A, B, C)
    assert C.tolist() == [[19, 22], [43, 50]]
    multiply(libraries, plan_of(dtype, 2, 2), A, B, C, alpha=2.0, beta=-1.0)
    assert C.tolist() == [[19, 22], [43, 50]]


@pytest.mark.each_choice
@pytest.mark.parametrize("plan", PLANS, ids=name_of)
def test_every_remainder_of_rows(libraries, plan):
    """One block that goes round twice, from whole pieces to one row less than another piece."""
    for rest in range(min(plan.rows, 40)):
        check(libraries, plan, 2 * block_rows(plan) + rest, grid=1)
        check(libraries, plan, rest + 1)


@given(
    plan=st.sampled_from(PLANS),
    m=st.integers(1, 2000),
    how=st.sampled_from(["C", "F", "strided"]),
    scale=st.sampled_from([(1.0, 0.0), (-0.5, 0.0), (2.0, 1.0), (0.0, 3.0), (1.5, -0.25)]),
    grid=st.integers(1, 9),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=200, deadline=None)
def test_any_rows_strides_and_grid(libraries, plan, m, how, scale, grid, seed):
    with harness.schedule(seed=seed):
        check(libraries, plan, m, seed, how, *scale, grid)


def run_in_exact_memory():
    """For a process under AddressSanitizer: no element beyond the matrices' last."""
    plans = [
        plan_of(dtype, *sizes) for dtype in ("float64", "float32", "float16") for sizes in ((2, 3), (5, 6), (16, 2))
    ]
    plans += [WidePlan(dtype, *sizes) for dtype in ("float64", "float32", "float16") for sizes in WIDE]
    library = harness.build(source(plans), harness.SANITIZE)
    rng = np.random.default_rng(0)
    for plan in plans:
        for m in (1, plan.rows, 3 * plan.rows + 1, 3 * block_rows(plan) - 1):
            A, B = (rng.standard_normal(shape).astype(plan.dtype) for shape in ((m, plan.k), (plan.k, plan.w)))
            C = np.full((m, plan.w), np.nan, plan.dtype)
            multiply({name_of(plan): library}, plan, A, B, C)
            assert_product(C, A, B, MmaPlan(plan.dtype, 16, 8, 8, products=6))


@pytest.mark.exhaustive
def test_nothing_is_touched_out_of_bounds():
    run = harness.run_sanitized(f"import runpy; runpy.run_path({__file__!r})['run_in_exact_memory']()")
    assert run.returncode == 0, run.stderr
