"""Runs protected products by their kernels' own source on the CPU, as product/gpu.py launches them."""

from functools import cache

import numpy as np

from host_cuda import harness
from host_cuda.tall_skinny import DTYPES, PRODUCTS
from tsapps.apps.abft.product.plan import (
    COUNTS_BYTES,
    FLAGGED_BYTES,
    JUDGED,
    ROWS_TOGETHER,
    SUSPECTS,
    WRONG,
    checked_dtype,
    checked_epilogue,
    element_bounds,
    half_step,
    matrix_dtype,
    padded_depth,
    row_bounds,
    row_size,
    second_look,
    store_of,
    summed,
)
from tsapps.kernels.plan.accumulation_order import ORDER, UNKNOWN
from tsapps.kernels.plan.mma import ELEMENT, SUM

BLOCKS = 3
LISTED = 64
#: As product/detect.cuh has it, but that what one lane has is changed before it is stored and checked.
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
    sizes, ways = f"{plan.tile_m}_{plan.tile_n}_{plan.depth}", f"{int(plan.a_along)}{int(plan.keep_b)}"
    return f"{plan.kernel_name}_{plan.dtype}_{sizes}_{ways}_{w}_{lies}"


def product_source(plan, w, c):
    """The entry point of a product that carries its checks, whose sums may be struck."""
    name, total = name_of(plan, w, c), SUM[plan.dtype]
    return f"""
namespace of_{name} {{
{plan.struct()}
using E = struck::Struck<{total}, {checked_epilogue(plan.dtype, w, c).name}>;
using P = tsm2::{PRODUCTS[plan.kernel_name]}<Plan, E>;
static_assert(sizeof({checked_epilogue(plan.dtype, w, c).name}) == {checked_dtype(plan.dtype).itemsize});
extern "C" void {name}(const void* A, const void* B, const long long* sizes, const void* epilogue, const void* faults,
                       long long n_faults, void* partial, unsigned* arrived, long long blocks) {{
  static_assert(P::kSharedBytes == {plan.shared_bytes}, "a plan knows the kernel's own sizes");
  using T = Plan::Element;
  const long long m = sizes[0], k = sizes[1], n = sizes[2], lda = sizes[3], a_size = sizes[4];
  const Plan::A::Source a{{static_cast<const T*>(A), lda, m, k, a_size}};
  const Plan::B::Source b{{static_cast<const T*>(B), sizes[5], n, k, sizes[6]}};
  const tsm2::Work work{{m, n, k}};
  E checked;
  memcpy(static_cast<void*>(&checked), epilogue, {checked_dtype(plan.dtype).itemsize});
  checked.faults = static_cast<const struck::Fault*>(faults);
  checked.n_faults = n_faults;
  auto* sums = static_cast<P::Sum*>(partial);
  cuda_host::launch(dim3(blocks), P::kThreads, P::kSharedBytes, [=] {{
    {plan.function}<Plan, E>(a, b, work, sums, arrived, checked);
  }});
}}
}}"""


