// Greedy k-means++ step: selects the candidate with the lowest potential Σ w·D², and samples the next candidates.
//
//   X (n × d, row-major)     the samples; subtracting the mean would not change the distances
//   points                   the center of the previous step, and the candidates (step_points.cuh)
//   closest (n)              D² of each sample: its squared distance to the nearest center. evaluate_candidates takes
//                            the center of the previous step into account
//   sums (kTrials × chunks)  for each candidate and chunk of samples: Σ w·D² if the candidate became a center; w is the
//                            weight of a sample
//   group_sums (kTrials × groups)  sums of the sums of kGroup chunks
//
// evaluate_candidates reads X once. It computes each row's distances to all candidates and to the center of the
// previous step, and updates `closest`. sum_groups adds up the sums of groups of chunks. sample_candidates adds up
// these sums and selects the best candidate. For each uniform random number, it finds the group, then the chunk, then
// the sample at which the running sum of w·D² reaches this fraction of the total, and writes the points of the next
// step. It recomputes the distances of the chunk's rows to the new center, because storing the distances of every
// sample to every candidate would cost more.
//
//   a warp:   splits a row among kLanes lanes; processes 32 / kLanes · kRows rows at a time
//   a chunk:  consecutive rows, for one warp; the number of chunks does not depend on the grid, so the bits do not
//   a shard:  the rows of X that this GPU has: whole chunks, all of them if X is on one GPU. X and `closest` are those
//             of the shard; `sums`, `chunks` and all indices of samples are those of the whole
//
// Sums over samples are in double. Distances are those of candidate_distances.cuh, with the same bits at every step.
//
// Why it is fast: the read of X limits the speed. A row of 128 float32 with 6 candidates, split among 8 lanes, takes
// 3200 lane instructions:
//
//   differences, squares and sums, 3 · 7 · 128                            2688
//   loads of points from shared memory (each load is for 4 rows)            56
//   loads of X, and prefetches of the next rows to L2                  32 + 32
//   reduction of the 7 distances, 8 · 28                                   224
//   `closest`, sums and addresses                                    about 160
//
// For 10M rows this is 1.1 ms if all issue slots of an H200 are filled. Reading 512 + 4 bytes per row takes 1.11 ms (4
// bytes more where D² changes). An alternative would store the distances to all candidates instead of computing those
// to the previous center. It would take 2800 instructions, 540 bytes and six stored numbers per row.
#pragma once
#include "apps/kmeans/init/candidate_distances.cuh"
#include "apps/kmeans/init/step_points.cuh"
#include "kernels/ptx/dependent_launch.cuh"

namespace kmeans {

constexpr int kTryThreads = 256, kTryBlocks = 2, kDrawThreads = 512;
// Number of chunks per group. There are at most kDrawThreads groups.
constexpr int kGroup = 128;
// Number of rows that a lane processes at a time; the registers for the sums of these rows limit it.
template <typename T, int kPoints>
constexpr int kTryRows = (kPoints <= 8 ? 4 : 2) * (int)sizeof(float) / (int)sizeof(T);

// Updates D² of kRows rows of each group of lanes by the center of the previous step. Adds w·D² of these rows, for each
// candidate, to `totals`. `place(r)` returns the position of row r in `closest`; it is negative for a row past the end.
template <typename Found, typename T, int kRows, typename Place>
__device__ __forceinline__ void settle(const Found& found, T (&near)[kRows], const T (&weight)[kRows], Place place,
                                       T* closest, double (&totals)[Found::kHeld]) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    T to_last = (T)found.at[r][0];
    if (Found::kOfRow > 1) to_last = simt::shuffle(to_last, simt::lane() & ~(Found::kOfRow - 1));
    const long long row = place(r);
    if (to_last < near[r]) {
      near[r] = to_last;
      if (Found::member() == 0 && row >= 0) closest[row] = to_last;
    }
#pragma unroll
    for (int h = 0; h < Found::kHeld; ++h) {
      const T there = (T)found.at[r][h];
      const double least = there < near[r] ? there : near[r];
      if (row >= 0) totals[h] += simt::rounded_product((double)weight[r], least);
    }
  }
}

// Adds up `totals` over the warp, and writes each candidate's sum of a chunk to `sums`. The sum of the next candidate
// is `chunks` elements later.
template <typename Found>
__device__ __forceinline__ void hand_in(double (&totals)[Found::kHeld], int trials, double* sums, int chunks) {
#pragma unroll
  for (int h = 0; h < Found::kHeld; ++h) {
#pragma unroll
    for (int bits = 16; bits >= Found::kOfRow; bits /= 2) totals[h] += simt::shuffle_xor(totals[h], bits);
    const int trial = Found::first_point() + h - 1;
    const bool writes = simt::lane() < Found::kOfRow && Found::member() % Found::kAlike == 0;
    if (writes && trial >= 0 && trial < trials) sums[(long long)trial * chunks] = totals[h];
  }
}

