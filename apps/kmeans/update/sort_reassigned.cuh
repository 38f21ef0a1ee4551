// Counting sort of reassigned rows into *segments* for segmented_sum.cuh. A segment is the rows that leave the same
// cluster and join the same cluster; for large k, the rows that leave or that join one cluster.
//
// changes   lists of reassigned rows: a row, its label, and its new label. Lists of assign/rescore.cuh also hold rows
//           that keep their label.
// segments  small k: one per pair of labels. Rows that leave cluster `from` and join cluster `to` have the segment
//           (from + 1) · 2^bits + to; from = −1 means no cluster.
//           Large k: two per cluster c: segment c for rows that join it, segment k + c for rows that leave it.
// places    row indices sorted by segment, in any order within a segment, since sums are exact. For small k, a
//           reassigned row appears once; for large k, once for each cluster that it joins or leaves.
//
// count_reassigned  counts the rows of each segment; the last block to arrive computes where segments start in `places`
// sort_reassigned   scatters row indices to their segments; this advances the start of each segment to its end
//
// Why it is fast: an index has 4 bytes, so L2 holds the cache lines of `places` until they are completely written. Each
// kernel reads a list once. A block counts the rows of each segment in shared memory; the count before it adds a row is
// the row's position among the block's rows of this segment. One atomic per segment then reserves a range of `places`
// for these rows. In a block with few rows, clearing and reading the counts of all segments would cost too much. Such a
// block increments the counts in global memory (L2) for each row instead. So few rows cost little more than the
// launches.
#pragma once
#include "apps/kmeans/assign/large_k.cuh"
#include "kernels/ptx/dependent_launch.cuh"

namespace kmeans {

// Returns the reassignment that an entry of a list describes.
__device__ __forceinline__ Reassignment change_of(const Reassignment& change) { return change; }
__device__ __forceinline__ Reassignment change_of(const AmbiguousRow& entry) {
  return {entry.row, entry.label, first_center(entry.low, entry.high), 0};
}

// Lists of T. The list of block b starts at b · capacity; its length is lengths[b · step].
template <typename T>
struct Lists {
  const T* items;
  const unsigned* lengths;
  long long capacity;
  int step, padding;

  // Returns the approximate number of items that this block processes.
  __device__ __forceinline__ unsigned of_block() const { return lengths[blockIdx.x * step] / gridDim.y; }

  // Block (x, y) processes part y of list x. Each thread calls `work` with kTogether items at a time; all threads of a
  // block make equally many calls. Past the end of the list, the items are no reassignments: from cluster 0 to cluster
  // 0.
  template <int kTogether, typename Work>
  __device__ __forceinline__ void some(Work work) const {
    const unsigned length = lengths[blockIdx.x * step], together = gridDim.y * blockDim.x;
    for (unsigned begin = blockIdx.y * blockDim.x; begin < length; begin += kTogether * together) {
      const unsigned mine = begin + threadIdx.x;
      Reassignment changes[kTogether] = {};
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        if (mine + j * together < length) changes[j] = change_of(items[blockIdx.x * capacity + mine + j * together]);
      }
      work(changes);
    }
  }
};

// The numbering of the segments. The host has the same structure, byte for byte.
struct Segments {
  int k;
  int bits;  // small k: number of bits of a cluster index in a segment number; large k: negative

  __device__ __forceinline__ int number() const { return bits < 0 ? 2 * k : (k + 1) << bits; }
  // Computes the one or two segments to which a reassignment belongs; −1 means no segment.
  __device__ __forceinline__ void of(const Reassignment& change, int (&segments)[2]) const {
    const bool changes = change.from != change.to;
    segments[0] = !changes ? -1 : bits < 0 ? change.to : (change.from + 1) << bits | change.to;
    segments[1] = changes && bits < 0 && change.from >= 0 ? k + change.from : -1;
  }
  // `to` returns the cluster that the rows of a segment join, and `from` the cluster that they leave. A negative result
  // means no cluster.
  __device__ __forceinline__ int to(int segment) const {
    return bits < 0 ? segment < k ? segment : -1 : segment & ((1 << bits) - 1);
  }
  __device__ __forceinline__ int from(int segment) const { return bits < 0 ? segment - k : (segment >> bits) - 1; }
};

constexpr int kCountThreads = 512;
// kEach: number of segments that a thread processes at a time. kCountedHere: maximum number of segments for which a
// block has counts in shared memory.
constexpr int kEach = 9, kCountedHere = 2 * kEach * kCountThreads;

// Returns true if the counts of all segments fit in shared memory and the block has at least one row per 16 segments.
// The block then counts its rows in shared memory, otherwise by atomics in L2. These contend little if rows are few.
__device__ __forceinline__ bool counts_here(unsigned rows, int segments) {
  return segments <= kCountedHere && rows >= (unsigned)segments / 16;
}

