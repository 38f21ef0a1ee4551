"""simt/tsm2l_columns.cuh, its own source run on the CPU, against float64."""

from functools import cache

import numpy as np
import pytest
from host_cuda import harness
from host_cuda.tall_skinny import DTYPES, UNTOUCHED, assert_product, libraries_of
from hypothesis import given, settings
from hypothesis import strategies as st

from tsapps.kernels.plan.mma import ELEMENT, SUM, MmaPlan
from tsapps.kernels.plan.simt import ColumnsPlan
from tsapps.kernels.problem import ITEMSIZE

# k and w: A is kept where k is not the larger; else C is, to which columns of A are added three at a time.
SIZES = [(1, 1), (2, 2), (2, 3), (3, 2), (1, 9), (4, 4), (5, 12), (12, 5), (6, 1), (16, 3), (3, 33)]
PLANS = [ColumnsPlan(dtype, k, w, ahead=3, threads=32) for dtype in DTYPES for k, w in SIZES]
PLANS += [ColumnsPlan(dtype, 3, 7, threads=32, streams=True) for dtype in DTYPES]


def name_of(plan):
    return f"run_{plan.dtype}_{plan.k}_{plan.w}"


def source(plans):
    entries = [
        f"""
extern "C" void {name_of(plan)}(const void* A, long long lda, const void* B, long long b_row, long long b_column,
                               void* C, long long ldc, long long m, double alpha, double beta, long long grid) {{
  using T = {ELEMENT[plan.dtype]};
  using Sum = {SUM[plan.dtype]};
  cuda_host::launch(dim3(grid), {plan.threads}, 0, [=] {{
    {plan.kernel()}(static_cast<const T*>(A), lda, static_cast<const T*>(B), b_row, b_column, static_cast<T*>(C), ldc,
                    m, Sum(alpha), Sum(beta));
  }});
}}"""
        for plan in plans
    ]
    return "\n".join(['#include "kernels/tsm2/simt/tsm2l_columns.cuh"', *entries])


@cache
def libraries():
    return libraries_of(PLANS, source, name_of)


@pytest.fixture(scope="module", name="libraries")
def _libraries():
    return libraries()


def columns(values, pad, outside=np.nan):
    """Return a copy of a matrix whose columns begin at multiples of 16 bytes, and the memory, which ends with it."""
    m, n = values.shape
    vector = 16 // values.itemsize
    leading = -(-m // vector) * vector + pad * vector
    memory = np.full((n - 1) * leading + m, outside, values.dtype)
    view = np.lib.stride_tricks.as_strided(memory, (m, n), (values.itemsize, leading * values.itemsize))
    view[...] = values
    return view, memory, leading


def check(libraries, plan, m, seed=0, order="C", pads=(0, 0), alpha=1.0, beta=0.0, grid=2):
    rng, dtype = np.random.default_rng(seed), DTYPES[plan.dtype]
    A, _, lda = columns(rng.standard_normal((m, plan.k)).astype(dtype), pads[0])
    B = np.asarray(rng.standard_normal((plan.k, plan.w)).astype(dtype), order=order)
    # With beta = 0, C is not read.
    old = rng.standard_normal((m, plan.w)) if beta else np.full((m, plan.w), np.nan)
    C, memory, ldc = columns(old.astype(dtype), pads[1], UNTOUCHED)
    before = C.astype(np.float64)
    strides = (stride // B.itemsize for stride in B.strides)
    libraries[name_of(plan)].call(name_of(plan), A, lda, B, *strides, C, ldc, m, alpha, beta, grid)
    # float32 is not taken apart here: the bound of six products is the least that there is.
    assert_product(C, A, B, MmaPlan(plan.dtype, 16, 8, 8, products=6), alpha, beta, before)
    C[...] = UNTOUCHED
    assert (memory == dtype(UNTOUCHED)).all(), "memory between the columns of C was written"


@pytest.mark.parametrize("dtype", DTYPES)
def test_two_by_two_by_hand(libraries, dtype):
    plan = ColumnsPlan(dtype, 2, 2, ahead=3, threads=32)
    A, _, lda = columns(np.array([[1, 2], [3, 4]]).astype(DTYPES[dtype]), 0)
    B = np.array([[5, 6], [7, 8]]).astype(DTYPES[dtype])
    C, _, ldc = columns(np.full((2, 2), np.nan).astype(DTYPES[dtype]), 0)
    for alpha, beta in ((1.0, 0.0), (2.0, -1.0)):
        libraries[name_of(plan)].call(name_of(plan), A, lda, B, 2, 1, C, ldc, 2, alpha, beta, 1)
        assert C.tolist() == [[19, 22], [43, 50]]


@pytest.mark.parametrize("plan", PLANS, ids=name_of)
def test_every_remainder_of_rows(libraries, plan):
    """One block that goes round twice and some rows more, which may be fewer than a vector."""
    rows = 16 // ITEMSIZE[plan.dtype]
    for rest in range(rows):
        check(libraries, plan, 2 * 32 * rows + rest, grid=1)
        check(libraries, plan, rest + 1)


@given(
    plan=st.sampled_from(PLANS),
    m=st.integers(1, 2000),
    order=st.sampled_from("CF"),
    pads=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    scale=st.sampled_from([(1.0, 0.0), (-0.5, 0.0), (2.0, 1.0), (0.0, 3.0), (1.5, -0.25)]),
    grid=st.integers(1, 9),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=200, deadline=None)
def test_any_rows_leading_dimensions_and_grid(libraries, plan, m, order, pads, scale, grid, seed):
    with harness.schedule(seed=seed):
        check(libraries, plan, m, seed, order, pads, *scale, grid)


def test_a_missing_barrier_is_caught():
    text = (harness.ROOT / "kernels/tsm2/simt/tsm2l_columns.cuh").read_text(encoding="utf-8")
    assert text.count("__syncthreads();") == 1
    plan = ColumnsPlan("float32", 12, 5, ahead=3, threads=64)
    include = '#include "kernels/tsm2/simt/tsm2l_columns.cuh"'
    library = harness.build(source([plan]).replace(include, text.replace("__syncthreads();", "")))
    with pytest.raises(AssertionError, match="elements are off"), harness.schedule(seed=1):
        check({name_of(plan): library}, plan, 200)


def run_in_exact_memory():
    """For a process under AddressSanitizer: no element beyond the matrices' last."""
    plans = [ColumnsPlan(dtype, k, w, threads=32) for dtype in ("float64", "float32", "float16") for k, w in SIZES[2:5]]
    library = harness.build(source(plans), harness.SANITIZE)
    for plan in plans:
        for m in (1, 7, 16, 3 * 32 * 8 - 1):
            check({name_of(plan): library}, plan, m)


def test_nothing_is_touched_out_of_bounds():
    run = harness.run_sanitized(f"import runpy; runpy.run_path({__file__!r})['run_in_exact_memory']()")
    assert run.returncode == 0, run.stderr
