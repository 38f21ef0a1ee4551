// Multistage pipeline that copies a matrix from global to shared memory, for the warps that sum it (encode.cuh).
//
//          ←── a strip: 1 KB, 128 bytes per warp ──→
//          ┌────────┬────────┬─── … ───┬────────┐
//  32 rows │ warp 0 │ warp 1 │         │ warp 7 │
//          ├────────┼────────┼─── … ───┼────────┤
//          ┊        ┊        ┊         ┊        ┊
//
// The matrix is row-major without gaps. A *stripe* is 512 rows, and a *strip* is 1 KB of each row of a stripe. A
// *segment* is a block of columns of at_rest/float_code.py, over which a row sum extends: one or more consecutive
// strips. A work *unit* is the strips of one segment of one stripe. A *stage* of the pipeline holds 32 rows of a strip.
//
// Three producer warps copy rows to the stages; mbarriers track full and free stages. Thread blocks fetch units
// dynamically, because some multiprocessors are closer to the memory and process units faster.
//
// Why it is fast: at every moment, copies of all stages but one or two are in flight, of five stages at least 100 KB
// per multiprocessor, in whole lines of the level-2 cache. No warp waits for all other warps.
#pragma once
#include "kernels/ptx/bulk_copy.cuh"
#include "kernels/ptx/cp_async.cuh"
#include "kernels/ptx/warp_specialization.cuh"
#include "kernels/device/simt.cuh"

namespace abft {

// Rows per stripe; exact sums per code block.
constexpr int kStripe = 512, kSums = 5;
// Number of warps that sum the words (or elements) of a strip; number of producer warps.
constexpr int kWarps = 8, kCopiers = 3;
constexpr int kWarpBytes = 128, kStrip = kWarps * kWarpBytes;
// Bytes per copy instruction; bytes per line of the level-2 cache.
constexpr int kCopied = 16, kLine = 128;
// Rows per stage; bytes from one row of a stage to the next; bytes per stage. The pitch shifts each row by a quarter of
// the banks, so that reads have no bank conflicts.
constexpr int kRows = 32, kPitch = kStrip + 32, kStage = kRows * kPitch;

// What exact sums are compared with: expected sums, or null; the code blocks that differ from them, and their number.
struct Comparison {
  const unsigned long long* expected;
  long long* listed;
  unsigned long long* count;
};

// Kernel argument: the matrix, and the destinations of its sums (encode.cuh).
template <typename Sum>
struct Task {
  const unsigned char* data;  // aligned to 16 bytes
  unsigned long long* exact;
  Comparison compared;
  Sum *row_sums, *column_sums;
  // The last row has `last_bytes` bytes, every other row `row_bytes`. Both numbers are multiples of 16.
  long long rows, row_bytes, last_bytes;
  int units, units_across;  // number of work units of the matrix; per stripe
  int strips;               // number of strips per unit
  unsigned* next;           // counter: the next unit to fetch; zero before and after the launch
};

// A strip of a unit: index of its stripe, number of rows of the stripe, index of its segment in the stripe, and index
// of the strip in the segment.
struct Strip {
  int stripe, rows, across, number;
  long long offset;  // offset of the strip's first byte in a row
};

// The pipeline of one thread block. kAdders: number of consumer warps, which sum the stages. kTakes: whether one more
// warp reads the partial row sums that the consumer warps write for each stage. kStages: number of stages.
template <typename Sum, int kAdders, bool kTakes, int kStages>
class ChecksumPipeline {
 public:
  // Position in the pipeline: the index of a stage, and the mbarrier parity of the phase in which the stage is filled.
  struct Place {
    int stage = 0;
    unsigned parity = 0;
    __device__ __forceinline__ void next() {
      if (++stage == kStages) stage = 0, parity ^= 1;
    }
  };

  static constexpr int kBytes = kStages * (kStage + 3 * (int)sizeof(ptx::Mbarrier) + (int)sizeof(int));

  __device__ ChecksumPipeline(unsigned char* shared, const Task<Sum>& task)
      : task_(task), stages_(shared), full_(reinterpret_cast<ptx::Mbarrier*>(shared + kStages * kStage)),
        added_(full_ + kStages), taken_(added_ + kStages), units_(reinterpret_cast<int*>(taken_ + kStages)) {}

