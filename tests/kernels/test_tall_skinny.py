"""tall_skinny.cuh, its own source run on the CPU, against float64."""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from math import gcd

import ml_dtypes
import numpy as np
import oracle
import pytest
from host_cuda import harness

from tsapps.kernels import launch
from tsapps.kernels.arrays import DeviceMatrix
from tsapps.kernels.plan import SUM, Plan, instantiate
from tsapps.kernels.problem import ITEMSIZE, Layout, Problem

DTYPES = {"float64": np.float64, "float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
# Every dtype, and how many tf32 products make one of float32.
ARITHMETIC = [("float64", 3), ("float32", 3), ("float32", 6), ("float16", 3), ("bfloat16", 3)]
ORDERS = ["CC", "CF", "FC", "FF"]  # of A and B
UNTOUCHED = -12345.0
SANITIZED = [("float64", 3), ("float32", 3), ("float16", 3)]


# --- Cases ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A product and how it is computed: the plan, how the operands lie, and what becomes of C."""

    plan: Plan
    m: int
    k: int
    w: int
    orders: str = "CC"
    pads: tuple[int, int] = (0, 0)  # elements between two lines of A and of B
    offsets: tuple[int, int] = (0, 0)  # elements from a multiple of 16 bytes to the first
    gram: bool = False
    C: str = "C"
    alpha: float = 1.0
    beta: float = 0.0
    grid: int = 5

    @property
    def problem(self):
        size = ITEMSIZE[self.plan.dtype]
        layouts = []
        shapes = (self.m, self.k), (self.k, self.w)
        for shape, order, pad, offset, row_major in zip(
            shapes, self.orders, self.pads, self.offsets, (True, False), strict=True
        ):
            leading = (shape[1] if order == "C" else shape[0]) + pad
            base = gcd(16, offset * size)
            layouts.append(Layout((order == "C") == row_major, leading, gcd(base, leading * size), base))
        return Problem(self.m, self.k, self.w, self.plan.dtype, *layouts, gram=self.gram)

    @property
    def instance(self):
        return instantiate(self.plan, self.problem)

    def __str__(self):
        fold = f"-fold{self.plan.fold}" if self.plan.fold > 1 else ""
        kind = "gram-" if self.gram else ""
        return f"{kind}{self.plan.dtype}x{self.plan.products}-{self.m}x{self.k}x{self.w}-{self.orders}{fold}"


def line(dtype):
    """Elements in 128 bytes."""
    return 128 // ITEMSIZE[dtype]


def tsm2r(dtype, products, orders):
    """m and k large: tiles of rows, some shared by blocks; w = 1, 5, 16, 33, 40; rows of 16 bytes and ragged ones."""
    depth, common = line(dtype), {"products": products}
    yield Case(Plan(dtype, 64, 16, depth, warps_m=4, stages=3, **common), 150, 200, 16, orders)
    yield Case(
        Plan(dtype, 32, 5, depth, warps_m=2, **common), 70, 131, 5, orders, (3, 1), C="F", alpha=-0.5, beta=2.0, grid=9
    )
    plan = Plan(dtype, 64, 48, depth, warps_m=2, warps_n=2, stages=3, prepare_b=True, **common)
    yield Case(plan, 100, 99, 40, orders, C="strided", alpha=1.5, grid=4)
    plan = Plan(dtype, 32, 33, 2 * depth, warps_m=1, stages=3, prepare_b=True, stretch=0, **common)
    yield Case(plan, 77, 300, 33, orders, (5, 2), (1, 3), C="wide", beta=-1.0)
    yield Case(Plan(dtype, 32, 1, depth, warps_m=2, stages=2, **common), 65, 150, 1, orders, grid=3)


def tsm2l(dtype, products, orders):
    """m large, all of B kept: k and w = 1, 2, 3, 5, 8, 12, 33, 40."""
    for k, w, rows, warps, pads, C, scale in (
        (2, 3, 64, 2, (0, 0), "C", (1.0, 0.0)),
        (12, 12, 64, 4, (0, 0), "C", (2.0, -0.5)),
        (33, 33, 32, 2, (0, 0), "F", (1.0, 0.0)),
        (5, 8, 32, 1, (3, 1), "C", (-1.0, 1.0)),
        (24, 40, 64, 2, (8, 8), "C", (1.0, 0.0)),
        (1, 1, 32, 2, (0, 0), "C", (1.0, 0.0)),
    ):
        plan = Plan(dtype, rows, w, k, warps_m=warps, stages=3, keep_b=True, products=products)
        yield Case(plan, 323, k, w, orders, pads, C=C, alpha=scale[0], beta=scale[1], grid=3)


def tsmttsm(dtype, products, orders):
    """Only k large: one tile that blocks and warps share; m and w = 2, 3, 5, 33, 48, 64."""
    depth, common = line(dtype), {"products": products, "stages": 3}
    yield Case(Plan(dtype, 3, 2, 2 * depth, warps_k=2, **common), 3, 700, 2, orders)
    yield Case(
        Plan(dtype, 33, 5, 4 * depth, warps_k=4, **common), 33, 999, 5, orders, (0, 3), C="F", alpha=3.0, beta=1.0
    )
    yield Case(Plan(dtype, 48, 64, 2 * depth, warps_n=2, warps_k=2, **common), 48, 500, 64, orders, (8, 0), C="wide")


def folded(dtype, products):
    """AᵀD of few columns: lines taken as one."""
    for m, w, fold, k in ((4, 4, 4, 1000), (2, 3, 4, 900), (5, 3, 2, 640), (1, 1, 16, 4096)):
        plan = Plan(dtype, m * fold, w * fold, line(dtype), warps_k=2, stages=3, products=products, fold=fold)
        yield Case(plan, m, k, w, "FC", alpha=-1.0, beta=0.5, C="F")


def grams(dtype, products):
    """DᵀD with one copy of D in shared memory, row- and column-major."""
    for w, fold in ((12, 1), (33, 1), (4, 4)):
        for orders in ("FC", "CF") if fold == 1 else ("FC",):
            plan = Plan(
                dtype,
                w * fold,
                w * fold,
                2 * line(dtype),
                warps_k=2,
                stages=3,
                gram=True,
                products=products,
                fold=fold,
            )
            yield Case(plan, w, 600, w, orders, gram=True)


def by_hand(dtype, products):
    return Case(Plan(dtype, 16, 2, 2, stages=2, keep_b=True, products=products), 2, 2, 2)


CASES = [
    *(case for of in (tsm2r, tsm2l, tsmttsm) for a in ARITHMETIC for orders in ORDERS for case in of(*a, orders)),
    *(case for of in (folded, grams) for a in ARITHMETIC for case in of(*a)),
]

#: Plans that the property test draws from: their units of copy say how the operands may lie.
PLANS = [
    Plan("float64", 32, 8, 16, warps_m=2, stages=3, a_unit=8, b_unit=8),
    Plan("float64", 12, 20, 32, warps_k=2, stages=4, a_along=False, a_unit=16, b_unit=16),
    Plan("float32", 48, 24, 32, warps_m=3, warps_n=1, stages=3, prepare_b=True, a_unit=16, b_unit=4),
    Plan("float32", 64, 5, 16, warps_m=2, stages=2, a_along=False, b_along=True, a_unit=8, b_unit=8, products=6),
    Plan("float32", 33, 7, 64, warps_k=4, stages=3, a_along=False, a_unit=4, b_unit=4),
    Plan("float32", 32, 9, 20, warps_m=2, stages=3, keep_b=True, a_unit=16, b_unit=4),
    Plan("float16", 32, 32, 32, warps_m=2, warps_n=2, stages=4, b_along=True, stretch=0),
    Plan("bfloat16", 16, 6, 32, warps_k=2, stages=3, a_along=False, a_unit=2, b_unit=2),
    Plan("bfloat16", 64, 16, 64, warps_m=4, stages=3, stretch=0, a_unit=4, b_unit=8),
]


# --- Building and running ---------------------------------------------------------------------------------------------


def entry_name(instance):
    return "run_" + hashlib.sha256((instance.struct() + instance.epilogue()).encode()).hexdigest()[:12]


def entry(instance):
    """Entry point of one instance, and sizes_… that tells the kernel's own constants."""
    name = entry_name(instance)
    return f"""
namespace {name}_ {{
{instance.struct()}
using E = {instance.epilogue()};
using P = tsm2::Product<Plan, E>;
extern "C" void sizes_{name}(long long* to) {{ to[0] = P::kSharedBytes, to[1] = P::kTileSums, to[2] = P::kThreads; }}
extern "C" void {name}(const void* A, const void* B, void* C, const long long* sizes, void* partial, unsigned* arrived,
                       double alpha, double beta, long long grid) {{
  using T = Plan::Element;
  const auto [m, k, w, lda, ldb, a_size, b_size, rows, columns, lies] =
      *reinterpret_cast<const std::array<long long, 10>*>(sizes);
  const Plan::A::Source a{{static_cast<const T*>(A), lda, m, k, a_size}};
  const Plan::B::Source b{{static_cast<const T*>(B), ldb, w, k, b_size}};
  const tsm2::Work work{{m, w, k}};
  const E epilogue{{static_cast<T*>(C), rows, columns, tsm2::Lies(lies), P::Sum(alpha), P::Sum(beta)}};
  auto* sums = static_cast<P::Sum*>(partial);
  cuda_host::launch(dim3(grid), P::kThreads, P::kSharedBytes, [=] {{
    tsm2::tall_skinny<Plan, E>(a, b, work, sums, arrived, epilogue);
  }});
}}
}}"""


INCLUDE = '#include "kernels/tsm2/tall_skinny.cuh"\n'


def source(instances, kernel=INCLUDE):
    return "\n".join(["#include <array>", kernel, *map(entry, instances)])


def build_each(sources):
    """Build several sources, as many at a time as there are cores to."""
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(harness.build, sources))


