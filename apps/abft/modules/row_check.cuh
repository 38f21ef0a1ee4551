// Check of a finished product C = A · B + bias, row by row, with location and repair of wrong elements.
//
//   A (m × k), B (k × w), C (m × w), checksums of B   →   C repaired, and a list of the rows that had wrong elements
//
// With weights v_j of columns, x_l = Σ_j v_j b_lj and y_l = √(Σ_j (v_j b_lj)²), the residual of row i is
//
//   d_i = Σ_j v_j c_ij − Σ_l a_il x_l − Σ_j v_j bias_j
//
// With the sizes s_i = √(Σ_j (v_j c_ij)²) and q_i = √(Σ_l (a_il y_l)²), and the coefficients `RowLimits`:
//
// 1. Row i is flagged if |d_i| > (output + √3 · sum) · s_i + absolute, or if d_i or this limit is not finite. Nothing
//    else happens in a block without flagged rows.
// 2. The whole block computes d_i of a flagged row once more, in double. The row is confirmed if
//    |d_i| > output · s_i + sum · √(2 s_i² + q_i²) + absolute. Rows of A with non-finite elements are not checked
//    further: their products are legitimately not finite.
// 3. Each element of a confirmed row is computed nearly exactly, and is wrong if it differs by more than rounding can
//    explain (`ElementBounds` of product/locate.cuh). Wrong elements are replaced by the exact ones, rounded once.
// 4. A row with wrong elements is listed, in memory of the host, together with the result of step 2 after the repair.
//    For a confirmed row without wrong elements, `is_stale` is set: the checksums of B may be outdated.
//
// Why it is fast: A and C are read once, right after the product, while a part of them is in the level-2 cache. A block
// has four rows and eight warps: each load of a weight serves four rows, and each thread has eight loads of 16 bytes in
// flight. The rows of a block lie far apart, so that many blocks share the work if a tile of C is wrong. With `p`, the
// sums Σ_l a_il x_l were computed before (column_products).
#pragma once
#include "apps/abft/modules/vector_products.cuh"
#include "apps/abft/product/locate.cuh"
#include "kernels/device/block_reduce.cuh"

namespace abft {

constexpr int kCheckThreads = 256, kCheckRows = 4;

// The coefficients of a row's limit; see the head of this file.
struct RowLimits {
  double output, sum, absolute;
};

// A row with wrong elements. `row` to `value` describe the first wrong element in the row; `n_wrong` counts all. The
// host reads an entry once `is_complete` is 1.
struct RowFault {
  long long call, row, column, n_wrong;
  double residual, limit, found, value;
  long long is_repaired, is_complete;
};

// The list of rows with wrong elements, in memory of the host. `count` is in memory of the GPU and also counts the rows
// for which the list has no place.
struct RowFaults {
  RowFault* faults;
  unsigned long long* count;
  long long capacity;
};

template <typename T>
struct CheckArgs {
  using Sum = typename Checksum<T>::Type;
  Operands<T> of;
  const T* bias;           // or null
  const double* bias_sum;  // Σ_j v_j bias_j, or null
  const Sum *v, *x, *y;    // symbols: see the head of this file
  const Sum* p;            // or null
  unsigned* is_stale;
  long long call, repairs;  // a number for the list; whether wrong elements are repaired
  RowLimits limits;
  ElementBounds bounds;
  RowFaults list;
};

// The element of a product, computed by this thread from factors begin, begin + step, …; `with_bias` adds the bias.
template <typename T>
__device__ __forceinline__ ExactElement part_of_element(const CheckArgs<T>& args, long long row, long long column,
                                                        long long begin, int step, bool with_bias, bool by_warp) {
  CompensatedSum sum;
  double small = 0;
#pragma unroll 4
  for (long long l = begin; l < args.of.k; l += step) {
    const double a = wide(args.of.A(row, l)), b = wide(args.of.B(l, column));
    const double product = fma(a, b, 0.0);
    sum.add(product, fma(a, b, -product));
    small += small_factors<T>(a, b);
  }
  if (with_bias && args.bias != nullptr) sum.add(wide(args.bias[column]), 0);
  if (by_warp) {
    sum.reduce_warp();
    small = simt::warp_sum(small);
  } else if (!is_finite(sum.error)) {
    sum.error = 0;
  }
  const double value = sum.sum + sum.error;
  return {value, value, sum.magnitude, small, 0};
}

// What the warps of a block find in a row: number of wrong elements, and the first one.
struct WrongInRow {
  int count, column;
};

// Whether an element is wrong. float64 elements near the ends of the range are not tested.
template <typename T>
__device__ __forceinline__ bool is_wrong(const CheckArgs<T>& args, double element, const ExactElement& exact) {
  if (sizeof(T) == 8 && exact.magnitude != 0 && !is_ordinary(exact.magnitude)) return false;
  return args.bounds.exclude(element, exact, 0);
}

// The row's residual in double, its limit, and whether A's row or the checksums have non-finite elements.
struct Residual {
  double d, limit;
  bool is_testable;

