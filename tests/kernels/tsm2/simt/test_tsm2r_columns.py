"""simt/tsm2r_columns.cuh, its own source run on the CPU, against float64."""

import numpy as np
import oracle
import pytest
from host_cuda import harness
from hypothesis import given, settings
from hypothesis import strategies as st

SCALARS = {"float": np.float32, "double": np.float64}
WIDTHS = (1, 4, 8)
THREADS = 64

# One entry point for every instance: run_<scalar>_<W>_<vector>.
SOURCE = '#include "kernels/tsm2/simt/tsm2r_columns.cuh"\n' + "\n".join(
    f"""
extern "C" void run_{T}_{W}_{vector}(const {T}* A, long long lda, const {T}* B, long long b_row, long long b_column,
    {T}* C, long long c_row, long long c_column, long long m, long long k, long long w, long long splits,
    long long per_split, {T}* partial, unsigned* arrived, double alpha, double beta) {{
  constexpr int V = 16 / sizeof({T});
  const auto tiles = [](long long size, long long tile) {{ return unsigned((size + tile - 1) / tile); }};
  const dim3 grid{{tiles(m, {THREADS} * V), unsigned(splits), tiles(w, {W})}};
  cuda_host::launch(grid, {{{THREADS}}}, 0, [=] {{
    tsm2::tsm2r_columns<{T}, {T}, {W}, 4, {THREADS}, 1, {vector}>(A, lda, B, b_row, b_column, m, k, int(w), per_split,
        partial, arrived, tsm2::StoreElement<{T}, {T}>{{C, c_row, c_column, {T}(alpha), {T}(beta)}});
  }});
}}"""
    for T in SCALARS
    for W in WIDTHS
    for vector in ("true", "false")
)


@pytest.fixture(scope="module")
def kernels():
    return harness.build(SOURCE)


def aligned(shape, dtype):
    """Column-major memory that begins at a multiple of 16 bytes and holds NaN."""
    raw = np.full(shape[0] * shape[1] + 16, np.nan, dtype)
    first = -raw.ctypes.data % 16 // raw.itemsize
    return raw[first : first + shape[0] * shape[1]].reshape(shape, order="F")


def product(kernels, A, B, C, *, lda, W, splits, alpha=1.0, beta=0.0, vector=True):
    """Run C ← alpha·A·B + beta·C; returns the tickets, which must all be zero again."""
    (m, k), w = A.shape, B.shape[1]
    scalar = {np.dtype(dtype): name for name, dtype in SCALARS.items()}[A.dtype]
    tiles = -(-m // (THREADS * 16 // A.itemsize)) * -(-w // W)
    per_split = -(-k // splits)
    splits = -(-k // per_split)
    partial = np.full(tiles * splits * THREADS * (16 // A.itemsize) * W, np.nan, A.dtype)
    arrived = np.zeros(tiles, np.uint32)
    strides = [stride // A.itemsize for stride in (*B.strides, *C.strides)]
    name = f"run_{scalar}_{W}_{'true' if vector else 'false'}"
    arguments = (A, lda, B, *strides[:2], C, *strides[2:], m, k, w, splits, per_split, partial, arrived)
    kernels.call(name, *arguments, float(alpha), float(beta))
    assert not arrived.any()


def assert_product(C, A, B, alpha=1.0, beta=0.0, C_before=None):
    """Assert the error bound of a sum of k products in any order, |C − AB| ≤ γ(k+4)·|A||B|, for alpha·AB + beta·C."""
    A64, B64 = A.astype(np.float64), B.astype(np.float64)
    expected, magnitude = alpha * (A64 @ B64), abs(alpha) * (abs(A64) @ abs(B64))
    if beta:
        expected, magnitude = expected + beta * C_before, magnitude + abs(beta * C_before)
    assert (abs(C - expected) <= oracle.gamma(A.shape[1] + 4, C.dtype) * magnitude + 1e-300).all()


def test_two_by_two_by_hand(kernels):
    A = aligned((4, 2), np.float64)
    A[:2] = [[1, 2], [3, 4]]
    B, C = np.array([[5.0], [6.0]]), np.full((2, 1), np.nan)
    product(kernels, A[:2], B, C, lda=4, W=1, splits=1)
    assert C.tolist() == [[17], [39]]


@pytest.mark.parametrize("dtype", SCALARS.values())
@pytest.mark.parametrize("W", WIDTHS)
@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("vector", [True, False])
def test_against_float64(kernels, dtype, W, splits, vector):
    rng = np.random.default_rng(1)
    m, k, w = 300, 150, W + 1  # a second, ragged tile of columns
    A = aligned((m, k), dtype)
    A[:] = rng.standard_normal((m, k))
    B = rng.standard_normal((k, w)).astype(dtype)
    C = np.full((m, w), np.nan, dtype)
    product(kernels, A, B, C, lda=m, W=W, splits=splits, vector=vector)
    assert_product(C, A, B)


@settings(max_examples=60, deadline=None)
@given(
    m=st.integers(1, 300),
    k=st.integers(1, 140),
    w=st.integers(1, 9),
    dtype=st.sampled_from(list(SCALARS.values())),
    W=st.sampled_from(WIDTHS),
    pad=st.integers(0, 3),
    splits=st.integers(1, 5),
    scale=st.sampled_from([(1.0, 0.0), (-0.5, 0.0), (2.0, 1.0), (0.0, 3.0)]),
    orders=st.tuples(st.sampled_from("CF"), st.sampled_from("CF")),
    seed=st.integers(0, 2**20),
)
def test_any_shape_stride_and_schedule(kernels, m, k, w, dtype, W, pad, splits, scale, orders, seed):
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
        product(kernels, A, B, C, lda=lda, W=W, splits=splits, alpha=alpha, beta=beta, vector=lda % V == 0)
    assert_product(C, A, B, alpha, beta, before)


def test_same_bits_whoever_is_last(kernels):
    rng = np.random.default_rng(3)
    A = aligned((256, 500), np.float32)
    A[:] = rng.standard_normal(A.shape)
    B = rng.standard_normal((500, 3)).astype(np.float32)
    results = []
    for seed in range(4):
        C = np.full((256, 3), np.nan, np.float32)
        with harness.schedule(seed=seed):
            product(kernels, A, B, C, lda=256, W=4, splits=7)
        results.append(C)
    assert all((C == results[0]).all() for C in results)


def test_a_missing_barrier_is_caught():
    text = (harness.ROOT / "kernels/tsm2/simt/tsm2r_columns.cuh").read_text()
    before_use = "    __syncthreads();\n#pragma unroll 1\n    for (int j = 0"
    assert before_use in text
    broken = harness.build(
        SOURCE.replace(
            '#include "kernels/tsm2/simt/tsm2r_columns.cuh"', text.replace(before_use, before_use.split("\n", 1)[1])
        )
    )
    rng = np.random.default_rng(4)
    A = aligned((128, 200), np.float64)
    A[:] = rng.standard_normal(A.shape)
    B, C = rng.standard_normal((200, 4)), np.full((128, 4), np.nan)
    product(broken, A, B, C, lda=128, W=4, splits=1)
    assert not np.allclose(C, A @ B)
