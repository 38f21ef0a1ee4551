// Checksum vectors of B, and the row check of a finished product.
//
//   B (k × w)   →   x (k), padded with zeros, and y (k)
//
//   x_l = Σ_j v_j b_lj            with the weights below
//   y_l = Σ_j |b_lj|              or √(Σ_j b_lj² + x_l²)
//
// For row i of C = A · B, the checksum p_i = Σ_l a_il x_l equals Σ_j v_j c_ij up to a rounding error. The bound of this
// error is a multiple of q_i = √(Σ_l (a_il y_l)²) (thresholds.py).
//
// The weights v_j are distinct and between 0.48 and 1, so that errors +δ and −δ in one row do not cancel. Write j as
// 8b + 2t + h with t < 4 and h < 2, and let n = 2b + h. Then v_j = (1 − n / 2N) · (1 − t / 8N). N is a power of two: at
// least 16, and at least the number of values of n. The weights are exact in float32 up to w = 64. In a fragment
// (ptx/mma.cuh), the factor with n depends only on the index of the accumulator, the factor with t only on the lane.
//
// Why it is fast: B is small. Eight lanes read a row of a row-major B, 16 bytes at a time; if columns are contiguous,
// one lane reads a row. Each lane reads four rows and computes each weight once for all four rows, because a weight
// needs type conversions, which have a low throughput.
#pragma once
#include "apps/abft/product/detect.cuh"

namespace abft {

constexpr int kRowThreads = 256;

// A matrix with any strides; the strides count elements.
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

// The weight v_j of column j; `half_step` is 1 / 2N (symbols: see the head of this file).
__device__ __forceinline__ double weight(long long j, double half_step) {
  return (1 - (double)(j / 8 * 2 + j % 2) * half_step) * (1 - (double)(j % 8 / 2) * (half_step / 4));
}

// Adds the partial sums of the kLanes lanes that read the same row, and returns the total to all of these lanes.
template <int kLanes>
__device__ __forceinline__ double sum_of_lanes(double sum) {
#pragma unroll
  for (int bits = 1; bits < kLanes; bits *= 2) sum += simt::shuffle_xor(sum, bits);
  return sum;
}

// Number of rows of B that a lane reads.
constexpr int kRowsPerLane = 4;

// Computes the vectors x and y of B, and sets `counts` to zero. `padded` is the length of x, including the zeros at its
// end. A row is split among kLanes lanes, and a load reads kVector columns. `by_spread` selects the second formula of
// y. The launch bounds request two blocks per multiprocessor; with more blocks, the compiler would spill registers.
template <typename T, typename Sum, int kLanes, int kVector>
__global__ void __launch_bounds__(kRowThreads, 2)
    row_checksums(Matrix<const T> B, long long k, long long w, long long padded, bool by_spread, double half_step,
                  Sum* x, Sum* y, Counts* counts) {
  struct alignas(kVector * sizeof(T)) Vector {
    T at[kVector];
  };
  constexpr int kStep = kRowThreads / kLanes;  // distance between two rows of a lane
  const int lane = threadIdx.x % kLanes;
  const long long first = (long long)blockIdx.x * (kRowsPerLane * kStep) + threadIdx.x / kLanes;
  if (blockIdx.x == 0 && threadIdx.x == 0) *counts = {0, 0, 0};
  double weighted[kRowsPerLane] = {}, magnitude[kRowsPerLane] = {};
  for (long long j = kVector * lane; j < w; j += kVector * kLanes) {
    Vector vectors[kRowsPerLane] = {};
#pragma unroll
    for (int r = 0; r < kRowsPerLane; ++r) {
      const long long row = first + r * kStep;
      if (row < k) vectors[r] = *reinterpret_cast<const Vector*>(&B(row, j));
    }
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const double v = weight(j + i, half_step);
#pragma unroll
      for (int r = 0; r < kRowsPerLane; ++r) {
        const double b = wide(vectors[r].at[i]);
        weighted[r] = fma(b, v, weighted[r]);
        magnitude[r] += by_spread ? b * b : absolute_value(b);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRowsPerLane; ++r) {
    const long long row = first + r * kStep;
    const double of_x = sum_of_lanes<kLanes>(weighted[r]), of_y = sum_of_lanes<kLanes>(magnitude[r]);
    if (lane != 0 || row >= padded) continue;
    x[row] = (Sum)of_x;
    if (row < k) y[row] = (Sum)(by_spread ? sqrt(of_y + of_x * of_x) : of_y);
  }
}

// Error bounds of a row's residual: fields of `ErrorBounds` (thresholds.py), and `row_size` of plan.py.
struct RowBounds {
  double row, row_size, row_absolute, rounding, rounding_absolute;
};

// Flags the rows of a finished C that disagree with their checksums p_i = sums[i]. A row is split among kLanes lanes: 8
// if C is row-major, 1 if the columns of C are contiguous.
template <typename T, typename Sum, int kLanes>
__global__ void __launch_bounds__(kRowThreads)
    check_rows(Matrix<const T> C, long long m, long long w, const Sum* sums, double half_step, RowBounds bounds,
               FlaggedRows flagged_rows) {
  const int lane = threadIdx.x % kLanes;
  const long long rows = (long long)gridDim.x * (kRowThreads / kLanes);
  const long long begin = ((long long)blockIdx.x * kRowThreads + threadIdx.x) / kLanes;
  for (long long i = begin; i < (m + 31) / 32 * 32; i += rows) {  // whole warps
    const long long here = i < m ? i : m - 1;
    double residual = 0, magnitude = 0;
    for (long long j = lane; j < w; j += kLanes) {
      const double c = wide(C(here, j));
      residual = fma(c, weight(j, half_step), residual);
      magnitude += absolute_value(c);
    }
    const double p = sums[here];
    residual = sum_of_lanes<kLanes>(residual) - p;
    magnitude = sum_of_lanes<kLanes>(magnitude);
    // Rounding of C to T can change the residual by up to `lost`; the residual of a flagged row is reduced by `lost`
    // for the re-check.
    const double lost = bounds.rounding * magnitude + (double)w * bounds.rounding_absolute;
    const double limit =
        larger(bounds.row * absolute_value(p), bounds.row_size * magnitude) + bounds.row_absolute + lost;
    if (disagrees(residual, limit) && lane == 0 && i < m) flagged_rows.add(i, absolute_value(residual) - lost);
  }
}

}  // namespace abft
