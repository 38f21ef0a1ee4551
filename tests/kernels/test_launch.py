"""Plans, without a GPU; what they compile to; and the launched products, on one."""

import numpy as np
import oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsapps.kernels import launch
from tsapps.kernels.build import build

ARCHITECTURES = ["sm_80", "sm_90a", "sm_100a"]
REGISTERS_OF_AN_SM = 65_536


def instances(vector):
    for itemsize, scalar in ((4, "float"), (8, "double")):
        for w in (1, 2, 4, 8, 16):
            plan = launch.columns_plan(10**4, 10**4, w, itemsize, vector=vector, multiprocessors=132)
            yield launch._columns_name(plan, scalar), plan, launch._TUNED[itemsize, plan.width][2]


@pytest.mark.parametrize("vector", [True, False])
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_plan_compiles_without_spills_and_as_small_as_planned(arch, vector):
    pytest.importorskip("cupy", reason="CuPy is not installed (pip install 'tsapps[cuda13]')")
    planned = {name: (plan, blocks) for name, plan, blocks in instances(vector)}
    built = build('#include "kernels/tsm2/tsm2r_columns.cuh"\n', list(planned), arch)
    for name, used in built.resources.items():
        plan, blocks = planned[name]
        assert used.stack == used.spill_stores == used.spill_loads == 0, name
        # Registers are given out by eight to a thread.
        if vector and arch == "sm_90a":
            assert -(-used.registers // 8) * 8 * plan.threads * blocks <= REGISTERS_OF_AN_SM, (name, used.registers)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_published_kernels_compile_without_spills(arch):
    pytest.importorskip("cupy", reason="CuPy is not installed (pip install 'tsapps[cuda13]')")
    names = [
        f"tsm2::{variant}<{scalar}, 128, {t2}, 4>"
        for variant in launch.PUBLISHED
        for scalar in ("float", "double")
        for t2 in (1, 4, 16)
    ]
    for name, used in build('#include "kernels/tsm2/published.cuh"\n', names, arch).resources.items():
        assert used.stack == used.spill_stores == used.spill_loads == 0, name


@given(
    m=st.integers(1, 10**6),
    k=st.integers(1, 10**6),
    w=st.integers(1, 100),
    itemsize=st.sampled_from([4, 8]),
    multiprocessors=st.integers(1, 200),
)
def test_splits_cover_k_and_fill_one_wave_at_most(m, k, w, itemsize, multiprocessors):
    plan = launch.columns_plan(m, k, w, itemsize, vector=True, multiprocessors=multiprocessors)
    assert plan.splits * plan.per_split >= k > (plan.splits - 1) * plan.per_split
    assert plan.per_split % 64 == 0
    assert 1 <= plan.splits <= 65_535
    blocks = -(-m // (plan.threads * 16 // itemsize)) * -(-w // plan.width)
    resident = multiprocessors * launch._TUNED[itemsize, plan.width][2]
    assert plan.splits == 1 or plan.splits * blocks <= resident


def test_plan_by_hand():
    # 10240 rows of float32, four to a thread, 128 threads a block: 20 blocks. Five fit an SM, so 132 SMs hold 660: 33
    # splits of k. 10240 columns are 160 tiles of 64, five to a split: 32 splits.
    plan = launch.columns_plan(10_240, 10_240, 1, 4, vector=True, multiprocessors=132)
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
    @pytest.mark.parametrize("variant", launch.PUBLISHED)
    @pytest.mark.parametrize("shape", [(1000, 777, 5), (4096, 2048, 16), (1, 1, 1), (130, 3, 2)], ids=str)
    def test_published(self, cupy, variant, dtype, shape):
        m, k, w = shape
        A, B = self.draw(cupy, (m, k), dtype, 1, lead=m + 3), self.draw(cupy, (k, w), dtype, 2, lead=k + 1)
        self.assert_product(cupy, launch.published(variant, A, B), A, B)

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    @pytest.mark.parametrize("w", [1, 2, 3, 4, 7, 8, 16, 17, 33])
    @pytest.mark.parametrize(("m", "k", "pad"), [(4096, 5000, 0), (1001, 3333, 3), (7, 10_000, 1), (50_000, 3, 0)])
    def test_columns(self, cupy, dtype, w, m, k, pad):
        A, B = self.draw(cupy, (m, k), dtype, 1, lead=m + pad), self.draw(cupy, (k, w), dtype, 2, "C")
        self.assert_product(cupy, launch.tsm2r_columns(A, B), A, B)

    @pytest.mark.parametrize("order", "CF")
    def test_columns_with_alpha_beta_and_out(self, cupy, order):
        A, B = self.draw(cupy, (3000, 2000), np.float32, 1), self.draw(cupy, (2000, 6), np.float32, 2, "F")
        out = cupy.asarray(self.draw(cupy, (3000, 6), np.float32, 3, order), order=order)
        before = out.astype(np.float64)
        assert launch.tsm2r_columns(A, B, alpha=-0.5, beta=2, out=out) is out
        self.assert_product(cupy, out, A, B, -0.5, 2, before)

    def test_columns_gives_the_same_bits(self, cupy):
        A, B = self.draw(cupy, (10_240, 10_240), np.float32, 1), self.draw(cupy, (10_240, 8), np.float32, 2)
        first = launch.tsm2r_columns(A, B)
        assert all(bool((launch.tsm2r_columns(A, B) == first).all()) for _ in range(5))

    def test_columns_past_2_to_31_elements(self, cupy):
        if cupy.cuda.runtime.memGetInfo()[0] < 40e9:
            pytest.skip("needs 40 GB of free GPU memory")
        m, k = 120_000, 20_000
        A, B = self.draw(cupy, (m, k), np.float32, 1), self.draw(cupy, (k, 2), np.float32, 2)
        C = launch.tsm2r_columns(A, B)
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
    def test_wrong_arguments(self, cupy, change, message):
        A, B = self.draw(cupy, (8, 6), np.float32, 1), self.draw(cupy, (6, 2), np.float32, 2)
        A, B = change.get("A", lambda x: x)(A), change.get("B", lambda x: x)(B)
        with pytest.raises(ValueError, match=message):
            launch.tsm2r_columns(A, B)
