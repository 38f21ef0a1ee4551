"""cublasLt as a plan: what it is told of a product, by a stand-in that multiplies on the CPU."""

from itertools import product

import numpy as np
import pytest
from cublaslt_stand_in import Lt

from tsapps.kernels.arrays import DeviceMatrix
from tsapps.kernels.blas import cublas, cublaslt
from tsapps.kernels.plan.library_algorithm import LibraryAlgorithm
from tsapps.kernels.problem import Layout, Problem
from tsapps.kernels.runtime import workspace


@pytest.fixture
def lt(monkeypatch):
    """Stand-ins for cublasLt, and for what CuPy has."""
    stand_in = Lt([(3, 0, 0), (4, 1024, 0), (5, 0, 0)])
    monkeypatch.setattr(cublaslt, "of_device", lambda _: (stand_in, None))
    monkeypatch.setattr(workspace, "_scratch", {})

    class Device:
        def __init__(self, index):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

    class Stream:
        ptr = 77

    class Memory:
        made = 0

        def __init__(self, size, dtype):
            Memory.made += 1
            self.size, self.data = size, type("data", (), {"ptr": 4096 * Memory.made})

    cuda = type("cuda", (), {"Device": Device, "get_current_stream": staticmethod(Stream)})
    stand_in_cupy = type("cupy", (), {"cuda": cuda, "empty": Memory, "uint8": "u1"})
    monkeypatch.setitem(__import__("sys").modules, "cupy", stand_in_cupy)
    return stand_in


def laid(values, by_rows, pad):
    """Return a matrix in an order, with a gap between its lines."""
    lines = values if by_rows else values.T
    memory = np.full((lines.shape[0], lines.shape[1] + pad), np.nan)
    memory[:, : lines.shape[1]] = lines
    view = memory[:, : lines.shape[1]]
    return view if by_rows else view.T


def described(x):
    return DeviceMatrix(x.ctypes.data, x.shape, x.strides, "float64", 8, 0, None)


@pytest.mark.parametrize("own_orders", [False, True])
@pytest.mark.parametrize("orders", list(product([True, False], repeat=3)), ids=str)
def test_a_product_in_any_orders(lt, orders, own_orders):
    rng = np.random.default_rng(0)
    m, k, w = 9, 7, 4
    given = [rng.standard_normal(shape) for shape in ((m, k), (k, w), (m, w))]
    A, B, C = (laid(x, by_rows, pad) for x, by_rows, pad in zip(given, orders, (2, 1, 3), strict=True))
    a_leading, b_leading = (max(x.strides) // 8 for x in (A, B))
    problem = Problem(m, k, w, "float64", Layout(orders[0], a_leading, 8, 8), Layout(not orders[1], b_leading, 8, 8))
    launch = cublas.algorithm(LibraryAlgorithm(2, own_orders), problem, described(C))
    launch(A.ctypes.data, B.ctypes.data, C.ctypes.data, -0.5, 2.0)
    np.testing.assert_allclose(C, -0.5 * given[0] @ given[1] + 2.0 * given[2], rtol=1e-14, atol=1e-14)
    assert lt.ran == [(4, 4096, 1024, 77)]
    # Partial sums of halves are added up in float32.
    assert [one[cublaslt.PREF_REDUCTIONS] for one in lt.attributes("MatmulPreference")] == [2]


@pytest.mark.parametrize(("rank", "algorithm"), [(1, 3), (2, 4), (3, 5), (8, 5)])
def test_the_algorithm_of_a_rank_or_the_last(lt, rank, algorithm):
    A, B, C = np.ones((3, 2)), np.ones((2, 2)), np.zeros((3, 2))
    problem = Problem(3, 2, 2, "float64", Layout(True, 2, 16, 16), Layout(False, 2, 16, 16))
    cublas.algorithm(LibraryAlgorithm(rank), problem, described(C))(
        A.ctypes.data, B.ctypes.data, C.ctypes.data, 1.0, 0.0
    )
    assert (C == 2).all()
    assert lt.ran[0][0] == algorithm


def test_memory_is_shared_and_grows(lt):
    lt.offered = (1, 0, 0), (2, 1024, 0), (3, 4096, 0)
    A, B, C = np.ones((3, 2)), np.ones((2, 2)), np.zeros((3, 2))
    problem = Problem(3, 2, 2, "float64", Layout(True, 2, 16, 16), Layout(False, 2, 16, 16))
    for rank in (2, 3, 2):
        launch = cublas.algorithm(LibraryAlgorithm(rank), problem, described(C))
        launch(A.ctypes.data, B.ctypes.data, C.ctypes.data, 1.0, 0.0)
    assert lt.ran == [(2, 4096, 1024, 77), (3, 8192, 4096, 77), (2, 8192, 1024, 77)]


def test_nothing_is_offered(lt):
    lt.offered = ()
    problem = Problem(3, 2, 2, "float64", Layout(True, 2, 16, 16), Layout(False, 2, 16, 16))
    with pytest.raises(cublaslt.LibraryError, match="cublasLt offers no algorithm"):
        cublas.algorithm(LibraryAlgorithm(), problem, described(np.zeros((3, 2))))


def test_scalars_are_of_the_type_that_is_computed_in():
    assert cublaslt.TYPES["float64"] == (1, 70, 1)
    in_float32 = [cublaslt.TYPES[name] for name in ("float32", "float16", "bfloat16")]
    assert in_float32 == [
        (0, 68, 0),
        (2, 68, 0),
        (14, 68, 0),
    ]
