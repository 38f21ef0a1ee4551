// Small-d Lloyd iteration with Hamerly bounds (bounds/state.cuh), in one launch. Computes labels and row bounds of the
// active rows, or of all rows, and updates the cluster sums.
//
//   list (or none)  →  rows, in a pipeline of each warp (gather_pipeline.cuh)  →  scores and gaps (scores_mma.cuh)
//                   →  labels, row bounds, sums
//
// In a pass without bounds, iteration_mma.cuh or iteration_fma.cuh labels all rows instead. A kernel returns at once if
// its pass is not selected. All passes give the same labels, because float64 rescoring labels ambiguous rows. Ambiguous
// rows are active again in the next iteration.
//
// Why it is fast: if few rows are active, it reads only these. Rows of 64 bytes and more are whole cache lines or
// halves of a line. Selecting active rows reads the bound (four bytes) and the label of each row. As opposed to
// iteration_mma.cuh, all reassigned rows are queued and read again from X, since they are few.
#pragma once
#include "apps/kmeans/small_d/counted_sums.cuh"
#include "apps/kmeans/small_d/gather_pipeline.cuh"
#include "apps/kmeans/small_d/scores_mma.cuh"
#include "kernels/ptx/cp_async.cuh"
#include "kernels/ptx/dependent_launch.cuh"

namespace kmeans {

// Row bounds, the drift so far (`limits`), and the list of active rows; see bounds/state.cuh.
struct RowBounds {
  float* row_bounds;    // one per row
  const float* limits;  // one per cluster
  const unsigned* active;
  const BoundsState* state;
};

// Labels the active rows or all rows (head of this file). kColumns: number of blocks of eight centers. kKept: centers
// are in registers. kMostAdded: maximum number of rows that a block adds between two flushes of its sums.
template <typename T, int kFeatures, int kColumns, bool kKept, int kStages, int kThreads, int kMostAdded = 32768>
__global__ void __launch_bounds__(kThreads, 1)
    assign_bounded(const T* X, const float* centers, int k, long long n, const Products of, const RowBounds bounds,
                   Label* labels, unsigned long long* sums, unsigned* n_reassigned, const int* stopped) {
  ptx::griddepcontrol_wait();
  const int pass = bounds.state->pass;
  if (*stopped || (pass != kWithBounds && pass != kActive)) return;
  const Numbered rows =
      pass == kWithBounds ? Numbered{nullptr, (unsigned)n} : Numbered{bounds.active, bounds.state->active};
  constexpr int kWarps = kThreads / 32, kTile = 32;
  using Scores = WarpScores<T, kFeatures, kColumns, kKept>;
  using Pipeline = GatherPipeline<T, kFeatures, kStages, Scores::kReadTogether>;
  using Sums = ColumnSums<T, kFeatures>;
  using Counted = CountedSums<T, kFeatures, kTile, kWarps, kMostAdded>;
  // Without active rows, the pipeline would have no valid row to copy.
  if (rows.count == 0) return;
  unsigned char* shared = simt::dynamic_shared<unsigned char>();
  Pipeline pipeline(X, labels, rows, shared);
  shared += kWarps * Pipeline::kBytes;
  const unsigned together = gridDim.x * kThreads;
  pipeline.ask_first(blockIdx.x * kThreads + threadIdx.x / 32 * 32, together);
  const Scores scores(of, centers, k, shared);
  shared += Scores::kBytes;
  const Sums here(sums, shared, 8 * kColumns, k, of.mean, of.scales);
  shared += Sums::bytes(8 * kColumns);
  Queue<AmbiguousRow, kTile> doubtful(shared);
  Queue<Moving, 3 * kTile> leaving(shared + kWarps * doubtful.kBytes);
  __syncthreads();
  const int lane = threadIdx.x % 32;
  const unsigned mine = 8 * (lane % 4) + lane / 4;
  unsigned changed = 0, added = 0;
  Counted counted(here, changed, added);
  const auto rescore = [&](const AmbiguousRow* items, int count) {
    rescore_rows<T, kFeatures>(X, of.mean, centers, k, items, count, labels, leaving);
  };
  const auto flush = [&] { counted.flush(); };
  each_tile<kTile, kWarps, Counted::kTiles>(rows.count, flush, [&](unsigned first) {
    pipeline.wait();
    pipeline.ask(first + (kStages - 1) * together, together);
    const bool present = mine < rows.count - first;
    const unsigned row = pipeline.number(mine);
    const int label = pipeline.label(mine);
    unsigned bits[4];
    const float gap = scores.find_gap(pipeline, bits);
    const Candidates found = candidates_of_own_row(bits);
    const bool certain = __popc(found.low) + __popc(found.high) == 1;
    const int to = certain ? first_center(found.low, found.high) : label;
    if (present) bounds.row_bounds[row] = certain ? row_bound_of(gap, bounds.limits[to]) : -kInfinity;
    const bool reassigned = present & (to != label);
    if (reassigned) labels[row] = (Label)to;
    leaving.add(reassigned, {row, here.place(label), here.place(to)});
    doubtful.add(present & !certain, {row, label, found.low, found.high});
    // A warp's last tile drains the queues.
    const bool more = rows.count - first > together;
    doubtful.drain(more ? 32 : 1, rescore);
    leaving.drain(more ? 32 : 1, [&](const Moving* moving, int count) { counted.move(X, moving, count); });
  });
  ptx::cp_async_wait<0>();
  counted.finish(lane, n_reassigned);
}

}  // namespace kmeans
