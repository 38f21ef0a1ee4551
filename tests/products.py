"""Products run by the project's launchers on the CPU, and checked against float64."""

import ctypes
from dataclasses import dataclass, replace
from math import gcd

import ml_dtypes
import numpy as np
import oracle
from host_cuda import harness
from host_cuda.machine import HostMachine, build_together

from tsapps.kernels import gemm, matmul
from tsapps.kernels.arrays import DeviceMatrix
from tsapps.kernels.dispatch import prepare
from tsapps.kernels.plan.mma import STORE_HEADER, MmaPlan, instantiate
from tsapps.kernels.problem import ITEMSIZE, Layout, Problem

# Every dtype, and how many tf32 products make one of float32.
ARITHMETIC = [("float64", 3), ("float32", 3), ("float32", 6), ("float16", 3), ("bfloat16", 3)]
UNTOUCHED = -12345.0


def matrix_of(x):
    """Return a NumPy matrix as launchers take it."""
    return DeviceMatrix(x.ctypes.data, x.shape, x.strides, x.dtype.name, x.itemsize, 0, x)


# --- Operands and results ---------------------------------------------------------------------------------------------


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


#: How a result may lie: without gaps; the same amid more memory; rows with gaps of 3 and of 8 elements; any strides.
RESULTS = ("C", "F", "tall", "wide", "padded", "strided")


def result(m, w, dtype, how):
    """Return C, and the memory it is a part of."""
    shapes = {"C": (m, w), "F": (w, m), "wide": (m, w + 3), "padded": (m, w + 8), "tall": (m + 256, w)}
    memory = np.full({**shapes, "strided": (2 * m, 3 * w)}[how], UNTOUCHED, dtype)
    parts = {"C": memory, "F": memory.T, "tall": memory[:m], "strided": memory[::2, ::3]}
    return parts.get(how, memory[:, :w]), memory


def bound(dtype, products, k):
    """Return the bound of |sum − AB| / |A||B| for a sum of k products.

    k products, and the epilogue's, are rounded in any order: γ(k + 4). float32 is multiplied in parts, x = x₁ + x₂ with
    |x₂| ≤ 2⁻¹¹|x|: three products drop x₂y₂ ≤ 2⁻²²|xy|, and the tensor cores the bits of x₂ and y₂ beyond 11, which
    are at most one in 2⁻²³ of x and y; 2⁻²¹ in all. Six drop less than 2⁻³¹. Products of halves are exact in float32.
    """
    if dtype == "float64":
        return oracle.gamma(k + 4, np.float64)
    parts = {None: 0.0, 3: 2.0**-21, 6: 2.0**-31}[products] if dtype == "float32" else 0.0
    return oracle.gamma(k + 4, np.float32) + parts


def assert_product(C, A, B, alpha=1.0, beta=0.0, before=0.0, *, products=None):
    """Assert the bound above for alpha·AB + beta·C; a half is the rounded sum, with a subnormal's absolute error.

    `products`: of tf32 for one of float32; None where float32 is not taken apart.
    """
    dtype, k = C.dtype, A.shape[1]
    A, B = A.astype(np.float64), B.astype(np.float64)
    expected, magnitude = alpha * (A @ B), abs(alpha) * (abs(A) @ abs(B))
    if beta:
        expected, magnitude = expected + beta * before, magnitude + abs(beta * before)
    tolerance = (bound(dtype.name, products, k) + oracle.gamma(k + 4, np.float64)) * magnitude
    if dtype.itemsize == 2:
        kind = ml_dtypes.finfo(dtype)
        tolerance += float(kind.eps) / 2 * (abs(expected) + tolerance) + float(kind.smallest_subnormal) / 2
    late = abs(C.astype(np.float64) - expected) - tolerance
    # NaN, which poisoned memory gives, is not at most zero.
    assert (late <= 0).all(), (
        f"{np.count_nonzero(~(late <= 0))} of {C.size} elements are off, by up to {late[late > 0].max(initial=0.0)}"
    )


def assert_only_written(C, memory):
    """Assert that of a result's memory only the result was written, which is overwritten here."""
    C[...] = UNTOUCHED
    assert (memory == memory.dtype.type(UNTOUCHED)).all(), "memory around C was written"


def multiply(plan, A, B, C, alpha=1.0, beta=0.0, *, problem=None, **machine):
    """Compute C ← alpha·A·B + beta·C by a plan's launcher on a `HostMachine`; its counts must all be zero again."""
    a, b, c = map(matrix_of, (A, B, C))
    on = HostMachine(**machine)
    prepare(plan, problem or matmul.problem_of(a, b, c), c, on)(a.pointer, b.pointer, c.pointer, alpha, beta)
    assert not on.counts.any()


def build_simt_together(plans, share=8):
    """See `build_together`."""
    build_together(((f'#include "{plan.header}"\n', (plan.kernel(),)) for plan in plans), share)