// Updates `closest`, and sums w·D² per chunk and candidate (head of this file). The shard's `own_chunks` chunks of
// `chunk` rows, a whole number of tiles, are distributed over all warps; `sums` begins with the first of them. Shared
// memory holds `window` columns of the points: all columns, or a multiple of kInterval columns. In the second case, all
// warps of the block process the same columns together.
template <typename T, int kTrials, int kLanes, bool kAligned, bool kWeighted>
__global__ void __launch_bounds__(kTryThreads, kTryBlocks)
    evaluate_candidates(const T* X, long long n, int d, const T* weights, const T* points, int chunk, int own_chunks,
                        int chunks, int window, T* closest, double* sums) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  constexpr int kPoints = kTrials + 1, kRows = kTryRows<T, kPoints>, kGroups = 32 / kLanes, kTile = kRows * kGroups;
  using Found = Distances<T, kPoints, kRows, kLanes, kAligned>;
  T* held = simt::dynamic_shared<T>();
  const int lane = simt::lane(), warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const auto fetch = [&](int begin) {
    fetch_points<kPoints>(points, d, begin, window, held);
    __syncthreads();
  };
  const bool whole = d <= window;
  if (whole) fetch(0);
  // Adjacent chunks belong to different blocks, so that the last few chunks are spread over all blocks.
  for (long long turn = blockIdx.x; turn < own_chunks; turn += (long long)warps * gridDim.x) {
    const long long mine = turn + (long long)warp * gridDim.x;
    if (whole && mine >= own_chunks) break;
    const long long begin = mine * chunk;
    const int count = begin >= n ? 0 : n - begin < chunk ? (int)(n - begin) : chunk;
    double totals[Found::kHeld] = {};
    for (int at = 0; at < chunk; at += kTile) {
      const T* x[kRows];
      T near[kRows], weight[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        // Every lane takes part in the shuffles. Lanes past the end of the chunk load the last row of X.
        const int here = at + r * kGroups + lane / kLanes;
        const long long row = here < count ? begin + here : n - 1;
        x[r] = X + row * d;
        near[r] = closest[row];
        weight[r] = kWeighted ? weights[row] : T(1);
      }
      const bool full = at + 2 * kTile <= count;
      Found found;
      for (int from = 0; from < d; from += window) {
        if (Found::kLong && !whole) {
          __syncthreads();  // all warps have processed the earlier columns
          fetch(from);
        }
        found.add(x, held, window, from, from + window < d ? from + window : d, d, full ? (long long)kTile * d : 0);
        if (!Found::kLong) break;
      }
      const auto place = [&](int r) {
        const int here = at + r * kGroups + lane / kLanes;
        return here < count ? begin + here : -1;
      };
      settle(found, near, weight, place, closest, totals);
    }
    if (mine < own_chunks) hand_in<Found>(totals, kTrials, sums + mine, chunks);
  }
}

// Returns the inclusive running sum of `value` over the threads of a block. `before` is set to the sum of all earlier
// threads, and `all` to the sum of all threads.
__device__ __forceinline__ double running_sum(double value, double* of_warps, double& before, double& all) {
  const int lane = simt::lane(), warp = threadIdx.x / 32, warps = blockDim.x / 32;
  value = simt::warp_running_sum(value);
  const double previous = simt::shuffle_up(value, 1);
  if (lane == 31) of_warps[warp] = value;
  __syncthreads();
  double base = 0;
  all = 0;
  for (int other = 0; other < warps; ++other) {
    if (other == warp) base = all;
    all += of_warps[other];
  }
  __syncthreads();
  before = lane > 0 ? base + previous : base;
  return base + value;
}

// Adds up the chunks' sums of one group per block. Warp t processes candidate t.
__global__ void sum_groups(const double* sums, int chunks, double* group_sums) {
  ptx::griddepcontrol_wait();
  const int lane = simt::lane(), trial = threadIdx.x / 32;
  double sum = 0;
#pragma unroll
  for (int i = 0; i < kGroup; i += 32) {
    const int chunk = blockIdx.x * kGroup + i + lane;
    if (chunk < chunks) sum += sums[(long long)trial * chunks + chunk];
  }
  sum = simt::warp_sum(sum);
  if (lane == 0) group_sums[trial * gridDim.x + blockIdx.x] = sum;
}

// A search by the threads of a block for the first of up to kDrawThreads numbers at which a running sum reaches a
// target.
struct Search {
  double of_warps[kDrawThreads / 32], passed;
  int found, positive;

  // Returns the index of the first thread at which `passed` plus the running sum of `value` reaches `target`, and sets
  // `passed` to the sum before this thread. If rounding puts the target past the end: the last thread with a positive
  // value, or 0 if there is none. Threads past the last with `present` have value 0; their running sum may round up.
  __device__ int first_at_least(bool present, double value, double target) {
    if (threadIdx.x == 0) found = 0x7fffffff, positive = 0;
    double before, all;
    const double base = passed, up_to = running_sum(value, of_warps, before, all);
    if (present && base + up_to >= target) atomicMin(&found, (int)threadIdx.x);
    if (value > 0) atomicMax(&positive, (int)threadIdx.x);
    __syncthreads();
    const int thread = found < kDrawThreads ? found : positive;
    if (thread == (int)threadIdx.x) passed = base + before;
    __syncthreads();
    return thread;
  }
};

