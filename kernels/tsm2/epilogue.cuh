// The epilogue contract: how a GEMM kernel passes its accumulators to an epilogue. store.cuh has the epilogues that
// store C.
//
// An epilogue is a class. The kernel calls it with complete sums, with all 32 lanes of a warp. kTakes selects the form:
//
//   kRows       template <typename Sums>
//               void operator()(const Sums& sums, long long row, int rows, long long column, int columns) const;
//
//               `sums(i, j)` is the sum of row + i and column + j, for i < rows and j < columns, in shared memory. The
//               epilogue may read the sums in any order (an arg-min along a row, a checksum).
//
//   kFragments  template <int kBlocks>
//               void fragments(long long row, int rows, long long column, int columns,
//                              const Sum (&d)[kBlocks][4]) const;
//
//               Accumulators in registers, as the tensor cores leave them. With g = lane / 4 and t = lane % 4,
//               d[j][2·half + i] is the sum of row + 8·half + g and column + 8·j + 2·t + i. It is valid if 8·half + g <
//               rows and 8·j + 2·t + i < columns.
//
//   kTile       template <int kBlocks, int kColumnBlocks>
//               void tile(unsigned char* scratch, long long row, int rows, long long column, int columns,
//                         const Sum (&d)[kBlocks][kColumnBlocks][4]) const;
//
//               All accumulators of a warp: d[i] is its block i of 16 rows. `scratch` is kBytes<kBlocks> bytes of
//               shared memory for this warp alone.
//
// Optional members:
//
//   bool idle() const      Returns true if the launch has nothing to do.
//   void open() const, void close() const
//                          All threads of a block call open() before its first sums, with a barrier after it, and
//                          close() after its last.
//   const Sum* row_weights
//                          Only with kFragments: requests weighted sums of the rows of A (weighted_row_sums.cuh) in
//                          d[kBlocks − 1]. Entry [2·half] is this lane's part of the sum of row + 8·half + g; the four
//                          lanes of a row hold its parts. There is one weight per depth, aligned to 16 bytes. Zeros
//                          follow, up to the end of the last tile and 16 more.
#pragma once
#include "kernels/device/simt.cuh"

namespace tsm2 {

// Rows of sums of a warp in shared memory, with a pitch of kPitch elements.
template <typename Sum, int pitch, int most_rows>
struct Sums {
  static constexpr int kPitch = pitch, kMostRows = most_rows;
  const Sum* first;
  __device__ const Sum& operator()(int i, int j) const { return first[i * kPitch + j]; }
};

enum class Takes { kRows, kFragments, kTile };

// Whether an epilogue has idle(), and the value of idle().
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

// Whether an epilogue has open() and close().
template <typename Epilogue, typename = void>
constexpr bool opens = false;
template <typename Epilogue>
constexpr bool opens<Epilogue, decltype((void)&Epilogue::open, (void)&Epilogue::close)> = true;

// Whether an epilogue requests weighted sums of A's rows.
template <typename Epilogue, typename = void>
constexpr bool adds_rows = false;
template <typename Epilogue>
constexpr bool adds_rows<Epilogue, decltype((void)&Epilogue::row_weights)> = true;

}  // namespace tsm2
