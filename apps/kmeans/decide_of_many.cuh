// The rows that `nearest_of_many.cuh` could not decide, as decide.cuh does it: what changes joins the list of changes.
//
// A warp takes a row with candidates; a row that has to be compared with all centres, the whole block.
#pragma once
#include "apps/kmeans/decide.cuh"
#include "apps/kmeans/nearest_of_many.cuh"

namespace kmeans {

constexpr int kDecideThreads = 256;

// Block (x, y): part y of list x.
template <typename T, typename Work>
__global__ void __launch_bounds__(kDecideThreads, 3) decide_of_many(const Rows<T, Work> rows, const Work* centers, int k,
                                                                  Change* changes, const Undecided* undecided,
                                                                  Lengths* lengths, long long capacity,
                                                                  const int* stopped) {
  if (*stopped) return;
  constexpr int kWarps = kDecideThreads / 32;
  __shared__ Distant of_warp[kWarps];
  const unsigned count = lengths[blockIdx.x].undecided, share = (count + gridDim.y - 1) / gridDim.y;
  const unsigned first = blockIdx.y * share, last = first + share < count ? first + share : count;
  const Undecided* list = undecided + blockIdx.x * capacity;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  auto append = [&](bool wanted, const Change& change) {
    const unsigned all = __ballot_sync(simt::every_lane, wanted);
    unsigned place = 0;
    if (lane == 0 && all) place = atomicAdd(&lengths[blockIdx.x].changes, (unsigned)__popc(all));
    place = simt::shuffle(place, 0) + __popc(all & ((1u << lane) - 1));
    if (wanted) changes[blockIdx.x * capacity + place] = change;
  };
  for (unsigned begin = first + warp; begin < last; begin += 32 * kWarps) {
    Change mine = {};
    for (int i = 0; i < 32 && begin + i * kWarps < last; ++i) {
      const Undecided& entry = list[begin + i * kWarps];
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
      const Undecided& entry = list[begin + __ffs(waiting) - 1];
      Distant nearest = {kInfinity, warp < k ? warp : 0};
      for (int one = warp; one < k; one += 2 * kWarps) {
        const int other = one + kWarps < k ? one + kWarps : one;
        const auto two = square_distances<double>(rows, centers, entry.row, one, other);
        nearest.take({two.first, one});
        nearest.take({two.second, other});
      }
      __syncthreads();  // the last row's have been read
      if (lane == 0) of_warp[warp] = nearest;
      __syncthreads();
      for (int other = 0; other < kWarps; ++other) nearest.take(of_warp[other]);
      if (warp == 0) append(lane == 0 && nearest.centre != entry.label, {entry.row, entry.label, nearest.centre, 0});
    }
  }
}

}  // namespace kmeans
