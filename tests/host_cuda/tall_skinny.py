"""Runs products by the own source of gemm_mma.cuh and gemm_wgmma.cuh on the CPU, and checks them against float64."""

import hashlib
import re
from dataclasses import dataclass, replace
from math import gcd

import ml_dtypes
import numpy as np
import oracle

from host_cuda import harness
from tsapps.kernels import gemm, matmul
from tsapps.kernels.arrays import DeviceMatrix
from tsapps.kernels.plan.mma import STORE_HEADER, SUM, MmaPlan, WgmmaPlan, instantiate
from tsapps.kernels.problem import ITEMSIZE, Layout, Problem

DTYPES = {"float64": np.float64, "float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
# Every dtype, and how many tf32 products make one of float32.
ARITHMETIC = [("float64", 3), ("float32", 3), ("float32", 6), ("float16", 3), ("bfloat16", 3)]
UNTOUCHED = -12345.0


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
        down, right = strides_of_result(self.m, self.w, self.C)
        c = DeviceMatrix(0, (self.m, self.w), (down * size, right * size), self.plan.dtype, size, 0, None)
        return Problem(self.m, self.k, self.w, self.plan.dtype, *layouts, self.gram, matmul._lies(c))

    @property
    def instance(self):
        return instantiate(self.plan, self.problem)

    def __str__(self):
        fold = f"-fold{self.plan.fold}" if self.plan.fold > 1 else ""
        kind = "gram-" if self.gram else ""
        return f"{kind}{self.plan.dtype}x{self.plan.products}-{self.m}x{self.k}x{self.w}-{self.orders}{fold}"


# --- Building ---------------------------------------------------------------------------------------------------------


def entry_name(instance):
    described = instance.kernel_name + instance.struct() + instance.epilogue()
    return "run_" + hashlib.sha256(described.encode()).hexdigest()[:12]


def entry(instance):
    """Entry point of one instance, and sizes_… that tells the kernel's own constants."""
    name = entry_name(instance)
    return f"""
namespace {name}_ {{
{instance.struct()}
using E = {instance.epilogue()};
using P = tsm2::{PRODUCTS[instance.kernel_name]}<Plan, E>;
extern "C" void sizes_{name}(long long* to) {{ to[0] = P::kSharedBytes, to[1] = P::kTileSums, to[2] = P::kThreads; }}
extern "C" void {name}(const void* A, const void* B, void* C, const long long* sizes, void* partial, unsigned* arrived,
                       double alpha, double beta, long long grid) {{
  using T = Plan::Element;
  const auto [m, k, w, lda, ldb, a_size, b_size, rows, columns, regular] =
      *reinterpret_cast<const std::array<long long, 10>*>(sizes);
  const Plan::A::Source a{{static_cast<const T*>(A), lda, m, k, a_size}};
  const Plan::B::Source b{{static_cast<const T*>(B), ldb, w, k, b_size}};
  const tsm2::Work work{{m, w, k}};
  const E epilogue{{{{static_cast<T*>(C), rows, columns, regular, P::Sum(alpha), P::Sum(beta)}}}};
  auto* sums = static_cast<P::Sum*>(partial);
  cuda_host::launch(dim3(grid), P::kThreads, P::kSharedBytes, [=] {{
    {instance.function}<Plan, E>(a, b, work, sums, arrived, epilogue);
  }});
}}
}}"""


#: The class that a kernel runs.
PRODUCTS = {"tall_skinny": "GemmMma", "tall_skinny_warpgroups": "GemmWgmma"}
KERNEL, WARPGROUPS = MmaPlan.header, WgmmaPlan.header


def source(instances, text=""):
    """Return the entry points of some instances behind their kernels, or behind `text` in those kernels' place."""
    kernels = {f'#include "{header}"': None for header in (*(one.header for one in instances), STORE_HEADER)}
    return "\n".join(["#include <array>", *([text] if text else kernels), *map(entry, instances)])


def altered(kernel, header, old, new, occurrence=0):
    """Return a kernel and the epilogues that store C, headers in place, with `old` replaced by `new` in one of them."""
    included = set()

    def inlined(name):
        if name in included:
            return ""
        included.add(name)
        text = (harness.ROOT / name).read_text(encoding="utf-8").replace("#pragma once\n", "")
        if name == header:
            pieces = text.split(old)
            if len(pieces) <= occurrence + 1:  # no AssertionError: tests of faults expect one of what they run
                raise ValueError(f"{old!r} is not in {header}")
            text = old.join(pieces[: occurrence + 1]) + new + old.join(pieces[occurrence + 1 :])
        return re.sub(r'#include "(kernels/.*)"\n', lambda match: inlined(match[1]), text)

    text = inlined(kernel) + inlined(STORE_HEADER)
    if header not in included:
        raise ValueError(f"{header} is no header of the kernel")
    return text


def libraries_of(plans, source_of, name_of, share=8):
    """Return the library of every plan by the name of its entry point."""
    named = {name_of(one): one for one in plans}
    return harness.Libraries(harness.in_shares(named, lambda names: source_of([named[n] for n in names]), share))


# --- Running ----------------------------------------------------------------------------------------------------------


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


def strides_of_result(m, w, how):
    """Return the strides of C in elements."""
    return {"F": (1, m), "wide": (w + 3, 1), "padded": (w + 8, 1), "strided": (6 * w, 3)}.get(how, (w, 1))


def result(m, w, dtype, how):
    """Return C, and the memory it is a part of."""
    shapes = {"C": (m, w), "F": (w, m), "wide": (m, w + 3), "padded": (m, w + 8), "tall": (m + 256, w)}
    memory = np.full({**shapes, "strided": (2 * m, 3 * w)}[how], UNTOUCHED, dtype)
    parts = {"C": memory, "F": memory.T, "tall": memory[:m], "strided": memory[::2, ::3]}
    return parts.get(how, memory[:, :w]), memory


def launch_product(libraries, case, A, B, C, instance=None):
    """Run C ← alpha·A·B + beta·C. The counts of blocks that arrived must all be zero again."""
    instance, problem = instance or case.instance, case.problem
    m, w, k = case.m * instance.fold, case.w * instance.fold, -(-case.k // instance.fold)
    grid = min(case.grid, -(-instance.units(m, k, w) // instance.teams))
    partial = np.full(2 * grid * instance.tile_sums, np.nan, np.float64 if SUM[instance.dtype] == "double" else "f4")
    arrived = np.zeros(3 * grid, np.uint32)
    regular = gemm._regular(instance, problem)
    leading = (problem.a.leading * instance.fold, problem.b.leading * instance.fold)
    strides = (stride // C.itemsize for stride in C.strides)
    spans = problem.a.size(case.m, case.k), problem.b.size(case.w, case.k)
    sizes = np.array([m, k, w, *leading, *spans, *strides, regular], np.int64)
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
    assert (late <= 0).all(), (
        f"{np.count_nonzero(~(late <= 0))} of {C.size} elements are off, by up to {late[late > 0].max(initial=0.0)}"
    )


def check(libraries, case, seed=0, instance=None):
    A, B = operands(case, seed)
    C, memory = result(case.m, case.w, A.dtype, case.C)
    C[...] = np.random.default_rng(seed + 1).standard_normal(C.shape).astype(C.dtype) if case.beta else np.nan
    before = C.astype(np.float64)
    launch_product(libraries, case, A, B, C, instance)
    assert_product(C, A, B, case.plan, case.alpha, case.beta, before)
    C[...] = UNTOUCHED
    assert (memory == memory.dtype.type(UNTOUCHED)).all(), "memory around C was written"


def check_two_by_two(libraries, case):
    """A product worked by hand; then twice it, less what it left in C, which is the same again."""
    dtype = DTYPES[case.plan.dtype]
    A, B = (placed(np.array(values).astype(dtype), "C") for values in ([[1, 2], [3, 4]], [[5, 6], [7, 8]]))
    C = np.full((2, 2), np.nan, dtype)
    launch_product(libraries, case, A, B, C)
    assert C.tolist() == [[19, 22], [43, 50]]
    launch_product(libraries, replace(case, alpha=2.0, beta=-1.0), A, B, C)
    assert C.tolist() == [[19, 22], [43, 50]]


def check_sizes(libraries, case):
    """A plan knows the kernel's own sizes."""
    instance, sizes = case.instance, np.zeros(3, np.int64)
    libraries[entry_name(instance)].call("sizes_" + entry_name(instance), sizes)
    assert sizes.tolist() == [instance.shared_bytes, instance.tile_sums, instance.threads]


def check_same_bits(libraries, case):
    """The same bits in any order of threads, warps and blocks, with copies that land early or late."""
    A, B = operands(case)
    results = []
    for seed, copies in ((0, "late"), (0, "early"), (1, "late"), (2, "early"), (3, "late"), (4, "early")):
        C, memory = result(case.m, case.w, A.dtype, case.C)
        C[...] = 1
        with harness.schedule(seed=seed, copies=copies, threads=1 + seed % 3):
            launch_product(libraries, case, A, B, C)
        results.append(memory.tobytes())
    assert len(set(results)) == 1


def check_in_any_order(library, case):
    for seed in range(4):
        for copies in ("late", "early"):
            with harness.schedule(seed=seed, copies=copies, threads=1):
                check({entry_name(case.instance): library}, case)
