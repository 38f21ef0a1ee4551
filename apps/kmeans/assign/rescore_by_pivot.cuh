// Rescoring of rows without candidates by the triangle inequality, before rescore_large_k.cuh compares the rest of them
// with all centers.
//
// A row x has a *pivot*, a center c that is probably near: that of its label, or the one that the product found. A
// center c_j is farther from x than c if ‖c − c_j‖ > 2 ‖x − c‖. The distances between centers are known
// (center_distances.cuh). The row is compared with the centers that are left, as other rows with their candidates. If
// only few are, the nearest becomes the row's only candidate.
//
// Why it is fast: rows whose scores in float16 distinguish few centers are near their own, compared with the distances
// of most centers. On windows of a photograph, 19 of 1,024 centers are left for the rows without candidates. A warp
// reads 4 bytes for each center of a row, instead of all its features.
#pragma once
#include "apps/kmeans/assign/large_k_lists.cuh"
#include "apps/kmeans/assign/row_distances.cuh"
#include "kernels/ptx/dependent_launch.cuh"

namespace kmeans {

constexpr int kPivotThreads = 256;
// Maximum number of centers with which a warp compares a row.
constexpr int kMostNear = 128;

// Returns the nearest of all k centers to a row, by a warp; −1 if the triangle inequality leaves more than kMostNear.
// The limit allows for the rounding of both distances, whose squares have a relative error of at most (d + 32)·2⁻²⁴.
// `left` is memory for the centers that are left.
template <typename T>
__device__ __forceinline__ int nearest_by_pivot(const CenteredRows<T, float>& rows, const float* centers, int k,
                                                long long row, int pivot, const float* between,
                                                unsigned short (&left)[kMostNear]) {
  constexpr int kTogether = 8;  // distances that a lane has in flight
  const int lane = threadIdx.x % 32;
  float own[1];
  square_distances(rows, centers, row, {pivot}, own);
  const float limit = 4 * own[0] * (1 + (float)(rows.d + 32) / (1 << 21)) + 1e-30f;
  const float* const of_pivot = between + (long long)pivot * k;
  int count = 0;
  simt::sync_warp();  // all lanes have read the centers of the previous row
  for (int begin = lane; begin - lane < k; begin += 32 * kTogether) {
    float square[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) square[i] = begin + 32 * i < k ? of_pivot[begin + 32 * i] : kInfinity;
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const bool is_left = begin + 32 * i < k && !(square[i] > limit);
      const unsigned some = __ballot_sync(simt::every_lane, is_left);
      const int place = count + __popc(some & ((1u << lane) - 1));
      if (is_left && place < kMostNear) left[place] = begin + 32 * i;
      count += __popc(some);
    }
  }
  simt::sync_warp();
  if (count > kMostNear) return -1;
  return nearest_of(rows, centers, row, pivot, [&](const auto& compare) {
    for (int i = 0; i < count; i += 2) compare(left[i], left[i + 1 < count ? i + 1 : i]);
  });
}

// Finds the nearest centers of rows without candidates, if `known` says that `between` has the squared distances of all
// centers. Block (x, y) processes part y of list x, a warp one row at a time.
template <typename T, int kCandidates>
__global__ void __launch_bounds__(kPivotThreads, 3)
    rescore_by_pivot(const CenteredRows<T, float> rows, const float* centers, int k, const float* between,
                     const int* known, AmbiguousLargeK<kCandidates>* ambiguous, const Lengths* lengths,
                     long long capacity, const int* stopped) {
  ptx::griddepcontrol_wait();
  if (*stopped || !*known) return;
  constexpr int kWarps = kPivotThreads / 32;
  __shared__ unsigned short left[kWarps][kMostNear];
  const int warp = threadIdx.x / 32;
  const unsigned count = lengths[blockIdx.x].compared_with_all;
  AmbiguousLargeK<kCandidates>* const last = ambiguous + (blockIdx.x + 1) * capacity - 1;
  for (unsigned at = blockIdx.y * kWarps + warp; at < count; at += gridDim.y * kWarps) {
    AmbiguousLargeK<kCandidates>& entry = last[-(long long)at];
    const int pivot = entry.label >= 0 ? entry.label : entry.candidates[0];
    const int nearest = nearest_by_pivot(rows, centers, k, entry.row, pivot, between, left[warp]);
    simt::sync_warp();  // all lanes have read the entry
    if (threadIdx.x % 32 == 0 && nearest >= 0) entry.count = 1, entry.candidates[0] = nearest;
  }
}

}  // namespace kmeans
