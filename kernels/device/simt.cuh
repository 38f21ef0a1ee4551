// Portable SIMT primitives: warps, shuffles, vector loads and stores for CUDA, HIP and the CPU. Kernels that use them
// need no inline PTX, no fixed warp size and no `_sync` shuffle. They compile with nvcc, with NVRTC without a header
// directory, for HIP (including 64-lane wavefronts) and for the CPU (TSA_HOST).
//
//   simt::warp_size                 lanes of a warp
//   simt::lane()                    this thread's lane, in one-dimensional blocks
//   simt::shuffle, _xor, _down, _up another lane's value; every lane of the warp takes part
//   simt::sync_warp()               orders a warp's accesses to shared memory
//   simt::warp_sum(x)               the sum over the warp, the same bits in every lane
//   simt::warp_running_sum(x)       the sum over this lane and all lower ones
//   simt::rounded_product(a, b)     a · b, rounded before anything is added to it: no fused multiply-add
//   simt::bit_number(mask, n)       the position of set bit number n of a mask, counted from 0; at most 31 if the mask
//                                   has fewer bits
//   simt::Vector<T, N>              N elements; one instruction moves 4, 8 or 16 bytes
//   simt::load_streaming            loads a Vector that is read once, with a hint to evict it from the caches first
//   simt::store_streaming           stores a Vector that is not read again soon, with the same hint
//   simt::load_from_other_block     loads an element that another block wrote; bypasses the L1 cache
//   simt::dynamic_shared<T>()       the block's dynamic shared memory
//   simt::kept(x)                   forces x into a register; all lanes take part
//   simt::opaque(x)                 x, of which the compiler does not know the bits: an address plus a constant then
//                                   stays a sum, which an instruction has, instead of becoming an OR
//   simt::last_to_arrive(…)         true if this block is the last of several to publish its writes
//   SIMT_BLOCK(threads)             written before `void`: declares the block size, on HIP only. Without it, AMD's
//                                   compiler assumes 1024 threads per block and spills many registers. On CUDA, ptxas
//                                   would fit one more block on a multiprocessor, and would spill a few registers
//   SIMT_RESIDENT(threads, blocks)  declares the block size; on CUDA, also the minimum of blocks per multiprocessor
#pragma once
#if defined(__HIP__) || defined(__HIP_PLATFORM_AMD__)
#define TSA_HIP 1
#include <hip/hip_runtime.h>
#define SIMT_BLOCK(threads) __launch_bounds__(threads)
#define SIMT_RESIDENT(threads, blocks) __launch_bounds__(threads)
#else
#define SIMT_BLOCK(threads)
#define SIMT_RESIDENT(threads, blocks) __launch_bounds__(threads, blocks)
#endif

