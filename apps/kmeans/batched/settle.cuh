// Batched labels from the candidates of every row (candidates.cuh), and the list of reassigned rows. Sizes b, n, rows:
// see problem.cuh.
//
//   found (b × rows), lists  →  labels (b × n), changes
//
// Why it is fast: a row with one candidate costs a read of 8 bytes. A warp compares the candidates of one ambiguous row
// at a time. A block that has reassigned rows takes room for all of them by one atomic addition.
#pragma once
#include "apps/kmeans/batched/candidate_list.cuh"
#include "apps/kmeans/batched/nearest.cuh"
#include "apps/kmeans/batched/problem.cuh"

namespace batched {

constexpr int kSettleThreads = 256;

// Block (x, problem) labels 256 rows of the problem, from row 256·x on.
template <typename T>
__global__ void __launch_bounds__(kSettleThreads)
    settle(const Batch<T> batch, const int* found, const CandidateList* lists) {
  const int problem = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (batch.status[problem] != kRunning) return;
  const long long row = (long long)blockIdx.x * kSettleThreads + threadIdx.x, of_all = problem * batch.n + row;
  const bool present = row < batch.n;
  int label = present ? found[problem * batch.rows + row] : 0;
  const int before = present ? batch.labels[of_all] : label;
  unsigned waiting = __ballot_sync(simt::every_lane, label < 0);
  for (; waiting; waiting &= waiting - 1) {
    const int one = __ffs(waiting) - 1, number = simt::shuffle(label, one);
    Nearest<T> nearest{batch,
                       batch.row(problem, row - lane + one),
                       batch.means + (long long)problem * batch.d,
                       batch.centers + (long long)problem * batch.k * batch.d,
                       kInfinity,
                       0};
    if (number == kCompareAll) {
      nearest.consider_all();
    } else {
      const CandidateList& list = lists[~number];
      for (int i = 0; i < list.count; i += 2) {
        nearest.consider({(int)list.at[i], (int)list.at[i + 1 < list.count ? i + 1 : i]});
      }
    }
    if (lane == one) label = nearest.label;
  }

  const bool changes = present && label != before;
  const unsigned changed = __ballot_sync(simt::every_lane, changes);
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
  if (!changes) return;
  const unsigned place = begin_of[warp] + __popc(changed & ((1u << lane) - 1));
  batch.changes[problem * batch.n + place] = {(unsigned)row, before};
  batch.labels[of_all] = label;
}

}  // namespace batched
