// CUDA's vector types, as far as kernels use them, and the conversions of 16-bit floats from and to float.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>

struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(16) float4 {
  float x, y, z, w;
};

namespace cuda_host {

// IEEE binary16, to nearest and ties to even.
inline uint16_t half_bits(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value), sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
  if (size > 0x7f800000) return sign | 0x7fff;                    // NaN
  if (size >= 0x477ff000) return sign | 0x7c00;                   // rounds to 2^16 or more: infinity
  if (size < 0x38800000) {                                        // below 2^-14: multiples of 2^-24
    return sign | (uint32_t)std::nearbyint(std::bit_cast<float>(size) * 0x1p24f);
  }
  return sign | ((size - 0x38000000 + 0xfff + (size >> 13 & 1)) >> 13);
}

inline float half_value(uint16_t bits) {
  const uint32_t sign = (uint32_t)(bits & 0x8000) << 16, size = bits & 0x7fff;
  if (size > 0x7c00) return NAN;
  // As the bits of a float, whose exponents begin 112 lower; the product is exact, also of what was subnormal.
  const float value = size == 0x7c00 ? INFINITY : std::bit_cast<float>(size << 13) * 0x1p112f;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
}

// The upper half of a float, to nearest and ties to even.
inline uint16_t bfloat16_bits(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fff;
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

inline float bfloat16_value(uint16_t bits) { return std::bit_cast<float>((uint32_t)bits << 16); }

}  // namespace cuda_host
