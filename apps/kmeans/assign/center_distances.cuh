// Squared distances between all pairs of centers, in float32: with them, the triangle inequality excludes most centers
// of a row (rescore_by_pivot.cuh).
//
//   centers (k × d)  →  between (k × k)
//
// The relative error of an element is at most (d + 2)·2⁻²⁴, as it is a sum of d squares of differences.
//
// Why it is fast: it costs as much as comparing k / 2 rows with all centers, and nothing unless more than
// kRowsPerCenter · k rows are to be compared. Block (x, y) computes a tile of kTileCenters² elements and, if x > y,
// stores it a second time, transposed. A thread has 16 sums in registers, and reads two vectors for 16 differences.
#pragma once
#include "apps/kmeans/assign/large_k_lists.cuh"
#include "kernels/ptx/dependent_launch.cuh"

namespace kmeans {

constexpr int kTileCenters = 64, kDistanceThreads = 256;
constexpr int kRowsPerCenter = 2;

// Computes `between`, and sets `known`; or only clears it, if few rows are to be compared with all centers. `lengths`
// are those of `lists` lists.
__global__ void __launch_bounds__(kDistanceThreads, 2)
    center_distances(const float* centers, int k, int d, const Lengths* lengths, int lists, float* between, int* known,
                     const int* stopped) {
  ptx::griddepcontrol_wait();
  if (*stopped || blockIdx.x < blockIdx.y) return;
  __shared__ unsigned rows;
  if (threadIdx.x == 0) rows = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < lists; i += kDistanceThreads) atomicAdd(&rows, lengths[i].compared_with_all);
  __syncthreads();
  const bool wanted = rows > (unsigned)(kRowsPerCenter * k);
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) *known = wanted;
  if (!wanted) return;
  constexpr int kDepth = 16, kEach = 4;  // features in shared memory; centers of a thread on either side
  __shared__ simt::Vector<float, kEach> tile[2][kDepth][kTileCenters / kEach];
  const int across = threadIdx.x % (kTileCenters / kEach), down = threadIdx.x / (kTileCenters / kEach);
  const int begins[2] = {(int)blockIdx.y * kTileCenters, (int)blockIdx.x * kTileCenters};
  float sums[kEach][kEach] = {};
  for (int first = 0; first < d; first += kDepth) {
    __syncthreads();  // all threads have read the previous features
#pragma unroll
    for (int i = threadIdx.x; i < 2 * kTileCenters * kDepth; i += kDistanceThreads) {
      const int side = i / (kTileCenters * kDepth), one = i / kDepth % kTileCenters, feature = i % kDepth;
      const bool there = begins[side] + one < k && first + feature < d;
      tile[side][feature][one / kEach].at[one % kEach] =
          there ? centers[(long long)(begins[side] + one) * d + first + feature] : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int feature = 0; feature < kDepth; ++feature) {
      const auto from = tile[0][feature][down], to = tile[1][feature][across];
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
#pragma unroll
        for (int j = 0; j < kEach; ++j) {
          const float difference = from.at[i] - to.at[j];
          sums[i][j] = fmaf(difference, difference, sums[i][j]);
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int one = begins[0] + kEach * down + i, other = begins[1] + kEach * across + j;
      if (one >= k || other >= k) continue;
      between[(long long)one * k + other] = sums[i][j];
      between[(long long)other * k + one] = sums[i][j];
    }
  }
}

}  // namespace kmeans
