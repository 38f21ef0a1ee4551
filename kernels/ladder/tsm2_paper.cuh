// TSM2 as published (Chen et al., "TSM2: optimizing tall-and-skinny matrix-matrix multiplication on GPUs", ICS '19): C
// = A·B by four kernels, V0 to V3. Each kernel adds one optimization to the previous kernel. They are the baseline for
// the kernels in tsm2/.
//
// Shapes: A (m × k) is large in both dimensions, B (k × w) and C (m × w) are skinny, w ≪ k. All are column-major:
// element (r, c) of A is A[r + c·lda]. A block of t1 threads computes t1 rows of C. Each thread computes one row of C,
// and reads the same row of A from left to right.
//
//                                              p   p + t2
//                                          ┌───┬───┬───┐
//                                        j ├ ─ ┼───┼ ─ ┤
//                                          │   │▒▒▒│   │  the tile of B (t1 × t2)
//                                          │   │▒▒▒│   │  in the block's shared memory
//                       B (k × w)   j + t1 ├ ─ ┼───┼ ─ ┤
//                                          └───┴───┴───┘
//                     l  l + t3
//      ┌──────────────┬──┬──────────────┐  ┌───┬───┬───┐
//      │              │  │              │  │   │   │   │
//      ├──────────────┼──┼──────────────┤  ├───┼───┼───┤
//      │ thread 0     │▒▒│              │  │   │▒▒▒│   │
//      │ thread 1     │▒▒│ ──▸          │  │   │▒▒▒│   │  t2 sums per thread, in registers
//      │ …            │▒▒│              │  │   │▒▒▒│   │
//      ├──────────────┼──┼──────────────┤  ├───┼───┼───┤
//      │              │  │              │  │   │   │   │
//      └──────────────┴──┴──────────────┘  └───┴───┴───┘
//        A (m × k)                           C (m × w)
//
// Why it is fast: threads of a warp process neighboring rows, so their reads of every column of A are coalesced. Each
// version reads A or B less often than the previous version, or hides the latency of these reads:
//
//   V0  inner product   C[i, c] = Σₗ A[i, l]·B[l, c], one column c after the other. Reads A w times.
//   V1  outer product   Computes t2 columns of C at a time: each loaded element of A multiplies t2 elements of B.
//                       The t2 sums are in registers. Reads A ⌈w / t2⌉ times. Every thread reads all of B from global
//                       memory. The threads of a warp read the same address, so a read uses 4 or 8 bytes of a 32-byte
//                       sector.
//   V2  + shared B      The block loads a t1 × t2 tile of B together, one row per thread: neighboring threads read
//                       neighboring addresses. B is read from global memory once per block, not once per thread. In
//                       shared memory the tile is column-major too. When threads store the tile, neighboring threads
//                       write to neighboring banks. When threads use the tile, all of them read the same element (a
//                       broadcast). Neither access has bank conflicts.
//   V3  + prefetch      In V2 a thread waits for its loads before it multiplies. V3 loads nextA (t3 elements of its
//                       row) and nextB (one row of the next tile) into registers while it multiplies currA and currB.
//                       The multiplications do not depend on loads in flight.
//
// t1 is the number of threads that use the same tile of B. t2 determines how often A is read. It also determines the
// registers per thread, which hold t2 sums and t2 prefetched elements of B. t3 is the number of loads of A in flight
// per thread. The paper selects t2 and t3 by a model of bandwidth, latency and occupancy, and t1 by trial.
//
// The kernels support all m, k, w ≥ 1. In V2 and V3, all threads must reach the barriers, so a thread beyond the last
// row recomputes the last row and writes nothing. Elements beyond the last column of A or outside B count as zeros. C
// is not written beyond its last column.
//
// Launch: ⌈m / t1⌉ blocks of t1 threads, no dynamic shared memory; t1·t2·sizeof(T) ≤ 48 KB. Only loops over t2 and t3
// are unrolled, as in the paper: unrolling other loops would take more registers than the paper's model counts.
#pragma once
#include "kernels/device/simt.cuh"

