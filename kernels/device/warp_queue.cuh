// Warp queue: unfinished rows of a warp, from any of its tiles, collected in shared memory.
//
// Why it is fast: only a few rows of a tile need the extra, expensive work. The warp collects such rows and processes
// 32 of them at once, one per lane.
#pragma once
#include "kernels/device/simt.cuh"

namespace kmeans {

// At most kTile rows are added between two calls that process the queue; with kTile 0, add_while processes 32 at a
// time. `keeps` holds the address operands in registers (simt::kept).
template <typename Item, int kTile, bool keeps = false>
class Queue {
 public:
  static constexpr int kRoom = kTile + 32, kBytes = kRoom * (int)sizeof(Item);  // per warp

  __device__ explicit Queue(void* items)
      : items_(static_cast<Item*>(items) + threadIdx.x / 32 * kRoom), below_((1u << threadIdx.x % 32) - 1),
        waiting_(0) {
    if (keeps) items_ = simt::kept_shared(items_), below_ = simt::kept(below_);
  }

  // Adds the item of each lane with `wanted`. All lanes call it.
  __device__ __forceinline__ void add(bool wanted, const Item& item) {
    const unsigned all = __ballot_sync(simt::every_lane, wanted);
    if (wanted) items_[waiting_ + __popc(all & below_)] = item;
    waiting_ += __popc(all);
  }

  // Adds one item per lane and iteration, as long as any lane's `wanted` is nonzero: `fill` writes an item and updates
  // `wanted`. `all` is the mask of the lanes that start with an item. Processes the queue whenever it holds 32 items.
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

  // Calls `settle(items, count)` with all lanes for up to 32 items if the queue holds at least `least`, and returns
  // whether it did. `settle` may overwrite the items.
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
  unsigned below_;  // the lanes before this one
  unsigned waiting_;
};

}  // namespace kmeans
