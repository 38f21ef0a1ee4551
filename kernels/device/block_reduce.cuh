// Several numbers of each thread of a block, put together: for kernels of centers, of which there are few.
#pragma once
#include "kernels/device/simt.cuh"

namespace kmeans {

constexpr int kCenterThreads = 256;

template <int count>
struct Doubles {
  double at[count];
};

// `op` (of which number, and two of them) over the threads of a block, in an order that is always the same; for all of
// them.
template <int count, typename Op>
__device__ __forceinline__ Doubles<count> over_block(Doubles<count> mine, Op op) {
  __shared__ Doubles<count> of_warp[kCenterThreads / 32];
  const auto take = [&](const Doubles<count>& other) {
#pragma unroll
    for (int i = 0; i < count; ++i) mine.at[i] = op(i, mine.at[i], other.at[i]);
  };
#pragma unroll
  for (int bits = 16; bits > 0; bits /= 2) {
    Doubles<count> other;
#pragma unroll
    for (int i = 0; i < count; ++i) other.at[i] = simt::shuffle_xor(mine.at[i], bits);
    take(other);
  }
  __syncthreads();  // what was here has been read
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = mine;
  __syncthreads();
  mine = of_warp[0];
#pragma unroll
  for (int warp = 1; warp < kCenterThreads / 32; ++warp) take(of_warp[warp]);
  return mine;
}

__device__ __forceinline__ double most_of(int, double a, double b) { return b > a ? b : a; }

}  // namespace kmeans
