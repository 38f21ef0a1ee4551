// Tile pipeline: copies tiles of consecutive rows of X, and their labels, to shared memory asynchronously, in a
// multistage pipeline per warp.
//
//   stage 0   rows first … first + kTile − 1 of X, row by row; their labels, a byte each         current tile
//   stage 1   the warp's next tile                                                               copies in flight
//   …
//
//   Swizzle, for example for rows of 64 bytes, which are four units of 16 bytes. Eight lanes read at a time; lane r
//   reads unit u of row r. The swizzle permutes the units of a row, so that the eight units are in different banks:
//
//     row 0, 1    0 1 2 3   0 1 2 3
//     row 2, 3    1 0 3 2   1 0 3 2
//     row 4, 5    2 3 0 1   2 3 0 1
//     row 6, 7    3 2 1 0   3 2 1 0
//
// Why it is fast: each byte is read from L2 once, and copied to shared memory without registers. (If a warp prefetched
// lines to L1 and loaded them later, bytes would be read from L2 twice, and this would limit the kernels.) Warps do not
// wait for each other. Reads of a tile have no bank conflicts.
#pragma once
#include "apps/kmeans/data/labels.cuh"
#include "kernels/ptx/cp_async.cuh"

namespace kmeans {

// The pipeline of a warp. kTogether: number of bytes of a row that one lane, or several adjacent lanes together, read
// at a time; a power of two, at least 16. keeps: if true, terms of addresses are forced into registers (simt::kept).
template <typename T, int kFeatures, int kTile, int kStages, int kTogether, bool keeps = false>
class TilePipeline {
 public:
  static constexpr int kRow = kFeatures * (int)sizeof(T), kTileBytes = kTile * kRow, kStage = kTileBytes + kTile;
  static constexpr int kBytes = kStages * kStage;  // shared memory per warp
  static_assert(kTile % 32 == 0 && kTileBytes % 16 == 0 && kStage % 16 == 0, "a tile is whole units of 16 bytes");

  // `shared` points to kBytes for each warp of the block. There are fewer than 2³² rows.
  __device__ TilePipeline(const T* X, const Label* labels, long long n, void* shared)
      : X_(kept(reinterpret_cast<const unsigned char*>(X) + 16 * (threadIdx.x % 32))),
        labels_(kept(labels + label_byte((int)threadIdx.x % 32))), n_((unsigned)n), lane_(kept((int)threadIdx.x % 32)),
        place_(kept(16 * lane_ ^ swizzle(16 * lane_ / kRow))),
        own_(static_cast<unsigned char*>(shared) + threadIdx.x / 32 * kBytes), asked_(0), now_(kBytes - kStage) {
    if (keeps) own_ = simt::kept_shared(own_);
  }

  // Starts to copy the tile at row `first` to the next stage; past the last row, copies nothing. All lanes call this
  // kStages − 1 times before the first `wait`, and once after each `wait`. The copy overwrites the tile before the
  // current tile.
  __device__ __forceinline__ void ask(unsigned first) {
    copy<true, true>(first, asked_);
    ptx::cp_async_commit();
    asked_ += kStage;
  }

  // Starts to copy the first kStages − 1 tiles of this warp. Its next tile starts `together` rows after a tile.
  __device__ __forceinline__ void ask_first(unsigned first, unsigned together) {
#pragma unroll
    for (int stage = 0; stage + 1 < kStages; ++stage) ask(first + stage * together);
  }

  // Does the same, but copies rows first. Calls `between` while the rows are in flight, and then copies the labels.
  template <typename Between>
  __device__ __forceinline__ void ask_first(unsigned first, unsigned together, Between between) {
#pragma unroll
    for (int stage = 0; stage + 1 < kStages; ++stage) copy<true, false>(first + stage * together, stage * kStage);
    between();
#pragma unroll
    for (int stage = 0; stage + 1 < kStages; ++stage) {
      copy<false, true>(first + stage * together, stage * kStage);
      ptx::cp_async_commit();
    }
    asked_ = (kStages - 1) * kStage;
  }

  // Waits until all lanes have read the current tile and the oldest tile in flight is complete. That tile becomes the
  // current tile.
  __device__ __forceinline__ void wait() {
    ptx::cp_async_wait<kStages - 2>();
    simt::sync_warp();
    asked_ = now_;
    now_ = now_ == kBytes - kStage ? 0 : now_ + kStage;
  }

  // Returns the address of a row of the current tile. Byte i of the row is stored at offset i ^ swizzle(row).
  __device__ __forceinline__ const unsigned char* row(int row) const { return own_ + now_ + row * kRow; }
  __device__ static __forceinline__ int swizzle(unsigned row) {
    return kTurns > 1 ? (int)(row / kBefore % kTurns * kTogether) : 0;
  }

