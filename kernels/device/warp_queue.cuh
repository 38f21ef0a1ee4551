// Warp queue: a queue in shared memory of the rows that need more work, collected from all tiles of a warp.
//
// Why it is fast: only a few rows of a tile need the extra, expensive work. The warp collects these rows from several
// tiles and processes 32 rows at once, one per lane.
#pragma once
#include "kernels/device/simt.cuh"

namespace kmeans {

// The queue of a warp has space for kTile + 32 items. One call of `add` adds up to 32 items, one per lane. At most
// kTile items may be added between two calls of drain(32). With kTile = 0, the queue must be empty before each `add`.
// add_while requires kTile ≥ 32. If `keeps` is true, the address of the queue and the lane mask are forced into
// registers (simt::kept).
template <typename Item, int kTile, bool keeps = false>
class Queue {
 public:
  static constexpr int kRoom = kTile + 32, kBytes = kRoom * (int)sizeof(Item);  // capacity of a warp's queue

  __device__ explicit Queue(void* items)
      : items_(static_cast<Item*>(items) + threadIdx.x / 32 * kRoom), below_((1u << threadIdx.x % 32) - 1),
        waiting_(0) {
    if (keeps) items_ = simt::kept_shared(items_), below_ = simt::kept(below_);
  }

  // Adds the `item` of each lane whose `wanted` is true. All lanes of the warp call it.
  __device__ __forceinline__ void add(bool wanted, const Item& item) {
    const unsigned all = __ballot_sync(simt::every_lane, wanted);
    if (wanted) items_[waiting_ + __popc(all & below_)] = item;
    waiting_ += __popc(all);
  }

  // Adds items as long as any lane's `wanted` is nonzero. In each iteration, every lane with a nonzero `wanted` adds
  // one item: `fill` writes the item and updates `wanted`. `all` is the mask of lanes with a nonzero `wanted` at the
  // call. Whenever the queue holds at least 32 items, `settle` processes 32 of them (see `take`).
  template <typename Fill, typename Settle>
  __device__ __forceinline__ void add_while(unsigned all, const unsigned& wanted, Fill fill, Settle settle) {
#pragma unroll 1
    while (all != 0) {
      if (wanted != 0) fill(items_[waiting_ + __popc(all & below_)]);
      waiting_ += __popc(all);
      take(32, settle);
      all = __ballot_sync(simt::every_lane, wanted != 0);
    }
  }

  // If the queue holds at least `least` items, removes up to 32 of them and calls `settle(items, count)` in all lanes.
  // `settle` may overwrite the items. Returns true if `settle` was called.
  template <typename Settle>
  __device__ __forceinline__ bool take(unsigned least, Settle settle) {
    if (waiting_ < least) return false;
    const unsigned taken = waiting_ < 32 ? waiting_ : 32;
    waiting_ -= taken;
    __syncwarp();
    settle(items_ + waiting_, (int)taken);
    __syncwarp();  // all lanes have read the items
    return true;
  }

  // Repeats `take` until the queue holds fewer than `least` items.
  template <typename Settle>
  __device__ __forceinline__ void drain(unsigned least, Settle settle) {
    while (take(least, settle)) {
    }
  }

 private:
  Item* items_;
  unsigned below_;  // mask of the lanes below this lane
  unsigned waiting_;
};

}  // namespace kmeans
