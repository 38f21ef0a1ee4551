// The integer sums of few features (integers.cuh) in shared memory, where a lane has the columns of a row that are its own.
//
//   columns   kVector that lie together are a lane's. A warp takes 32 / kLanes rows at a time, kLanes lanes each: the power
//             of two that has room for a row's vectors, or 32 and several parts
//
//   sums of a cluster            lane 0 … 31, which is row, vector
//     low digits, high digits    ████████████████████  ████████████████████     of each element of a vector, of each part
//     rows                       ████████████████████                           by whichever lane has the row
//
// Why it is fast: what the lanes of a warp add to lies in as many banks, whatever clusters their rows are of; a row is read
// by neighbours; and where a row's sums are is found once for a vector. Of 64 clusters of 32 features by vectors of two that
// is 40 KiB, where a replica for each lane would be 520.
#pragma once
#include "apps/kmeans/few_rows.cuh"

namespace kmeans {

// A row that goes from one cluster to another: where their sums begin, negative if it was in none.
struct alignas(16) Moving {
  unsigned row;
  int from, to, padding;
};

template <int kVectors>
constexpr int lanes_of_row() {
  int lanes = 1;
  while (lanes < 32 && lanes < kVectors) lanes *= 2;
  return lanes;
}

template <typename T, int kFeatures, int kVector>
class ColumnSums {
 public:
  static_assert(kFeatures % kVector == 0);
  static constexpr int kVectors = kFeatures / kVector, kLanes = lanes_of_row<kVectors>(), kTogether = 32 / kLanes;
  static constexpr int kParts = (kVectors + 31) / 32, kSlots = kParts * kVector;
  static constexpr int kWords = 32 * (2 * kSlots + 1);  // of a cluster

  __device__ ColumnSums(unsigned long long* sums, unsigned* digits, int k, const T* X, const float* mean, const float* scales)
      : sums_(sums), digits_(digits), k_(k), X_(X), mean_(mean), scales_(scales) {}

  // Where the sums of a cluster begin; negative if it is none.
  __device__ static __forceinline__ int place(int cluster) { return cluster * kWords; }

  __device__ __forceinline__ void clear() const {
    for (int i = threadIdx.x; i < k_ * kWords; i += blockDim.x) digits_[i] = 0;
    __syncthreads();
  }

  // Adds rows to one cluster and subtracts them from another; by a warp.
  __device__ __forceinline__ void move(const Moving* rows, int count) const {
    using Row = simt::Vector<T, kVector>;
    using Of = simt::Vector<float, kVector>;
    // Of a lane, so that several rows are on their way; there are 32 at most.
    constexpr int kAtOnce = kTogether == 32 ? 1 : kSlots > 1 ? 2 : 4;
    const int lane = threadIdx.x % 32, vector = lane % kLanes;
    unsigned* own = digits_ + lane;
    Of mean[kParts], scale[kParts];
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      if (!has(vector, p)) continue;
      mean[p] = *reinterpret_cast<const Of*>(mean_ + column(vector, p));
      scale[p] = *reinterpret_cast<const Of*>(scales_ + column(vector, p));
    }
#pragma unroll 1
    for (int i = lane / kLanes; i < count; i += kAtOnce * kTogether) {
      Moving one[kAtOnce];
      Row x[kAtOnce][kParts];
#pragma unroll
      for (int r = 0; r < kAtOnce; ++r) {
        one[r] = i + r * kTogether < count ? rows[i + r * kTogether] : Moving{0, -1, -1, 0};
        const T* from = X_ + (long long)one[r].row * kFeatures;
#pragma unroll
        for (int p = 0; p < kParts; ++p) {
          if (one[r].to >= 0 && has(vector, p)) x[r][p] = *reinterpret_cast<const Row*>(from + column(vector, p));
        }
      }
#pragma unroll
      for (int p = 0; p < kParts; ++p) {
        if (!has(vector, p)) continue;
#pragma unroll
        for (int r = 0; r < kAtOnce; ++r) {
          if (one[r].to < 0) continue;
          int numbers[kVector];
#pragma unroll
          for (int e = 0; e < kVector; ++e) {
            numbers[e] = as_integer<float>(centred<T, float>(x[r][p].at[e], mean[p].at[e]), scale[p].at[e]);
          }
          add(own + one[r].to + 64 * kVector * p, numbers, 1);
          if (one[r].from >= 0) add(own + one[r].from + 64 * kVector * p, numbers, -1);
        }
      }
    }
    if (lane >= count) return;
    atomicAdd(own + rows[lane].to + 64 * kSlots, 1u);
    if (rows[lane].from >= 0) atomicAdd(own + rows[lane].from + 64 * kSlots, ~0u);
  }

  // To global memory, and zero again; with all threads of the block.
  __device__ __forceinline__ void flush() const {
    constexpr int kWidth = kFeatures + 1;
    __syncthreads();
    for (int i = threadIdx.x; i < k_ * kWidth; i += blockDim.x) {
      const int cluster = i / kWidth, column = i % kWidth;
      unsigned* from = digits_ + place(cluster);
      long long sum = 0;
      if (column < kFeatures) {
        const int vector = column / kVector;
        from += 64 * (vector / 32 * kVector + column % kVector) + vector % 32;
#pragma unroll 4
        for (int lane = 0; lane < 32; lane += kLanes) {
          sum += take(from + lane) + (long long)take(from + lane + 32) * 65536;
        }
      } else {
        // Clusters differ in where they begin, so as not to wait for one bank.
#pragma unroll 4
        for (int lane = 0; lane < 32; ++lane) sum += take(from + 64 * kSlots + (cluster + lane) % 32);
      }
      if (sum != 0) atomicAdd(&sums_[i], (unsigned long long)sum);
    }
    __syncthreads();
  }

 private:
  __device__ static __forceinline__ int column(int vector, int part) { return (vector + 32 * part) * kVector; }

  __device__ static __forceinline__ bool has(int vector, int part) {
    return 32 * part + kLanes <= kVectors || vector + 32 * part < kVectors;
  }

  __device__ static __forceinline__ int take(unsigned* from) {
    const int digit = (int)*from;
    *from = 0;
    return digit;
  }

  __device__ static __forceinline__ void add(unsigned* to, const int (&numbers)[kVector], int sign) {
#pragma unroll
    for (int e = 0; e < kVector; ++e) {
      atomicAdd(to + 64 * e, (unsigned)(sign * (numbers[e] & 0xffff)));
      atomicAdd(to + 64 * e + 32, (unsigned)(sign * (numbers[e] >> 16)));
    }
  }

  unsigned long long* sums_;
  unsigned* digits_;
  const int k_;
  const T* X_;
  const float *mean_, *scales_;
};

}  // namespace kmeans