namespace simt {

#if defined(TSA_HIP)

#if defined(__AMDGCN_WAVEFRONT_SIZE)
constexpr int warp_size = __AMDGCN_WAVEFRONT_SIZE;
#else
constexpr int warp_size = 64;
#endif

template <typename T>
__device__ __forceinline__ T shuffle(T value, int source) {
  return __shfl(value, source);
}
template <typename T>
__device__ __forceinline__ T shuffle_xor(T value, int bits) {
  return __shfl_xor(value, bits);
}
template <typename T>
__device__ __forceinline__ T shuffle_down(T value, int delta) {
  return __shfl_down(value, delta);
}
template <typename T>
__device__ __forceinline__ T shuffle_up(T value, int delta) {
  return __shfl_up(value, delta);
}
__device__ __forceinline__ void sync_warp() {
  // A wavefront runs in lockstep; only the compiler must not move accesses across this point.
  __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
  __builtin_amdgcn_wave_barrier();
}

#else

constexpr int warp_size = 32;
constexpr unsigned every_lane = 0xffffffffu;

template <typename T>
__device__ __forceinline__ T shuffle(T value, int source) {
  return __shfl_sync(every_lane, value, source);
}
template <typename T>
__device__ __forceinline__ T shuffle_xor(T value, int bits) {
  return __shfl_xor_sync(every_lane, value, bits);
}
template <typename T>
__device__ __forceinline__ T shuffle_down(T value, int delta) {
  return __shfl_down_sync(every_lane, value, delta);
}
template <typename T>
__device__ __forceinline__ T shuffle_up(T value, int delta) {
  return __shfl_up_sync(every_lane, value, delta);
}
__device__ __forceinline__ void sync_warp() { __syncwarp(); }

#endif

// Forces a value that depends only on the thread index into a register. Where registers are scarce, the compiler
// recomputes such values in every iteration, with up to a dozen instructions per address. A shuffle from the lane to
// itself hides from the compiler that the value depends only on the thread index.
template <typename T>
__device__ __forceinline__ T kept(T value) {
  return shuffle(value, (int)threadIdx.x % warp_size);
}
__device__ __forceinline__ int opaque(int value) {
#if !defined(TSA_HOST) && !defined(TSA_HIP)
  asm("" : "+r"(value));
#endif
  return value;
}
// `kept` for a pointer to shared memory.
template <typename T>
__device__ __forceinline__ T* kept_shared(T* at) {
#if defined(TSA_HOST) || defined(TSA_HIP)
  return at;
#else
  return static_cast<T*>(__cvta_shared_to_generic(kept((unsigned)__cvta_generic_to_shared(at))));
#endif
}

__device__ __forceinline__ int lane() { return (int)threadIdx.x % warp_size; }

template <typename T>
__device__ __forceinline__ T warp_sum(T value) {
#pragma unroll
  for (int bits = warp_size / 2; bits > 0; bits /= 2) value += shuffle_xor(value, bits);
  return value;
}

__device__ __forceinline__ float rounded_product(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ double rounded_product(double a, double b) { return __dmul_rn(a, b); }

template <typename T>
__device__ __forceinline__ T warp_running_sum(T value) {
#pragma unroll
  for (int lanes = 1; lanes < warp_size; lanes *= 2) {
    const T others = shuffle_up(value, lanes);
    if (lane() >= lanes) value += others;
  }
  return value;
}

__device__ __forceinline__ int bit_number(unsigned mask, int n) {
  int position = 0;
#pragma unroll
  for (int half = 16; half > 0; half /= 2) {
    const int below = __popc(mask >> position & ((1u << half) - 1));
    if (below <= n) n -= below, position += half;
  }
  return position;
}

template <typename T, int N>
struct alignas(N * sizeof(T)) Vector {
  T at[N];
  __device__ __forceinline__ T& operator[](int i) { return at[i]; }
  __device__ __forceinline__ const T& operator[](int i) const { return at[i]; }
};

// Reinterprets the bits of a value as another type of the same size.
template <typename To, typename From>
__device__ __forceinline__ To bits_of(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
}

// Word<bytes>::type: the built-in type of `bytes` bytes, which one instruction loads or stores.
template <int bytes>
struct Word;
template <>
struct Word<4> {
  using type = unsigned;
};
template <>
struct Word<8> {
  using type = uint2;
};
template <>
struct Word<16> {
  using type = uint4;
};

// Loads N elements with a hint that they are read only once. `from` is aligned to N · sizeof(T) bytes.
template <int N, typename T>
__device__ __forceinline__ Vector<T, N> load_streaming(const T* from) {
#if defined(TSA_HIP)
  Vector<T, N> value;
#pragma unroll
  for (int i = 0; i < N; ++i) value[i] = __builtin_nontemporal_load(from + i);
  return value;
#else
  using W = typename Word<N * sizeof(T)>::type;
  const W word = __ldcs(reinterpret_cast<const W*>(from));
  Vector<T, N> value;
  memcpy(&value, &word, sizeof value);
  return value;
#endif
}

template <int N, typename T>
__device__ __forceinline__ void store_streaming(T* to, const Vector<T, N>& value) {
#if defined(TSA_HIP)
#pragma unroll
  for (int i = 0; i < N; ++i) __builtin_nontemporal_store(value[i], to + i);
#else
  typename Word<N * sizeof(T)>::type word;
  memcpy(&word, &value, sizeof word);
  __stcs(reinterpret_cast<decltype(word)*>(to), word);
#endif
}

template <typename T>
__device__ __forceinline__ T load_from_other_block(const T* from) {
#if defined(TSA_HIP)
  return __hip_atomic_load(from, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
#else
  return __ldcg(from);
#endif
}

template <typename T>
__device__ __forceinline__ T* dynamic_shared() {
#if defined(TSA_HOST)
  return reinterpret_cast<T*>(cuda_host::here.shared);
#else
  extern __shared__ __align__(128) unsigned char bytes[];
  return reinterpret_cast<T*>(bytes);
#endif
}

// Returns true in all threads of a block if this block is the last of `expected` blocks to call it. The writes of the
// other blocks before their calls are then visible to this block. The counter `arrived` is zero before the first
// arrival and zero again after the last. `sync` is a barrier of the threads that call last_to_arrive; thread 0 of the
// block is one of them.
template <typename Sync>
__device__ inline bool last_to_arrive(unsigned* arrived, unsigned expected, Sync sync) {
  __shared__ bool last;
  __threadfence();
  sync();
  if (threadIdx.x == 0) {
    last = atomicAdd(arrived, 1u) == expected - 1;
    if (last) *arrived = 0;
  }
  sync();
  __threadfence();
  return last;
}

__device__ inline bool last_to_arrive(unsigned* arrived, unsigned expected) {
  return last_to_arrive(arrived, expected, [] { __syncthreads(); });
}

}  // namespace simt
