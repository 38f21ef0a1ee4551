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
  __device__ __forceinline__ void take(Rows& rows, int column, const float (&lower)[4], const float (&upper)[4],
                                       unsigned (&words)[4]) const {
    for (int i = 0; i < 4; ++i) {
      const float* const sums = (i < 2 ? lower : upper) + 2 * (i % 2);
      const T* const biases = rows.bias + column + 8 * (i / 2);
      words[i] = Element<T>::pair(sums[0] + Element<T>::value(biases[0]), sums[1] + Element<T>::value(biases[1]));
    }
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
