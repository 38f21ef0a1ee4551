// The integers that clusters' sums are added up of.
//
//   sums   (k × (d + 1)), 64-bit integers: Σ round(w · (x − mean)[j] · scales[j]) of each cluster, and in column d
//          Σ round(w · scales[d])
//
// Sums are integers, so they are exact and the order of additions does not matter: any number of blocks gives the same
// bits, and after any number of rows that came and left the sums are those of the labels. An element has 16·kDigits − 1
// bits and a sign: two digits are one 32-bit integer, which one conversion from float32 makes.
#pragma once
#include "kernels/device/element.cuh"

namespace kmeans {

// What an element is as an integer, and what it is multiplied by.
template <int kDigits>
struct Integer {
  using Number = long long;
  using Scale = double;
};
template <>
struct Integer<2> {
  using Number = int;
  using Scale = float;
};

// An element as an integer: of two digits in float32, where the scale is a power of two, so that the product is exact.
template <typename Work>
__device__ __forceinline__ int as_integer(Work value, float scale) {
  return __float2int_rn((float)value * scale);
}
template <typename Work>
__device__ __forceinline__ long long as_integer(Work value, double scale) {
  return __double2ll_rn((double)value * scale);
}

}  // namespace kmeans
