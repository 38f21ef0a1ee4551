// A warp's rows that are not done, in shared memory: of whichever of its tiles.
//
// Why it is fast: few rows of a tile are not done, and they take many instructions. They are settled when there is one
// for each lane of a warp.
#pragma once
#include "kernels/device/simt.cuh"

namespace kmeans {

// Between two settlings no more than kTile rows come, or (kTile 0) 32 if all are settled. If `keeps`, registers hold
// what places are computed from (simt::kept).
template <typename Item, int kTile, bool keeps = false>
class Queue {
 public:
  static constexpr int kRoom = kTile + 32, kBytes = kRoom * (int)sizeof(Item);  // of a warp

  __device__ explicit Queue(void* items)
      : items_(static_cast<Item*>(items) + threadIdx.x / 32 * kRoom), below_((1u << threadIdx.x % 32) - 1),
        waiting_(0) {
    if (keeps) items_ = simt::kept_shared(items_), below_ = simt::kept(below_);
  }

  // By all lanes: each adds its item if it is wanted.
  __device__ __forceinline__ void add(bool wanted, const Item& item) {
    const unsigned all = __ballot_sync(simt::every_lane, wanted);
    if (wanted) items_[waiting_ + __popc(all & below_)] = item;
    waiting_ += __popc(all);
  }

  // The same, an item a turn, for as long as any lane's `wanted` is not zero: `fill` writes one and changes it. `all`
  // are the lanes that begin with one. Whenever 32 wait they are settled.
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

  // Calls `settle` of up to 32 items and their number, by all lanes, if `least` of them wait, and tells whether they
  // did. It may write where the items are.
  template <typename Settle>
  __device__ __forceinline__ bool take(unsigned least, Settle settle) {
    if (waiting_ < least) return false;
    const unsigned taken = waiting_ < 32 ? waiting_ : 32;
    waiting_ -= taken;
    __syncwarp();
    settle(items_ + waiting_, (int)taken);
    __syncwarp();  // what was there has been read
    return true;
  }

  // Likewise, until fewer wait.
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
