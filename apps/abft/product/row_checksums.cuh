// What the rows of a product are checked by: two numbers for every row of B, and the check of a product that is there
// already.
//
//   B (k × w)   →   x (k), with zeros behind it, and y (k)
//
//   x_l = Σ_j v_j b_lj            with the weights below
//   y_l = Σ_j |b_lj|              or √(Σ_j b_lj² + x_l²)
//
// so that of a row of C = A · B, Σ_j v_j c_ij = Σ_l a_il x_l = p_i but for rounding, and q_i = √(Σ_l (a_il y_l)²) says
// of what size that rounding is (thresholds.py).
//
// The weights are between 0.48 and 1, no two the same, so that +δ and −δ in one row do not cancel: with j = 8b + 2t + i
// and n = 2b + i, v_j = (1 − n / 2N) · (1 − t / 8N), N a power of two, at least 16 and as many as there are n. They are
// numbers of float32 up to w = 64, and products of what is the same for a fragment's column and for a lane.
//
// Why it is fast: B is small. Eight lanes have a row of a row-major B, 16 bytes at a time; where columns are
// contiguous, one has. Four rows side by side share their weights, which take conversions, of which there are few a
// clock.
#pragma once
#include "apps/abft/product/detect.cuh"

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

// Rows that lanes have side by side.
constexpr int kRowsTogether = 4;

// `padded`: of x, with its zeros. Counts are set to zero for what follows. kVector columns are loaded at once. Two
// blocks a multiprocessor: for more, the compiler would spill.
template <typename T, typename Sum, int kLanes, int kVector>
__global__ void __launch_bounds__(kRowThreads, 2)
    row_checks(Matrix<const T> B, long long k, long long w, long long padded, bool by_spread, double half_step, Sum* x,
               Sum* y, Counts* counts) {
  struct alignas(kVector * sizeof(T)) Together {
    T at[kVector];
  };
  constexpr int kStep = kRowThreads / kLanes;  // from a lane's row to its next
  const int lane = threadIdx.x % kLanes;
  const long long first = (long long)blockIdx.x * (kRowsTogether * kStep) + threadIdx.x / kLanes;
  if (blockIdx.x == 0 && threadIdx.x == 0) *counts = {0, 0, 0};
  double weighted[kRowsTogether] = {}, size[kRowsTogether] = {};
  for (long long j = kVector * lane; j < w; j += kVector * kLanes) {
    Together some[kRowsTogether] = {};
#pragma unroll
    for (int r = 0; r < kRowsTogether; ++r) {
      const long long row = first + r * kStep;
      if (row < k) some[r] = *reinterpret_cast<const Together*>(&B(row, j));
    }
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const double v = weight(j + i, half_step);
#pragma unroll
      for (int r = 0; r < kRowsTogether; ++r) {
        const double b = wide(some[r].at[i]);
        weighted[r] = fma(b, v, weighted[r]);
        size[r] += by_spread ? b * b : size_of(b);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRowsTogether; ++r) {
    const long long row = first + r * kStep;
    const double of_x = sum_of_lanes<kLanes>(weighted[r]), of_y = sum_of_lanes<kLanes>(size[r]);
    if (lane != 0 || row >= padded) continue;
    x[row] = (Sum)of_x;
    if (row < k) y[row] = (Sum)(by_spread ? sqrt(of_y + of_x * of_x) : of_y);
  }
}

// What rows may be off by (thresholds.py).
struct RowBounds {
  double row, row_size, row_absolute, rounding, rounding_absolute;
};

// Lists the rows of a C that is there already and do not agree with p. kLanes share a row: 8 where C is row-major, 1
// where its columns are contiguous.
template <typename T, typename Sum, int kLanes>
__global__ void __launch_bounds__(kRowThreads) compare(Matrix<const T> C, long long m, long long w, const Sum* sums,
                                                       double half_step, RowBounds bounds, FlaggedRows suspects) {
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

}  // namespace abft
