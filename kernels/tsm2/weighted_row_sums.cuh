// Weighted row sums computed together with a product: Σ_l a_il · x_l, with weights x from the epilogue (row_weights in
// epilogue.cuh). The accumulators are one more column block of fragments, after those of C.
//
// Why it is fast: A is not read again, and each element costs one ordinary multiply-add while the tensor cores
// multiply. The pipeline that copies the tiles also copies the weights.
#pragma once
#include "kernels/device/element.cuh"
#include "kernels/tsm2/epilogue.cuh"
#include "kernels/tsm2/operand.cuh"
#include "kernels/ptx/cp_async.cuh"

namespace tsm2 {

// The weights of a tile in shared memory: one per depth, plus padding. The last word of a fragment may extend beyond
// the tile: A is zero there, so any finite weight is correct.
template <typename Sum, int kDepth>
struct RowWeights {
  static constexpr int kUnit = 16 / (int)sizeof(Sum), kUnits = (kDepth + 8 + kUnit - 1) / kUnit;
  static constexpr int kBytes = (16 * kUnits + 127) / 128 * 128;

  // Issues this thread's copies of weights; kThreads threads divide the copies among themselves.
  template <int kThreads>
  static __device__ __forceinline__ void copy(unsigned char* to, const Sum* from, int thread) {
#pragma unroll
    for (int i = 0; i < (kUnits + kThreads - 1) / kThreads; ++i) {
      const int unit = i * kThreads + thread;
      if (unit < kUnits) ptx::cp_async<16>(to + 16 * unit, from + kUnit * unit);
    }
  }
};

// Returns element i of a word that holds one or two elements, in the accumulator type.
template <typename T, typename Word>
__device__ __forceinline__ auto element_of(const Word& word, int i) {
  if constexpr (sizeof(Word) == sizeof(T)) {
    return word;
  } else {
    const auto bits = (unsigned short)(word >> 16 * i);
    T element;
    memcpy(&element, &bits, sizeof bits);
    return Element<T>::value(element);
  }
}

// Adds the weighted elements of two words of each of two rows to `sums`. As in Operand::words, words[i] is word q + i /
// 2 of row g + 8·(i % 2). Its elements, multiplied by their weights, are added to sums[2·(i % 2)]. `weights` points to
// the weight of the warp's first depth.
template <typename Depths, typename T, typename Word, typename Sum>
__device__ __forceinline__ void add_rows(Sum (&sums)[4], const Word (&words)[4], const Sum* weights, int q) {
  constexpr int kPerWord = (int)(sizeof(Word) / sizeof(T));
  const int t = threadIdx.x % 32 % 4;
#pragma unroll
  for (int word = 0; word < 2 && q + word < Depths::kWords; ++word) {
    struct alignas(kPerWord * sizeof(Sum)) OfWord {
      Sum at[kPerWord];
    };
    const auto x = *reinterpret_cast<const OfWord*>(weights + Depths::first(q + word) + t * Depths::step(q + word));
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < kPerWord; ++i) {
        sums[2 * half] = fma(element_of<T>(words[2 * word + half], i), x.at[i], sums[2 * half]);
      }
  }
}

}  // namespace tsm2
