// Elements of a row as they are read: kWide of them in as few registers as they have bytes for. Elements of 16 bits
// that were taken apart where they are read would each take a register until they are used.
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

  // From a multiple of so many bytes, once: what others will read again stays in the caches.
  __device__ __forceinline__ void load(const T* from) { bits = __ldcs(reinterpret_cast<const Bits*>(from)); }

  __device__ __forceinline__ simt::Vector<T, kWide> elements() const {
    simt::Vector<T, kWide> value;
    memcpy(&value, &bits, sizeof value);
    return value;
  }
};

}  // namespace kmeans
