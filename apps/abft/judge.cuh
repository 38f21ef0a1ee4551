// The rows of a product that are suspected, at a second look, too: computed again, and which of their elements are wrong.
//
//   A (m × k), B (k × w), C (m × w), rows that are listed   →   the elements of C that are wrong, and what they should be
//
// An element is computed as exactly as two doubles hold it: products and sums are kept with what they lose (T. Ogita, S. Rump
// and S. Oishi, Accurate sum and dot product, 2005), Σ|ab| beside them, and by the statistical threshold how far roundings walk.
// It is judged by thresholds.py's bounds, and repaired if that is wanted. If more rows are confirmed than their list has room
// for, all are judged.
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
  __device__ __forceinline__ bool exclude(double found, double exact, double sum, double walk) const {
    double allowed = magnitude * sum + spread * walk + absolute;
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

// The greatest power of two that is no larger than |x|; 0 of 0.
__device__ __forceinline__ double power_of(double x) {
  return __longlong_as_double(__double_as_longlong(x) & 0x7ff0000000000000ll);
}

// The greatest power of two of which x is a multiple, for an x that is not 0.
__device__ __forceinline__ double last_place(double x) {
  const long long bits = __double_as_longlong(x);
  return size_of(bits & 0xfffffffffffffll ? x - __longlong_as_double(bits & (bits - 1)) : x);
}

// How far the roundings of an element's sum walk (thresholds.py), of which Σ|ab| is `size`; for the warp's first lane.
template <typename T>
__device__ double walk_of(const Judged<T>& of, long long row, long long column, double size) {
  // Where partial sums begin anew, but for those that never do.
  constexpr long long kAnew[] = {32, 512};
  constexpr int kRuns = 3;
  const int lane = threadIdx.x % 32;
  double before[kRuns] = {}, square = 0, finest = size;
  for (long long first = 0; first < of.k; first += 32) {
    const long long l = first + lane;
    const double product = l < of.k ? fma(wide(of.A(row, l)), wide(of.B(l, column)), 0.0) : 0.0;
    double sum = product;  // of this lane's product and those of the lanes before it
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2) {
      const double others = simt::shuffle_up(sum, lanes);
      if (lane >= lanes) sum += others;
    }
    const double all = simt::shuffle(sum, 31);
    double of_step = 0;
#pragma unroll
    for (int i = 0; i < kRuns; ++i) {
      if (i + 1 < kRuns && first % kAnew[i] == 0) before[i] = 0;
      const double power = power_of(before[i] + sum);
      of_step = fma(power, power, of_step);
      before[i] += all;
    }
    if (product != 0) {
      const double power = power_of(product), place = last_place(product);
      square += of_step / kRuns + 2 * power * power;
      finest = place < finest ? place : finest;
    }
  }
#pragma unroll
  for (int bits = 16; bits > 0; bits /= 2) {
    const double other = simt::shuffle_xor(finest, bits);
    finest = other < finest ? other : finest;
    square += simt::shuffle_xor(square, bits);
  }
  // Products of 16-bit elements are exact in float32, and so are sums of 24 bits of their last places.
  if (sizeof(T) == 2 && size < 0x1p24 * finest) return 0;
  // Squares of what is very large or small are lost, and no partial sum is larger than Σ|ab|.
  return size > 0x1p-480 && size < 0x1p480 ? sqrt(square) : sqrt(3.0 * of.k) * size;
}

// `rows` are those that were confirmed, if there was room for as many. `counts->wrong` is zero before; the first `room` that are
// wrong are listed.
template <typename T>
__global__ void __launch_bounds__(kJudgeThreads)
    judge(Judged<T> of, const long long* rows, Counts* counts, long long capacity, Bounds bounds, bool correct, Wrong* wrong,
          unsigned long long room) {
  const int lane = threadIdx.x % 32;
  const unsigned long long count = counts->confirmed;
  const bool every = count > (unsigned long long)capacity;
  const long long n = (every ? of.m : (long long)count) * of.w;
  const long long warps = (long long)gridDim.x * (kJudgeThreads / 32);
  for (long long i = (long long)blockIdx.x * (kJudgeThreads / 32) + threadIdx.x / 32; i < n; i += warps) {
    const long long row = every ? i / of.w : rows[i / of.w], column = i % of.w;
    double total = 0, lost = 0, size = 0;
    for (long long l = lane; l < of.k; l += 32) {
      const double a = wide(of.A(row, l)), b = wide(of.B(l, column));
      const double product = fma(a, b, 0.0);  // a plain product would become part of the sum
      const double next = total + product;
      lost += lost_of_sum(total, product, next) + fma(a, b, -product);
      total = next;
      size += size_of(product);
    }
#pragma unroll
    for (int bits = 16; bits > 0; bits /= 2) {
      const double other = simt::shuffle_xor(total, bits), next = total + other;
      lost += simt::shuffle_xor(lost, bits);
      lost += lost_of_sum(total, other, next);
      total = next;
      size += simt::shuffle_xor(size, bits);
    }
    const double walk = bounds.spread > 0 ? walk_of(of, row, column, size) : 0;
    if (lane != 0) continue;
    const double exact = lost - lost == 0 ? total + lost : total;
    T& element = of.C(row, column);
    const double found = wide(element);
    if (!bounds.exclude(found, exact, size, walk)) continue;
    const T value = tsm2::Element<T>::from((decltype(tsm2::Element<T>::value(T())))exact);
    const unsigned long long place = atomicAdd(&counts->wrong, 1ull);
    if (place < room) wrong[place] = {row, column, found, wide(value)};
    if (correct) element = value;
  }
}

}  // namespace abft
