// The error bound E of a score: the maximum of |x̂·ĉ − x·c|. Derivation and symbols: see the head of small_k.cuh.
#pragma once

namespace kmeans {

#define kInfinity __uint_as_float(0x7f800000u)

// Maxima over all centers, except those that update/centers.cuh excludes because of their large norm. `norm` is C =
// max ‖c‖, `lost` is δ = max ‖c − ĉ‖, and `half_square` is H = max ‖c‖²/2. Here ĉ is center c in float16. Rows with a
// norm above `norm_limit` have no error bound, so they are ambiguous.
struct CenterStats {
  float norm, lost, half_square, norm_limit;
};

// The coefficients of a row's score error bound E, which is linear in the row's norm: E = of_norm · norm + always.
struct Bound {
  float of_norm, always;
};

// Computes the coefficients of the score error bound E. `tensor_error` is γ, the relative error of the tensor cores.
// `rounding` is ρ, the relative rounding error of the half-precision copy. `of_half_square` is the factor of H in E.
__device__ __forceinline__ Bound bound_of(const CenterStats& most, float tensor_error, float rounding,
                                          float of_half_square) {
  return {most.norm * (rounding + 1.0f / (1 << 22)) + most.lost + tensor_error * (most.norm + most.lost),
          most.half_square * of_half_square + 1e-18f};
}

}  // namespace kmeans
