"""Products by tsm2r_columns.cuh, on a GPU."""

import numpy as np
import oracle
import pytest

from tsapps.kernels.arrays import device_matrix
from tsapps.kernels.dispatch import prepare
from tsapps.kernels.matmul import problem_of
from tsapps.kernels.plan.simt import split_plan
from tsapps.kernels.runtime.machine import cuda_machine


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

    def columns(self, cupy, A, B, alpha=1.0, beta=0.0, out=None):
        """Run tsm2r_columns, whatever the planner would take."""
        out = cupy.empty((A.shape[0], B.shape[1]), A.dtype, order="F") if out is None else out
        a, b, c = (device_matrix(name, x) for name, x in (("A", A), ("B", B), ("out", out)))
        problem = problem_of(a, b, c)
        plan = split_plan(problem, 132)
        prepare(plan, problem, c, cuda_machine(c.device))(a.pointer, b.pointer, c.pointer, alpha, beta)
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
