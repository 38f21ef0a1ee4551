// Elements of a product as exactly as two doubles hold them, whatever the exponents of their factors.
//
// Products and sums are kept with what they lose (T. Ogita, S. Rump and S. Oishi, Accurate sum and dot product, 2005),
// and Σ|ab| beside them. Near the ends of a double's range mantissas are multiplied, exponents are added as integers,
// and an element is sum · 2^exponent, with the exponent of its largest product or of what it is compared with: nothing
// overflows, and what underflows is negligible (exact_products.py).
#pragma once
#include "apps/abft/product/row_checksums.cuh"

namespace abft {

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

// Σ ab of an element, and of Σ |ab|, both without a factor of 2^exponent, for the warp's first lane. `small` is of what
// small factors may have lost (small_factors). `value` is Σ ab as a double.
struct Exact {
  double value = 0, sum = 0, size = 0, small = 0;
  int exponent = 0;
};

__device__ __forceinline__ bool is_finite(double x) { return x - x == 0; }

// x · 2^n.
__device__ __forceinline__ double scaled(double x, int n) { return n == 0 ? x : scalbn(x, n); }

// Whether nothing overflowed, and nothing that underflowed matters, of an element whose Σ |ab| came to that.
__device__ __forceinline__ bool is_ordinary(double size) { return size > 0x1p-900 && size < 0x1p990; }

// Factors of less than this may have lost bits, or all of them, as tensor cores take parts of 11 bits of float32, of
// which the second is below the normal numbers.
constexpr double kSmallFactor = 0x1p-100;

// |ab| with small factors as large as that: 0 if no factor is small.
template <typename T>
__device__ __forceinline__ double small_factors(double a, double b) {
  if constexpr (sizeof(T) == 8) return 0;
  const double size_a = size_of(a), size_b = size_of(b);
  if (size_a * size_b == 0 || (size_a >= kSmallFactor && size_b >= kSmallFactor)) return 0;
  return larger(size_a, kSmallFactor) * larger(size_b, kSmallFactor);
}

// What lanes have of an element's sum.
struct TwofoldSum {
  double total = 0, lost = 0, size = 0;

  __device__ __forceinline__ void add(double product, double lost_of_product) {
    const double next = total + product;
    lost += lost_of_sum(total, product, next) + lost_of_product;
    total = next;
    size += size_of(product);
  }

  __device__ __forceinline__ void gather() {
#pragma unroll
    for (int bits = 16; bits > 0; bits /= 2) {
      const double other = simt::shuffle_xor(total, bits), next = total + other;
      lost += simt::shuffle_xor(lost, bits);
      lost += lost_of_sum(total, other, next);
      total = next;
      size += simt::shuffle_xor(size, bits);
    }
    if (!is_finite(lost)) lost = 0;
  }
};

template <typename T>
__device__ __forceinline__ Exact exact_of(const Judged<T>& of, long long row, long long column) {
  TwofoldSum sum;
  double small = 0;
  for (long long l = threadIdx.x % 32; l < of.k; l += 32) {
    const double a = wide(of.A(row, l)), b = wide(of.B(l, column));
    const double product = fma(a, b, 0.0);  // a plain product would become part of the sum
    sum.add(product, fma(a, b, -product));
    small += small_factors<T>(a, b);
  }
  sum.gather();
  if constexpr (sizeof(T) < 8) small = simt::warp_sum(small);
  const double value = sum.total + sum.lost;
  return {value, value, sum.size, small, 0};
}

// Far below the exponent of any product.
constexpr int kNoExponent = -10000;

// x = mantissa · 2^exponent, ½ ≤ |mantissa| < 1; of zero and of what is not finite, kNoExponent.
struct Parts {
  double mantissa;
  int exponent;
};
__device__ __forceinline__ Parts parts_of(double x) {
  if (x == 0 || !is_finite(x)) return {x, kNoExponent};
  int exponent = 0;
  const double mantissa = frexp(x, &exponent);
  return {mantissa, exponent};
}
__device__ __forceinline__ int larger_exponent(double x, double y) {
  return max(parts_of(x).exponent, parts_of(y).exponent);
}

// (total + lost) · 2^exponent, rounded once, to a denormal too.
__device__ __forceinline__ double unscaled(double total, double lost, int exponent) {
  const double sum = total + lost, rest = lost - (sum - total), value = scaled(sum, exponent);
  // Of a denormal, what was cut off. Halves are rounded to even; by what is left they are no halves.
  const double cut = sum - scaled(value, -exponent), half = scaled(1.0, -1075 - exponent);
  if (!is_finite(value) || cut == 0 || size_of(cut) != half || rest == 0 || (rest > 0) != (cut > 0)) return value;
  return value + (cut > 0 ? 0x1p-1074 : -0x1p-1074);
}

// Of doubles of any exponent, with an exponent of at least `least`. One copy of it: it is long, and seldom run.
template <typename T>
__device__ __noinline__ Exact scaled_exact_of(Matrix<const T> A, Matrix<const T> B, long long k, long long row,
                                              long long column, int least) {
  int most = 2 * kNoExponent;
  for (long long l = threadIdx.x % 32; l < k; l += 32)
    most = max(most, parts_of(wide(A(row, l))).exponent + parts_of(wide(B(l, column))).exponent);
#pragma unroll
  for (int bits = 16; bits > 0; bits /= 2) most = max(most, simt::shuffle_xor(most, bits));
  if (most < kNoExponent / 2) most = 0;
  TwofoldSum sum;
  for (long long l = threadIdx.x % 32; l < k; l += 32) {
    const Parts a = parts_of(wide(A(row, l))), b = parts_of(wide(B(l, column)));
    const int by = a.exponent + b.exponent - most;
    const double product = fma(a.mantissa, b.mantissa, 0.0), lost = fma(a.mantissa, b.mantissa, -product);
    sum.add(scaled(product, by), is_finite(lost) ? scaled(lost, by) : 0);
  }
  sum.gather();
  const int exponent = max(most, least), by = most - exponent;
  return {unscaled(sum.total, sum.lost, most), scaled(sum.total + sum.lost, by), scaled(sum.size, by), 0, exponent};
}

}  // namespace abft
