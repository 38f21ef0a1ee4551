"""TSM2 as published, V0 to V3: the kernels' own source, run on the CPU, against float64."""

from functools import cache
from pathlib import Path

import numpy as np
import oracle
import pytest
from exhaustive import property_test
from faults import replaced
from host_cuda import harness
from host_cuda.machine import HostMachine
from hypothesis import strategies as st

from tsapps import kernels
from tsapps.kernels.jit.compiler import build
from tsapps.kernels.ladder.launch import PAPER_KERNELS, tsm2_paper

SOURCE = (Path(kernels.__file__).parent / "ladder/tsm2_paper.cuh").read_text(encoding="utf-8")
SCALARS = {"float": np.float32, "double": np.float64}
T1, T2, T3 = (32, 64, 128), (1, 2, 4, 8), (1, 2, 4)
# V0 uses neither t2 nor t3, V1 not t3.
VARIANTS = {
    "v0": [(1, 1)],
    "v1": [(t2, 1) for t2 in T2],
    "v2": [(t2, t3) for t2 in T2 for t3 in T3],
    "v3": [(t2, t3) for t2 in T2 for t3 in T3],
}
CASES = [(variant, t2, t3) for variant, tiles in VARIANTS.items() for t2, t3 in tiles]
UNTOUCHED = -12345.0


def entry(variant, scalar, t1, t2, t3):
    return f"""
extern "C" void {variant}_{scalar}_{t1}_{t2}_{t3}(const {scalar}* A, const {scalar}* B, {scalar}* C, long long m,
    long long k, long long w, long long lda, long long ldb, long long ldc) {{
  cuda_host::launch((m + {t1} - 1) / {t1}, {t1}, 0,
                    [=] {{ tsm2::tsm2_{variant}<{scalar}, {t1}, {t2}, {t3}>(A, B, C, m, k, w, lda, ldb, ldc); }});
}}"""


@cache
def library(scalar, t1):
    """All variants of one scalar and block size."""
    return harness.build(SOURCE + "".join(entry(variant, scalar, t1, t2, t3) for variant, t2, t3 in CASES))


def altered(variant, old, new, occurrence=0):
    """One float kernel with t1, t2, t3 = 64, 4, 2 and `old` replaced by `new` at one of its occurrences."""
    return replaced(SOURCE, old, new, occurrence, "the source") + entry(variant, "float", 64, 4, 2)


def column_major(values, leading_dimension, outside):
    """Return a copy of a matrix, column-major, and the memory it lies in: columns of `leading_dimension` elements."""
    rows, columns = values.shape
    memory = np.full((columns, leading_dimension), outside, values.dtype)
    memory[:, :rows] = values.T
    return memory


def multiply(kernels, name, A, B, pads=(0, 0, 0)):
    """Run a kernel on A·B; what lies outside the matrices is NaN, and must stay as it was around C."""
    (m, k), w = A.shape, B.shape[1]
    lda, ldb, ldc = m + pads[0], k + pads[1], m + pads[2]
    a, b = column_major(A, lda, np.nan), column_major(B, ldb, np.nan)
    c = np.full((w, ldc), UNTOUCHED, A.dtype)
    kernels.call(name, a, b, c, m, k, w, lda, ldb, ldc)
    np.testing.assert_array_equal(c[:, m:], UNTOUCHED)
    return c[:, :m].T


def matrices(m, k, w, dtype, seed=0):
    random = np.random.default_rng(seed)
    return random.standard_normal((m, k)).astype(dtype), random.standard_normal((k, w)).astype(dtype)


def assert_product(C, A, B):
    """|Ĉ − C| ≤ γₖ·|A|·|B|, element by element: k products, summed in any order. The reference rounds in float64."""
    exact, magnitude = A.astype(np.float64) @ B, np.abs(A.astype(np.float64)) @ np.abs(B)
    k = A.shape[1]
    late = np.abs(C - exact) - (oracle.gamma(k, C.dtype) + oracle.gamma(k, np.float64)) * magnitude
    # NaN, which poisoned memory gives, is not at most zero.
    assert np.all(late <= 0), f"{np.count_nonzero(~(late <= 0))} of {C.size} elements are off, by {np.nanmax(late)}"


