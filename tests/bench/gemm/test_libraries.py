"""Calls of cuBLAS and cublasLt in tsapps.bench.gemm.libraries; on the CPU, stand-ins follow the libraries' manuals."""

import sys
from ctypes import c_double, c_void_p
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from cublaslt_stand_in import FAILING, Lt
from numpy.lib.stride_tricks import as_strided

from tsapps.bench.gemm import libraries as lg

FLOAT64 = lg._TYPES["float64"]


class OnHost:
    """A NumPy array that has its address in the attribute that CuPy uses."""

    def __init__(self, array):
        self.array = array
        self.shape, self.strides, self.itemsize = array.shape, array.strides, array.itemsize
        self.dtype, self.ndim = array.dtype, array.ndim

    def __len__(self):
        return len(self.array)

    def __getitem__(self, i):
        return OnHost(self.array[i])

    @property
    def data(self):
        return SimpleNamespace(ptr=self.array.ctypes.data)


def stored(pointer, rows, cols, ld):
    """Return the column-major matrix at an address, with exactly its elements."""
    count = (cols - 1) * ld + rows
    flat = np.ctypeslib.as_array((c_double * count).from_address(pointer.value))
    return as_strided(flat, (rows, cols), (8, 8 * ld))


def op(matrix, transposed):
    return matrix.T if transposed.value else matrix


class Blas:
    """Reference implementations of cublasGemmEx, cublasGemmStridedBatchedEx and cublasDgemv on the host."""

    def cublasGemmEx(self, handle, ta, tb, m, n, k, alpha, a, at, lda, b, bt, ldb, beta, c, ct, ldc, compute, algo):  # noqa: N802
        assert (at.value, bt.value, ct.value, compute.value, algo.value) == (1, 1, 1, 70, -1)
        assert (alpha._obj.value, beta._obj.value) == (1, 0)
        m, n, k = m.value, n.value, k.value
        A = stored(a, *((k, m) if ta.value else (m, k)), lda.value)
        B = stored(b, *((n, k) if tb.value else (k, n)), ldb.value)
        stored(c, m, n, ldc.value)[:] = op(A, ta) @ op(B, tb)
        return 0

    def cublasGemmStridedBatchedEx(self, handle, ta, tb, m, n, k, alpha, *given):  # noqa: N802
        a, at, lda, to_a, b, bt, ldb, to_b, beta, c, ct, ldc, to_c, count, compute, algo = given
        for i in range(count.value):
            one, two, out = (c_void_p(at.value + 8 * i * by.value) for at, by in ((a, to_a), (b, to_b), (c, to_c)))
            self.cublasGemmEx(
                *(handle, ta, tb, m, n, k, alpha, one, at, lda, two, bt, ldb, beta, out, ct, ldc, compute, algo)
            )
        return 0

    def cublasDgemv_v2(self, handle, trans, m, n, alpha, a, lda, x, incx, beta, y, incy):  # noqa: N802
        A = op(stored(a, m.value, n.value, lda.value), trans)
        stored(y, 1, A.shape[0], incy.value)[0] = A @ stored(x, 1, A.shape[1], incx.value)[0]
        return 0


def laid(rows, cols, order, draw):
    """Return a matrix in a given order, with gaps between its rows or columns, or none."""
    if order == "row":
        return draw((rows, cols + 3))[:, :cols]
    return draw((rows, cols)) if order == "full row" else draw((cols, rows + 2))[:, :rows].T


