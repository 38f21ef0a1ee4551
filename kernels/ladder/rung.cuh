// What all rungs of the ladder share. Each rung is a kernel that computes C = alpha · A · B + beta · C.
//
//                                       n
//                                 ┌───────────┐
//                               k │     B     │      all row-major: element (row, column) of A is A[row · lda + column]
//                         k       │           │
//                    ┌─────────┐  ├───────────┤      A block computes a tile of C. Tiles are numbered row by row, and
//                    │    A    │  │  0  1  2  │      block i computes tile i. A grid has up to 2³¹ − 1 blocks in x,
//                  m │         │  │  3  4  5  │      but 65,535 in y, too few for the tiles of a tall C: so it has
//                    │         │  │  6  7  8  │      one dimension.
//                    └─────────┘  └───────────┘
//                                       C
//
// Plain CUDA C++, which compiles for HIP too.
#pragma once
#include "kernels/device/simt.cuh"

namespace ladder {

// The first row and column of C that this block computes, if tiles have `rows` × `columns` elements.
struct Corner {
  long long row, column;

  __device__ __forceinline__ Corner(int n, int rows, int columns) {
    const int across = (n - 1) / columns + 1;
    row = (long long)(blockIdx.x / across) * rows;
    column = (long long)(blockIdx.x % across) * columns;
  }
};

// Writes an element of C from its sum. Without beta, C is not read: it may have no values yet.
template <typename T>
__device__ __forceinline__ void write(T* c, T sum, T alpha, T beta) {
  *c = beta == 0 ? alpha * sum : alpha * sum + beta * *c;
}

}  // namespace ladder
