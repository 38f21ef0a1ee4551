// Several clusterings of the same rows, as kernels of scores read them.
#pragma once
#include "kernels/device/element.cuh"
#include "kernels/ptx/arithmetic.cuh"

namespace kmeans {

// Number of threads of a block of these kernels.
constexpr int kScoreThreads = 256;

// The labels and the first column of each clustering; the last element of `starts` is the number of columns.
struct Clusterings {
  const int* const* labels;
  const int* starts;
  int count;
};

// One of them, in shared memory. `start` is its first column, counted from the first of the block.
struct OneClustering {
  const int* labels;
  int start, k;
};

// Copies the clusterings to shared memory.
__device__ __forceinline__ void place_clusterings(const Clusterings& from, int first_column, OneClustering* to) {
  for (int i = threadIdx.x; i < from.count; i += kScoreThreads) {
    const int start = from.starts[i];
    to[i] = {from.labels[i], start - first_column, from.starts[i + 1] - start};
  }
}

}  // namespace kmeans
