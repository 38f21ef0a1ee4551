// Packed loads: loads kWide consecutive elements of a row and keeps them packed, for example two 16-bit elements per
// register. If the load unpacked them, each 16-bit element would occupy one register until it is used.
#pragma once
#include "kernels/device/element.cuh"

namespace kmeans {

template <int bytes>
struct Word : simt::Word<bytes> {};
template <>
struct Word<2> {
  using type = unsigned short;
};

template <typename T, int kWide>
struct Packed {
  using Bits = typename Word<kWide*(int)sizeof(T)>::type;
  Bits bits;

  // Loads kWide elements from `from`, which is aligned to their total size. The load has a hint to evict these bytes
  // first, so that the caches keep data that is read again.
  __device__ __forceinline__ void load(const T* from) { bits = __ldcs(reinterpret_cast<const Bits*>(from)); }

  __device__ __forceinline__ simt::Vector<T, kWide> elements() const {
    simt::Vector<T, kWide> value;
    memcpy(&value, &bits, sizeof value);
    return value;
  }
};

}  // namespace kmeans
