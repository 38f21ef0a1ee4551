// Rows that change their label go from one cluster's sums to another's, by segments: rows of which all come to the same
// cluster, and leave the same.
//
//   places     the rows of segment 0, of segment 1 …, as sort_reassigned.cuh sorts them; `ends`, where each segment
//              ends
//   sums       (k × (d + 1)), 64-bit integers (fixed_point.cuh)
//
//   share      of the places: a warp has some shares, for 32 / kGroups · kWide columns each
//   step       of a share: kTogether rows for each of kGroups groups of lanes, one row after the other of each
//
//      lanes   0 … kLanes − 1         kLanes … 2 · kLanes − 1    …
//      rows    0, kGroups, …          1, kGroups + 1, …               a lane has kWide columns of its group's rows
//
// segmented_sum   adds up the rows of a segment in registers; where it or the share ends, what they add up to is added
//                 to
//                the sums of one cluster and subtracted from those of another
//
// Why it is fast: every changed row is read once, in whole lines, some rows while those before are added, and with no
// atomics but where a segment or a warp's share ends. Nothing of a row says where it comes from: it costs a
// subtraction, a multiplication, a conversion and an addition of an element, whatever the clusters. Shares are as
// small as spreads few rows over all warps.
#pragma once
#include "apps/kmeans/update/sort_reassigned.cuh"
#include "apps/kmeans/assign/rescore.cuh"
#include "apps/kmeans/update/fixed_point.cuh"
#include "kernels/ptx/dependent_launch.cuh"

namespace kmeans {

// The least places of a warp's share but for whole steps, and the most.
constexpr unsigned kLeastShare = 8, kMostShare = 1024;

// The segment that a place is in, by a warp: how many end at it or before.
__device__ __forceinline__ int segment_of(unsigned place, const unsigned* ends, int segments) {
  int segment = 0, stride = 1;
  while (stride < segments) stride *= 32;
  for (stride /= 32; stride > 0; stride /= 32) {
    const long long last = segment + (threadIdx.x % 32 + 1LL) * stride - 1;
    segment += stride * __popc(__ballot_sync(simt::every_lane, last < segments && ends[last] <= place));
  }
  return segment;
}

// kAligned: the elements that a lane takes by one load, as rows begin at multiples of so many and are whole ones; 0 if
// they are not. What else can be chosen, plan.py chooses (SegmentsPlan).
template <typename T, typename Work, int kDigits, bool kWeighted, int kAligned, int kLanes, int kTogether, int kBlocks>
__global__ void __launch_bounds__(256, kBlocks)
    segmented_sum(const Rows<T, Work> rows, const typename Integer<kDigits>::Scale* scales, const Segments segments,
                  const unsigned* places, const unsigned* ends, const unsigned* count, unsigned long long* sums,
                  const int* stopped) {
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
  // The same in all lanes, and the compiler may know it.
  const int warp = simt::shuffle((int)threadIdx.x / 32, 0);
  for (unsigned item = blockIdx.x * (blockDim.x / 32) + warp; item < items; item += warps) {
    const int slice = item % slices;
    const unsigned begin = item / slices * share, end = all - begin < share ? all : begin + share;
    // Past the last column, column 0 again, of which nothing is added.
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
    // Of the segment in hand, its first place here and its end.
    unsigned since = begin, segment_end = ends[segment_of(begin, ends, number)];
    auto flush = [&](unsigned place) {
      if (!kWeighted) weight_sum = (place - since) * (long long)as_integer<Work>(Work(1), scales[rows.d]);
#pragma unroll
      for (int bits = kLanes; bits < 32; bits *= 2) {
        if (kWeighted) weight_sum += simt::shuffle_xor(weight_sum, bits);
#pragma unroll
        for (int i = 0; i < kWide; ++i) sum[i] += simt::shuffle_xor(sum[i], bits);
      }
      // One cluster after the other, in the same registers, of which the segment's number would take one all the time.
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
    // A lane has one of 32 places, and the one 32 after; past the end, the last place again, which is not added.
    auto place_at = [&](unsigned at) { return places[at + lane < end ? at + lane : end - 1]; };
    unsigned now = place_at(begin), soon = place_at(begin + 32);
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
        // The rows of one segment after those of another, by their numbers in the step.
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
