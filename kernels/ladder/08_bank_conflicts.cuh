// Rung 8: the tile of B transposed in shared memory, with bank conflicts.
//
//   tile of B in memory, 32 banks of 4 bytes           In the loop, thread x of a warp reads element l of row x. These
//              l →                                     elements lie in one column of the tile, and all elements of a
//            bank 0  bank 1  …  bank 31                column are in the same bank: one bank answers 32 loads one after
//     row 0    ▒                                       the other, while 31 banks wait. When the tile is stored, a warp
//   x row 1    ▒                                       writes a column too.
//   ↓ row 2    ▒
//
// What limits it: bank conflicts. A load of B takes 32 times as long as in rung 6; of doubles, which have two banks
// each, 16 times, because it takes two clocks there already. Loads of A are as before.
//
// Next rung: the same tile, with rows that begin in different banks.
#pragma once
#include "kernels/ladder/rung.cuh"

namespace ladder {

template <typename T, int edge, int pad>
__global__ void __launch_bounds__(edge* edge)
    transposed_tile(const T* A, const T* B, T* C, int m, int n, int k, long long lda, long long ldb, long long ldc,
                    T alpha, T beta) {
  __shared__ T tile_of_a[edge][edge], tile_of_b[edge][edge + pad];
  const Corner corner(n, edge, edge);
  const int x = threadIdx.x, y = threadIdx.y;
  const long long row = corner.row + y, column = corner.column + x;
  T sum = 0;
#pragma unroll 1
  for (int begin = 0; begin < k; begin += edge) {
    tile_of_a[y][x] = row < m && begin + x < k ? A[row * lda + begin + x] : T(0);
    tile_of_b[x][y] = begin + y < k && column < n ? B[(begin + y) * ldb + column] : T(0);
    __syncthreads();
#pragma unroll 1
    for (int l = 0; l < edge; ++l) sum += tile_of_a[y][l] * tile_of_b[x][l];
    __syncthreads();
  }
  if (row < m && column < n) write(C + row * ldc + column, sum, alpha, beta);
}

}  // namespace ladder
