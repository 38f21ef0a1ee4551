// Rows that change their label go from one cluster's sums to another's: what move.cuh does, for sums that shared memory has
// no room for.
//
//   changes    lists of them: a row, its label, and its new one (or as decide.cuh leaves them, with rows that do not change)
//   places     every row twice, where it goes to and where it leaves from, sorted by cluster: a *segment* for each
//   sums       (k × (d + 1)), 64-bit integers, as in move.cuh
//
// count_changes   counts what each cluster gets and loses; the last block to arrive makes of it where segments begin
// sort_changes    puts every row's two places into their segments, in no order: sums are exact; where a segment began is
//                 where it ends then
// add_segments    adds and subtracts the rows of a segment in registers, 128 or 256 columns of some places by a warp
//
// Why it is fast: every changed row is read in whole lines, twice, some rows while those before are added, with no atomics
// but where a segment or a warp's share ends. A place is 4 bytes, so that what is sorted stays in the level-2 cache until
// its lines are whole. An element is added by one multiplication with ±1 into 64 bits.
#pragma once
#include "apps/kmeans/move.cuh"
#include "apps/kmeans/nearest_of_many.cuh"

namespace kmeans {

// What either list says of a row.
__device__ __forceinline__ Change change_of(const Change& change) { return change; }
__device__ __forceinline__ Change change_of(const Entry& entry) {
  return {entry.row, entry.label, first_centre(entry.low, entry.high), 0};
}

// Lists of T, a block's from its number times `capacity` on; their lengths are `step` words apart.
template <typename T>
struct Lists {
  const T* items;
  const unsigned* lengths;
  long long capacity;
  int step, padding;

  // Those of this block's list that are this thread's: block (x, y) has part y of list x.
  template <typename Work>
  __device__ __forceinline__ void each(Work work) const {
    constexpr int kTogether = 4;  // on their way
    const unsigned length = lengths[blockIdx.x * step], together = gridDim.y * blockDim.x;
    for (unsigned i = blockIdx.y * blockDim.x + threadIdx.x; i < length; i += kTogether * together) {
      Change changes[kTogether] = {};
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        if (i + j * together < length) changes[j] = change_of(items[blockIdx.x * capacity + i + j * together]);
      }
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        if (changes[j].from != changes[j].to) work(changes[j]);
      }
    }
  }
};

// A row in a segment: 2 · its number, and 1 more where it leaves.
using Segmented = unsigned;

constexpr int kCountThreads = 256;

// Exclusive prefix sums of `counts` to `begins`, by one block; clears `counts`, and returns the sum in the last thread.
__device__ __forceinline__ unsigned begin_segments(unsigned* counts, unsigned* begins, int k) {
  __shared__ unsigned of_warp[kCountThreads / 32];
  const int each = (k + kCountThreads - 1) / kCountThreads, lane = threadIdx.x % 32;
  const int first = threadIdx.x * each, last = first + each < k ? first + each : k;
  unsigned sum = 0;
  for (int i = first; i < last; ++i) sum += simt::load_from_other_block(&counts[i]);
  unsigned before = sum;
#pragma unroll
  for (int delta = 1; delta < 32; delta *= 2) {
    const unsigned other = simt::shuffle_up(before, delta);
    if (lane >= delta) before += other;
  }
  if (lane == 31) of_warp[threadIdx.x / 32] = before;
  __syncthreads();
  for (int warp = 0; warp < (int)threadIdx.x / 32; ++warp) before += of_warp[warp];
  const unsigned end = before;
  before -= sum;
  for (int i = first; i < last; ++i) {
    const unsigned count = simt::load_from_other_block(&counts[i]);
    begins[i] = before;
    counts[i] = 0;
    before += count;
  }
  return end;
}

// Additions to counters of k clusters by a block: in shared memory, if there are not too many, and then one a cluster.
constexpr int kCountedHere = 4096;

