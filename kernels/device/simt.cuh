// What SIMT kernels stand on, so that they hold no inline PTX, no warp size and no `_sync` shuffle themselves and
// compile for CUDA (nvcc, and NVRTC without a header directory), for HIP (wavefronts of 64 included) and for the CPU
// (TSA_HOST).
//
//   simt::warp_size                 lanes that run together
//   simt::lane()                    this thread's, in blocks of one dimension
//   simt::shuffle, _xor, _down, _up another lane's value; every lane of the warp takes part
//   simt::sync_warp()               orders a warp's accesses to shared memory
//   simt::warp_sum(x)               the sum over the warp, the same bits in every lane
//   simt::Vector<T, N>              N elements, moved by one instruction where they are 4, 8 or 16 bytes
//   simt::load_streaming            a Vector that is read once: it should not displace what others will read again
//   simt::store_streaming           likewise, written once
//   simt::load_from_other_block     an element that another block wrote: past the multiprocessor's own cache
//   simt::dynamic_shared<T>()       the shared memory that the launch gives the block
//   simt::kept(x)                   x, in a register from here on: all lanes take part
//   simt::last_to_arrive(…)         whether this block is the last of some that hand over what they wrote
//   SIMT_BLOCK(threads)             before `void`: a kernel's threads a block, where it helps the compiler to know.
//                                   Told, ptxas spills a few registers to fit one more block on an SM; not told, AMD's
//                                   compiler makes do with the registers that 1024 threads would have, and spills many
//   SIMT_RESIDENT(threads, blocks)  likewise, always told, with the blocks that an SM of CUDA's is to hold at a time
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
  // A wavefront runs in lockstep; what is left is to keep the compiler from moving accesses across.
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

// Where registers are scarce, the compiler computes anew in every turn of a loop what follows from the thread's number
// alone, a dozen instructions for an address. It does not know that this is the lane's own value.
template <typename T>
__device__ __forceinline__ T kept(T value) {
  return shuffle(value, (int)threadIdx.x % warp_size);
}
// The same of a pointer to shared memory.
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

template <typename T, int N>
struct alignas(N * sizeof(T)) Vector {
  T at[N];
  __device__ __forceinline__ T& operator[](int i) { return at[i]; }
  __device__ __forceinline__ const T& operator[](int i) const { return at[i]; }
};

// The same bits as another type of as many.
template <typename To, typename From>
__device__ __forceinline__ To bits_of(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
}

// The machine's type of a Vector's size.
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

// `from` is a multiple of N·sizeof(T).
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

// True in every thread of the block that arrives as the last of `expected`; what the others wrote before is then
// visible. `arrived` is zero before the first, and zero again afterwards. All threads take part that `sync` is a
// barrier of, of them the block's first.
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
