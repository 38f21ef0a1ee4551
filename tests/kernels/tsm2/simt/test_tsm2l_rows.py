"""simt/tsm2l_rows.cuh and simt/tsm2l_wide.cuh, their own source run on the CPU, against float64."""

from dataclasses import replace

import numpy as np
import pytest
from exhaustive import property_test
from host_cuda import harness
from hypothesis import strategies as st
from products import UNTOUCHED, assert_only_written, assert_product, build_simt_together, multiply, placed

from tsapps.kernels.gpu_specs import KNOWN
from tsapps.kernels.plan.candidates import candidates
from tsapps.kernels.plan.simt import RowsPlan, WidePlan
from tsapps.kernels.problem import ITEMSIZE, Layout, Problem

# k and w: with 1, powers of two and others, and the most elements of B.
SIZES = [(1, 1), (1, 2), (2, 2), (2, 3), (3, 1), (3, 3), (4, 4), (5, 6), (7, 9), (8, 4), (8, 8), (16, 2), (16, 4)]
THREADS = 32


def plan_of(dtype, k, w):
    """Return the plan that is made for operands without gaps, of few threads so that few rows are many blocks."""
    a, b = Layout(True, k, 16, 16), Layout(False, w, 16, 16)
    return replace(candidates(Problem(10_000, k, w, dtype, a, b, c="packed"), KNOWN["H200"])[0], threads=THREADS)


PLANS = [plan_of(dtype, k, w) for dtype in ITEMSIZE for k, w in SIZES]
# Two pieces on their way, and rows that are more than are whole vectors.
PLANS += [RowsPlan(dtype, 2, 3, 16, ahead=2, threads=THREADS) for dtype in ITEMSIZE]
# Rows of whole vectors, and rows that begin anywhere in one.
WIDE = [(1, 64, 4), (2, 33, 1), (3, 40, 2), (4, 17, 4), (8, 9, 1)]
PLANS += [WidePlan(dtype, *sizes) for dtype in ITEMSIZE for sizes in WIDE]


def block_rows(plan):
    """Rows that a block has at a time."""
    return plan.rows * plan.threads if isinstance(plan, RowsPlan) else plan.rows


def check(plan, m, seed=0, order="C", pad=0, alpha=1.0, beta=0.0, multiprocessors=3, room=64, **machine):
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((m, plan.k)).astype(plan.dtype)
    B = placed(rng.standard_normal((plan.k, plan.w)).astype(plan.dtype), order, pad)
    memory = np.full((m + room, plan.w), UNTOUCHED, plan.dtype)
    C = memory[:m]
    # With beta = 0, C is not read.
    C[...] = rng.standard_normal(C.shape).astype(plan.dtype) if beta else np.nan
    before = C.astype(np.float64)
    multiply(plan, A, B, C, alpha, beta, multiprocessors=multiprocessors, **machine)
    assert_product(C, A, B, alpha, beta, before)
    assert_only_written(C, memory)


@pytest.mark.parametrize("dtype", ITEMSIZE)
def test_two_by_two_by_hand(dtype):
    A, B = (np.array(values).astype(dtype) for values in ([[1, 2], [3, 4]], [[5, 6], [7, 8]]))
    C = np.full((2, 2), np.nan, dtype)
    for alpha, beta in ((1.0, 0.0), (2.0, -1.0)):
        multiply(plan_of(dtype, 2, 2), A, B, C, alpha, beta)
        assert C.tolist() == [[19, 22], [43, 50]]


@pytest.mark.each_choice
@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_every_remainder_of_rows(plan):
    """One block that goes round twice, from whole pieces to one row less than another piece."""
    for rest in range(min(plan.rows, 40)):
        check(plan, 2 * block_rows(plan) + rest, multiprocessors=1)
        check(plan, rest + 1)


@property_test(
    50,
    400,
    plan=st.sampled_from(PLANS),
    m=st.integers(1, 2000),
    order=st.sampled_from("CF"),
    pad=st.integers(0, 3),
    scale=st.sampled_from([(1.0, 0.0), (-0.5, 0.0), (2.0, 1.0), (0.0, 3.0), (1.5, -0.25)]),
    grid=st.integers(1, 9),
    seed=st.integers(0, 2**16),
)
def test_any_rows_strides_and_grid(plan, m, order, pad, scale, grid, seed):
    with harness.schedule(seed=seed):
        check(plan, m, seed, order, pad, *scale, multiprocessors=grid)


def run_in_exact_memory():
    """For a process under AddressSanitizer: no element beyond the matrices' last."""
    plans = [
        plan_of(dtype, *sizes) for dtype in ("float64", "float32", "float16") for sizes in ((2, 3), (5, 6), (16, 2))
    ]
    plans += [WidePlan(dtype, *sizes) for dtype in ("float64", "float32", "float16") for sizes in WIDE]
    build_simt_together(plans, len(plans))
    for plan in plans:
        for m in (1, plan.rows, 3 * plan.rows + 1, 3 * block_rows(plan) - 1):
            check(plan, m, room=0, flags=harness.SANITIZE)


@pytest.mark.exhaustive
def test_nothing_is_touched_out_of_bounds():
    run = harness.run_sanitized(f"import runpy; runpy.run_path({__file__!r})['run_in_exact_memory']()")
    assert run.returncode == 0, run.stderr
