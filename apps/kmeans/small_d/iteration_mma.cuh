// Small-d, small-k Lloyd iteration by tensor cores on X, not on a copy, in one launch: labels all rows and updates the
// cluster sums by reassigned rows.
//
//   X (n × d, float32 or 16 bits, row by row)   centers (k × d, float32; update/centers.cuh)   labels (n)
//   sums (k × (d + 1))
//
// tiles      32 rows each, in a multistage pipeline per warp (tile_pipeline.cuh)
// scores     x·c − ‖c‖²/2 plus a constant that makes all scores positive, by mma of each warp (scores_mma.cuh) or
//            by wgmma of warpgroups (scores_wgmma.cuh)
// labels     as in assign/small_k.cuh: candidates from the best score and a score error bound, transposed so that each
//            lane has all candidates of one row
// sums       rows with a new and certain label are added (bank_free_sums.cuh). If a tile has many such rows, they are
//            added at once from the tile in shared memory. Otherwise, they enter a queue of the warp
//            (kernels/device/warp_queue.cuh), from which 32 rows at a time are read from X and added
// rescoring  ambiguous rows enter another queue of the warp and are rescored in float64, 32 at a time
//
// If a center is so far away that scores could overflow, the threshold is NaN, and float64 distances label every row.
//
// Why it is fast: a warp processes a tile while its next tiles are in flight; each byte of X is copied once. It writes
// only labels that change. Scores are not negative, so integer instructions find the best score, comparing three scores
// at a time. A tile with a reassigned row costs 70 warp instructions more. Moving 32 rows of 32 features from one sum
// to another takes about 500 warp instructions.
#pragma once
#include "apps/kmeans/small_d/counted_sums.cuh"
#include "apps/kmeans/small_d/scores_wgmma.cuh"
#include "apps/kmeans/small_d/scores_mma.cuh"
#include "apps/kmeans/small_d/tile_pipeline.cuh"
#include "kernels/ptx/cp_async.cuh"
#include "kernels/ptx/dependent_launch.cuh"

