// Columns of rows and centers that are split into two float16 parts, in the order in which lanes hold the rows as
// fragments of wgmma (ptx/mma.cuh). So lanes make fragments from features that they load themselves.
//
//   x · c − ‖c‖²/2 + level  ≈  x₁·c₁ + x₂·c₁ + x₁·c₂ + Σ wᵢ bᵢ + level       with c ≈ c₁ + c₂, x ≈ x₁ + x₂
//
// The features are distributed over four lanes, `each` per lane. The columns of lane t, four per panel, are
//
//   of a row      x₁ … │ x₂ … │ x₁ … │ wₜ   0 …      `each` columns of every kind; w₀ to w₂ are kPartScale, and w₃ is
//   of a center   c₁ … │ c₁ … │ c₂ … │ bₜ   0 …      level / kPartScale[0]; b₀ to b₂ are parts of −‖c‖²/2, and b₃ is
//                                                    kPartScale[0] (core_matrix_layout.cuh)
#pragma once
#include "kernels/tsm2/core_matrix_layout.cuh"

namespace kmeans {

// Number of features per lane, and of panels, for d features.
__host__ __device__ constexpr int features_each(int d) { return (d + 3) / 4; }
__host__ __device__ constexpr int lane_panels(int d) { return (3 * features_each(d) + 1 + 3) / 4; }

// The column that is number `i` of lane `t`.
__device__ __forceinline__ int lane_column(int t, int i) {
  return i / 4 * tsm2::kPanelDepth + i % 4 / 2 * 8 + 2 * t + i % 2;
}

}  // namespace kmeans
