// Rescoring of the ambiguous rows that large_k.cuh lists: the arg-min over their candidates, by the distances of
// rescore.cuh. Appends rows with a new label to the block's list of reassigned rows (`changes`).
//
// Why it is fast: a group of lanes rescores a row with a list of candidates, and prefetches later rows. A whole block
// compares kRescoredRows rows with all centers at a time. The rows are in shared memory, so the block reads each center
// from the L2 cache once for all of them. It stops reading a center whose first features alone make it farther from
// every row than the row's label. A single row is compared by larger loads. If such rows are many, rescore_by_pivot.cuh
// has found the nearest centers of most.
#pragma once
#include "apps/kmeans/assign/rescore.cuh"
#include "apps/kmeans/assign/large_k.cuh"
#include "kernels/ptx/dependent_launch.cuh"

namespace kmeans {

constexpr int kRescoreThreads = 256;
// Number of rows that a block compares with all centers at a time, if shared memory holds them.
constexpr int kRescoredRows = 8;
// Minimum number of features for which centers are pruned.
constexpr int kLeastPruned = 128;
// Number of rows that a group prefetches ahead of the row that it rescores.
constexpr int kRowsAhead = 4;

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
    const auto all = of_all_warps<kWarps>(mine, [](Surely& to, const Surely& other) { to.take(other); });
    if (all.is_so(rows.d)) return all.center;
  }
  Distant mine = {kInfinity, 0};
  each(0.0, [&](double square, int center) { mine.take({square, center}); });
  return of_all_warps<kWarps>(mine, [](Distant& to, const Distant& other) { to.take(other); }).center;
}

// Finds the nearest of all k centers to each of kRescoredRows rows whose `nearest` is −1, by float32 distances. It
// remains −1 if these do not certify it. `row_of(r)` and `label_of(r)` are the index and the label of row r. `order`
// lists the centers by their norms, so that a warp has centers at a time that are likely to be near each other.
// `nearest` and `values`, of kRescoredRows and kRescoredRows · d elements, are in shared memory. By a block of kWarps
// warps.
template <int kWarps, typename T, typename RowOf, typename LabelOf>
__device__ __forceinline__ void nearest_of_all_together(const CenteredRows<T, float>& rows, const float* centers,
                                                        const int* order, int k, const RowOf& row_of,
                                                        const LabelOf& label_of, float* values, int* nearest) {
  __shared__ Surely of_warp[kWarps][kRescoredRows];
  // Squared distances to the labels, rounded up. They only decide which centers are pruned: `next` of a `Surely`
  // includes a lower bound of the distance of each pruned center.
  __shared__ float limits[kRescoredRows];
  constexpr int kCenters = 4;                 // centers of a warp at a time
  constexpr int kLanes = 32 / kRescoredRows;  // lanes that get the distances of a row
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, d = rows.d;
  const int some = d < kLeastPruned ? d : (d / 8 + 31) / 32 * 32;  // features after which a center may be pruned
  for (int r = 0; r < kRescoredRows; ++r) {
    const T* x = rows.X + row_of(r) * rows.leading;
    for (int i = threadIdx.x; i < d; i += blockDim.x) values[r * d + i] = centered<T, float>(x[i], rows.mean[i]);
  }
  __syncthreads();
  for (int r = warp; r < kRescoredRows; r += kWarps) {
    const int label = label_of(r);
    float square = 0;
    for (int i = lane; label >= 0 && i < d; i += 32) {
      const float difference = values[r * d + i] - centers[(long long)label * d + i];
      square = fmaf(difference, difference, square);
    }
    square = simt::warp_sum(square);
    if (lane == 0) limits[r] = label >= 0 ? square * 1.001f : kInfinity;
  }
  __syncthreads();
  const float limit = limits[lane / kLanes];
  Surely mine;  // of row lane / kLanes
  for (int first = kCenters * warp; first < k; first += kCenters * kWarps) {
    float squares[kCenters][kRescoredRows] = {};
    int which[kCenters];
    const float* center[kCenters];
#pragma unroll
    for (int c = 0; c < kCenters; ++c) {
      const int at = first + c < k ? first + c : first;
      which[c] = order == nullptr ? at : order[at];
      center[c] = centers + (long long)which[c] * d;
    }
    // Adds the squares of the features of this lane from `begin` to `end`.
    const auto add = [&](int begin, int end) {
      float next[kCenters];
#pragma unroll
      for (int c = 0; c < kCenters; ++c) next[c] = begin + lane < end ? center[c][begin + lane] : 0.0f;
#pragma unroll 1
      for (int i = begin + lane; i < end; i += 32) {
        float of_center[kCenters];
#pragma unroll
        for (int c = 0; c < kCenters; ++c) {
          of_center[c] = next[c];
          next[c] = i + 32 < end ? center[c][i + 32] : 0.0f;
        }
#pragma unroll
        for (int r = 0; r < kRescoredRows; ++r) {
          const float x = values[r * d + i];
#pragma unroll
          for (int c = 0; c < kCenters; ++c) {
            const float difference = x - of_center[c];
            squares[c][r] = fmaf(difference, difference, squares[c][r]);
          }
        }
      }
    };
    add(0, some);
    if (some < d) {
      float least = kInfinity;  // of the sums so far of row lane / kLanes
#pragma unroll
      for (int c = 0; c < kCenters; ++c) {
        float sums[kRescoredRows];
#pragma unroll
        for (int r = 0; r < kRescoredRows; ++r) sums[r] = squares[c][r];
        share_sums<kRescoredRows>(sums, lane, 32);
        least = fminf(least, sums[0]);
      }
      if (__all_sync(simt::every_lane, least > limit)) {
        mine.next = fminf(mine.next, least);  // all of these centers are farther than `least`
        continue;
      }
      add(some, d);
    }
#pragma unroll
    for (int c = 0; c < kCenters; ++c) {
      share_sums<kRescoredRows>(squares[c], lane, 32);
      if (first + c < k) mine.take(squares[c][0], which[c]);
    }
  }
  if (lane % kLanes == 0) of_warp[warp][lane / kLanes] = mine;
  __syncthreads();
  if (threadIdx.x < kRescoredRows && nearest[threadIdx.x] < 0) {
    Surely all = of_warp[0][threadIdx.x];
    for (int other = 1; other < kWarps; ++other) all.take(of_warp[other][threadIdx.x]);
    nearest[threadIdx.x] = all.is_so(d) ? all.center : -1;
  }
  __syncthreads();
}

