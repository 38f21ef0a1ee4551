// Batched update of the fixed-point cluster sums by the reassigned rows of every problem. Sizes b, d, k: see
// problem.cuh.
//
//   changes, labels  →  sums (b × k × (d + 1), 64-bit integers)  →  centers (centers.cuh)
//
// A reassigned row gives two *terms*: it is added to the sums of its new cluster, and subtracted from those of its old
// cluster. A fixed-point element is round((x − mean) · scale). Sums are exact and independent of the order of
// additions, so every grid gives the same bits.
//
//   a block: a part of the reassigned rows of a problem, and a slice of up to 32 columns
//      rows, from, to   ─ counting sort by cluster, in shared memory →   terms of cluster 0 │ of cluster 1 │ …
//      a group of lanes takes an equal number of terms, a lane four adjacent columns:      ├─ group 0 ──┼─ group 1 ─┤ …
//
// Why it is fast: a row that is not reassigned costs nothing, and after the first iterations few rows are reassigned. A
// lane adds the terms of a cluster in registers, and then makes one atomic addition per column. Parts are so large that
// a cluster has several terms, and slices make up for their small number. Loads of several rows are in flight.
#pragma once
#include "apps/kmeans/batched/problem.cuh"
#include "kernels/ptx/types.cuh"

namespace batched {

// kMostShare, kLeastShare: maximum and minimum number of reassigned rows that a block processes, if there are as many.
// kShareOfCluster: minimum number of them per cluster, within these limits. kMostSorted: maximum k for which terms are
// sorted: shared memory holds a number per cluster. kSlice: columns of a slice.
constexpr unsigned kMostShare = 4096, kLeastShare = 256, kShareOfCluster = 4;
constexpr int kMostSorted = 8192, kSlice = 32;

// Reassigned rows of a block, and their terms, in shared memory: term 2·i adds row i, and term 2·i + 1 subtracts it.
struct Terms {
  unsigned* rows;
  int *from, *to, *begins;  // begins: k
  unsigned short* sorted;

  __device__ __forceinline__ Terms(unsigned* shared, unsigned share)
      : rows(shared), from((int*)shared + share), to((int*)shared + 2 * share), begins((int*)shared + 4 * share),
        sorted(reinterpret_cast<unsigned short*>(shared + 3 * share)) {}

  __device__ __forceinline__ int cluster(int term) const { return term % 2 ? from[term / 2] : to[term / 2]; }

  // Replaces the counts in `begins` by their exclusive prefix sums.
  template <int kThreads>
  __device__ __forceinline__ void sum_counts(int k) const {
    __shared__ int of_warp[kThreads / 32];
    const int each = (k + kThreads - 1) / kThreads, first = each * threadIdx.x, warp = threadIdx.x / 32;
    const int last = first + each < k ? first + each : k;
    int sum = 0;
    for (int j = first; j < last; ++j) sum += begins[j];
    int before = simt::warp_running_sum(sum);
    if (threadIdx.x % 32 == 31) of_warp[warp] = before;
    __syncthreads();
    before -= sum;
    for (int i = 0; i < warp; ++i) before += of_warp[i];
    for (int j = first; j < last; ++j) {
      const int count = begins[j];
      begins[j] = before;
      before += count;
    }
  }

