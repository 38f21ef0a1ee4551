// 16-bit floating-point types with their conversions, and the macro that declares the functions of this folder.
//
// This folder holds all inline PTX, one inline function per instruction. Each function has two bodies: the instruction,
// and the same operation in C++ (TSA_HOST), so that the CPU can run the source of a kernel. Under NVRTC, no function
// needs a system header.
#pragma once

#if defined(TSA_HOST)
#define TSA_PTX inline
#else
#define TSA_PTX __device__ __forceinline__
#endif

namespace ptx {

// 16-bit floats: storage, and conversion from and to float with rounding to nearest, ties to even.
struct Half {
  unsigned short bits;
};
struct Bfloat16 {
  unsigned short bits;
};

TSA_PTX Half to_half(float x) {
#if defined(TSA_HOST)
  return {cuda_host::half_bits(x)};
#else
  Half value;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(value.bits) : "f"(x));
  return value;
#endif
}

TSA_PTX float to_float(Half x) {
#if defined(TSA_HOST)
  return cuda_host::half_value(x.bits);
#else
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(x.bits));
  return value;
#endif
}

TSA_PTX Bfloat16 to_bfloat16(float x) {
#if defined(TSA_HOST)
  return {cuda_host::bfloat16_bits(x)};
#else
  Bfloat16 value;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(value.bits) : "f"(x));
  return value;
#endif
}

// Converts two numbers and packs them into one word, `lower` into its lower 16 bits.
TSA_PTX unsigned to_half_pair(float lower, float upper) {
#if defined(TSA_HOST)
  return to_half(lower).bits | (unsigned)to_half(upper).bits << 16;
#else
  unsigned pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(upper), "f"(lower));
  return pair;
#endif
}

TSA_PTX unsigned to_bfloat16s(float lower, float upper) {
#if defined(TSA_HOST)
  return to_bfloat16(lower).bits | (unsigned)to_bfloat16(upper).bits << 16;
#else
  unsigned pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(upper), "f"(lower));
  return pair;
#endif
}

TSA_PTX float to_float(Bfloat16 x) { return __uint_as_float((unsigned)x.bits << 16); }

// 16 bytes that one instruction loads or stores.
struct alignas(16) Quad {
  unsigned at[4];
};

}  // namespace ptx
