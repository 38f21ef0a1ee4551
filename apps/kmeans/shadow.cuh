// What a fit reads in X's place: a copy in float16, with what the rounding may have cost.
//
//   X (n × d, any dtype, rows `leading` apart)   →   shadow (n × padded, float16) = fl16((x − mean) · scale)
//                                                    norms (n)  ‖shadow row‖, or more where rounding cost more
//
// `scale` is a power of two that brings the data to the middle of float16's range; `padded` is d rounded up to whole 16
// bytes, filled with zeros; or, for many centres, it lies in slabs (slabs.cuh). With e = ‖(x − mean)·scale − shadow‖ (the
// two differ by 2⁻¹¹ of each element at most, by less than half of that in the mean), norms[i] is the larger of ‖shadow‖ and
// e / ρ, where ρ is 2⁻¹², or 2⁻²⁰ of data that float16 holds: for every c and ĉ
//
//   |(x − mean)·scale · c − shadow · ĉ|  ≤  norms[i] · (ρ ‖c‖ + ‖c − ĉ‖)
//
// What float16 cannot hold becomes infinite, and so does its norm: nothing is claimed of such a row.
//
// Why it is fast: one read of X and half a write of it, once in a fit, after which every iteration reads half as much (a
// quarter, of float64). Groups of lanes share a row, so that short rows fill a warp too.
#pragma once
#include "kernels/ptx.cuh"
#include "kernels/tsm2/element.cuh"
#include "kernels/tsm2/slabs.cuh"

namespace kmeans {

// x − mean, rounded to the type that K-means works in.
template <typename T, typename Work>
__device__ __forceinline__ Work centred(T x, Work mean) {
  return (Work)tsm2::Element<T>::value(x) - mean;
}

// 2^log2_lanes lanes share a row, of which each takes kVector elements at a time: by one load, if kAligned (rows begin at
// multiples of so many bytes, and are whole vectors).
template <typename T>
constexpr int kVector = sizeof(T) == 8 ? 2 : 4;

template <typename T, typename Work, bool kAligned>
__global__ void __launch_bounds__(256, 4) make_shadow(const T* X, long long leading, long long rows, int d, int padded,
                                                      int slabs, const Work* mean, float scale, float rounding,
                                                      int log2_lanes, ptx::Half* shadow, float* norms) {
  constexpr int kWide = kVector<T>;
  const int lanes = 1 << log2_lanes, lane = (int)threadIdx.x & (lanes - 1);
  const long long together = (long long)gridDim.x * blockDim.x >> log2_lanes;
  const long long first = ((long long)blockIdx.x * blockDim.x + threadIdx.x) >> log2_lanes;
  // Two rows at a time, for more of X to be on its way. Every lane of a warp takes part in the shuffles: past the end, in
  // those of the last row.
  constexpr int kTogether = 2;
  for (long long begin = 0; begin < rows; begin += kTogether * together) {
    const T* x[kTogether];
    ptx::Half* to[kTogether];
    float square[kTogether] = {}, lost[kTogether] = {};
#pragma unroll
    for (int r = 0; r < kTogether; ++r) {
      const long long wanted = begin + r * together + first, row = wanted < rows ? wanted : rows - 1;
      x[r] = X + row * leading;
      // A lane's elements lie together in slabs too.
      to[r] = shadow + (slabs ? tsm2::slab_offset(row, 0, slabs, tsm2::kSlabRows) : row * padded);
    }
    for (int j = kWide * lane; j < padded; j += kWide * lanes) {
      const int at = slabs ? j / 16 * (tsm2::kSlabRows * tsm2::kSlabDepth) + j % 16 / 8 * 64 + j % 8 : j;
      Work value[kTogether][kWide];
      if (kAligned && j < d) {
        const auto middle = *reinterpret_cast<const simt::Vector<Work, kWide>*>(mean + j);
        simt::Vector<T, kWide> some[kTogether];
#pragma unroll
        for (int r = 0; r < kTogether; ++r) some[r] = simt::load_streaming<kWide>(x[r] + j);
#pragma unroll
        for (int r = 0; r < kTogether; ++r)
#pragma unroll
          for (int i = 0; i < kWide; ++i) {
            value[r][i] = centred<T, Work>(some[r].at[i], middle.at[i]) * (Work)scale;
          }
      } else {
#pragma unroll
        for (int r = 0; r < kTogether; ++r)
#pragma unroll
          for (int i = 0; i < kWide; ++i) {
            value[r][i] = j + i < d ? centred<T, Work>(x[r][j + i], mean[j + i]) * (Work)scale : Work(0);
          }
      }
#pragma unroll
      for (int r = 0; r < kTogether; ++r)
#pragma unroll
        for (int i = 0; i < kWide; i += 2) {
          const unsigned pair = ptx::to_halves((float)value[r][i], (float)value[r][i + 1]);
          *reinterpret_cast<unsigned*>(to[r] + at + i) = pair;
          const float a = ptx::to_float(ptx::Half{(unsigned short)(pair & 0xffff)});
          const float b = ptx::to_float(ptx::Half{(unsigned short)(pair >> 16)});
          const float of_a = (float)(value[r][i] - a), of_b = (float)(value[r][i + 1] - b);
          square[r] += a * a + b * b;
          lost[r] += of_a * of_a + of_b * of_b;
        }
    }
#pragma unroll
    for (int r = 0; r < kTogether; ++r) {
      for (int bits = lanes / 2; bits > 0; bits /= 2) {
        square[r] += simt::shuffle_xor(square[r], bits);
        lost[r] += simt::shuffle_xor(lost[r], bits);
      }
      // More than the additions may have rounded away. An infinity minus itself is no number, and then the norm is infinite.
      const float least = sqrtf(lost[r]) / rounding, most = sqrtf(square[r]);
      const long long row = begin + r * together + first;
      if (lane == 0 && row < rows) norms[row] = 1.0002f * (least > most ? least : most);
    }
  }
}

}  // namespace kmeans
