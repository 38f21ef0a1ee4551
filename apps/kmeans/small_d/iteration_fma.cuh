// An iteration for few features and few clusters, by fused multiply-adds on X itself: the label of every row, and the
// rows that change theirs moved from one cluster's sums to another's, in one launch. (Of up to four features:
// iteration_fma_d4.cuh.)
//
//   X (n × d, float32 or 16 bits, row by row)   labels (n bytes)   sums (k × (d + 1)), 64-bit integers
//                                               (update/fixed_point.cuh)
//
//   a warp's tile       lane 0   1   2 …  31         tiles and their labels come through a ring in shared memory
//     rows   0 …  31    ████████████████████         (tile_pipeline.cuh); a lane has kRows rows of one in its registers
//     rows  32 …  63    ████████████████████
//     …                                              rows in doubt or with another label → the warp's queue → 32 at a
//                                                    time are decided, written and added to
//
//   sums in shared memory   [cluster][column, digit][replica]: a lane adds to its own replica, so in its own bank
//
// The nearest center is the one of the largest score x·c − ‖c‖²/2. What is computed is by how much it is above that of
// one center c₀, x·(c − c₀) − (‖c‖² − ‖c₀‖²)/2: d fused multiply-adds, of which the first adds the offset. With u =
// 2⁻²⁴, ‖x‖ ≤ M for all rows, C = max ‖c − c₀‖ and O = max |offset|, a score is off by no more than
//
//   E = (d + 5) u (M C + O)      d roundings of what is no more than M C + O; of c − c₀; of the offset; of x − mean;
//                                and of
//                                what scores are compared with (place_constants has one more, for iteration_fma_d4.cuh)
//
// Candidates are, as in assign/small_k.cuh, what is above the best score less 2 E, a bit each. A row with one candidate
// is decided; others are compared in float64, from differences, the first of equals: labels are the float64 arg-min.
// Scores are in units of the data's: all that is multiplied with x is scaled by a power of two squared, so that M is
// about 2¹⁰ and no score overflows below; where centers are so far away that one could, the threshold is no number, and
// every row is compared in float64.
//
// Where the mean is small beside the data, what the scores have of it is in the offsets, less mean·(c − c₀), and x is
// not centered (M is then a bound of ‖x‖ as it is). What is compared and added up in the queue is centered, always.
//
// Why it is fast: X is read once, past the registers, and nothing is written but labels that change. Centers are
// operands in constant memory, which go through uniform registers, so that no score waits for shared memory. M is of
// all rows, so no row's norm is computed. Up to 16 clusters, the best score is the largest as an integer, of which one
// instruction compares three (it is not negative, as c₀ has a score of zero). Lane instructions a row, as compiled for
// sm_90a, with d = 16, k = 16 and two rows a lane:
//
//   scores        d (k − 1) multiply-adds                          240
//                 centers to uniform registers, shared by rows      77
//   maximum       k / 2, at half rate                                8
//   threshold                                                        2
//   candidates    2 k multiply-adds: a mask in a float's mantissa   32
//   the rest      copies, loads, one comparison, the tile's loop    36
//   in all                                                         395
//
// Of 34·10¹² a second, 50M rows take 0.58 ms of instructions, beside 0.73 of reading. Subtracting the mean, where it is
// far away, is d more. A tile in which any row is not done costs some 65 instructions of the warp, and 45 for each
// further row of one lane; settling 32 rows takes 215.
#pragma once
#include "apps/kmeans/small_d/scores_fma.cuh"
#include "apps/kmeans/small_d/replicated_sums.cuh"
#include "apps/kmeans/small_d/tile_pipeline.cuh"

