// Labels of a byte, which iterations for few features keep, as the 32 bits that the engine has.
//
//   from (n, in whole words)   4 labels a word   →   to (n)   16 bytes a thread
//
// Why it is fast: both are read and written in whole lines, once.
#pragma once
#include "kernels/tsm2/simt.cuh"

namespace kmeans {

// Of up to 64 clusters; negative of none.
using Label = signed char;

__global__ void __launch_bounds__(256, 8) widen_labels(const Label* from, long long n, int* to) {
  const long long together = (long long)gridDim.x * blockDim.x;
  for (long long word = (long long)blockIdx.x * blockDim.x + threadIdx.x; 4 * word < n; word += together) {
    const auto some = reinterpret_cast<const simt::Vector<Label, 4>*>(from)[word];
    simt::Vector<int, 4> wide;
#pragma unroll
    for (int i = 0; i < 4; ++i) wide.at[i] = some.at[i];
    if (4 * word + 4 <= n) {
      reinterpret_cast<simt::Vector<int, 4>*>(to)[word] = wide;
    } else {
      for (int i = 0; 4 * word + i < n; ++i) to[4 * word + i] = wide.at[i];
    }
  }
}

}  // namespace kmeans
