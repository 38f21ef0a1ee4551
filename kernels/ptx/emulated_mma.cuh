// What one instruction of the tensor cores adds to a float, to the bit: d + Σ a_i b_i over the products of its depth, 8
// of tf32, 16 of halves, as an H200 was found to (docs/notes/tsm2.md).
//
//   E         the largest exponent of d and of the products that are not zero, of a product the sum of its factors'
//             exponents;
//             of numbers of float16 that are below its normal ones, theirs
//   2^(E−25)  two bits below a float's last place at E: there each addend is cut off, towards zero
//   result    their sum, exact, cut off to the 24 bits of a float, towards zero
//
// As all is cut off at once, no order of the products matters. For numbers that are finite, and large enough for all of
// this to be of normal floats.
#pragma once

#if defined(TSA_HOST)
#define TSA_SUM inline
#else
#define TSA_SUM __device__ __forceinline__
#endif

namespace tensor {

// The least exponents of normal numbers of float16, and of bfloat16, tf32 and float.
constexpr int kLeastOfHalf = -14, kLeastOfFloat = -126;

// ⌊log₂|x|⌋ of a normal number.
TSA_SUM int exponent(float x) { return (int)(__float_as_uint(x) >> 23 & 255) - 127; }

// 2^n.
TSA_SUM double power(int n) { return __longlong_as_double((1023LL + n) << 52); }

// x without the bits below a float's 24.
TSA_SUM double cut(double x) { return __longlong_as_double(__double_as_longlong(x) & ~0x1fffffffLL); }

// Exponents of factors are at least kLeast.
template <int kLeast, int n>
TSA_SUM float sum(float d, const float (&a)[n], const float (&b)[n]) {
  constexpr int kNone = -1000;
  int largest = d != 0 ? exponent(d) : kNone;
#pragma unroll
  for (int i = 0; i < n; ++i) {
    const int of_a = exponent(a[i]), of_b = exponent(b[i]);
    const int of_product = (of_a > kLeast ? of_a : kLeast) + (of_b > kLeast ? of_b : kLeast);
    if (a[i] != 0 && b[i] != 0 && of_product > largest) largest = of_product;
  }
  if (largest == kNone) return 0;
  const double scale = power(25 - largest);
  // Whole numbers below 2²⁸.
  long long whole = (long long)(d * scale);
#pragma unroll
  for (int i = 0; i < n; ++i) whole += (long long)((double)a[i] * b[i] * scale);
  return (float)cut((double)whole * power(largest - 25));
}

}  // namespace tensor