namespace kmeans {

// Of a row that is not done: its number; its candidates as they were found, and its label above them.
using Waiting = simt::Vector<unsigned, 2>;
constexpr int kLabelBit = 24;

// kClusters is k rounded up to whole fours. kShifts: scores are of centered rows. Digits of kMostAdded rows add up
// within 32 bits.
template <typename T, int kFeatures, int kClusters, int kRows, bool kShifts, int kReplicas, int kStages, int kThreads,
          int kBlocks, int kMostAdded = 32768>
__global__ void __launch_bounds__(kThreads, kBlocks)
    assign_rows(const T* X, const float* centers, int k, long long n, Label* labels, unsigned long long* sums,
                unsigned* n_reassigned, const int* stopped) {
  static_assert(kFeatures <= kMostFeatures && kClusters <= kMostSmallK && kFeatures * kClusters <= kMostElements);
  constexpr int kWarps = kThreads / 32, kTile = 32 * kRows;
  // A warp settles no more than kRows times a tile, and once more; then at most 32 / kReplicas lanes add to the same.
  constexpr int kTiles = (kMostAdded / (kWarps * (32 / kReplicas)) - 1) / kRows;
  static_assert(kTiles >= 1, "the digits of one tile would overflow");
  using Pipeline = TilePipeline<T, kFeatures, kTile, kStages, 16, true>;
  if (*stopped) return;
  unsigned char* shared = simt::dynamic_shared<unsigned char>();
  Pipeline pipeline(X, labels, n, shared);
  const unsigned together = gridDim.x * kWarps * kTile, begin = (blockIdx.x * kWarps + threadIdx.x / 32) * kTile;
#pragma unroll
  for (int stage = 0; stage + 1 < kStages; ++stage) pipeline.ask(begin + stage * together);
  Queue<Waiting, 32, true> queue(shared + kWarps * Pipeline::kBytes);
  const ReplicatedSums<kFeatures, kReplicas> here(
      sums, reinterpret_cast<unsigned*>(shared + kWarps * (Pipeline::kBytes + queue.kBytes)), k);
  here.clear();
  const unsigned lane = simt::kept(threadIdx.x % 32);
  unsigned changed = 0;
  const auto move = [&](unsigned row, const float (&value)[kFeatures], int to, int from) {
    labels[row] = (Label)to;
    here.move(value, to, from);
    ++changed;
  };
  const auto settle = [&](const Waiting* rows, int count) {
    if ((int)lane >= count) return;
    const Waiting one = rows[lane];
    const unsigned row = one.at[0], found = one.at[1];
    T again[kFeatures];
    load_row<kFeatures>(X + (long long)row * kFeatures, 0, again);
    float value[kFeatures];
    center_row(again, value);
    const int from = (int)found >> kLabelBit;
    int to = cluster_of<kClusters>(found);
    if (to < 0) {
      to = nearest_of_found<kFeatures>(value, centers, k, found);
      if (to == from) return;
    }
    move(row, value, to, from);
  };
  each_tile<kTile, kWarps, kTiles>(
      (unsigned)n, [&] { here.flush(); },
      [&](unsigned first) {
        const unsigned left = (unsigned)n - first;
        pipeline.wait();
        pipeline.ask(first + (kStages - 1) * together);
        float x[kRows][kFeatures];
        int label[kRows];
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          T raw[kFeatures];
          load_row<kFeatures>(pipeline.row(32 * r + lane), pipeline.swizzle(lane), raw);
          label[r] = pipeline.labels()[32 * r + lane];
          scored_row<kShifts>(raw, x[r]);
        }
        unsigned found[kRows];
        find_candidates<kFeatures, kClusters, kRows>(x, found);
        bool any = false;
#pragma unroll
        for (int r = 0; r < kRows; ++r) any |= found[r] != found_of<kClusters>(label[r]);
        unsigned all = __ballot_sync(simt::every_lane, any);
        if (all == 0) return;
        // Bit r: row r of this lane is not done. Past the end there are zeros.
        unsigned waits = 0;
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          const unsigned differs = found[r] ^ found_of<kClusters>(label[r]);
          waits += (differs < 1 ? differs : 1u) << r;
        }
        if (left < kTile) {
#pragma unroll
          for (int r = 0; r < kRows; ++r) {
            if (32 * r + lane >= left) waits &= ~(1u << r);
          }
          all = __ballot_sync(simt::every_lane, waits != 0);
        }
        // Where every row comes to a cluster, as all do at first, none has to wait.
        if (__all_sync(simt::every_lane, waits == (1u << kRows) - 1)) {
          bool sure = true;
#pragma unroll
          for (int r = 0; r < kRows; ++r) sure &= cluster_of<kClusters>(found[r]) >= 0;
          if (__all_sync(simt::every_lane, sure)) {
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
              T again[kFeatures];
              load_row<kFeatures>(pipeline.row(32 * r + lane), pipeline.swizzle(lane), again);
              float value[kFeatures];
              center_row(again, value);
              move(first + 32 * r + lane, value, cluster_of<kClusters>(found[r]), pipeline.labels()[32 * r + lane]);
            }
            return;
          }
        }
        // Mostly a lane has one such row or none, so that one turn does.
        queue.add_while(
            all, waits,
            [&](Waiting& to) {
              int r = 0;
              unsigned bits = found[0];
#pragma unroll
              for (int other = 1; other < kRows; ++other) {
                if (waits >> other & 1) r = other, bits = found[other];
              }
              waits ^= 1u << r;
              const unsigned of_label = (unsigned)pipeline.labels()[32 * r + lane] << kLabelBit;
              to = {{first + 32 * r + lane, bits + of_label}};
            },
            settle);
      });
  queue.drain(1, settle);
  here.flush();
  changed = simt::warp_sum(changed);
  if (lane == 0 && changed) atomicAdd(n_reassigned, changed);
}

}  // namespace kmeans