// Every block finds the best candidate of this step. Block 0 stores its index in `chosen`, and its row as point 0 of
// the next step; GPUs whose shard does not begin X store zeros there. Block t then draws candidate t of the next step.
// If `draws` is null, there is one block, which draws nothing. The shard begins at sample `offset`.
template <typename T, int kTrials, int kLanes, bool kAligned, bool kWeighted>
__global__ void __launch_bounds__(kDrawThreads, 1)
    sample_candidates(const T* X, long long n, int d, const T* weights, const T* closest, long long offset, int chunk,
                      int chunks, const double* sums, const double* group_sums, const T* points, const double* draws,
                      long long* chosen, T* next) {
  ptx::griddepcontrol_wait();
  constexpr int kWarps = kDrawThreads / 32, kNone = 0x7fffffff;
  static_assert(kTrials <= kWarps, "a warp adds up each candidate's sums");
  __shared__ double potentials[kTrials], masses[kDrawThreads];
  __shared__ Search search;
  __shared__ int found, heavy;
  const int thread = threadIdx.x, lane = simt::lane(), warp = thread / 32, groups = (chunks + kGroup - 1) / kGroup;
  if (warp < kTrials) {
    double sum = 0;
    for (int group = lane; group < groups; group += 32) sum += group_sums[warp * groups + group];
    sum = simt::warp_sum(sum);
    if (lane == 0) potentials[warp] = sum;
  }
  if (thread == 0) search.passed = 0;
  __syncthreads();
  int best = 0;
  for (int t = 1; t < kTrials; ++t) best = potentials[t] < potentials[best] ? t : best;
  if (blockIdx.x == 0 && thread == 0) *chosen = indices_of(points, kTrials + 1, d)[best];
  if (draws == nullptr) return;
  const T* center = points + (long long)(1 + best) * point_pitch<T>(d);
  if (blockIdx.x == 0) write_point(offset == 0 ? center : nullptr, 0, d, next);

  // Finds the first group, and its first chunk, at which the running sum of the sums reaches the target.
  const double target = draws[blockIdx.x] * potentials[best];
  const bool own = thread < groups;
  const int group = search.first_at_least(own, own ? group_sums[best * groups + thread] : 0.0, target);
  const int inner = group * kGroup + thread;
  const bool has = thread < kGroup && inner < chunks;
  const int place =
      group * kGroup + search.first_at_least(has, has ? sums[(long long)best * chunks + inner] : 0.0, target);

  // If another shard has the chunk, its GPU finds the sample.
  const long long first = (long long)place * chunk - offset;
  long long* const drawn = indices_of(next, kTrials + 1, d) + blockIdx.x;
  if (first < 0 || first >= n) {
    if (thread == 0) *drawn = 0;
    write_point<T>(nullptr, 1 + blockIdx.x, d, next);
    return;
  }

  // Finds the sample within the chunk. The running sum over the samples rounds differently from the sum of the chunk,
  // and may just miss the target. Then the last sample with a positive w·D² is drawn.
  using Found = Distances<T, 1, (kLanes > 1 ? 2 : 1), kLanes, kAligned>;
  constexpr int kRows = kLanes > 1 ? 2 : 1, kGroups = kDrawThreads / kLanes;
  const int count = n - first < chunk ? (int)(n - first) : chunk;
  double sum = search.passed, before, all;
  if (thread == 0) {
    found = kNone;
    heavy = -1;
  }
  for (int tile = 0; tile < count; tile += kDrawThreads) {
    for (int i = 0; i < kDrawThreads && tile + i < count; i += kRows * kGroups) {
      int at[kRows];
      const T* x[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        at[r] = i + r * kGroups + thread / kLanes;
        x[r] = X + (first + (tile + at[r] < count ? tile + at[r] : count - 1)) * d;
      }
      Found to_center;
      to_center.add(x, center, 0, 0, d, d, 0);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (Found::member() != 0 || tile + at[r] >= count) continue;
        const long long row = first + tile + at[r];
        const T there = (T)to_center.at[r][0], near = closest[row];
        masses[at[r]] = (double)(kWeighted ? weights[row] : T(1)) * (double)(there < near ? there : near);
      }
    }
    __syncthreads();
    const bool present = tile + thread < count;
    const double value = present ? masses[thread] : 0.0;
    const double reached = sum + running_sum(value, search.of_warps, before, all);
    if (present && reached >= target) atomicMin(&found, tile + thread);
    if (present && value > 0) atomicMax(&heavy, tile + thread);
    sum += all;
    __syncthreads();
    if (found != kNone) break;
  }
  const long long row = first + (found != kNone ? found : heavy >= 0 ? heavy : count - 1);
  if (thread == 0) *drawn = offset + row;
  write_point(X + row * d, 1 + blockIdx.x, d, next);
}

}  // namespace kmeans
