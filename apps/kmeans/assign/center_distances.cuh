// Squared distances between all pairs of centers, in float32: with them, the triangle inequality excludes most centers
// of a row (rescore_by_pivot.cuh).
//
//   centers (k × d)  →  between (k × k)
//
// The relative error of an element is at most (d + 2)·2⁻²⁴, as it is a sum of d squares of differences.
//
// Why it is fast: it costs as much as comparing k / 2 rows with all centers, and nothing unless more than
// kRowsPerCenter · k rows are to be compared. Block (x, y), x ≥ y, computes a tile of kTileCenters² elements, and also
// stores it transposed. With one thread per 16 elements, the tiles would not fill a GPU. So kGroups threads share them;
// each has its own part of the features. For 16 differences, a thread reads two vectors from shared memory.
#pragma once
#include "apps/kmeans/assign/large_k_lists.cuh"
#include "kernels/ptx/dependent_launch.cuh"

namespace kmeans {

constexpr int kTileCenters = 32, kDistanceThreads = 256;
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
  // Centers of a thread on either side; threads of a group; features of a group that are in shared memory.
  constexpr int kEach = 4, kAcross = kTileCenters / kEach, kGroup = kAcross * kAcross;
  constexpr int kGroups = kDistanceThreads / kGroup, kDepth = 16, kTogether = kGroups * kDepth;
  struct Tile {
    simt::Vector<float, kEach> at[2][kTogether][kAcross + 1];
  };
  struct Sums {
    float at[kGroups][kTileCenters][kTileCenters + 1];
  };
  __shared__ union {
    Tile tile;
    Sums sums;
  } shared;
  const int group = threadIdx.x / kGroup, across = threadIdx.x % kAcross, down = threadIdx.x % kGroup / kAcross;
  const int begins[2] = {(int)blockIdx.y * kTileCenters, (int)blockIdx.x * kTileCenters};
  float sums[kEach][kEach] = {};
  for (int first = 0; first < d; first += kTogether) {
    __syncthreads();  // all threads have read the previous features
#pragma unroll
    for (int i = threadIdx.x; i < 2 * kTileCenters * kTogether; i += kDistanceThreads) {
      const int side = i / (kTileCenters * kTogether), one = i / kTogether % kTileCenters, feature = i % kTogether;
      const bool there = begins[side] + one < k && first + feature < d;
      shared.tile.at[side][feature][one / kEach].at[one % kEach] =
          there ? centers[(long long)(begins[side] + one) * d + first + feature] : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kDepth; ++i) {
      const auto from = shared.tile.at[0][group * kDepth + i][down], to = shared.tile.at[1][group * kDepth + i][across];
#pragma unroll
      for (int one = 0; one < kEach; ++one) {
#pragma unroll
        for (int other = 0; other < kEach; ++other) {
          const float difference = from.at[one] - to.at[other];
          sums[one][other] = fmaf(difference, difference, sums[one][other]);
        }
      }
    }
  }
  __syncthreads();
#pragma unroll
  for (int one = 0; one < kEach; ++one) {
#pragma unroll
    for (int other = 0; other < kEach; ++other)
      shared.sums.at[group][kEach * down + one][kEach * across + other] = sums[one][other];
  }
  __syncthreads();
  // Stores the tile row by row, then column by column.
  for (int i = threadIdx.x; i < 2 * kTileCenters * kTileCenters; i += kDistanceThreads) {
    const bool transposed = i >= kTileCenters * kTileCenters;
    const int row = i / kTileCenters % kTileCenters, column = i % kTileCenters;
    const int one = transposed ? column : row, other = transposed ? row : column;
    if (begins[0] + one >= k || begins[1] + other >= k) continue;
    float sum = 0;
#pragma unroll
    for (int part = 0; part < kGroups; ++part) sum += shared.sums.at[part][one][other];
    const long long at = transposed ? (long long)(begins[1] + other) * k + begins[0] + one
                                    : (long long)(begins[0] + one) * k + begins[1] + other;
    between[at] = sum;
  }
}

}  // namespace kmeans
