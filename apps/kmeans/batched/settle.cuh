// Batched labels from the candidates of every row (candidates.cuh), and the list of reassigned rows. Sizes b, n, rows:
// see problem.cuh.
//
//   found (b × rows), lists  →  labels (b × n), changes
//
// Why it is fast: a row with one candidate costs a read of 8 bytes, and a block takes room for all its reassigned rows
// by one atomic addition. Ambiguous rows are divided evenly among blocks of their own, which start first. Eight lanes
// compare the candidates of one of them, so that a warp waits for the data of four rows at a time.
#pragma once
#include "apps/kmeans/batched/candidate_list.cuh"
#include "apps/kmeans/batched/rescore.cuh"
#include "apps/kmeans/batched/problem.cuh"

namespace batched {

// kSettleThreads: threads per block, each of which settles a row. kListParts: blocks per list. kRowLanes: lanes per
// ambiguous row.
constexpr int kSettleThreads = 256, kListParts = 4, kRowLanes = 8;
// Blocks per multiprocessor, 0 if the compiler may choose. On compute capability 10 it chooses so many that it spills.
#if __CUDA_ARCH__ / 100 == 10
constexpr int kSettleBlocks = 2;
#else
constexpr int kSettleBlocks = 0;
#endif

// Labels an ambiguous row, given by one lane of those that share it.
template <typename T>
__device__ __forceinline__ void relabel(const Batch<T>& batch, int problem, unsigned row, int label) {
  int& to = batch.labels[problem * batch.n + row];
  const int before = to;
  if (before == label) return;
  batch.changes[problem * batch.n + atomicAdd(&batch.counts[problem], 1u)] = {row, before};
  to = label;
}

// Labels a part of the rows of a list.
template <typename T>
__device__ __forceinline__ void settle_list(const Batch<T>& batch, const CandidateList* list, unsigned length,
                                            unsigned part) {
  constexpr unsigned kRows = kSettleThreads / kRowLanes;
  for (unsigned first = part * kRows; first < length; first += kListParts * kRows) {
    const unsigned own = first + threadIdx.x / kRowLanes, rows = (unsigned)batch.rows;
    const CandidateList& entry = list[own < length ? own : first];
    const int problem = (int)(entry.row / rows), count = entry.count;
    const unsigned row = entry.row % rows;
    const bool present = row < batch.n;
    Nearest<T, kRowLanes> nearest(batch, problem, present ? row : 0);
    int most = count;
#pragma unroll
    for (int bits = kRowLanes; bits < 32; bits *= 2) {
      const int other = simt::shuffle_xor(most, bits);
      most = other > most ? other : most;
    }
    for (int i = 0; i < most; i += 2) {
      const int last = count > 0 ? count - 1 : 0;
      const int one = entry.at[i < last ? i : last], other = entry.at[i + 1 < last ? i + 1 : last];
      nearest.consider({count > 0 ? one : 0, count > 0 ? other : 0});
    }
    int label = nearest.label();
    // One row after the other is compared with all centers by the whole warp.
    unsigned waiting = __ballot_sync(simt::every_lane, count == 0 && threadIdx.x % kRowLanes == 0);
    for (; waiting; waiting &= waiting - 1) {
      const int lane = __ffs(waiting) - 1;
      Nearest<T, 32> of_all(batch, simt::shuffle(problem, lane), simt::shuffle(present ? row : 0, lane));
      of_all.consider_all();
      if (simt::lane() == lane) label = of_all.label();
    }
    if (own < length && present && threadIdx.x % kRowLanes == 0) relabel(batch, problem, row, label);
  }
}

// The first `lists` · kListParts blocks label ambiguous rows: list i begins at i · capacity and has lengths[i] rows, or
// `capacity` if lengths[i] is larger. Then, `tiles` blocks per problem label 256 rows each.
template <typename T>
__global__ void __launch_bounds__(kSettleThreads, kSettleBlocks)
    settle(const Batch<T> batch, const int* found, const CandidateList* entries, const unsigned* lengths,
           unsigned capacity, unsigned lists, unsigned tiles) {
  if (*batch.n_running == 0) return;
  if (blockIdx.x < lists * kListParts) {
    const unsigned list = blockIdx.x / kListParts, length = lengths[list];
    settle_list(batch, entries + (long long)list * capacity, length < capacity ? length : capacity,
                blockIdx.x % kListParts);
    return;
  }
  const unsigned tile = blockIdx.x - lists * kListParts;
  const int problem = (int)(tile / tiles), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (batch.status[problem] != kRunning) return;
  const long long row = (long long)(tile % tiles) * kSettleThreads + threadIdx.x, of_all = problem * batch.n + row;
  const int label = row < batch.n ? found[problem * batch.rows + row] : kIsListed;
  for (unsigned waiting = __ballot_sync(simt::every_lane, label == kCompareAll); waiting; waiting &= waiting - 1) {
    const long long one = row - lane + __ffs(waiting) - 1;
    Nearest<T, 32> nearest(batch, problem, one);
    nearest.consider_all();
    if (lane == 0) relabel(batch, problem, (unsigned)one, nearest.label());
  }

  const int before = label >= 0 ? batch.labels[of_all] : label;
  const unsigned changed = __ballot_sync(simt::every_lane, label != before);
  __shared__ unsigned begin_of[kSettleThreads / 32];
  if (lane == 0) begin_of[warp] = __popc(changed);
  __syncthreads();
  if (threadIdx.x == 0) {
    unsigned all = 0;
    for (int i = 0; i < kSettleThreads / 32; ++i) {
      const unsigned count = begin_of[i];
      begin_of[i] = all;
      all += count;
    }
    const unsigned begin = all ? atomicAdd(&batch.counts[problem], all) : 0;
    for (int i = 0; i < kSettleThreads / 32; ++i) begin_of[i] += begin;
  }
  __syncthreads();
  if (label == before) return;
  const unsigned place = begin_of[warp] + __popc(changed & ((1u << lane) - 1));
  batch.changes[problem * batch.n + place] = {(unsigned)row, before};
  batch.labels[of_all] = label;
}

}  // namespace batched