  // Initializes the mbarriers. One thread executes it; a barrier of the thread block must follow.
  __device__ __forceinline__ void set_up() const {
    for (int i = 0; i < kStages; ++i) {
      ptx::mbarrier_init(full_ + i, 32 * kCopiers + 1);
      ptx::mbarrier_init(added_ + i, 32 * kAdders);
      ptx::mbarrier_init(taken_ + i, 32);
    }
    ptx::mbarrier_init_fence();
  }

  // Executed by producer warp `part`, which copies every kCopiers-th row of all units of this thread block. Producer 0
  // also fetches the units. It does so before it waits for a free stage, which hides the latency of the fetch.
  __device__ __forceinline__ void copy(int part) const {
    const int in_strip = threadIdx.x % 32 * kCopied;
    const bool asks = part == 0 && threadIdx.x % 32 == 0;
    Place place;
#pragma unroll 1
    while (true) {
      int unit = 0;
      // A thread block stops when it fetches a number beyond the last unit. So the grid fetches units + gridDim.x times
      // in total, and the counter wraps around to zero at the last fetch.
      if (asks) unit = (int)atomicInc(task_.next, task_.units + gridDim.x - 1);
      wait_for_free_stage(place);
      if (asks) units_[place.stage] = unit;
      ptx::barrier_sync(2, 32 * kCopiers);
      unit = simt::shuffle(units_[place.stage], 0);
      if (unit >= task_.units) {
        arrive(place, asks);
        return;
      }
      each_strip_of(unit, [&](const Strip& strip) {
        const unsigned char* from = task_.data + first_row(strip) * task_.row_bytes + strip.offset + in_strip;
        const bool whole = is_whole(strip);
#pragma unroll 1
        for (int first = 0; first < strip.rows; first += kRows, place.next()) {
          wait_for_free_stage(place);  // returns at once for the first stage of a unit, which is already free
          unsigned char* const to = stages_ + place.stage * kStage + in_strip;
          if (whole) {
            copy_stage<true>(to, from, strip, first, part);
          } else {
            copy_stage<false>(to, from, strip, first, part);
          }
          from += kRows * task_.row_bytes;
          arrive(place, asks);
        }
      });
    }
  }

  // Calls `work(place, strip)` for every strip of this thread block; `work` advances `place` past the strip's stages.
  template <typename Work>
  __device__ __forceinline__ void each_strip(const Work& work) const {
    Place place;
#pragma unroll 1
    while (true) {
      ptx::mbarrier_wait(full_ + place.stage, place.parity);
      const int unit = units_[place.stage];
      if (unit >= task_.units) return;
      each_strip_of(unit, [&](const Strip& strip) { work(place, strip); });
    }
  }

  // Executed by consumer warps: calls `work(Whole, stage, first)` for every stage of a strip. `stage` points to the
  // stage, and `first` is the index in the stripe of the stage's first row. Whole::value is is_whole(strip).
  template <typename Work>
  __device__ __forceinline__ void each_stage(Place& place, const Strip& strip, const Work& work) const {
    if (is_whole(strip)) {
      each_stage_of(place, strip, work, Whole<true>());
    } else {
      each_stage_of(place, strip, work, Whole<false>());
    }
  }
  template <bool is_whole>
  struct Whole {
    static constexpr bool value = is_whole;
  };

  // Whether the strip has kStripe rows and the matrix contains all its bytes.
  __device__ __forceinline__ bool is_whole(const Strip& strip) const {
    return strip.rows == kStripe && rows_at(strip, strip.offset + kStrip - 16) == strip.rows;
  }
  // Number of rows of a strip that contain the 16 bytes at `offset` of a row. It is the number of all rows, except at
  // the end of the matrix.
  __device__ __forceinline__ int rows_at(const Strip& strip, long long offset) const {
    const bool inside = bytes_left(first_row(strip) + strip.rows - 1, offset) > 0;
    return inside ? strip.rows : offset < task_.row_bytes ? strip.rows - 1 : 0;
  }
  // Number of bytes from the strip's first byte to the end of the row, in row `row` of the stripe.
  __device__ __forceinline__ long long left_of(const Strip& strip, int row) const {
    return row < strip.rows ? bytes_left(first_row(strip) + row, strip.offset) : 0;
  }
  // Number of bytes from `offset` to the end of the row, in row `row` of the matrix.
  __device__ __forceinline__ long long bytes_left(long long row, long long offset) const {
    return (row == task_.rows - 1 ? task_.last_bytes : task_.row_bytes) - offset;
  }
  // Index in the matrix of the first row of the strip's stripe.
  static __device__ __forceinline__ long long first_row(const Strip& strip) {
    return strip.stripe * (long long)kStripe;
  }