// Writes the labels too. `counts` is zero before and after.
template <typename T>
__global__ void __launch_bounds__(kCountThreads, 4) count_changes(const Lists<T> lists, int k, int* labels,
                                                               unsigned* counts, unsigned* begins, unsigned* arrived,
                                                               unsigned* all, unsigned* moved, const int* stopped) {
  if (*stopped) return;
  __shared__ unsigned here[kCountedHere];
  const bool is_here = k <= kCountedHere;
  unsigned *to = is_here ? here : counts, mine = 0;
  for (int j = threadIdx.x; is_here && j < k; j += blockDim.x) here[j] = 0;
  __syncthreads();
  lists.each([&](const Change& change) {
    labels[change.row] = change.to;
    atomicAdd(&to[change.to], 1u);
    if (change.from >= 0) atomicAdd(&to[change.from], 1u);
    ++mine;
  });
  mine = simt::warp_sum(mine);
  if (threadIdx.x % 32 == 0 && mine) atomicAdd(moved, mine);
  __syncthreads();
  for (int j = threadIdx.x; is_here && j < k; j += blockDim.x) {
    if (here[j]) atomicAdd(&counts[j], here[j]);
  }
  if (!simt::last_to_arrive(arrived, gridDim.x * gridDim.y)) return;
  const unsigned places = begin_segments(counts, begins, k);
  if (threadIdx.x == kCountThreads - 1) *all = places;
}

template <typename T>
__global__ void __launch_bounds__(kCountThreads, 4) sort_changes(const Lists<T> lists, int k, unsigned* begins,
                                                              Segmented* places, const int* stopped) {
  if (*stopped) return;
  __shared__ unsigned here[kCountedHere];
  const bool is_here = k <= kCountedHere;
  if (is_here) {
    // First how many places of each segment this block takes, then where they begin.
    for (int j = threadIdx.x; j < k; j += blockDim.x) here[j] = 0;
    __syncthreads();
    lists.each([&](const Change& change) {
      atomicAdd(&here[change.to], 1u);
      if (change.from >= 0) atomicAdd(&here[change.from], 1u);
    });
    __syncthreads();
    for (int j = threadIdx.x; j < k; j += blockDim.x) {
      if (here[j]) here[j] = atomicAdd(&begins[j], here[j]);
    }
    __syncthreads();
  }
  unsigned* next = is_here ? here : begins;
  lists.each([&](const Change& change) {
    places[atomicAdd(&next[change.to], 1u)] = 2u * change.row;
    if (change.from >= 0) places[atomicAdd(&next[change.from], 1u)] = 2u * change.row + 1;
  });
}

// The least and the most places of a warp's share, multiples of 32.
constexpr unsigned kLeastShare = 32, kMostShare = 1024;

// The segment that a place is in, by a warp: how many end at it or before.
__device__ __forceinline__ int segment_of(unsigned place, const unsigned* ends, int k) {
  int segment = 0, stride = 1;
  while (stride < k) stride *= 32;
  for (stride /= 32; stride > 0; stride /= 32) {
    const long long last = segment + (threadIdx.x % 32 + 1LL) * stride - 1;
    segment += stride * __popc(__ballot_sync(simt::every_lane, last < k && ends[last] <= place));
  }
  return segment;
}

// A number, or its opposite, added to 64 bits: of 32 bits by one instruction.
__device__ __forceinline__ void add_signed(long long& sum, int number, int sign) {
  sum = ptx::multiply_add_wide(number, sign, sum);
}
__device__ __forceinline__ void add_signed(long long& sum, long long number, int sign) {
  sum += sign < 0 ? -number : number;
}

