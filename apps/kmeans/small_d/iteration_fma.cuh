// Small-d, small-k Lloyd iteration by fused multiply-adds on X, not on a copy, in one launch: labels all rows and
// updates the cluster sums by reassigned rows. (For d ≤ 4: iteration_fma_d4.cuh.)
//
//   X (n × d, float32 or 16 bits, row by row)   labels (n bytes)   sums (k × (d + 1)), 64-bit integers
//                                               (update/fixed_point.cuh)
//
//   a warp's tile       lane 0   1   2 …  31         a pipeline copies tiles and their labels to shared memory
//     rows   0 …  31    ████████████████████         (tile_pipeline.cuh); a lane processes kRows rows of a tile
//     rows  32 …  63    ████████████████████
//     …                                              rows that are ambiguous or have a new label → the warp's queue →
//                                                    32 rows at a time are rescored and added to the sums
//
//   sums in shared memory   [cluster][column, limb][replica]: a lane adds to its own replica, so in its own bank
//
// The nearest center has the largest score x·c − ‖c‖²/2. Scores here are relative to one center c₀: x·(c − c₀) − (‖c‖²
// − ‖c₀‖²)/2. A score takes d fused multiply-adds, the first of which adds the bias. With u = 2⁻²⁴, ‖x‖ ≤ M for all
// rows, C = max ‖c − c₀‖ and O = max |bias|, the score error bound is
//
//   E = (d + 5) u (M C + O)      d roundings of sums up to M C + O; roundings of c − c₀, of the bias, of x − mean and
//                                of the threshold (place_constants has one more, for iteration_fma_d4.cuh)
//
// As in assign/small_k.cuh, candidates have scores above the best score minus 2 E, one bit each. One candidate
// certifies the label. For rows with several candidates, float64 distances to the candidates are compared. The nearest
// candidate becomes the label; of equally near candidates, the one with the lowest index. So labels are the float64
// arg-min. Centers are scaled by the square of a power of two, as if this power scaled both x and c. Then M is about
// 2¹⁰, and no score underflows. If a center is so far away that scores could overflow, the threshold is NaN, and
// float64 distances label every row.
//
// If the mean is small compared with the data, the biases include the term −mean·(c − c₀), and x is not centered. (M
// then bounds ‖x‖ without subtraction of the mean.) Queued rows are always centered before they are rescored or added.
//
// Why it is fast: it copies X to shared memory once, without registers, and writes only labels that change. Centers are
// constant-memory operands in uniform registers, so no score waits for shared memory. M bounds all rows, so no row norm
// is computed. For k ≤ 16, one instruction compares three scores as integers to find the best score. (The best score is
// not negative, since the score of c₀ is zero.) Lane instructions per row, as compiled for sm_90a, for d = 16, k = 16
// and two rows per lane:
//
//   scores        d (k − 1) multiply-adds                          240
//                 loads of centers to uniform registers, per row    77
//   maximum       k / 2, at half rate                                8
//   threshold                                                        2
//   candidates    2 k multiply-adds: a mask in a float's mantissa   32
//   other         copies, loads, one comparison, the tile's loop    36
//   in all                                                         395
//
// At 34·10¹² lane instructions per second, 50M rows take 0.58 ms; reading these rows takes 0.73 ms. Subtracting a large
// mean adds d instructions per row. A tile with rows to queue costs about 65 warp instructions more. It costs 45 more
// for each further row to queue of the same lane. Processing 32 queued rows takes 215 warp instructions.
#pragma once
#include "apps/kmeans/small_d/scores_fma.cuh"
#include "apps/kmeans/small_d/replicated_sums.cuh"
#include "apps/kmeans/small_d/tile_pipeline.cuh"

namespace kmeans {

// A queued row. The first word is its index. The second word has `found` (scores_fma.cuh) in its low bits, and the
// row's label from bit kLabelBit on.
using Waiting = simt::Vector<unsigned, 2>;
constexpr int kLabelBit = 24;

// Labels all rows and updates the sums (head of this file). kClusters: k rounded up to a multiple of four. kShifts: the
// mean is subtracted from rows before they are scored. kMostAdded: maximum number of rows that a block adds between two
// flushes, so that sums of limbs do not overflow 32 bits.
template <typename T, int kFeatures, int kClusters, int kRows, bool kShifts, int kReplicas, int kStages, int kThreads,
          int kBlocks, int kMostAdded = 32768>
__global__ void __launch_bounds__(kThreads, kBlocks)
    assign_rows(const T* X, const float* centers, int k, long long n, Label* labels, unsigned long long* sums,
                unsigned* n_reassigned, const int* stopped) {
  static_assert(kFeatures <= kMostFeatures && kClusters <= kMostSmallK && kFeatures * kClusters <= kMostElements);
  constexpr int kWarps = kThreads / 32, kTile = 32 * kRows;
  using Pipeline = TilePipeline<T, kFeatures, kTile, kStages, 16, true>;
  using Sums = ReplicatedSums<kFeatures, kReplicas>;
  if (*stopped) return;
  unsigned char* shared = simt::dynamic_shared<unsigned char>();
  Pipeline pipeline(X, labels, n, shared);
  const unsigned together = gridDim.x * kWarps * kTile, begin = (blockIdx.x * kWarps + threadIdx.x / 32) * kTile;
  pipeline.ask_first(begin, together);
  Queue<Waiting, 32, true> queue(shared + kWarps * Pipeline::kBytes);
  const Sums here(sums, reinterpret_cast<unsigned*>(shared + kWarps * (Pipeline::kBytes + queue.kBytes)), k);
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
  each_tile<kTile, kWarps, Sums::template tiles<kWarps, kRows, kMostAdded>()>(
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
        // Bit r is set if row r of this lane is to be queued. Bits past the last row are zero.
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
        // In the first iteration, all rows of the tile would be queued. If all of them are certified, they are added to
        // the sums without the queue.
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
        // Usually a lane has at most one row to queue, so add_while needs one iteration.
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
  here.finish(lane, changed, n_reassigned);
}

}  // namespace kmeans