ORDERS = ["row", "column", "full row"]
SHAPES = [(7, 5, 3), (7, 5, 1), (1, 5, 3), (6, 1, 4), (1, 5, 1), (1, 1, 1)]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("trans_a", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_formulation_is_the_product(order, shape, trans_a):
    for orders in product((order,), ORDERS, ORDERS):
        check_formulations(orders, shape, trans_a)


def check_formulations(orders, shape, trans_a):
    draw = np.random.default_rng(0).standard_normal
    m, k, n = shape
    A = laid(*((k, m) if trans_a else (m, k)), orders[0], draw)
    B, out = laid(k, n, orders[1], draw), laid(m, n, orders[2], draw)
    expected = (A.T if trans_a else A) @ B
    products = lg.formulations(OnHost(A), OnHost(B), OnHost(out), trans_a)
    assert next(iter(products)) == "column-major"
    assert len(set(products.values())) == len(products)
    if m > 1 and n > 1 and k > 1:
        assert not any("vectors" in name for name in products)
        # If all matrices are column-major, the two formulations are the same.
        assert len(products) == (1 if set(orders) == {"column"} else 2)
    for name, put in products.items():
        all_columns = {put.first.order, put.second.order, put.out.order} == {lg.COL}
        assert all_columns == name.startswith("column-major")
        for function in (lg.gemm, lg.gemv) if 1 in (m, n) else (lg.gemm,):
            out[:] = np.nan
            function(Blas(), 0, put.column_major(), FLOAT64)
            np.testing.assert_allclose(out, expected, rtol=1e-12, atol=1e-12)


def test_own_orders_do_not_transpose_matrices():
    A, B, out = np.zeros((7, 5)), np.zeros((3, 5)).T, np.zeros((7, 4))[:, :3]
    own = lg.formulations(*map(OnHost, (A, B, out)))["own orders"]
    assert [(one.rows, one.cols, one.order, one.ld) for one in (own.first, own.second, own.out)] == [
        *((7, 5, lg.ROW, 5), (5, 3, lg.COL, 5), (7, 3, lg.ROW, 4))
    ]
    assert not own.trans_first
    assert not own.trans_second


@pytest.mark.parametrize(
    "array",
    [np.zeros((8, 8))[::2, ::2], np.zeros((4, 4))[::-1], np.broadcast_to(np.zeros(3), (2, 3))],
    ids=["both strided", "backwards", "broadcast"],
)
def test_other_strides_are_rejected(array):
    with pytest.raises(ValueError, match=r"A has strides of .* expected a row-major or a column-major matrix"):
        lg.layout("A", OnHost(array))


def test_sizes_over_32_bits_are_rejected():
    array = OnHost(np.zeros((1, 2)))
    array.shape, array.strides = (2**31, 2), (16, 8)
    with pytest.raises(ValueError, match="below 2³¹"):
        lg.layout("A", array)


@pytest.mark.parametrize(
    ("shapes", "array", "dtype", "message"),
    [
        (((3, 4), (4, 2), (3, 2)), "float32", "tf32", "dtype is 'tf32'; expected float64, float32, float16, bfloat16"),
        (((3, 4), (4, 2), (3, 2)), "float32", "float16", "A holds float32; expected float16 for float16"),
        (((3, 4), (4, 2), (3, 2)), "float32", "bfloat16", "A holds float32; expected uint16 for bfloat16"),
        (((3, 4), (5, 2), (3, 2)), "float32", "float32", r"expected \(3, 2\), and 4 rows in B"),
        (((3, 4), (4, 2), (2, 3)), "float32", "float32", r"out has shape \(2, 3\) for A·B .* expected \(3, 2\)"),
        (((4,), (4, 2), (3, 2)), "float32", "float32", r"A has shape \(4,\); expected two dimensions"),
        (((3, 0), (0, 2), (3, 2)), "float32", "float32", r"A has shape \(3, 0\); expected two dimensions"),
    ],
)
def test_wrong_operands_are_rejected(shapes, array, dtype, message):
    operands = [np.zeros(shape, array) for shape in shapes]
    with pytest.raises(ValueError, match=message):
        lg.candidates(*operands, dtype=dtype)


def test_arithmetic_is_native():
    types = {name: (kind.data, kind.compute, kind.scale) for name, kind in lg._TYPES.items()}
    assert types == {"float64": (1, 70, 1), "float32": (0, 68, 0), "float16": (2, 68, 0), "bfloat16": (14, 68, 0)}


@pytest.mark.parametrize("name", [*lg.EMULATION, "NVIDIA_TF32_OVERRIDE"])
def test_emulation_by_environment_is_rejected(name, monkeypatch):
    for one in (*lg.EMULATION, "NVIDIA_TF32_OVERRIDE"):
        monkeypatch.setenv(one, "0")
    lg.pin_native()
    monkeypatch.setenv(name, "1")
    with pytest.raises(lg.LibraryError, match=f"{name} is '1'; expected 0 or unset"):
        lg.pin_native()


class Modes:
    """CuPy's functions for the modes of a cuBLAS handle; records which are set."""

    def __init__(self):
        self.set = []

    def getMathMode(self, handle):  # noqa: N802
        return 3

    def setMathMode(self, handle, mode):  # noqa: N802
        self.set.append(("math", mode))

    def setStream(self, handle, stream):  # noqa: N802
        self.set.append(("stream", stream))


@pytest.fixture
def libraries(monkeypatch):
    """Stand-ins for CuPy, cuBLAS and cublasLt."""
    # One algorithm is listed twice, one needs too much memory, one is rejected, and one fails.
    offered = (5, 0, 0), (5, 0, 0), (6, lg.WORKSPACE + 1, 0), (7, lg.WORKSPACE, 0), (8, 0, 15), (FAILING, 0, 0)
    modes, library = Modes(), Lt(offered)
    device = SimpleNamespace(get_cublas_handle=lambda: 1)
    cuda = SimpleNamespace(
        device=device, Device=lambda: SimpleNamespace(id=0), get_current_stream=lambda: SimpleNamespace(ptr=77)
    )
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda))
    for name in ("cupy_backends", "cupy_backends.cuda", "cupy_backends.cuda.libs"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(cublas=modes))
    monkeypatch.setattr(lg, "find", lambda stem: Blas())
    monkeypatch.setattr(lg, "of_device", lambda _: (library, None))
    monkeypatch.setattr(lg, "_workspace", lambda _: (None, 0))
    for name in (*lg.EMULATION, "NVIDIA_TF32_OVERRIDE"):
        monkeypatch.setenv(name, "0")
    return modes, library


