// Packed loads: kWide consecutive elements of a row in as few registers as their bytes need. 16-bit elements that were
// unpacked on load would occupy one register each until they are used.
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

  // Loads from an address aligned to the vector, with a hint to evict these bytes first: the caches then keep data that
  // is read again.
  __device__ __forceinline__ void load(const T* from) { bits = __ldcs(reinterpret_cast<const Bits*>(from)); }

  __device__ __forceinline__ simt::Vector<T, kWide> elements() const {
    simt::Vector<T, kWide> value;
    memcpy(&value, &bits, sizeof value);
    return value;
  }
};

}  // namespace kmeans