namespace tsm2 {

// a ← t3 elements of a row of A from `from` on. The row has `rest` elements left; elements beyond the end of the row
// are zeros.
template <typename T, int t3>
__device__ __forceinline__ void load_row(T (&a)[t3], const T* from, long long lda, int rest) {
#pragma unroll
  for (int b = 0; b < t3; ++b, from += lda) a[b] = b < rest ? *from : T(0);
}

// b ← elements (row, p … p + t2 − 1) of B; zeros outside B.
template <typename T, int t2>
__device__ __forceinline__ void load_tile(T (&b)[t2], const T* B, long long ldb, long long row, long long k, int p,
                                          int w) {
  const T* from = B + row + p * ldb;
  const int columns = row < k ? w - p : 0;
#pragma unroll
  for (int a = 0; a < t2; ++a, from += ldb) b[a] = a < columns ? *from : T(0);
}

// Stores this thread's row of the tile in shared memory.
template <int t1, typename T, int t2>
__device__ __forceinline__ void store_tile(T (&tile)[t1 * t2], const T (&b)[t2]) {
#pragma unroll
  for (int a = 0; a < t2; ++a) tile[threadIdx.x + a * t1] = b[a];
}

// c ← c + a · (rows l … l + t3 − 1 of the tile).
template <int t1, typename T, int t2, int t3>
__device__ __forceinline__ void multiply(T (&c)[t2], const T (&a)[t3], const T (&tile)[t1 * t2], int l) {
#pragma unroll
  for (int b = 0; b < t3; ++b) {
#pragma unroll
    for (int q = 0; q < t2; ++q) c[q] += a[b] * tile[l + b + q * t1];
  }
}

// Stores columns p … p + t2 − 1 of this thread's row of C.
template <typename T, int t2>
__device__ __forceinline__ void store_sums(T* C, long long ldc, long long row, long long m, int p, int w,
                                           const T (&c)[t2]) {
  if (row >= m) return;
  T* to = C + row + p * ldc;
#pragma unroll
  for (int a = 0; a < t2; ++a, to += ldc) {
    if (p + a < w) *to = c[a];
  }
}

// The parameters of all four kernels. They are separate parameters, not a structure, so that __restrict__ tells the
// compiler that A, B and C do not overlap.
#define TSM2_PARAMETERS                                                                                                \
  const T *__restrict__ A, const T *__restrict__ B, T *__restrict__ C, long long m, long long k, int w, long long lda, \
      long long ldb, long long ldc

// V0: inner product. t2 and t3 are not used.
template <typename T, int t1, int t2, int t3>
__global__ SIMT_BLOCK(t1) void tsm2_v0(TSM2_PARAMETERS) {
  const long long row = (long long)blockIdx.x * t1 + threadIdx.x;
  if (row >= m) return;
  for (int p = 0; p < w; ++p) {
    T sum = 0;
#pragma unroll 1
    for (long long l = 0; l < k; ++l) sum += A[row + l * lda] * B[l + p * ldb];
    C[row + p * ldc] = sum;
  }
}

// V1: outer product. t3 is not used.
template <typename T, int t1, int t2, int t3>
__global__ SIMT_BLOCK(t1) void tsm2_v1(TSM2_PARAMETERS) {
  const long long row = (long long)blockIdx.x * t1 + threadIdx.x;
  if (row >= m) return;
  for (int p = 0; p < w; p += t2) {
    T currC[t2] = {};
#pragma unroll 1
    for (long long l = 0; l < k; ++l) {
      const T currA = A[row + l * lda];
      T currB[t2];
      load_tile(currB, B, ldb, l, k, p, w);
#pragma unroll
      for (int a = 0; a < t2; ++a) currC[a] += currA * currB[a];
    }
    store_sums(C, ldc, row, m, p, w, currC);
  }
}

// V2: outer product with tiles of B in shared memory.
template <typename T, int t1, int t2, int t3>
__global__ SIMT_BLOCK(t1) void tsm2_v2(TSM2_PARAMETERS) {
  static_assert(t1 % t3 == 0, "a tile of B must hold whole steps of A");
  __shared__ T currB[t1 * t2];
  const long long row = (long long)blockIdx.x * t1 + threadIdx.x;

#pragma unroll 1
  for (int p = 0; p < w; p += t2) {
    const T* from = A + (row < m ? row : m - 1);
    T currC[t2] = {};
#pragma unroll 1
    for (long long j = 0; j < k; j += t1) {
      __syncthreads();  // all threads have used the previous tile
      T mine[t2];
      load_tile(mine, B, ldb, j + threadIdx.x, k, p, w);
      store_tile<t1>(currB, mine);
      __syncthreads();  // the tile is complete
      const int rest = k - j < t1 ? (int)(k - j) : t1;
#pragma unroll 1
      for (int l = 0; l < rest; l += t3, from += t3 * lda) {
        T currA[t3];
        load_row(currA, from, lda, rest - l);
        multiply<t1>(currC, currA, currB, l);
      }
    }
    store_sums(C, ldc, row, m, p, w, currC);
  }
}

// V3: V2 with prefetched elements of A and tiles of B.
template <typename T, int t1, int t2, int t3>
__global__ SIMT_BLOCK(t1) void tsm2_v3(TSM2_PARAMETERS) {
  static_assert(t1 % t3 == 0, "a tile of B must hold whole steps of A");
  __shared__ T currB[t1 * t2];
  const long long row = (long long)blockIdx.x * t1 + threadIdx.x;

#pragma unroll 1
  for (int p = 0; p < w; p += t2) {
    const T* from = A + (row < m ? row : m - 1);
    T currC[t2] = {}, currA[t3], nextA[t3], nextB[t2];
    load_row(currA, from, lda, k < t3 ? (int)k : t3);
    load_tile(nextB, B, ldb, threadIdx.x, k, p, w);
    store_tile<t1>(currB, nextB);  // safe: all reads of currB precede the last barrier of the loop over j
#pragma unroll 1
    for (long long j = 0; j < k; j += t1) {
      __syncthreads();  // the tile is complete
      load_tile(nextB, B, ldb, j + t1 + threadIdx.x, k, p, w);
      // Number of elements of the row in this tile (from column j on) and in the first t3 columns of the next tile.
      const int rest = k - j < t1 + t3 ? (int)(k - j) : t1 + t3;
#pragma unroll 1
      for (int l = 0; l < t1 && l < rest; l += t3) {
        from += t3 * lda;
        load_row(nextA, from, lda, rest - l - t3);
        multiply<t1>(currC, currA, currB, l);
#pragma unroll
        for (int b = 0; b < t3; ++b) currA[b] = nextA[b];
      }
      __syncthreads();  // all threads have used the tile
      store_tile<t1>(currB, nextB);
    }
    store_sums(C, ldc, row, m, p, w, currC);
  }
}

#undef TSM2_PARAMETERS

}  // namespace tsm2
