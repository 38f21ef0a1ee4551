// Rung 10: tiles in shared memory, with the loop over a tile unrolled.
//
//   rung 6                                     rung 10
//   load a, load b, multiply                   load 4 a at once, load b, multiply, load b, multiply, …
//   add 1 to l, compare, branch, addresses     no counter, no branch: addresses are constants in the instructions
//
// The number of passes is known when the kernel is compiled, so the loop can disappear. Four neighboring floats of a
// row of A, or two doubles, then come in one load of 16 bytes.
//
// What limits it: 1.25 loads from shared memory per multiplication (doubles: 1.5).
//
// Next rung: a thread computes more than one element of C, and uses each element that it loads more than once.
#pragma once
#include "kernels/ladder/rung.cuh"

namespace ladder {

template <typename T, int edge>
__global__ void __launch_bounds__(edge* edge)
    unrolled_tile(const T* A, const T* B, T* C, int m, int n, int k, long long lda, long long ldb, long long ldc,
                  T alpha, T beta) {
  __shared__ T tile_of_a[edge][edge], tile_of_b[edge][edge];
  const Corner corner(n, edge, edge);
  const int x = threadIdx.x, y = threadIdx.y;
  const long long row = corner.row + y, column = corner.column + x;
  T sum = 0;
#pragma unroll 1
  for (int begin = 0; begin < k; begin += edge) {
    tile_of_a[y][x] = row < m && begin + x < k ? A[row * lda + begin + x] : T(0);
    tile_of_b[y][x] = begin + y < k && column < n ? B[(begin + y) * ldb + column] : T(0);
    __syncthreads();
#pragma unroll
    for (int l = 0; l < edge; ++l) sum += tile_of_a[y][l] * tile_of_b[l][x];
    __syncthreads();
  }
  if (row < m && column < n) write(C + row * ldc + column, sum, alpha, beta);
}

}  // namespace ladder
