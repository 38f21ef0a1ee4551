"""tsapps.matmul and tsapps.gram: what they refuse, what they compute on the CPU, and on a GPU."""

import itertools

import ml_dtypes
import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tsapps
from tsapps.kernels import matmul as product
from tsapps.kernels.arrays import DeviceMatrix
from tsapps.kernels.problem import Layout

DTYPES = {"float64": np.float64, "float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
# Of one rounding, and of the type that is summed in.
ROUNDING = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def bound(dtype, k, magnitude, expected):
    """What matmul's docstring promises of |C − AB|."""
    u = ROUNDING["float64" if dtype == "float64" else "float32"]
    gamma = (k + 4) * u / (1 - (k + 4) * u)
    if dtype == "float32":
        gamma += 2.0**-21
    # float16 rounds what is below its normal numbers to multiples of 2⁻²⁴.
    half = ROUNDING[dtype] * abs(expected) + (2.0**-24 if dtype == "float16" else 0) if "float16" in dtype else 0
    return gamma * magnitude + half


def draw(rng, shape, dtype, order="C"):
    return np.asarray(rng.standard_normal(shape).astype(DTYPES[dtype]), order=order)


class TestOnTheCpu:
    def test_two_by_two_by_hand(self):
        A, B = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[5.0], [6.0]])
        assert tsapps.matmul(A, B).tolist() == [[17], [39]]
        assert tsapps.gram(A).tolist() == [[10, 14], [14, 20]]

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("orders", list(itertools.product("CF", "CF")))
    def test_against_float64(self, dtype, orders):
        rng = np.random.default_rng(1)
        A, B = draw(rng, (300, 40), dtype, orders[0]), draw(rng, (40, 7), dtype, orders[1])
        exact, magnitude = A.astype(float) @ B.astype(float), abs(A.astype(float)) @ abs(B.astype(float))
        C = tsapps.matmul(A, B)
        assert C.dtype == A.dtype
        assert (abs(C - exact) <= bound(dtype, 40, magnitude, exact)).all()

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_gram_against_float64(self, dtype):
        A = draw(np.random.default_rng(2), (300, 9), dtype)
        wide = A.astype(float)
        G = tsapps.gram(A)
        assert (abs(G - wide.T @ wide) <= bound(dtype, 300, abs(wide).T @ abs(wide), wide.T @ wide)).all()

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("call", ["matmul", "gram"])
    def test_alpha_beta_and_out(self, dtype, call):
        rng = np.random.default_rng(3)
        A, B = draw(rng, (50, 6), dtype), draw(rng, (6, 6), dtype)
        operands = (A, B) if call == "matmul" else (A,)
        left, right = (A, B) if call == "matmul" else (A.T, A)
        out = draw(rng, (len(left), 6), dtype)
        before = out.astype(float)
        exact = 2 * left.astype(float) @ right.astype(float) - 0.5 * before
        magnitude = 2 * abs(left.astype(float)) @ abs(right.astype(float)) + 0.5 * abs(before)
        given_back = getattr(tsapps, call)(*operands, alpha=2.0, beta=-0.5, out=out)
        assert given_back is out
        assert (abs(out - exact) <= 2 * bound(dtype, left.shape[1] + 2, magnitude, exact)).all()

    def test_beta_zero_does_not_read_out(self):
        out = np.full((3, 2), np.nan)
        tsapps.matmul(np.ones((3, 4)), np.ones((4, 2)), out=out)
        assert (out == 4).all()

    def test_nothing_to_sum_over(self):
        assert (tsapps.matmul(np.ones((3, 0)), np.ones((0, 2))) == 0).all()
        assert tsapps.matmul(np.ones((0, 3)), np.ones((3, 2))).shape == (0, 2)

    def test_a_torch_tensor_comes_back_as_one(self):
        torch = pytest.importorskip("torch", reason="torch is not installed")
        C = tsapps.matmul(torch.ones(3, 4), torch.ones(4, 2))
        assert isinstance(C, torch.Tensor)
        assert (C == 4).all()

    @settings(max_examples=50, deadline=None)
    @given(
        m=st.integers(0, 40),
        k=st.integers(0, 40),
        w=st.integers(0, 9),
        step=st.tuples(st.integers(1, 3), st.integers(1, 3)),
        seed=st.integers(0, 2**20),
    )
    def test_any_shape_and_strides(self, m, k, w, step, seed):
        rng = np.random.default_rng(seed)
        A = rng.standard_normal((m * step[0], k * step[1]))[:: step[0], :: step[1]]
        B = rng.standard_normal((k, w))
        C = tsapps.matmul(A, B)
        assert (abs(C - np.ascontiguousarray(A) @ B) <= 2 * oracle.gamma(k + 1, np.float64) * (abs(A) @ abs(B))).all()


