// Rows of X by their numbers, wherever they lie, on their way to shared memory: a ring of each warp, as
// tile_pipeline.cuh has of rows that lie one after the other.
//
//   stage 0   32 rows, as in tile_pipeline.cuh; their numbers; the words that their labels are in     computed now
//   stage 1   the warp's next rows                                                                on their way
//   …
//
// Why it is fast: a row is whole units of 16 bytes, which lanes that are neighbours copy side by side, through no
// register; and the numbers of the rows that are asked for next are on their way too.
#pragma once
#include "apps/kmeans/data/labels.cuh"
#include "apps/kmeans/small_d/tile_pipeline.cuh"
#include "kernels/ptx/cp_async.cuh"

namespace kmeans {

// Rows that are numbered by a list, or all rows in their order.
struct Numbered {
  const unsigned* list;  // null: all
  unsigned count;

  // Of no row, the last.
  __device__ __forceinline__ unsigned at(unsigned i) const {
    const unsigned here = i < count ? i : count - 1;
    return list == nullptr ? here : list[here];
  }
};

// `kTogether` as for TilePipeline. Labels are in whole words.
template <typename T, int kFeatures, int kStages, int kTogether>
class GatherPipeline {
 public:
  static constexpr int kTile = 32, kRow = kFeatures * (int)sizeof(T), kUnits = kRow / 16;
  static constexpr int kStage = kTile * (kRow + 8), kBytes = kStages * kStage;  // of a warp
  static_assert(kRow % 16 == 0, "a row is whole units of 16 bytes");

  // `shared` is the block's, for all of its warps.
  __device__ GatherPipeline(const T* X, const Label* labels, const Numbered& rows, void* shared)
      : X_(reinterpret_cast<const unsigned char*>(X)), labels_(labels), rows_(rows),
        own_(static_cast<unsigned char*>(shared) + threadIdx.x / 32 * kBytes) {}

  // Asks for the first tiles, each `together` places of the list behind the one before.
  __device__ __forceinline__ void ask_first(unsigned first, unsigned together) {
    soon_ = rows_.at(first + threadIdx.x % 32);
    for (int stage = 0; stage + 1 < kStages; ++stage) ask(first + stage * together, together);
  }

  // Begins to copy the rows from place `first` of the list on, or none if that is past the end; by all lanes. The next
  // call is for those `together` places behind them.
  __device__ __forceinline__ void ask(unsigned first, unsigned together) {
    const int lane = threadIdx.x % 32;
    const unsigned row = soon_;
    soon_ = rows_.at(first + together + lane);
    if (first < rows_.count) {
      unsigned char* to = own_ + asked_;
#pragma unroll
      for (int i = 0; i < kUnits; ++i) {
        const int unit = 32 * i + lane, of = unit / kUnits, byte = unit % kUnits * 16;
        const unsigned from = simt::shuffle(row, of);
        ptx::cp_async<16>(to + of * kRow + (byte ^ swizzle(of)), X_ + (unsigned long long)from * kRow + byte);
      }
      numbers(asked_)[lane] = row;
      ptx::cp_async<4>(numbers(asked_) + kTile + lane, labels_ + row / 4 * 4);
    }
    ptx::cp_async_commit();
    asked_ = asked_ == kBytes - kStage ? 0 : asked_ + kStage;
  }

  // Waits for the rows that were asked for kStages − 1 times ago, for all lanes to read; and the last ones have been
  // read by all.
  __device__ __forceinline__ void wait() {
    ptx::cp_async_wait<kStages - 2>();
    simt::sync_warp();
    now_ = now_ == kBytes - kStage ? 0 : now_ + kStage;
  }

  // Of the rows that were waited for: one, and what to combine, by exclusive or, with a byte's place in it; its number
  // in X; and its label when it was asked for.
  __device__ __forceinline__ const unsigned char* row(int row) const { return own_ + now_ + row * kRow; }
  __device__ static __forceinline__ int swizzle(unsigned row) { return Tiles::swizzle(row); }
  __device__ __forceinline__ unsigned number(int row) const { return numbers(now_)[row]; }
  __device__ __forceinline__ int label(int row) const {
    return (Label)(numbers(now_)[kTile + row] >> 8 * (number(row) % 4));
  }

 private:
  using Tiles = TilePipeline<T, kFeatures, kTile, kStages, kTogether>;

  __device__ __forceinline__ unsigned* numbers(int stage) const {
    return reinterpret_cast<unsigned*>(own_ + stage + kTile * kRow);
  }

  const unsigned char* const X_;
  const Label* const labels_;
  const Numbered rows_;
  unsigned char* const own_;
  unsigned soon_ = 0;                      // the lane's row of the tile that is asked for next
  int asked_ = 0, now_ = kBytes - kStage;  // bytes to stages
};

}  // namespace kmeans
