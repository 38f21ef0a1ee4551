// As many rows as clusters are to be relocated (stopped.cuh), those with the largest distance to their own center, in
// the order of decreasing distance; of equal distances, the lower row index comes first.
//
//   distances (n)  →  found
//
// The key of a row is the bits of its distance, which order as the distances do, followed by n − 1 − row. Keys differ,
// so the result does not depend on the order in which rows are read. The least key of the farthest rows is selected by
// digits of 11 bits:
//
//   select_digit          once per digit: counts the rows for each value of this digit, among the rows whose key begins
//                         with the digits selected before. The last block to arrive selects the digit. If exactly the
//                         rows from this digit on are wanted, later launches do nothing.
//   list_farthest_rows    lists the rows from the least key on, and sorts them
//
// Why it is fast: each launch reads the distances once, coalesced, mostly from level 2. The number of launches does not
// depend on that of rows. Blocks count in shared memory.
#pragma once
#include "kernels/device/simt.cuh"
#include "kernels/ptx/dependent_launch.cuh"
#include "apps/kmeans/data/stopped.cuh"

namespace kmeans {

constexpr int kFarthestThreads = 512;
// Bits of a digit, and number of its values.
constexpr int kDigitBits = 11, kDigitValues = 1 << kDigitBits;
// Number of digits of a distance; its sign is never set. The host has the same numbers.
template <typename Work>
constexpr int kDistanceDigits = sizeof(Work) == 4 ? 3 : 6;

// One of the farthest rows. The host has the same structure, byte for byte.
struct FarRow {
  long long row;
  double distance;
};

// The digits selected so far: the least key is `distance`, `rest`; digits to come are zero. Of the rows whose keys
// begin with these digits, those with the `wanted` largest keys are among the farthest. If `ends`, they all are.
struct Selection {
  unsigned long long distance, rest;
  int wanted, ends;
};

// The two parts of a key.
__device__ __forceinline__ unsigned long long distance_key(float distance) { return simt::bits_of<unsigned>(distance); }
__device__ __forceinline__ unsigned long long distance_key(double distance) {
  return simt::bits_of<unsigned long long>(distance);
}
__device__ __forceinline__ unsigned long long rest_key(long long row, long long n) {
  return (unsigned long long)(n - 1 - row);
}

// Calls take(row, distance) for every row, by all threads of the grid.
template <typename Work, typename Take>
__device__ __forceinline__ void for_each_distance(const Work* distances, long long n, Take take) {
  constexpr int kTogether = 8;  // distances that a thread has in flight
  const long long together = (long long)gridDim.x * kFarthestThreads;
  for (long long begin = (long long)blockIdx.x * kFarthestThreads + threadIdx.x; begin < n;
       begin += kTogether * together) {
    Work distance[kTogether];
#pragma unroll
    for (int r = 0; r < kTogether; ++r) distance[r] = begin + r * together < n ? distances[begin + r * together] : 0;
#pragma unroll
    for (int r = 0; r < kTogether; ++r) {
      if (begin + r * together < n) take(begin + r * together, distance[r]);
    }
  }
}

// Selects a digit from the number of rows with each value of it, and clears these numbers. All threads of one block
// take part.
__device__ __forceinline__ void select_value(unsigned* histogram, Selection selection, bool of_distance, int shift,
                                             Selection* to) {
  constexpr int kEach = kDigitValues / kFarthestThreads;
  __shared__ unsigned of_warp[kFarthestThreads / 32];
  const int lane = threadIdx.x % 32, most = kDigitValues - 1 - kEach * (int)threadIdx.x;
  // A thread adds up kEach adjacent values, and `through` those of the threads before it too: from large to small.
  unsigned mine[kEach], sum = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    mine[i] = simt::load_from_other_block(&histogram[most - i]);
    histogram[most - i] = 0;
    sum += mine[i];
  }
  const unsigned through = simt::warp_running_sum(sum);
  if (lane == 31) of_warp[threadIdx.x / 32] = through;
  __syncthreads();
  unsigned before = through - sum;
  for (int warp = 0; warp < (int)threadIdx.x / 32; ++warp) before += of_warp[warp];
  const unsigned wanted = selection.wanted;
  if (before >= wanted || before + sum < wanted) return;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (before < wanted && before + mine[i] >= wanted) {
      const unsigned long long value = (unsigned long long)(most - i) << shift;
      *to = {selection.distance | (of_distance ? value : 0), selection.rest | (of_distance ? 0 : value),
             (int)(wanted - before), wanted - before == mine[i]};
    }
    before += mine[i];
  }
}

