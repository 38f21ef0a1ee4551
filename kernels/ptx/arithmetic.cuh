// Approximate square root, products of pairs of 16-bit floats, and a maximum over all candidates except one.
#pragma once
#include "kernels/ptx/types.cuh"

namespace ptx {

// sqrt.approx ─ approximate square root in one instruction. Relative error: at most 2⁻²³. Results for inputs below
// 2⁻¹²⁶ are zero.
TSA_PTX float square_root(float x) {
#if defined(TSA_HOST)
  return x < 1.17549435e-38f ? 0.0f : sqrtf(x);
#else
  float root;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(root) : "f"(x));
  return root;
#endif
}

// mul.bf16x2 (sm_90 and later) ─ products of two pairs, rounded to nearest.
TSA_PTX unsigned product_of_bfloat16s(unsigned a, unsigned b) {
#if defined(TSA_HOST)
  const auto product = [&](int at) {
    return to_float(Bfloat16{(unsigned short)(a >> at)}) * to_float(Bfloat16{(unsigned short)(b >> at)});
  };
  return to_bfloat16s(product(0), product(16));
#else
  unsigned products;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(products) : "r"(a), "r"(b));
  return products;
#endif
}

// Maximum over all candidates except one, by a bit mask. One R2P instruction sets seven predicates from the low seven
// bits of a byte, and each predicate skips the `max` with one candidate. Comparing the candidates' indices instead
// would take one more instruction per candidate.
//
// skip_bit ─ returns the mask that skips candidate `one`: bit `one` − 1 is set for `one` from 1 to 31, no bit for 0,
// and bit 31 for 32 and more.
TSA_PTX unsigned skip_bit(int one) {
#if defined(TSA_HOST)
  return one == 0 ? 0 : (unsigned)one >= 32 ? 1u << 31 : 1u << (one - 1);
#else
  unsigned bits;
  asm("shf.l.clamp.b32 %0, %1, %2, %3;" : "=r"(bits) : "r"(1u << 31), "r"(0u), "r"(one));
  return bits;
#endif
}

// Returns the maximum of `most` and of all numbers of[i] that are not skipped. of[i] is skipped if bit 8 · byte + i of
// `skipped` is 1.
template <int byte>
TSA_PTX float max_unless_skipped(float most, const float (&of)[7], unsigned skipped) {
  static_assert(byte >= 0 && byte < 4, "a word has four bytes");
#if defined(TSA_HOST)
  for (int i = 0; i < 7; ++i) {
    if (!(skipped >> (8 * byte + i) & 1) && !(most >= of[i])) most = of[i];
  }
#else
  asm("{ .reg .pred p<7>; .reg .b32 b<7>;\n"
      "and.b32 b0, %8, %9; and.b32 b1, %8, %10; and.b32 b2, %8, %11; and.b32 b3, %8, %12;\n"
      "and.b32 b4, %8, %13; and.b32 b5, %8, %14; and.b32 b6, %8, %15;\n"
      "setp.ne.u32 p0, b0, 0; setp.ne.u32 p1, b1, 0; setp.ne.u32 p2, b2, 0; setp.ne.u32 p3, b3, 0;\n"
      "setp.ne.u32 p4, b4, 0; setp.ne.u32 p5, b5, 0; setp.ne.u32 p6, b6, 0;\n"
      "@!p0 max.f32 %0, %0, %1; @!p1 max.f32 %0, %0, %2; @!p2 max.f32 %0, %0, %3; @!p3 max.f32 %0, %0, %4;\n"
      "@!p4 max.f32 %0, %0, %5; @!p5 max.f32 %0, %0, %6; @!p6 max.f32 %0, %0, %7; }"
      : "+f"(most)
      : "f"(of[0]), "f"(of[1]), "f"(of[2]), "f"(of[3]), "f"(of[4]), "f"(of[5]), "f"(of[6]), "r"(skipped),
        "n"(1u << 8 * byte), "n"(2u << 8 * byte), "n"(4u << 8 * byte), "n"(8u << 8 * byte), "n"(16u << 8 * byte),
        "n"(32u << 8 * byte), "n"(64u << 8 * byte));
#endif
  return most;
}

// `one` is the index of the number `of`. Returns `most` if `one` equals `skipped`, else the maximum of `most` and `of`.
// Compares the indices instead of testing a mask bit.
TSA_PTX float max_unless(float most, float of, int one, int skipped) {
#if defined(TSA_HOST)
  return one == skipped || most >= of ? most : of;
#else
  asm("{ .reg .pred p; setp.ne.s32 p, %2, %3; @p max.f32 %0, %0, %1; }" : "+f"(most) : "f"(of), "r"(one), "r"(skipped));
  return most;
#endif
}

}  // namespace ptx
