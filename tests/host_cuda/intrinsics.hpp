// CUDA's built-in functions, as far as kernels use them.
#pragma once
#include <bit>
#include <cmath>
#include <source_location>
#include <type_traits>

#include "runtime.hpp"

// As in CUDA, of two numbers of one type.
template <typename T>
constexpr T max(T a, T b) {
  return a < b ? b : a;
}
template <typename T>
constexpr T min(T a, T b) {
  return b < a ? b : a;
}

// --- Barriers and fences --------------------------------------------------------------------------------------------

inline void __syncthreads(std::source_location at = std::source_location::current()) {
  cuda_host::wait_for_block("__syncthreads", at.line());
}
inline int __syncthreads_or(int predicate, std::source_location at = std::source_location::current()) {
  static thread_local int any;  // a block's
  __syncthreads(at);
  if (cuda_host::here.thread_index.x == 0) any = 0;
  __syncthreads(at);
  if (predicate) any = 1;
  __syncthreads(at);
  return any;
}
inline void __syncwarp(unsigned mask = ~0u) { cuda_host::publish(mask, 0, "__syncwarp"); }
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_system() { __threadfence(); }

// --- Within a warp --------------------------------------------------------------------------------------------------
// As in CUDA, a lane whose source lies outside its segment of `width` lanes keeps its own value.

template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  const int lane = cuda_host::here.lane, first = lane & ~(width - 1);
  return cuda_host::publish(mask, value, "__shfl_sync")[first | (source & (width - 1))];
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
  const int lane = cuda_host::here.lane, last = lane | (width - 1), source = lane ^ bits;
  return cuda_host::publish(mask, value, "__shfl_xor_sync")[source > last ? lane : source];
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const int lane = cuda_host::here.lane, last = lane | (width - 1), source = lane + (int)delta;
  return cuda_host::publish(mask, value, "__shfl_down_sync")[source > last ? lane : source];
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const int lane = cuda_host::here.lane, first = lane & ~(width - 1), source = lane - (int)delta;
  return cuda_host::publish(mask, value, "__shfl_up_sync")[source < first ? lane : source];
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  const auto lanes = cuda_host::publish(mask, (int)(predicate != 0), "__ballot_sync");
  unsigned votes = 0;
  for (int lane = 0; lane < cuda_host::warp_lanes; ++lane) votes |= (unsigned)(lanes[lane] == 1) << lane;
  return votes;
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, !predicate) == 0; }

// --- Atomics --------------------------------------------------------------------------------------------------------

template <typename T, typename Change>
T atomic_change(T* at, Change change) {
  T old, changed;
  __atomic_load(at, &old, __ATOMIC_SEQ_CST);
  do changed = change(old);
  while (!__atomic_compare_exchange(at, &old, &changed, true, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
  return old;
}
template <typename T>
T atomicAdd(T* at, std::type_identity_t<T> value) {
  return atomic_change(at, [=](T old) { return (T)(old + value); });
}
template <typename T>
T atomicMin(T* at, std::type_identity_t<T> value) {
  return atomic_change(at, [=](T old) { return min(old, value); });
}
template <typename T>
T atomicMax(T* at, std::type_identity_t<T> value) {
  return atomic_change(at, [=](T old) { return max(old, value); });
}
inline unsigned atomicInc(unsigned* at, unsigned last) {
  return atomic_change(at, [=](unsigned old) { return old >= last ? 0 : old + 1; });
}

// --- Loads and stores with a cache hint -----------------------------------------------------------------------------

template <typename T>
T __ldcs(const T* at) {
  return *at;
}
template <typename T>
T __ldcg(const T* at) {
  return *at;
}
template <typename T>
void __stcs(T* at, std::type_identity_t<T> value) {
  *at = value;
}
template <typename T>
void __stcg(T* at, std::type_identity_t<T> value) {
  *at = value;
}

// --- Bits and arithmetic --------------------------------------------------------------------------------------------

inline unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }
inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline long long __double_as_longlong(double value) { return std::bit_cast<long long>(value); }
inline double __longlong_as_double(long long bits) { return std::bit_cast<double>(bits); }
inline int __float_as_int(float value) { return std::bit_cast<int>(value); }
inline float __int_as_float(int bits) { return std::bit_cast<float>(bits); }
inline int __popc(unsigned bits) { return std::popcount(bits); }
inline int __clz(int bits) { return std::countl_zero((unsigned)bits); }
inline int __ffs(int bits) { return bits ? std::countr_zero((unsigned)bits) + 1 : 0; }
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
  const unsigned long long bytes = low | (unsigned long long)high << 32;
  unsigned chosen = 0;
  for (int i = 0; i < 4; ++i) chosen |= (unsigned)(bytes >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
  return chosen;
}
inline float __saturatef(float value) { return value > 0 ? min(value, 1.0f) : 0.0f; }  // of no number, 0
// Rounded, whatever is added to it next.
inline float __fmul_rn(float a, float b) {
  volatile float product = a * b;
  return product;
}
inline double __dmul_rn(double a, double b) {
  volatile double product = a * b;
  return product;
}
inline int __float2int_rn(float value) { return (int)std::lrintf(value); }
inline long long __double2ll_rn(double value) { return std::llrint(value); }
inline float __double2float_rz(double value) {
  const float nearest = (float)value;
  return std::abs((double)nearest) > std::abs(value) ? std::nextafter(nearest, 0.0f) : nearest;
}
