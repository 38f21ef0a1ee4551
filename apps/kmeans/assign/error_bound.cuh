// The error bound of a score: how far the computed x̂·ĉ may be from x·c (derived in small_k.cuh).
#pragma once

namespace kmeans {

#define kInfinity __uint_as_float(0x7f800000u)

// Statistics of the centers that are not excluded (update/centers.cuh). In the symbols of small_k.cuh, `norm` is C,
// `lost` is δ, `half_square` is H, `least` is c₀, and `near` is R − 2.2 norm. Rows with a norm beyond norm_limit are
// ambiguous.
struct CenterStats {
  float norm, lost, half_square, norm_limit, least, near;
};

// A score error bound that is linear in the row's norm: E = of_norm · norm + always.
struct Bound {
  float of_norm, always;
};

// Computes the two coefficients of E for the maxima over all centers. `tensor_error` is γ and `rounding` is ρ
// (small_k.cuh). `of_half_square` is the coefficient of H.
__device__ __forceinline__ Bound bound_of(const CenterStats& most, float tensor_error, float rounding,
                                          float of_half_square) {
  return {most.norm * (rounding + 1.0f / (1 << 22)) + most.lost + tensor_error * (most.norm + most.lost),
          most.half_square * of_half_square + 1e-18f};
}

// Coefficients of E for the centers of a column tile: of_norm is b_T and always is a_T of large_k.cuh.
struct TileBound {
  float of_norm, always;
};

// The score error bound E of a row, over the centers within its reach R (small_k.cuh). Centers beyond R are farther
// from the row than the center of norm c₀, even by their computed scores.
class RowBound {
 public:
  // Arguments as for `bound_of`.
  __device__ __forceinline__ RowBound(const CenterStats& most, float tensor_error, float rounding, float of_half_square)
      : norm_(most.norm), lost_(most.lost * (1 + tensor_error)), near_(most.near),
        of_norm_(rounding + 1.0f / (1 << 22) + tensor_error), of_square_(of_half_square / 2) {}

  // The largest norm of a center that can be the nearest of a row of this norm: min(C, R).
  __device__ __forceinline__ float largest_norm(float norm) const { return fminf(norm_, reach(norm)); }

  // E of a row of this norm.
  __device__ __forceinline__ float operator()(float norm) const {
    const float center = largest_norm(norm), lost = fminf(lost_, kHalfRounding * center);
    return norm * (center * of_norm_ + lost) + (center * center * of_square_ + 1e-18f);
  }

  // R of a row of this norm; infinity if no center is beyond R.
  __device__ __forceinline__ float beyond(float norm) const { return reach(norm) < norm_ ? reach(norm) : kInfinity; }

 private:
  // More than (1 + γ) 2⁻¹¹, since 2⁻¹¹ is the relative rounding error of a float16 element, and the error of subnormal
  // elements is small for a center whose norm is at least 1.
  static constexpr float kHalfRounding = 1.05f / 2048;

  __device__ __forceinline__ float reach(float norm) const { return fmaf(2.2f, norm, near_); }

  float norm_, lost_, near_, of_norm_, of_square_;
};

}  // namespace kmeans