def test_candidates(libraries):
    modes, library = libraries
    A, B, out = np.ones((7, 5)), np.ones((5, 1)), np.zeros((7, 1))
    found = dict(lg.candidates(*map(OnHost, (A, B, out)), dtype="float64"))
    names = ["cublas", "cublas, vectors as rows", "cublas (gemv)"]
    ways = [way + vectors for vectors in ("", ", vectors as rows") for way in ("column-major", "own orders")]
    assert list(found) == names + [f"cublasLt[{i}] ({way})" for way in ways for i in (0, 3, 5)]
    for name in names:
        modes.set.clear()
        out[:] = 0
        found[name]()
        assert (out == 5).all()
        # Restored to CuPy's mode afterwards.
        assert modes.set == [("stream", 77), ("math", lg.DEFAULT_MATH), ("math", 3)]
    out[:] = 0
    found["cublasLt[3] (own orders)"]()
    assert library.ran == [(7, 0, lg.WORKSPACE, 77)]
    assert (out == 5).all()


@pytest.mark.parametrize("orders", ["CC", "CF", "FC", "FF"])
def test_stripes(libraries, orders):
    (modes, _), draw = libraries, np.random.default_rng(0).standard_normal
    A, B = draw((3, 5, 7)), np.asarray(draw((5, 2)), order=orders[0])
    out = np.zeros((3, 7, 2)) if orders[1] == "C" else np.zeros((3, 2, 7)).swapaxes(1, 2)
    ((name, run),) = lg.stripes(*map(OnHost, (A, B, out)), dtype="float64")
    assert name == "cublas (strided batched)"
    run()
    np.testing.assert_allclose(out, A.swapaxes(1, 2) @ B, rtol=1e-14, atol=1e-14)
    assert modes.set == [("stream", 77), ("math", lg.DEFAULT_MATH), ("math", 3)]


def test_a_rejected_formulation_warns(libraries):
    _, library = libraries
    library.cublasLtMatmulAlgoGetHeuristic = lambda *_: 15
    operands = [OnHost(one) for one in (np.ones((7, 5)), np.ones((5, 2)), np.zeros((7, 2)))]
    with pytest.warns(UserWarning, match="returned CUBLAS_STATUS_NOT_SUPPORTED") as seen:
        assert [name for name, _ in lg.candidates(*operands, dtype="float64")] == ["cublas"]
    assert [str(one.message).partition(" is skipped")[0] for one in seen] == [
        *("cublasLt (column-major)", "cublasLt (own orders)"),
    ]


