// Batched update of the fixed-point cluster sums by the reassigned rows of every problem. Sizes b, d, k: see problem.cuh.
//
//   changes, labels  →  sums (b × k × (d + 1), 64-bit integers)  →  centers (centers.cuh)
//
// A fixed-point element is round((x − mean) · scale). Sums are exact and independent of the order of additions, so
// every grid gives the same bits. The blocks of a problem divide its reassigned rows into parts, and the columns of the
// sums into slices of `sum_columns`, whose sums fit in shared memory. If elements have 30 bits (scales.cuh), a block
// sums the two 16-bit limbs of elements separately, in 32 bits, for at most kFlush rows. If they have more, or no slice
// fits, blocks add elements directly in global memory.
//
// Why it is fast: a row that is not reassigned costs nothing, and after the first iterations few rows are reassigned. A
// reassigned row costs a read of X and two additions in shared memory per element and sum. The level-2 cache, which
// would have to make all these additions otherwise, gets one addition per sum and block: at k = 293 and d = 128, ten
// iterations take a quarter of the time.
#pragma once
#include "apps/kmeans/batched/problem.cuh"
#include "kernels/ptx/types.cuh"

namespace batched {

// kFlush: maximum number of rows between two additions of the limbs to the global sums. kLeastShare: minimum number of
// rows that a block processes.
constexpr unsigned kFlush = 32768, kLeastShare = 256;

// The sums of one slice of columns of a problem: `columns` columns from `first` on, and the number of rows if `first`
// is 0. `move` adds integers in shared memory until `flush`, or else in global memory.
template <bool kShared>
struct SliceSums {
  unsigned long long* sums;
  unsigned* limbs;  // two planes of k × (columns + 1); the last column is the number of rows
  int d, k, first, columns;

  // Adds a number to a sum, and subtracts it from the sum of another cluster if `from` is not negative.
  template <typename Integer>
  __device__ __forceinline__ void move(int from, int to, int column, Integer number) const {
    add(to, column, number);
    if (from >= 0) add(from, column, -number);
  }
  // `clear` and `flush` are called by all threads of a block.
  __device__ __forceinline__ void clear() const {
    if constexpr (kShared) {
      for (int i = threadIdx.x; i < 2 * size(); i += blockDim.x) limbs[i] = 0;
      __syncthreads();
    }
  }
  __device__ __forceinline__ void flush() const {
    if constexpr (kShared) {
      __syncthreads();
      for (int i = threadIdx.x; i < size(); i += blockDim.x) {
        const long long sum = (long long)(int)limbs[size() + i] * 65536 + limbs[i];
        if (sum != 0) atomicAdd(of(i / (columns + 1), i % (columns + 1)), (unsigned long long)sum);
        limbs[i] = limbs[size() + i] = 0;
      }
      __syncthreads();
    }
  }

 private:
  template <typename Integer>
  __device__ __forceinline__ void add(int cluster, int column, Integer number) const {
    if constexpr (kShared) {
      const int place = cluster * (columns + 1) + column;
      atomicAdd(&limbs[place], (unsigned)(number & 0xffff));
      atomicAdd(&limbs[size() + place], (unsigned)(number >> 16));
    } else {
      atomicAdd(of(cluster, column), (unsigned long long)(long long)number);
    }
  }
  __device__ __forceinline__ int size() const { return k * (columns + 1); }
  __device__ __forceinline__ unsigned long long* of(int cluster, int column) const {
    return sums + (long long)cluster * (d + 1) + (column == columns ? d : first + column);
  }
};

// Adds `left` reassigned rows, listed from `changes` on, to the sums of a slice, and subtracts them from the sums of
// their old clusters. `number(x − mean, column of the slice)` is the fixed-point element.
template <bool kShared, int kTogether, typename T, typename Number>
__device__ __forceinline__ void add_rows(const Batch<T>& batch, int problem, const SliceSums<kShared>& here,
                                         const Change* changes, unsigned left, Number number) {
  const int lane = threadIdx.x % 32;
  const float* mean = batch.means + (long long)problem * batch.d + here.first;
  const T* x = batch.row(problem, 0) + here.first;
  const int columns = batch.d - here.first < here.columns ? batch.d - here.first : here.columns;
  if (left > 0) here.clear();
  while (left > 0) {
    const unsigned count = left < kFlush ? left : kFlush;
    for (unsigned first = threadIdx.x / 32 * 32; first < count; first += blockDim.x) {
      const int rows = count - first < 32 ? (int)(count - first) : 32;
      Change change = {0, -1};
      int label = -1;
      if (lane < rows) {
        change = changes[first + lane];
        label = batch.labels[problem * batch.n + change.row];
        if (here.first == 0) here.move(change.from, label, here.columns, 1);
      }
      // A warp loads kTogether rows before it adds any of them.
      for (int i = 0; i < rows; i += kTogether) {
        unsigned row[kTogether];
        int to[kTogether], from[kTogether];
#pragma unroll
        for (int j = 0; j < kTogether; ++j) {
          const int source = i + j < rows ? i + j : i;
          row[j] = simt::shuffle(change.row, source);
          to[j] = i + j < rows ? simt::shuffle(label, source) : -1;
          from[j] = simt::shuffle(change.from, source);
        }
#pragma unroll 1
        for (int column = lane; column < columns; column += 32) {
          const float middle = mean[column];
          float value[kTogether];
#pragma unroll
          for (int j = 0; j < kTogether; ++j)
            value[j] = batch.centered(x[(long long)row[j] * batch.d + column], middle);
#pragma unroll
          for (int j = 0; j < kTogether; ++j) {
            if (to[j] >= 0) here.move(from[j], to[j], column, number(value[j], column));
          }
        }
      }
    }
    here.flush();
    changes += count;
    left -= count;
  }
}

// Block (slice + slices · part, problem) adds a part of the problem's reassigned rows to a slice of the sums. kShared:
// whether the sums of a slice fit in shared memory.
template <typename T, bool kShared, int kThreads>
__global__ void __launch_bounds__(kThreads, 1024 / kThreads) update_sums(const Batch<T> batch) {
  const int problem = blockIdx.y, d = batch.d;
  if (batch.status[problem] != kRunning) return;
  const unsigned slices = (d + batch.sum_columns - 1) / batch.sum_columns, parts = gridDim.x / slices;
  const unsigned count = batch.counts[problem], even = (count + parts - 1) / parts;
  const unsigned share = even < kLeastShare ? kLeastShare : even;
  const unsigned long long begin = (unsigned long long)share * (blockIdx.x / slices);
  const unsigned left = begin >= count ? 0 : count - begin < share ? (unsigned)(count - begin) : share;
  const Change* changes = batch.changes + problem * batch.n + begin;
  unsigned long long* sums = batch.sums + (long long)problem * batch.k * (d + 1);
  const int first = blockIdx.x % slices * batch.sum_columns;
  const double* scales = batch.sum_scales + (long long)problem * d + first;
  if (kShared && batch.narrow[problem]) {
    const SliceSums<true> here{sums, simt::dynamic_shared<unsigned>(), d, batch.k, first, batch.sum_columns};
    add_rows<true, 4>(batch, problem, here, changes, left,
                      [&](float x, int column) { return __float2int_rn(x * (float)scales[column]); });
  } else {
    const SliceSums<false> here{sums, nullptr, d, batch.k, first, batch.sum_columns};
    add_rows<false, 2>(batch, problem, here, changes, left,
                       [&](float x, int column) { return __double2ll_rn((double)x * scales[column]); });
  }
}

}  // namespace batched