@cache
def libraries():
    """Every instance that some test needs, by the name of its entry point."""
    instances = {entry_name(one): one for one in [case.instance for case in [*CASES, *HAND]] + PLANS}
    parts = 4
    shares = [list(instances)[i::parts] for i in range(parts)]
    built = build_each([source([instances[name] for name in share]) for share in shares])
    return {name: library for share, library in zip(shares, built, strict=True) for name in share}


@pytest.fixture(scope="module", name="libraries")
def _libraries():
    return libraries()


def placed(values, order, pad=0, offset=0):
    """Return a copy of a matrix in memory that ends with its last element and holds NaN between its lines."""
    lines = values if order == "C" else values.T
    leading = lines.shape[1] + pad
    memory = np.full(offset + (lines.shape[0] - 1) * leading + lines.shape[1], np.nan, values.dtype)
    assert memory.ctypes.data % 16 == 0
    strides = (leading * memory.itemsize, memory.itemsize)
    view = np.lib.stride_tricks.as_strided(memory[offset:], lines.shape, strides)
    view[...] = lines
    return view if order == "C" else view.T


def result(m, w, dtype, how):
    """Return C, and the memory it is a part of."""
    memory = np.full({"C": (m, w), "F": (w, m), "wide": (m, w + 3), "strided": (2 * m, 3 * w)}[how], UNTOUCHED, dtype)
    return {"C": memory, "F": memory.T, "wide": memory[:, :w], "strided": memory[::2, ::3]}[how], memory


