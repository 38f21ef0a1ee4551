// Multistage pipeline that copies half-precision rows to shared memory, for pruned k-means++ (plusplus_pruned.cuh).
//
//   a *unit*: 16 rows and 32 columns of the half-precision copy
//
//                 columns 0 … 7   8 … 15   16 … 23   24 … 31    a lane (g, t) = (lane / 4, lane % 4) copies 8 columns
//                     t=0          t=1       t=2       t=3      of rows g and g + 8 to shared memory. An mma takes the
//     rows g          ███          ███       ███       ███      first four for columns 2·t, 2·t + 1, 2·t + 8, 2·t + 9,
//     rows g + 8      ███          ███       ███       ███      the next mma the others; candidates alike
//
// A pipeline stage is four units. For a row-major copy, they are side by side and cover 128 columns. For a copy in
// panels, they are one below another and cover 64 rows.
//
// Why it is fast: a warp copies the 4 KB of a stage in whole cache lines. If each lane copied the elements that it
// reads, a copy in panels would take 16 bytes of each of four lines at a time, and a step 1.7 times as long. Elements
// that the lanes read together are in different banks.
#pragma once
#include "kernels/ptx/cp_async.cuh"
#include "kernels/ptx/types.cuh"
#include "kernels/device/simt.cuh"
#include "kernels/device/warp_stages.cuh"
#include "kernels/tsm2/core_matrix_layout.cuh"

namespace kmeans {

// The half-precision copy of X, `padded` elements per row, and the norms of its rows. `scale` is s, and `error` is 2 ρ
// + γ plus the rounding errors of the kernel (symbols: see the head of plusplus_pruned.cuh). `of_distance` is 1 plus
// the relative error by which a computed squared distance may be too small.
struct Copy {
  const ptx::Half* rows;
  const float* norms;
  int padded;
  float scale, error, of_distance;

  template <bool kPanels>
  __device__ __forceinline__ const ptx::Half* at(long long row, int column) const {
    if (!kPanels) return rows + row * padded + column;
    return rows + tsm2::panel_offset(row, column, padded / tsm2::kPanelDepth, tsm2::kPanelRows);
  }
};

// The partition of X into `number` chunks of `size` consecutive rows, and the chunks that this warp processes. Adjacent
// chunks belong to different blocks, so that the last few chunks are spread over all blocks.
struct Chunks {
  long long rows;
  int size, number;

  __device__ __forceinline__ long long first() const { return blockIdx.x + (long long)(threadIdx.x / 32) * gridDim.x; }
  __device__ __forceinline__ long long next(long long chunk) const {
    return chunk + (long long)(blockDim.x / 32) * gridDim.x;
  }
  __device__ __forceinline__ long long begin(long long chunk) const { return chunk * size; }
  // The number of rows of a chunk: 0 past the last chunk.
  __device__ __forceinline__ int count(long long chunk) const {
    const long long left = rows - begin(chunk);
    return chunk >= number || left <= 0 ? 0 : left < size ? (int)left : size;
  }
};

// Copies the tiles of a warp, one stage of four units at a time. A tile is kTile rows with all their columns. The stage
// with a tile's last columns also holds the norm, the D² (`closest`) and the weight of each row of the tile.
template <typename T, bool kPanels, bool kWeighted, int kStages>
class PrunedPipeline {
 public:
  // kUnits: number of units per stage. kHeight: number of units of a stage that are one below another.
  static constexpr int kUnits = 4, kHeight = kPanels ? kUnits : 1;
  static constexpr int kTile = 16 * kHeight, kColumns = 32 * kUnits / kHeight;
  static constexpr int kOfRows = kTile * kColumns * (int)sizeof(ptx::Half), kOfNorms = kTile * (int)sizeof(float);
  static constexpr int kOfNear = kTile * (int)sizeof(T), kStage = kOfRows + kOfNorms + (kWeighted ? 2 : 1) * kOfNear;
  static constexpr int kBytes = kStages * kStage;  // shared memory per warp

  __device__ PrunedPipeline(void* shared) : stages_(shared) {}

  // Starts to copy the first kStages − 1 stages of a warp's chunks.
  __device__ __forceinline__ void start(const Chunks& chunks, const Copy& copy, const T* closest, const T* weights) {
    row_ = column_ = 0;
    chunk_ = chunks.first();
    count_ = chunks.count(chunk_);
#pragma unroll
    for (int stage = 0; stage + 1 < kStages; ++stage) ask(chunks, copy, closest, weights);
  }

