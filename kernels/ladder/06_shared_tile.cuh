// Rung 6: tiles in shared memory.
//
//                                    ┌──┐
//                                    │▒▒│ ↓   tile of B: edge × edge
//                                    │  │
//                    ┌──┬─────────┐  ├──┤   A block computes an edge × edge tile of C. It goes along k by `edge` at a
//                    │▒▒│ →       │  │▒▒│   time: each thread loads an element of A and an element of B, and then
//                    └──┴─────────┘  └──┘   multiplies a row by a column of the two tiles.
//              tile of A: edge × edge
//
// Outside A and B, tiles have zeros, so that no size needs to be a multiple of the edge.
//
// Each thread then loads 1 / edge as many elements from global memory as in rung 4. With an edge of 8, a row of a tile
// is one sector of 32 bytes (doubles: two); with 32, one line of 128 bytes (doubles: two).
//
// What limits it: shared memory. Each multiplication takes two loads from it. A warp's load of 32 different floats
// takes a clock, of doubles two. With an edge of 32, at most two blocks fit on a multiprocessor, so that a barrier
// stops half of its warps, or all.
//
// Next rung: does it help if rows begin at multiples of a sector?
#pragma once
#include "kernels/ladder/rung.cuh"

namespace ladder {

// `unrolled`: how many passes of the loop over a tile are unrolled; rung 10 unrolls all of them.
template <typename T, int edge, int unrolled = 1>
__global__ void __launch_bounds__(edge* edge)
    shared_tile(const T* A, const T* B, T* C, int m, int n, int k, long long lda, long long ldb, long long ldc, T alpha,
                T beta) {
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
#pragma unroll unrolled
    for (int l = 0; l < edge; ++l) sum += tile_of_a[y][l] * tile_of_b[l][x];
    __syncthreads();
  }
  if (row < m && column < n) write(C + row * ldc + column, sum, alpha, beta);
}

}  // namespace ladder