@pytest.mark.parametrize("scalar", SCALARS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_two_by_two_by_hand(variant, scalar):
    A = np.array([[1, 2], [3, 4]], SCALARS[scalar])
    B = np.array([[5, 6], [7, 8]], SCALARS[scalar])
    t2, t3 = VARIANTS[variant][-1]
    C = multiply(library(scalar, 32), f"{variant}_{scalar}_32_{t2}_{t3}", A, B)
    np.testing.assert_array_equal(C, [[19, 22], [43, 50]])


@pytest.mark.each_choice
@pytest.mark.parametrize("scalar", SCALARS)
@pytest.mark.parametrize("t1", T1)
@pytest.mark.parametrize(("variant", "t2", "t3"), CASES)
def test_every_tile_with_ragged_edges(variant, scalar, t1, t2, t3):
    """Two blocks and a bit, two tiles of B and a bit, two groups of columns and a bit."""
    A, B = matrices(2 * t1 + 5, 2 * t1 + 3, 2 * t2 + 1, SCALARS[scalar])
    assert_product(multiply(library(scalar, t1), f"{variant}_{scalar}_{t1}_{t2}_{t3}", A, B), A, B)


@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (1, 200, 1), (200, 1, 3), (64, 64, 4), (128, 128, 8), (63, 65, 5)], ids=str
)
@pytest.mark.parametrize("variant", VARIANTS)
def test_shapes_at_the_edges_of_the_tiles(variant, shape):
    A, B = matrices(*shape, np.float64)
    t2, t3 = VARIANTS[variant][-1]
    assert_product(multiply(library("double", 64), f"{variant}_double_64_{t2}_{t3}", A, B), A, B)


@property_test(
    25,
    200,
    case=st.sampled_from(CASES),
    scalar=st.sampled_from(list(SCALARS)),
    t1=st.sampled_from(T1),
    shape=st.tuples(st.integers(1, 300), st.integers(1, 300), st.integers(1, 20)),
    pads=st.tuples(*[st.integers(0, 9)] * 3),
    seed=st.integers(0, 99),
)
def test_any_shape_leading_dimensions_and_order_of_threads(case, scalar, t1, shape, pads, seed):
    variant, t2, t3 = case
    A, B = matrices(*shape, SCALARS[scalar], seed)
    with harness.schedule(seed=seed):
        C = multiply(library(scalar, t1), f"{variant}_{scalar}_{t1}_{t2}_{t3}", A, B, pads)
    assert_product(C, A, B)


@pytest.mark.parametrize("variant", VARIANTS)
def test_same_bits_in_any_order_of_threads(variant):
    A, B = matrices(150, 140, 9, np.float32)
    t2, t3 = VARIANTS[variant][-1]
    first = multiply(library("float", 64), f"{variant}_float_64_{t2}_{t3}", A, B)
    for seed in range(1, 6):
        with harness.schedule(seed=seed, threads=1 + seed % 2):
            again = multiply(library("float", 64), f"{variant}_float_64_{t2}_{t3}", A, B)
        np.testing.assert_array_equal(again, first)


@pytest.mark.parametrize("barrier", range(SOURCE.count("__syncthreads();")))
def test_a_missing_barrier_is_caught(barrier):
    """Whichever barrier is deleted, the product is wrong, in the threads' own order and in others."""
    variant = ("v2", "v2", "v3", "v3")[barrier]
    kernels = harness.build(altered(variant, "__syncthreads();", "", barrier))
    A, B = matrices(150, 300, 9, np.float32)
    for seed in range(4):
        with harness.schedule(seed=seed):
            C = multiply(kernels, f"{variant}_float_64_4_2", A, B)
        with pytest.raises(AssertionError, match="elements are off"):
            assert_product(C, A, B)


def test_a_barrier_in_divergent_code_is_caught():
    kernels = harness.build(
        altered(
            "v3", "__syncthreads();  // the tile is complete\n      load", "if (row < m) __syncthreads();\n      load"
        )
    )
    A, B = matrices(70, 300, 9, np.float32)
    with pytest.raises(harness.KernelError, match="divergent"):
        multiply(kernels, "v3_float_64_4_2", A, B)


def test_sums_that_do_not_begin_at_zero_are_caught():
    A, B = matrices(70, 30, 9, np.float32)
    for variant, occurrence in {"v1": 0, "v2": 1}.items():
        kernels = harness.build(altered(variant, "T currC[t2] = {};", "T currC[t2];", occurrence))
        with pytest.raises(AssertionError, match="elements are off"):
            assert_product(multiply(kernels, f"{variant}_float_64_4_2", A, B), A, B)


def run_in_exact_memory(source, variants):
    """For a process under AddressSanitizer: shapes with ragged edges, and no element beyond them."""
    kernels = harness.build(source, harness.SANITIZE)
    for m, k, w in [(1, 1, 1), (64, 64, 4), (70, 130, 9)]:
        A, B = matrices(m, k, w, np.float32)
        for variant in variants:
            assert_product(multiply(kernels, f"{variant}_float_64_4_2", A, B), A, B)


def sanitized(*arguments):
    return harness.run_sanitized(f"import runpy; runpy.run_path({__file__!r})['run_in_exact_memory'](*{arguments!r})")


