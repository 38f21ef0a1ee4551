// Lloyd iteration for d ≤ 4 and small k by fused multiply-adds on X, not on a copy, in one launch. Scores and error
// bound E are those of iteration_fma.cuh. Here, a lane first tests only whether a row's label is still certified.
//
//   X (n × d, float32 or 16 bits, row by row)   labels (n bytes)   sums (k × (d + 1)), 64-bit integers
//                                               (update/fixed_point.cuh)
//
//   a warp's tile       lane 0   1   2 …  31         a pipeline copies tiles and their labels to shared memory
//     rows   0 …  31    ████████████████████         (tile_pipeline.cuh); a lane processes kRows rows of a tile
//     rows  32 …  63    ████████████████████
//     …                                              a row is queued with its elements if the score of its label is
//                                                    not 2 E above all other scores → for 32 queued rows at a time,
//                                                    candidates are found; new labels are written, and reassigned rows
//                                                    are added to the sums
//
//   sums in shared memory   [cluster][column, limb][replica]: a lane adds to its own replica, so in its own bank
//
// Why it is fast: it copies X to shared memory once, without registers, and writes only labels that change. To certify
// a label, a lane computes the score of the label, from a center in shared memory (own_score.cuh), and the maximum of
// all other scores. Finding the nearest center would need the maximum and a candidate mask, which takes two
// multiply-adds per center. Scores are not stored, so a lane has registers for eight rows. A load of a center from
// constant memory to uniform registers, and the loop over tiles, serve all eight rows. Lane instructions per row, as
// compiled for sm_90a, for d = 4, k = 16 and eight rows per lane:
//
//   scores      d (k − 1) multiply-adds, and d for the label             64
//               loads of centers to uniform registers, per row            5
//   maximum     k − 1 maxima at half rate; one R2P saves seven           19
//   other       copies, loads, two comparisons, the tile's loop          15
//   in all                                                              103      132 by iteration_fma.cuh
//
// At 34·10¹² lane instructions per second, 100M rows take 0.31 ms; reading these rows takes 0.36 ms.
#pragma once
#include "apps/kmeans/small_d/own_score.cuh"
#include "apps/kmeans/small_d/replicated_sums.cuh"
#include "apps/kmeans/small_d/tile_pipeline.cuh"
#include "kernels/ptx/memory.cuh"

