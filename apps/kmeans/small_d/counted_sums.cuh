// Float64 rescoring of a warp's ambiguous rows, and updates of the cluster sums with a count of the rows added. The
// small-d iterations by tensor cores use both (iteration_mma.cuh, iteration_bounded.cuh).
#pragma once
#include "apps/kmeans/data/labels.cuh"
#include "apps/kmeans/small_d/bank_free_sums.cuh"

namespace kmeans {

// Rescores up to 32 ambiguous rows in float64, by a warp. Writes the labels of reassigned rows, and appends these rows
// to the queue `leaving`.
template <typename T, int kFeatures, typename Leaving>
__device__ __forceinline__ void rescore_rows(const T* X, const float* mean, const float* centers, int k,
                                             const AmbiguousRow* items, int count, Label* labels, Leaving& leaving) {
  using Sums = ColumnSums<T, kFeatures>;
  const int lane = threadIdx.x % 32;
  const bool cooperative = count < 32;
  if (cooperative) CooperativeRescore<T, kFeatures>::rescore(X, mean, centers, k, shared_place(items), count);
  Moving one;
  bool reassigned = false;
  if (lane < count) {
    const AmbiguousRow entry = items[lane];
    const T* row = X + (long long)entry.row * kFeatures;
    const int to =
        cooperative ? (int)entry.low : nearest_of_row<kFeatures>(row, mean, centers, k, entry.low, entry.high);
    one = {entry.row, Sums::place(entry.label), Sums::place(to)};
    reassigned = to != entry.label;
    if (reassigned) labels[entry.row] = (Label)to;
  }
  leaving.add(reassigned, one);
}

// The cluster sums of a block, with counts of the rows that this warp adds. kMostAdded: maximum number of rows that the
// block may add between two flushes, so that sums of limbs do not overflow 32 bits. The counters are variables of the
// kernel, because as members they would change the register allocation.
template <typename T, int kFeatures, int kTile, int kWarps, int kMostAdded>
class CountedSums {
 public:
  // kShare: a warp that has added more than kShare rows requests a flush; this is half of kMostAdded / kWarps. kTiles:
  // maximum number of tiles between two calls of `flush`. Besides the rows of these tiles, a warp may add up to 62 rows
  // that were queued before.
  static constexpr int kShare = kMostAdded / kWarps / 2, kTiles = (kShare - 62) / kTile;
  static_assert(kTiles >= 1, "the limbs of one tile would overflow");

  // `changed` counts all rows that this warp adds, and `added` the rows since the last flush.
  __device__ __forceinline__ CountedSums(const ColumnSums<T, kFeatures>& sums, unsigned& changed, unsigned& added)
      : sums_(sums), changed_(changed), added_(added) {}

  // Moves reassigned rows from the sums of their old cluster to those of their new cluster. `from` is X, or a pipeline
  // of which the current tile has the rows.
  template <typename From>
  __device__ __forceinline__ void move(const From& from, const Moving* rows, int count) {
    sums_.move(from, rows, count);
    changed_ += count;
    added_ += count;
  }

  // Flushes the sums if a warp of the block has requested it. All warps of the block must call this at least once every
  // kTiles tiles.
  __device__ __forceinline__ void flush() {
    if (__syncthreads_or(added_ > kShare)) {
      sums_.flush();
      added_ = 0;
    }
  }

  // Flushes the sums for the last time, and adds the number of rows of this warp to `n_reassigned`.
  __device__ __forceinline__ void finish(int lane, unsigned* n_reassigned) {
    sums_.template flush<false>();
    if (lane == 0 && changed_) atomicAdd(n_reassigned, changed_);
  }

 private:
  const ColumnSums<T, kFeatures>& sums_;
  unsigned &changed_, &added_;
};

}  // namespace kmeans