def given_candidates(monkeypatch, **times):
    """Define candidates that write their time to `out`; those without a time fail."""
    out = np.zeros((1, 1))

    def run(ms):
        if ms is None:
            raise lg.LibraryError("it failed")
        out[:] = ms

    monkeypatch.setattr(
        lg, "candidates", lambda *_, **__: [(name, lambda ms=ms: run(ms)) for name, ms in times.items()]
    )

    def time_ms(call):
        call()
        return float(out[0, 0])

    return out, {"dtype": "float64", "quick_ms": time_ms, "time_ms": time_ms}


def test_best_is_the_fastest(monkeypatch):
    out, given = given_candidates(monkeypatch, a=3, b=None, c=2, d=5)
    assert lg.best(None, None, out, **given) == ("c", 2)


def test_only_the_fastest_three_are_timed_accurately(monkeypatch):
    out, given = given_candidates(monkeypatch, a=3, b=1, c=2, d=4)
    at_length = []
    assert lg.best(None, None, out, **{**given, "time_ms": lambda call: at_length.append(call) or -len(at_length)}) == (
        *("a", -3),
    )


def test_wrong_results_are_not_best(monkeypatch):
    out, given = given_candidates(monkeypatch, a=1, b=2, c=3, d=4, e=5)

    def check():
        if out[0, 0] == 1:
            raise ValueError("it is wrong")
        return float("nan") if out[0, 0] == 2 else 0.0

    assert lg.best(None, None, out, **given, check=check) == ("c", 3)


def test_all_fail(monkeypatch):
    out, given = given_candidates(monkeypatch, a=None, b=None)
    with pytest.raises(lg.LibraryError, match="none of 2 candidates wrote the product: a: it failed; b: it failed"):
        lg.best(None, None, out, **given)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", list(lg._TYPES))
@pytest.mark.parametrize("shape", [(4096, 256, 16), (4095, 255, 7), (4096, 256, 1)], ids=str)
@pytest.mark.parametrize("trans_a", [False, True])
@pytest.mark.parametrize(
    "orders", [("column", "row", "full row"), ("row", "column", "column"), ("full row",) * 3], ids=str
)
def test_all_candidates_on_a_gpu(orders, shape, dtype, trans_a):
    cupy = pytest.importorskip("cupy", reason="needs a GPU: CuPy is not installed")
    rng = np.random.default_rng(0)
    m, k, n = shape

    def draw(size):
        signs = rng.choice(np.array([-1, 1], np.float32), size)
        if dtype == "bfloat16":
            return cupy.asarray((signs.view(np.uint32) >> 16).astype(np.uint16))
        return cupy.asarray(signs.astype(dtype))

    def read(array):
        array = array.get()
        return (array.astype(np.uint32) << 16).view(np.float32) if dtype == "bfloat16" else array

    A = laid(*((k, m) if trans_a else (m, k)), orders[0], draw)
    B, out = laid(k, n, orders[1], draw), laid(m, n, orders[2], draw)
    # Any sum of up to 256 signs is exact in bfloat16: the product is exact in any order of summation.
    expected = (read(A).T if trans_a else read(A)).astype(np.float64) @ read(B)
    found = lg.candidates(A, B, out, dtype=dtype, trans_a=trans_a)
    names = [name for name, _ in found]
    assert names[0] == "cublas"
    assert len(set(names)) == len(names)
    assert any(name.endswith("(column-major)") for name in names)
    assert ("cublas (gemv)" in names) == (n == 1 and dtype in ("float32", "float64"))
    for name, call in found:
        out.fill(lg._TYPES[dtype].nan)
        call()
        np.testing.assert_array_equal(read(out), expected, err_msg=name)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [1, 16])
def test_arithmetic_is_native_on_a_gpu(dtype, n):
    cupy = pytest.importorskip("cupy", reason="needs a GPU: CuPy is not installed")
    random = cupy.random.default_rng(0)
    A, B = random.standard_normal((4096, 32), dtype=dtype), random.standard_normal((32, n), dtype=dtype)
    out = cupy.empty((4096, n), dtype)
    wide = A.get().astype(np.longdouble), B.get().astype(np.longdouble)
    expected, scale = wide[0] @ wide[1], abs(wide[0]) @ abs(wide[1])
    # The bound for any order of summation; the error of TF32 is some twenty times as large.
    k_u = 32 * np.finfo(dtype).eps / 2
    for name, call in lg.candidates(A, B, out, dtype=dtype):
        call()
        assert (abs(out.get() - expected) <= k_u / (1 - k_u) * scale).all(), name
