// Incremental update of the cluster sums: reassigned rows are added one by one, for large k and few reassigned rows.
//
// lists   reassigned rows: a row, its label, and its new label
// sums    (k × (d + 1)), 64-bit integers (fixed_point.cuh)
//
//      lanes   0 … 2^log2_lanes − 1    2^log2_lanes …
//      row     0                       1                …      a lane adds every 2^log2_lanes-th column of its rows
//
// Why it is fast: it takes one launch, while sorting (sort_reassigned.cuh) takes three. L2 adds without a round trip to
// the multiprocessor, and the columns of a row are adjacent. Many rows of the same cluster would wait for each other:
// plan.py then selects sorting (sorts_lists).
#pragma once
#include "apps/kmeans/assign/row_distances.cuh"
#include "apps/kmeans/update/fixed_point.cuh"
#include "apps/kmeans/update/sort_reassigned.cuh"

namespace kmeans {

constexpr int kAddThreads = 256;

// Block (x, y) adds part y of list x. Also writes the new labels, and adds to `n_reassigned`.
template <typename T, typename Work, int kDigits, bool kWeighted>
__global__ void __launch_bounds__(kAddThreads)
    add_reassigned(const CenteredRows<T, Work> rows, const typename Integer<kDigits>::Scale* scales, int log2_lanes,
                   const Lists<Reassignment> lists, int* labels, unsigned long long* sums, unsigned* n_reassigned,
                   const int* stopped) {
  ptx::griddepcontrol_wait();
  if (*stopped) return;
  constexpr int kTogether = 2;  // rows of a lane in flight
  const unsigned count = lists.lengths[blockIdx.x * lists.step], all = gridDim.y * (kAddThreads >> log2_lanes);
  const unsigned first = blockIdx.y * (kAddThreads >> log2_lanes) + (threadIdx.x >> log2_lanes);
  const int lanes = 1 << log2_lanes, lane = (int)threadIdx.x & (lanes - 1), d = rows.d, width = d + 1;
  const Reassignment* const changes = lists.items + blockIdx.x * lists.capacity;
  unsigned mine = 0;
  for (unsigned at = first; at < count; at += kTogether * all) {
    Reassignment change[kTogether];
    Work weight[kTogether];
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      const bool there = at + j * all < count;
      change[j] = changes[there ? at + j * all : at];
      if (!there) change[j].from = change[j].to;  // adds nothing
      weight[j] = kWeighted ? rows.weights[change[j].row] : Work(1);
      if (lane != 0 || change[j].from == change[j].to) continue;
      labels[change[j].row] = change[j].to;
      ++mine;
    }
    for (int column = lane; column <= d; column += lanes) {
      const auto scale = scales[column];
      const Work mean = column < d ? rows.mean[column] : Work(0);
      Work value[kTogether];
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        const T* const x = rows.X + change[j].row * rows.leading;
        value[j] = column < d ? centered<T, Work>(x[column], mean) : Work(1);
      }
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        if (change[j].from == change[j].to) continue;
        const long long number = as_integer<Work>(kWeighted ? weight[j] * value[j] : value[j], scale);
        atomicAdd(&sums[(long long)change[j].to * width + column], (unsigned long long)number);
        if (change[j].from < 0) continue;
        atomicAdd(&sums[(long long)change[j].from * width + column], (unsigned long long)-number);
      }
    }
  }
  mine = simt::warp_sum(mine);
  if (threadIdx.x % 32 == 0 && mine) atomicAdd(n_reassigned, mine);
}

}  // namespace kmeans
