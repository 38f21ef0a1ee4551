// Gather pipeline: copies listed rows of X to shared memory asynchronously, in a multistage pipeline per warp.
// tile_pipeline.cuh does this for consecutive rows.
//
//   stage 0   32 rows, as in tile_pipeline.cuh; their indices; the words that hold their labels   current tile
//   stage 1   the next 32 rows of the warp                                                        copies in flight
//   …
//
// Why it is fast: a row consists of whole units of 16 bytes. Adjacent lanes copy adjacent units, without registers. A
// warp loads the indices of the next rows in advance.
#pragma once
#include "apps/kmeans/data/labels.cuh"
#include "apps/kmeans/small_d/tile_pipeline.cuh"
#include "kernels/device/warp_stages.cuh"
#include "kernels/ptx/cp_async.cuh"

namespace kmeans {

// The indices of the rows to process: `count` entries of a list, or 0 … count − 1.
struct Numbered {
  const unsigned* list;  // null: all rows
  unsigned count;

  // Returns the index in X of entry i; past the end, the index of the last entry.
  __device__ __forceinline__ unsigned at(unsigned i) const {
    const unsigned here = i < count ? i : count - 1;
    return list == nullptr ? here : list[here];
  }
};

// The pipeline of a warp. kTogether: number of bytes of a row that adjacent lanes read together (TilePipeline). The
// array of labels is padded to whole 32-bit words.
template <typename T, int kFeatures, int kStages, int kTogether>
class GatherPipeline {
 public:
  static constexpr int kTile = 32, kRow = kFeatures * (int)sizeof(T), kUnits = kRow / 16;
  static constexpr int kStage = kTile * (kRow + 8), kBytes = kStages * kStage;  // bytes per stage, and per warp
  static_assert(kRow % 16 == 0, "a row is whole units of 16 bytes");

  // `shared` points to kBytes for each warp of the block.
  __device__ GatherPipeline(const T* X, const Label* labels, const Numbered& rows, void* shared)
      : X_(reinterpret_cast<const unsigned char*>(X)), labels_(labels), rows_(rows), stages_(shared) {}

  // Starts to copy the first kStages − 1 tiles of this warp. The next tile of a warp starts `together` list entries
  // after a tile.
  __device__ __forceinline__ void ask_first(unsigned first, unsigned together) {
    soon_ = rows_.at(first + threadIdx.x % 32);
    for (int stage = 0; stage + 1 < kStages; ++stage) ask(first + stage * together, together);
  }

  // Starts to copy the 32 rows from entry `first` of the list on; past the end, copies nothing. All lanes call this. In
  // the next call, `first` must be larger by `together`.
  __device__ __forceinline__ void ask(unsigned first, unsigned together) {
    const int lane = threadIdx.x % 32;
    const unsigned row = soon_;
    soon_ = rows_.at(first + together + lane);
    if (first < rows_.count) {
      unsigned char* to = stages_.own + stages_.asked;
#pragma unroll
      for (int i = 0; i < kUnits; ++i) {
        const int unit = 32 * i + lane, of = unit / kUnits, byte = unit % kUnits * 16;
        const unsigned from = simt::shuffle(row, of);
        ptx::cp_async<16>(to + of * kRow + (byte ^ swizzle(of)), X_ + (unsigned long long)from * kRow + byte);
      }
      numbers(stages_.asked)[lane] = row;
      ptx::cp_async<4>(numbers(stages_.asked) + kTile + lane, labels_ + row / 4 * 4);
    }
    stages_.commit();
  }

  // Waits until all lanes have read the current tile and the oldest tile in flight is complete. That tile becomes the
  // current tile.
  __device__ __forceinline__ void wait() { stages_.wait(); }

  // For a row of the current tile: its address, its swizzle (TilePipeline), its index in X (`number`), and its label
  // when it was copied.
  __device__ __forceinline__ const unsigned char* row(int row) const { return stages_.own + stages_.now + row * kRow; }
  __device__ static __forceinline__ int swizzle(unsigned row) { return Tiles::swizzle(row); }
  __device__ __forceinline__ unsigned number(int row) const { return numbers(stages_.now)[row]; }
  __device__ __forceinline__ int label(int row) const {
    return (Label)(numbers(stages_.now)[kTile + row] >> 8 * (number(row) % 4));
  }

 private:
  using Tiles = TilePipeline<T, kFeatures, kTile, kStages, kTogether>;

  // Returns the row indices of a stage. In memory, the words with the labels of these rows follow.
  __device__ __forceinline__ unsigned* numbers(int stage) const {
    return reinterpret_cast<unsigned*>(stages_.own + stage + kTile * kRow);
  }

  const unsigned char* const X_;
  const Label* const labels_;
  const Numbered rows_;
  unsigned soon_ = 0;  // index of this lane's row in the next tile to copy
  simt::WarpStages<kStages, kStage> stages_;
};

}  // namespace kmeans
