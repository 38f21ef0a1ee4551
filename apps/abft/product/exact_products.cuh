// Nearly exact dot products: an element of A · B as the sum of two doubles, for factors of any exponents.
//
// The second double is the sum of the rounding errors of all products and additions (T. Ogita, S. Rump and S. Oishi,
// Accurate sum and dot product, 2005). The same loop computes Σ|ab| over the element's products ab.
//
// Near the ends of the double range, mantissas are multiplied and exponents are added as integers. An element is then
// sum · 2^exponent. The exponent is the larger of two: that of the element's largest product, and that of the value
// with which the caller compares the element. Nothing overflows, and underflow is negligible (exact_products.py).
#pragma once
#include "apps/abft/product/row_checksums.cuh"

namespace abft {

// The rounding error of sum = fl(x + y), exactly: x + y − sum (Knuth's TwoSum).
__device__ __forceinline__ double two_sum_error(double x, double y, double sum) {
  const double back = sum - x;
  return (x - (sum - back)) + (y - back);
}

// The matrices of a product C = A · B, with A (m × k), B (k × w) and C (m × w).
template <typename T>
struct Operands {
  Matrix<const T> A, B;
  Matrix<T> C;
  long long m, k, w;
};

// A nearly exact element, valid in the warp's first lane. Σ extends over the products ab of the element. `value` is Σ
// ab as a double. `sum` is (Σ ab) / 2^exponent, and `magnitude` is (Σ |ab|) / 2^exponent. `small` is Σ small_factors(a,
// b).
struct ExactElement {
  double value = 0, sum = 0, magnitude = 0, small = 0;
  int exponent = 0;
};

__device__ __forceinline__ bool is_finite(double x) { return x - x == 0; }

// x · 2^n.
__device__ __forceinline__ double scaled(double x, int n) { return n == 0 ? x : scalbn(x, n); }

// True if an element with this Σ |ab| had no overflow, and no underflow that matters.
__device__ __forceinline__ bool is_ordinary(double magnitude) { return magnitude > 0x1p-900 && magnitude < 0x1p990; }

// Tensor cores may lose some or all bits of factors of magnitude below this limit: float32 factors are split into parts
// of 11 bits, and the second part of a factor below the limit can be a denormal.
constexpr double kSmallFactor = 0x1p-100;

// max(|a|, kSmallFactor) · max(|b|, kSmallFactor) if a or b is below kSmallFactor; 0 if neither factor is below it, if
// a or b is 0, and for doubles.
template <typename T>
__device__ __forceinline__ double small_factors(double a, double b) {
  if constexpr (sizeof(T) == 8) return 0;
  const double size_a = absolute_value(a), size_b = absolute_value(b);
  if (size_a * size_b == 0 || (size_a >= kSmallFactor && size_b >= kSmallFactor)) return 0;
  return larger(size_a, kSmallFactor) * larger(size_b, kSmallFactor);
}

// The sum of a lane's products of an element, the sum of the rounding errors, and the sum of the products' magnitudes.
struct CompensatedSum {
  double sum = 0, error = 0, magnitude = 0;

  __device__ __forceinline__ void add(double product, double product_error) {
    const double next = sum + product;
    error += two_sum_error(sum, product, next) + product_error;
    sum = next;
    magnitude += absolute_value(product);
  }

  // Adds the sums of all lanes of the warp; afterwards the first lane holds the element's sum.
  __device__ __forceinline__ void reduce_warp() {
#pragma unroll
    for (int bits = 16; bits > 0; bits /= 2) {
      const double other = simt::shuffle_xor(sum, bits), next = sum + other;
      error += simt::shuffle_xor(error, bits);
      error += two_sum_error(sum, other, next);
      sum = next;
      magnitude += simt::shuffle_xor(magnitude, bits);
    }
    if (!is_finite(error)) error = 0;
  }
};

// Computes an element without scaling; all lanes of a warp execute it together.
template <typename T>
__device__ __forceinline__ ExactElement exact_element(const Operands<T>& of, long long row, long long column) {
  CompensatedSum sum;
  double small = 0;
  for (long long l = threadIdx.x % 32; l < of.k; l += 32) {
    const double a = wide(of.A(row, l)), b = wide(of.B(l, column));
    const double product = fma(a, b, 0.0);  // fma(a, b, 0): the compiler would fuse a * b with the addition to the sum
    sum.add(product, fma(a, b, -product));
    small += small_factors<T>(a, b);
  }
  sum.reduce_warp();
  if constexpr (sizeof(T) < 8) small = simt::warp_sum(small);
  const double value = sum.sum + sum.error;
  return {value, value, sum.magnitude, small, 0};
}

// Marks the absence of an exponent; far below the exponent of any product.
constexpr int kNoExponent = -10000;

// x = mantissa · 2^exponent, ½ ≤ |mantissa| < 1; the exponent of zero and of non-finite x is kNoExponent.
struct Decomposed {
  double mantissa;
  int exponent;
};
__device__ __forceinline__ Decomposed decomposed(double x) {
  if (x == 0 || !is_finite(x)) return {x, kNoExponent};
  int exponent = 0;
  const double mantissa = frexp(x, &exponent);
  return {mantissa, exponent};
}
__device__ __forceinline__ int larger_exponent(double x, double y) {
  return max(decomposed(x).exponent, decomposed(y).exponent);
}

// (sum + error) · 2^exponent, rounded only once even if the result is a denormal.
__device__ __forceinline__ double unscaled(double sum, double error, int exponent) {
  const double total = sum + error, remainder = error - (total - sum), value = scaled(total, exponent);
  // If `value` is a denormal, rounding changed `total` by `cut`. If `cut` is exactly half the smallest denormal, scalbn
  // rounded this tie to even, although `remainder` may require the other direction.
  const double cut = total - scaled(value, -exponent), half = scaled(1.0, -1075 - exponent);
  if (!is_finite(value) || cut == 0 || absolute_value(cut) != half || remainder == 0 || (remainder > 0) != (cut > 0))
    return value;
  return value + (cut > 0 ? 0x1p-1074 : -0x1p-1074);
}

// Computes an element for doubles of any exponent; all lanes of a warp execute it together. The exponent of the result
// is at least `least`. Not inlined: the code is long and seldom runs.
template <typename T>
__device__ __noinline__ ExactElement scaled_exact_element(Matrix<const T> A, Matrix<const T> B, long long k,
                                                          long long row, long long column, int least) {
  int most = 2 * kNoExponent;
  for (long long l = threadIdx.x % 32; l < k; l += 32)
    most = max(most, decomposed(wide(A(row, l))).exponent + decomposed(wide(B(l, column))).exponent);
#pragma unroll
  for (int bits = 16; bits > 0; bits /= 2) most = max(most, simt::shuffle_xor(most, bits));
  if (most < kNoExponent / 2) most = 0;
  CompensatedSum sum;
  for (long long l = threadIdx.x % 32; l < k; l += 32) {
    const Decomposed a = decomposed(wide(A(row, l))), b = decomposed(wide(B(l, column)));
    const int by = a.exponent + b.exponent - most;
    const double product = fma(a.mantissa, b.mantissa, 0.0), error = fma(a.mantissa, b.mantissa, -product);
    sum.add(scaled(product, by), is_finite(error) ? scaled(error, by) : 0);
  }
  sum.reduce_warp();
  const int exponent = max(most, least), by = most - exponent;
  return {unscaled(sum.sum, sum.error, most), scaled(sum.sum + sum.error, by), scaled(sum.magnitude, by), 0, exponent};
}

}  // namespace abft
