// Rung 12: tiles in registers.
//
//                        tile of B: 8 × 128
//                       ┌───┬───┬───┬───┐
//                       └───┴───┴───┴───┘      A block of 16 × 16 threads computes a tile of C of 128 × 128 elements,
//               ┌─┐     ┌───┬───┬───┬───┐      and a thread 8 × 8 of them, in registers: vectors of 16 bytes (4 floats
//   tile of A:  │ │     │▒▒ │   │▒▒ │   │      or 2 doubles), which are 16 vectors apart. Then the threads of a warp
//   128 × 8     │ │     │   │   │   │   │      read neighboring vectors of B from shared memory.
//               │ │     ├───┼───┼───┼───┤
//               │ │     │▒▒ │   │▒▒ │   │      Per l, a thread loads 8 elements of A and 8 of B for 64
//               └─┘     └───┴───┴───┴───┘      multiplications.
//
// Each thread loads four elements of A and of B per tile, as one vector (doubles: two) where rows are aligned. The tile
// of A is stored transposed, so that the rows of a thread are neighbors and come in one load.
//
// What limits it: for floats, the multiplications, at last. For doubles, cuBLAS uses tensor cores, which multiply twice
// as fast as these units. A thread takes 140 to 250 registers, so that one block of 8 warps fits on a multiprocessor:
// while they wait for the next tile, nothing else runs. A skinny C has few tiles, most of them empty: with n = 8, 120
// of 128 columns are zeros.
//
// Next rung: TSM2 (tsm2_paper.cuh), made for a C of a few columns.
#pragma once
#include "kernels/ladder/rung.cuh"

namespace ladder {

// Loads four neighboring elements of a row, of which `rest` exist; the others are zeros. With `aligned`, `from` is at a
// multiple of 16 bytes.
template <typename T>
__device__ __forceinline__ simt::Vector<T, 4> four_of(const T* from, long long rest, bool aligned) {
  constexpr int wide = 16 / sizeof(T);
  simt::Vector<T, 4> four;
  if (aligned && rest >= 4) {
#pragma unroll
    for (int i = 0; i < 4; i += wide) {
      const auto some = *reinterpret_cast<const simt::Vector<T, wide>*>(from + i);
#pragma unroll
      for (int j = 0; j < wide; ++j) four[i + j] = some[j];
    }
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) four[i] = i < rest ? from[i] : T(0);
  }
  return four;
}

template <typename T>
__global__ void __launch_bounds__(256) register_tile(const T* A, const T* B, T* C, int m, int n, int k, long long lda,
                                                     long long ldb, long long ldc, T alpha, T beta) {
  constexpr int edge = 128, depth = 8, wide = 16 / sizeof(T);
  // `wide` more columns: the elements of A that a warp stores at the same time are then in different banks.
  __shared__ __align__(16) T tile_of_a[depth][edge + wide], tile_of_b[depth][edge];
  const Corner corner(n, edge, edge);
  const int x = threadIdx.x, y = threadIdx.y, thread = y * 16 + x;
  // The elements that this thread loads: of A row `row_of_a` from column `column_of_a` on, and likewise of B.
  const int row_of_a = thread / 2, column_of_a = thread % 2 * 4, row_of_b = thread / 32, column_of_b = thread % 32 * 4;
  const bool aligned_a = lda % wide == 0 && (unsigned long long)A % 16 == 0;
  const bool aligned_b = ldb % wide == 0 && (unsigned long long)B % 16 == 0;
  const long long row = corner.row + row_of_a, column = corner.column + column_of_b;
  T sums[8][8] = {};
#pragma unroll 1
  for (int begin = 0; begin < k; begin += depth) {
    const long long from_a = begin + column_of_a, from_b = begin + row_of_b;
    const auto a = four_of(A + row * lda + from_a, row < m ? k - from_a : 0, aligned_a);
    const auto b = four_of(B + from_b * ldb + column, from_b < k ? n - column : 0, aligned_b);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      tile_of_a[column_of_a + i][row_of_a] = a[i];
      tile_of_b[row_of_b][column_of_b + i] = b[i];
    }
    __syncthreads();
#pragma unroll
    for (int l = 0; l < depth; ++l) {
      T rows[8], columns[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        rows[i] = tile_of_a[l][i / wide * (16 * wide) + y * wide + i % wide];
        columns[i] = tile_of_b[l][i / wide * (16 * wide) + x * wide + i % wide];
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) {
#pragma unroll
        for (int j = 0; j < 8; ++j) sums[i][j] += rows[i] * columns[j];
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const long long to_row = corner.row + i / wide * (16 * wide) + y * wide + i % wide;
      const long long to_column = corner.column + j / wide * (16 * wide) + x * wide + j % wide;
      if (to_row < m && to_column < n) write(C + to_row * ldc + to_column, sums[i][j], alpha, beta);
    }
  }
}

}  // namespace ladder
