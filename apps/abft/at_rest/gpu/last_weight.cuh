// The weight of a word in S₄ (at_rest/exact_code.py).
#pragma once

namespace abft {

// A hash of r with 22 bits.
__device__ __forceinline__ unsigned last_weight(unsigned r) {
  unsigned x = r * 0x9e3779b1u;
  x = (x ^ x >> 15) * 0x85ebca77u;
  x = (x ^ x >> 13) * 0xc2b2ae3du;
  return (x ^ x >> 16) >> 10;
}

}  // namespace abft
