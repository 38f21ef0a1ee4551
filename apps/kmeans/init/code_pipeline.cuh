// Multistage pipeline that copies rows of the upper plane (quantized_copy.cuh) to shared memory, for pruned k-means++
// (plusplus_pruned.cuh).
//
//   a stage:   128 columns of 32 rows, 64 bytes per row; the stage with a row's last columns has fewer columns, and the
//              scale, error, norm, D² and weight of each row
//
// Why it is fast: copies of a warp's next rows are in flight while it waits for the planes or for X of ambiguous rows.
// A row's 64 bytes are half of a cache line; the copies make the L2 cache load whole lines, for the next stage too.
// Without that, DRAM gives a tenth less.
#pragma once
#include "kernels/device/warp_stages.cuh"
#include "kernels/ptx/cp_async.cuh"
#include "apps/kmeans/init/quantized_copy.cuh"

namespace kmeans {

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

template <typename T, bool kWeighted, int kStages>
class CodePipeline {
 public:
  // kRows: number of rows per stage. kPitch: number of words between two rows of a stage.
  static constexpr int kRows = 32, kPitch = 16;
  static constexpr int kOfCodes = 4 * kRows * kPitch, kOfRows = 8 * kRows, kOfNear = (int)sizeof(T) * kRows;
  static constexpr int kStage = kOfCodes + kOfRows + (kWeighted ? 2 : 1) * kOfNear;
  static constexpr int kBytes = kStages * kStage;  // shared memory per warp

  __device__ CodePipeline(void* shared, const Chunks& chunks) : stages_(shared), chunk_(chunks.first()) {
    count_ = chunks.count(chunk_);
  }

  // Starts to copy the first kStages − 1 stages of a warp's chunks.
  __device__ __forceinline__ void start(const Chunks& chunks, const QuantizedCopy<T>& copy, const T* closest,
                                        const T* weights) {
#pragma unroll
    for (int stage = 0; stage + 1 < kStages; ++stage) ask(chunks, copy, closest, weights);
  }

  // Starts to copy the next stage. Past the last chunk, copies nothing.
  __device__ __forceinline__ void ask(const Chunks& chunks, const QuantizedCopy<T>& copy, const T* closest,
                                      const T* weights) {
    if (count_ > 0) {
      const long long begin = chunks.begin(chunk_);
      unsigned char* to = stages_.own + stages_.asked;
      const int lane = simt::lane(), last = count_ - 1 - row_, piece = lane % 4, words = 4 * copy.groups;
      const unsigned* from = copy.upper + (begin + row_) * words + 4 * group_ + 4 * piece;
      if (group_ + piece < copy.groups) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int row = 8 * i + lane / 4;
          ptx::cp_async<16, 128>(to + 64 * row + 16 * piece, from + (row < last ? row : last) * words);
        }
      }
      group_ += 4;
      if (group_ >= copy.groups) {
        const long long row = begin + row_ + (lane < last ? lane : last);
        ptx::cp_async<8>(to + kOfCodes + 8 * lane, copy.rows + row);
        ptx::cp_async<sizeof(T)>(to + kOfCodes + kOfRows + sizeof(T) * lane, closest + row);
        if (kWeighted) ptx::cp_async<sizeof(T)>(to + kOfCodes + kOfRows + kOfNear + sizeof(T) * lane, weights + row);
        group_ = 0;
        row_ += kRows;
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

  // Of the current stage: the codes, and of this lane's row `rows`, D² and the weight.
  __device__ __forceinline__ const unsigned* codes() const {
    return reinterpret_cast<const unsigned*>(stages_.own + stages_.now);
  }
  __device__ __forceinline__ uint2 of_row() const { return of_lane<uint2>(0); }
  __device__ __forceinline__ T near() const { return of_lane<T>(kOfRows); }
  __device__ __forceinline__ T weight() const { return kWeighted ? of_lane<T>(kOfRows + kOfNear) : T(1); }

 private:
  template <typename Any>
  __device__ __forceinline__ Any of_lane(int place) const {
    return reinterpret_cast<const Any*>(stages_.own + stages_.now + kOfCodes + place)[simt::lane()];
  }

  simt::WarpStages<kStages, kStage> stages_;
  // The next copy: chunk `chunk_`, which has `count_` rows, from row `row_` and group `group_` on.
  long long chunk_;
  int count_, row_ = 0, group_ = 0;
};

}  // namespace kmeans
