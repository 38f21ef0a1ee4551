// TSM2R without tensor cores, column-major A: C (m × w) = alpha · A (m × k) · B (k × w) + beta · C, m and k large, w
// small.
//
//            k               w      w           A is column-major: a column is m consecutive numbers.
//       ┌─┬─┬─────┐        ┌────┐ ┌────┐
//  V    │v│v│ …   │      k │ B  │ │    │        A thread has V = 16 / sizeof(T) consecutive rows, and loads 16 bytes
//  rows ├─┼─┼─────┤   ×    │    │=│ C  │ m      of one column after another. It keeps the V × W sums of its rows in
//     m │         │        └────┘ │    │        registers, so A is read once for W columns of C.
//       └─────────┘               └────┘
//
// Why it is fast: each element of A is used W times and B remains in the level-2 cache, so the time is that of one read
// of A. A thread loads its next kUnroll vectors before it multiplies the current kUnroll vectors. All resident threads
// together have far more bytes in flight than latency × bandwidth. All threads of a warp read the same element of B
// from shared memory at once (a broadcast), and multiply it by V rows each. Loads have no cache hint: streaming loads
// (ld.global.cs) cost 6 % on an H200.
//
// One block per kThreads · V rows would not fill a GPU, so the columns of A are split among gridDim.y blocks. Of the
// blocks that compute the same rows of C, the last to arrive adds the partial sums in the order of the splits. The
// result has the same bits on every run.
#pragma once
#include "kernels/device/element.cuh"

namespace tsm2 {

// C ← alpha · sum + beta · C, for one element. With beta = 0, C is not read.
template <typename T, typename Sum>
struct StoreElement {
  T* C;
  long long row_stride, column_stride;
  Sum alpha, beta;

  __device__ void operator()(long long row, int column, Sum sum) const {
    T* c = C + row * row_stride + column * column_stride;
    *c = Element<T>::from(beta == Sum(0) ? alpha * sum : alpha * sum + beta * Element<T>::value(*c));
  }
};

// Loads 16 bytes from a 16-byte aligned address.
template <typename T, int V>
__device__ inline void load_vector(T (&into)[V], const T* from) {
  static_assert(sizeof(T) * V == sizeof(uint4), "a vector is 16 bytes");
  *reinterpret_cast<uint4*>(into) = *reinterpret_cast<const uint4*>(from);
}

// Launch: grid (⌈m / (kThreads·V)⌉, splits, ⌈w / W⌉), kThreads threads per block. Split y covers columns y·per_split to
// (y + 1)·per_split − 1 of A.
//   A[i, j] is A[i + j·lda]; with kVector, A and all its columns are aligned to 16 bytes
//   B[j, c] is B[j·b_row + c·b_column]
//   partial has V·W·kThreads sums per tile of C and split; arrived has one zero per tile of C. With one split, both are
//   unused. A tile of C has kThreads·V rows and W columns
template <typename T, typename Sum, int W, int kUnroll, int kThreads, int kBlocks, bool kVector, typename Epilogue>
__global__ void SIMT_RESIDENT(kThreads, kBlocks)
    tsm2r_columns(const T* A, long long lda, const T* B, long long b_row, long long b_column, long long m, long long k,
                  int w, long long per_split, Sum* partial, unsigned* arrived, Epilogue epilogue) {
  constexpr int V = 16 / sizeof(T), kTile = 64;
  static_assert(kTile % kUnroll == 0, "a tile of B must be a whole number of steps");
  __shared__ __align__(16) Sum tile_of_B[kTile][W];
  const long long first = ((long long)blockIdx.x * kThreads + threadIdx.x) * V;
  const int rows = first >= m ? 0 : m - first < V ? (int)(m - first) : V;
  const int column = blockIdx.z * W;
  const long long begin = blockIdx.y * per_split, end = begin + per_split < k ? begin + per_split : k;

  T now[kUnroll][V], next[kUnroll][V];
  auto load_next = [&](long long j) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const T* from = A + first + (j + u) * lda;
      if (kVector && rows == V && j + u < end) {
        load_vector(next[u], from);
      } else {
#pragma unroll
        for (int v = 0; v < V; ++v) next[u][v] = v < rows && j + u < end ? from[v] : T{};
      }
    }
  };

  Sum sums[W][V] = {};
  load_next(begin);
  for (long long tile = begin; tile < end; tile += kTile) {
    __syncthreads();
    for (int i = threadIdx.x; i < kTile * W; i += kThreads) {
      const long long j = tile + i / W;
      const int c = column + i % W;
      tile_of_B[i / W][i % W] = j < end && c < w ? Element<T>::value(B[j * b_row + c * b_column]) : Sum(0);
    }
    __syncthreads();
#pragma unroll 1
    for (int j = 0; j < kTile; j += kUnroll) {
#pragma unroll
      for (int u = 0; u < kUnroll; ++u)
#pragma unroll
        for (int v = 0; v < V; ++v) now[u][v] = next[u][v];
      load_next(tile + j + kUnroll);
#pragma unroll
      for (int u = 0; u < kUnroll; ++u)
#pragma unroll
        for (int c = 0; c < W; ++c) {
          const Sum b = tile_of_B[j + u][c];
#pragma unroll
          for (int v = 0; v < V; ++v) sums[c][v] += Element<T>::value(now[u][v]) * b;
        }
    }
  }

  if (gridDim.y > 1) {
    const long long tile = (long long)blockIdx.z * gridDim.x + blockIdx.x;
    Sum* mine = partial + tile * gridDim.y * (W * V * kThreads) + threadIdx.x;
#pragma unroll
    for (int i = 0; i < W * V; ++i) mine[((long long)blockIdx.y * W * V + i) * kThreads] = sums[i / V][i % V];
    if (!simt::last_to_arrive(&arrived[tile], gridDim.y)) return;
#pragma unroll
    for (int i = 0; i < W * V; ++i) {
      Sum sum = 0;
      for (unsigned split = 0; split < gridDim.y; ++split)
        sum += simt::load_from_other_block(&mine[((long long)split * W * V + i) * kThreads]);
      sums[i / V][i % V] = sum;
    }
  }
#pragma unroll
  for (int c = 0; c < W; ++c)
#pragma unroll
    for (int v = 0; v < V; ++v)
      if (v < rows && column + c < w) epilogue(first + v, column + c, sums[c][v]);
}

}  // namespace tsm2
