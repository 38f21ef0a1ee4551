// Last steps of a tile in the small-d iterations by tensor cores (iteration_mma.cuh, iteration_bounded.cuh): float64
// rescoring of a warp's ambiguous rows, and counted updates of the cluster sums.
#pragma once
#include "apps/kmeans/data/labels.cuh"
#include "apps/kmeans/small_d/bank_free_sums.cuh"

namespace kmeans {

// Rescores up to 32 ambiguous rows in float64, by a warp. Appends reassigned rows to the queue `leaving`.
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

// The cluster sums of a block, with a count of the rows that this warp adds. Limbs of up to kMostAdded rows add up
// within 32 bits. The counters are variables of the kernel, because as members they would change the register
// allocation.
template <typename T, int kFeatures, int kTile, int kWarps, int kMostAdded>
class CountedSums {
 public:
  // kShare: a warp requests a flush after more additions than this, which is half of kMostAdded / kWarps. kTiles:
  // maximum number of tiles between two calls of `flush`. At most 62 rows of a warp are queued besides.
  static constexpr int kShare = kMostAdded / kWarps / 2, kTiles = (kShare - 62) / kTile;
  static_assert(kTiles >= 1, "the limbs of one tile would overflow");

  // `changed` counts all rows, `added` those since the last flush.
  __device__ __forceinline__ CountedSums(const ColumnSums<T, kFeatures>& sums, unsigned& changed, unsigned& added)
      : sums_(sums), changed_(changed), added_(added) {}

  // Adds reassigned rows of X, or of a pipeline's tile, to one cluster and subtracts them from another.
  template <typename From>
  __device__ __forceinline__ void move(const From& from, const Moving* rows, int count) {
    sums_.move(from, rows, count);
    changed_ += count;
    added_ += count;
  }

  // Called by all warps of the block, at least once every kTiles tiles.
  __device__ __forceinline__ void flush() {
    if (__syncthreads_or(added_ > kShare)) {
      sums_.flush();
      added_ = 0;
    }
  }

  // Flushes for the last time and adds the warp's rows to `n_reassigned`.
  __device__ __forceinline__ void finish(int lane, unsigned* n_reassigned) {
    sums_.template flush<false>();
    if (lane == 0 && changed_) atomicAdd(n_reassigned, changed_);
  }

 private:
  const ColumnSums<T, kFeatures>& sums_;
  unsigned &changed_, &added_;
};

}  // namespace kmeans