namespace kmeans {

// Minimum number of certified reassigned rows of a tile with which these rows are added at once, from shared memory.
// Fewer rows are queued. The minimum is lower if the sums add only few rows at a time (kTogether).
template <int kTogether>
constexpr int kMany = kTogether <= 2 ? kTogether : 12;

// The instruction that multiplies rows by centers, and the place of the centers. kWarpsKeeping: mma, in registers.
// kWarps: mma, in shared memory. kWarpgroups: wgmma, in shared memory.
enum class Multiplier { kWarpsKeeping, kWarps, kWarpgroups };

template <Multiplier kBy, typename T, int kFeatures, int kColumns>
struct ScoresBy {
  using Type = WarpScores<T, kFeatures, kColumns, kBy == Multiplier::kWarpsKeeping>;
};
template <typename T, int kFeatures, int kColumns>
struct ScoresBy<Multiplier::kWarpgroups, T, kFeatures, kColumns> {
  using Type = WarpgroupScores<T, kFeatures, kColumns>;
};

// Labels all rows and updates the sums (head of this file). kColumns: k / 8, rounded up. kResident: number of resident
// blocks per multiprocessor. kMostAdded: maximum number of rows that a block adds between two flushes, so that sums of
// limbs do not overflow 32 bits.
template <typename T, int kFeatures, int kColumns, int kStages, Multiplier kBy, int kThreads, int kResident,
          int kMostAdded = 32768>
__global__ void __launch_bounds__(kThreads, kResident)
    assign_by_products(const T* X, const float* centers, int k, long long n, const Products of, Label* labels,
                       unsigned long long* sums, unsigned* n_reassigned, const int* stopped) {
  ptx::griddepcontrol_launch_dependents();
  static_assert(kColumns <= 8, "a lane has up to 16 bits of a row");
  constexpr int kWarps = kThreads / 32, kTile = 32;
  using Scores = typename ScoresBy<kBy, T, kFeatures, kColumns>::Type;
  using Pipeline = TilePipeline<T, kFeatures, kTile, kStages, Scores::kReadTogether, Scores::kKeepsPlaces>;
  using Sums = ColumnSums<T, kFeatures>;
  using Counted = CountedSums<T, kFeatures, kTile, kWarps, kMostAdded>;
  unsigned char* shared = simt::dynamic_shared<unsigned char>();
  Pipeline pipeline(X, labels, n, shared);
  shared += kWarps * Pipeline::kBytes;
  // The first tiles load during the end of the previous kernel, which does not write X, and during the preparation of
  // centers.
  const unsigned together = gridDim.x * kThreads, own = blockIdx.x * kThreads + threadIdx.x / 32 * 32;
  pipeline.ask_first(own, together, [] { ptx::griddepcontrol_wait(); });
  const bool stops = *stopped;
  const Scores scores(of, centers, k, shared);
  shared += Scores::kBytes;
  const Sums here(sums, shared, 8 * kColumns, k, of.mean, of.scales);
  shared += Sums::bytes(8 * kColumns);
  // `moving`: many reassigned rows of one tile, added at once. `leaving`: few reassigned rows of a tile, and reassigned
  // rows after rescoring, added 32 at a time. `doubtful`: ambiguous rows, to be rescored.
  Queue<Moving, 0> moving(shared);
  Queue<AmbiguousRow, kTile> doubtful(shared + kWarps * moving.kBytes);
  Queue<Moving, 3 * kTile> leaving(shared + kWarps * (moving.kBytes + doubtful.kBytes));
  if (stops) {
    ptx::cp_async_wait<0>();
    return;
  }
  __syncthreads();
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  unsigned changed = 0, added = 0;
  Counted counted(here, changed, added);
  const auto rescore = [&](const AmbiguousRow* items, int count) {
    rescore_rows<T, kFeatures>(X, of.mean, centers, k, items, count, labels, leaving);
  };
  const auto flush = [&] { counted.flush(); };
  each_tile<kTile, kWarps, Counted::kTiles, Scores::kTogether>((unsigned)n, flush, [&](unsigned first) {
    // The warps of a warpgroup process equally many tiles, so the last tile of a warp may have no rows.
    const unsigned left = Scores::kTogether == 1 || first < (unsigned)n ? (unsigned)n - first : 0;
    pipeline.wait();
    pipeline.ask(first + (kStages - 1) * together);
    const unsigned mine = 8 * t + g;
    const int label = pipeline.labels()[mine];
    unsigned bits[4];
    scores.find(pipeline, bits);
    const Candidates found = candidates_of_own_row(bits);
    const bool waits = !found.is(label) & (mine < left);
    if (__any_sync(simt::every_lane, waits)) {
      const bool certain = __popc(found.low) + __popc(found.high) == 1, reassigned = waits & certain;
      const int to = reassigned ? first_center(found.low, found.high) : 0;
      if (reassigned) labels[first + mine] = (Label)to;
      const unsigned from_place = here.place(label), to_place = here.place(to);
      if (__popc(__ballot_sync(simt::every_lane, reassigned)) >= kMany<Sums::kTogether>) {
        moving.add(reassigned, {mine, from_place, to_place});
      } else {
        leaving.add(reassigned, {first + mine, from_place, to_place});
      }
      doubtful.add(waits & !certain, {first + mine, label, found.low, found.high});
    }
    // A warp's last tile drains the queues.
    const bool more = left > together;
    doubtful.drain(more ? 32 : 1, rescore);
    moving.take(1, [&](const Moving* rows, int count) { counted.move(pipeline, rows, count); });
    leaving.drain(more ? 32 : 1, [&](const Moving* rows, int count) { counted.move(X, rows, count); });
  });
  counted.finish(lane, n_reassigned);
}

}  // namespace kmeans
