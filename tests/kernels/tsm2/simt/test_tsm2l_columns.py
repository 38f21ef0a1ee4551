"""simt/tsm2l_columns.cuh, its own source run on the CPU, against float64."""

import numpy as np
import pytest
from exhaustive import property_test
from faults import fault
from host_cuda import harness
from hypothesis import strategies as st
from products import UNTOUCHED, assert_only_written, assert_product, build_simt_together, multiply

from tsapps.kernels.plan.simt import ColumnsPlan
from tsapps.kernels.problem import ITEMSIZE

# k and w: A is kept where k is not the larger; else C is, to which columns of A are added three at a time.
SIZES = [(1, 1), (2, 2), (2, 3), (3, 2), (1, 9), (4, 4), (5, 12), (12, 5), (6, 1), (16, 3), (3, 33)]
PLANS = [ColumnsPlan(dtype, k, w, ahead=3, threads=32) for dtype in ITEMSIZE for k, w in SIZES]
PLANS += [ColumnsPlan(dtype, 3, 7, threads=32, streams=True) for dtype in ITEMSIZE]


def columns(values, pad=0, outside=np.nan):
    """Return a copy of a matrix whose columns begin at multiples of 16 bytes, and the memory, which ends with it."""
    m, n = values.shape
    vector = 16 // values.itemsize
    leading = -(-m // vector) * vector + pad * vector
    memory = np.full((n - 1) * leading + m, outside, values.dtype)
    view = np.lib.stride_tricks.as_strided(memory, (m, n), (values.itemsize, leading * values.itemsize))
    view[...] = values
    return view, memory


def check(plan, m, seed=0, order="C", pads=(0, 0), alpha=1.0, beta=0.0, **machine):
    rng = np.random.default_rng(seed)
    A, _ = columns(rng.standard_normal((m, plan.k)).astype(plan.dtype), pads[0])
    B = np.asarray(rng.standard_normal((plan.k, plan.w)).astype(plan.dtype), order=order)
    # With beta = 0, C is not read.
    old = rng.standard_normal((m, plan.w)) if beta else np.full((m, plan.w), np.nan)
    C, memory = columns(old.astype(plan.dtype), pads[1], UNTOUCHED)
    before = C.astype(np.float64)
    multiply(plan, A, B, C, alpha, beta, **machine)
    assert_product(C, A, B, alpha, beta, before)
    assert_only_written(C, memory)


@pytest.mark.parametrize("dtype", ITEMSIZE)
def test_two_by_two_by_hand(dtype):
    plan = ColumnsPlan(dtype, 2, 2, ahead=3, threads=32)
    A, _ = columns(np.array([[1, 2], [3, 4]]).astype(dtype))
    B = np.array([[5, 6], [7, 8]]).astype(dtype)
    C, _ = columns(np.full((2, 2), np.nan).astype(dtype))
    for alpha, beta in ((1.0, 0.0), (2.0, -1.0)):
        multiply(plan, A, B, C, alpha, beta)
        assert C.tolist() == [[19, 22], [43, 50]]


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_every_remainder_of_rows(plan):
    """One block that goes round twice and some rows more, which may be fewer than a vector."""
    rows = 16 // ITEMSIZE[plan.dtype]
    for rest in range(rows):
        check(plan, 2 * 32 * rows + rest, multiprocessors=1)
        check(plan, rest + 1)


@property_test(
    50,
    400,
    plan=st.sampled_from(PLANS),
    m=st.integers(1, 2000),
    order=st.sampled_from("CF"),
    pads=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    scale=st.sampled_from([(1.0, 0.0), (-0.5, 0.0), (2.0, 1.0), (0.0, 3.0), (1.5, -0.25)]),
    grid=st.integers(1, 9),
    seed=st.integers(0, 2**16),
)
def test_any_rows_leading_dimensions_and_grid(plan, m, order, pads, scale, grid, seed):
    with harness.schedule(seed=seed):
        check(plan, m, seed, order, pads, *scale, multiprocessors=grid)


def test_a_missing_barrier_is_caught():
    plan = ColumnsPlan("float32", 12, 5, ahead=3, threads=64)
    edit = fault(plan.header, "__syncthreads();")
    with pytest.raises(AssertionError, match="elements are off"), harness.schedule(seed=1):
        check(plan, 200, edit=edit)


def run_in_exact_memory():
    """For a process under AddressSanitizer: no element beyond the matrices' last."""
    plans = [ColumnsPlan(dtype, k, w, threads=32) for dtype in ("float64", "float32", "float16") for k, w in SIZES[2:5]]
    build_simt_together(plans, len(plans))
    for plan in plans:
        for m in (1, 7, 16, 3 * 32 * 8 - 1):
            check(plan, m, flags=harness.SANITIZE)


def test_nothing_is_touched_out_of_bounds():
    run = harness.run_sanitized(f"import runpy; runpy.run_path({__file__!r})['run_in_exact_memory']()")
    assert run.returncode == 0, run.stderr