@pytest.mark.exhaustive
def test_nothing_is_touched_out_of_bounds():
    run = sanitized(SOURCE + "".join(entry(variant, "float", 64, 4, 2) for variant in VARIANTS), list(VARIANTS))
    assert run.returncode == 0, run.stderr


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("variant", "old", "new", "message"),
    [
        ("v2", "row < m ? row : m - 1", "row", "heap-buffer-overflow"),
        ("v1", "a < columns ?", "a < columns + t2 ?", "heap-buffer-overflow"),
        ("v3", "tile[l + b + q * t1]", "tile[l + b + q * t1 + t1]", "out of bounds"),
    ],
)
def test_out_of_bounds_is_caught(variant, old, new, message):
    run = sanitized(altered(variant, old, new), [variant])
    assert run.returncode != 0
    assert message in run.stderr
    assert "kernels.cuh" in run.stderr, "the place in the source is missing"


@pytest.mark.compile
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
def test_every_variant_compiles_without_spills(arch):
    names = [
        f"tsm2::{variant}<{scalar}, 128, {t2}, 4>"
        for variant in PAPER_KERNELS
        for scalar in ("float", "double")
        for t2 in (1, 4, 16)
    ]
    for name, used in build('#include "kernels/ladder/tsm2_paper.cuh"\n', names, arch).resources.items():
        assert used.stack == used.spill_stores == used.spill_loads == 0, name


# --- The launch -------------------------------------------------------------------------------------------------------


def drawn(xp, shape, dtype, lead):
    """Return a column-major matrix of a leading dimension."""
    rows, columns = shape
    return xp.random.default_rng(rows).standard_normal((columns, lead), dtype=dtype)[:, :rows].T


def assert_launch(xp, variant, dtype, shape, machine=None):
    m, k, w = shape
    A, B = drawn(xp, (m, k), dtype, lead=m + 3), drawn(xp, (k, w), dtype, lead=k + 1)
    C = tsm2_paper(variant, A, B, machine=machine)
    A, B = A.astype(np.float64), B.astype(np.float64)
    assert bool((abs(C - A @ B) <= oracle.gamma(k + 4, C.dtype) * (abs(A) @ abs(B))).all())


BOTH_DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])
ALL_VARIANTS = pytest.mark.parametrize("variant", PAPER_KERNELS)


@BOTH_DTYPES
@ALL_VARIANTS
@pytest.mark.parametrize("shape", [(300, 77, 5), (1, 1, 1), (130, 3, 2)], ids=str)
def test_launch(variant, dtype, shape):
    assert_launch(np, variant, dtype, shape, HostMachine())


@pytest.mark.gpu
@BOTH_DTYPES
@ALL_VARIANTS
@pytest.mark.parametrize("shape", [(1000, 777, 5), (4096, 2048, 16), (1, 1, 1), (130, 3, 2)], ids=str)
def test_launch_on_a_gpu(variant, dtype, shape):
    cupy = pytest.importorskip("cupy", reason="needs a GPU: CuPy is not installed")
    assert_launch(cupy, variant, dtype, shape)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"A": lambda A: A.T.copy().T[:, :5]}, r"A has shape \(8, 5\) and B \(6, 2\)"),
        ({"A": lambda A: A.copy(order="C")}, "expected column-major"),
        ({"A": lambda A: A.astype(np.float16)}, "expected float32 or float64"),
        ({"B": lambda B: B.astype(np.float64)}, "the same for both"),
        ({"B": lambda B: B[:, 0]}, r"expected \(m, k\) and \(k, n\)"),
    ],
)
def test_wrong_arguments(change, message):
    A, B = drawn(np, (8, 6), np.float32, lead=8), drawn(np, (6, 2), np.float32, lead=6)
    A, B = change.get("A", lambda x: x)(A), change.get("B", lambda x: x)(B)
    with pytest.raises(ValueError, match=message):
        tsm2_paper("tsm2_v3", A, B, machine=HostMachine())


def test_out_must_have_memory_of_its_own():
    A, B = drawn(np, (8, 6), np.float32, lead=8), drawn(np, (6, 2), np.float32, lead=6)
    with pytest.raises(ValueError, match="C overlaps A in memory"):
        tsm2_paper("tsm2_v3", A, B, out=A[:, :2], machine=HostMachine())


def test_out_whose_columns_run_backwards_is_refused():
    whole = drawn(np, (200, 32), np.float32, lead=200)
    B = drawn(np, (16, 16), np.float32, lead=16)
    with pytest.raises(ValueError, match="out has strides"):
        tsm2_paper("tsm2_v3", whole[:, :16], B, out=whole[:, 17:1:-1], machine=HostMachine())
