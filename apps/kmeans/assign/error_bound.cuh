// The error bound of a score: how far the computed x̂·ĉ may be from x·c (derived in small_k.cuh).
#pragma once

namespace kmeans {

#define kInfinity __uint_as_float(0x7f800000u)

// Maxima over the centers that are not excluded (update/centers.cuh). In the symbols of small_k.cuh, `norm` is C,
// `lost` is δ and `half_square` is H. Rows with a norm beyond norm_limit are ambiguous.
struct CenterStats {
  float norm, lost, half_square, norm_limit;
};

// The score error bound E of a row, linear in the row's norm: E = of_norm · norm + always.
struct Bound {
  float of_norm, always;
};

// Computes the two coefficients of E. `tensor_error` is γ and `rounding` is ρ (small_k.cuh). `of_half_square` is the
// coefficient of H.
__device__ __forceinline__ Bound bound_of(const CenterStats& most, float tensor_error, float rounding,
                                          float of_half_square) {
  return {most.norm * (rounding + 1.0f / (1 << 22)) + most.lost + tensor_error * (most.norm + most.lost),
          most.half_square * of_half_square + 1e-18f};
}

}  // namespace kmeans
