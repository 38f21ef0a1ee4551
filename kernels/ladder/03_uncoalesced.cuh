// Rung 3: blocks of two dimensions, with warps down the columns of C.
//
//                     threadIdx.y →            a warp: threadIdx.x = 0 … 15 and two values of threadIdx.y
//                    ┌──┬──┬──┬──┐
//     threadIdx.x    │░░│░░│  │  │       element (row, column) of the tile belongs to the thread with
//          ↓         │░░│░░│  │  │       threadIdx.x = row and threadIdx.y = column
//                    └──┴──┴──┴──┘
//
// What limits it: neighboring threads of a warp read and write elements in different rows, which are a whole row of
// memory apart. One load of A touches 16 sectors of 32 bytes for 16 elements, and a store to C 16 sectors for 32. The
// next l find the same sectors in the level-1 cache, but each load still takes 16 of its lines.
//
// Next rung: the same with rows and columns exchanged.
#pragma once
#include "kernels/ladder/rung.cuh"

namespace ladder {

template <typename T, int edge>
__global__ void __launch_bounds__(edge* edge)
    uncoalesced(const T* A, const T* B, T* C, int m, int n, int k, long long lda, long long ldb, long long ldc, T alpha,
                T beta) {
  const Corner corner(n, edge, edge);
  const long long row = corner.row + threadIdx.x, column = corner.column + threadIdx.y;
  if (row >= m || column >= n) return;
  T sum = 0;
#pragma unroll 1
  for (int l = 0; l < k; ++l) sum += A[row * lda + l] * B[l * ldb + column];
  write(C + row * ldc + column, sum, alpha, beta);
}

}  // namespace ladder
