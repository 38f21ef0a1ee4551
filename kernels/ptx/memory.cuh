// Memory instructions without a C++ equivalent: sign-extending byte loads, shared-memory reductions, prefetches.
#pragma once
#include "kernels/ptx/types.cuh"

namespace ptx {

// ld.shared.s8 ─ loads a byte and extends its sign. If C++ loaded the byte, the compiler would extend its sign a second
// time before a shift in inline PTX.
TSA_PTX int shared_byte(const signed char* at) {
#if defined(TSA_HOST)
  return *at;
#else
  int value;
  asm volatile("ld.shared.s8 %0, [%1];" : "=r"(value) : "r"((unsigned)__cvta_generic_to_shared(at)));
  return value;
#endif
}

// red.shared ─ adds to words of shared memory, addressed by one 32-bit register plus an immediate offset. With C++
// pointers, the compiler computes a separate address for each word. The thread does not wait for the addition.
class SharedWord {
 public:
  SharedWord() = default;
#if defined(TSA_HOST)
  explicit SharedWord(unsigned* at) : at_(at) {}
  SharedWord operator+(unsigned bytes) const { return SharedWord(at_ + bytes / 4); }
  template <int words>
  void add(unsigned value) const {
    atomicAdd(at_ + words, value);
  }

 private:
  unsigned* at_;
#else
  TSA_PTX explicit SharedWord(unsigned* at) : at_((unsigned)__cvta_generic_to_shared(at)) {}
  TSA_PTX SharedWord operator+(unsigned bytes) const {
    SharedWord there;
    there.at_ = at_ + bytes;
    return there;
  }
  // Adds `value` to the word that lies `words` words after this word.
  template <int words>
  TSA_PTX void add(unsigned value) const {
    asm volatile("red.shared.add.u32 [%0 + %2], %1;" ::"r"(at_), "r"(value), "n"(4 * words) : "memory");
  }

 private:
  unsigned at_;
#endif
};

// prefetch ─ loads the cache line at an address into the level-2 cache. If `stays` is true, the cache evicts this line
// last.
template <bool stays = false>
TSA_PTX void prefetch(const void* global) {
#if !defined(TSA_HOST)
  if constexpr (stays) {
    asm volatile("prefetch.global.L2::evict_last [%0];" ::"l"(__cvta_generic_to_global(global)));
  } else {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(global)));
  }
#endif
}

}  // namespace ptx
