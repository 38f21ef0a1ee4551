// Conversion between the element type of a matrix and its accumulator type, and packing of two 16-bit elements.
#pragma once
#include "kernels/device/simt.cuh"
#if !defined(TSA_HIP)
#include "kernels/ptx/types.cuh"
#endif

namespace tsm2 {

template <typename T>
struct Element {
  static __device__ T from(T sum) { return sum; }
  static __device__ T value(T x) { return x; }
};

#if !defined(TSA_HIP)
template <>
struct Element<ptx::Half> {
  static __device__ ptx::Half from(float sum) { return ptx::to_half(sum); }
  static __device__ float value(ptx::Half x) { return ptx::to_float(x); }
  static __device__ unsigned pair(float lower, float upper) { return ptx::to_half_pair(lower, upper); }
  static __device__ simt::Vector<float, 2> values(unsigned pair) {
    return {{value({(unsigned short)pair}), value({(unsigned short)(pair >> 16)})}};
  }
};
template <>
struct Element<ptx::Bfloat16> {
  static __device__ ptx::Bfloat16 from(float sum) { return ptx::to_bfloat16(sum); }
  static __device__ float value(ptx::Bfloat16 x) { return ptx::to_float(x); }
  static __device__ unsigned pair(float lower, float upper) { return ptx::to_bfloat16s(lower, upper); }
  static __device__ simt::Vector<float, 2> values(unsigned pair) {
    return {{__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)}};
  }
};
#endif

}  // namespace tsm2