def rows_source(dtype):
    T, total = ELEMENT[dtype], SUM[dtype]
    return f"""
extern "C" void row_checks_{dtype}(const void* B, long long k, long long w, long long padded, long long spread,
                                   const double* step, void* x, void* y, void* counts, long long lanes,
                                   long long vector) {{
  const auto b = *static_cast<const abft::Matrix<const {T}>*>(B);
  constexpr int kEach = {ROWS_TOGETHER} * abft::kRowThreads;
  static_assert(abft::kRowsTogether == {ROWS_TOGETHER});
  cuda_host::launch(dim3((padded * lanes + kEach - 1) / kEach), abft::kRowThreads, 0, [=] {{
    auto* kernel = lanes == 1 ? abft::row_checks<{T}, {total}, 1, 1>
                 : vector == 1 ? abft::row_checks<{T}, {total}, 8, 1>
                               : abft::row_checks<{T}, {total}, 8, 16 / sizeof({T})>;
    kernel(b, k, w, padded, spread, *step, static_cast<{total}*>(x), static_cast<{total}*>(y),
           static_cast<abft::Counts*>(counts));
  }});
}}
extern "C" void compare_{dtype}(const void* C, long long m, long long w, const void* sums, const double* step,
                                const void* bounds, const void* suspects, long long lanes) {{
  const auto c = *static_cast<const abft::Matrix<const {T}>*>(C);
  const auto found = *static_cast<const abft::FlaggedRows*>(suspects);
  const auto limits = *static_cast<const abft::RowBounds*>(bounds);
  cuda_host::launch(dim3({BLOCKS}), abft::kRowThreads, 0, [=] {{
    auto* kernel = lanes == 8 ? abft::compare<{T}, {total}, 8> : abft::compare<{T}, {total}, 1>;
    kernel(c, m, w, static_cast<const {total}*>(sums), *step, limits, found);
  }});
}}
extern "C" void locate_{dtype}(const void* of, const void* look, const void* suspects, const void* bounds,
                              const void* order, long long correct, void* wrong, long long room) {{
  const auto judged = *static_cast<const abft::Judged<{T}>*>(of);
  const auto with = *static_cast<const abft::Look<{total}>*>(look);
  const auto found = *static_cast<const abft::FlaggedRows*>(suspects);
  const auto limits = *static_cast<const abft::Bounds*>(bounds);
  const auto added = *static_cast<const tsm2::Order*>(order);
  static_assert(sizeof(tsm2::Order) == {ORDER.itemsize});
  static_assert(sizeof(abft::FlaggedRow) == {FLAGGED_BYTES} && sizeof(abft::Counts) == {COUNTS_BYTES});
  static_assert(sizeof(abft::Judged<{T}>) == {JUDGED.itemsize} && sizeof(abft::Wrong) == {WRONG.itemsize});
  cuda_host::launch(dim3({BLOCKS}), abft::kLocateThreads, 0, [=] {{
    abft::locate<{T}, {total}>(judged, with, found, limits, added, correct, static_cast<abft::Wrong*>(wrong), room);
  }});
}}
extern "C" void predict_{dtype}(const void* of, const void* order, double* sums) {{
  const auto judged = *static_cast<const abft::Judged<{T}>*>(of);
  const auto added = *static_cast<const tsm2::Order*>(order);
  cuda_host::launch(dim3({BLOCKS}), abft::kLocateThreads, 0, [=] {{ abft::predict<{T}>(judged, added, sums); }});
}}"""


@cache
def rows_library():
    return harness.build('#include "apps/abft/product/locate.cuh"\n' + "\n".join(map(rows_source, DTYPES)))


def build_products(wanted):
    """Return the library of every product, of (plan, w, how C lies), by the name of its entry point."""
    named = {name_of(*one): one for one in wanted}

    def source(names):
        kernels = sorted({f'#include "{named[name][0].header}"' for name in names})
        return "\n".join(
            [*kernels, '#include "apps/abft/product/detect.cuh"', STRUCK, *(product_source(*named[n]) for n in names)]
        )

    return harness.Libraries(harness.in_shares(named, source))


