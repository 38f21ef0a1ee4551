// An epilogue of gemm_square.cuh that stores the sums, and the products with the side.
#pragma once
#include "kernels/square/gemm_square.cuh"

namespace tsm2 {

template <typename T>
struct StoringEpilogue {
  float* side;  // (column tiles, m, 8)
  const T* bias;
  int m, n;

  static constexpr int kSharedBytes = kTileColumns * (int)sizeof(T);
  struct Rows {
    const T* bias;
    int first;
  };

  __device__ __forceinline__ void begin(Rows& rows, unsigned char* shared, int row, int column) const {
    const int thread = threadIdx.x % 128, begin = column + 8 * thread;
    if (thread < kSharedBytes / 16) ptx::cp_async<16>(shared + 16 * thread, bias + begin, begin < n ? 16 : 0);
    rows = {reinterpret_cast<const T*>(shared), row};
  }
  __device__ __forceinline__ unsigned take(Rows& rows, int r, int column, float lower, float upper) const {
    const auto with = [&](float sum, int i) { return sum + Element<T>::value(rows.bias[column + i]); };
    return Element<T>::pair(with(lower, 0), with(upper, 1));
  }
  __device__ __forceinline__ void end(Rows& rows, const float (&of_side)[4], int tile) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = rows.first + 8 * (i / 2);
      if (row < m) side[((long long)tile * m + row) * 8 + threadIdx.x % 4 * 2 + i % 2] = of_side[i];
    }
  }
};

}  // namespace tsm2
