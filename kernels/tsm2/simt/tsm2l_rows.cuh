// TSM2L without tensor cores, row-major and few columns: C (m × w) = alpha · A (m × k) · B (k × w) + beta · C, k · w ≤
// 64.
//
//            k                 w            A and C are row-major without gaps. A *piece* is kRows rows of A, a whole
//        ┌───────┐    w      ┌────┐         number of 16-byte vectors.
//  kRows │ ▒▒▒▒▒ │  ┌────┐   │ ▒▒ │ kRows
//        │       │×k│ B  │ = │    │         Every thread keeps all k · w elements of B in registers.
//      m │       │  └────┘   │    │ m
//        └───────┘           └────┘
//
// Why it is fast: per 16 bytes a thread issues one load, a few multiply-adds and a store; neighboring threads access
// neighboring bytes. Tensor cores would multiply mostly padding. Each thread loads kAhead pieces before it multiplies
// the first, so that all threads together have more bytes in flight than latency × bandwidth.
#pragma once
#include "kernels/device/element.cuh"

namespace tsm2 {

// Launch: any grid, kThreads threads per block. B[j, c] is B[j·b_row + c·b_column]. A and C begin at multiples of 16
// bytes.
template <typename T, typename Sum, int K, int W, int kRows, int kAhead, int kThreads>
__global__ void __launch_bounds__(kThreads)
    tsm2l_rows(const T* A, const T* B, long long b_row, long long b_column, T* C, long long m, Sum alpha, Sum beta) {
  constexpr int kIn = kRows * K, kOut = kRows * W, kVector = 16 / sizeof(T);
  static_assert(kIn % kVector == 0, "a piece of A must be whole vectors");
  // Number of elements per store: the widest store that divides a piece of C evenly.
  constexpr int kStore = kOut % kVector == 0               ? kVector
                         : kOut % (kVector / 2) == 0       ? kVector / 2
                         : sizeof(T) == 2 && kOut % 2 == 0 ? 2
                                                           : 1;
  Sum b[K][W];
#pragma unroll
  for (int i = 0; i < K * W; ++i) b[i / W][i % W] = Element<T>::value(B[i / W * b_row + i % W * b_column]);

  const long long pieces = m / kRows, stride = (long long)gridDim.x * kThreads;
  const long long first = (long long)blockIdx.x * kThreads + threadIdx.x;
  using Vector = simt::Vector<T, kVector>;
  Vector ahead[kAhead][kIn / kVector];
  auto load = [&](int slot, long long piece) {
    if (piece >= pieces) return;
    const auto* from = reinterpret_cast<const Vector*>(A + piece * kIn);
#pragma unroll
    for (int i = 0; i < kIn / kVector; ++i) ahead[slot][i] = from[i];
  };
#pragma unroll
  for (int slot = 0; slot < kAhead; ++slot) load(slot, first + slot * stride);
  for (long long piece = first; piece < pieces; piece += kAhead * stride) {
#pragma unroll
    for (int slot = 0; slot < kAhead; ++slot) {
      const long long mine = piece + slot * stride;
      if (mine >= pieces) break;
      Sum a[kIn];
#pragma unroll
      for (int i = 0; i < kIn; ++i) a[i] = Element<T>::value(ahead[slot][i / kVector][i % kVector]);
      load(slot, mine + kAhead * stride);
      using Stored = simt::Vector<T, kStore>;
      auto* to = reinterpret_cast<Stored*>(C + mine * kOut);
#pragma unroll
      for (int store = 0; store < kOut / kStore; ++store) {
        Stored out;
        if (beta != Sum(0)) out = to[store];
#pragma unroll
        for (int i = 0; i < kStore; ++i) {
          const int row = (store * kStore + i) / W, column = (store * kStore + i) % W;
          Sum sum = 0;
#pragma unroll
          for (int j = 0; j < K; ++j) sum += a[row * K + j] * b[j][column];
          out[i] = Element<T>::from(beta == Sum(0) ? alpha * sum : alpha * sum + beta * Element<T>::value(out[i]));
        }
        to[store] = out;
      }
    }
  }
  // The last m % kRows rows, which are not a whole piece.
  for (long long i = pieces * kOut + first; i < m * W; i += stride) {
    Sum sum = 0;
    for (int j = 0; j < K; ++j) {
      sum += Element<T>::value(A[i / W * K + j]) * Element<T>::value(B[j * b_row + i % W * b_column]);
    }
    C[i] = Element<T>::from(beta == Sum(0) ? alpha * sum : alpha * sum + beta * Element<T>::value(C[i]));
  }
}

}  // namespace tsm2
