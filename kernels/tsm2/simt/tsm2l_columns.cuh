// TSM2L without tensor cores, column-major A and C: C (m × w) = alpha · A (m × k) · B (k × w) + beta · C, k or w small.
//
//        k                  w             Columns of A and of C are contiguous. A thread processes kRows rows, 16
//      ┌─┬─┬─┐    w       ┌─┬─┬─┬─┐       bytes of each column; neighboring threads process neighboring rows.
//      │▒│▒│▒│ ┌─────┐    │▒│▒│▒│▒│ kRows
//      │ │ │ │ │  B  │ k  │ │ │ │ │       B is in shared memory as float or double. All threads read the same element
//    m │ │ │ │×└─────┘ =  │ │ │ │ │       at a time, which is one access (a broadcast).
//      └─┴─┴─┘            └─┴─┴─┴─┘
//
// If k ≤ w, a thread keeps its rows of A in registers and computes the columns of C one by one. Otherwise it keeps its
// rows of C in registers, and loads and multiplies kAhead columns of A at a time.
//
// Why it is fast: every load and store of a warp is 512 contiguous bytes, and between them a thread only multiplies and
// adds. Tensor cores would need the data in shared memory first, and would multiply mostly padding.
#pragma once
#include "kernels/device/element.cuh"

namespace tsm2 {

// Launch: any grid, kThreads threads per block. A[i, j] is A[i + j·lda], B[j, c] is B[j·b_row + c·b_column], C[i, c] is
// C[i + c·ldc]. Columns of A and C are aligned to 16 bytes. With kStreams, stores of C have a hint that C is not read
// soon.
template <typename T, typename Sum, int K, int W, int kAhead, int kThreads, bool kStreams>
__global__ void __launch_bounds__(kThreads)
    tsm2l_columns(const T* A, long long lda, const T* B, long long b_row, long long b_column, T* C, long long ldc,
                  long long m, Sum alpha, Sum beta) {
  constexpr int kRows = 16 / sizeof(T);
  constexpr bool kKeepsA = K <= W;
  // Shared memory holds Bᵀ with kKeepsA, else B. Its rows are padded to a multiple of 16 bytes.
  constexpr int kInner = kKeepsA ? K : W, kOuter = kKeepsA ? W : K, kFour = 16 / sizeof(Sum);
  constexpr int kPitch = (kInner + kFour - 1) / kFour * kFour;
  struct alignas(16) Sums {
    Sum at[kFour];
  };
  __shared__ Sums shared[kOuter * kPitch / kFour];
  for (int i = threadIdx.x; i < kOuter * kPitch; i += kThreads) {
    const int outer = i / kPitch, inner = i % kPitch, j = kKeepsA ? inner : outer, c = kKeepsA ? outer : inner;
    shared[i / kFour].at[i % kFour] = inner < kInner ? Element<T>::value(B[j * b_row + c * b_column]) : Sum(0);
  }
  __syncthreads();

  using Vector = simt::Vector<T, kRows>;
  const long long stride = (long long)gridDim.x * kThreads * kRows;
  for (long long row = ((long long)blockIdx.x * kThreads + threadIdx.x) * kRows; row < m; row += stride) {
    const bool whole = row + kRows <= m;
    auto load = [&](int j) {
      const T* from = A + row + j * lda;
      if (whole) return *reinterpret_cast<const Vector*>(from);
      Vector some;
#pragma unroll
      for (int i = 0; i < kRows; ++i) some[i] = row + i < m ? from[i] : T{};
      return some;
    };
    auto store = [&](int c, const Sum(&sums)[kRows]) {
      T* to = C + row + c * ldc;
      Vector out;
      if (beta != Sum(0)) {
        if (whole) {
          out = *reinterpret_cast<const Vector*>(to);
        } else {
#pragma unroll
          for (int i = 0; i < kRows; ++i) out[i] = row + i < m ? to[i] : T{};
        }
      }
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const Sum old = beta == Sum(0) ? Sum(0) : beta * Element<T>::value(out[i]);
        out[i] = Element<T>::from(alpha * sums[i] + old);
      }
      if (whole && kStreams) {
        simt::store_streaming(to, out);
      } else if (whole) {
        *reinterpret_cast<Vector*>(to) = out;
      } else {
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          if (row + i < m) to[i] = out[i];
        }
      }
    };
    if constexpr (kKeepsA) {
      Sum a[K][kRows];
#pragma unroll
      for (int j = 0; j < K; ++j) {
        const Vector some = load(j);
#pragma unroll
        for (int i = 0; i < kRows; ++i) a[j][i] = Element<T>::value(some[i]);
      }
#pragma unroll 2
      for (int c = 0; c < W; ++c) {
        Sum sums[kRows] = {};
#pragma unroll
        for (int j = 0; j < K; ++j) {
          const Sum b = shared[(c * kPitch + j) / kFour].at[j % kFour];
#pragma unroll
          for (int i = 0; i < kRows; ++i) sums[i] += a[j][i] * b;
        }
        store(c, sums);
      }
    } else {
      Sum sums[W][kRows] = {};
#pragma unroll 1
      for (int first = 0; first < K; first += kAhead) {
        Vector some[kAhead];
#pragma unroll
        for (int j = 0; j < kAhead; ++j) {
          if (first + j < K) some[j] = load(first + j);
        }
#pragma unroll
        for (int j = 0; j < kAhead; ++j) {
          if (first + j >= K) break;
#pragma unroll
          for (int c = 0; c < W; ++c) {
            const Sum b = shared[((first + j) * kPitch + c) / kFour].at[c % kFour];
#pragma unroll
            for (int i = 0; i < kRows; ++i) sums[c][i] += Element<T>::value(some[j][i]) * b;
          }
        }
      }
#pragma unroll
      for (int c = 0; c < W; ++c) store(c, sums[c]);
    }
  }
}

}  // namespace tsm2
