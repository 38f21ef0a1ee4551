// What warps hand over to each other where a unit is dealt in pieces (checksum_ring.cuh): sums over its rows.
//
//   of_pieces (pieces of all units, strips of a unit, 8 warps)   a record: sums of 32 words, then of as many elements' columns
//
//             ←─ a unit ─→
//            ┌────────────┐
//   piece 0  │            │ → warps' sums ┐
//            ├────────────┤               │   The last of a unit's pieces to be done adds up those of all, each of its
//   piece 1  │            │ → warps' sums ├→  warps what is its own: in the order of pieces, so that sums are the same
//            ├────────────┤               │   whichever is the last.
//            ┊            ┊               ┘
//
// Why it is fast: no warp waits for another. A piece costs a warp a fence and an atomic operation, and what pieces left is still in
// the level-2 cache.
#pragma once
#include "apps/abft/checksum_ring.cuh"

namespace abft {

// `kOf` sums of each of `kColumns` columns that are a warp's, from `kFrom` bytes of the record on, of `kRecord`.
template <typename Value, int kOf, int kColumns, int kFrom, int kRecord>
class PieceSums {
 public:
  // Where a warp leaves its sums of a strip: of the first column; from one sum to the next it is kColumns.
  template <typename Sum>
  static __device__ __forceinline__ Value* place(const Task<Sum>& task, long long slot, int number, int warp) {
    const long long record = (slot * task.strips + number) * kWarps + warp;
    return reinterpret_cast<Value*>(task.of_pieces + record * kRecord + kFrom);
  }

  // By `warp`, once it has left its sums of all strips of a piece, which `count` counts of the unit. `offset` is where the warp's
  // bytes of the unit's first strip begin in a row; `to` are the stripe's sums.
  template <typename Sum>
  static __device__ __forceinline__ void add_up(const Task<Sum>& task, const Strip& strip, unsigned* count, int warp,
                                                long long offset, Value* to) {
    const int rows = task.piece_rows(), pieces = (strip.rows + rows - 1) / rows;  // that have any
    if (!simt::last_warp_to_arrive(count, pieces)) return;
    constexpr int kColumnBytes = kWarpBytes / kColumns;
    const int lane = threadIdx.x % 32;
    const long long width = task.row_bytes / kColumnBytes;
    long long column = offset / kColumnBytes;
#pragma unroll 1
    for (int number = 0; number < task.strips; ++number, column += kWarps * kColumns) {
      const Value* from = place(task, strip.slot >> task.piece_bits << task.piece_bits, number, warp);
      const long long step = (long long)task.strips * kWarps * kRecord / (int)sizeof(Value);
#pragma unroll 1
      for (int first = 0; first < kColumns; first += 32) {
        // Of 16 columns, two lanes each do the same: so the compiler sees that lanes stay together.
        const int i = (first + lane) % kColumns;
        Value sums[kOf] = {};
#pragma unroll 2
        for (int piece = 0; piece < pieces; ++piece)
#pragma unroll
          for (int k = 0; k < kOf; ++k) sums[k] += simt::load_from_other_block(from + piece * step + k * kColumns + i);
#pragma unroll
        for (int k = 0; k < kOf; ++k)
          if (column + i < width) to[k * width + column + i] = sums[k];
      }
    }
  }
};

}  // namespace abft