namespace kmeans {

// A queued row with a label that is not certified: its index, its label, and its elements.
template <typename T, int kFeatures>
struct Wavering {
  static constexpr int kWide = vector_width<T, kFeatures, 8 / sizeof(T)>();
  unsigned row;
  int label;
  simt::Vector<T, kWide> x[kFeatures / kWide];
};

// Labels all rows and updates the sums (head of this file). kClusters: k rounded up to a multiple of four. kShifts: the
// mean is subtracted from rows before they are scored. kMostAdded: maximum number of rows that a block adds between two
// flushes, so that sums of limbs do not overflow 32 bits.
template <typename T, int kFeatures, int kClusters, int kRows, bool kShifts, int kReplicas, int kStages, int kThreads,
          int kBlocks, int kMostAdded = 32768>
__global__ void __launch_bounds__(kThreads, kBlocks)
    assign_d4(const T* X, const float* centers, int k, long long n, Label* labels, unsigned long long* sums,
              unsigned* n_reassigned, const int* stopped) {
  constexpr int kWarps = kThreads / 32, kTile = 32 * kRows;
  using Pipeline = TilePipeline<T, kFeatures, kTile, kStages, 16, true>;
  using Item = Wavering<T, kFeatures>;
  using Sums = ReplicatedSums<kFeatures, kReplicas>;
  if (*stopped) return;
  unsigned char* shared = simt::dynamic_shared<unsigned char>();
  Pipeline pipeline(X, labels, n, shared);
  const unsigned together = gridDim.x * kWarps * kTile, begin = (blockIdx.x * kWarps + threadIdx.x / 32) * kTile;
  pipeline.ask_first(begin, together);
  unsigned char* at = shared + kWarps * Pipeline::kBytes;
  Queue<Item, 32, true> queue(at);
  at += kWarps * queue.kBytes;
  const OwnScores<kFeatures, kClusters> own(at);
  const Sums here(sums, reinterpret_cast<unsigned*>(at + own.kBytes), k);
  here.clear();
  const unsigned lane = simt::kept(threadIdx.x % 32);
  unsigned changed = 0;
  const auto settle_row = [&](unsigned row, int from, const T(&elements)[kFeatures]) {
    float value[kFeatures], x[1][kFeatures];
    center_row(elements, value);
    scored_row<kShifts>(elements, x[0]);
    unsigned found[1] = {};
    find_candidates<kFeatures, kClusters, 1>(x, found);
    int to = cluster_of<kClusters>(found[0]);
    if (to < 0) to = nearest_of_found<kFeatures>(value, centers, k, found[0]);
    if (to == from) return;
    labels[row] = (Label)to;
    here.move(value, to, from);
    ++changed;
  };
  const auto settle = [&](const Item* items, int count) {
    if ((int)lane >= count) return;
    const Item& one = items[lane];
    T elements[kFeatures];
#pragma unroll
    for (int i = 0; i < kFeatures; ++i) elements[i] = one.x[i / Item::kWide].at[i % Item::kWide];
    settle_row(one.row, one.label, elements);
  };
  each_tile<kTile, kWarps, Sums::template tiles<kWarps, kRows, kMostAdded>()>(
      (unsigned)n, [&] { here.flush(); },
      [&](unsigned first) {
        const unsigned left = (unsigned)n - first;
        pipeline.wait();
        pipeline.ask(first + (kStages - 1) * together);
        const Label* const of_lane = pipeline.labels() + lane;
        // In the first iteration, no row has a label. Rows are then labeled without the queue.
        if (__all_sync(simt::every_lane, *of_lane < 0)) {
#pragma unroll 1
          for (int r = 0; r < kRows && 32 * r + lane < left; ++r) {
            T elements[kFeatures];
            load_row<kFeatures>(pipeline.row(32 * r + lane), pipeline.swizzle(lane), elements);
            settle_row(first + 32 * r + lane, of_lane[32 * r], elements);
          }
          return;
        }
        float x[kRows][kFeatures], least[kRows], others[kRows];
        int label[kRows];
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          T elements[kFeatures];
          load_row<kFeatures>(pipeline.row(32 * r + lane), pipeline.swizzle(lane), elements);
          scored_row<kShifts>(elements, x[r]);
          label[r] = ptx::shared_byte(of_lane + 32 * r);
          least[r] = own.of(x[r], label[r], others[r]) - constant_centers.bound;
        }
        raise_to_others<kFeatures, kClusters, kRows>(x, label, others);
        bool any = false;
#pragma unroll
        for (int r = 0; r < kRows; ++r) any |= !(others[r] < least[r]);
        unsigned all = __ballot_sync(simt::every_lane, any);
        if (all == 0) return;
        // Bit r is set if the label of row r of this lane is not certified. Bits past the last row are zero.
        unsigned waits = 0;
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          const bool there = left >= kTile || 32 * r + lane < left;
          waits += (unsigned)(there && !(others[r] < least[r])) << r;
        }
        all = __ballot_sync(simt::every_lane, waits != 0);
        // Usually a lane has at most one row to queue, so add_while needs one iteration.
        queue.add_while(
            all, waits,
            [&](Item& item) {
              const int r = __ffs((int)waits) - 1;
              waits &= waits - 1;
              T elements[kFeatures];
              load_row<kFeatures>(pipeline.row(32 * r + lane), pipeline.swizzle(lane), elements);
              item.row = first + 32 * r + lane;
              item.label = of_lane[32 * r];
#pragma unroll
              for (int i = 0; i < kFeatures; ++i) item.x[i / Item::kWide].at[i % Item::kWide] = elements[i];
            },
            settle);
      });
  queue.drain(1, settle);
  here.finish(lane, changed, n_reassigned);
}

}  // namespace kmeans