  // Sorts the terms of `count` rows by cluster, without those of cluster −1, and returns their number. If not `sorts`,
  // leaves all in order.
  template <int kThreads>
  __device__ __forceinline__ int sort(int count, int k, bool sorts) const {
    for (int j = threadIdx.x; sorts && j < k; j += kThreads) begins[j] = 0;
    __syncthreads();
    for (int term = threadIdx.x; term < 2 * count; term += kThreads) {
      if (!sorts) {
        sorted[term] = (unsigned short)term;
      } else if (cluster(term) >= 0) {
        atomicAdd(&begins[cluster(term)], 1);
      }
    }
    __syncthreads();
    if (!sorts) return 2 * count;
    sum_counts<kThreads>(k);
    __syncthreads();
    for (int term = threadIdx.x; term < 2 * count; term += kThreads) {
      if (cluster(term) >= 0) sorted[atomicAdd(&begins[cluster(term)], 1)] = (unsigned short)term;
    }
    __syncthreads();
    return begins[k - 1];
  }
};

// Adds `count` terms to the sums, listed from `terms` on, in four columns from `column` on. `number(x − mean, i)` is
// the fixed-point element of column `column` + i.
template <bool kAligned, int kTogether, typename T, typename Number>
__device__ __forceinline__ void add_terms(const Batch<T>& batch, int problem, const Terms& of,
                                          const unsigned short* terms, int count, int column, Number number) {
  const int d = batch.d;
  const float* mean = batch.means + (long long)problem * d + column;
  float middle[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) middle[i] = kAligned || column + i < d ? mean[i] : 0.0f;
  unsigned long long* sums = batch.sums + (long long)problem * batch.k * (d + 1);
  long long sum[4] = {};
  int cluster = -1, rows = 0;
  const auto flush = [&] {
    unsigned long long* to = sums + (long long)cluster * (d + 1);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (cluster >= 0 && sum[i] != 0) atomicAdd(to + column + i, (unsigned long long)sum[i]);
      sum[i] = 0;
    }
    if (cluster >= 0 && column == 0 && rows != 0) atomicAdd(to + d, (unsigned long long)(long long)rows);
    rows = 0;
  };
  for (int first = 0; first < count; first += kTogether) {
    simt::Vector<T, 4> x[kTogether];
#pragma unroll
    for (int m = 0; m < kTogether; ++m) {
      const int term = terms[first + m < count ? first + m : count - 1];
      const T* from = batch.row(problem, of.rows[term / 2]) + column;
      if constexpr (kAligned) {
        x[m] = *reinterpret_cast<const simt::Vector<T, 4>*>(from);
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) x[m].at[i] = from[column + i < d ? i : 0];
      }
    }
#pragma unroll
    for (int m = 0; m < kTogether; ++m) {
      if (first + m >= count) break;
      const int term = terms[first + m], to = of.cluster(term);
      if (to != cluster) flush(), cluster = to;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float value = Batch<T>::centered(x[m].at[i], middle[i]);
        const long long element = kAligned || column + i < d ? number(value, i) : 0;
        sum[i] += term % 2 ? -element : element;
      }
      rows += term % 2 ? -1 : 1;
    }
  }
  flush();
}

// Block (part · slices + slice, problem) adds a part of the problem's reassigned rows to a slice of the sums. A block
// sorts `most` of these rows at a time. kAligned: d is a multiple of four, and four elements of X can be loaded at a
// time.
template <typename T, bool kAligned, int kThreads>
__global__ void __launch_bounds__(kThreads, 768 / kThreads) update_sums(const Batch<T> batch, unsigned most) {
  const int problem = blockIdx.y, d = batch.d;
  if (batch.status[problem] != kRunning) return;
  const unsigned slices = (d + kSlice - 1) / kSlice, parts = gridDim.x / slices, count = batch.counts[problem];
  const unsigned even = (count + parts - 1) / parts, wanted = kShareOfCluster * batch.k;
  const unsigned least = wanted < kLeastShare ? kLeastShare : wanted < kMostShare ? wanted : kMostShare;
  const unsigned share = even < least ? least : even;
  const unsigned long long begin = (unsigned long long)share * (blockIdx.x / slices);
  if (begin >= count) return;
  const unsigned all = count - begin < share ? (unsigned)(count - begin) : share;
  const Change* changes = batch.changes + problem * batch.n + begin;
  const Terms terms(simt::dynamic_shared<unsigned>(), most);
  int lanes = 1;  // a group has enough lanes for all columns of a slice
  while (4 * lanes < kSlice && 4 * lanes < d) lanes *= 2;
  const int groups = kThreads / lanes, group = threadIdx.x / lanes;
  const int column = blockIdx.x % slices * kSlice + threadIdx.x % lanes * 4;
  const bool sorts = batch.k <= kMostSorted, narrow = batch.narrow[problem];
  double scale[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) scale[i] = column + i < d ? batch.sum_scales[(long long)problem * d + column + i] : 0.0;
  for (unsigned first = 0; first < all; first += most) {
    const int rows = (int)(all - first < most ? all - first : most);
    for (int i = threadIdx.x; i < rows; i += kThreads) {
      const Change change = changes[first + i];
      terms.rows[i] = change.row;
      terms.from[i] = change.from;
      terms.to[i] = batch.labels[problem * batch.n + change.row];
    }
    __syncthreads();
    const int total = terms.sort<kThreads>(rows, batch.k, sorts);
    const int from = (int)((long long)total * group / groups), to = (int)((long long)total * (group + 1) / groups);
    if (column < d && narrow) {
      const float by[4] = {(float)scale[0], (float)scale[1], (float)scale[2], (float)scale[3]};
      add_terms<kAligned, (kAligned ? 16 : 4) / (int)sizeof(T)>(
          batch, problem, terms, terms.sorted + from, to - from, column,
          [&](float x, int i) { return (long long)__float2int_rn(x * by[i]); });
    } else if (column < d) {
      add_terms<kAligned, 2>(batch, problem, terms, terms.sorted + from, to - from, column,
                             [&](float x, int i) { return __double2ll_rn((double)x * scale[i]); });
    }
    __syncthreads();  // all threads have read the terms
  }
}

}  // namespace batched
