// Rescoring of the ambiguous rows that large_k.cuh lists: the arg-min over their candidates, by the distances of
// rescore.cuh. Appends rows with a new label to the block's list of reassigned rows (`changes`).
//
// Why it is fast: one warp rescores a row with a list of candidates. A whole block rescores a row that must be compared
// with all centers, and reads the centers at the full bandwidth of its multiprocessor.
#pragma once
#include "apps/kmeans/assign/rescore.cuh"
#include "apps/kmeans/assign/large_k.cuh"
#include "kernels/ptx/dependent_launch.cuh"

namespace kmeans {

constexpr int kRescoreThreads = 256;

// Reduces one value per warp over the kWarps warps of a block. `take(a, b)` combines b into a. All threads get the
// result.
template <int kWarps, typename Found, typename Take>
__device__ __forceinline__ Found of_all_warps(const Found& mine, Take take) {
  __shared__ Found of_warp[kWarps];
  __syncthreads();  // earlier reads of of_warp are done
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = mine;
  __syncthreads();
  Found all = of_warp[0];
  for (int warp = 1; warp < kWarps; ++warp) take(all, of_warp[warp]);
  return all;
}

// Returns the nearest of all k centers to a row, computed by a block of kWarps warps.
template <int kWarps, typename T, typename Work>
__device__ __forceinline__ int nearest_of_all(const CenteredRows<T, Work>& rows, const Work* centers, int k,
                                              long long row) {
  // Calls `take` with the distance and index of each of this warp's centers.
  auto each = [&](auto zero, auto take) {
    constexpr int kCenters = sizeof(zero) == sizeof(float) ? 4 : 2;
    for (int first = threadIdx.x / 32; first < k; first += kCenters * kWarps) {
      int which[kCenters];
      decltype(zero) squares[kCenters];
#pragma unroll
      for (int c = 0; c < kCenters; ++c) which[c] = first + c * kWarps < k ? first + c * kWarps : first;
      square_distances(rows, centers, row, which, squares);
#pragma unroll
      for (int c = 0; c < kCenters; ++c) {
        if (first + c * kWarps < k) take(squares[c], which[c]);
      }
    }
  };
  if constexpr (sizeof(Work) == sizeof(float)) {
    Surely mine;
    each(0.0f, [&](float square, int center) { mine.take(square, center); });
    const auto all = of_all_warps<kWarps>(mine, [](Surely& to, const Surely& other) {
      to.take(other.best, other.center);
      to.next = fminf(to.next, other.next);
    });
    if (all.is_so(rows.d)) return all.center;
  }
  Distant mine = {kInfinity, 0};
  each(0.0, [&](double square, int center) { mine.take({square, center}); });
  return of_all_warps<kWarps>(mine, [](Distant& to, const Distant& other) { to.take(other); }).center;
}

// Rescores the ambiguous rows. Block (x, y) processes part y of list x of ambiguous rows.
template <typename T, typename Work>
__global__ void __launch_bounds__(kRescoreThreads, 3)
    rescore_large_k(const CenteredRows<T, Work> rows, const Work* centers, int k, Reassignment* changes,
                    const AmbiguousLargeK* ambiguous, Lengths* lengths, long long capacity, const int* stopped) {
  ptx::griddepcontrol_wait();
  if (*stopped) return;
  constexpr int kWarps = kRescoreThreads / 32;
  const unsigned count = lengths[blockIdx.x].ambiguous, share = (count + gridDim.y - 1) / gridDim.y;
  const unsigned first = blockIdx.y * share, last = first + share < count ? first + share : count;
  const AmbiguousLargeK* list = ambiguous + blockIdx.x * capacity;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  auto append = [&](bool wanted, const Reassignment& change) {
    const unsigned all = __ballot_sync(simt::every_lane, wanted);
    unsigned place = 0;
    if (lane == 0 && all) place = atomicAdd(&lengths[blockIdx.x].changes, (unsigned)__popc(all));
    place = simt::shuffle(place, 0) + __popc(all & ((1u << lane) - 1));
    if (wanted) changes[blockIdx.x * capacity + place] = change;
  };
  for (unsigned begin = first + warp; begin < last; begin += 32 * kWarps) {
    Reassignment mine = {};
    for (int i = 0; i < 32 && begin + i * kWarps < last; ++i) {
      const AmbiguousLargeK& entry = list[begin + i * kWarps];
      const int to = nearest_of(rows, centers, entry.row, entry.label, [&](auto take) {
        for (int j = 0; j < entry.count; j += 2) {
          take(entry.candidates[j], entry.candidates[j + 1 < entry.count ? j + 1 : j]);
        }
      });
      if (i == lane) mine = {entry.row, entry.label, to, 0};
    }
    append(mine.from != mine.to, mine);
  }
  for (unsigned begin = first; begin < last; begin += 32) {
    unsigned waiting = __ballot_sync(simt::every_lane, begin + lane < last && list[begin + lane].count == 0);
    for (; waiting; waiting &= waiting - 1) {
      const AmbiguousLargeK& entry = list[begin + __ffs(waiting) - 1];
      const int to = nearest_of_all<kWarps>(rows, centers, k, entry.row);
      if (warp == 0) append(lane == 0 && to != entry.label, {entry.row, entry.label, to, 0});
    }
  }
}

}  // namespace kmeans
