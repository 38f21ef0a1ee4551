// The epilogue contract: what a tall-and-skinny product does with its sums. store.cuh has the epilogues that store C.
//
// An epilogue is a class that the kernel calls with complete sums, with all 32 lanes of a warp. kTakes selects the
// form:
//
//   kRows       template <typename Sums>
//               void operator()(const Sums& sums, long long row, int rows, long long column, int columns) const;
//
//               `sums(i, j)` is the sum of row + i and column + j, for i < rows and j < columns, in shared memory. The
//               epilogue of an application (an arg-min along a row, a checksum) may read them in any order.
//
//   kFragments  template <int kBlocks>
//               void fragments(long long row, int rows, long long column, int columns,
//                              const Sum (&d)[kBlocks][4]) const;
//
//               Registers, as the tensor cores leave them: with g = lane / 4 and t = lane % 4, d[j][2·half + i] is the
//               sum of row + 8·half + g and column + 8·j + 2·t + i, where that row and column are less than `rows` and
//               `columns` away.
//
//   kTile       template <int kBlocks, int kColumnBlocks>
//               void tile(unsigned char* scratch, long long row, int rows, long long column, int columns,
//                         const Sum (&d)[kBlocks][kColumnBlocks][4]) const;
//
//               All of a warp's registers, block i of 16 rows in d[i], and kBytes<kBlocks> of shared memory that is the
//               warp's own.
//
// Optional members:
//
//   bool idle() const      True where there is nothing to do at all.
//   void open() const, void close() const
//                          Called by all threads of a block before its first sums, with a barrier between, and after
//                          its last.
//   const Sum* row_weights
//                          Of one that takes fragments: it gets weighted sums of the rows of A, too
//                          (weighted_row_sums.cuh), as d[kBlocks − 1]: in [2·half], what this lane has of row +
//                          8·half + g; the four lanes of a row have parts of it. Weights are of every depth, from a
//                          multiple of 16 bytes on, and zeros behind them, up to the end of the last tile and 16 more.
#pragma once
#include "kernels/device/simt.cuh"

namespace tsm2 {

// A warp's rows of sums in shared memory, kPitch apart.
template <typename Sum, int pitch, int most_rows>
struct Sums {
  static constexpr int kPitch = pitch, kMostRows = most_rows;
  const Sum* first;
  __device__ const Sum& operator()(int i, int j) const { return first[i * kPitch + j]; }
};

enum class Takes { kRows, kFragments, kTile };

// Whether an epilogue can say that there is nothing to do, and whether it says so.
template <typename Epilogue, typename = void>
constexpr bool may_idle = false;
template <typename Epilogue>
constexpr bool may_idle<Epilogue, decltype((void)&Epilogue::idle)> = true;

template <typename Epilogue>
__device__ __forceinline__ bool is_idle(const Epilogue& epilogue) {
  if constexpr (may_idle<Epilogue>) {
    return epilogue.idle();
  } else {
    return false;
  }
}

// Whether a block opens an epilogue and closes it.
template <typename Epilogue, typename = void>
constexpr bool opens = false;
template <typename Epilogue>
constexpr bool opens<Epilogue, decltype((void)&Epilogue::open, (void)&Epilogue::close)> = true;

// Whether an epilogue takes sums of A's rows.
template <typename Epilogue, typename = void>
constexpr bool adds_rows = false;
template <typename Epilogue>
constexpr bool adds_rows<Epilogue, decltype((void)&Epilogue::row_weights)> = true;

}  // namespace tsm2
