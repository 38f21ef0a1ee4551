// Bit-exact emulation of one tensor-core instruction: d + Σ a_i · b_i over 8 products of tf32 or 16 products of 16-bit
// floats, rounded as measured on an H200 (docs/notes/tsm2.md).
//
//   E         the largest exponent of d and of the nonzero products. The exponent of a product is the sum of the
//             exponents of its two factors. A subnormal float16 factor has exponent −14, like the smallest normal one
//   2^(E−25)  d and each product are truncated to a multiple of this number, which is two bits below the last place of
//             a float with exponent E
//   result    the exact sum of the truncated addends, itself truncated to the 24 bits of a float
//
// All addends are aligned to one exponent, so the order of the products does not matter. Valid for finite inputs whose
// intermediate values are normal floats.
#pragma once

#if defined(TSA_HOST)
#define TSA_SUM inline
#else
#define TSA_SUM __device__ __forceinline__
#endif

namespace tensor {

// The smallest exponents of normal numbers: of float16, and of bfloat16, tf32 and float.
constexpr int kLeastOfHalf = -14, kLeastOfFloat = -126;

// ⌊log₂|x|⌋ for a normal number.
TSA_SUM int exponent(float x) { return (int)(__float_as_uint(x) >> 23 & 255) - 127; }

// 2^n.
TSA_SUM double power(int n) { return __longlong_as_double((1023LL + n) << 52); }

// x truncated to the 24 significant bits of a float.
TSA_SUM double cut(double x) { return __longlong_as_double(__double_as_longlong(x) & ~0x1fffffffLL); }

// Returns d + Σ a_i · b_i, truncated as described at the head of this file. The largest exponent E counts a factor with
// an exponent below kLeast as if its exponent were kLeast.
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
  // Each addend is now an integer below 2²⁷ in magnitude.
  long long whole = (long long)(d * scale);
#pragma unroll
  for (int i = 0; i < n; ++i) whole += (long long)((double)a[i] * b[i] * scale);
  return (float)cut((double)whole * power(largest - 25));
}

}  // namespace tensor
