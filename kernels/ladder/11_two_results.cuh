// Rung 11: two results per thread.
//
//   tile of C: edge × edge         A block has edge × edge / 2 threads. Thread (x, y) computes the elements in rows y
//     ┌─────────┐                  and y + edge / 2 of column x, and loads two elements of each tile.
//     │  ▒ y    │
//     ├─────────┤                  In the loop, one load of B serves two multiplications. For four l, a thread
//     │  ▒ y + edge / 2            loads six times for eight multiplications of floats; in rung 10, five times for
//     └─────────┘                  four. The two sums do not wait for each other.
//
// What limits it: still three loads from shared memory for four multiplications.
//
// Next rung: a thread computes 8 × 8 results, with 16 loads for 64 multiplications.
#pragma once
#include "kernels/ladder/rung.cuh"

namespace ladder {

template <typename T, int edge>
__global__ void __launch_bounds__(edge* edge / 2)
    two_results(const T* A, const T* B, T* C, int m, int n, int k, long long lda, long long ldb, long long ldc, T alpha,
                T beta) {
  constexpr int half = edge / 2;
  __shared__ T tile_of_a[edge][edge], tile_of_b[edge][edge];
  const Corner corner(n, edge, edge);
  const int x = threadIdx.x;
  const long long column = corner.column + x;
  T sums[2] = {};
#pragma unroll 1
  for (int begin = 0; begin < k; begin += edge) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int y = threadIdx.y + i * half;
      const long long row = corner.row + y;
      tile_of_a[y][x] = row < m && begin + x < k ? A[row * lda + begin + x] : T(0);
      tile_of_b[y][x] = begin + y < k && column < n ? B[(begin + y) * ldb + column] : T(0);
    }
    __syncthreads();
#pragma unroll
    for (int l = 0; l < edge; ++l) {
      const T b = tile_of_b[l][x];
      sums[0] += tile_of_a[threadIdx.y][l] * b;
      sums[1] += tile_of_a[threadIdx.y + half][l] * b;
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const long long row = corner.row + threadIdx.y + i * half;
    if (row < m && column < n) write(C + row * ldc + column, sums[i], alpha, beta);
  }
}

}  // namespace ladder
