// How a matrix comes to the warps that add it up (checksums.cuh): units, strips and stages, and the ring that they come by.
//
//            ←── 1 KB: a strip, 128 bytes a warp ──→
//          ┌────────┬────────┬─── … ───┬────────┐     The matrix is row-major without gaps. A *stage* of the ring is 32 rows of a
//  32 rows │ warp 0 │ warp 1 │         │ warp 7 │     strip. A *unit* of work is 512 rows, a *stripe*, of the strips that make up
//          ├────────┼────────┼─── … ───┼────────┤     one *segment*, of which rows have a sum of their own.
//          ┊        ┊        ┊         ┊        ┊
//
// Three warps copy, and barriers of shared memory say what is there and what is free. Units are dealt out as blocks ask for
// them: some multiprocessors are nearer to the memory.
//
// Why it is fast: 100 KB and more are on their way at any time, in pieces of 1 KB, and nobody waits for all others.
#pragma once
#include "kernels/bulk.cuh"
#include "kernels/tsm2/simt.cuh"
#include "kernels/warpgroup.cuh"

namespace abft {

constexpr int kStripe = 512, kSums = 5;
// Warps that share a strip; those that copy.
constexpr int kWarps = 8, kCopiers = 3;
constexpr int kWarpBytes = 128, kStrip = kWarps * kWarpBytes;
// Rows of a stage. From a row to the next: a quarter of the banks further, for all ways to read it.
constexpr int kRows = 32, kPitch = kStrip + 32, kStage = kRows * kPitch, kStages = 5;

// What is read, and where its sums go.
template <typename Sum>
struct Task {
  const unsigned char* data;  // from a multiple of 16 bytes on
  unsigned long long* exact;
  Sum *row_sums, *column_sums;
  // Rows, all of `row_bytes` but the last; multiples of 16.
  long long rows, row_bytes, last_bytes;
  int units, units_across;  // of all stripes, and of one
  int strips;               // of a unit
  unsigned* next;           // unit; zero before the launch, and after it
};

// A stage of the ring, and the parity of the phase in which it is filled.
struct Place {
  int stage = 0;
  unsigned parity = 0;
  __device__ __forceinline__ void next() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};

// A strip of a unit.
struct Strip {
  int stripe, rows, across, number;  // rows of the stripe; unit of the stripe; strip of the unit
  long long offset;                  // of its first byte in a row
};

// `kTakes`: whether somebody reads what those that add up leave of each stage.
template <typename Sum, int kAdders, bool kTakes>
class ChecksumRing {
 public:
  static constexpr int kBytes = kStages * (kStage + 3 * (int)sizeof(ptx::Mbarrier) + (int)sizeof(int));

  __device__ ChecksumRing(unsigned char* shared, const Task<Sum>& task)
      : task_(task), stages_(shared), full_(reinterpret_cast<ptx::Mbarrier*>(shared + kStages * kStage)),
        added_(full_ + kStages), taken_(added_ + kStages), units_(reinterpret_cast<int*>(taken_ + kStages)) {}

  // By one thread, with a barrier behind it.
  __device__ __forceinline__ void set_up() const {
    for (int i = 0; i < kStages; ++i) {
      ptx::mbarrier_init(full_ + i, kCopiers);
      ptx::mbarrier_init(added_ + i, kAdders);
      ptx::mbarrier_init(taken_ + i, 1);
    }
    ptx::mbarrier_init_fence();
  }

