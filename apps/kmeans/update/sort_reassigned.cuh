// Rows that change their label, sorted into *segments* for segmented_sum.cuh: the rows of one come to the same cluster
// and leave the same.
//
//   changes    lists of them: a row, its label, and its new one (or as assign/rescore.cuh leaves them, with rows that
//              do not change)
//   segments   of few clusters, one for each pair, (from + 1) · 2^bits + to, where a row that is in no cluster comes
//              from −1;
//              of many, two for each: c for what comes to cluster c, k + c for what leaves it
//   places     the rows of segment 0, of segment 1 …, in no order: sums are exact. By pairs a row is there once, else
//              twice
//
// count_reassigned   counts the rows of each segment; the last block to arrive makes of it where segments begin
// sort_reassigned    puts every row into its segments; where a segment began is where it ends then
//
// Why it is fast: a place is 4 bytes, so that what is scattered stays in the level-2 cache until its lines are whole. A
// list is read twice, rows counted in shared memory: as a row is counted, its place among those of the block and its
// segment is known, and one addition a segment tells where those of the block begin. Where a block has too few rows to
// clear and to look through the counts of all segments, each is counted in the level-2 cache at once, and what is left
// is three launches.
#pragma once
#include "apps/kmeans/assign/large_k.cuh"
#include "kernels/ptx/dependent_launch.cuh"

namespace kmeans {

// What either list says of a row.
__device__ __forceinline__ Reassignment change_of(const Reassignment& change) { return change; }
__device__ __forceinline__ Reassignment change_of(const AmbiguousRow& entry) {
  return {entry.row, entry.label, first_center(entry.low, entry.high), 0};
}

// Lists of T, a block's from its number times `capacity` on; their lengths are `step` words apart.
template <typename T>
struct Lists {
  const T* items;
  const unsigned* lengths;
  long long capacity;
  int step, padding;

  // Those of this block's list that are this block's, about.
  __device__ __forceinline__ unsigned of_block() const { return lengths[blockIdx.x * step] / gridDim.y; }

  // Block (x, y) has part y of list x: `work` of some of them for each thread, by all threads, until there are no more.
  // Past the last are changes from and to cluster 0.
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

// Which segments there are. The same in memory as on the host.
struct Segments {
  int k;
  int bits;  // of a cluster in a pair; negative if segments are of clusters

  __device__ __forceinline__ int number() const { return bits < 0 ? 2 * k : (k + 1) << bits; }
  // Those that a change is in, of which none is negative.
  __device__ __forceinline__ void of(const Reassignment& change, int (&segments)[2]) const {
    const bool changes = change.from != change.to;
    segments[0] = !changes ? -1 : bits < 0 ? change.to : (change.from + 1) << bits | change.to;
    segments[1] = changes && bits < 0 && change.from >= 0 ? k + change.from : -1;
  }
  // The cluster that rows of a segment come to, and the one that they leave; none is negative.
  __device__ __forceinline__ int to(int segment) const {
    return bits < 0 ? segment < k ? segment : -1 : segment & ((1 << bits) - 1);
  }
  __device__ __forceinline__ int from(int segment) const { return bits < 0 ? segment - k : (segment >> bits) - 1; }
};

constexpr int kCountThreads = 512;
// Segments that a thread sees to at a time; and those that are counted in shared memory, if there are no more.
constexpr int kEach = 9, kCountedHere = 2 * kEach * kCountThreads;

// Whether a block with so many rows counts them in shared memory. Fewer wait little for each other in the level-2
// cache, even if all are of one segment.
__device__ __forceinline__ bool counts_here(unsigned rows, int segments) {
  return segments <= kCountedHere && rows >= (unsigned)segments / 16;
}

// Exclusive prefix sums of `counts` to `begins`, by one block; clears `counts`, and returns the sum. `tile` is shared
// memory.
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
    __syncthreads();  // the last tile has been written
#pragma unroll
    for (int i = 0; i < kEach; ++i) tile[i * kCountThreads + threadIdx.x] = mine[i];
    __syncthreads();
    // A thread adds up segments that lie together.
    unsigned sum = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      mine[i] = sum;
      sum += tile[kEach * threadIdx.x + i];
    }
    unsigned through = sum;
#pragma unroll
    for (int delta = 1; delta < 32; delta *= 2) {
      const unsigned other = simt::shuffle_up(through, delta);
      if (lane >= delta) through += other;
    }
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

// Writes the labels too. `counts` is zero before and after.
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

template <typename T>
__global__ void __launch_bounds__(kCountThreads, 2)
    sort_reassigned(const Lists<T> lists, const Segments segments, unsigned* begins, unsigned* places,
                    const int* stopped) {
  ptx::griddepcontrol_wait();
  if (*stopped) return;
  constexpr int kTogether = 8;
  // A segment, and the place among the block's rows of it, in one register.
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
    // Some at a time, so that they are on their way together.
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