A64, B64 = np.ones((4, 3)), np.ones((3, 2))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"B": np.ones((4, 2))}, ValueError, r"A has shape \(4, 3\) and B \(4, 2\); expected \(m, k\) and \(k, w\)"),
        ({"A": np.ones(3)}, ValueError, r"A has shape \(3,\); expected a matrix"),
        ({"A": np.ones((4, 3), int)}, TypeError, "A has dtype int64; expected float64, float32, float16, bfloat16"),
        ({"B": np.ones((3, 2), np.float32)}, ValueError, "A has dtype float64 and B float32; convert one of them"),
        ({"A": [[1.0]]}, TypeError, "A is a builtins.list; expected an array of NumPy"),
        ({"beta": 1.0}, ValueError, "beta is 1.0, and there is no `out`"),
        ({"out": np.ones((4, 3))}, ValueError, r"out has shape \(4, 3\) and dtype float64; expected \(4, 2\)"),
        ({"out": A64[:, :2]}, ValueError, "out overlaps A in memory"),
        ({"stream": 7}, ValueError, "a stream was given for arrays in host memory"),
    ],
)
def test_what_is_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        tsapps.matmul(**{"A": A64, "B": B64, **arguments})


def test_a_read_only_out_is_refused():
    out = np.ones((4, 2))
    out.flags.writeable = False
    with pytest.raises(ValueError, match="out is read-only"):
        tsapps.matmul(A64, B64, out=out)


class TestLayouts:
    """How a matrix on a GPU is described, without a GPU."""

    def matrix(self, shape, strides, pointer=256):
        return DeviceMatrix(pointer, shape, strides, "float32", 4, 0, None)

    @pytest.mark.parametrize(
        ("shape", "strides", "depth", "expected"),
        [
            ((100, 16), (64, 4), 1, Layout(True, 16, 16, 16)),
            ((100, 16), (4, 400), 1, Layout(False, 100, 16, 16)),
            ((100, 16), (4, 404), 1, Layout(False, 101, 4, 16)),
            ((16, 5), (20, 4), 0, Layout(False, 5, 4, 16)),
            ((16, 1), (4, 4), 0, Layout(True, 16, 16, 16)),
            ((16, 1), (400, 4), 0, Layout(False, 100, 16, 16)),
            ((1, 1), (4, 4), 0, Layout(True, 1, 16, 16)),
        ],
    )
    def test_by_hand(self, shape, strides, depth, expected):
        assert product._layout("A", self.matrix(shape, strides), depth) == expected

    @pytest.mark.parametrize("strides", [(128, 8), (-64, 4), (0, 4), (66, 4)])
    def test_other_strides_are_refused(self, strides):
        with pytest.raises(ValueError, match="expected a row-major or a column-major matrix"):
            product._layout("A", self.matrix((100, 16), strides), 1)

    @pytest.mark.parametrize(
        ("other", "overlaps"),
        [
            ((256, (4, 2), (16, 4)), True),
            ((264, (4, 2), (16, 4)), True),
            ((256 + 4 * 16, (4, 2), (8, 4)), False),
            ((256 + 12, (4, 1), (16, 4)), False),
            ((256 + 64, (2, 3), (-16, 4)), True),  # its second row is the last one of the first matrix
            ((256 + 80, (2, 3), (-16, 4)), False),
        ],
    )
    def test_overlap(self, other, overlaps):
        pointer, shape, strides = other
        first = self.matrix((4, 3), (16, 4))
        assert first.overlaps(self.matrix(shape, strides, pointer)) is overlaps


