// Conversion of centers to float16: in rows or in panels, in one part or two, with the squared rounding errors.
#pragma once
#include "apps/kmeans/assign/small_k.cuh"
#include "apps/kmeans/update/column_order.cuh"
#include "kernels/tsm2/core_matrix_layout.cuh"

namespace kmeans {

// Destination of float16 centers: rows of `padded` columns, or panels (core_matrix_layout.cuh) of which the first holds
// −‖c‖²/2. If `second` is not 0, the second parts of centers (assign/small_k.cuh) start at row `second`.
struct HalfCenters {
  ptx::Half* to;
  int padded, panels, height, second;  // panels: panels per center, 0 for rows; height: centers per tile

  __device__ __forceinline__ ptx::Half* at(int center, int column) const {
    if (panels == 0) return to + (long long)center * padded + column;
    return to + tsm2::panel_offset(center, column + tsm2::kPanelDepth, panels + 1, height);
  }
};

// Stores the bias −‖c‖²/2 of the center in a column.
__device__ __forceinline__ void set_offset(float* offsets, const HalfCenters& centers_half, int column, float value) {
  if (centers_half.panels) {
    tsm2::place_parts(centers_half.to, column, centers_half.panels + 1, centers_half.height, value);
  } else {
    offsets[column] = value;
  }
}

// Converts one element of a center to float16, and adds its terms to the squared norm and the squared rounding error.
__device__ __forceinline__ void place(double c, float scale, ptx::Half* half, CenterFound& found) {
  const double scaled = c * scale;
  *half = ptx::to_half((float)scaled);
  const double lost = scaled - ptx::to_float(*half);
  found.square += scaled * scaled;
  found.lost += lost * lost;
}

// Writes the second part of center j (d,), by a block. Returns this thread's terms of the squared rounding error of the
// sum of both parts. Each thread reads the columns of `center` that it wrote itself.
template <typename Work>
__device__ __forceinline__ double place_second(const Work* center, int d, float scale, const HalfCenters& centers_half,
                                               int j) {
  double all = 0;
  constexpr int kAtOnce = 4;
  for (int begin = threadIdx.x; begin < d; begin += kAtOnce * kCenterThreads) {
    Work some[kAtOnce];
#pragma unroll
    for (int r = 0; r < kAtOnce; ++r) {
      const int i = begin + r * kCenterThreads;
      some[r] = i < d ? center[i] : (Work)0;
    }
#pragma unroll
    for (int r = 0; r < kAtOnce; ++r) {
      const int i = begin + r * kCenterThreads;
      if (i >= d) break;
      const double scaled = (double)some[r] * scale, rest = scaled - ptx::to_float(ptx::to_half((float)scaled));
      // An element that is infinite in float16 has no second part.
      const ptx::Half second = ptx::to_half(fabs(rest) < kInfinity ? (float)(rest * kSecondScale) : 0.0f);
      *centers_half.at(centers_half.second + j, i) = second;
      const double lost = rest - ptx::to_float(second) / kSecondScale;
      all += lost * lost;
    }
  }
  return all;
}

}  // namespace kmeans