def launch_product(libraries, case, A, B, C, instance=None):
    """Run C ← alpha·A·B + beta·C. The counts of blocks that arrived must all be zero again."""
    instance, problem = instance or case.instance, case.problem
    m, w, k = case.m * instance.fold, case.w * instance.fold, -(-case.k // instance.fold)
    grid = min(case.grid, instance.units(m, k, w))
    partial = np.full(2 * grid * instance.tile_sums, np.nan, np.float64 if SUM[instance.dtype] == "double" else "f4")
    arrived = np.zeros(3 * grid, np.uint32)
    target = DeviceMatrix(C.ctypes.data, C.shape, C.strides, instance.dtype, C.itemsize, 0, C)
    lies = launch._lies(instance, problem, target)
    leading = (problem.a.leading * instance.fold, problem.b.leading * instance.fold)
    strides = (stride // C.itemsize for stride in C.strides)
    spans = problem.a.size(case.m, case.k), problem.b.size(case.w, case.k)
    sizes = np.array([m, k, w, *leading, *spans, *strides, lies], np.int64)
    name = entry_name(instance)
    libraries[name].call(name, A, B, C, sizes, partial, arrived, case.alpha, case.beta, grid)
    assert not arrived.any()


def operands(case, seed=0):
    rng = np.random.default_rng(seed)
    dtype = DTYPES[case.plan.dtype]
    A = placed(rng.standard_normal((case.m, case.k)).astype(dtype), case.orders[0], case.pads[0], case.offsets[0])
    if case.gram:
        return A, A.T
    return A, placed(rng.standard_normal((case.k, case.w)).astype(dtype), case.orders[1], case.pads[1], case.offsets[1])


def bound(plan, k):
    """Return the bound of |sum − AB| / |A||B| for a sum of k products.

    k products, and the epilogue's, are rounded in any order: γ(k + 4). float32 is multiplied in parts, x = x₁ + x₂ with
    |x₂| ≤ 2⁻¹¹|x|: three products drop x₂y₂ ≤ 2⁻²²|xy|, and the tensor cores the bits of x₂ and y₂ beyond 11, which
    are at most one in 2⁻²³ of x and y; 2⁻²¹ in all. Six drop less than 2⁻³¹. Products of halves are exact in float32.
    """
    if plan.dtype == "float64":
        return oracle.gamma(k + 4, np.float64)
    parts = {3: 2.0**-21, 6: 2.0**-31}[plan.products] if plan.dtype == "float32" else 0.0
    return oracle.gamma(k + 4, np.float32) + parts


def assert_product(C, A, B, plan, alpha=1.0, beta=0.0, before=0.0):
    """Assert the bound above for alpha·AB + beta·C; a half is the rounded sum, with a subnormal's absolute error."""
    A, B = A.astype(np.float64), B.astype(np.float64)
    expected, magnitude = alpha * (A @ B), abs(alpha) * (abs(A) @ abs(B))
    if beta:
        expected, magnitude = expected + beta * before, magnitude + abs(beta * before)
    tolerance = (bound(plan, A.shape[1]) + oracle.gamma(A.shape[1] + 4, np.float64)) * magnitude
    if ITEMSIZE[plan.dtype] == 2:
        kind = ml_dtypes.finfo(DTYPES[plan.dtype])
        tolerance += float(kind.eps) / 2 * (abs(expected) + tolerance) + float(kind.smallest_subnormal) / 2
    late = abs(C.astype(np.float64) - expected) - tolerance
    # NaN, which poisoned memory gives, is not at most zero.
    assert (late <= 0).all(), f"{np.count_nonzero(~(late <= 0))} of {C.size} elements are off, by {np.nanmax(late)}"


def check(libraries, case, seed=0, instance=None):
    A, B = operands(case, seed)
    C, memory = result(case.m, case.w, A.dtype, case.C)
    C[...] = np.random.default_rng(seed + 1).standard_normal(C.shape).astype(C.dtype) if case.beta else np.nan
    before = C.astype(np.float64)
    launch_product(libraries, case, A, B, C, instance)
    assert_product(C, A, B, case.plan, case.alpha, case.beta, before)
    C[...] = UNTOUCHED
    assert (memory == memory.dtype.type(UNTOUCHED)).all(), "memory around C was written"


# --- Results -------------------------------------------------------------------------------------------------------

HAND = [by_hand(*a) for a in ARITHMETIC]


@pytest.mark.parametrize("case", HAND, ids=str)
def test_two_by_two_by_hand(libraries, case):
    dtype = DTYPES[case.plan.dtype]
    A, B = (placed(np.array(values).astype(dtype), "C") for values in ([[1, 2], [3, 4]], [[5, 6], [7, 8]]))
    C = np.full((2, 2), np.nan, dtype)
    launch_product(libraries, case, A, B, C)
    assert C.tolist() == [[19, 22], [43, 50]]
    launch_product(libraries, replace(case, alpha=2.0, beta=-1.0), A, B, C)
    assert C.tolist() == [[19, 22], [43, 50]]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_against_float64(libraries, case):
    check(libraries, case)