  // Starts to copy the next stage: the next columns of the tile, or the first columns of the next tile. Past the last
  // chunk, copies nothing.
  __device__ __forceinline__ void ask(const Chunks& chunks, const Copy& copy, const T* closest, const T* weights) {
    if (count_ > 0) {
      const long long begin = chunks.begin(chunk_);
      unsigned char* to = stages_.own + stages_.asked;
      const int lane = simt::lane(), last = count_ - 1;
#pragma unroll
      for (int i = 0; i < kOfRows / 512; ++i) {
        if constexpr (kPanels) {
          // The rows of a tile are contiguous in each of the two panels, since panels hold whole tiles. `unit` reads
          // from the same offset in shared memory.
          const int panel = i / 4;
          if (column_ + 16 * panel < copy.padded) {
            const int place = 16 * (32 * i + (lane ^ 2 * (2 * panel + lane / 8 % 2)));
            ptx::cp_async<16>(to + place, copy.at<true>(begin + row_, column_) + 8 * (32 * i + lane));
          }
        } else {
          const int row = row_ + 2 * i + lane / 16, column = column_ + 8 * (lane % 16);
          if (column < copy.padded) {
            const int place = 16 * (32 * i + (lane ^ 4 * (lane / 16)));
            ptx::cp_async<16>(to + place, copy.at<false>(begin + (row < last ? row : last), column));
          }
        }
      }
      column_ += kColumns;
      if (column_ >= copy.padded) {
        for (int i = lane; i < kTile; i += 32) {
          const long long row = begin + (row_ + i < last ? row_ + i : last);
          ptx::cp_async<4>(to + kOfRows + 4 * i, copy.norms + row);
          ptx::cp_async<sizeof(T)>(to + kOfRows + kOfNorms + sizeof(T) * i, closest + row);
          if (kWeighted) ptx::cp_async<sizeof(T)>(to + kOfRows + kOfNorms + kOfNear + sizeof(T) * i, weights + row);
        }
        column_ = 0;
        row_ += kTile;
        if (row_ >= count_) {
          row_ = 0;
          chunk_ = chunks.next(chunk_);
          count_ = chunks.count(chunk_);
        }
      }
    }
    stages_.commit();
  }

  // Waits until all lanes have read the current stage and the oldest stage in flight is complete. That stage becomes
  // the current stage.
  __device__ __forceinline__ void wait() { stages_.wait(); }

  // Returns this lane's eight columns of row g + 8·half of unit u of the current stage, as words.
  __device__ __forceinline__ uint4 columns(int u, int half) const {
    return *reinterpret_cast<const uint4*>(stages_.own + stages_.now + unit(u, half));
  }
  __device__ __forceinline__ float norm(int row) const { return of_rows<float>(0)[row]; }
  __device__ __forceinline__ T near(int row) const { return of_rows<T>(kOfNorms)[row]; }
  __device__ __forceinline__ T weight(int row) const { return kWeighted ? of_rows<T>(kOfNorms + kOfNear)[row] : T(1); }

 private:
  // Returns the swizzled byte offset in a stage of this lane's eight columns of row g + 8·half of unit u. Row-major: a
  // row of four units is 256 bytes. Panels: eight rows of eight columns are 128 bytes. The XOR with the row or column
  // spreads the reads of eight lanes, which read together, over all banks.
  static __device__ __forceinline__ int unit(int u, int half) {
    const int g = simt::lane() / 4, t = simt::lane() % 4;
    if (kPanels) return 2048 * (t / 2) + 256 * (2 * u + half) + 128 * (t % 2) + 16 * (g ^ 2 * t);
    return 256 * (g + 8 * half) + 16 * ((4 * u + t) ^ 4 * (g % 2));
  }
  template <typename Any>
  __device__ __forceinline__ const Any* of_rows(int place) const {
    return reinterpret_cast<const Any*>(stages_.own + stages_.now + kOfRows + place);
  }

  simt::WarpStages<kStages, kStage> stages_;
  // The next copy: chunk `chunk_`, which has `count_` rows, from row `row_` and column `column_` on.
  long long chunk_;
  int count_, row_, column_;
};

}  // namespace kmeans
