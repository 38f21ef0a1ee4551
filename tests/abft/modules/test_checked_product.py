"""checked_product.cuh by its launcher on a `HostMachine`, against float64."""

import ml_dtypes
import numpy as np
import pytest
from host_cuda import harness
from host_cuda.machine import HostMachine, placed

from tsapps.apps.abft.modules import checked_product as checked
from tsapps.apps.abft.modules.bounds import Arithmetic, bounds_of
from tsapps.apps.abft.modules.faults import FaultLog
from tsapps.apps.abft.modules.launch import ProductLayout, weights_of
from tsapps.kernels.epilogue import Epilogue
from tsapps.kernels.gpu_specs import KNOWN
from tsapps.kernels.jit.compiler import build
from tsapps.kernels.plan.mma import ELEMENT
from tsapps.kernels.square_gemm import SIDE_ROWS

BFLOAT16 = ml_dtypes.bfloat16
HEADER = "tests/abft/modules/faulty_residuals.cuh"


def pointer(array):
    return 0 if array is None else array.ctypes.data


def bfloat16(values):
    return placed(np.ascontiguousarray(values, BFLOAT16))


def parts_of(values):
    """Return float32 numbers as the sum of three bfloat16 numbers each."""
    parts = []
    for _ in range(3):
        parts.append(values.astype(BFLOAT16).astype(np.float32))
        values = values - parts[-1]
    return parts