  // Executed by the warp that reads the partial row sums of a stage. wait_for_sums waits until the consumer warps have
  // summed the stage, and give_back frees the memory of the partial row sums.
  //
  // In give_back and in each_stage_of, every lane arrives at the mbarrier. One arrival per warp, after a barrier of the
  // warp, would suffice and take as long, but compute-sanitizer's racecheck only tracks threads that arrive.
  __device__ __forceinline__ void wait_for_sums(const Place& place) const {
    ptx::mbarrier_wait(added_ + place.stage, place.parity);
  }
  __device__ __forceinline__ void give_back(const Place& place) const { ptx::mbarrier_arrive(taken_ + place.stage); }

 private:
  template <typename Work>
  __device__ __forceinline__ void each_strip_of(int unit, const Work& work) const {
    const int stripe = unit / task_.units_across, across = unit - stripe * task_.units_across;
    const long long left = task_.rows - stripe * (long long)kStripe;
    const int rows = left < kStripe ? (int)left : kStripe;
#pragma unroll 1
    for (int number = 0; number < task_.strips; ++number) {
      work(Strip{stripe, rows, across, number, (across * (long long)task_.strips + number) * kStrip});
    }
  }
  // Starts the copies of producer warp `part` for a stage whose first row is row `first` of the stripe: every
  // kCopiers-th row of the stage. `to` and `from` point to the first 16 bytes of this lane in the stage's first row.
  template <bool kWhole>
  __device__ __forceinline__ void copy_stage(unsigned char* to, const unsigned char* from, const Strip& strip,
                                             int first, int part) const {
    to += part * kPitch, from += part * task_.row_bytes;
#pragma unroll(kWhole ? kRows : 1)
    for (int row = 0; row < kRows; row += kCopiers, from += kCopiers * task_.row_bytes) {
      if (row + kCopiers > kRows && row + part >= kRows) break;
      const int in_strip = (int)threadIdx.x % 32 * kCopied;
      const long long left = kWhole ? kStrip : left_of(strip, first + row + part) - in_strip;
#pragma unroll
      for (int at = 0; at < kStrip; at += 32 * kCopied) {
        if (kWhole || at < left) ptx::cp_async<kCopied, kLine>(to + row * kPitch + at, from + at);
      }
    }
  }
  // Executed by a producer thread after it has started all its copies to a stage. `wrote` is true in the one thread
  // that also writes the unit to units_.
  __device__ __forceinline__ void arrive(const Place& place, bool wrote) const {
    ptx::cp_async_arrive(full_ + place.stage);
    if (wrote) ptx::mbarrier_arrive(full_ + place.stage);
  }
  __device__ __forceinline__ void wait_for_free_stage(const Place& place) const {
    ptx::mbarrier_wait(added_ + place.stage, place.parity ^ 1);
    if (kTakes) ptx::mbarrier_wait(taken_ + place.stage, place.parity ^ 1);
  }
  template <typename Work, typename IsWhole>
  __device__ __forceinline__ void each_stage_of(Place& place, const Strip& strip, const Work& work,
                                                IsWhole whole) const {
#pragma unroll 1
    for (int first = 0; first < strip.rows; first += kRows, place.next()) {
      ptx::mbarrier_wait(full_ + place.stage, place.parity);
      work(whole, stages_ + place.stage * kStage, first);
      ptx::mbarrier_arrive(added_ + place.stage);
    }
  }

  const Task<Sum>& task_;
  unsigned char* const stages_;
  // Mbarriers per stage: full_ (all copies have arrived), added_ (all consumers have summed the stage), taken_ (the
  // partial row sums have been read).
  ptx::Mbarrier *const full_, *const added_, *const taken_;
  int* const units_;  // per stage: the unit that begins at this stage
};

}  // namespace abft
