"""simt/tsm2r_columns.cuh, its own source run on the CPU, against float64."""

import numpy as np
import pytest
from faults import fault
from host_cuda import harness
from hypothesis import given, settings
from hypothesis import strategies as st
from products import assert_product, multiply

from tsapps.kernels.plan.simt import SplitPlan

DTYPES = ("float32", "float64")
WIDTHS = (1, 4, 8)


def plan_of(dtype, width, k=1, splits=1, vector=True):
    per_split = -(-k // splits)
    return SplitPlan(dtype, width, 4, 64, 1, vector, -(-k // per_split), per_split)


PLANS = [plan_of(dtype, W, vector=vector) for dtype in DTYPES for W in WIDTHS for vector in (True, False)]


def aligned(shape, dtype):
    """Column-major memory that begins at a multiple of 16 bytes and holds NaN."""
    raw = np.full(shape[0] * shape[1] + 16, np.nan, dtype)
    first = -raw.ctypes.data % 16 // raw.itemsize
    return raw[first : first + shape[0] * shape[1]].reshape(shape, order="F")


def product(A, B, C, *, W, splits, alpha=1.0, beta=0.0, vector=True, **machine):
    multiply(plan_of(A.dtype.name, W, A.shape[1], splits, vector), A, B, C, alpha, beta, **machine)


def test_two_by_two_by_hand():
    A = aligned((4, 2), np.float64)
    A[:2] = [[1, 2], [3, 4]]
    B, C = np.array([[5.0], [6.0]]), np.full((2, 1), np.nan)
    product(A[:2], B, C, W=1, splits=1)
    assert C.tolist() == [[17], [39]]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("W", WIDTHS)
@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("vector", [True, False])
def test_against_float64(dtype, W, splits, vector):
    rng = np.random.default_rng(1)
    m, k, w = 300, 150, W + 1  # a second, ragged tile of columns
    A = aligned((m, k), dtype)
    A[:] = rng.standard_normal((m, k))
    B = rng.standard_normal((k, w)).astype(dtype)
    C = np.full((m, w), np.nan, dtype)
    product(A, B, C, W=W, splits=splits, vector=vector)
    assert_product(C, A, B)


@settings(max_examples=60, deadline=None)
@given(
    m=st.integers(1, 300),
    k=st.integers(1, 140),
    w=st.integers(1, 9),
    dtype=st.sampled_from(DTYPES),
    W=st.sampled_from(WIDTHS),
    pad=st.integers(0, 3),
    splits=st.integers(1, 5),
    scale=st.sampled_from([(1.0, 0.0), (-0.5, 0.0), (2.0, 1.0), (0.0, 3.0)]),
    orders=st.tuples(st.sampled_from("CF"), st.sampled_from("CF")),
    seed=st.integers(0, 2**20),
)
def test_any_shape_stride_and_schedule(m, k, w, dtype, W, pad, splits, scale, orders, seed):
    rng = np.random.default_rng(seed)
    V = 16 // np.dtype(dtype).itemsize
    lda = -(-m // V) * V + pad
    A = aligned((lda, k), dtype)[:m]
    A[:] = rng.standard_normal((m, k))
    B = np.asarray(rng.standard_normal((k, w)).astype(dtype), order=orders[0])
    alpha, beta = scale
    C = np.asarray(
        rng.standard_normal((m, w)).astype(dtype) if beta else np.full((m, w), np.nan, dtype), order=orders[1]
    )
    before = C.astype(np.float64)
    with harness.schedule(seed=seed):
        product(A, B, C, W=W, splits=splits, alpha=alpha, beta=beta, vector=lda % V == 0)
    assert_product(C, A, B, alpha, beta, before)


def test_same_bits_whoever_is_last():
    rng = np.random.default_rng(3)
    A = aligned((256, 500), np.float32)
    A[:] = rng.standard_normal(A.shape)
    B = rng.standard_normal((500, 3)).astype(np.float32)
    results = []
    for seed in range(4):
        C = np.full((256, 3), np.nan, np.float32)
        with harness.schedule(seed=seed):
            product(A, B, C, W=4, splits=7)
        results.append(C)
    assert all((C == results[0]).all() for C in results)


def test_a_missing_barrier_is_caught():
    before_use = "    __syncthreads();\n#pragma unroll 1\n    for (int j = 0"
    edit = fault(SplitPlan.header, before_use, before_use.split("\n", 1)[1])
    rng = np.random.default_rng(4)
    A = aligned((128, 200), np.float64)
    A[:] = rng.standard_normal(A.shape)
    B, C = rng.standard_normal((200, 4)), np.full((128, 4), np.nan)
    product(A, B, C, W=4, splits=1, edit=edit)
    assert not np.allclose(C, A @ B)
