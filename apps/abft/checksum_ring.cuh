// How a matrix comes to the warps that add it up (checksums.cuh): units, strips and stages, and the ring that they come by.
//
//            ←── 1 KB: a strip, 128 bytes a warp ──→
//          ┌────────┬────────┬─── … ───┬────────┐     The matrix is row-major without gaps. A *stage* of the ring is 32 rows of a
//  32 rows │ warp 0 │ warp 1 │         │ warp 7 │     strip. A *unit* of work is 512 rows, a *stripe*, of the strips that make up
//          ├────────┼────────┼─── … ───┼────────┤     one *segment*, of which rows have a sum of their own.
//          ┊        ┊        ┊         ┊        ┊
//
// Three warps copy, and barriers of shared memory say what is there and what is free. Units are dealt out as blocks ask for
// them: some multiprocessors are nearer to the memory. So that all end together, the last ones are dealt in *pieces* of fewer
// rows (checksums_plan.py):
//
//   items   0 … whole − 1            units
//           whole …                  pieces of the units from `whole` on, `pieces` each, one below the other
//
// Why it is fast: 100 KB and more are on their way at any time, in copies of 1 KB, and nobody waits for all others.
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
  unsigned char* of_pieces;  // what they leave for each other (piece_sums.cuh)
  // Items that were dealt; and, of each unit in pieces, a count of them for each warp that adds up. Zero before the launch, and
  // after it.
  unsigned* counts;
  // Rows, all of `row_bytes` but the last; multiples of 16.
  long long rows, row_bytes, last_bytes;
  int items, whole, piece_bits;  // pieces of a unit are 2 to the power of piece_bits
  int units_across, strips;      // of a stripe; of a unit

  __device__ __forceinline__ int piece_rows() const { return kStripe >> piece_bits; }
};

// A stage of the ring, and the parity of the phase in which it is filled.
struct Place {
  int stage = 0;
  unsigned parity = 0;
  __device__ __forceinline__ void next() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};

// What is dealt: a unit of a stripe, from row `begin` on.
struct alignas(16) Item {
  int slot;  // among all pieces; negative for a whole unit
  int stripe, across, begin;

  __device__ __forceinline__ bool is_piece() const { return slot >= 0; }
  __device__ __forceinline__ bool is_none() const { return stripe < 0; }
};

// A strip of an item.
struct Strip : Item {
  int rows, end;     // of the stripe; and where the item ends
  int number;        // of the unit's strips
  long long offset;  // of its first byte in a row
};

// `kTakes`: whether somebody reads what those that add up leave of each stage.
template <typename Sum, int kAdders, bool kTakes>
class ChecksumRing {
 public:
  static constexpr int kBytes = kStages * (kStage + (int)sizeof(Item) + 3 * (int)sizeof(ptx::Mbarrier));

  __device__ ChecksumRing(unsigned char* shared, const Task<Sum>& task)
      : task_(task), stages_(shared), items_(reinterpret_cast<Item*>(shared + kStages * kStage)),
        full_(reinterpret_cast<ptx::Mbarrier*>(items_ + kStages)), added_(full_ + kStages), taken_(added_ + kStages) {}

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
  // may take. The first asks for items, while those that add up still have the stage that comes next.
  __device__ __forceinline__ void copy(int part) const {
    Place place;
#pragma unroll 1
    while (true) {
      Item asked{};
      if (part == 0) asked = ask();
      wait_until_free(place);
      if (part == 0 && ptx::elect_one()) items_[place.stage] = asked;
      ptx::barrier_sync(2, 32 * kCopiers);
      const Item item = uniform(items_[place.stage]);
      if (item.is_none()) {
        if (ptx::elect_one()) ptx::mbarrier_arrive(full_ + place.stage);
        return;
      }
      each_strip_of(item, [&](const Strip& strip) {
        const unsigned char* from = task_.data + (first_row(strip) + strip.begin + part) * task_.row_bytes + strip.offset;
        const int bytes = in_strip(task_.row_bytes - strip.offset), last_bytes = in_strip(task_.last_bytes - strip.offset);
        // The row of this stripe that may have fewer, if it is one of this copier's.
        const long long left = task_.rows - 1 - first_row(strip);
        const int last = left < kStripe && (left - strip.begin) % kCopiers == part ? (int)left : kStripe;
        const long long step = kCopiers * task_.row_bytes;
#pragma unroll 1
        for (int first = strip.begin, row = strip.begin + part; first < strip.end; first += kRows, place.next()) {
          wait_until_free(place);  // an item's first stage is
          // Of the item, this copier has every kCopiers-th row from `part` on.
          const int end = strip.end - first < kRows ? strip.end : first + kRows;
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
      const Item item = items_[place.stage];
      if (item.is_none()) return;
      each_strip_of(item, [&](const Strip& strip) { work(place, strip); });
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
  // Of strip `number` of a unit, the first byte in a row.
  __device__ __forceinline__ long long offset_of(int across, int number) const {
    return (across * (long long)task_.strips + number) * kStrip;
  }

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
  __device__ __forceinline__ void each_strip_of(const Item& item, const Work& work) const {
    const int rows = rows_of(item.stripe), most = item.is_piece() ? item.begin + task_.piece_rows() : kStripe;
    Strip strip{item, rows, rows < most ? rows : most, 0, offset_of(item.across, 0)};
#pragma unroll 1
    for (; strip.number < task_.strips; ++strip.number, strip.offset += kStrip) work(strip);
  }
  __device__ __forceinline__ int rows_of(int stripe) const {
    const long long left = task_.rows - stripe * (long long)kStripe;
    return left < kStripe ? (int)left : kStripe;
  }
  // By a warp: the next item that has rows. Every block asks once in vain: then the count is zero again.
  __device__ __forceinline__ Item ask() const {
#pragma unroll 1
    while (true) {
      int number = 0;
      if (threadIdx.x % 32 == 0) number = (int)atomicInc(task_.counts, task_.items + gridDim.x - 1);
      number = simt::shuffle(number, 0);
      const int slot = number - task_.whole;
      if (number >= task_.items) return {slot, -1, 0, 0};
      const int unit = slot < 0 ? number : task_.whole + (slot >> task_.piece_bits);
      const int stripe = unit / task_.units_across;
      const int begin = slot < 0 ? 0 : (slot & ((1 << task_.piece_bits) - 1)) * task_.piece_rows();
      if (begin < rows_of(stripe)) return {slot, stripe, unit - stripe * task_.units_across, begin};
    }
  }
  // The same in all lanes, which the compiler is told.
  static __device__ __forceinline__ Item uniform(const Item& item) {
    return {simt::shuffle(item.slot, 0), simt::shuffle(item.stripe, 0), simt::shuffle(item.across, 0),
            simt::shuffle(item.begin, 0)};
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
    for (int first = strip.begin; first < strip.end; first += kRows, place.next()) {
      ptx::mbarrier_wait(full_ + place.stage, place.parity);
      work(whole, stages_ + place.stage * kStage, first);
      simt::sync_warp();
      if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(added_ + place.stage);
    }
  }

  const Task<Sum>& task_;
  unsigned char* const stages_;
  Item* const items_;  // that begin with a stage
  // A stage has been copied; been added up by all; what they left has been taken.
  ptx::Mbarrier *const full_, *const added_, *const taken_;
};

}  // namespace abft
