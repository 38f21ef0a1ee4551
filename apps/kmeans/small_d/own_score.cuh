// The score of a row's label, and the largest score of all other centers, for d ≤ 4; see iteration_fma_d4.cuh.
//
//   shared memory has an entry for each label c, preceded by an entry for label −1 (no cluster):
//
//     eight copies of c − c₀, four floats each         128 bytes   lane l reads copy l % 8
//     32 copies of a pair: bias of c, score of c₀      256 bytes   lane l reads copy l; the score of c₀ is −∞ if c = c₀
//
// Why it is fast: lanes read from different banks, whatever labels their rows have.
#pragma once
#include "apps/kmeans/small_d/scores_fma.cuh"
#include "kernels/ptx/arithmetic.cuh"

namespace kmeans {

template <int kFeatures, int kClusters>
class OwnScores {
 public:
  static_assert(kFeatures <= 4, "a center is four floats");
  static constexpr int kCenters = 128, kRow = kCenters + 256, kBytes = (kClusters + 1) * kRow;

  // `shared` points to kBytes. All threads of the block call this.
  __device__ explicit OwnScores(unsigned char* shared)
      : centers_(simt::kept_shared(shared + kRow + threadIdx.x % 8 * 16)),
        offsets_(simt::kept_shared(shared + kRow + kCenters + threadIdx.x % 32 * 8)) {
    for (int i = threadIdx.x; i < kBytes / 4; i += blockDim.x) {
      const int label = i / (kRow / 4) - 1, at = i % (kRow / 4);
      const bool of_center = at < kCenters / 4, of_first = at % 2 == 1;
      reinterpret_cast<float*>(shared)[i] = of_center ? center(label, at % 4) : of_first ? first(label) : offset(label);
    }
    __syncthreads();
  }

  // Returns the score of a row's label. Sets `others` to the score of c₀, or to −∞ if c₀ is the label.
  __device__ __forceinline__ float of(const float (&x)[kFeatures], int label, float& others) const {
    const auto c = *reinterpret_cast<const simt::Vector<float, 4>*>(centers_ + label * kRow);
    const auto two = *reinterpret_cast<const simt::Vector<float, 2>*>(offsets_ + label * kRow);
    others = two.at[1];
    float score = two.at[0];
#pragma unroll
    for (int i = 0; i < kFeatures; ++i) score = fmaf(x[i], c.at[i], score);
    return score;
  }

 private:
  __device__ static float center(int label, int i) {
    return label >= 0 && i < kFeatures ? constant_centers.centers[label * kFeatures + i] : 0.0f;
  }
  __device__ static float offset(int label) { return label >= 0 ? constant_centers.offsets[label] : -kInfinity; }
  // Returns the score of center 0, which is its bias: center 0 is c₀, or is excluded with a bias of −∞. Returns −∞ if
  // center 0 is the label.
  __device__ static float first(int label) { return label == 0 ? -kInfinity : constant_centers.offsets[0]; }

  const unsigned char *centers_, *offsets_;  // this lane's copies for label 0
};

// Sets `others` of each row to the maximum of `others` and the scores of all centers from `kFirst` on, except center 0
// and the row's label.
template <int kFeatures, int kClusters, int kRows, int kFirst = 0>
__device__ __forceinline__ void raise_to_others(const float (&x)[kRows][kFeatures], const int (&label)[kRows],
                                                float (&others)[kRows]) {
  constexpr int kHere = kClusters - kFirst < 8 ? kClusters - kFirst : 8;
  static_assert(kHere == 4 || kHere == 8, "whole fours");
  float score[kRows][8];
#pragma unroll
  for (int j = kFirst > 0 ? 0 : 1; j < kHere; ++j) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) score[r][j] = score_of(x[r], kFirst + j);
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (kFirst > 0) others[r] = ptx::max_unless(others[r], score[r][0], label[r], kFirst);
    if constexpr (kHere == 8) {
      const float (&seven)[7] = reinterpret_cast<const float (&)[7]>(score[r][1]);
      others[r] =
          ptx::max_unless_skipped<kFirst % 32 / 8>(others[r], seven, ptx::skip_bit(label[r] - kFirst / 32 * 32));
    } else {
#pragma unroll
      for (int j = 1; j < kHere; ++j) others[r] = ptx::max_unless(others[r], score[r][j], label[r], kFirst + j);
    }
  }
  if constexpr (kFirst + kHere < kClusters)
    raise_to_others<kFeatures, kClusters, kRows, kFirst + kHere>(x, label, others);
}

}  // namespace kmeans