// kAligned: the elements that a lane takes by one load, as rows begin at multiples of so many and are whole ones; 0 if they
// are not.
template <typename T, typename Work, int kDigits, bool kWeighted, int kAligned>
__global__ void __launch_bounds__(256, sizeof(T) == 2 && kDigits == 2 && kAligned == 4 ? 3 : 2) add_segments(const Rows<T, Work> rows,
                                                       const typename Integer<kDigits>::Scale* scales, int k,
                                                       const Segmented* places, const unsigned* ends,
                                                       const unsigned* count, unsigned long long* sums,
                                                       const int* stopped) {
  if (*stopped) return;
  constexpr int kWide = kAligned ? kAligned : kVector<T>;
  constexpr int kTogether = kWeighted ? 2 : kAligned == 4 && sizeof(T) == 2 ? 8 : 4;
  const int lane = threadIdx.x % 32, width = rows.d + 1, slices = (rows.d + 32 * kWide - 1) / (32 * kWide);
  const unsigned all = *count;
  const long long warps = (long long)gridDim.x * (blockDim.x / 32);
  const long long even = ((long long)all * slices + warps - 1) / warps;
  const unsigned share = even < kLeastShare ? kLeastShare : even < kMostShare ? (unsigned)(even + 31) / 32 * 32 : kMostShare;
  const long long items = (long long)((all + share - 1) / share) * slices;
  // The same in all lanes, and the compiler may know it.
  const int warp = simt::shuffle((int)threadIdx.x / 32, 0);
  for (long long item = (long long)blockIdx.x * (blockDim.x / 32) + warp; item < items; item += warps) {
    const int slice = (int)(item % slices);
    const unsigned begin = (unsigned)(item / slices) * share, end = all - begin < share ? all : begin + share;
    // Past the last column, column 0 again, of which nothing is added.
    int column[kWide];
    Work mean[kWide];
    typename Integer<kDigits>::Scale scale[kWide];
#pragma unroll
    for (int i = 0; i < kWide; ++i) {
      column[i] = 32 * kWide * slice + (kAligned ? kWide * lane + i : 32 * i + lane);
      const bool present = column[i] < rows.d;
      scale[i] = present ? scales[column[i]] : 0;
      if (!present) column[i] = kAligned ? i : 0;
      mean[i] = rows.mean[column[i]];
    }
    const auto of_weight = scales[rows.d];
    const auto one = as_integer<Work>(Work(1), of_weight);
    long long sum[kWide] = {}, weight_sum = 0;
    int current = segment_of(begin, ends, k);
    unsigned until = ends[current];
    auto flush = [&] {
      unsigned long long* to = sums + (long long)current * width;
#pragma unroll
      for (int i = 0; i < kWide; ++i) {
        if (sum[i]) atomicAdd(&to[column[i]], (unsigned long long)sum[i]);
        sum[i] = 0;
      }
      if (lane == 0 && slice == 0 && weight_sum) atomicAdd(&to[rows.d], (unsigned long long)weight_sum);
      weight_sum = 0;
    };
    // A lane has one of 32 places, and the one 32 after; past the end, the last place again, which is not added.
    auto place_at = [&](unsigned at) { return places[at + lane < end ? at + lane : end - 1]; };
    Segmented now = place_at(begin), soon = place_at(begin + 32);
    // As it was loaded: taken apart, halves would be moved one by one.
    using Loaded = simt::Vector<unsigned, kWide * sizeof(T) / 4>;
    struct Some {
      Loaded x[kTogether];
      Work weight[kTogether];
    };
    // Rows `first` … of these 64 places.
    auto load = [&](Some& some, int first) {
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        const long long row = simt::shuffle(first < 32 ? now : soon, (first + j) % 32) / 2;
        const T* from = rows.X + row * rows.leading;
        if (kAligned) {
          some.x[j] = *reinterpret_cast<const Loaded*>(from + column[0]);
        } else {
          simt::Vector<T, kWide> x;
#pragma unroll
          for (int i = 0; i < kWide; ++i) x.at[i] = from[column[i]];
          some.x[j] = simt::bits_of<Loaded>(x);
        }
        if (kWeighted) some.weight[j] = rows.weights[row];
      }
    };
    Some some;
    load(some, 0);
    for (unsigned at = begin; at < end; at += 32) {
      const unsigned leaving = __ballot_sync(simt::every_lane, now % 2);
#pragma unroll 2
      for (int first = 0; first < 32; first += kTogether) {
        if (at + first >= end) break;
        Some next;
        if (at + first + kTogether < end) load(next, first + kTogether);
        // The rows of one segment after those of another.
        const unsigned here = at + first, stop = end - here < kTogether ? end : here + kTogether;
        for (unsigned from = here; from < stop;) {
          if (from == until) {
            flush();
            while (until <= from) until = ends[++current];
          }
          const unsigned to = until < stop ? until : stop;
#pragma unroll
          for (int j = 0; j < kTogether; ++j) {
            if (here + j < from || here + j >= to) continue;
            const int sign = leaving >> (first + j) & 1 ? -1 : 1;
            const auto x = simt::bits_of<simt::Vector<T, kWide>>(some.x[j]);
            add_signed(weight_sum, kWeighted ? as_integer<Work>(some.weight[j], of_weight) : one, sign);
#pragma unroll
            for (int i = 0; i < kWide; ++i) {
              const Work value = centred<T, Work>(x.at[i], mean[i]);
              add_signed(sum[i], as_integer<Work>(kWeighted ? some.weight[j] * value : value, scale[i]), sign);
            }
          }
          from = to;
        }
        some = next;
      }
      now = soon;
      if (at + 64 < end) soon = place_at(at + 64);
    }
    flush();
  }
}

}  // namespace kmeans
