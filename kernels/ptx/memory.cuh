// Loads, additions and prefetches of memory that C++ has no words for.
#pragma once
#include "kernels/ptx/types.cuh"

namespace ptx {

// ld.shared.s8 ─ a byte as an integer. (Of what C++ loads, a shift that is PTX asks for the sign once more.)
TSA_PTX int shared_byte(const signed char* at) {
#if defined(TSA_HOST)
  return *at;
#else
  int value;
  asm volatile("ld.shared.s8 %0, [%1];" : "=r"(value) : "r"((unsigned)__cvta_generic_to_shared(at)));
  return value;
#endif
}

// red.shared ─ a word of shared memory by its address of 32 bits, and words behind it by what the instruction itself
// has room for: told of pointers, the compiler adds up an address anew for each. Nothing is waited for.
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
  // Adds to the word that is `words` further on.
  template <int words>
  TSA_PTX void add(unsigned value) const {
    asm volatile("red.shared.add.u32 [%0 + %2], %1;" ::"r"(at_), "r"(value), "n"(4 * words) : "memory");
  }

 private:
  unsigned at_;
#endif
};

// prefetch ─ the line around an address into the level-2 cache; with `stays`, to be evicted after all else.
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
