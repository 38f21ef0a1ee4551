// The rows that `nearest_of_many.cuh` could not decide, as decide.cuh does it: what changes joins the list of changes.
#pragma once
#include "apps/kmeans/decide.cuh"
#include "apps/kmeans/nearest_of_many.cuh"

namespace kmeans {

// The nearest of an entry's candidates, or of all centres, by a warp.
template <typename T, typename Work>
__device__ __forceinline__ int nearest_candidate(const Rows<T, Work>& rows, const Work* centers, int k,
                                                 const Undecided& entry) {
  const int count = entry.count ? entry.count : k;
  double least = kInfinity;
  int label = 0;
  for (int i = 0; i < count; ++i) {
    const int centre = entry.count ? entry.candidates[i] : i;
    const double distance = square_distance(rows, centers, entry.row, centre);
    // Candidates come in no order.
    if (distance < least || (distance == least && centre < label)) {
      least = distance;
      label = centre;
    }
  }
  return label;
}

// Block (x, y): part y of list x.
template <typename T, typename Work>
__global__ void __launch_bounds__(256, 4) decide_of_many(const Rows<T, Work> rows, const Work* centers, int k,
                                                         Change* changes, const Undecided* undecided, Lengths* lengths,
                                                         long long capacity, const int* stopped) {
  if (*stopped) return;
  const unsigned count = lengths[blockIdx.x].undecided, warps = blockDim.x / 32 * gridDim.y, lane = threadIdx.x % 32;
  const unsigned even = (count + warps - 1) / warps, each = even < 32 ? even : 32;
  for (unsigned begin = (blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32) * each; begin < count; begin += warps * each) {
    Change mine = {};
    for (unsigned i = 0; i < each && begin + i < count; ++i) {
      const Undecided& entry = undecided[blockIdx.x * capacity + begin + i];
      const int to = nearest_candidate(rows, centers, k, entry);
      if (i == lane) mine = {entry.row, entry.label, to, 0};
    }
    const bool wanted = mine.from != mine.to;
    const unsigned all = __ballot_sync(simt::every_lane, wanted);
    unsigned place = 0;
    if (lane == 0 && all) place = atomicAdd(&lengths[blockIdx.x].changes, (unsigned)__popc(all));
    place = simt::shuffle(place, 0) + __popc(all & ((1u << lane) - 1));
    if (wanted) changes[blockIdx.x * capacity + place] = mine;
  }
}

}  // namespace kmeans