  __device__ __forceinline__ bool confirms() const { return disagrees(d, limit); }
};

template <typename T>
__device__ __forceinline__ Residual residual_of(const CheckArgs<T>& args, long long row) {
  kmeans::Doubles<4> sums = {};
  for (long long l = threadIdx.x; l < args.of.k; l += kCheckThreads) {
    const double a = wide(args.of.A(row, l)), scaled = a * (double)args.y[l];
    sums.at[0] -= a * (double)args.x[l];
    sums.at[2] = fma(scaled, scaled, sums.at[2]);
    sums.at[3] += is_finite(a) ? 0 : 1;
  }
  for (long long j = threadIdx.x; j < args.of.w; j += kCheckThreads) {
    const double product = wide(args.of.C(row, j)) * (double)args.v[j];
    sums.at[0] += product;
    sums.at[1] = fma(product, product, sums.at[1]);
  }
  sums = kmeans::over_block<kCheckThreads>(sums, [](int, double one, double other) { return one + other; });
  const RowLimits& limits = args.limits;
  const double limit =
      limits.output * sqrt(sums.at[1]) + limits.sum * sqrt(2 * sums.at[1] + sums.at[2]) + limits.absolute;
  return {sums.at[0] - (args.bias_sum == nullptr ? 0 : *args.bias_sum), limit, sums.at[3] == 0};
}

// Calls take(row's column, exact element) for all elements of a row, in one thread each.
template <typename T, typename Take>
__device__ __forceinline__ void for_each_element(const CheckArgs<T>& args, long long row, Take take) {
  const Operands<T>& of = args.of;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = kCheckThreads / 32;
  if (of.B.column_stride == 1 && of.B.row_stride != 1) {  // neighboring lanes read neighboring columns
    for (long long column = threadIdx.x; column < of.w; column += kCheckThreads)
      take(column, part_of_element(args, row, column, 0, 1, true, false));
  } else {
    for (long long column = warp; column < of.w; column += warps) {
      const ExactElement exact = part_of_element(args, row, column, lane, 32, lane == 0, true);
      if (lane == 0) take(column, exact);
    }
  }
}

// Steps 2 to 4 for a flagged row; all threads of the block call it.
template <typename T>
__device__ __noinline__ void settle_row(const CheckArgs<T>& args, long long row) {
  __shared__ WrongInRow wrong;
  __shared__ double found, value;
  const Residual before = residual_of(args, row);
  if (!before.is_testable || !before.confirms()) return;
  if (threadIdx.x == 0) wrong = {0, 0x7fffffff};
  __syncthreads();
  for_each_element(args, row, [&](long long column, const ExactElement& exact) {
    if (!is_wrong(args, wide(args.of.C(row, column)), exact)) return;
    atomicAdd(&wrong.count, 1);
    atomicMin(&wrong.column, (int)column);
  });
  __syncthreads();
  if (wrong.count == 0) {
    if (threadIdx.x == 0) *args.is_stale = 1;
    return;
  }
  // Repairs after all tests, so that the first wrong element is known.
  for_each_element(args, row, [&](long long column, const ExactElement& exact) {
    T& element = args.of.C(row, column);
    if (!is_wrong(args, wide(element), exact)) return;
    const T right = rounded<T>(exact.value);
    if (column == wrong.column) found = wide(element), value = wide(right);
    if (args.repairs) element = right;
  });
  __syncthreads();
  const Residual after = residual_of(args, row);
  if (threadIdx.x != 0) return;
  const unsigned long long place = atomicAdd(args.list.count, 1ull);
  if (place >= (unsigned long long)args.list.capacity) return;
  RowFault& fault = args.list.faults[place];
  fault = {args.call, row, wrong.column, wrong.count, before.d, before.limit, found, value, !after.confirms(), 0};
  __threadfence_system();
  *(volatile long long*)&fault.is_complete = 1;
}

// Checks all rows of C: a block checks up to kCheckRows rows. If kFused, A is row-major, and Σ_l a_il x_l is computed
// here; otherwise it is p_i. C is row-major.
template <typename T, bool kFused>
__global__ void __launch_bounds__(kCheckThreads, 2) check_product_rows(const __grid_constant__ CheckArgs<T> args) {
  using Sum = typename Checksum<T>::Type;
  constexpr int kWarps = kCheckThreads / 32;
  __shared__ Sum of_warps[kWarps][2 * kCheckRows];
  __shared__ bool is_flagged[kCheckRows];
  const Operands<T>& of = args.of;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const auto row_of = [&](int r) { return blockIdx.x + r * (long long)gridDim.x; };
  const auto rows_of = [&](const T* data, long long stride, const T*(&rows)[kCheckRows]) {
#pragma unroll
    for (int r = 0; r < kCheckRows; ++r) rows[r] = data + (row_of(r) < of.m ? row_of(r) : of.m - 1) * stride;
    return Rows<T>{data, stride, of.m, 0}.is_aligned();
  };
  ptx::griddepcontrol_wait();
  Sum sum[kCheckRows] = {}, square[kCheckRows] = {};
  const T *of_c[kCheckRows], *of_a[kCheckRows];
  const bool c_aligned = rows_of(of.C.data, of.C.row_stride, of_c);
  [[maybe_unused]] bool a_aligned = false;
  if constexpr (kFused) a_aligned = rows_of(of.A.data, of.A.row_stride, of_a);
  add_row_products<kCheckThreads, true, false>(of_c, (int)of.w, c_aligned, args.v, sum, square);
  if constexpr (kFused) add_row_products<kCheckThreads, false, true>(of_a, (int)of.k, a_aligned, args.x, sum, square);
#pragma unroll
  for (int r = 0; r < kCheckRows; ++r) {
    sum[r] = simt::warp_sum(sum[r]), square[r] = simt::warp_sum(square[r]);
    if (lane == 0) of_warps[warp][r] = sum[r], of_warps[warp][kCheckRows + r] = square[r];
  }
  __syncthreads();
  bool flagged = false;
  if (threadIdx.x < kCheckRows) {
    const long long row = row_of(threadIdx.x);
    Sum total[2] = {};
    for (int w = 0; w < kWarps; ++w)
      total[0] += of_warps[w][threadIdx.x], total[1] += of_warps[w][kCheckRows + threadIdx.x];
    double d = total[0];
    if (args.bias_sum != nullptr) d -= *args.bias_sum;
    if (!kFused && row < of.m) d -= args.p[row];
    const double limit =
        (args.limits.output + 1.7320508 * args.limits.sum) * sqrt((double)total[1]) + args.limits.absolute;
    flagged = row < of.m && disagrees(d, limit);
    is_flagged[threadIdx.x] = flagged;
  }
  if (!__syncthreads_or(flagged)) return;
#pragma unroll 1
  for (int r = 0; r < kCheckRows; ++r)
    if (is_flagged[r]) settle_row(args, row_of(r));
}

}  // namespace abft
