// TSM2L without tensor cores, row-major and wide: C (m × w) = alpha · A (m × k) · B (k × w) + beta · C, k at most 8.
//
//         k           w             A and C are row-major without gaps. C is one sequence of 16-byte vectors;
//       ┌───┐    ┌──────────┐       consecutive threads compute consecutive vectors. A block computes whole rows of C,
//       │a₀ │  k │    B     │       so a thread always computes the same columns. It keeps these columns of B in
//       │a₁ │    └──────────┘       registers.
//     m │   │ ×  ┌──────────┐       If w is not a multiple of the vector length, a vector may span two rows of C: its
//       │   │ =  │······▓▓▓▓│ a₀    first elements belong to row a₀, its other elements to row a₁.
//       └───┘    │▓▓▓▓······│ a₁
//                └──────────┘ m
//
// Why it is fast: most of the traffic is the writes of C, 512 contiguous bytes per warp. For each vector, a thread
// reads one or two short rows of A. Neighboring threads read the same rows. Tensor cores would sum over mostly padding.
#pragma once
#include "kernels/device/element.cuh"

namespace tsm2 {

// Loads row `row` of A, K elements; A is aligned to 16 bytes.
template <typename T, typename Sum, int K>
__device__ __forceinline__ void load_row(Sum (&to)[K], const T* A, long long row) {
  constexpr int kBytes = K * sizeof(T);
  if constexpr (kBytes == 4 || kBytes == 8 || kBytes == 16) {
    const auto all = reinterpret_cast<const simt::Vector<T, K>*>(A)[row];
#pragma unroll
    for (int j = 0; j < K; ++j) to[j] = Element<T>::value(all[j]);
  } else {
#pragma unroll
    for (int j = 0; j < K; ++j) to[j] = Element<T>::value(A[row * K + j]);
  }
}

// Launch: any grid, kThreads threads per block. B[j, c] is B[j·b_row + c·b_column]. A and C are aligned to 16 bytes. A
// thread loads kAhead rows of A before it multiplies the first, or 2 · kAhead rows if its vectors span two rows of C.
template <typename T, typename Sum, int K, int W, int kAhead, int kThreads>
__global__ void __launch_bounds__(kThreads)
    tsm2l_wide(const T* A, const T* B, long long b_row, long long b_column, T* C, long long m, Sum alpha, Sum beta) {
  constexpr int kVector = 16 / sizeof(T), kRows = kThreads * kVector / W;  // rows of C that a block computes at a time
  static_assert(W >= kVector && kThreads * kVector % W == 0, "a vector must span at most two rows, a block whole rows");
  constexpr bool kTwoRows = W % kVector != 0;
  const int column = kVector * threadIdx.x % W, of_first_row = W - column;
  Sum b[K][kVector];
#pragma unroll
  for (int j = 0; j < K; ++j)
#pragma unroll
    for (int i = 0; i < kVector; ++i) b[j][i] = Element<T>::value(B[j * b_row + (column + i) % W * b_column]);

  using Vector = simt::Vector<T, kVector>;
  const long long stride = (long long)gridDim.x * kRows;
  for (long long first = (long long)blockIdx.x * kRows + kVector * threadIdx.x / W; first < m;
       first += kAhead * stride) {
    Sum a[kAhead][2][K] = {};
#pragma unroll
    for (int slot = 0; slot < kAhead; ++slot) {
      const long long row = first + slot * stride;
      if (row < m) load_row(a[slot][0], A, row);
      if (kTwoRows && of_first_row < kVector && row + 1 < m) load_row(a[slot][1], A, row + 1);
    }
#pragma unroll
    for (int slot = 0; slot < kAhead; ++slot) {
      const long long row = first + slot * stride;
      if (row >= m) break;
      T* to = C + row * W + column;
      // The last row of C may end within a vector.
      const bool whole = !kTwoRows || row + 1 < m || of_first_row >= kVector;
      Vector out;
      if (beta != Sum(0)) {
        if (whole) {
          out = *reinterpret_cast<const Vector*>(to);
        } else {
#pragma unroll
          for (int i = 0; i < kVector; ++i) out[i] = i < of_first_row ? to[i] : T{};
        }
      }
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        Sum sum = 0;
#pragma unroll
        for (int j = 0; j < K; ++j) sum += (kTwoRows && i >= of_first_row ? a[slot][1][j] : a[slot][0][j]) * b[j][i];
        out[i] = Element<T>::from(beta == Sum(0) ? alpha * sum : alpha * sum + beta * Element<T>::value(out[i]));
      }
      if (whole) {
        *reinterpret_cast<Vector*>(to) = out;
      } else {
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          if (i < of_first_row) to[i] = out[i];
        }
      }
    }
  }
}

}  // namespace tsm2
