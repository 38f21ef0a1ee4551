// Epilogue staging: passes a warp's accumulators to an epilogue (epilogue.cuh). If kTakes of the epilogue is kRows, it
// writes them to shared memory first. A warp holds the sums of kBlocks × 16 rows and kColumns columns.
#pragma once
#include "kernels/tsm2/epilogue.cuh"

namespace tsm2 {

// Accumulator i of a lane, in the order of the fragments.
template <typename Sum, int kBlocks, int kColumnBlocks>
__device__ __forceinline__ Sum& sum_at(Sum (&sums)[kBlocks][kColumnBlocks][4], int i) {
  return sums[i / 4 / kColumnBlocks][i / 4 % kColumnBlocks][i % 4];
}

template <typename Sum, int kColumns, int kBlocks>
struct EpilogueStaging {
  static constexpr int kColumnBlocks = (kColumns + 7) / 8;
  // kPitch: number of elements from one row of sums in shared memory to the next. Rows of at most 8 columns, and most
  // rows of doubles, need no gap against bank conflicts. Other rows are padded to an odd number of column blocks, which
  // puts the rows of a fragment in different banks. kTogether: number of 16-row blocks staged at once. They occupy at
  // most 4096 bytes, unless kTogether is 1.
  static constexpr bool kGapless = kColumns <= 8 || (sizeof(Sum) == 8 && kColumns % 16 != 0);
  static constexpr int kPitch = kGapless ? kColumns : 8 * (kColumnBlocks + (kColumnBlocks + 1) % 2);
  static constexpr int kFit = 4096 / (16 * kPitch * (int)sizeof(Sum));
  static constexpr int kTogether = kFit < 1 ? 1 : kFit < kBlocks ? kFit : kBlocks;
  static constexpr int kRowSums = (16 * kTogether * kPitch * (int)sizeof(Sum) + 15) / 16 * 16;
  // Number of bytes of shared memory that the epilogue requires per warp.
  template <typename Epilogue>
  static constexpr int bytes() {
    if constexpr (Epilogue::kTakes == Takes::kTile) return Epilogue::template kBytes<kBlocks>;
    return Epilogue::kTakes == Takes::kRows ? kRowSums : 0;
  }
  template <typename Epilogue>
  static constexpr int kBytes = bytes<Epilogue>();

  // Runs the epilogue for the `rows` × `columns` part of C at (row, column); either count may be 0 or negative.
  template <typename Epilogue>
  static __device__ __forceinline__ void run(const Epilogue& epilogue, unsigned char* scratch, long long row, int rows,
                                             long long column, int columns,
                                             const Sum (&sums)[kBlocks][kColumnBlocks][4]) {
    if constexpr (Epilogue::kTakes == Takes::kFragments) {
#pragma unroll
      for (int i = 0; i < kBlocks; ++i) epilogue.fragments(row + 16 * i, rows - 16 * i, column, columns, sums[i]);
    } else if constexpr (Epilogue::kTakes == Takes::kTile) {
      epilogue.tile(scratch, row, rows, column, columns, sums);
    } else {
      run_rows(epilogue, reinterpret_cast<Sum*>(scratch), row, rows, column, columns, sums);
    }
  }

 private:
  struct alignas(2 * sizeof(Sum)) Pair {
    Sum at[2];
  };

  template <typename Epilogue>
  static __device__ __forceinline__ void run_rows(const Epilogue& epilogue, Sum* in_shared, long long row, int rows,
                                                  long long column, int columns,
                                                  const Sum (&sums)[kBlocks][kColumnBlocks][4]) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int first = 0; first < kBlocks; first += kTogether) {
      __syncwarp();
#pragma unroll
      for (int i = 0; i < kTogether && first + i < kBlocks; ++i)
#pragma unroll
        for (int j = 0; j < kColumnBlocks; ++j)
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int c = 8 * j + 2 * t;
            Sum* to = in_shared + (16 * i + 8 * half + g) * kPitch + c;
            const Sum* pair = &sums[first + i][j][2 * half];
            if constexpr (kPitch % 8 == 0) {
              *reinterpret_cast<Pair*>(to) = Pair{{pair[0], pair[1]}};
            } else {
              if (c < kColumns) to[0] = pair[0];
              if (c + 1 < kColumns) to[1] = pair[1];
            }
          }
      __syncwarp();
      const int left = rows - 16 * first < 16 * kTogether ? rows - 16 * first : 16 * kTogether;
      if (left > 0 && columns > 0) {
        epilogue(Sums<Sum, kPitch, 16 * kTogether>{in_shared}, row + 16 * first, left, column, columns);
      }
    }
  }
};

}  // namespace tsm2
