// The rows of a product that are suspected, computed again, and which of their elements are wrong.
//
//   A (m × k), B (k × w), C (m × w), rows that are listed   →   the elements of C that are wrong, and what they should be
//
// An element is computed as exactly as two doubles hold it: products and sums are kept with what they lose (T. Ogita, S. Rump
// and S. Oishi, Accurate sum and dot product, 2005), Σ|ab| and Σ(ab)² beside them. It is judged by thresholds.py's bounds, and
// repaired if that is wanted. If more rows are suspected than their list has room for, all are judged.
//
// Why it is fast enough: it is launched for a handful of rows, most often for none. A warp has an element, its lanes parts of
// the sum.
#pragma once
#include "apps/abft/row_checks.cuh"

namespace abft {

constexpr int kJudgeThreads = 256;

// `Bounds` of thresholds.py, those of an element.
struct Bounds {
  double magnitude, spread, absolute, rounding, rounding_absolute, largest_sum, largest;

  // Whether `found` is not what `exact` is but for rounding.
  __device__ __forceinline__ bool exclude(double found, double exact, double sum, double square) const {
    double allowed = magnitude * sum + spread * sqrt(exact * exact + square) + absolute;
    allowed += rounding * (size_of(exact) + allowed) + rounding_absolute;
    const bool finite = found - found == 0;
    const bool judged = exact - exact == 0 && (finite || (sum < largest_sum && size_of(exact) + allowed < largest));
    return judged && !(size_of(found - exact) <= allowed);
  }
};

// An element that is wrong.
struct Wrong {
  long long row, column;
  double found, value;
};

// x + y = total + what is returned, exactly.
__device__ __forceinline__ double lost_of_sum(double x, double y, double total) {
  const double back = total - x;
  return (x - (total - back)) + (y - back);
}

template <typename T>
struct Judged {
  Matrix<const T> A, B;
  Matrix<T> C;
  long long m, k, w;
};

// `counts->wrong` is zero before; the first `room` that are wrong are listed.
template <typename T>
__global__ void __launch_bounds__(kJudgeThreads)
    judge(Judged<T> of, Suspects suspects, Bounds bounds, bool correct, Wrong* wrong, unsigned long long room) {
  const int lane = threadIdx.x % 32;
  const unsigned long long count = suspects.counts->suspected;
  const bool every = count > (unsigned long long)suspects.capacity;
  const long long n = (every ? of.m : (long long)count) * of.w;
  const long long warps = (long long)gridDim.x * (kJudgeThreads / 32);
  for (long long i = (long long)blockIdx.x * (kJudgeThreads / 32) + threadIdx.x / 32; i < n; i += warps) {
    const long long row = every ? i / of.w : suspects.rows[i / of.w], column = i % of.w;
    double total = 0, lost = 0, size = 0, square = 0;
    for (long long l = lane; l < of.k; l += 32) {
      const double a = wide(of.A(row, l)), b = wide(of.B(l, column));
      const double product = fma(a, b, 0.0);  // a plain product would become part of the sum
      const double next = total + product;
      lost += lost_of_sum(total, product, next) + fma(a, b, -product);
      total = next;
      size += size_of(product);
      square = fma(product, product, square);
    }
#pragma unroll
    for (int bits = 16; bits > 0; bits /= 2) {
      const double other = simt::shuffle_xor(total, bits), next = total + other;
      lost += simt::shuffle_xor(lost, bits);
      lost += lost_of_sum(total, other, next);
      total = next;
      size += simt::shuffle_xor(size, bits);
      square += simt::shuffle_xor(square, bits);
    }
    if (lane != 0) continue;
    const double exact = lost - lost == 0 ? total + lost : total;
    T& element = of.C(row, column);
    const double found = wide(element);
    if (!bounds.exclude(found, exact, size, square)) continue;
    const T value = tsm2::Element<T>::from((decltype(tsm2::Element<T>::value(T())))exact);
    const unsigned long long place = atomicAdd(&suspects.counts->wrong, 1ull);
    if (place < room) wrong[place] = {row, column, found, wide(value)};
    if (correct) element = value;
  }
}

}  // namespace abft