class Product:
    """C = A · Bᵀ + bias, computed and checked by the kernels; A, B and the bias are given or drawn."""

    def __init__(self, m, n, k, rng, *, bias=True, A=None, B=None, spare=0):
        drawn = rng.standard_normal
        self.A = bfloat16(drawn((m, k + spare)) if A is None else A)[:, :k]
        self.B = bfloat16(drawn((n, k)) if B is None else B)
        self.bias = bfloat16(drawn(n)) if bias else None
        self.C = bfloat16(np.full((m, n), 7))
        a, b = self.A.astype(float), self.B.astype(float)
        of_bias = self.bias.astype(float) if bias else np.zeros(n)
        with np.errstate(all="ignore"):
            self.exact, self.magnitude = a @ b.T + of_bias, abs(a) @ abs(b).T + abs(of_bias)
            v = weights_of(n)
            self.v = placed(v.astype(np.float32))
            weighted = b.T * self.v.astype(float)
            self.x = placed(weighted.sum(1).astype(np.float32))
            self.y = placed(np.sqrt((weighted**2).sum(1)).astype(np.float32))
        self.bias_sum = np.array([self.v.astype(float) @ of_bias]) if bias else None
        self.bounds, self.stale = bounds_of(k, n, Arithmetic("bfloat16")), np.zeros(1, np.uint32)

    @property
    def proven(self):
        """What rounding can explain of each element's error."""
        element = self.bounds.element
        return element.magnitude * self.magnitude + element.rounding * (abs(self.exact) + self.magnitude)

    def compute(self, *, repairs=True, multiprocessors=4):
        machine = HostMachine(multiprocessors)
        log = FaultLog(machine, lambda call: (f"module {call // 3}", "forward", None))
        (m, k), n = self.A.shape, len(self.B)
        layout = ProductLayout("bfloat16", m, k, n, (self.A.strides[0] // 2, 1), (1, k), (n, 1))
        assert checked.can_check(KNOWN["H200"], layout)
        parts = bfloat16(np.full((SIDE_ROWS, k), 7))
        checked.split(machine, 0, "bfloat16", k, pointer(self.x), pointer(parts))
        sums = np.full(checked.n_partials(layout), np.nan, np.float32)
        run = checked.checked_product(machine, layout, self.bounds, log, repairs)
        weights = bfloat16(np.array([*parts_of(self.v), self.v**2]))
        operands = map(pointer, (self.A, self.C, self.B, self.bias, self.bias_sum, self.v, self.x, self.y))
        run(0, pointer(parts), pointer(weights), pointer(sums), *operands, 0, pointer(self.stale), 21)
        self.residuals, self.squares = sums.reshape(2, -1, m).sum(1, dtype=float)
        assert log.count[0] == log.faults["is_complete"].sum()
        return [fault for fault, _ in log.take()]

    def check_residuals(self):
        """Compare the sums with those of C as it is stored, in float32: fewer summands than C has columns and A has."""
        C, A, v, x = (one.astype(float) for one in (self.C, self.A, self.v, self.x))
        allowed = 2.0**-22 * (abs(C) @ v + abs(A) @ abs(x))
        assert (abs(self.residuals - (C @ v - A @ x)) <= allowed).all()
        # v² and c² are rounded to bfloat16.
        np.testing.assert_allclose(self.squares, ((C * v) ** 2).sum(1), rtol=2.0**-8 + 2.0**-15)


SHAPES = [(1, 264, 8), (130, 264, 72), (300, 520, 200), (40, 776, 640)]


@pytest.mark.each_choice
@pytest.mark.parametrize("copies", ["late", "early"])
@pytest.mark.parametrize("spare", [0, 8])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_right_products_are_clean(shape, bias, spare, copies, rng):
    product = Product(*shape, rng, bias=bias, spare=spare)
    with harness.schedule(copies=copies, seed=1):
        assert product.compute() == []
    assert (abs(product.C.astype(float) - product.exact) <= product.proven).all()
    assert product.stale[0] == 0
    product.check_residuals()


def test_by_hand():
    """Every element of C is 2 · 3 · 8 = 48; all weights of v count."""
    rng = np.random.default_rng(0)
    product = Product(2, 264, 8, rng, bias=False, A=np.full((2, 8), 2), B=np.full((264, 8), 3))
    assert product.compute() == []
    assert (product.C.astype(float) == 48).all()
    assert product.squares[0] == pytest.approx(48**2 * (weights_of(264) ** 2).sum(), rel=2.0**-8)


@pytest.mark.parametrize("scale", [1, 1e-30, 1e30])
def test_parts_have_all_bits(scale, rng):
    x = placed((scale * rng.standard_normal(300)).astype(np.float32))
    parts = bfloat16(np.full((SIDE_ROWS, 300), 7))
    checked.split(HostMachine(), 0, "bfloat16", 300, pointer(x), pointer(parts))
    assert (parts.astype(float).sum(0) == x.astype(float)).all()
    assert (parts[3:].astype(float) == 0).all()


def faulty(monkeypatch, row, column, by):
    """Have products computed with a fault; `by` is a multiple of 1/1024, or 0 for NaN."""
    name = f"abft::FaultyResiduals<{{0}}, {row}, {column}, {round(1024 * by)}>"
    monkeypatch.setattr(checked, "_EPILOGUE", Epilogue(HEADER, name, checked.ROW_RESIDUALS))


@pytest.mark.parametrize("repairs", [True, False])
@pytest.mark.parametrize(("row", "column", "by"), [(0, 0, 40), (129, 263, -64), (65, 255, 2**20), (17, 8, 0)], ids=str)
def test_a_fault_is_found_and_repaired(row, column, by, repairs, monkeypatch, rng):
    product = Product(130, 264, 72, rng)
    right = Product(130, 264, 72, rng, A=product.A, B=product.B)
    right.bias, right.bias_sum, right.exact = product.bias, product.bias_sum, product.exact
    assert right.compute() == []
    faulty(monkeypatch, row, column, by)
    (fault,) = product.compute(repairs=repairs)
    assert (fault.module, fault.product, fault.row, fault.column, fault.n_wrong) == (
        "module 7",
        "forward",
        row,
        column,
        1,
    )
    assert fault.repaired == repairs
    if by == 0:
        assert np.isnan(fault.found)
    else:
        assert fault.found == pytest.approx(product.exact[row, column] + by, rel=0.01)
        assert abs(fault.residual) > fault.limit
    wrong = np.zeros(product.C.shape, bool)
    wrong[row, column] = True
    assert (product.C[~wrong] == right.C[~wrong]).all()
    exact = product.exact[row, column].astype(BFLOAT16)
    assert fault.value == exact
    assert (product.C[row, column] == exact) == repairs


def test_a_small_fault_is_within_the_limit_or_found(monkeypatch, rng):
    """A fault below the bound is not reported; C keeps what the tensor cores computed."""
    product = Product(130, 264, 72, rng)
    faulty(monkeypatch, 3, 5, 1 / 1024)
    assert product.compute() == []


def test_outdated_checksums_are_told(rng):
    product = Product(130, 264, 72, rng)
    product.x += 3
    assert product.compute() == []
    assert product.stale[0] == 1
    assert (abs(product.C.astype(float) - product.exact) <= product.proven).all()


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_rows_that_are_not_finite_are_not_checked(value, rng):
    A = rng.standard_normal((130, 72))
    A[77, 5] = value
    product = Product(130, 264, 72, rng, A=A)
    assert product.compute() == []
    finite = np.isfinite(product.exact)
    assert not finite[77].any()
    assert np.isnan(product.C[77].astype(float)).any() or np.isinf(product.C[77].astype(float)).any()
    assert finite[np.arange(130) != 77].all()


@pytest.mark.parametrize("case", ["cancelling", "equal columns", "tiny", "huge", "zeros", "one large element"])
def test_right_rows_of_every_kind_are_clean(case, rng):
    A, B = rng.standard_normal((40, 64)), rng.standard_normal((296, 64))
    if case == "cancelling":
        A[:, 1::2], B[:, 1::2] = A[:, ::2], -B[:, ::2]
    if case == "equal columns":
        B[...] = B[:1]
    if case == "zeros":
        A[:] = 0
    if case == "one large element":
        A[:, 3], B[5, 3] = 50, 1000
    scale = {"tiny": 1e-25, "huge": 1e18}.get(case, 1.0)
    assert Product(40, 296, 64, rng, A=scale * A, B=scale * B, bias=case == "zeros").compute() == []


def test_what_it_can_check():
    def can(gpu="H200", dtype="bfloat16", m=5, k=16, n=264, a=(16, 1), b=(1, 16), c=(264, 1)):
        return checked.can_check(KNOWN[gpu], ProductLayout(dtype, m, k, n, a, b, c))

    assert can()
    assert not can(dtype="float16")  # parts of checksums need the exponents of float32
    assert not can(gpu="A100")
    assert not can(a=(1, 16))
    assert not can(b=(264, 1))
    assert not can(a=(17, 1))
    assert not can(n=260, c=(260, 1))
    assert not can(n=256, c=(256, 1))  # a single column tile


@pytest.mark.compile
def test_no_kernel_spills():
    element = ELEMENT["bfloat16"]
    names = [f"abft::{name}".format(element) for name in checked.KERNELS]
    product = f"tsm2::gemm_square<{element}, 4, 3, abft::RowResiduals<{element}>>"
    compiled = build('#include "apps/abft/modules/checked_product.cuh"\n', [product, *names], "sm_90a", announces=False)
    for kernel, used in compiled.resources.items():
        assert (used.spill_stores, used.spill_loads, used.waits) == (0, 0, False), kernel
