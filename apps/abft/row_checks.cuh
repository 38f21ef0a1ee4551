// What the rows of a product are checked by: two numbers for every row of B, and the check of a product that is there already.
//
//   B (k × w)   →   x (k), with zeros behind it, and y (k)
//
//   x_l = Σ_j v_j b_lj            with the weights below
//   y_l = Σ_j |b_lj|              or √(Σ_j b_lj² + x_l²)
//
// so that of a row of C = A · B, Σ_j v_j c_ij = Σ_l a_il x_l = p_i but for rounding, and q_i = √(Σ_l (a_il y_l)²) says of what size
// that rounding is (thresholds.py).
//
// The weights are between 0.48 and 1, no two the same, so that +δ and −δ in one row do not cancel: with j = 8b + 2t + i and
// n = 2b + i, v_j = (1 − n / 2N) · (1 − t / 8N), N a power of two, at least 16 and as many as there are n. They are numbers of
// float32 up to w = 64, and products of what is the same for a fragment's column and for a lane.
//
// Why it is fast: B is small. Eight lanes have a row of a row-major B, 16 bytes at a time; where columns are contiguous, one has.
#pragma once
#include "apps/abft/checked.cuh"

namespace abft {

constexpr int kRowThreads = 256;

// A matrix of any strides, in elements.
template <typename T>
struct Matrix {
  T* data;
  long long row_stride, column_stride;
  __device__ __forceinline__ T& operator()(long long i, long long j) const {
    return data[i * row_stride + j * column_stride];
  }
};

template <typename T>
__device__ __forceinline__ double wide(T x) {
  return (double)tsm2::Element<T>::value(x);
}
__device__ __forceinline__ double wide(double x) { return x; }

// v_j; `half_step` is 1 / 2N.
__device__ __forceinline__ double weight(long long j, double half_step) {
  return (1 - (double)(j / 8 * 2 + j % 2) * half_step) * (1 - (double)(j % 8 / 2) * (half_step / 4));
}

// Σ over the lanes that share a row.
template <int kLanes>
__device__ __forceinline__ double sum_of_lanes(double sum) {
#pragma unroll
  for (int bits = 1; bits < kLanes; bits *= 2) sum += simt::shuffle_xor(sum, bits);
  return sum;
}

// `padded`: of x, with its zeros. Counts are set to zero for what follows. kVector columns are loaded at once.
template <typename T, typename Sum, int kLanes, int kVector>
__global__ void __launch_bounds__(kRowThreads)
    row_checks(Matrix<const T> B, long long k, long long w, long long padded, bool by_spread, double half_step, Sum* x, Sum* y,
               Counts* counts) {
  struct alignas(kVector * sizeof(T)) Together {
    T at[kVector];
  };
  const int lane = threadIdx.x % kLanes;
  const long long row = ((long long)blockIdx.x * kRowThreads + threadIdx.x) / kLanes;
  if (blockIdx.x == 0 && threadIdx.x == 0) *counts = {0, 0, 0};
  double weighted = 0, size = 0;
  if (row < k) {
#pragma unroll 4
    for (long long j = kVector * lane; j < w; j += kVector * kLanes) {
      const auto some = *reinterpret_cast<const Together*>(&B(row, j));
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const double b = wide(some.at[i]);
        weighted = fma(b, weight(j + i, half_step), weighted);
        size += by_spread ? b * b : size_of(b);
      }
    }
  }
  weighted = sum_of_lanes<kLanes>(weighted);
  size = sum_of_lanes<kLanes>(size);
  if (lane != 0 || row >= padded) return;
  x[row] = (Sum)weighted;
  if (row < k) y[row] = (Sum)(by_spread ? sqrt(size + weighted * weighted) : size);
}

// What rows may be off by (thresholds.py).
struct RowBounds {
  double row, row_size, row_absolute, rounding, rounding_absolute;
};

// Lists the rows of a C that is there already and do not agree with p. kLanes share a row: 8 where C is row-major, 1 where its
// columns are contiguous.
template <typename T, typename Sum, int kLanes>
__global__ void __launch_bounds__(kRowThreads)
    compare(Matrix<const T> C, long long m, long long w, const Sum* sums, double half_step, RowBounds bounds,
            Suspects suspects) {
  const int lane = threadIdx.x % kLanes;
  const long long rows = (long long)gridDim.x * (kRowThreads / kLanes);
  const long long begin = ((long long)blockIdx.x * kRowThreads + threadIdx.x) / kLanes;
  for (long long i = begin; i < (m + 31) / 32 * 32; i += rows) {  // whole warps
    const long long here = i < m ? i : m - 1;
    double off = 0, size = 0;
    for (long long j = lane; j < w; j += kLanes) {
      const double c = wide(C(here, j));
      off = fma(c, weight(j, half_step), off);
      size += size_of(c);
    }
    const double p = sums[here];
    off = sum_of_lanes<kLanes>(off) - p;
    size = sum_of_lanes<kLanes>(size);
    // What rounding C may have lost is not to be held against the row, at a second look either.
    const double lost = bounds.rounding * size + (double)w * bounds.rounding_absolute;
    const double limit = larger(bounds.row * size_of(p), bounds.row_size * size) + bounds.row_absolute + lost;
    if (disagrees(off, limit) && lane == 0 && i < m) suspects.add(i, size_of(off) - lost);
  }
}

// The second look at rows that are suspected: lists those that are off by more than row · q + row_absolute, too. If there are
// more suspects than their list has room for, all rows are looked at, with what C has kept. A warp has a row.
template <typename T, typename Sum>
__global__ void __launch_bounds__(kRowThreads)
    confirm(Matrix<const T> A, Matrix<const T> C, long long m, long long k, long long w, const Sum* x, const Sum* y,
            double half_step, RowBounds bounds, Suspects suspects, long long* confirmed) {
  const int lane = threadIdx.x % 32;
  const unsigned long long count = suspects.counts->suspected;
  const bool every = count > (unsigned long long)suspects.capacity;
  const long long n = every ? m : (long long)count, warps = (long long)gridDim.x * (kRowThreads / 32);
  for (long long i = (long long)blockIdx.x * (kRowThreads / 32) + threadIdx.x / 32; i < n; i += warps) {
    const long long row = every ? i : suspects.rows[i].row;
    double square = 0, p = 0;
    for (long long l = lane; l < k; l += 32) {
      const double a = wide(A(row, l)), scaled = a * (double)y[l];
      square = fma(scaled, scaled, square);
      p = fma(a, (double)x[l], p);
    }
    square = simt::warp_sum(square);
    double off = every ? 0 : suspects.rows[i].off;
    if (every) {
      double sum = 0, size = 0;
      for (long long j = lane; j < w; j += 32) {
        const double c = wide(C(row, j));
        sum = fma(c, weight(j, half_step), sum);
        size += size_of(c);
      }
      const double lost = bounds.rounding * simt::warp_sum(size) + (double)w * bounds.rounding_absolute;
      off = larger(0.0, size_of(simt::warp_sum(sum - p)) - lost);
    }
    if (lane != 0 || !disagrees(off, fma(bounds.row, sqrt(square), bounds.row_absolute))) continue;
    const unsigned long long place = atomicAdd(&suspects.counts->confirmed, 1ull);
    if (place < (unsigned long long)suspects.capacity) confirmed[place] = row;
  }
}

}  // namespace abft
