// Approximate square root, and the maximum of all candidates but one.
#pragma once
#include "kernels/ptx/types.cuh"

namespace ptx {

// sqrt.approx ─ one instruction: off by 2⁻²³ of itself at most, and zero of what is below 2⁻¹²⁶.
TSA_PTX float square_root(float x) {
#if defined(TSA_HOST)
  return x < 1.17549435e-38f ? 0.0f : sqrtf(x);
#else
  float root;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(root) : "f"(x));
  return root;
#endif
}

// What follows leaves one of many out of a largest: seven predicates are set by one R2P, if the seven places of a mask
// are the lowest of a byte, and each then spares one `max`. (Comparing a number with each takes one more instruction
// for each.)
//
// spares ─ bit `one` − 1, for `one` of 1 … 31; below, none; above, the last.
TSA_PTX unsigned spares(int one) {
#if defined(TSA_HOST)
  return one == 0 ? 0 : (unsigned)one >= 32 ? 1u << 31 : 1u << (one - 1);
#else
  unsigned bits;
  asm("shf.l.clamp.b32 %0, %1, %2, %3;" : "=r"(bits) : "r"(1u << 31), "r"(0u), "r"(one));
  return bits;
#endif
}

// The largest of `most` and of each of seven numbers whose bit is not set: of the first, bit 8 · byte of `spared`.
template <int byte>
TSA_PTX float max_unless_spared(float most, const float (&of)[7], unsigned spared) {
  static_assert(byte >= 0 && byte < 4, "a word has four bytes");
#if defined(TSA_HOST)
  for (int i = 0; i < 7; ++i) {
    if (!(spared >> (8 * byte + i) & 1) && !(most >= of[i])) most = of[i];
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
      : "f"(of[0]), "f"(of[1]), "f"(of[2]), "f"(of[3]), "f"(of[4]), "f"(of[5]), "f"(of[6]), "r"(spared),
        "n"(1u << 8 * byte), "n"(2u << 8 * byte), "n"(4u << 8 * byte), "n"(8u << 8 * byte), "n"(16u << 8 * byte),
        "n"(32u << 8 * byte), "n"(64u << 8 * byte));
#endif
  return most;
}

// The same of one number, that of `spared`, by a comparison.
TSA_PTX float max_unless(float most, float of, int one, int spared) {
#if defined(TSA_HOST)
  return one == spared || most >= of ? most : of;
#else
  asm("{ .reg .pred p; setp.ne.s32 p, %2, %3; @p max.f32 %0, %0, %1; }" : "+f"(most) : "f"(of), "r"(one), "r"(spared));
  return most;
#endif
}

}  // namespace ptx
