// The error bound of a score: how far the computed x̂·ĉ may be from x·c (derived in small_k.cuh).
#pragma once

namespace kmeans {

#define kInfinity __uint_as_float(0x7f800000u)

// Maxima over all centers (update/centers.cuh): C, δ and H. Rows with a norm beyond norm_limit are ambiguous here.
struct CenterStats {
  float norm, lost, half_square, norm_limit;
};

// The score error bound E of a row of norm x: `of_norm` · x + `always`.
struct Bound {
  float of_norm, always;
};

// γ is the tensor-core error, ρ the rounding error of the half-precision copy. `of_half_square` is the remaining score
// error, relative to H.
__device__ __forceinline__ Bound bound_of(const CenterStats& most, float tensor_error, float rounding,
                                          float of_half_square) {
  return {most.norm * (rounding + 1.0f / (1 << 22)) + most.lost + tensor_error * (most.norm + most.lost),
          most.half_square * of_half_square + 1e-18f};
}

}  // namespace kmeans
