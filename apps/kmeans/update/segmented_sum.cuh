// Incremental update of the cluster sums: segmented reduction over sorted reassigned rows. All rows of a *segment*
// leave the same cluster and join the same cluster (sort_reassigned.cuh).
//
// places  sorted row indices: the rows of segment 0, then those of segment 1, …
// ends    for each segment, the position in `places` after its last row
// sums    (k × (d + 1)), 64-bit integers (fixed_point.cuh)
// share   a range of positions in `places`, and kLanes · kWide columns; a warp processes one share at a time
// step    the rows that a warp loads at a time: kTogether rows for each of its kGroups groups of kLanes lanes
//
//      lanes   0 … kLanes − 1         kLanes … 2 · kLanes − 1    …
//      rows    0, kGroups, …          1, kGroups + 1, …               a lane has kWide columns of its group's rows
//
// segmented_sum sums the rows of a segment in registers. At the end of a segment or share, it adds the result to the
// sums of the cluster that the rows join, and subtracts it from the sums of the cluster that they leave.
//
// Why it is fast: it reads every sorted row once, in whole cache lines, and loads the rows of the next step while it
// adds those of the current step. It needs atomics only where a segment or a share ends. The cost of an element does
// not depend on k: a subtraction, a multiplication, a conversion and an addition. Shares are small enough to spread few
// rows over all warps.
#pragma once
#include "apps/kmeans/update/sort_reassigned.cuh"
#include "apps/kmeans/assign/row_distances.cuh"
#include "apps/kmeans/update/fixed_point.cuh"
#include "kernels/ptx/dependent_launch.cuh"

