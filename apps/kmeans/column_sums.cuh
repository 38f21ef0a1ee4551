// The integer sums of few features (integers.cuh) in shared memory, where the lanes of a warp take columns of some rows in turns.
//
//   a row      four columns are a lane's: kLanes lanes, the power of two that has room for it; 32 / kLanes rows at a time
//   a turn     lane v of row q adds column (turn ^ q % 4) · kLanes + v: of four rows, 4 · kLanes columns that differ
//
//   sums of a cluster           word 0 … 31                               of 16 columns, two replicas; of 64, twice the words
//     low digits, high digits   column 0 … 31        column 0 … 31
//     rows                      by whichever lane adds the row
//
// Why it is fast: what the lanes of a warp add to lies in as many banks, whatever clusters their rows are of, though a
// cluster's sums are there once or twice: 64 clusters of 32 features take 24 KiB. Rows are read where their tile lies in shared
// memory, and where a row's sums are is found once for four elements. Nothing that is added is waited for.
#pragma once
#include "apps/kmeans/few_rows.cuh"

namespace kmeans {

// A row that goes from one cluster to another: where it begins, what a byte's place in it is combined with (TileRing), and
// where the clusters' sums begin, negative if there are none.
struct alignas(16) Moving {
  const void* row;
  int swizzle;
  short from, to;
};

template <typename T, int kFeatures>
class ColumnSums {
 public:
  static constexpr int lanes_of_row() {
    int lanes = 1;
    while (4 * lanes < kFeatures) lanes *= 2;
    return lanes;
  }
  static constexpr int kLanes = lanes_of_row(), kWidth = 4 * kLanes, kTogether = 32 / kLanes;
  static_assert(kLanes <= 32, "a row is a warp's at most");
  static constexpr int kPlane = kWidth < 32 ? 32 : kWidth, kWords = 2 * kPlane + 32;  // of a digit; of a cluster
  // Of `k` clusters, in shared memory, and of the columns' means and scales.
  __host__ __device__ static constexpr int bytes(int k) { return 4 * k * kWords + 8 * kWidth; }

  __device__ ColumnSums(unsigned long long* sums, void* shared, int clusters, int k, const float* mean, const float* scales)
      : sums_(sums), columns_(static_cast<float2*>(shared)), digits_(reinterpret_cast<unsigned*>(columns_ + kWidth)), k_(k) {
    for (int i = threadIdx.x; i < kFeatures; i += blockDim.x) columns_[i] = {mean[i], scales[i]};
    for (int i = threadIdx.x; i < clusters * kWords; i += blockDim.x) digits_[i] = 0;
  }

  // Where the sums of a cluster begin; negative if it is none.
  __device__ static __forceinline__ int place(int cluster) { return cluster * kWords; }

  // Adds rows to one cluster and subtracts them from another; by a warp, 32 rows at most.
  __device__ __forceinline__ void move(const Moving* rows, int count) const {
    move_rows(rows, count, (int)(reinterpret_cast<unsigned char*>(columns_) - simt::dynamic_shared<unsigned char>()));
  }

  // To global memory, and zero again; with all threads of the block.
  __device__ __forceinline__ void flush() const {
    __syncthreads();
    for (int i = threadIdx.x; i < k_ * (kFeatures + 1); i += blockDim.x) {
      const int cluster = i / (kFeatures + 1), column = i % (kFeatures + 1);
      unsigned* from = digits_ + place(cluster);
      long long sum = 0;
      if (column < kFeatures) {
#pragma unroll
        for (int replica = 0; replica < kPlane; replica += kWidth) {
          sum += take(from + replica + column) + (long long)take(from + replica + column + kPlane) * 65536;
        }
      } else {
        // Clusters differ in where they begin, so as not to wait for one bank.
#pragma unroll 4
        for (int lane = 0; lane < 32; ++lane) sum += take(from + 2 * kPlane + (cluster + lane) % 32);
      }
      if (sum != 0) atomicAdd(&sums_[i], (unsigned long long)sum);
    }
    __syncthreads();
  }

 private:
  // A call of its own, so that what it takes of registers is not what the loop of tiles goes without. `begin` is how many
  // bytes before the columns the block's shared memory begins: a pointer would be to any memory.
  __device__ __noinline__ static void move_rows(const Moving* rows, int count, int begin) {
    const float2* columns = reinterpret_cast<const float2*>(simt::dynamic_shared<unsigned char>() + begin);
    unsigned* digits = reinterpret_cast<unsigned*>(simt::dynamic_shared<unsigned char>() + begin) + 2 * kWidth;
    constexpr int kAtOnce = kTogether < 32 ? 2 : 1;
    const int lane = threadIdx.x % 32, q = lane / kLanes;
    unsigned* own = digits + q / 4 * kWidth % 32;
    float2 of_column[4];
    int column[4];
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      column[s] = (s ^ q % 4) * kLanes + lane % kLanes;
      if (has(column[s])) of_column[s] = columns[column[s]];
    }
#pragma unroll 1
    for (int i = q; i < count; i += kAtOnce * kTogether) {
      T x[kAtOnce][4];
#pragma unroll
      for (int r = 0; r < kAtOnce; ++r) {
        if (i + r * kTogether >= count) break;
        const Moving& one = rows[i + r * kTogether];
        const auto* row = static_cast<const unsigned char*>(one.row);
        const int swizzle = one.swizzle;
#pragma unroll
        for (int s = 0; s < 4; ++s) {
          if (has(column[s])) x[r][s] = *reinterpret_cast<const T*>(row + (column[s] * (int)sizeof(T) ^ swizzle));
        }
      }
#pragma unroll
      for (int r = 0; r < kAtOnce; ++r) {
        if (i + r * kTogether >= count) break;
        const int from = rows[i + r * kTogether].from, to = rows[i + r * kTogether].to;
        int numbers[4];
#pragma unroll
        for (int s = 0; s < 4; ++s) {
          if (has(column[s])) numbers[s] = as_integer<float>(centred<T, float>(x[r][s], of_column[s].x), of_column[s].y);
        }
        add(own + to, column, numbers, 1);
        if (from >= 0) add(own + from, column, numbers, -1);
      }
    }
    if (lane >= count) return;
    atomicAdd(digits + 2 * kPlane + lane + rows[lane].to, 1u);
    if (rows[lane].from >= 0) atomicAdd(digits + 2 * kPlane + lane + rows[lane].from, ~0u);
  }

  __device__ static __forceinline__ bool has(int column) { return kFeatures == kWidth || column < kFeatures; }

  __device__ static __forceinline__ int take(unsigned* from) {
    const int digit = (int)*from;
    *from = 0;
    return digit;
  }

  __device__ static __forceinline__ void add(unsigned* to, const int (&column)[4], const int (&numbers)[4], int sign) {
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      if (!has(column[s])) continue;
      atomicAdd(to + column[s], (unsigned)(sign * (numbers[s] & 0xffff)));
      atomicAdd(to + column[s] + kPlane, (unsigned)(sign * (numbers[s] >> 16)));
    }
  }

  unsigned long long* sums_;
  float2* columns_;
  unsigned* digits_;
  const int k_;
};

}  // namespace kmeans