// Selects digit number `digit` of the least key of the farthest rows, from 0; keys have `digits` digits. `histogram`
// (kDigitValues) and `arrived` are zero before and after. n is less than 2³².
template <typename Work>
__global__ void __launch_bounds__(kFarthestThreads, 2)
    select_digit(const Work* distances, long long n, int digit, int digits, Selection* selection, unsigned* histogram,
                 unsigned* arrived, const int* stopped) {
  ptx::griddepcontrol_wait();
  const int count = clusters_to_relocate(*stopped);
  if (count == 0) return;
  const Selection before = digit == 0 ? Selection{0, 0, count, 0} : *selection;
  if (before.ends) return;
  __shared__ unsigned here[kDigitValues];
  for (int i = threadIdx.x; i < kDigitValues; i += kFarthestThreads) here[i] = 0;
  __syncthreads();
  const bool of_distance = digit < kDistanceDigits<Work>;
  const int shift = kDigitBits * ((of_distance ? kDistanceDigits<Work> : digits) - 1 - digit);
  for_each_distance(distances, n, [&](long long row, Work distance) {
    const unsigned long long key = distance_key(distance), rest = rest_key(row, n);
    const unsigned long long mine = of_distance ? key : rest, selected = of_distance ? before.distance : before.rest;
    const bool begins =
        (of_distance || key == before.distance) && mine >> shift >> kDigitBits == selected >> shift >> kDigitBits;
    if (begins) atomicAdd(&here[mine >> shift & (kDigitValues - 1)], 1u);
  });
  __syncthreads();
  for (int i = threadIdx.x; i < kDigitValues; i += kFarthestThreads) {
    if (here[i]) atomicAdd(&histogram[i], here[i]);
  }
  if (simt::last_to_arrive(arrived, gridDim.x)) select_value(histogram, before, of_distance, shift, selection);
}

// Writes the farthest rows, those from the least key on, to `found`. `listed` and `arrived` are zero before and after.
// `unsorted` has room for kMostRelocated rows. All distances are numbers or infinite, as rows and centers are finite.
template <typename Work>
__global__ void __launch_bounds__(kFarthestThreads, 2)
    list_farthest_rows(const Work* distances, long long n, const Selection* selection, FarRow* unsorted,
                       unsigned* listed, unsigned* arrived, FarRow* found, const int* stopped) {
  ptx::griddepcontrol_wait();
  const int count = clusters_to_relocate(*stopped);
  if (count == 0) return;
  const Selection least = *selection;
  for_each_distance(distances, n, [&](long long row, Work distance) {
    const unsigned long long key = distance_key(distance);
    if (key < least.distance || (key == least.distance && rest_key(row, n) < least.rest)) return;
    const unsigned at = atomicAdd(listed, 1u);
    if (at < (unsigned)count) unsorted[at] = {row, (double)distance};
  });
  if (!simt::last_to_arrive(arrived, gridDim.x)) return;
  __shared__ FarRow rows[kMostRelocated];
  for (int i = threadIdx.x; i < count; i += kFarthestThreads) {
    rows[i] = {simt::load_from_other_block(&unsorted[i].row), simt::load_from_other_block(&unsorted[i].distance)};
  }
  __syncthreads();
  for (int i = threadIdx.x; i < count; i += kFarthestThreads) {
    const FarRow mine = rows[i];
    int place = 0;
    for (int other = 0; other < count; ++other) {
      const FarRow& one = rows[other];
      place += one.distance > mine.distance || (one.distance == mine.distance && one.row < mine.row);
    }
    found[place] = mine;
  }
  if (threadIdx.x == 0) *listed = 0;
}

}  // namespace kmeans
