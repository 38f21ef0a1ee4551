// Fixed-point elements of the cluster sums.
//
//   sums   (k × (d + 1)), 64-bit integers: for each cluster and column j < d, Σ round(w · (x − mean)[j] · scales[j]);
//          in column d, Σ round(w · scales[d]). The sums are over the rows x of the cluster; w is the weight of x
//
// Integer sums are exact, so the order of additions does not matter. Any number of blocks gives the same bits. After
// any number of reassignments, the running sums equal sums computed anew from the labels. An element has kDigits limbs
// of 16 bits: 16·kDigits − 1 bits and a sign.
//
// Why it is fast: an element of two limbs is one 32-bit integer, which one conversion from float32 produces.
#pragma once
#include "kernels/device/element.cuh"

namespace kmeans {

// The types of a fixed-point element of kDigits limbs and of the scale of its column.
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

// Converts an element to fixed point. An element of two limbs is converted in float32: the scale is a power of two, so
// the product is exact.
template <typename Work>
__device__ __forceinline__ int as_integer(Work value, float scale) {
  return __float2int_rn((float)value * scale);
}
template <typename Work>
__device__ __forceinline__ long long as_integer(Work value, double scale) {
  return __double2ll_rn((double)value * scale);
}

}  // namespace kmeans
