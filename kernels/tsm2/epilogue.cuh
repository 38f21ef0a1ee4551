// The epilogue contract: how a GEMM kernel passes its accumulators to an epilogue. store.cuh has the epilogues that
// store C.
//
// An epilogue is a class. All 32 lanes of a warp call it together, once their sums are complete. The constant kTakes of
// the class selects the member function that they call:
//
//   kRows       template <typename Sums>
//               void operator()(const Sums& sums, long long row, int rows, long long column, int columns) const;
//
//               The sums are in shared memory. sums(i, j) is the element of A · B in row `row` + i and column `column`
//               + j, for i < rows and j < columns. Lanes may read the sums of other lanes, for example for an arg-min
//               along a row.
//
//   kFragments  template <int kBlocks>
//               void fragments(long long row, int rows, long long column, int columns,
//                              const Sum (&d)[kBlocks][4]) const;
//
//               Accumulators in registers, as the tensor cores leave them. With g = lane / 4 and t = lane % 4,
//               d[j][2·half + i] is the element in row `row` + 8·half + g and column `column` + 8·j + 2·t + i. It is
//               valid if 8·half + g < rows and 8·j + 2·t + i < columns.
//
//   kTile       template <int kBlocks, int kColumnBlocks>
//               void tile(unsigned char* scratch, long long row, int rows, long long column, int columns,
//                         const Sum (&d)[kBlocks][kColumnBlocks][4]) const;
//
//               All accumulators of a warp. d[i] holds the 16 rows that begin at `row` + 16·i, in the layout of
//               kFragments. `scratch` is kBytes<kBlocks> bytes of shared memory that only this warp uses.
//
// Optional members:
//
//   bool idle() const      Returns true if the launch has nothing to do.
//   void open() const, void close() const
//                          All threads of a block call open() before the block's first sums and close() after its
//                          last sums. A barrier of the block follows open().
//   const Sum* row_weights
//                          Only with kFragments: requests weighted sums of the rows of A (weighted_row_sums.cuh). The
//                          sum of row `row` + 8·half + g is the sum of d[kBlocks − 1][2·half] over the four lanes with
//                          this g. row_weights points to one weight per depth, aligned to 16 bytes. After the weights,
//                          the array has zeros up to the end of the last work unit, and then 16 more zeros.
#pragma once
#include "kernels/device/simt.cuh"

namespace tsm2 {

// Sums of a warp in shared memory: at most kMostRows rows. Row i begins at element i · kPitch.
template <typename Sum, int pitch, int most_rows>
struct Sums {
  static constexpr int kPitch = pitch, kMostRows = most_rows;
  const Sum* first;
  __device__ const Sum& operator()(int i, int j) const { return first[i * kPitch + j]; }
};

enum class Takes { kRows, kFragments, kTile };

// may_idle is true if the epilogue has a member idle(). is_idle returns the value of idle(), or false if there is none.
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

// True if the epilogue has the members open() and close().
template <typename Epilogue, typename = void>
constexpr bool opens = false;
template <typename Epilogue>
constexpr bool opens<Epilogue, decltype((void)&Epilogue::open, (void)&Epilogue::close)> = true;

// True if the epilogue has a member row_weights, which requests weighted sums of the rows of A.
template <typename Epilogue, typename = void>
constexpr bool adds_rows = false;
template <typename Epilogue>
constexpr bool adds_rows<Epilogue, decltype((void)&Epilogue::row_weights)> = true;

}  // namespace tsm2
