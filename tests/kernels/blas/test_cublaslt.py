"""What cublasLt is told by ctypes, with a stand-in for it."""

import ctypes
import sys
from ctypes import addressof, c_double, c_size_t, sizeof

import numpy as np
import pytest
from cublaslt_stand_in import FAILING, Lt

from tsapps.kernels.blas import cublaslt
from tsapps.kernels.blas.cublaslt import COL, ROW, WORKSPACE, LibraryError, LtProduct, Matrix, Product

# One is offered twice, one wants too much memory, one is refused, and one does not run.
OFFERED = (5, 0, 0), (5, 0, 0), (6, WORKSPACE + 1, 0), (7, WORKSPACE, 0), (8, 0, 15), (FAILING, 0, 0)


def test_structs_are_as_long_as_in_the_header():
    assert sizeof(cublaslt.HeuristicResult) == 96
    offsets = [getattr(cublaslt.HeuristicResult, name).offset for name, *_ in cublaslt.HeuristicResult._fields_]
    assert offsets == [0, 64, 72, 76, 80]


def test_no_library():
    with pytest.raises(OSError, match=r"found no libnone_such\.so: CuPy has not loaded it"):
        cublaslt.find("none_such")


def test_a_wheel_is_found_on_the_path(monkeypatch, tmp_path):
    library = tmp_path / "nvidia" / "cu13" / "lib" / "libtsapps_stub.so.13"
    library.parent.mkdir(parents=True)
    library.touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(ctypes, "CDLL", lambda path: path)
    assert cublaslt.find("tsapps_stub") == str(library)


class _Version:
    """A library whose version is its name's length."""

    def __init__(self, stem):
        self.cublasLtGetVersion = lambda: c_size_t(len(stem)).value


def test_the_version_is_cublaslts_or_none(monkeypatch):
    def none(stem):
        raise OSError(f"found no lib{stem}.so")

    for find, version in ((_Version, len("cublasLt")), (none, None)):
        monkeypatch.setattr(cublaslt, "find", find)
        cublaslt.version.cache_clear()
        assert cublaslt.version() == version
    cublaslt.version.cache_clear()


@pytest.fixture
def told():
    """A product of 7 × 5 by 5 × 3, in two orders and with gaps, as cublasLt is told of it."""
    A, B, out = np.arange(35.0).reshape(7, 5), np.arange(15.0).reshape(3, 5).T, np.full((7, 4), np.nan)[:, :3]
    first, second, third = (one.ctypes.data for one in (A, B, out))
    a, b, c = Matrix(first, 7, 5, ROW, 5), Matrix(second, 5, 3, COL, 5), Matrix(third, 7, 3, ROW, 4)
    library = Lt(OFFERED)
    return library, LtProduct(library, Product(a, False, b, False, c), 1, 70, 1), (A, B, out)


def test_the_product_as_it_is_told(told):
    library, _, operands = told
    made = list(library.made.values())
    assert made[0] == ("MatmulDesc", [70, 1], {3: 0, 4: 0})
    layouts = [tuple(given) for what, given, _ in made if what == "MatrixLayout"]
    assert layouts == [(1, 7, 5, 5), (1, 5, 3, 5), (1, 7, 3, 4), (1, 7, 3, 4)]
    assert library.attributes("MatrixLayout") == [{1: 1}, {1: 0}, {1: 1}, {1: 1}]
    (preference,) = library.attributes("MatmulPreference")
    assert preference.pop(1) == WORKSPACE
    assert list(preference) == [5, 6, 7, 8]
    addresses = [one.ctypes.data for one in (*operands, operands[2])]
    for address, aligned in zip(addresses, preference.values(), strict=True):
        assert aligned == min(address & -address, 256)


def test_algorithms_that_fit_are_offered_once(told):
    _, described, _ = told
    found = [(i, algo[0], size) for i, algo, size in described.algorithms(None)]
    assert found == [(0, 5, 0), (3, 7, WORKSPACE), (5, FAILING, 0)]


def test_a_product_is_run(told):
    library, described, (A, B, out) = told
    algos = [algo for _, algo, _ in described.algorithms(None)]
    given = tuple(one.ctypes.data for one in (A, B, out)), (c_double(2), c_double(0)), (4096, 64), 77
    described.run(algos[0], None, *given)
    np.testing.assert_array_equal(out, 2 * A @ B)
    (run,) = library.runs
    assert len(run) == 16
    assert addressof(run[12]._obj) == addressof(algos[0])
    # The matrix that is added is `out` as well.
    assert run[8].value == run[10].value == out.ctypes.data
    assert library.ran == [(5, 4096, 64, 77)]
    with pytest.raises(LibraryError, match="cublasLtMatmul returned CUBLAS_STATUS_EXECUTION_FAILED"):
        described.run(algos[2], None, *given)


def test_descriptors_are_destroyed_with_the_product():
    library, square = Lt(OFFERED), Matrix(4096, 2, 2, ROW, 2)
    described = LtProduct(library, Product(square, False, square, False, square), 1, 70, 1)
    assert library.destroyed == []
    del described
    assert sorted(library.destroyed) == sorted(library.made)