// Writes the exclusive prefix sum of `counts` to `begins`, by one block. Clears `counts` and returns the sum of all
// counts. `tile` is scratch in shared memory.
__device__ __forceinline__ unsigned begin_segments(unsigned* counts, unsigned* begins, int segments,
                                                   unsigned (&tile)[kCountedHere]) {
  constexpr int kTile = kEach * kCountThreads;
  __shared__ unsigned of_warp[kCountThreads / 32];
  const int lane = threadIdx.x % 32;
  unsigned all = 0;
  for (int first = 0; first < segments; first += kTile) {
    unsigned mine[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int segment = first + i * kCountThreads + threadIdx.x;
      mine[i] = segment < segments ? simt::load_from_other_block(&counts[segment]) : 0;
    }
    __syncthreads();  // all threads have written the previous tile to `begins`
#pragma unroll
    for (int i = 0; i < kEach; ++i) tile[i * kCountThreads + threadIdx.x] = mine[i];
    __syncthreads();
    // A thread adds up the counts of kEach adjacent segments.
    unsigned sum = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      mine[i] = sum;
      sum += tile[kEach * threadIdx.x + i];
    }
    const unsigned through = simt::warp_running_sum(sum);
    if (lane == 31) of_warp[threadIdx.x / 32] = through;
    __syncthreads();
    unsigned before = all + through - sum;
    for (int warp = 0; warp < kCountThreads / 32; ++warp) {
      if (warp < (int)threadIdx.x / 32) before += of_warp[warp];
      all += of_warp[warp];
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) tile[kEach * threadIdx.x + i] = before + mine[i];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int segment = first + i * kCountThreads + threadIdx.x;
      if (segment >= segments) break;
      begins[segment] = tile[i * kCountThreads + threadIdx.x];
      counts[segment] = 0;
    }
  }
  return all;
}

// Counts the rows of each segment, and writes the new labels. The last block to arrive writes the start of each segment
// to `begins`, and the number of sorted row indices to `all`. `counts` is zero before and after.
template <typename T>
__global__ void __launch_bounds__(kCountThreads, 2)
    count_reassigned(const Lists<T> lists, const Segments segments, int* labels, unsigned* counts, unsigned* begins,
                     unsigned* arrived, unsigned* all, unsigned* n_reassigned, const int* stopped) {
  ptx::griddepcontrol_wait();
  if (*stopped) return;
  __shared__ unsigned here[kCountedHere];
  const int number = segments.number();
  const bool is_here = counts_here(lists.of_block(), number);
  unsigned *to = is_here ? here : counts, mine = 0;
  for (int i = threadIdx.x; is_here && i < number; i += kCountThreads) here[i] = 0;
  __syncthreads();
  lists.template some<4>([&](const Reassignment(&changes)[4]) {
#pragma unroll
    for (const Reassignment& change : changes) {
      int of[2];
      segments.of(change, of);
      if (of[0] < 0) continue;
      labels[change.row] = change.to;
      atomicAdd(&to[of[0]], 1u);
      if (of[1] >= 0) atomicAdd(&to[of[1]], 1u);
      ++mine;
    }
  });
  mine = simt::warp_sum(mine);
  if (threadIdx.x % 32 == 0 && mine) atomicAdd(n_reassigned, mine);
  __syncthreads();
  for (int i = threadIdx.x; is_here && i < number; i += kCountThreads) {
    if (here[i]) atomicAdd(&counts[i], here[i]);
  }
  if (!simt::last_to_arrive(arrived, gridDim.x * gridDim.y)) return;
  const unsigned places = begin_segments(counts, begins, number, here);
  if (threadIdx.x == 0) *all = places;
}

// Writes each row index to `places`, at the next free position of its segment. begins[s] becomes the end of segment s.
template <typename T>
__global__ void __launch_bounds__(kCountThreads, 2)
    sort_reassigned(const Lists<T> lists, const Segments segments, unsigned* begins, unsigned* places,
                    const int* stopped) {
  ptx::griddepcontrol_wait();
  if (*stopped) return;
  constexpr int kTogether = 8;
  // One register holds a segment in its kSegmentBits low bits. The other bits are the position of a row among the
  // block's rows of this segment.
  constexpr int kSegmentBits = 14;
  static_assert(kCountedHere <= 1 << kSegmentBits && (long long)kTogether * kCountThreads << kSegmentBits < 1ll << 32);
  __shared__ unsigned here[kCountedHere];
  const int number = segments.number();
  const bool is_here = counts_here(lists.of_block(), number);
  lists.template some<kTogether>([&](const Reassignment(&changes)[kTogether]) {
    int of[kTogether][2];
#pragma unroll
    for (int j = 0; j < kTogether; ++j) segments.of(changes[j], of[j]);
    if (!is_here) {
#pragma unroll
      for (int j = 0; j < kTogether; ++j)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if (of[j][i] >= 0) places[atomicAdd(&begins[of[j][i]], 1u)] = changes[j].row;
        }
      return;
    }
    for (int i = threadIdx.x; i < number; i += kCountThreads) here[i] = 0;
    __syncthreads();
    unsigned found[kTogether][2];
#pragma unroll
    for (int j = 0; j < kTogether; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (of[j][i] >= 0)
          found[j][i] = atomicAdd(&here[of[j][i]], 1u) << kSegmentBits | of[j][i];
        else
          found[j][i] = ~0u;
      }
    __syncthreads();
    // A thread has kEach atomics in flight.
    for (int first = threadIdx.x; first < number; first += kEach * kCountThreads) {
      unsigned begin[kEach];
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int segment = first + i * kCountThreads;
        begin[i] = segment < number ? here[segment] : 0;
      }
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        if (begin[i]) begin[i] = atomicAdd(&begins[first + i * kCountThreads], begin[i]);
      }
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        if (first + i * kCountThreads < number) here[first + i * kCountThreads] = begin[i];
      }
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < kTogether; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (found[j][i] == ~0u) continue;
        places[here[found[j][i] % (1u << kSegmentBits)] + (found[j][i] >> kSegmentBits)] = changes[j].row;
      }
    __syncthreads();
  });
}

}  // namespace kmeans
