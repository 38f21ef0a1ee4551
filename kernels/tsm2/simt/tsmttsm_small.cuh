// TSMTTSM without tensor cores, few rows and columns: C (m × w) = alpha · A (m × k) · B (k × w) + beta · C with k large
// and m · w at most 64.
//
//      along the depth                       across it, without gaps
//        k →                                   m, w →
//      ┌────┬────┬────┐ m lines of A         ┌───┐ ┌──┐
//      │ ▒▒ │    │    │                      │▒▒▒│ │▒▒│ kDepth    A *piece* is kDepth terms of the sums: 16 bytes of
//      ├────┼────┼────┤ w lines of B         ├───┤ ├──┤           each line, or enough lines of each operand to be
//      │ ▒▒ │    │    │                    k │   │ │  │           whole 16-byte vectors.
//      └────┴────┴────┘                      └───┘ └──┘
//
// Consecutive threads process consecutive pieces; each thread has all m · w sums in registers. Each block reduces the
// sums of its threads by shuffles and shared memory, and writes the results to `partial`. The last block to arrive adds
// the sums of all blocks in a fixed order, so C has the same bits on every run.
//
// Why it is fast: between loads a thread only multiplies and adds, and neighboring threads load neighboring vectors.
// Tensor cores would need the data in shared memory first, and would multiply blocks of 16 × 8 that are mostly padding.
#pragma once
#include "kernels/device/element.cuh"

namespace tsm2 {

// Launch: any grid, kThreads threads per block. With kAlong, lines run along the depth: line i of A is at A + i·lda and
// line c of B at B + c·ldb, aligned to 16 bytes. Otherwise A[i, j] is A[j·M + i] and B[j, c] is B[j·W + c], and both
// begin at multiples of 16 bytes. `partial` has space for gridDim.x · M · W sums; `arrived` points to a zero.
template <typename T, typename Sum, int M, int W, bool kAlong, int kDepth, int kThreads>
__global__ void __launch_bounds__(kThreads)
    tsmttsm_small(const T* A, long long lda, const T* B, long long ldb, T* C, long long c_row, long long c_column,
                  long long k, Sum* partial, unsigned* arrived, Sum alpha, Sum beta) {
  constexpr int kVector = 16 / sizeof(T), kSums = M * W, kWarps = kThreads / simt::warp_size;
  static_assert(kAlong ? kDepth == kVector : kDepth * M % kVector == 0 && kDepth * W % kVector == 0,
                "a piece must be whole vectors");
  using Vector = simt::Vector<T, kVector>;
  // Number of vectors per piece of A and of B: with kAlong one per line, else the vectors of kDepth consecutive lines.
  constexpr int kA = kAlong ? M : kDepth * M / kVector, kB = kAlong ? W : kDepth * W / kVector;
  Sum sums[M][W] = {};
  const long long pieces = k / kDepth, stride = (long long)gridDim.x * kThreads;
  const long long first = (long long)blockIdx.x * kThreads + threadIdx.x;
#pragma unroll 2
  for (long long piece = first; piece < pieces; piece += stride) {
    Vector a[kA], b[kB];
#pragma unroll
    for (int i = 0; i < kA; ++i) {
      const T* from = kAlong ? A + i * lda + piece * kDepth : A + piece * (kDepth * M) + i * kVector;
      a[i] = *reinterpret_cast<const Vector*>(from);
    }
#pragma unroll
    for (int i = 0; i < kB; ++i) {
      const T* from = kAlong ? B + i * ldb + piece * kDepth : B + piece * (kDepth * W) + i * kVector;
      b[i] = *reinterpret_cast<const Vector*>(from);
    }
#pragma unroll
    for (int j = 0; j < kDepth; ++j)
#pragma unroll
      for (int i = 0; i < M; ++i) {
        const int at = j * M + i;
        const Sum x = Element<T>::value(kAlong ? a[i % kA][j % kVector] : a[at / kVector % kA][at % kVector]);
#pragma unroll
        for (int c = 0; c < W; ++c) {
          const int of_b = j * W + c;
          const T y = kAlong ? b[c % kB][j % kVector] : b[of_b / kVector % kB][of_b % kVector];
          sums[i][c] += x * Element<T>::value(y);
        }
      }
  }
  // The last k % kDepth terms of the sums, which are not a whole piece.
  for (long long j = pieces * kDepth + first; j < k; j += stride) {
#pragma unroll
    for (int i = 0; i < M; ++i)
#pragma unroll
      for (int c = 0; c < W; ++c) {
        const T x = kAlong ? A[i * lda + j] : A[j * M + i], y = kAlong ? B[c * ldb + j] : B[j * W + c];
        sums[i][c] += Element<T>::value(x) * Element<T>::value(y);
      }
  }

  __shared__ Sum of_warps[kWarps][kSums];
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    const Sum sum = simt::warp_sum(sums[i / W][i % W]);
    if (simt::lane() == 0) of_warps[threadIdx.x / simt::warp_size][i] = sum;
  }
  __syncthreads();
  if (threadIdx.x < kSums) {
    Sum sum = 0;
    for (int warp = 0; warp < kWarps; ++warp) sum += of_warps[warp][threadIdx.x];
    partial[blockIdx.x * kSums + threadIdx.x] = sum;
  }
  if (!simt::last_to_arrive(arrived, gridDim.x)) return;
  // The threads form kParts groups. Each group adds the sums of every kParts-th block; then the sums of the groups are
  // added.
  constexpr int kParts = kThreads / kSums;
  __shared__ Sum of_parts[kParts][kSums];
  const int part = threadIdx.x / kSums, i = threadIdx.x % kSums;
  if (part < kParts) {
    Sum sum = 0;
    for (unsigned block = part; block < gridDim.x; block += kParts) {
      sum += simt::load_from_other_block(&partial[block * kSums + i]);
    }
    of_parts[part][i] = sum;
  }
  __syncthreads();
  if (threadIdx.x < kSums) {
    Sum sum = 0;
    for (int one = 0; one < kParts; ++one) sum += of_parts[one][i];
    T* to = C + i / W * c_row + i % W * c_column;
    *to = Element<T>::from(beta == Sum(0) ? alpha * sum : alpha * sum + beta * Element<T>::value(*to));
  }
}

}  // namespace tsm2
