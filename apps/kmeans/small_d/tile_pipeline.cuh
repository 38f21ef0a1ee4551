// The tiles of X and of its labels that a warp is about to compute, on their way to shared memory: a ring of its own.
//
//   stage 0   rows first … first + kTile − 1 of X as they lie, row by row; their labels, a byte each     computed now
//   stage 1   the warp's next tile                                                                       on its way
//   …
//
//   a row of 64 bytes, whose four units of 16 are read by one lane, of which eight take turns with others:
//
//     row 0, 1    0 1 2 3   0 1 2 3       lane r reads unit u of row r: where the units of rows 2, 3 change places with
//     row 2, 3    1 0 3 2   1 0 3 2       their neighbours', and so on, eight lanes read eight units of 128 bytes'
//                 banks
//     row 4, 5    2 3 0 1   2 3 0 1
//
// Why it is fast: a byte goes through the level-2 cache once (asking for lines early and loading them later goes twice,
// and was what bounded these kernels), and through no register on its way; no warp waits for another; and whoever reads
// the rows, in whatever order, finds no two lanes at one bank.
#pragma once
#include "apps/kmeans/data/labels.cuh"
#include "kernels/ptx/cp_async.cuh"

namespace kmeans {

// `kTogether` bytes of a row, a power of two from 16 on, are read by lanes that are neighbours, or by one, at a time.
// If `keeps`, registers hold what places are computed from (simt::kept).
template <typename T, int kFeatures, int kTile, int kStages, int kTogether, bool keeps = false>
class TilePipeline {
 public:
  static constexpr int kRow = kFeatures * (int)sizeof(T), kTileBytes = kTile * kRow, kStage = kTileBytes + kTile;
  static constexpr int kBytes = kStages * kStage;  // of a warp
  static_assert(kTile % 32 == 0 && kTileBytes % 16 == 0 && kStage % 16 == 0, "a tile is whole units of 16 bytes");

  // `shared` is the block's, for all of its warps. There are fewer than 2³² rows.
  __device__ TilePipeline(const T* X, const Label* labels, long long n, void* shared)
      : X_(kept(reinterpret_cast<const unsigned char*>(X) + 16 * (threadIdx.x % 32))),
        labels_(kept(labels + label_byte((int)threadIdx.x % 32))), n_((unsigned)n), lane_(kept((int)threadIdx.x % 32)),
        place_(kept(16 * lane_ ^ swizzle(16 * lane_ / kRow))),
        own_(static_cast<unsigned char*>(shared) + threadIdx.x / 32 * kBytes), asked_(0), now_(kBytes - kStage) {
    if (keeps) own_ = simt::kept_shared(own_);
  }

  // Begins to copy the tile whose first row is `first`, or nothing if that is past the end; by all lanes. Before the
  // first wait kStages − 1 times, then once after each: what the stage had before has then been read.
  __device__ __forceinline__ void ask(unsigned first) {
    copy<true, true>(first, asked_);
    ptx::cp_async_commit();
    asked_ += kStage;
  }

  // Asks for the first tiles, each `together` rows behind the one before; `between` is called while rows are on their
  // way, and before labels are read.
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

  // Waits for the tile that was asked for kStages − 1 times ago, for all lanes to read; and the last one has been read
  // by all.
  __device__ __forceinline__ void wait() {
    ptx::cp_async_wait<kStages - 2>();
    simt::sync_warp();
    asked_ = now_;
    now_ = now_ == kBytes - kStage ? 0 : now_ + kStage;
  }

  // Of the tile that was waited for: a row, and what to combine, by exclusive or, with a byte's place in it.
  __device__ __forceinline__ const unsigned char* row(int row) const { return own_ + now_ + row * kRow; }
  __device__ static __forceinline__ int swizzle(unsigned row) {
    return kTurns > 1 ? (int)(row / kBefore % kTurns * kTogether) : 0;
  }

  __device__ __forceinline__ const Label* labels() const {
    return reinterpret_cast<const Label*>(own_ + now_ + kTileBytes);
  }

 private:
  static constexpr int kLine = 128;  // bytes that all banks have
  // Rows that are read at a time, and how many of them would begin at the same bank.
  static constexpr int kRows = kTogether < kLine ? kLine / kTogether : 1;
  static constexpr int turns() {
    int turns = 1;
    while (turns < kRows && kRow % (2 * turns * kTogether) == 0) turns *= 2;
    return kRow % kTogether == 0 ? turns : 1;
  }
  static constexpr int kTurns = turns(), kBefore = kRows / kTurns;
  // What a warp copies at a time, and whether that is whole rows: which are so many a power of two, and then what a
  // place is combined with is that of the first one's row and of the lane's among them.
  static constexpr int kAtATime = 32 * 16, kLabelsAtATime = 32 * 4;
  static constexpr bool kSame = kTurns == 1 || kAtATime % kRow == 0;

  __device__ static __forceinline__ int kept(int value) { return keeps ? simt::kept(value) : value; }
  template <typename To>
  __device__ static __forceinline__ const To* kept(const To* at) {
    return keeps ? reinterpret_cast<const To*>(simt::kept(reinterpret_cast<unsigned long long>(at))) : at;
  }

  __device__ static __forceinline__ int part(int left, int most) { return left <= 0 ? 0 : left < most ? left : most; }

  // Rows, labels or both of a tile to a stage.
  template <bool kRowsToo, bool kLabelsToo>
  __device__ __forceinline__ void copy(unsigned first, int stage) const {
    if (first < n_ / kTile * kTile) {
      copy<kRowsToo, kLabelsToo>(first, stage, [](int) { return 16; }, [](int) { return 4; });
    } else if (first < n_) {
      const int rows = (int)(n_ - first);
      // Zeros for the rest.
      copy<kRowsToo, kLabelsToo>(
          first, stage, [rows](int byte) { return part(rows * kRow - byte, 16); },
          [rows](int byte) { return part(rows - byte, 4); });
    }
  }

  // `of_rows` and `of_labels` say how much of some bytes there is.
  template <bool kRowsToo, bool kLabelsToo, typename OfRows, typename OfLabels>
  __device__ __forceinline__ void copy(unsigned first, int stage, OfRows of_rows, OfLabels of_labels) const {
    const unsigned char* from = X_ + (unsigned long long)first * kRow;
    unsigned char* to = own_ + stage;
#pragma unroll
    for (int begin = 0; kRowsToo && begin < kTileBytes; begin += kAtATime) {
      const int byte = begin + 16 * lane_;
      if (begin + kAtATime > kTileBytes && byte >= kTileBytes) break;
      const int read = of_rows(byte);
      // Of a lane that reads nothing, the address is any of the tile.
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

  // Of a tile of fewer than 128 labels, not every lane has some.
  __device__ static __forceinline__ int label_byte(int lane) { return 4 * lane % kTile; }

  const unsigned char* const X_;  // of this lane's units, and labels
  const Label* const labels_;
  const unsigned n_;
  const int lane_, place_;  // where the first unit that a lane copies goes to
  unsigned char* own_;
  int asked_, now_;  // bytes to stages
};

}  // namespace kmeans
