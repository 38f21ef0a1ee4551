"""Protected products by their kernels' own source on the CPU, launched as by product/gpu.py."""

from functools import cache

import numpy as np

from host_cuda import harness
from host_cuda.tall_skinny import DTYPES, PRODUCTS
from tsapps.apps.abft.product.plan import (
    COUNTS,
    FLAGGED_ROW,
    FLAGGED_ROWS,
    MATRIX,
    OPERANDS,
    ROWS_PER_LANE,
    WRONG_ELEMENT,
    detect_epilogue,
    element_bounds,
    half_step,
    padded_depth,
    recheck_args,
    row_bounds,
    row_size,
    store_of,
    summed,
)
from tsapps.kernels.plan.accumulation_order import UNKNOWN
from tsapps.kernels.plan.mma import ELEMENT, SUM

BLOCKS = 3
LISTED = 64
#: The epilogue of product/detect.cuh, after faults are added to the sums of a lane.
FAULTY = """
namespace faulty {
struct Fault { long long row, column; double by; };
template <typename Sum, typename Epilogue>
struct Faulty : Epilogue {
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
    """The entry point of a protected product into whose sums faults are injected."""
    name, total = name_of(plan, w, c), SUM[plan.dtype]
    return f"""
namespace of_{name} {{
{plan.struct()}
using E = faulty::Faulty<{total}, {detect_epilogue(plan.dtype, w, c).name}>;
using P = tsm2::{PRODUCTS[plan.kernel_name]}<Plan, E>;
extern "C" void {name}(const void* A, const void* B, const long long* sizes, const void* epilogue, const void* faults,
                       long long n_faults, void* partial, unsigned* arrived, long long blocks) {{
  static_assert(P::kSharedBytes == {plan.shared_bytes}, "a plan knows the kernel's own sizes");
  using T = Plan::Element;
  const long long m = sizes[0], k = sizes[1], n = sizes[2], lda = sizes[3], a_size = sizes[4];
  const Plan::A::Source a{{static_cast<const T*>(A), lda, m, k, a_size}};
  const Plan::B::Source b{{static_cast<const T*>(B), sizes[5], n, k, sizes[6]}};
  const tsm2::Work work{{m, n, k}};
  E checked;
  memcpy(static_cast<void*>(&checked), epilogue, {detect_epilogue(plan.dtype, w, c).arguments.itemsize});
  checked.faults = static_cast<const faulty::Fault*>(faults);
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
extern "C" void row_checksums_{dtype}(const void* B, long long k, long long w, long long padded, long long spread,
                                      const double* step, void* x, void* y, void* counts, long long lanes,
                                      long long vector) {{
  const auto b = *static_cast<const abft::Matrix<const {T}>*>(B);
  constexpr int kEach = {ROWS_PER_LANE} * abft::kRowThreads;
  static_assert(abft::kRowsPerLane == {ROWS_PER_LANE});
  cuda_host::launch(dim3((padded * lanes + kEach - 1) / kEach), abft::kRowThreads, 0, [=] {{
    auto* kernel = lanes == 1 ? abft::row_checksums<{T}, {total}, 1, 1>
                 : vector == 1 ? abft::row_checksums<{T}, {total}, 8, 1>
                               : abft::row_checksums<{T}, {total}, 8, 16 / sizeof({T})>;
    kernel(b, k, w, padded, spread, *step, static_cast<{total}*>(x), static_cast<{total}*>(y),
           static_cast<abft::Counts*>(counts));
  }});
}}
extern "C" void check_rows_{dtype}(const void* C, long long m, long long w, const void* sums, const double* step,
                                   const void* bounds, const void* flagged, long long lanes) {{
  const auto c = *static_cast<const abft::Matrix<const {T}>*>(C);
  const auto rows = *static_cast<const abft::FlaggedRows*>(flagged);
  const auto limits = *static_cast<const abft::RowBounds*>(bounds);
  cuda_host::launch(dim3({BLOCKS}), abft::kRowThreads, 0, [=] {{
    auto* kernel = lanes == 8 ? abft::check_rows<{T}, {total}, 8> : abft::check_rows<{T}, {total}, 1>;
    kernel(c, m, w, static_cast<const {total}*>(sums), *step, limits, rows);
  }});
}}
extern "C" void locate_{dtype}(const void* of, const void* recheck, const void* flagged, const void* bounds,
                               const void* order, long long correct, void* wrong, long long room) {{
  const auto operands = *static_cast<const abft::Operands<{T}>*>(of);
  const auto args = *static_cast<const abft::RecheckArgs<{total}>*>(recheck);
  const auto rows = *static_cast<const abft::FlaggedRows*>(flagged);
  const auto limits = *static_cast<const abft::ElementBounds*>(bounds);
  const auto added = *static_cast<const tsm2::Order*>(order);
  auto* to = static_cast<abft::WrongElement*>(wrong);
  cuda_host::launch(dim3({BLOCKS}), abft::kLocateThreads, 0, [=] {{
    abft::locate<{T}, {total}>(operands, args, rows, limits, added, correct, to, room);
  }});
}}
extern "C" void emulate_{dtype}(const void* of, const void* order, double* sums) {{
  const auto operands = *static_cast<const abft::Operands<{T}>*>(of);
  const auto added = *static_cast<const tsm2::Order*>(order);
  cuda_host::launch(dim3({BLOCKS}), abft::kLocateThreads, 0, [=] {{ abft::emulate<{T}>(operands, added, sums); }});
}}"""


@cache
def rows_library():
    return harness.build('#include "apps/abft/product/locate.cuh"\n' + "\n".join(map(rows_source, DTYPES)))


def build_products(wanted):
    """Return the library of each product (plan, w, layout of C) by the name of its entry point."""
    named = {name_of(*one): one for one in wanted}

    def source(names):
        kernels = sorted({f'#include "{named[name][0].header}"' for name in names})
        return "\n".join(
            [*kernels, '#include "apps/abft/product/detect.cuh"', FAULTY, *(product_source(*named[n]) for n in names)]
        )

    return harness.Libraries(harness.in_shares(named, source))


def matrix(X):
    found = np.zeros((), MATRIX)
    found["data"] = X.ctypes.data
    found["row_stride"], found["column_stride"] = (stride // X.itemsize for stride in X.strides)
    return found


def lanes_of(X):
    return 8 if X.strides[1] <= X.strides[0] else 1


def operands_of(A, B, C):
    found = np.zeros((), OPERANDS)
    found["A"], found["B"], found["C"] = map(matrix, (A, B, C))
    found["m"], found["k"], found["w"] = *A.shape, B.shape[1]
    return found


def emulated(A, B, dtype, order):
    """A · B by emulated_gemm.cuh in this accumulation order."""
    sums = np.zeros((len(A), B.shape[1]))
    rows_library().call(f"emulate_{dtype}", operands_of(A, B, B), np.array(order), sums)
    return sums


def blocks_of(plan, m, k, w):
    return min(BLOCKS, -(-plan.units(m, k, w) // plan.teams))


class Check:
    """The row check of product/gpu.py, with checksums padded for a plan, or unpadded."""

    def __init__(self, A, B, dtype, bounds, plan=None, capacity=None, order=UNKNOWN):
        self.A, self.B, self.dtype, self.bounds, self.order = A, B, dtype, bounds, order
        self.counts = np.full((), 2**60, COUNTS)  # left by an earlier product
        self.rows = np.full(len(A) if capacity is None else capacity, -1, FLAGGED_ROW)
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
        rows_library().call(f"row_checksums_{dtype}", matrix(B), *sizes, *to)

    @property
    def flagged_rows(self):
        found = np.zeros((), FLAGGED_ROWS)
        found["rows"], found["counts"] = self.rows.ctypes.data, self.counts.ctypes.data
        found["capacity"] = len(self.rows)
        return found

    def multiply(self, libraries, plan, c, C, faults=()):
        (m, k), n = self.A.shape, plan.tile_n
        epilogue = np.zeros((), detect_epilogue(self.dtype, C.shape[1], c).arguments)
        epilogue["row_stride"], epilogue["column_stride"] = (stride // C.itemsize for stride in C.strides)
        epilogue["C"], epilogue["alpha"] = C.ctypes.data, 1
        epilogue["flagged_rows"], epilogue["row_weights"] = self.flagged_rows, self.x.ctypes.data
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
        given = np.array(list(faults), FAULT)
        name = name_of(plan, C.shape[1], c)
        libraries[name].call(name, self.A, self.B, sizes, epilogue, given, len(given), partial, arrived, blocks)
        assert not arrived.any()

    def check_rows(self, C):
        # p by NumPy: its accumulation order does not matter.
        with np.errstate(over="ignore", invalid="ignore"):
            sums = (self.A.astype(np.float64) @ self.x[: len(self.B)].astype(np.float64)).astype(summed(self.dtype))
        limits = np.array(row_bounds(self.bounds, self.B.shape[1]))
        rows_library().call(
            f"check_rows_{self.dtype}", matrix(C), *C.shape, sums, self.step, limits, self.flagged_rows, lanes_of(C)
        )

    def flag_all(self):
        """Flag all rows with a residual of NaN, which the re-check confirms."""
        n = len(self.A)
        self.rows["row"], self.rows["residual"] = np.arange(n), np.nan
        self.counts["flagged"], self.counts["confirmed"], self.counts["wrong"] = n, 0, 0

    @property
    def flagged(self):
        return sorted(self.rows["row"][: int(self.counts["flagged"])].tolist())

    @property
    def confirmed(self):
        return int(self.counts["confirmed"])

    def locate(self, C, *, correct=True):
        """Re-check flagged rows, and return their wrong elements and how many there are."""
        listed = np.zeros(LISTED, WRONG_ELEMENT)
        recheck = recheck_args(self.bounds, C.shape[1])
        recheck["x"], recheck["y"] = self.x.ctypes.data, self.y.ctypes.data
        structures = operands_of(self.A, self.B, C), recheck, self.flagged_rows, np.array(element_bounds(self.bounds))
        to = int(correct), listed, LISTED
        rows_library().call(f"locate_{self.dtype}", *structures, np.array(self.order), *to)
        n = int(self.counts["wrong"])
        return sorted(tuple(one) for one in listed[:n].tolist()), n
