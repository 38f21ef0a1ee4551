// Checksums of a matrix in one pass: the exact code's sums of words (at_rest/exact_code.py), and the weighted row sums
// and column sums of the float code (at_rest/float_code.py).
//
//   exact         (stripes, 5, words per row)           exact_sums.cuh; or those that differ from expected ones
//   row sums      (segments per row, kWeights, rows)    float_sums.cuh
//   column sums   (stripes, kWeights, columns)          float_sums.cuh
//
// A pipeline copies the matrix to shared memory (tile_pipeline.cuh, which defines stripe, segment, strip and stage).
// Eight warps sum words. Eight other warps sum elements: each writes partial row sums of its 128 bytes of every row.
// One more warp adds the eight partial sums of each row.
//
// Why it is fast: each byte is read once. The tensor cores compute the sums, in float64 too, so that five sums per word
// and four per element take no longer than reading the matrix.
#pragma once
#include "apps/abft/at_rest/gpu/float_sums.cuh"
#include "apps/abft/at_rest/gpu/exact_sums.cuh"
#include "kernels/ptx/warp_specialization.cuh"

namespace abft {

// The pass of one thread block. kExact: whether to compute the sums of words. kWeights: number of weighted sums per row
// and per column, 0, 1 or 2. kStages: see ChecksumPipeline.
template <typename T, bool kExact, int kWeights, int kStages>
class ChecksumPass {
  using Elements = ElementSums<T, kWeights == 0 ? 1 : kWeights>;

 public:
  using Sum = typename Elements::Sum;
  static constexpr int kWordWarps = kExact ? kWarps : 0, kAdders = kWordWarps + (kWeights > 0 ? kWarps : 0);
  static constexpr int kThreads = 32 * (kAdders + kCopiers + 1);

 private:
  using Pipeline = ChecksumPipeline<Sum, kAdders, (kWeights > 0), kStages>;
  using Place = typename Pipeline::Place;
  static constexpr int kParts = kWeights > 0 ? Elements::kParts : 0;

 public:
  // Shared memory, in this order:
  //   kTable     the weights of words
  //   kOfWarps   per stage: the partial row sums that the warps have written for that stage
  //   kTotals    per row of a stripe: the sums over the strips of the current segment so far
  //   Pipeline   the stages, aligned to 16 bytes, and their barriers
  static constexpr int kTable = kExact ? WordWeights::kBytes : 0;
  static constexpr int kOfWarps = kParts * kWarps * kRows, kTotals = kWeights * kStripe;
  static constexpr int kSharedBytes = kTable + (kStages * kOfWarps + kTotals) * (int)sizeof(Sum) + Pipeline::kBytes;

  __device__ ChecksumPass(unsigned char* shared, const Task<Sum>& task)
      : task_(task), weights_(shared), of_warps_(reinterpret_cast<Sum*>(shared + kTable)),
        totals_(of_warps_ + kStages * kOfWarps), pipeline_(reinterpret_cast<unsigned char*>(totals_ + kTotals), task) {}

  __device__ __forceinline__ void run() {
    if (threadIdx.x == 0) pipeline_.set_up();
    __syncthreads();
    // With both codes, a thread block has 640 threads, which start with 96 registers each. The warps that need fewer
    // registers release some, and the warps that sum elements take them.
    constexpr bool kBoth = kExact && kWeights > 0;
    const int warp = threadIdx.x / 32;
    if (warp >= kAdders) {
      if constexpr (kBoth) ptx::fewer_registers<48>();
      if (warp == kAdders + kCopiers) {
        if constexpr (kWeights > 0) add_rows();
      } else {
        pipeline_.copy(simt::shuffle(warp - kAdders, 0));
      }
    } else if (warp < kWordWarps) {
      if constexpr (kBoth) ptx::fewer_registers<80>();
      if constexpr (kExact) add_words(warp);
    } else {
      if constexpr (kBoth) ptx::more_registers<136>();
      if constexpr (kWeights > 0) add_elements(warp - kWordWarps);
    }
  }

 private:
  __device__ __forceinline__ void add_words(int warp) const {
    weights_.set_up(32 * kWarps);
    ptx::barrier_sync(1, 32 * kWarps);  // only the warps that sum words wait here
    const int in_strip = warp * kWarpBytes + WordSums::offset();
    pipeline_.each_strip([&](Place& place, const Strip& strip) {
      const long long offset = strip.offset + in_strip, width = task_.row_bytes / 4;
      WordSums sums(weights_, strip.rows, pipeline_.rows_at(strip, offset));
      pipeline_.each_stage(place, strip, [&](auto whole, const unsigned char* stage, int first) {
        sums.template add<decltype(whole)::value>(stage + in_strip, first);
      });
      sums.store(task_.exact, task_.compared, strip.stripe, offset / 4, width);
    });
  }

  __device__ __forceinline__ void add_elements(int warp) const {
    const int in_strip = warp * kWarpBytes;
    pipeline_.each_strip([&](Place& place, const Strip& strip) {
      const long long offset = strip.offset + in_strip, width = task_.row_bytes / (int)sizeof(T);
      Elements sums((strip.number * kStrip + in_strip) / (int)sizeof(T),
                    [&](int further) { return pipeline_.rows_at(strip, offset + further); });
      pipeline_.each_stage(place, strip, [&](auto whole, const unsigned char* stage, int first) {
        Sum* rows = of_warps_ + place.stage * kOfWarps + warp * kRows;
        sums.template add<decltype(whole)::value>(stage + in_strip, first, rows);
      });
      const long long columns = (task_.row_bytes - offset) / (int)sizeof(T);
      sums.store(task_.column_sums + strip.stripe * (long long)kWeights * width + offset / (int)sizeof(T),
                 columns < kWarpBytes ? (int)columns : kWarpBytes, width);
    });
  }

  // Adds the partial row sums of the eight warps, stage by stage. One warp executes it, with one row per lane.
  __device__ __forceinline__ void add_rows() const {
    static_assert(kRows == 32, "a lane for each row");
    const int lane = threadIdx.x % 32;
    pipeline_.each_strip([&](Place& place, const Strip& strip) {
#pragma unroll 1
      for (int first = 0; first < strip.rows; first += kRows, place.next()) {
        pipeline_.wait_for_sums(place);
        const Sum* from = of_warps_ + place.stage * kOfWarps + lane;
        const long long row = Pipeline::first_row(strip) + first + lane;
#pragma unroll
        for (int p = 0; p < kWeights; ++p) {
          Sum& total = totals_[p * kStripe + first + lane];
          Sum sum = strip.number > 0 ? total : Sum(0);
#pragma unroll 4
          for (int warp = 0; warp < kWarps; ++warp) sum += Elements::of_row(from + warp * kRows, p);
          if (strip.number + 1 < task_.strips) {
            total = sum;
          } else if (first + lane < strip.rows) {
            task_.row_sums[(strip.across * (long long)kWeights + p) * task_.rows + row] = sum;
          }
        }
        pipeline_.give_back(place);
      }
    });
  }

  const Task<Sum>& task_;
  const WordWeights weights_;
  Sum *const of_warps_, *const totals_;
  const Pipeline pipeline_;
};

template <typename T, bool kExact, int kWeights, int kStages>
__global__ void __launch_bounds__(ChecksumPass<T, kExact, kWeights, kStages>::kThreads, 1)
    add_checksums(const Task<typename ChecksumPass<T, kExact, kWeights, kStages>::Sum> task) {
  ChecksumPass<T, kExact, kWeights, kStages>(simt::dynamic_shared<unsigned char>(), task).run();
}

}  // namespace abft