# --- Tensor cores -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A product and how it is computed: the plan, how the operands lie, and what becomes of C."""

    plan: MmaPlan
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
    grid: int = 5  # blocks, up to a multiple of a multiprocessor's

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
        c = matrix_of(result(self.m, self.w, self.plan.dtype, self.C)[0])
        return Problem(self.m, self.k, self.w, self.plan.dtype, *layouts, self.gram, matmul._lies(c))

    @property
    def instance(self):
        return instantiate(self.plan, self.problem)

    def __str__(self):
        fold = f"-fold{self.plan.fold}" if self.plan.fold > 1 else ""
        kind = "gram-" if self.gram else ""
        return f"{kind}{self.plan.dtype}x{self.plan.products}-{self.m}x{self.k}x{self.w}-{self.orders}{fold}"


def build_plans_together(plans, share=8):
    """See `build_together`."""
    build_together((gemm.source_of(plan, gemm.store_epilogue(plan)) for plan in plans), share)


def run(case, A, B, C, instance=None, **machine):
    """Compute the product of a case, by default by its own instance."""
    instance = instance or case.instance
    machine = {"multiprocessors": -(-case.grid // instance.blocks), **machine}
    multiply(instance, A, B, C, case.alpha, case.beta, problem=case.problem, **machine)


def operands(case, seed=0):
    rng = np.random.default_rng(seed)
    A, B = (rng.standard_normal(shape).astype(case.plan.dtype) for shape in ((case.m, case.k), (case.k, case.w)))
    A = placed(A, case.orders[0], case.pads[0], case.offsets[0])
    return A, A.T if case.gram else placed(B, case.orders[1], case.pads[1], case.offsets[1])


def check(case, seed=0, instance=None, **machine):
    A, B = operands(case, seed)
    C, memory = result(case.m, case.w, A.dtype, case.C)
    C[...] = np.random.default_rng(seed + 1).standard_normal(C.shape).astype(C.dtype) if case.beta else np.nan
    before = C.astype(np.float64)
    run(case, A, B, C, instance, **machine)
    assert_product(C, A, B, case.alpha, case.beta, before, products=case.plan.products)
    assert_only_written(C, memory)


def check_two_by_two(case):
    """A product worked by hand; then twice it, less what it left in C, which is the same again."""
    A, B = (placed(np.array(values).astype(case.plan.dtype), "C") for values in ([[1, 2], [3, 4]], [[5, 6], [7, 8]]))
    C = np.full((2, 2), np.nan, case.plan.dtype)
    run(case, A, B, C)
    assert C.tolist() == [[19, 22], [43, 50]]
    run(replace(case, alpha=2.0, beta=-1.0), A, B, C)
    assert C.tolist() == [[19, 22], [43, 50]]


def check_same_bits(case):
    """The same bits in any order of threads, warps and blocks, with copies that land early or late."""
    A, B = operands(case)
    results = []
    for seed, copies in ((0, "late"), (0, "early"), (1, "late"), (2, "early"), (3, "late"), (4, "early")):
        C, memory = result(case.m, case.w, A.dtype, case.C)
        C[...] = 1
        with harness.schedule(seed=seed, copies=copies, threads=1 + seed % 3):
            run(case, A, B, C)
        results.append(memory.tobytes())
    assert len(set(results)) == 1


def check_in_any_order(case, **machine):
    for seed in range(4):
        for copies in ("late", "early"):
            with harness.schedule(seed=seed, copies=copies, threads=1):
                check(case, **machine)


def sizes_of(plans):
    """Return shared bytes, sums of a tile and threads of each plan, as the kernel's own class has them."""
    plans = list(dict.fromkeys(plans))
    parts = [f'#include "{header}"' for header in dict.fromkeys((*(plan.header for plan in plans), STORE_HEADER))]
    for number, plan in enumerate(plans):
        of = f"tsm2::{_CLASSES[plan.kernel_name]}<Plan, {plan.epilogue()}>"
        parts.append(f"namespace part_{number} {{\n{plan.struct()}\nusing Of = {of};\n}}")
    names = ("kSharedBytes", "kTileSums", "kThreads")
    rows = (", ".join(f"part_{number}::Of::{name}" for name in names) for number in range(len(plans)))
    parts.append(f'extern "C" long long sizes[];\nlong long sizes[] = {{{", ".join(rows)}}};')
    library = harness.build("\n".join(parts))
    found = (ctypes.c_longlong * (3 * len(plans))).in_dll(library, "sizes")
    return dict(zip(plans, np.array(found).reshape(-1, 3).tolist(), strict=True))


#: The class that a kernel runs.
_CLASSES = {"tall_skinny": "GemmMma", "tall_skinny_warpgroups": "GemmWgmma"}