def matrix(X):
    down, right = (stride // X.itemsize for stride in X.strides)
    return np.array((X.ctypes.data, down, right), matrix_dtype())


def lanes_of(X):
    return 8 if X.strides[1] <= X.strides[0] else 1


def judged(A, B, C):
    parts = (part for X in (A, B, C) for part in matrix(X).item())
    return np.array((*parts, *A.shape, B.shape[1]), JUDGED)


def predicted(A, B, dtype, order):
    """What sums in this order come to."""
    sums = np.zeros((len(A), B.shape[1]))
    rows_library().call(f"predict_{dtype}", judged(A, B, B), np.array(order), sums)
    return sums


def blocks_of(plan, m, k, w):
    return min(BLOCKS, -(-plan.units(m, k, w) // plan.teams))


class Check:
    """As `product_gpu._Check`, with weights for a plan, or just as many as B has rows."""

    def __init__(self, A, B, dtype, bounds, plan=None, capacity=None, order=UNKNOWN):
        self.A, self.B, self.dtype, self.bounds, self.order = A, B, dtype, bounds, order
        self.counts = np.full(3, 2**60, np.uint64)  # of a product before this one
        self.capacity = len(A) if capacity is None else capacity
        self.suspect_rows = np.full((self.capacity, 2), -1, np.int64)
        k, w = B.shape
        padded = k if plan is None else padded_depth(k, plan)
        total = summed(dtype)
        memory = np.full(padded * total.itemsize + 16, 255, np.uint8)
        first = -memory.ctypes.data % 16
        self.x = memory[first : first + padded * total.itemsize].view(total)
        self.y = np.full(k, np.nan, total)
        self.step = np.array([half_step(w)])
        sizes = k, w, padded, int(bounds.by_spread), self.step
        whole = (B.ctypes.data | B.strides[0] | w * B.itemsize) % 16 == 0
        vector = 16 // B.itemsize if whole and B.strides[1] == B.itemsize else 1
        to = self.x, self.y, self.counts, lanes_of(B), vector
        rows_library().call(f"row_checks_{dtype}", matrix(B), *sizes, *to)

    @property
    def suspects(self):
        return np.array((self.suspect_rows.ctypes.data, self.counts.ctypes.data, self.capacity), SUSPECTS)

    def multiply(self, libraries, plan, c, C, faults=()):
        (m, k), n = self.A.shape, plan.tile_n
        epilogue = np.zeros((), checked_dtype(self.dtype))
        down, right = (stride // C.itemsize for stride in C.strides)
        epilogue["C"], epilogue["rows"], epilogue["columns"], epilogue["alpha"] = C.ctypes.data, down, right, 1
        epilogue["suspects"], epilogue["counts"], epilogue["capacity"] = self.suspects.item()
        epilogue["row_weights"] = self.x.ctypes.data
        epilogue["row"], epilogue["row_absolute"] = self.bounds.row, self.bounds.row_absolute
        epilogue["row_size"] = row_size(self.bounds, C.shape[1])
        sides = []
        for X, along in ((self.A, plan.a_along), (self.B.T, plan.b_along)):
            leading = X.strides[0 if along else 1] // X.itemsize
            lines, length = X.shape if along else X.shape[::-1]
            sides += [leading, (lines - 1) * leading + length]
        blocks = blocks_of(plan, m, k, n)
        partial = np.full(2 * blocks * plan.tile_sums, np.nan, summed(self.dtype))
        arrived = np.zeros(3 * blocks, np.uint32)
        sizes = np.array([m, k, n, *sides], np.int64)
        struck = np.array(list(faults), FAULT)
        name = name_of(plan, C.shape[1], c)
        libraries[name].call(name, self.A, self.B, sizes, epilogue, struck, len(struck), partial, arrived, blocks)
        assert not arrived.any()

    def compare(self, C):
        # p in the order of NumPy: any will do.
        with np.errstate(over="ignore", invalid="ignore"):
            sums = (self.A.astype(np.float64) @ self.x[: len(self.B)].astype(np.float64)).astype(summed(self.dtype))
        limits = np.array(row_bounds(self.bounds, self.B.shape[1]))
        rows_library().call(
            f"compare_{self.dtype}", matrix(C), *C.shape, sums, self.step, limits, self.suspects, lanes_of(C)
        )

    def suspect_all(self):
        """List all rows, by what is no number, so that they are confirmed."""
        n = len(self.A)
        self.suspect_rows[:, 0], self.suspect_rows[:, 1] = np.arange(n), np.float64(np.nan).view("i8")
        self.counts[:] = n, 0, 0

    @property
    def flagged(self):
        return sorted(self.suspect_rows[: int(self.counts[0]), 0].tolist())

    @property
    def confirmed(self):
        return int(self.counts[1])

    def locate(self, C, *, correct=True):
        """As all that comes after a product: the second look, and what is wrong."""
        listed = np.zeros(LISTED, WRONG)
        of = judged(self.A, self.B, C)
        look = second_look(self.bounds, C.shape[1])
        look["x"], look["y"] = self.x.ctypes.data, self.y.ctypes.data
        limits = np.array(element_bounds(self.bounds))
        to = int(correct), listed, LISTED
        rows_library().call(f"locate_{self.dtype}", of, look, self.suspects, limits, np.array(self.order), *to)
        n = int(self.counts[2])
        return sorted(tuple(one) for one in listed[:n].tolist()), n
