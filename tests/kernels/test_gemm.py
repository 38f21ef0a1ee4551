"""Plans, without a GPU; what they compile to; and the launched products, on one."""

import numpy as np
import oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsapps.kernels import gemm
from tsapps.kernels.arrays import device_matrix
from tsapps.kernels.jit.compiler import build
from tsapps.kernels.matmul import problem_of
from tsapps.kernels.plan.simt import SPLIT_INSTANCES, split_plan
from tsapps.kernels.problem import Layout, Problem

ARCHITECTURES = ["sm_80", "sm_90a", "sm_100a"]
REGISTERS_OF_AN_SM = 65_536


def columns(m, k, w, dtype, *, lead=None, alignment=16):
    """The problem of a column-major A, B and C."""
    a = Layout(False, lead or m, alignment, alignment)
    return Problem(m, k, w, dtype, a, Layout(True, k, 16, 16), c="columns")


@pytest.mark.compile
@pytest.mark.parametrize("alignment", [16, 4])
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize(("itemsize", "w"), SPLIT_INSTANCES)
def test_every_plan_compiles_without_spills_and_as_small_as_planned(arch, itemsize, w, alignment):
    dtype = {2: "float16", 4: "float32", 8: "float64"}[itemsize]
    plan = split_plan(columns(10_000, 10_000, w, dtype, alignment=max(alignment, itemsize)), 132)
    used = gemm.compile_any(plan, arch)
    assert used.stack == used.spill_stores == used.spill_loads == 0
    # Registers are given out by eight to a thread.
    if alignment == 16 and arch == "sm_90a":
        blocks = SPLIT_INSTANCES[itemsize, w][2]
        assert -(-used.registers // 8) * 8 * plan.threads * blocks <= REGISTERS_OF_AN_SM, used.registers


@pytest.mark.compile
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_published_kernels_compile_without_spills(arch):
    names = [
        f"tsm2::{variant}<{scalar}, 128, {t2}, 4>"
        for variant in gemm.PAPER_KERNELS
        for scalar in ("float", "double")
        for t2 in (1, 4, 16)
    ]
    for name, used in build('#include "kernels/ladder/tsm2_paper.cuh"\n', names, arch).resources.items():
        assert used.stack == used.spill_stores == used.spill_loads == 0, name


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


@pytest.mark.gpu
class TestOnGpu:
    @pytest.fixture
    def cupy(self):
        return pytest.importorskip("cupy")

    def draw(self, cupy, shape, dtype, seed, order="F", lead=None):
        random = cupy.random.default_rng(seed)
        rows, columns = shape
        if order == "C":
            return random.standard_normal(shape, dtype=dtype)
        return random.standard_normal((columns, lead or rows), dtype=dtype)[:, :rows].T

    def assert_product(self, cupy, C, A, B, alpha=1.0, beta=0.0, before=None):
        A, B = A.astype(np.float64), B.astype(np.float64)
        expected, magnitude = alpha * (A @ B), abs(alpha) * (abs(A) @ abs(B))
        if beta:
            expected, magnitude = expected + beta * before, magnitude + abs(beta * before)
        assert bool((abs(C - expected) <= oracle.gamma(A.shape[1] + 4, C.dtype) * magnitude).all())

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    @pytest.mark.parametrize("variant", gemm.PAPER_KERNELS)
    @pytest.mark.parametrize("shape", [(1000, 777, 5), (4096, 2048, 16), (1, 1, 1), (130, 3, 2)], ids=str)
    def test_published(self, cupy, variant, dtype, shape):
        m, k, w = shape
        A, B = self.draw(cupy, (m, k), dtype, 1, lead=m + 3), self.draw(cupy, (k, w), dtype, 2, lead=k + 1)
        self.assert_product(cupy, gemm.published(variant, A, B), A, B)

    def columns(self, cupy, A, B, alpha=1.0, beta=0.0, out=None):
        """Run tsm2r_columns, whatever the planner would take."""
        out = cupy.empty((A.shape[0], B.shape[1]), A.dtype, order="F") if out is None else out
        a, b, c = (device_matrix(name, x) for name, x in (("A", A), ("B", B), ("out", out)))
        problem = problem_of(a, b, c)
        plan = split_plan(problem, 132)
        gemm.prepare(plan, problem, c)(a.pointer, b.pointer, c.pointer, alpha, beta)
        return out

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    @pytest.mark.parametrize("w", [1, 2, 3, 4])
    @pytest.mark.parametrize(("m", "k", "pad"), [(4096, 5000, 0), (1001, 3333, 3), (70, 10_000, 1), (50_000, 70, 0)])
    def test_columns(self, cupy, dtype, w, m, k, pad):
        A, B = self.draw(cupy, (m, k), dtype, 1, lead=m + pad), self.draw(cupy, (k, w), dtype, 2, "C")
        self.assert_product(cupy, self.columns(cupy, A, B), A, B)

    def test_columns_of_halves(self, cupy):
        A, B = self.draw(cupy, (3000, 2000), np.float32, 1), self.draw(cupy, (2000, 3), np.float32, 2, "C")
        A, B = A.astype(np.float16, order="F"), B.astype(np.float16)
        exact, magnitude = A.astype("f8") @ B.astype("f8"), abs(A.astype("f8")) @ abs(B.astype("f8"))
        allowed = oracle.gamma(2000, np.float32) * magnitude + 2.0**-11 * abs(exact) + 2.0**-25
        assert bool((abs(self.columns(cupy, A, B) - exact) <= allowed).all())

    @pytest.mark.parametrize("order", "CF")
    def test_columns_with_alpha_beta_and_out(self, cupy, order):
        A, B = self.draw(cupy, (3000, 2000), np.float32, 1), self.draw(cupy, (2000, 4), np.float32, 2, "F")
        out = cupy.asarray(self.draw(cupy, (3000, 4), np.float32, 3, order), order=order)
        before = out.astype(np.float64)
        self.columns(cupy, A, B, -0.5, 2, out)
        self.assert_product(cupy, out, A, B, -0.5, 2, before)

    def test_columns_gives_the_same_bits(self, cupy):
        A, B = self.draw(cupy, (10_240, 10_240), np.float32, 1), self.draw(cupy, (10_240, 4), np.float32, 2)
        first = self.columns(cupy, A, B)
        assert all(bool((self.columns(cupy, A, B) == first).all()) for _ in range(5))

    def test_columns_past_2_to_31_elements(self, cupy):
        if cupy.cuda.runtime.memGetInfo()[0] < 40e9:
            pytest.skip("needs 40 GB of free GPU memory")
        m, k = 120_000, 20_000
        A, B = self.draw(cupy, (m, k), np.float32, 1), self.draw(cupy, (k, 2), np.float32, 2)
        C = self.columns(cupy, A, B)
        rows = cupy.arange(0, m, 501)
        self.assert_product(cupy, C[rows], A[rows], B)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"A": lambda A: A.T.copy().T[:, :5]}, r"A has shape \(8, 5\) and B \(6, 2\)"),
            ({"A": lambda A: A.copy(order="C")}, "expected column-major"),
            ({"A": lambda A: A.astype(np.float16)}, "expected float32 or float64"),
            ({"B": lambda B: B.astype(np.float64)}, "the same for both"),
            ({"B": lambda B: B[:, 0]}, r"expected \(m, k\) and \(k, w\)"),
        ],
    )
    def test_wrong_arguments_of_the_published(self, cupy, change, message):
        A, B = self.draw(cupy, (8, 6), np.float32, 1), self.draw(cupy, (6, 2), np.float32, 2)
        A, B = change.get("A", lambda x: x)(A), change.get("B", lambda x: x)(B)
        with pytest.raises(ValueError, match=message):
            gemm.published("tsm2_v3", A, B)
