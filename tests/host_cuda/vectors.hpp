// CUDA's vector types and 16-bit floats, as far as kernels use them: storage, and conversion from and to float.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>

#define TSA_VECTORS(T, name, align2, align4)                \
  struct alignas(align2) name##2 {                          \
    T x, y;                                                 \
  };                                                        \
  struct alignas(align4) name##4 {                          \
    T x, y, z, w;                                           \
  };                                                        \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; } \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }

TSA_VECTORS(float, float, 8, 16)
TSA_VECTORS(double, double, 16, 16)
TSA_VECTORS(int, int, 8, 16)
TSA_VECTORS(unsigned, uint, 8, 16)
TSA_VECTORS(long long, longlong, 16, 16)
#undef TSA_VECTORS

namespace cuda_host {

// IEEE binary16, to nearest and ties to even.
inline uint16_t half_bits(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value), sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
  if (size > 0x7f800000) return sign | 0x7fff;                    // NaN
  if (size >= 0x477ff000) return sign | 0x7c00;                   // rounds to 2^16 or more: infinity
  if (size < 0x38800000) {                                        // below 2^-14: multiples of 2^-24
    return sign | (uint32_t)std::nearbyint(std::ldexp(std::bit_cast<float>(size), 24));
  }
  return sign | ((size - 0x38000000 + 0xfff + (size >> 13 & 1)) >> 13);
}

inline float half_value(uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 0x3ff;
  const float sign = bits >> 15 ? -1.f : 1.f;
  if (exponent == 31) return fraction ? NAN : sign * INFINITY;
  return sign * (exponent ? std::ldexp((float)(fraction + 1024), exponent - 25) : std::ldexp((float)fraction, -24));
}

// The upper half of a float, to nearest and ties to even.
inline uint16_t bfloat16_bits(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fff;
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

inline float bfloat16_value(uint16_t bits) { return std::bit_cast<float>((uint32_t)bits << 16); }

}  // namespace cuda_host

struct __half {
  uint16_t bits;
  __half() = default;
  __half(float value) : bits(cuda_host::half_bits(value)) {}
  operator float() const { return cuda_host::half_value(bits); }
};
struct __nv_bfloat16 {
  uint16_t bits;
  __nv_bfloat16() = default;
  __nv_bfloat16(float value) : bits(cuda_host::bfloat16_bits(value)) {}
  operator float() const { return cuda_host::bfloat16_value(bits); }
};
inline __half __float2half(float value) { return value; }
inline __half __float2half_rn(float value) { return value; }
inline float __half2float(__half value) { return value; }
inline __nv_bfloat16 __float2bfloat16(float value) { return value; }
inline __nv_bfloat16 __float2bfloat16_rn(float value) { return value; }
inline float __bfloat162float(__nv_bfloat16 value) { return value; }
