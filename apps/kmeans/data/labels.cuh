// Label arrays of n rows: widen, replace and count.
//
// widen_labels   converts the 8-bit labels of small-d iterations, padded to a multiple of 4, to 32-bit labels; a thread
//                reads a word of 4 labels and writes 16 bytes
// change_labels  replaces old labels by new labels, and counts the labels that differ
// count_labels   counts the rows of each label
//
// Why it is fast: labels are read and written once, coalesced. Counts are first added up over a warp or in shared
// memory, so that few atomic additions go to global memory.
#pragma once
#include "kernels/device/simt.cuh"

namespace kmeans {

// 8-bit label, for at most 64 clusters; negative for a row without a label.
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

// Copies labels `from` to `to`, and adds the number of labels that changed to `changed`.
__global__ void __launch_bounds__(256, 8)
    change_labels(const int* from, long long n, int* to, unsigned long long* changed) {
  const long long together = (long long)gridDim.x * blockDim.x;
  unsigned differ = 0;
  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += together) {
    const int label = from[i];
    differ += label != to[i];
    to[i] = label;
  }
  differ = simt::warp_sum(differ);
  if (simt::lane() == 0 && differ != 0) atomicAdd(changed, (unsigned long long)differ);
}

// Maximum k for which a block counts labels in shared memory; for larger k, it counts in global memory.
constexpr int kMostCounted = 8192;

// Adds the number of rows with label j to counts[j].
__global__ void __launch_bounds__(256, 4)
    count_labels(const int* labels, long long n, int k, unsigned long long* counts) {
  __shared__ unsigned here[kMostCounted];
  const bool is_here = k <= kMostCounted;
  for (int j = threadIdx.x; is_here && j < k; j += blockDim.x) here[j] = 0;
  __syncthreads();
  const long long together = (long long)gridDim.x * blockDim.x;
  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += together) {
    if (is_here) {
      atomicAdd(&here[labels[i]], 1u);
    } else {
      atomicAdd(&counts[labels[i]], 1ull);
    }
  }
  __syncthreads();
  for (int j = threadIdx.x; is_here && j < k; j += blockDim.x) {
    if (here[j] != 0) atomicAdd(&counts[j], (unsigned long long)here[j]);
  }
}

}  // namespace kmeans
