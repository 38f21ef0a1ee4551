// Rung 4: blocks of two dimensions, with warps along the rows of C.
//
//                     threadIdx.x →            a warp: threadIdx.x = 0 … 15 and two values of threadIdx.y
//                    ┌──┬──┬──┬──┐
//     threadIdx.y    │░░│░░│░░│░░│       element (row, column) of the tile belongs to the thread with
//          ↓         │░░│░░│░░│░░│       threadIdx.y = row and threadIdx.x = column
//                    │  │  │  │  │
//                    └──┴──┴──┴──┘
//
// Neighboring threads read neighboring elements of B and write neighboring elements of C. A warp, which has two rows,
// reads two elements of A.
//
// What limits it: two loads per multiplication, as before. The counter, the comparison, the branch and the
// addresses of the loop take more instructions than the multiplication.
//
// Next rung: fewer instructions for the loop.
#pragma once
#include "kernels/ladder/rung.cuh"

namespace ladder {

template <typename T, int edge>
__global__ void __launch_bounds__(edge* edge) coalesced(const T* A, const T* B, T* C, int m, int n, int k,
                                                        long long lda, long long ldb, long long ldc, T alpha, T beta) {
  const Corner corner(n, edge, edge);
  const long long row = corner.row + threadIdx.y, column = corner.column + threadIdx.x;
  if (row >= m || column >= n) return;
  T sum = 0;
#pragma unroll 1
  for (int l = 0; l < k; ++l) sum += A[row * lda + l] * B[l * ldb + column];
  write(C + row * ldc + column, sum, alpha, beta);
}

}  // namespace ladder
