// Batched rescoring: the nearest center of an ambiguous row, by float64 distances from X.
//
//   a row of X, its candidates  →  the nearest of them; of equally near ones, that of the lowest index
//
// Why it is fast: the distances to several centers are computed at a time, because each is a chain of dependent
// additions.
#pragma once
#include "apps/kmeans/batched/problem.cuh"

namespace batched {

// Number of centers that are compared with a row at a time, if all centers are.
constexpr int kOfAll = 8;

// Nearest of the centers given to `consider` to one row. kLanes adjacent lanes share the work; all lanes of the warp
// must call it. A distance has the same bits for every kLanes: it consists of 32 partial sums, of every 32nd term.
template <typename T, int kLanes>
class Nearest {
 public:
  __device__ __forceinline__ Nearest(const Batch<T>& batch, int problem, long long row)
      : x_(batch.row(problem, row)), mean_(batch.means + (long long)problem * batch.d),
        centers_(batch.centers + (long long)problem * batch.k * batch.d), d_(batch.d), k_(batch.k) {}

  __device__ __forceinline__ int label() const { return label_; }

  template <int kTogether>
  __device__ __forceinline__ void consider(const int (&some)[kTogether]) {
    constexpr int kParts = 32 / kLanes;  // partial sums per lane
    double sums[kTogether][kParts] = {};
    for (int first = threadIdx.x % kLanes; first < d_; first += 32) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const int j = first + part * kLanes;
        if (j >= d_) break;
        const double value = Batch<T>::centered(x_[j], mean_[j]);
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          const double delta = value - (double)centers_[(long long)some[i] * d_ + j];
          sums[i][part] += delta * delta;
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
#pragma unroll
      for (int half = kParts / 2; half > 0; half /= 2) {
#pragma unroll
        for (int part = 0; part < half; ++part) sums[i][part] += sums[i][part + half];
      }
      double sum = sums[i][0];
#pragma unroll
      for (int bits = kLanes / 2; bits > 0; bits /= 2) sum += simt::shuffle_xor(sum, bits);
      if (sum < least_ || (sum == least_ && some[i] < label_)) {
        least_ = sum;
        label_ = some[i];
      }
    }
  }

  // Considers all centers.
  __device__ __forceinline__ void consider_all() {
    for (int center = 0; center < k_; center += kOfAll) {
      int some[kOfAll];
#pragma unroll
      for (int i = 0; i < kOfAll; ++i) some[i] = center + i < k_ ? center + i : k_ - 1;
      consider(some);
    }
  }

 private:
  const T* x_;
  const float *mean_, *centers_;
  const int d_, k_;
  double least_ = kInfinity;
  int label_ = 0;
};

}  // namespace batched