  __device__ __forceinline__ const Label* labels() const {
    return reinterpret_cast<const Label*>(own_ + now_ + kTileBytes);
  }

 private:
  static constexpr int kLine = 128;  // number of bytes that all banks deliver at a time
  // kRows: number of rows that are read at a time. turns(): the number of these rows that would begin in the same bank
  // without a swizzle.
  static constexpr int kRows = kTogether < kLine ? kLine / kTogether : 1;
  static constexpr int turns() {
    int turns = 1;
    while (turns < kRows && kRow % (2 * turns * kTogether) == 0) turns *= 2;
    return kRow % kTogether == 0 ? turns : 1;
  }
  static constexpr int kTurns = turns(), kBefore = kRows / kTurns;
  // kAtATime, kLabelsAtATime: number of bytes of rows and of labels that a warp copies at a time. kSame: true if
  // kAtATime bytes are whole rows, or if there is no swizzle. The swizzle of a row is then the swizzle of the first row
  // of the copy, XORed with the swizzle of this lane's row in the first copy.
  static constexpr int kAtATime = 32 * 16, kLabelsAtATime = 32 * 4;
  static constexpr bool kSame = kTurns == 1 || kAtATime % kRow == 0;

  __device__ static __forceinline__ int kept(int value) { return keeps ? simt::kept(value) : value; }
  template <typename To>
  __device__ static __forceinline__ const To* kept(const To* at) {
    return keeps ? reinterpret_cast<const To*>(simt::kept(reinterpret_cast<unsigned long long>(at))) : at;
  }

  __device__ static __forceinline__ int part(int left, int most) { return left <= 0 ? 0 : left < most ? left : most; }

  // Starts to copy the rows of a tile, its labels, or both, to a stage.
  template <bool kRowsToo, bool kLabelsToo>
  __device__ __forceinline__ void copy(unsigned first, int stage) const {
    if (first < n_ / kTile * kTile) {
      copy<kRowsToo, kLabelsToo>(first, stage, [](int) { return 16; }, [](int) { return 4; });
    } else if (first < n_) {
      const int rows = (int)(n_ - first);
      // Fills the bytes past the last row with zeros.
      copy<kRowsToo, kLabelsToo>(
          first, stage, [rows](int byte) { return part(rows * kRow - byte, 16); },
          [rows](int byte) { return part(rows - byte, 4); });
    }
  }

  // Starts the copies. `of_rows` and `of_labels` return the number of bytes to read at a byte offset of the tile's rows
  // and labels; the other bytes of the copy are filled with zeros.
  template <bool kRowsToo, bool kLabelsToo, typename OfRows, typename OfLabels>
  __device__ __forceinline__ void copy(unsigned first, int stage, OfRows of_rows, OfLabels of_labels) const {
    const unsigned char* from = X_ + (unsigned long long)first * kRow;
    unsigned char* to = own_ + stage;
#pragma unroll
    for (int begin = 0; kRowsToo && begin < kTileBytes; begin += kAtATime) {
      const int byte = begin + 16 * lane_;
      if (begin + kAtATime > kTileBytes && byte >= kTileBytes) break;
      const int read = of_rows(byte);
      // A lane that reads nothing passes any valid address.
      ptx::cp_async<16>(kSame ? to + (place_ ^ swizzle(begin / kRow)) + begin : to + (byte ^ swizzle(byte / kRow)),
                        read > 0 ? from + begin : from - 16 * lane_, read);
    }
#pragma unroll
    for (int begin = 0; kLabelsToo && begin < kTile; begin += kLabelsAtATime) {
      const int own = label_byte(lane_), byte = begin + own, read = of_labels(byte);
      if (begin + kLabelsAtATime <= kTile || begin + 4 * lane_ < kTile) {
        ptx::cp_async<4>(to + kTileBytes + byte, labels_ + first + (read > 0 ? begin : -own), read);
      }
    }
  }

  // In a tile of fewer than 128 labels, some lanes have no label to copy.
  __device__ static __forceinline__ int label_byte(int lane) { return 4 * lane % kTile; }

  // The addresses of the bytes of X and of the labels that this lane copies first for the tile at row 0.
  const unsigned char* const X_;
  const Label* const labels_;
  const unsigned n_;
  const int lane_, place_;  // place_: offset in a stage of the first 16 bytes that this lane copies
  unsigned char* own_;      // the stages of this warp
  int asked_, now_;         // byte offsets of the stage to copy to, and of the current stage
};

}  // namespace kmeans
