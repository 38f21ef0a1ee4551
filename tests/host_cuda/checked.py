"""Runs protected products by their kernels' own source on the CPU, as product_gpu.py launches them."""

from functools import cache

import numpy as np

from host_cuda.tall_skinny import DTYPES, PRODUCTS, build_each
from tsapps.apps.abft.product_plan import (
    CHECKS,
    JUDGED,
    PARTS,
    WRONG,
    checked_dtype,
    checked_epilogue,
    element_bounds,
    matrix_dtype,
    store_of,
    summed,
)
from tsapps.kernels.plan import ELEMENT, SUM

BLOCKS = 3
LISTED = 64
#: As checked.cuh has it, but that what one lane has is changed before it is stored and checked.
STRUCK = """
namespace struck {
struct Fault { long long row, column; double by; };
template <typename Sum, typename Epilogue>
struct Struck : Epilogue {
  const Fault* faults;
  long long n_faults;
  template <int kBlocks>
  __device__ void fragments(long long from, int rows, long long column, int columns, const Sum (&d)[kBlocks][4]) const {
    Sum changed[kBlocks][4];
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    for (int j = 0; j < kBlocks; ++j)
      for (int i = 0; i < 4; ++i) {
        changed[j][i] = d[j][i];
        for (long long f = 0; f < n_faults; ++f)
          if (from + 8 * (i / 2) + g == faults[f].row && 8 * j + 2 * t + i % 2 == faults[f].column)
            changed[j][i] += (Sum)faults[f].by;
      }
    Epilogue::fragments(from, rows, column, columns, changed);
  }
};
}
"""
FAULT = np.dtype([("row", "i8"), ("column", "i8"), ("by", "f8")])


def name_of(plan, w, c):
    lies = store_of(plan.dtype, w, c).partition("::")[2].partition("<")[0]
    return f"{plan.kernel_name}_{plan.dtype}_{plan.tile_m}_{plan.tile_n}_{plan.depth}_{int(plan.a_along)}_{w}_{lies}"


def product_source(plan, w, c):
    """The entry point of a product that carries its checks, whose sums may be struck."""
    name, total = name_of(plan, w, c), SUM[plan.dtype]
    return f"""
namespace of_{name} {{
{plan.struct()}
using E = struck::Struck<{total}, {checked_epilogue(plan.dtype, w, c)}>;
using P = tsm2::{PRODUCTS[plan.kernel_name]}<Plan, E>;
static_assert(sizeof({checked_epilogue(plan.dtype, w, c)}) == {checked_dtype(plan.dtype).itemsize});
extern "C" void {name}(const void* A, const void* B, const long long* sizes, const void* epilogue, const void* faults,
                       long long n_faults, void* partial, unsigned* arrived, long long blocks) {{
  static_assert(P::kSharedBytes == {plan.shared_bytes}, "a plan knows the kernel's own sizes");
  using T = Plan::Element;
  const long long m = sizes[0], k = sizes[1], n = sizes[2], lda = sizes[3], a_size = sizes[4];
  const Plan::A::Source a{{static_cast<const T*>(A), lda, m, k, a_size}};
  const Plan::B::Source b{{static_cast<const T*>(B), n, n, k, k * n}};
  const tsm2::Work work{{m, n, k}};
  E checked;
  memcpy(static_cast<void*>(&checked), epilogue, {checked_dtype(plan.dtype).itemsize});
  checked.faults = static_cast<const struck::Fault*>(faults);
  checked.n_faults = n_faults;
  auto* sums = static_cast<P::Sum*>(partial);
  cuda_host::launch(dim3(blocks), P::kThreads, P::kSharedBytes, [=] {{
    tsm2::{plan.kernel_name}<Plan, E>(a, b, work, sums, arrived, checked);
  }});
}}
}}"""


def rows_source(dtype):
    T, total, parts = ELEMENT[dtype], SUM[dtype], PARTS[dtype]
    return f"""
extern "C" void columns_{dtype}(const void* B, long long k, long long w, void* to, long long columns, long long spread,
                                unsigned* most, void* scale) {{
  const auto b = *static_cast<const abft::Matrix<const {T}>*>(B);
  const dim3 grid((k + 7) / 8);
  if (most) cuda_host::launch(grid, abft::kColumnThreads, 0, [=] {{ abft::largest_row<{T}>(b, k, w, most); }});
  cuda_host::launch(grid, abft::kColumnThreads, 0, [=] {{
    abft::check_columns<{T}, {total}, {parts}>(b, k, w, static_cast<{T}*>(to), columns, spread, most,
                                               static_cast<{total}*>(scale));
  }});
}}
extern "C" void compare_{dtype}(const void* C, long long m, long long w, const void* checks, const void* scale,
                                const double* limits, const void* suspects, long long lanes) {{
  const auto c = *static_cast<const abft::Matrix<const {T}>*>(C);
  const auto found = *static_cast<const abft::Suspects*>(suspects);
  cuda_host::launch(dim3({BLOCKS}), abft::kColumnThreads, 0, [=] {{
    auto* kernel = lanes == 8 ? abft::compare<{T}, {total}, {parts}, 8> : abft::compare<{T}, {total}, {parts}, 1>;
    kernel(c, m, w, static_cast<const {total}*>(checks), static_cast<const {total}*>(scale), limits[0], limits[1],
           limits[2], limits[3], found);
  }});
}}
extern "C" void judge_{dtype}(const void* of, const void* suspects, const void* bounds, long long correct, void* wrong,
                              unsigned long long* n_wrong, long long room) {{
  const auto judged = *static_cast<const abft::Judged<{T}>*>(of);
  const auto found = *static_cast<const abft::Suspects*>(suspects);
  const auto limits = *static_cast<const abft::Bounds*>(bounds);
  static_assert(sizeof(abft::Judged<{T}>) == {JUDGED.itemsize} && sizeof(abft::Wrong) == {WRONG.itemsize});
  cuda_host::launch(dim3({BLOCKS}), abft::kJudgeThreads, 0, [=] {{
    abft::judge<{T}>(judged, found, limits, correct, static_cast<abft::Wrong*>(wrong), n_wrong, room);
  }});
}}"""


