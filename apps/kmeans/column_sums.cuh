// The integer sums of few features (move.cuh) in shared memory, where a lane has the columns of a row that are its own.
//
//   columns   a warp takes 32 / kLanes rows at a time, kLanes lanes each: the power of two that has room for a row's
//             elements, or 32 and several parts
//
//   sums of a cluster      lane 0 … 31, which is row, column
//     low digits            ████████████████████            of each part
//     high digits           ████████████████████
//     rows                  ████████████████████            by whichever lane has the row
//
// Why it is fast: what the lanes of a warp add to lies in as many banks, whatever clusters their rows are of, and a row is
// read by neighbours. Of 64 clusters of 32 features that is 24 KiB, where a replica for each lane would be 520.
#pragma once
#include "apps/kmeans/few_rows.cuh"

namespace kmeans {

// A row that goes from one cluster to another, negative if it was in none.
struct alignas(16) Moving {
  unsigned row;
  int from, to, padding;
};

template <int kFeatures>
constexpr int lanes_of_row() {
  int lanes = 1;
  while (lanes < 32 && lanes < kFeatures) lanes *= 2;
  return lanes;
}

template <typename T, int kFeatures>
class ColumnSums {
 public:
  static constexpr int kLanes = lanes_of_row<kFeatures>(), kTogether = 32 / kLanes, kParts = (kFeatures + 31) / 32;
  static constexpr int kPlanes = 2 * kParts + 1, kWords = 32 * kPlanes;  // of a cluster

  __device__ ColumnSums(unsigned long long* sums, unsigned* digits, int k, const T* X, const float* mean, const float* scales)
      : sums_(sums), digits_(digits), k_(k), X_(X), mean_(mean), scales_(scales) {}

  __device__ __forceinline__ void clear() const {
    for (int i = threadIdx.x; i < k_ * kWords; i += blockDim.x) digits_[i] = 0;
    __syncthreads();
  }

  // Adds rows to one cluster and subtracts them from another; by a warp.
  __device__ __forceinline__ void move(const Moving* rows, int count) const {
    constexpr int kAtOnce = kParts > 1 ? 2 : 4;  // of a lane, so that several rows are on their way
    const int lane = threadIdx.x % 32, column = lane % kLanes;
    float mean[kParts], scale[kParts];
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      mean[p] = has(column, p) ? mean_[column + 32 * p] : 0.0f;
      scale[p] = has(column, p) ? scales_[column + 32 * p] : 0.0f;
    }
#pragma unroll 1
    for (int i = lane / kLanes; i < count; i += kAtOnce * kTogether) {
      Moving one[kAtOnce];
      T x[kAtOnce][kParts];
#pragma unroll
      for (int r = 0; r < kAtOnce; ++r) {
        const bool present = i + r * kTogether < count;
        one[r] = present ? rows[i + r * kTogether] : Moving{0, -1, -1, 0};
#pragma unroll
        for (int p = 0; p < kParts; ++p) {
          if (present && has(column, p)) x[r][p] = X_[(long long)one[r].row * kFeatures + column + 32 * p];
        }
      }
#pragma unroll
      for (int r = 0; r < kAtOnce; ++r)
#pragma unroll
        for (int p = 0; p < kParts; ++p) {
          if (one[r].to < 0 || !has(column, p)) continue;
          const int number = as_integer<float>(centred<T, float>(x[r][p], mean[p]), scale[p]);
          add(one[r].to, p, number, 1);
          if (one[r].from >= 0) add(one[r].from, p, number, -1);
        }
    }
    if (lane >= count) return;
    atomicAdd(digits_ + rows[lane].to * kWords + 64 * kParts + lane, 1u);
    if (rows[lane].from >= 0) atomicAdd(digits_ + rows[lane].from * kWords + 64 * kParts + lane, ~0u);
  }

  // To global memory, and zero again; with all threads of the block.
  __device__ __forceinline__ void flush() const {
    constexpr int kWidth = kFeatures + 1;
    __syncthreads();
    for (int i = threadIdx.x; i < k_ * kWidth; i += blockDim.x) {
      const int cluster = i / kWidth, column = i % kWidth;
      unsigned* from = digits_ + cluster * kWords;
      long long sum = 0;
      if (column < kFeatures) {
        from += column / 32 * 64 + column % 32;
#pragma unroll
        for (int row = 0; row < 32; row += kLanes) {
          sum += take(from + row) + (long long)take(from + row + 32) * 65536;
        }
      } else {
        // Clusters differ in where they begin, so as not to wait for one bank.
#pragma unroll 4
        for (int lane = 0; lane < 32; ++lane) sum += take(from + 64 * kParts + (cluster + lane) % 32);
      }
      if (sum != 0) atomicAdd(&sums_[i], (unsigned long long)sum);
    }
    __syncthreads();
  }

 private:
  __device__ static __forceinline__ bool has(int column, int part) {
    return 32 * part + kLanes <= kFeatures || column + 32 * part < kFeatures;
  }

  __device__ static __forceinline__ int take(unsigned* from) {
    const int digit = (int)*from;
    *from = 0;
    return digit;
  }

  __device__ __forceinline__ void add(int cluster, int part, int number, int sign) const {
    unsigned* to = digits_ + cluster * kWords + 64 * part + threadIdx.x % 32;
    atomicAdd(to, (unsigned)(sign * (number & 0xffff)));
    atomicAdd(to + 32, (unsigned)(sign * (number >> 16)));
  }

  unsigned long long* sums_;
  unsigned* digits_;
  const int k_;
  const T* X_;
  const float *mean_, *scales_;
};

}  // namespace kmeans
