// Rung 2: a grid-stride loop. As many threads as the GPU holds share out the elements of C.
//
//   thread         0    1    2   …  t−1   0     1    …         t = number of threads of the grid
//   element of C   0    1    2   …  t−1   t    t+1   …         element i is in row i / n and column i % n
//
// Each element is the inner product of a row of A and a column of B, which the thread reads from global memory.
//
// What limits it: every multiplication needs two loads. Neighboring threads read neighboring columns of B (coalesced)
// and, within a row of C, the same element of A (one broadcast), so that the caches answer most loads; but each load is
// an instruction. The division by n takes tens of instructions per element.
//
// Next rung: blocks of two dimensions need no division, but the dimensions can be the wrong way round.
#pragma once
#include "kernels/ladder/rung.cuh"

namespace ladder {

template <typename T>
__global__ void grid_stride(const T* A, const T* B, T* C, int m, int n, int k, long long lda, long long ldb,
                            long long ldc, T alpha, T beta) {
  const long long elements = (long long)m * n, threads = (long long)gridDim.x * blockDim.x;
  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < elements; i += threads) {
    const long long row = i / n, column = i % n;
    T sum = 0;
#pragma unroll 1
    for (int l = 0; l < k; ++l) sum += A[row * lda + l] * B[l * ldb + column];
    write(C + row * ldc + column, sum, alpha, beta);
  }
}

}  // namespace ladder
