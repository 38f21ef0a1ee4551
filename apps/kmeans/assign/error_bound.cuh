// The error bound E of a score: the maximum of |x̂·ĉ − x·c|. Derivation and symbols: see the head of small_k.cuh.
#pragma once

namespace kmeans {

// Part of every error bound in panels: the core-matrix layout adds 2⁻³² to a sum, and a level may be 0.002 larger than
// the bound assumes, of which the tensor cores lose less than 2⁻¹⁷.
constexpr float kLeastError = 1.7e-8f;

#define kInfinity __uint_as_float(0x7f800000u)

// Statistics of all centers, except those that update/centers.cuh excludes because of their large norm. `norm` is C =
// max ‖c‖, `lost` is δ = max ‖c − ĉ‖, `half_square` is H = max ‖c‖²/2, and `least` is c₀ = min ‖c‖. Here ĉ is center c
// in float16. `near` is the part of the limit R (small_k.cuh) that does not depend on the row. Rows with a norm above
// `norm_limit` have no error bound, so they are ambiguous.
struct CenterStats {
  float norm, lost, half_square, norm_limit, least, near;
};

// The largest norm of a row whose scores do not overflow in the epilogue, which are at most 2²⁸, or 2³¹ in panels.
// `norm` is C and `lost` is δ. It is −1 if there is none: a center that is infinite in float16 has no finite products,
// and panels cannot hold −‖c‖²/2 of a norm beyond 2¹⁵.
__device__ __forceinline__ float most_row_norm(float norm, float lost, bool panels) {
  const bool holds = lost < kInfinity && (!panels || norm < (float)(1 << 15));
  return holds ? (float)(1 << (panels ? 29 : 27)) / norm : -1.0f;
}

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

// Coefficients of E for the centers of a column tile: of_norm is b_T and always is a_T of large_k.cuh.
struct TileBound {
  float of_norm, always;
};

// The score error bound E of a row, over the centers whose norm is at most R (small_k.cuh). Other centers are farther
// from the row than the center of norm c₀, even by their computed scores.
class RowBound {
 public:
  // Arguments as for `bound_of`.
  __device__ __forceinline__ RowBound(const CenterStats& most, float tensor_error, float rounding, float of_half_square)
      : norm_(most.norm), lost_(most.lost * (1 + tensor_error)), near_(most.near),
        of_norm_(rounding + 1.0f / (1 << 22) + tensor_error), of_square_(of_half_square / 2) {}

  // The largest norm of a center that can be the nearest of a row of this norm: min(C, R).
  __device__ __forceinline__ float largest_norm(float norm) const { return fminf(norm_, limit(norm)); }

  // E of a row of this norm.
  __device__ __forceinline__ float operator()(float norm) const {
    const Bound bound = up_to(largest_norm(norm));
    return norm * bound.of_norm + bound.always;
  }

  // E = of_norm · norm + always of a row of any norm, over the centers whose norm is at most `center`.
  __device__ __forceinline__ Bound up_to(float center) const {
    return {center * of_norm_ + fminf(lost_, kHalfRounding * fmaxf(center, 1.0f)),
            center * center * of_square_ + 1e-18f};
  }

  // R of a row of this norm; infinity if no center is beyond R.
  __device__ __forceinline__ float beyond(float norm) const { return limit(norm) < norm_ ? limit(norm) : kInfinity; }

 private:
  // kHalfRounding · max(‖c‖, 1) is more than (1 + γ) ‖c − ĉ‖. An element of a center has an error of at most 2⁻¹¹ of
  // the element, or 2⁻²⁵ if it is subnormal in float16. The latter add up to 2⁻¹⁶ at most, since d is at most 2¹⁸.
  static constexpr float kHalfRounding = 1.05f / 2048;

  __device__ __forceinline__ float limit(float norm) const { return fmaf(2.2f, norm, near_); }

  float norm_, lost_, near_, of_norm_, of_square_;
};

}  // namespace kmeans
