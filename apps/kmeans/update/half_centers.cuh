// Conversion of centers to float16: in rows or in panels, in one part or two, with the squared rounding errors.
#pragma once
#include "apps/kmeans/assign/small_k.cuh"
#include "apps/kmeans/data/half_copy.cuh"
#include "apps/kmeans/data/lane_columns.cuh"
#include "apps/kmeans/update/column_order.cuh"
#include "kernels/tsm2/core_matrix_layout.cuh"

namespace kmeans {

// Destination of float16 centers: rows of `padded` columns, or panels (core_matrix_layout.cuh) of which the first holds
// −‖c‖²/2. If `second` is not 0, the second parts of centers (assign/small_k.cuh) start at row `second`. If `split` is
// not 0, it is the number of features, and the columns are those of data/split_copy.cuh. If `each` is not 0, it is the
// number of features per lane, and the columns are those of data/lane_columns.cuh, in panels without a first one.
struct HalfCenters {
  ptx::Half* to;
  int padded, panels, height, second;  // panels: panels per center, 0 for rows; height: centers per tile
  int split, each;

  __device__ __forceinline__ int all_panels() const { return panels + (each == 0); }

  // Returns the element of a center in a column. `first` is the center's element in column 0.
  __device__ __forceinline__ ptx::Half* at(ptx::Half* first, int column) const {
    return first + (panels == 0 ? column : tsm2::panel_offset(0, column, all_panels(), height));
  }
  __device__ __forceinline__ ptx::Half* of(int center) const {
    if (panels == 0) return to + (long long)center * padded;
    return to + tsm2::panel_offset(center, each == 0 ? tsm2::kPanelDepth : 0, all_panels(), height);
  }

  // Converts element i of a center to float16, and adds its terms to the squared norm and the squared rounding error.
  // `c` is zero for the columns i past the last feature. `to` is of(center).
  __device__ __forceinline__ void place(double c, float scale, ptx::Half* to, int i, CenterFound& found) const {
    const double scaled = c * scale;
    const ptx::Half first = ptx::to_half((float)scaled);
    double lost = scaled - ptx::to_float(first);
    if (each != 0) {
      lost -= place_in_lane(to, i, first, lost);
    } else {
      if (split == 0 || i < split) *at(to, i) = first;
      if (split != 0 && i < split) {
        const ptx::Half second = second_part((float)lost);
        *at(to, split + i) = first, *at(to, 2 * split + i) = second;
        lost -= ptx::to_float(second);
      }
      if (split != 0 && i >= 3 * split) *at(to, i) = {0};
    }
    found.square += scaled * scaled;
    found.lost += lost * lost;
  }

  // Stores the bias of the center in a column, or −infinity.
  __device__ __forceinline__ void place_bias(int column, float value) const {
    if (each == 0) return tsm2::place_parts(to, column, panels + 1, height, value);
    ptx::Half parts[tsm2::kParts];
    tsm2::parts_of(value, parts);
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      *at(of(column), lane_column(t, 3 * each)) = t < tsm2::kParts ? parts[t] : ptx::to_half(tsm2::kPartScale[0]);
    }
  }

 private:
  // Stores the two parts of feature i; returns the second.
  __device__ __forceinline__ float place_in_lane(ptx::Half* to, int i, ptx::Half first, double lost) const {
    if (i >= 4 * each) return 0;
    const ptx::Half second = second_part((float)lost);
    const int lane = i / each, in_lane = i % each;
    *at(to, lane_column(lane, in_lane)) = *at(to, lane_column(lane, each + in_lane)) = first;
    *at(to, lane_column(lane, 2 * each + in_lane)) = second;
    return ptx::to_float(second);
  }
};

// Stores the bias −‖c‖²/2 of the center in a column.
__device__ __forceinline__ void set_offset(float* offsets, const HalfCenters& centers_half, int column, float value) {
  if (centers_half.panels) {
    centers_half.place_bias(column, value);
  } else {
    offsets[column] = value;
  }
}

// Excludes the center in a column (update/centers.cuh). Not inlined, since that would take long to compile.
__device__ __noinline__ void exclude(float* offsets, HalfCenters centers_half, int column) {
  // Writes zeros first: an excluded center that is infinite in float16 would have NaN scores.
  ptx::Half* const to = centers_half.of(column);
  for (int i = 0; centers_half.panels && i < centers_half.padded; ++i) *centers_half.at(to, i) = {0};
  set_offset(offsets, centers_half, column, -kInfinity);
}

// Writes the second part of center j (d,), by a block. Returns this thread's terms of the squared rounding error of the
// sum of both parts. Each thread reads the columns of `center` that it wrote itself.
template <typename Work>
__device__ __forceinline__ double place_second(const Work* center, int d, float scale, const HalfCenters& centers_half,
                                               int j) {
  double all = 0;
  ptx::Half* const to = centers_half.of(centers_half.second + j);
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
      const ptx::Half second = second_part((float)(rest * kSecondScale));
      *centers_half.at(to, i) = second;
      const double lost = rest - ptx::to_float(second) / kSecondScale;
      all += lost * lost;
    }
  }
  return all;
}

}  // namespace kmeans
