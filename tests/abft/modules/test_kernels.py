"""The kernels of protected modules by their launchers on a `HostMachine`, against float64."""

import ml_dtypes
import numpy as np
import pytest
from host_cuda.machine import HostMachine, build_together, placed

from tsapps.apps.abft.modules import launch
from tsapps.apps.abft.modules.bounds import Arithmetic, bounds_of, guaranteed
from tsapps.apps.abft.modules.faults import FaultLog
from tsapps.apps.abft.modules.launch import ProductLayout, checksum_dtype, weights_of
from tsapps.kernels.gpu_specs import KNOWN
from tsapps.kernels.jit.compiler import architecture_of, build
from tsapps.kernels.plan.mma import ELEMENT

DTYPES = {"float64": np.float64, "float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}

for _file, _names in launch.KERNELS.items():
    _text = (launch.FOLDER / _file).read_text(encoding="utf-8")
    build_together([(_text, [f"abft::{name}".format(ELEMENT[dtype]) for dtype in DTYPES for name in _names])])


def pointer(array):
    return array.ctypes.data


def drawn(shape, dtype, rng, offset=0, spare=0):
    """Return a matrix at an address that is `offset` elements after an aligned one, in rows with `spare` elements."""
    rows, columns = shape
    return placed(rng.standard_normal((rows, columns + spare)).astype(DTYPES[dtype]), offset)[:, :columns]


def strides(matrix):
    return tuple(stride // matrix.itemsize for stride in matrix.strides)


def aligned(array):
    return placed(np.ascontiguousarray(array))


@pytest.mark.each_choice
@pytest.mark.parametrize("placement", [(0, 0), (1, 0), (0, 3), (0, 16)], ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (5, 64), (70, 1000), (9, 1024)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_row_products(dtype, shape, placement, rng):
    machine, matrix, kind = HostMachine(), drawn(shape, dtype, rng, *placement), checksum_dtype(dtype)
    u, (sums, squares) = aligned(rng.standard_normal(shape[1]).astype(kind)), np.full((2, shape[0]), np.nan, kind)
    pointers = pointer(matrix), pointer(u), pointer(sums), pointer(squares)
    launch.row_products(machine, 0, (dtype, *shape, strides(matrix)[0]), pointers)
    products = matrix.astype(float) * u
    tolerance = 40 * np.finfo(kind).eps * abs(products).sum(1)
    assert (abs(sums - products.sum(1)) <= tolerance).all()
    np.testing.assert_allclose(squares, np.sqrt((products**2).sum(1)), rtol=40 * np.finfo(kind).eps)


@pytest.mark.each_choice
@pytest.mark.parametrize("roots", [True, False])
@pytest.mark.parametrize("placement", [(0, 0), (1, 0), (0, 3), (0, 16)], ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (700, 64), (129, 300), (65, 1024)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_column_products(dtype, shape, placement, roots, rng):
    machine, matrix, kind = HostMachine(), drawn(shape, dtype, rng, *placement), checksum_dtype(dtype)
    rows, columns = shape
    n_parts = launch.parts_of(machine, dtype, *shape)
    u, parts = rng.standard_normal(rows).astype(kind), np.full(2 * n_parts * columns, np.nan, kind)
    sums, squares, totals = (
        np.full(columns, np.nan, kind),
        np.full(columns, np.nan, kind),
        np.zeros(columns, matrix.dtype),
    )
    pointers = pointer(matrix), pointer(u), pointer(parts), pointer(sums)
    others = {"roots": pointer(squares)} if roots else {"totals": pointer(totals)}
    launch.column_products(machine, 0, (dtype, *shape, strides(matrix)[0]), pointers, **others)
    wide = matrix.astype(float)
    products, eps = wide * u[:, np.newaxis], np.finfo(kind).eps
    assert (abs(sums - products.sum(0)) <= 40 * eps * abs(products).sum(0)).all()
    if roots:
        np.testing.assert_allclose(squares, np.sqrt((products**2).sum(0)), rtol=40 * eps)
    else:
        allowed = float(ml_dtypes.finfo(matrix.dtype).eps) * abs(wide.sum(0)) + 40 * eps * abs(wide).sum(0)
        assert (abs(totals.astype(float) - wide.sum(0)) <= allowed).all()


class Product:
    """A product C = A · B + bias with C by NumPy, and its check by the kernel."""

    def __init__(self, dtype, m, k, w, rng, *, name="forward", bias=True, offset=0, A=None, B=None):
        self.dtype, kind = dtype, checksum_dtype(dtype)
        self.A = drawn((m, k), dtype, rng, offset) if A is None else A
        self.B = (
            (drawn((w, k), dtype, rng, offset).T if name == "forward" else drawn((k, w), dtype, rng))
            if B is None
            else B
        )
        if name == "grad_weight":
            self.A = placed(np.ascontiguousarray(self.A.T)).T
        self.bias = drawn((1, w), dtype, rng)[0] if bias else None
        a, b = self.A.astype(float), self.B.astype(float)
        with np.errstate(all="ignore"):
            self.exact = a @ b + (0 if self.bias is None else self.bias.astype(float))
            self.magnitude = abs(a) @ abs(b) + (0 if self.bias is None else abs(self.bias.astype(float)))
            self.C = placed(self.exact.astype(self.A.dtype), offset)
            self.v = aligned(weights_of(w).astype(kind))
            weighted = b * self.v.astype(float)
            self.x, self.y = aligned(weighted.sum(1).astype(kind)), aligned(np.sqrt((weighted**2).sum(1)).astype(kind))
            self.p = (a @ self.x.astype(float)).astype(kind)
        self.bias_sum = None if self.bias is None else np.array([self.v.astype(float) @ self.bias.astype(float)])
        self.bounds = bounds_of(k, w, Arithmetic(dtype))
        self.stale = np.zeros(1, np.uint32)

    @property
    def limits(self):
        """The limit of each row, by another program."""
        s = ((self.C.astype(float) * self.v) ** 2).sum(1)
        q = ((self.A.astype(float) * self.y) ** 2).sum(1)
        return self.bounds.output * np.sqrt(s) + self.bounds.sum * np.sqrt(2 * s + q) + self.bounds.absolute

    def check(self, *, fused=True, repairs=True):
        machine = HostMachine()
        log = FaultLog(machine, lambda call: (f"module {call // 3}", "forward", None))
        layout = ProductLayout(self.dtype, *self.A.shape, self.B.shape[1], *map(strides, (self.A, self.B, self.C)))
        check = launch.row_check(machine, layout, self.bounds, log, fused, repairs)
        of_bias = (pointer(self.bias), pointer(self.bias_sum)) if self.bias is not None else (0, 0)
        vectors = *map(pointer, (self.v, self.x, self.y)), 0 if fused else pointer(self.p)
        check(0, *map(pointer, (self.A, self.C, self.B)), *of_bias, *vectors, pointer(self.stale), 21)
        assert log.count[0] == log.faults["is_complete"].sum()
        return [fault for fault, _ in log.take()]


SHAPES = [(1, 1, 1), (4, 8, 8), (5, 7, 9), (33, 300, 64), (18, 64, 1030)]


@pytest.mark.each_choice
@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", ["forward", "grad_input", "grad_weight"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_right_products_are_clean(dtype, shape, name, bias, offset, rng):
    product = Product(dtype, *shape, rng, name=name, bias=bias, offset=offset)
    before = product.C.copy()
    for fused in (True, False):
        if not (fused and name == "grad_weight"):
            assert product.check(fused=fused) == []
    assert (product.C == before).all()
    assert product.stale[0] == 0


@pytest.mark.each_choice
@pytest.mark.parametrize("repairs", [True, False])
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", ["forward", "grad_input", "grad_weight"])
@pytest.mark.parametrize("shape", SHAPES[2:], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_faults_above_the_bound_are_found_and_repaired(dtype, shape, name, bias, fused, repairs, rng):
    product = Product(dtype, *shape, rng, name=name, bias=bias)
    (m, w), clean = product.C.shape, product.C.copy()
    rows = np.sort(rng.choice(m, max(1, m // 4), replace=False))
    columns = rng.integers(0, w, len(rows))
    element = product.bounds.element
    proven = element.magnitude * product.magnitude + element.rounding * (abs(product.exact) + product.magnitude)
    least = guaranteed(product.limits[rows]) + 2.1 * proven[rows, columns] + 4 * element.rounding_absolute
    by = least * 10 ** rng.uniform(0, 2, len(rows)) * rng.choice([-1, 1], len(rows))
    product.C[rows, columns] = (clean[rows, columns].astype(float) + by).astype(product.C.dtype)
    product.C[rows[0], columns[0]] = np.nan
    found = sorted(product.check(fused=fused and name != "grad_weight", repairs=repairs), key=lambda one: one.row)
    assert [(one.row, one.column, one.n_wrong) for one in found] == [
        (i, j, 1) for i, j in zip(rows, columns, strict=True)
    ]
    assert {(one.module, one.product, one.repaired) for one in found} == {("module 7", "forward", repairs)}
    off = abs(product.C.astype(float) - product.exact)
    if repairs:
        assert (off <= proven).all()
        right = [one.value for one in found]
        assert right == product.C[rows, columns].astype(float).tolist()
        assert all(abs(one.residual) > one.limit or one.residual != one.residual for one in found)
    else:
        assert (off[rows, columns][1:] > proven[rows, columns][1:]).all()


def test_by_hand():
    """One element of a product of small whole numbers is wrong by 4."""
    rng = np.random.default_rng(0)
    A, B = np.array([[1, 2], [3, 4]], np.float32), np.array([[1, 0, 2], [0, 1, 1]], np.float32)
    product = Product("float32", 2, 2, 3, rng, bias=False, A=placed(A), B=placed(B))
    assert product.C.tolist() == [[1, 2, 4], [3, 4, 10]]
    golden = (5**0.5 - 1) / 2
    assert weights_of(3).tolist() == [1, 1 - golden / 2, 1 - (2 * golden - 1) / 2]
    product.C[1, 2] = 14
    (fault,) = product.check()
    assert (fault.row, fault.column, fault.n_wrong, fault.found, fault.value) == (1, 2, 1, 14, 10)
    assert fault.residual == pytest.approx(4 * (1.5 - golden), rel=1e-12)
    assert fault.repaired
    assert product.C.tolist() == [[1, 2, 4], [3, 4, 10]]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_wrong_tile(dtype, rng):
    product = Product(dtype, 40, 65, 50, rng)
    clean = product.C.copy()
    product.C[8:24, 10:30] = 0
    found = product.check()
    assert sorted((one.row, one.column, one.n_wrong) for one in found) == [(row, 10, 20) for row in range(8, 24)]
    element = product.bounds.element
    allowed = 2 * element.rounding * abs(product.exact) + element.magnitude * product.magnitude
    assert (abs(product.C.astype(float) - clean.astype(float)) <= allowed).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_that_are_not_finite(dtype, rng):
    A = drawn((12, 40), dtype, rng)
    A[3, 7], A[5, 0] = np.nan, np.inf
    product = Product(dtype, 12, 40, 20, rng, A=A)
    product.C[3, 4] = 1  # cannot be checked
    product.C[7, 2] = np.inf
    product.C[8, 9] = -np.inf
    found = product.check()
    assert sorted((one.row, one.column) for one in found) == [(7, 2), (8, 9)]
    assert product.stale[0] == 0
    assert np.isfinite(product.C[[7, 8]].astype(float)).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_outdated_checksums_change_nothing(dtype, rng):
    product = Product(dtype, 9, 40, 20, rng)
    before = product.C.copy()
    product.x[5] += 3
    assert product.check() == []
    assert product.stale[0] == 1
    assert (product.C == before).all()


@pytest.mark.parametrize("case", ["cancelling", "equal columns", "tiny", "huge", "zeros", "one large element"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_right_rows_of_every_kind_are_clean(dtype, case, rng):
    m, k, w = 16, 64, 96
    A, B = rng.standard_normal((m, k)), rng.standard_normal((k, w))
    if case == "cancelling":
        A[:, 1::2], B[1::2] = A[:, ::2], -B[::2]
    if case == "equal columns":
        B[...] = B[:, :1]
    scale = {"tiny": 1e-25 if dtype != "float16" else 1e-6, "huge": 1e18 if dtype != "float16" else 30.0}.get(case, 1.0)
    if case == "zeros":
        A[:] = 0
    if case == "one large element":
        A[:, 3], B[3, 5] = 50, 1000
    A, B = placed((scale * A).astype(DTYPES[dtype])), placed((scale * B.T).astype(DTYPES[dtype])).T
    product = Product(dtype, m, k, w, rng, A=A, B=B, bias=case == "zeros")
    before = product.C.copy()
    assert product.check() == []
    np.testing.assert_array_equal(product.C.astype(float), before.astype(float))


@pytest.mark.each_choice
@pytest.mark.compile
@pytest.mark.parametrize("name", ["A100", "L4", "H200", "B200", "RTX 5090"])
@pytest.mark.parametrize("file", launch.KERNELS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_no_kernel_spills(name, file, dtype):
    names = [f"abft::{one}".format(ELEMENT[dtype]) for one in launch.KERNELS[file]]
    for architecture in {architecture_of(KNOWN[name].compute_capability), *(["sm_86"] if name == "L4" else [])}:
        compiled = build((launch.FOLDER / file).read_text(encoding="utf-8"), names, architecture, announces=False)
        for kernel, used in compiled.resources.items():
            assert (used.spill_stores, used.spill_loads) == (0, 0), (architecture, kernel)
            if "check_product_rows" in kernel:  # two blocks of 256 threads share 65536 registers
                assert used.registers <= 128, (architecture, kernel)
