// Block-wide reduction of several doubles per thread in a fixed order: for the kernels that update cluster centers.
#pragma once
#include "kernels/device/simt.cuh"

namespace kmeans {

// Number of threads per block of the kernels that call over_block, if they do not state another.
constexpr int kCenterThreads = 256;

template <int count>
struct Doubles {
  double at[count];
};

// Reduces `count` numbers over the threads of a block: result i combines number i of every thread. All threads get all
// results. `op(i, x, y)` combines two values x and y of number i. The order of the combinations is fixed, so the result
// has the same bits on every run. Its loops are not unrolled, which halves the time that such kernels take to compile.
template <int kThreads = kCenterThreads, int count, typename Op>
__device__ __forceinline__ Doubles<count> over_block(Doubles<count> mine, Op op) {
  __shared__ Doubles<count> of_warp[kThreads / 32];
  const auto take = [&](const Doubles<count>& other) {
#pragma unroll
    for (int i = 0; i < count; ++i) mine.at[i] = op(i, mine.at[i], other.at[i]);
  };
#pragma unroll 1
  for (int bits = 16; bits > 0; bits /= 2) {
    Doubles<count> other;
#pragma unroll
    for (int i = 0; i < count; ++i) other.at[i] = simt::shuffle_xor(mine.at[i], bits);
    take(other);
  }
  __syncthreads();  // all threads have read the previous content of of_warp
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = mine;
  __syncthreads();
  mine = of_warp[0];
#pragma unroll 1
  for (int warp = 1; warp < kThreads / 32; ++warp) take(of_warp[warp]);
  return mine;
}

// An `op` for over_block: returns the larger of a and b.
__device__ __forceinline__ double most_of(int, double a, double b) { return b > a ? b : a; }

}  // namespace kmeans