SHAPES = [
    (3000, 2000, 5),
    (2048, 4096, 16),
    (20_000, 33, 33),
    (100_001, 4, 4),
    (50_000, 64, 64),
    (5, 4001, 3),
    (33, 50_001, 33),
    (16, 100_000, 16),
    (2, 100_003, 2),
    (64, 30_000, 64),
    (1, 1, 1),
    (1000, 1, 7),
    (7, 1000, 20_000),
    (500, 400, 300),
    (40, 0, 9),
]


@pytest.mark.gpu
class TestOnGpu:
    @pytest.fixture
    def torch(self):
        return pytest.importorskip("torch", reason="torch is not installed")

    def tensor(self, torch, shape, dtype, order, pad):
        lines = shape if order == "C" else shape[::-1]
        full = torch.randn(lines[0], lines[1] + pad, device="cuda", dtype=torch.float32).to(getattr(torch, dtype))
        return full[:, : lines[1]] if order == "C" else full[:, : lines[1]].T

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("shape", SHAPES, ids=str)
    def test_against_float64(self, torch, shape, dtype):
        m, k, w = shape
        torch.manual_seed(sum(shape))
        for orders, pad in itertools.product(itertools.product("CF", "CF"), (0, 3)):
            A, B = self.tensor(torch, (m, k), dtype, orders[0], pad), self.tensor(torch, (k, w), dtype, orders[1], pad)
            C = tsapps.matmul(A, B)
            exact, magnitude = A.double() @ B.double(), A.double().abs() @ B.double().abs()
            assert C.dtype == A.dtype
            allowed = bound(dtype, k, magnitude, exact) + 2 * bound("float64", k, magnitude, exact)
            assert ((C.double() - exact).abs() <= allowed).all(), (orders, pad)

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("shape", [(60_000, 16), (20_001, 33), (60_000, 3), (5000, 100), (7, 2)])
    def test_gram_against_float64(self, torch, shape, dtype):
        A = self.tensor(torch, shape, dtype, "C", 0)
        exact, magnitude = A.double().T @ A.double(), A.double().abs().T @ A.double().abs()
        allowed = bound(dtype, shape[0], magnitude, exact) + 2 * bound("float64", shape[0], magnitude, exact)
        assert ((tsapps.gram(A).double() - exact).abs() <= allowed).all()

    @pytest.mark.parametrize("order", "CF")
    @pytest.mark.parametrize("shape", [(1000, 500, 8), (5000, 16, 16), (5000, 4, 3), (16, 9000, 5), (100, 90, 80)])
    def test_alpha_beta_and_out(self, shape, order):
        import cupy

        m, k, w = shape
        random = cupy.random.default_rng(4)
        A, B = random.standard_normal((m, k)), random.standard_normal((k, w))
        out = cupy.asarray(random.standard_normal((m, w)), order=order)
        expected = 2 * (A @ B) - 0.5 * out
        assert tsapps.matmul(A, B, alpha=2, beta=-0.5, out=out) is out
        assert float(abs(out - expected).max()) <= 1e-11
        out.fill(float("nan"))
        tsapps.matmul(A, B, out=out)
        assert float(abs(out - A @ B).max()) <= 1e-11

    def test_the_same_bits_on_every_run(self):
        import cupy

        random = cupy.random.default_rng(5)
        A, B = random.standard_normal((4000, 9000), dtype="f4"), random.standard_normal((9000, 16), dtype="f4")
        first = tsapps.matmul(A, B)
        assert all((tsapps.matmul(A, B) == first).all() for _ in range(20))
        gram = tsapps.gram(A.T[:, :33].copy())
        assert all((tsapps.gram(A.T[:, :33].copy()) == gram).all() for _ in range(20))

    @pytest.mark.parametrize("dtype", ["float16", "float32"])
    def test_more_than_2_to_the_31_elements(self, dtype):
        import cupy

        # Row 2³¹ / 48 and later ones lie beyond 32 bits; the last are checked, and so is a sum over all rows.
        m, k = 48_000_000, 48
        A = cupy.empty((m, k), dtype)
        A[:] = (cupy.arange(k) % 5 - 2).astype(dtype)
        A[-3:] = 1
        B = cupy.ones((k, 8), dtype)
        C = tsapps.matmul(A, B)
        assert (C[-3:] == k).all()
        assert (C[:-3] == float((cupy.arange(k) % 5 - 2).sum())).all()
        del C
        D = cupy.ones((m, 1), dtype) if dtype == "float32" else cupy.zeros((m, 1), dtype)
        D[-3:] = 1
        sums = tsapps.matmul(A.T, D)
        expected = (cupy.arange(k) % 5 - 2) * (m - 3 if dtype == "float32" else 0) + 3
        assert float(abs(sums[:, 0] - expected).max()) <= 2.0**-24 * m * 2
        wide = A.reshape(k * 1000, -1)  # 48,000 × 48,000: TSM2R
        assert wide.size > 2**31
        last = tsapps.matmul(wide, cupy.ones((wide.shape[1], 2), dtype) if dtype == "float32" else D[: wide.shape[1]])
        assert last.shape[0] == 48_000

    def test_streams(self, torch):
        import cupy

        x, y = cupy.ones((1000, 8)), cupy.ones((8, 4))
        stream = cupy.cuda.Stream(non_blocking=True)
        cupy.cuda.Device().synchronize()
        for given_stream in (stream, stream.ptr, torch.cuda.ExternalStream(stream.ptr)):
            C = tsapps.matmul(x, y, stream=given_stream)
            stream.synchronize()
            assert (C == 8).all()
        with pytest.raises(TypeError, match="stream is a str; expected a stream of CuPy or torch"):
            tsapps.matmul(x, y, stream="s")
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            D = tsapps.matmul(torch.ones(1000, 8, device="cuda"), torch.ones(8, 4, device="cuda"))
        side.synchronize()
        assert (D == 8).all()

    def test_what_is_refused(self):
        import cupy

        x, y = cupy.ones((1000, 8)), cupy.ones((8, 4))
        cases = [
            ((x, y.get()), {}, ValueError, "A lies on GPU 0 and B in host memory"),
            ((x, y), {"out": x[:, :4]}, ValueError, "out overlaps A"),
            ((x, y), {"out": cupy.ones((1000, 4)).get()}, ValueError, "out lies in host memory and A on GPU 0"),
            ((x[:, ::2], y[:4]), {}, ValueError, "expected a row-major or a column-major matrix"),
            ((x, [1.0]), {}, TypeError, "B is a list; expected an array on GPU 0"),
            ((x.astype(int), y.astype(int)), {}, TypeError, "A has dtype int64"),
            ((x, y), {"beta": 1.0}, ValueError, "beta is 1.0"),
        ]
        for operands, options, error, message in cases:
            with pytest.raises(error, match=message):
                tsapps.matmul(*operands, **options)

    def test_a_cuda_array_interface(self):
        import cupy

        class Foreign:
            def __init__(self, array):
                self.array = array
                self.__cuda_array_interface__ = array.__cuda_array_interface__

        x, y = cupy.ones((1000, 8)), cupy.ones((8, 4))
        assert (tsapps.matmul(Foreign(x), Foreign(y)) == 8).all()

    def test_nans_and_infinities_stay_in_their_row(self):
        import cupy

        for k in (4, 16, 33, 5000):
            A, B = cupy.ones((1000, k), "f4"), cupy.ones((k, 4), "f4")
            A[3, 0], A[5, k - 1] = float("nan"), float("inf")
            C = tsapps.matmul(A, B)
            assert not cupy.isfinite(C[3]).any()
            assert not cupy.isfinite(C[5]).any()
            rest = cupy.delete(C, cupy.asarray([3, 5]), axis=0)
            assert (rest == k).all()
