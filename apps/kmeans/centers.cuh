// The centres as `nearest.cuh` wants them.
//
//   centers (k × d)  →  halves (k × padded, float16) = fl16(c · scale), half_squares = ‖c · scale‖²/2, and the extremes of all
//
// half_squares has kColumns more numbers than centres ask for: infinite, so that no row is nearest to a column of padding.
#pragma once
#include "apps/kmeans/nearest.cuh"

namespace kmeans {

// Not negative: as integers they have the same order.
__device__ __forceinline__ void raise(float* to, double value) {
  atomicMax(reinterpret_cast<int*>(to), __float_as_int((float)(value * 1.000001)));
}

// A block a column; `extremes` is zero before.
template <typename Work>
__global__ void __launch_bounds__(128) place_centers(const Work* centers, int k, int d, int padded, float scale,
                                                     ptx::Half* halves, float* half_squares, Extremes* extremes) {
  __shared__ double sums[2][4];
  const int j = blockIdx.x;
  if (j >= k) {
    if (threadIdx.x == 0) half_squares[j] = kInfinity;
    return;
  }
  double square = 0, lost = 0;
  for (int i = threadIdx.x; i < padded; i += blockDim.x) {
    const double c = i < d ? (double)centers[(long long)j * d + i] * scale : 0.0;
    const ptx::Half half = ptx::to_half((float)c);
    halves[(long long)j * padded + i] = half;
    square += c * c;
    lost += (c - ptx::to_float(half)) * (c - ptx::to_float(half));
  }
#pragma unroll
  for (int bits = 16; bits > 0; bits /= 2) {
    square += __shfl_xor_sync(0xffffffffu, square, bits);
    lost += __shfl_xor_sync(0xffffffffu, lost, bits);
  }
  if (threadIdx.x % 32 == 0) sums[0][threadIdx.x / 32] = square, sums[1][threadIdx.x / 32] = lost;
  __syncthreads();
  if (threadIdx.x != 0) return;
  square = sums[0][0] + sums[0][1] + sums[0][2] + sums[0][3];
  lost = sums[1][0] + sums[1][1] + sums[1][2] + sums[1][3];
  half_squares[j] = (float)(square / 2);
  raise(&extremes->norm, sqrt(square));
  raise(&extremes->lost, sqrt(lost));
  raise(&extremes->half_square, square / 2);
}

}  // namespace kmeans
