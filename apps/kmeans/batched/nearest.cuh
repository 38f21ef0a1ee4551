// The nearest center of an ambiguous row of a batch, by float64 distances from X.
//
//   a row of X, its candidates  →  the nearest of them; of equally near ones, that of the lowest index
//
// Why it is fast: a warp computes the distances to several centers at a time, because each is a chain of dependent
// additions.
#pragma once
#include "apps/kmeans/batched/problem.cuh"

namespace batched {

// Number of centers that a warp compares with a row at a time, if it compares all centers.
constexpr int kOfAll = 8;

// Nearest of the centers given to `consider` to one row, by float64 distances; all lanes of a warp share the work.
template <typename T>
struct Nearest {
  const Batch<T>& batch;
  const T* x;
  const float *mean, *centers;
  double least;
  int label;

  // Compares kTogether centers with the row at a time, because each distance is a chain of dependent additions.
  template <int kTogether>
  __device__ __forceinline__ void consider(const int (&some)[kTogether]) {
    double sums[kTogether] = {};
    for (int j = threadIdx.x % 32; j < batch.d; j += 32) {
      const double value = batch.centered(x[j], mean[j]);
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const double delta = value - (double)centers[(long long)some[i] * batch.d + j];
        sums[i] += delta * delta;
      }
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const double sum = simt::warp_sum(sums[i]);
      if (sum < least || (sum == least && some[i] < label)) {
        least = sum;
        label = some[i];
      }
    }
  }

  // Compares all centers with the row.
  __device__ __forceinline__ void consider_all() {
    for (int center = 0; center < batch.k; center += kOfAll) {
      int some[kOfAll];
#pragma unroll
      for (int i = 0; i < kOfAll; ++i) some[i] = center + i < batch.k ? center + i : batch.k - 1;
      consider(some);
    }
  }
};

}  // namespace batched