namespace kmeans {

// Minimum number of rows per share, before it is rounded up to whole steps; maximum number of rows per share.
constexpr unsigned kLeastShare = 8, kMostShare = 1024;

// Returns the segment that contains position `place` of the sorted indices, by a search of a warp. This is the number
// of segments that end at or before this position.
__device__ __forceinline__ int segment_of(unsigned place, const unsigned* ends, int segments) {
  int segment = 0, stride = 1;
  while (stride < segments) stride *= 32;
  for (stride /= 32; stride > 0; stride /= 32) {
    const long long last = segment + (threadIdx.x % 32 + 1LL) * stride - 1;
    segment += stride * __popc(__ballot_sync(simt::every_lane, last < segments && ends[last] <= place));
  }
  return segment;
}

// Adds the sorted rows to the cluster sums (head of this file). kAligned: number of elements per vector load, if rows
// are aligned and consist of whole vectors; otherwise 0. plan.py selects the other parameters (SegmentsPlan).
template <typename T, typename Work, int kDigits, bool kWeighted, int kAligned, int kLanes, int kTogether, int kBlocks>
__global__ void __launch_bounds__(256, kBlocks)
    segmented_sum(const CenteredRows<T, Work> rows, const typename Integer<kDigits>::Scale* scales,
                  const Segments segments, const unsigned* places, const unsigned* ends, const unsigned* count,
                  unsigned long long* sums, const int* stopped) {
  ptx::griddepcontrol_wait();
  if (*stopped) return;
  constexpr int kWide = kAligned ? kAligned : kVector<T>, kGroups = 32 / kLanes, kStep = kTogether * kGroups;
  static_assert(32 % kStep == 0, "the rows of a step are known by the same lanes' places");
  const int lane = threadIdx.x % 32, member = lane % kLanes, group = lane / kLanes;
  const int width = rows.d + 1, slices = (rows.d + kLanes * kWide - 1) / (kLanes * kWide), number = segments.number();
  const unsigned all = *count;
  if (all == 0) return;
  const unsigned warps = gridDim.x * (blockDim.x / 32);
  constexpr unsigned kLeast = kLeastShare < kStep ? kStep : kLeastShare;
  const long long even = ((long long)all * slices + warps - 1) / warps;
  const unsigned share = even < kMostShare ? (unsigned)(even + kLeast - 1) / kLeast * kLeast : kMostShare;
  const unsigned items = (all + share - 1) / share * slices;
  // The warp index is equal in all lanes; the shuffle makes this known to the compiler.
  const int warp = simt::shuffle((int)threadIdx.x / 32, 0);
  for (unsigned item = blockIdx.x * (blockDim.x / 32) + warp; item < items; item += warps) {
    const int slice = item % slices;
    const unsigned begin = item / slices * share, end = all - begin < share ? all : begin + share;
    // Past the last column, lanes read the first columns with scale 0, so their sums remain zero.
    const int first_column = kLanes * kWide * slice + (kAligned ? kWide : 1) * member;
    auto column = [&](int i) {
      if (kAligned) return first_column < rows.d ? first_column + i : i;
      return first_column + kLanes * i < rows.d ? first_column + kLanes * i : 0;
    };
    Work mean[kWide];
    typename Integer<kDigits>::Scale scale[kWide];
#pragma unroll
    for (int i = 0; i < kWide; ++i) {
      scale[i] = first_column + (kAligned ? 0 : kLanes * i) < rows.d ? scales[column(i)] : 0;
      mean[i] = rows.mean[column(i)];
    }
    const auto of_weight = kWeighted ? scales[rows.d] : 0;
    long long sum[kWide] = {}, weight_sum = 0;
    // The current segment: its first position in this share, and its end.
    unsigned since = begin, segment_end = ends[segment_of(begin, ends, number)];
    auto flush = [&](unsigned place) {
      if (!kWeighted) weight_sum = (place - since) * (long long)as_integer<Work>(Work(1), scales[rows.d]);
#pragma unroll
      for (int bits = kLanes; bits < 32; bits *= 2) {
        if (kWeighted) weight_sum += simt::shuffle_xor(weight_sum, bits);
#pragma unroll
        for (int i = 0; i < kWide; ++i) sum[i] += simt::shuffle_xor(sum[i], bits);
      }
      // Updates the two clusters in turn, in the same registers. The segment's number is computed again, since holding
      // it would take one more register throughout.
#pragma unroll 1
      for (int side = 0; side < 2; ++side) {
        const int segment = segment_of(since, ends, number);
        const int cluster = side == 0 ? segments.to(segment) : segments.from(segment);
        if (cluster >= 0 && group == 0) {
          unsigned long long* to = sums + (long long)cluster * width;
#pragma unroll
          for (int i = 0; i < kWide; ++i) {
            if (sum[i]) atomicAdd(&to[column(i)], (unsigned long long)sum[i]);
          }
          if (lane == 0 && slice == 0 && weight_sum) atomicAdd(&to[rows.d], (unsigned long long)weight_sum);
        }
        weight_sum = -weight_sum;
#pragma unroll
        for (int i = 0; i < kWide; ++i) sum[i] = -sum[i];
      }
#pragma unroll
      for (int i = 0; i < kWide; ++i) sum[i] = 0;
      weight_sum = 0;
    };
    // A lane holds one of the current 32 row indices (`now`) and one of the next 32 (`soon`). Past the end of the
    // share, it holds the last index; the row is loaded but not added again.
    auto place_at = [&](unsigned at) { return places[at + lane < end ? at + lane : end - 1]; };
    unsigned now = place_at(begin), soon = place_at(begin + 32);
    // Elements are loaded as words: the compiler would move 16-bit elements one by one.
    using Loaded = simt::Vector<unsigned, kWide * sizeof(T) / 4>;
    struct Some {
      Loaded x[kTogether];
      Work weight[kTogether];
    };
    // Loads the rows of one step. `first` is the position of the first row among the 64 indices in `now` and `soon`.
    auto load = [&](Some& some, int first) {
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        const long long row = simt::shuffle(first < 32 ? now : soon, (first + j * kGroups + group) % 32);
        const T* from = rows.X + row * rows.leading;
        if (kAligned) {
          some.x[j] = *reinterpret_cast<const Loaded*>(from + column(0));
        } else {
          simt::Vector<T, kWide> x;
#pragma unroll
          for (int i = 0; i < kWide; ++i) x.at[i] = from[column(i)];
          some.x[j] = simt::bits_of<Loaded>(x);
        }
        if (kWeighted) some.weight[j] = rows.weights[row];
      }
    };
    Some some;
    load(some, 0);
    for (unsigned at = begin; at < end; at += 32) {
#pragma unroll 2
      for (int first = 0; first < 32; first += kStep) {
        if (at + first >= end) break;
        Some next;
        if (at + first + kStep < end) load(next, first + kStep);
        // Adds the rows of the current step, segment by segment.
        const unsigned here = at + first, stop = end - here < kStep ? end - here : kStep;
        for (unsigned from = 0; from < stop;) {
          if (here + from == segment_end) {
            flush(segment_end);
            since = segment_end;
            segment_end = ends[segment_of(segment_end, ends, number)];
          }
          const unsigned to = segment_end - here < stop ? segment_end - here : stop;
#pragma unroll
          for (int j = 0; j < kTogether; ++j) {
            const unsigned mine = j * kGroups + group;
            if (mine < from || mine >= to) continue;
            const auto x = simt::bits_of<simt::Vector<T, kWide>>(some.x[j]);
            if (kWeighted) weight_sum += as_integer<Work>(some.weight[j], of_weight);
#pragma unroll
            for (int i = 0; i < kWide; ++i) {
              const Work value = centered<T, Work>(x.at[i], mean[i]);
              sum[i] += as_integer<Work>(kWeighted ? some.weight[j] * value : value, scale[i]);
            }
          }
          from = to;
        }
        some = next;
      }
      now = soon;
      if (at + 64 < end) soon = place_at(at + 64);
    }
    flush(end);
  }
}

}  // namespace kmeans