  // By copier `part`, a warp, of which each copies its share of the rows: one copy after the other takes it as long as a stage
  // may take. The first asks for units, while those that add up still have the stage that comes next.
  __device__ __forceinline__ void copy(int part) const {
    Place place;
#pragma unroll 1
    while (true) {
      int unit = 0;
      // Every block asks once in vain: then it is zero again.
      if (part == 0 && threadIdx.x % 32 == 0) unit = (int)atomicInc(task_.next, task_.units + gridDim.x - 1);
      wait_until_free(place);
      if (part == 0 && threadIdx.x % 32 == 0) units_[place.stage] = unit;
      ptx::barrier_sync(2, 32 * kCopiers);
      unit = simt::shuffle(units_[place.stage], 0);
      if (unit >= task_.units) {
        if (ptx::elect_one()) ptx::mbarrier_arrive(full_ + place.stage);
        return;
      }
      each_strip_of(unit, [&](const Strip& strip) {
        const unsigned char* from = task_.data + (first_row(strip) + part) * task_.row_bytes + strip.offset;
        const int bytes = in_strip(task_.row_bytes - strip.offset), last_bytes = in_strip(task_.last_bytes - strip.offset);
        // The row of this stripe that may have fewer, if it is one of this copier's.
        const long long left = task_.rows - 1 - first_row(strip);
        const int last = left < kStripe && left % kCopiers == part ? (int)left : kStripe;
        const long long step = kCopiers * task_.row_bytes;
#pragma unroll 1
        for (int first = 0, row = part; first < strip.rows; first += kRows, place.next()) {
          wait_until_free(place);  // a unit's first stage is
          // Of the stripe, this copier has every kCopiers-th row from `part` on.
          const int end = strip.rows - first < kRows ? strip.rows : first + kRows;
          const int count = (end - row + kCopiers - 1) / kCopiers, usual = count - (last < end);
          if (ptx::elect_one()) {
            ptx::Mbarrier* const full = full_ + place.stage;
            ptx::mbarrier_arrive_expect(full, usual * bytes + (last < end ? last_bytes : 0));
            unsigned char* to = stages_ + place.stage * kStage + (row - first) * kPitch;
            const unsigned char* at = from;
            if (bytes > 0) {
#pragma unroll 1
              for (int i = 0; i < usual; ++i, to += kCopiers * kPitch, at += step) ptx::bulk_copy(to, at, bytes, full);
            }
            if (last < end && last_bytes > 0) ptx::bulk_copy(to, at, last_bytes, full);
          }
          row += count * kCopiers, from += count * step;
        }
      });
    }
  }

  // Calls `work(place, strip)` for every strip that this block is dealt; it is to move `place` past the strip's stages.
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

  // By warps that add up: calls `work(Whole, stage, first row)` for every stage of a strip, where Whole::value says that all of
  // it is there.
  template <typename Work>
  __device__ __forceinline__ void each_stage(Place& place, const Strip& strip, const Work& work) const {
    const bool whole = strip.rows == kStripe && rows_at(strip, strip.offset + kStrip - 16) == strip.rows;
    if (whole) {
      each_stage_of(place, strip, work, Whole<true>());
    } else {
      each_stage_of(place, strip, work, Whole<false>());
    }
  }
  template <bool is_whole>
  struct Whole {
    static constexpr bool value = is_whole;
  };

  // Rows of a strip in which the 16 bytes from `offset` of a row on are there: all, but where the matrix ends.
  __device__ __forceinline__ int rows_at(const Strip& strip, long long offset) const {
    const bool inside = bytes_left(first_row(strip) + strip.rows - 1, offset) > 0;
    return inside ? strip.rows : offset < task_.row_bytes ? strip.rows - 1 : 0;
  }
  // Bytes of a row from `offset` on.
  __device__ __forceinline__ long long bytes_left(long long row, long long offset) const {
    return (row == task_.rows - 1 ? task_.last_bytes : task_.row_bytes) - offset;
  }
  static __device__ __forceinline__ long long first_row(const Strip& strip) { return strip.stripe * (long long)kStripe; }

  // By the warp that takes what others have of a stage.
  __device__ __forceinline__ void wait_until_added(const Place& place) const {
    ptx::mbarrier_wait(added_ + place.stage, place.parity);
  }
  __device__ __forceinline__ void give_back(const Place& place) const {
    simt::sync_warp();
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(taken_ + place.stage);
  }

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
  static __device__ __forceinline__ int in_strip(long long bytes) {
    return bytes <= 0 ? 0 : bytes < kStrip ? (int)bytes : kStrip;
  }
  __device__ __forceinline__ void wait_until_free(const Place& place) const {
    ptx::mbarrier_wait(added_ + place.stage, place.parity ^ 1);
    if (kTakes) ptx::mbarrier_wait(taken_ + place.stage, place.parity ^ 1);
  }
  template <typename Work, typename IsWhole>
  __device__ __forceinline__ void each_stage_of(Place& place, const Strip& strip, const Work& work, IsWhole whole) const {
#pragma unroll 1
    for (int first = 0; first < strip.rows; first += kRows, place.next()) {
      ptx::mbarrier_wait(full_ + place.stage, place.parity);
      work(whole, stages_ + place.stage * kStage, first);
      simt::sync_warp();
      if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(added_ + place.stage);
    }
  }

  const Task<Sum>& task_;
  unsigned char* const stages_;
  // A stage has been copied; been added up by all; what they left has been taken.
  ptx::Mbarrier *const full_, *const added_, *const taken_;
  int* const units_;  // that begin with a stage
};

}  // namespace abft