// Returns the nearest center of a row that is listed without candidates, if rescore_by_pivot found it; otherwise −1.
template <int kCandidates>
__device__ __forceinline__ int found_before(const AmbiguousLargeK<kCandidates>& entry) {
  return entry.count == 1 ? entry.candidates[0] : -1;
}

__device__ __forceinline__ bool is_any_missing(const int* nearest, int count) {
  int least = 0;
#pragma unroll 1
  for (int r = 0; r < count; ++r) least = nearest[r] < least ? nearest[r] : least;
  return least < 0;
}

// Prefetches a row to the L2 cache, by a group of kLanes lanes.
template <int kLanes, typename T, typename Work>
__device__ __forceinline__ void prefetch_row(const CenteredRows<T, Work>& rows, long long row) {
  const char* x = reinterpret_cast<const char*>(rows.X + row * rows.leading);
  constexpr int kMost = 32 * 128;  // bytes that are prefetched of a longer row
  const int bytes = rows.d * sizeof(T) < kMost ? rows.d * (int)sizeof(T) : kMost;
  for (int at = 128 * (threadIdx.x % kLanes); at < bytes; at += 128 * kLanes) ptx::prefetch(x + at);
}

// Rescores the ambiguous rows. Block (x, y) processes part y of list x. `order` lists the centers by their norms, or is
// null. If `together`, a block has kRescoredRows · d floats of dynamic shared memory.
template <typename T, typename Work, int kCandidates, int kLanes>
__global__ void __launch_bounds__(kRescoreThreads, 3)
    rescore_large_k(const CenteredRows<T, Work> rows, const Work* centers, const int* order, int k,
                    Reassignment* changes, const AmbiguousLargeK<kCandidates>* ambiguous, Lengths* lengths,
                    long long capacity, const int* stopped, bool together) {
  ptx::griddepcontrol_wait();
  if (*stopped) return;
  constexpr int kWarps = kRescoreThreads / 32;
  const unsigned count = lengths[blockIdx.x].ambiguous, share = (count + gridDim.y - 1) / gridDim.y;
  const unsigned first = blockIdx.y * share, last = first + share < count ? first + share : count;
  const AmbiguousLargeK<kCandidates>* list = ambiguous + blockIdx.x * capacity;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  auto append = [&](bool wanted, const Reassignment& change) {
    const unsigned all = __ballot_sync(simt::every_lane, wanted);
    unsigned place = 0;
    if (lane == 0 && all) place = atomicAdd(&lengths[blockIdx.x].changes, (unsigned)__popc(all));
    place = simt::shuffle(place, 0) + __popc(all & ((1u << lane) - 1));
    if (wanted) changes[blockIdx.x * capacity + place] = change;
  };
  constexpr int kGroups = 32 / kLanes;
  const int group = lane / kLanes;
  for (unsigned begin = first + warp; begin < last; begin += 32 * kWarps) {
    const unsigned rest = (last - begin + kWarps - 1) / kWarps;
    const int some = rest < 32 ? (int)rest : 32;
    const AmbiguousLargeK<kCandidates>& own = list[begin + (lane < some ? lane : 0) * kWarps];
    Reassignment mine = {own.row, own.label, own.label, 0};
    // Prefetches the row of each group that comes `i` rows after the first.
    const auto ask_for = [&](int i) {
      const unsigned row = simt::shuffle(mine.row, (i + group) % 32);
      if (i + group < some) prefetch_row<kLanes>(rows, row);
    };
    for (int i = 0; i < kRowsAhead * kGroups && i < some; i += kGroups) ask_for(i);
#pragma unroll 1
    for (int i = 0; i < some; i += kGroups) {
      if (i + kRowsAhead * kGroups < some) ask_for(i + kRowsAhead * kGroups);
      const bool present = i + group < some;
      const AmbiguousLargeK<kCandidates>& entry = list[begin + (present ? i + group : i) * kWarps];
      const int count = present ? entry.count : 0;
      const int nearest = nearest_of_group<kLanes, 4>(rows, centers, entry.row, count, entry.label, [&] {
        return [&entry, count, j = 0]() mutable { return (int)entry.candidates[j < count ? j++ : 0]; };
      });
      const int to = simt::shuffle(nearest, (lane - i) % kGroups * kLanes % 32);
      if (i <= lane && lane < i + kGroups && lane < some) mine.to = to;
    }
    append(mine.from != mine.to, mine);
  }
  // Rows without candidates, kRescoredRows at a time, from the end of the list.
  __shared__ int nearest[kRescoredRows];
  const unsigned all = lengths[blockIdx.x].compared_with_all;
  for (unsigned begin = blockIdx.y * kRescoredRows; begin < all; begin += gridDim.y * kRescoredRows) {
    const AmbiguousLargeK<kCandidates>* const entries = list + capacity - 1 - begin;  // row r is entries[-r]
    const int some = all - begin < kRescoredRows ? (int)(all - begin) : kRescoredRows;
    if ((int)threadIdx.x < some) nearest[threadIdx.x] = found_before(entries[-(int)threadIdx.x]);
    __syncthreads();
    if constexpr (sizeof(Work) == sizeof(float)) {
      if (together && some > 1 && is_any_missing(nearest, some)) {
        const auto row_of = [&](int r) { return (long long)entries[r < some ? -r : 0].row; };
        const auto label_of = [&](int r) { return entries[r < some ? -r : 0].label; };
        float* const values = simt::dynamic_shared<float>();
        nearest_of_all_together<kWarps>(rows, centers, order, k, row_of, label_of, values, nearest);
      }
    }
    Reassignment mine = {};
#pragma unroll 1
    for (int r = 0; r < some; ++r) {
      const AmbiguousLargeK<kCandidates>& entry = entries[-r];
      const int to = nearest[r] >= 0 ? nearest[r] : nearest_of_all<kWarps>(rows, centers, k, entry.row);
      if (lane == r) mine = {entry.row, entry.label, to, 0};
    }
    if (warp == 0) append(mine.from != mine.to, mine);
    __syncthreads();  // all warps have read `nearest`
  }
}

}  // namespace kmeans
