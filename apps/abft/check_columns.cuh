// B with the columns by which a product is checked, and the check of a product that is there already.
//
//   B (k × w)   →   to (k × columns), row-major: [ B | 0 | checks ], or the checks alone, where `columns` is 8
//
// The checks of row l are p₁ = Σ_j b_lj and p₂ = Σ_j (j + 1)/w · b_lj, of which B's type holds kParts parts, x = x₁ + x₂ + …,
// a pair of columns each; then probes z · s_l, with s_l = Σ_j |b_lj| or √(Σ_j b_lj² + p₁²), and numbers z of either sign with
// ½ ≤ |z| ≤ 1, a hash of their place. All are sums in double, times `scale`: of float16 a power of two by which they use its
// range, else 1.
//
// Why it is fast: B is small. A warp has a row, its lanes the columns.
#pragma once
#include "apps/abft/checked.cuh"

namespace abft {

constexpr int kColumnThreads = 256;

// A matrix of any strides, in elements.
template <typename T>
struct Matrix {
  T* data;
  long long row_stride, column_stride;
  __device__ __forceinline__ T& operator()(long long i, long long j) const {
    return data[i * row_stride + j * column_stride];
  }
};

// MurmurHash3's finalizer.
__device__ __forceinline__ unsigned hashed(unsigned x) {
  x ^= x >> 16;
  x *= 0x85ebca6bu;
  x ^= x >> 13;
  x *= 0xc2b2ae35u;
  return x ^ x >> 16;
}

// ½ ≤ |z| ≤ 1, of either sign.
__device__ __forceinline__ double random_sign(long long row, int column) {
  const unsigned x = hashed((unsigned)(8 * row + column));
  const double size = 0.5 + (x >> 8) * (1.0 / (1 << 25));
  return x % 2 ? -size : size;
}

template <typename T>
__device__ __forceinline__ double wide(T x) {
  return (double)tsm2::Element<T>::value(x);
}
__device__ __forceinline__ double wide(double x) { return x; }

// The largest Σ_j |b_lj|, as the bits of a float, whose order is that of integers; `most` is zero before.
template <typename T>
__global__ void __launch_bounds__(kColumnThreads) largest_row(Matrix<const T> B, long long k, long long w, unsigned* most) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const long long row = (long long)blockIdx.x * (kColumnThreads / 32) + warp;
  if (row >= k) return;
  double size = 0;
  for (long long j = lane; j < w; j += 32) size += size_of(wide(B(row, j)));
  size = simt::warp_sum(size);
  if (lane == 0) atomicMax(most, __float_as_uint((float)size));
}

// The power of two that brings a number to between 2¹³ and 2¹⁵, or 1.
__device__ __forceinline__ float scale_of(unsigned most) {
  const int exponent = (int)(most >> 23) - 127;  // of zero, and of what is not finite, none
  return exponent < -100 || exponent > 100 ? 1.0f : __uint_as_float((unsigned)(127 + 13 - exponent) << 23);
}

// `most` is that of largest_row, or null for a scale of 1; `scale` is written.
template <typename T, typename Sum, int kParts>
__global__ void __launch_bounds__(kColumnThreads)
    check_columns(Matrix<const T> B, long long k, long long w, T* to, long long columns, bool by_spread, const unsigned* most,
                  Sum* scale) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const long long row = (long long)blockIdx.x * (kColumnThreads / 32) + warp;
  const float times = most ? scale_of(*most) : 1.0f;
  if (blockIdx.x == 0 && threadIdx.x == 0) *scale = times;
  if (row >= k) return;
  T* line = to + row * columns;
  const double step = 1.0 / (double)w;
  double first = 0, second = 0, size = 0;
  for (long long j = lane; j < w; j += 32) {
    const T element = B(row, j);
    const double x = wide(element);
    first += x;
    second += x * ((double)(j + 1) * step);
    size += by_spread ? x * x : size_of(x);
    if (columns > kChecks) line[j] = element;
  }
  for (long long j = w + lane; j < columns - kChecks; j += 32) line[j] = tsm2::Element<T>::from(0);
  first = simt::warp_sum(first);
  second = simt::warp_sum(second);
  size = simt::warp_sum(size);
  if (lane >= kChecks) return;
  if (by_spread) size = sqrt(size + first * first);
  double value = times * (lane < 2 * kParts ? (lane % 2 ? second : first) : random_sign(row, lane - 2 * kParts) * size);
  T element = tsm2::Element<T>::from((Sum)value);
  for (int part = 0; part < kParts; ++part) {
    if (lane >= 2 * kParts || lane / 2 == part) break;
    value -= wide(element);
    element = tsm2::Element<T>::from((Sum)value);
  }
  line[columns - kChecks + lane] = element;
}

// Lists the rows of a C that is there already and does not agree with its checks, (m × 8) row-major, of A and the columns
// above. kLanes share a row: 8 where C is row-major, 1 where its columns are contiguous.
template <typename T, typename Sum, int kParts, int kLanes>
__global__ void __launch_bounds__(kColumnThreads)
    compare(Matrix<const T> C, long long m, long long w, const Sum* checks, const Sum* scale, double row, double row_absolute,
            double rounding, double rounding_absolute, Suspects suspects) {
  const int lane = threadIdx.x % kLanes;
  const double times = *scale, step = 1.0 / (double)w;
  const long long rows = (long long)gridDim.x * (kColumnThreads / kLanes);
  const long long begin = ((long long)blockIdx.x * kColumnThreads + threadIdx.x) / kLanes;
  for (long long i = begin; i < (m + 31) / 32 * 32; i += rows) {  // whole warps
    const long long here = i < m ? i : m - 1;
    double first = 0, second = 0, lost = 0;
    for (long long j = lane; j < w; j += kLanes) {
      const double x = wide(C(here, j));
      first += x;
      second += x * ((double)(j + 1) * step);
      lost += size_of(x);
    }
#pragma unroll
    for (int bits = 1; bits < kLanes; bits *= 2) {
      first += simt::shuffle_xor(first, bits);
      second += simt::shuffle_xor(second, bits);
      lost += simt::shuffle_xor(lost, bits);
    }
    const Sum* mine = checks + here * kChecks;
    double most = 0;
    first *= times, second *= times;
#pragma unroll
    for (int pair = 0; pair < kChecks / 2; ++pair) {
      const double x = mine[2 * pair], y = mine[2 * pair + 1];
      if (pair < kParts) first -= x, second -= y;
      most = larger(most, larger(size_of(x), size_of(y)));
    }
    const double limit = row * most + times * (row_absolute + rounding * lost + (double)w * rounding_absolute);
    if (disagrees(first, second, limit) && lane == 0 && i < m) suspects.add(i);
  }
}

}  // namespace abft