@cache
def rows_library():
    source = '#include "apps/abft/judge.cuh"\n' + "\n".join(map(rows_source, DTYPES))
    return build_each([source])[0]


def build_products(wanted):
    """Return the library of every product, of (plan, w, how C lies), by the name of its entry point."""
    named = {name_of(*one): one for one in wanted}
    shares = [share for share in (list(named)[i::2] for i in range(2)) if share]

    def source(names):
        kernels = sorted({f'#include "kernels/tsm2/{named[name][0].kernel_name}.cuh"' for name in names})
        return "\n".join(
            [*kernels, '#include "apps/abft/checked.cuh"', STRUCK, *(product_source(*named[n]) for n in names)]
        )

    built = build_each([source(share) for share in shares])
    return {name: library for share, library in zip(shares, built, strict=True) for name in share}


def matrix(X):
    down, right = (stride // X.itemsize for stride in X.strides)
    return np.array((X.ctypes.data, down, right), matrix_dtype())


class Check:
    """As `product_gpu._Check`."""

    def __init__(self, A, B, dtype, bounds, columns, capacity=None):
        self.A, self.B, self.dtype, self.bounds = A, B, dtype, bounds
        self.counts = np.zeros(3, np.uint64)
        self.rows = np.full(capacity if capacity is not None else len(A), -1, np.int64)
        self.scale = np.full(1, np.nan, summed(dtype))
        # 16 bytes are what copies are aligned to.
        memory = np.full(B.shape[0] * columns + 16, np.nan, B.dtype)
        first = -memory.ctypes.data % 16 // B.itemsize
        self.extended = memory[first : first + B.shape[0] * columns].reshape(-1, columns)
        most = self.counts[2:] if dtype == "float16" else 0
        sizes = *B.shape, self.extended, columns, int(bounds.by_spread)
        rows_library().call(f"columns_{dtype}", matrix(B), *sizes, most, self.scale)

    @property
    def suspects(self):
        fields = [("rows", "u8"), ("count", "u8"), ("capacity", "i8")]
        return np.array((self.rows.ctypes.data, self.counts.ctypes.data, len(self.rows)), fields)

    def multiply(self, libraries, plan, c, C, faults=()):
        (m, k), w, n = self.A.shape, C.shape[1], plan.tile_n
        epilogue = np.zeros((), checked_dtype(self.dtype))
        down, right = (stride // C.itemsize for stride in C.strides)
        epilogue["C"], epilogue["rows"], epilogue["columns"], epilogue["alpha"] = C.ctypes.data, down, right, 1
        epilogue["suspects"], epilogue["count"], epilogue["capacity"] = self.suspects.item()
        epilogue["scale"], epilogue["width"], epilogue["step"] = self.scale.ctypes.data, w, 1 / w
        epilogue["row"], epilogue["row_absolute"] = self.bounds.row, self.bounds.row_absolute
        lda = self.A.strides[0 if plan.a_along else 1] // self.A.itemsize
        lines, length = (m, k) if plan.a_along else (k, m)
        blocks = min(BLOCKS, -(-plan.units(m, k, n) // plan.teams))
        partial = np.full(2 * blocks * plan.tile_sums, np.nan, summed(self.dtype))
        arrived = np.zeros(3 * blocks, np.uint32)
        sizes = np.array([m, k, n, lda, (lines - 1) * lda + length], np.int64)
        struck = np.array(list(faults), FAULT)
        name = name_of(plan, w, c)
        libraries[name].call(
            name, self.A, self.extended, sizes, epilogue, struck, len(struck), partial, arrived, blocks
        )
        assert not arrived.any()

    def compare(self, C):
        # Sums of the checks in the order of NumPy: any will do.
        work = summed(self.dtype)
        checks = np.ascontiguousarray(self.A.astype(work) @ self.extended[:, -CHECKS:].astype(work))
        limits = np.array(
            [getattr(self.bounds, f"{n}") for n in ("row", "row_absolute", "rounding", "rounding_absolute")]
        )
        lanes = 8 if C.strides[1] <= C.strides[0] else 1
        rows_library().call(
            f"compare_{self.dtype}", matrix(C), *C.shape, checks, self.scale, limits, self.suspects, lanes
        )

    @property
    def suspected(self):
        return sorted(self.rows[: int(self.counts[0])].tolist())

    def judge(self, C, *, correct=True):
        listed = np.zeros(LISTED, WRONG)
        parts = (part for X in (self.A, self.B, C) for part in matrix(X).item())
        of = np.array((*parts, *self.A.shape, C.shape[1]), JUDGED)
        bounds = np.array(element_bounds(self.bounds))
        rows_library().call(
            f"judge_{self.dtype}", of, self.suspects, bounds, int(correct), listed, self.counts[1:], LISTED
        )
        n = int(self.counts[1])
        return sorted(tuple(one) for one in listed[:n].tolist()), n
