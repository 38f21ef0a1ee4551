// Rung 5: the loop of rung 4, unrolled by four.
//
//   l = 0 1 2 3 │ 4 5 6 7 │ 8 9 10 11 │ 12        four products per pass; the last k % 4 one by one
//
// Four loads of A and four of B do not depend on each other, so all eight are in flight before the first product.
//
// What limits it: still two loads per multiplication. A multiprocessor of compute capability 9.0 executes 128
// multiplications of floats per clock (64 of doubles; 8.0: half as many), but loads only 128 bytes: 32 floats or 16
// doubles. Fewer instructions for the loop change little, and compilers unroll such loops without being asked.
//
// Next rung: elements that several threads need are loaded once, into shared memory.
#pragma once
#include "kernels/ladder/rung.cuh"

namespace ladder {

template <typename T, int edge>
__global__ void __launch_bounds__(edge* edge) unrolled(const T* A, const T* B, T* C, int m, int n, int k, long long lda,
                                                       long long ldb, long long ldc, T alpha, T beta) {
  const Corner corner(n, edge, edge);
  const long long row = corner.row + threadIdx.y, column = corner.column + threadIdx.x;
  if (row >= m || column >= n) return;
  const T* a = A + row * lda;
  const T* b = B + column;
  T sum = 0;
  int l = 0;
#pragma unroll 1
  for (; l + 4 <= k; l += 4) {
    sum += a[l] * b[l * ldb];
    sum += a[l + 1] * b[(l + 1) * ldb];
    sum += a[l + 2] * b[(l + 2) * ldb];
    sum += a[l + 3] * b[(l + 3) * ldb];
  }
#pragma unroll 1
  for (; l < k; ++l) sum += a[l] * b[l * ldb];
  write(C + row * ldc + column, sum, alpha, beta);
}

}  // namespace ladder
