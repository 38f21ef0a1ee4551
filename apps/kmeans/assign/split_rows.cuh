// Rows of X as the left operand of gemm_wgmma_resident.cuh: split into two float16 parts as in data/split_copy.cuh, in
// the columns of data/lane_columns.cuh. Lanes make the parts from rows that they load, so there is no copy of X.
//
// In place of features past the last, lanes hold feature 0 again; centers are zero there. A row with an element beyond
// float16's range has no error bound (split_norms), so its parts do not matter.
//
// Why it is fast: four lanes load a row, a quarter each, by one instruction if rows are aligned. The parts of a feature
// take five instructions. A copy would have three float16 columns per feature, half as many bytes again as float32.
#pragma once
#include "apps/kmeans/data/lane_columns.cuh"
#include "apps/kmeans/data/split_copy.cuh"

namespace kmeans {

// kAligned: whether rows consist of whole vectors of a lane's features, and are aligned to them.
template <typename T, typename Work, int kFeatures, bool kAligned>
struct SplitRows {
  static constexpr int kEach = features_each(kFeatures), kPanels = lane_panels(kFeatures);
  static_assert(kFeatures <= 16, "a lane has at most four features");
  static_assert(!kAligned || (kFeatures == 4 * kEach && kEach != 3), "lanes load 1, 2 or 4 features");

  const T* X;
  const Work* shifts;  // −mean · scale; 4 · kEach elements, zero past the last feature
  unsigned n;
  float scale;

  // Of rows g = lane / 4 and g + 8, kWide features per load.
  static constexpr int kMost = 16 / (int)sizeof(T), kWide = !kAligned ? 1 : kEach < kMost ? kEach : kMost;
  struct Raw {
    Packed<T, kWide> some[2][kEach / kWide];
  };

  __device__ __forceinline__ void load(Raw& raw, unsigned first) const {
    const unsigned row = tsm2::fragment_row(first, 0), feature = kEach * (threadIdx.x % 4);
    const T* x = X + (unsigned long long)row * kFeatures;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (row + 8 * r >= n) continue;
#pragma unroll
      for (int i = 0; i < kEach; i += kWide) {
        raw.some[r][i / kWide].load(x + 8 * r * kFeatures + (kAligned || feature + i < kFeatures ? feature + i : 0));
      }
    }
  }

  // Makes the fragments of a warp's 16 rows. `levels` are those of rows g and g + 8. They are increased by more than
  // float16 rounds them: 2⁻¹¹, or 2⁻¹¹ of the level.
  __device__ __forceinline__ void convert(const Raw& raw, const float (&levels)[2],
                                          unsigned (&a)[kPanels][1][4]) const {
    const unsigned t = threadIdx.x % 4;
    const float weight = t == 0 ? tsm2::kPartScale[0] : t == 1 ? tsm2::kPartScale[1] : tsm2::kPartScale[2];
    Work shift[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) shift[i] = shifts[kEach * t + i];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      // The columns of this lane, and the first parts as pairs.
      float columns[4 * kPanels] = {};
      unsigned pairs[(kEach + 1) / 2];
#pragma unroll
      for (int i = 0; i < kEach; i += 2) {
        Work x[2] = {};
#pragma unroll
        for (int e = 0; e < 2 && i + e < kEach; ++e) {
          const T element = raw.some[r][(i + e) / kWide].elements().at[(i + e) % kWide];
          x[e] = scaled<T, Work>(element, scale, shift[i + e]);
        }
        const unsigned pair = pairs[i / 2] = ptx::to_half_pair((float)x[0], (float)x[1]);
#pragma unroll
        for (int e = 0; e < 2 && i + e < kEach; ++e) {
          const float part = ptx::to_float(ptx::Half{(unsigned short)(pair >> 16 * e)});
          columns[i + e] = columns[2 * kEach + i + e] = part, columns[kEach + i + e] = (float)(x[e] - (Work)part);
        }
      }
      columns[3 * kEach] = t == 3 ? (1.001f * levels[r] + 0.001f) / tsm2::kPartScale[0] : weight;
#pragma unroll
      for (int i = 0; i < 4 * kPanels; i += 2) {
        const bool firsts = kEach % 2 == 0 && i < 3 * kEach && i % (2 * kEach) < kEach;
        a[i / 4][0][r + i % 4] = firsts ? pairs[i % (2 * kEach) / 2] : ptx::to_half_pair(columns[i], columns[i + 1]);
      }
    }
  }
};

}  // namespace kmeans
