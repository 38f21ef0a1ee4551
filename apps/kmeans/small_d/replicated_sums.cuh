// Replicated fixed-point cluster sums for small d and small k, in shared memory.
//
// Why it is fast: lane l adds to replica l % kReplicas of the sums. With 32 replicas, no two lanes of a warp add to the
// same bank.
#pragma once
#include "apps/kmeans/small_d/constant_centers.cuh"
#include "apps/kmeans/update/fixed_point.cuh"

namespace kmeans {

// The replicas of a block's sums in shared memory. Replicas of the same sum are adjacent.
template <int kFeatures, int kReplicas>
class ReplicatedSums {
 public:
  static constexpr int kPlanes = 2 * kFeatures + 1;  // sums per cluster: two limbs per feature, and a count

  // Returns the maximum number of tiles between two flushes. Sums of the limbs of up to kMostAdded rows do not overflow
  // 32 bits. A warp drains its queue at most kRows times per tile, and once more after the last tile. Each time, at
  // most 32 / kReplicas lanes add to the same word.
  template <int kWarps, int kRows, int kMostAdded>
  static constexpr int tiles() {
    constexpr int kTiles = (kMostAdded / (kWarps * (32 / kReplicas)) - 1) / kRows;
    static_assert(kTiles >= 1, "the limbs of one tile would overflow");
    return kTiles;
  }

  __device__ ReplicatedSums(unsigned long long* sums, unsigned* digits, int k) : sums_(sums), digits_(digits), k_(k) {}

  // Adds a centered row to cluster `to`. Subtracts it from cluster `from`, unless `from` is negative.
  __device__ __forceinline__ void move(const float (&row)[kFeatures], int to, int from) const {
    int numbers[kFeatures];
#pragma unroll
    for (int i = 0; i < kFeatures; ++i) numbers[i] = as_integer<float>(row[i], constant_centers.scales[i]);
    unsigned* own = digits_ + threadIdx.x % kReplicas;
    add(own + to * (kPlanes * kReplicas), numbers, 1);
    if (from >= 0) add(own + from * (kPlanes * kReplicas), numbers, -1);
  }

  __device__ __forceinline__ void clear() const {
    for (int i = threadIdx.x; i < k_ * kPlanes * kReplicas; i += blockDim.x) digits_[i] = 0;
    __syncthreads();
  }

  // Adds the sums to those in global memory and clears the replicas. All threads of the block take part; a warp adds up
  // the replicas of one sum at a time.
  __device__ __forceinline__ void flush() const {
    constexpr int kWidth = kFeatures + 1;
    const int lane = threadIdx.x % 32;
    __syncthreads();
    for (int i = threadIdx.x / 32; i < k_ * kWidth; i += blockDim.x / 32) {
      const int column = i % kWidth;
      long long sum = 0;
      if (lane < kReplicas) {
        unsigned* low = digits_ + (i / kWidth * kPlanes + 2 * column) * kReplicas + lane;
        sum = (int)*low;
        *low = 0;
        if (column < kFeatures) {
          sum += (long long)(int)low[kReplicas] * 65536;
          low[kReplicas] = 0;
        }
      }
      sum = simt::warp_sum(sum);
      if (lane == 0 && sum != 0) atomicAdd(&sums_[i], (unsigned long long)sum);
    }
    __syncthreads();
  }

  // Flushes the sums for the last time. Adds `changed`, the number of reassigned rows of each lane, to `n_reassigned`.
  __device__ __forceinline__ void finish(unsigned lane, unsigned changed, unsigned* n_reassigned) const {
    flush();
    changed = simt::warp_sum(changed);
    if (lane == 0 && changed) atomicAdd(n_reassigned, changed);
  }

 private:
  __device__ __forceinline__ void add(unsigned* to, const int (&numbers)[kFeatures], int sign) const {
#pragma unroll
    for (int i = 0; i < kFeatures; ++i) {
      atomicAdd(to + 2 * i * kReplicas, (unsigned)(sign * (numbers[i] & 0xffff)));
      atomicAdd(to + (2 * i + 1) * kReplicas, (unsigned)(sign * (numbers[i] >> 16)));
    }
    atomicAdd(to + 2 * kFeatures * kReplicas, (unsigned)sign);
  }

  unsigned long long* sums_;
  unsigned* digits_;
  const int k_;
};

}  // namespace kmeans
