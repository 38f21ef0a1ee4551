// The rows that `nearest.cuh` could not decide: the nearest of their candidates.
//
//   entries   a list for each block of that kernel: a row, its label, and the centres that can be its nearest
//   X         the rows themselves (n × d, any dtype), of which only these are read
//
// A row with several candidates keeps the one at the least distance, the first of equals; distances are summed in float64,
// from differences, so that a label is the float64 arg-min. A row with no candidate (its scores were no numbers) is
// compared with every centre.
#pragma once
#include "apps/kmeans/nearest.cuh"
#include "apps/kmeans/shadow.cuh"

namespace kmeans {

// What is read of X.
template <typename T, typename Work>
struct Rows {
  const T* X;
  long long leading;
  int d;
  const Work* mean;
  const Work* weights;  // null: all 1
};

// The most entries that a warp takes at a time.
constexpr int kMostEntries = 32;

// Takes a candidate; k if there is none left.
__device__ __forceinline__ int next_candidate(unsigned& low, unsigned& high, int k) {
  if ((low | high) == 0) return k;
  const int centre = first_centre(low, high);
  if (low) low &= low - 1;
  else high &= high - 1;
  return centre;
}

// ‖x − c‖² of a row and a centre in float64, by a warp: the same bits in every lane.
template <typename T, typename Work>
__device__ __forceinline__ double square_distance(const Rows<T, Work>& rows, const Work* centers, long long row,
                                                  int centre) {
  const T* x = rows.X + row * rows.leading;
  const Work* c = centers + (long long)centre * rows.d;
  double sum = 0;
#pragma unroll 4
  for (int j = threadIdx.x % 32; j < rows.d; j += 32) {
    const double delta = (double)centred<T, Work>(x[j], rows.mean[j]) - (double)c[j];
    sum += delta * delta;
  }
  return simt::warp_sum(sum);
}

// The label of an entry, by a warp.
template <typename T, typename Work>
__device__ __forceinline__ int nearest_candidate(const Rows<T, Work>& rows, const Work* centers, int k, long long row,
                                                 unsigned low, unsigned high) {
  const bool all = (low | high) == 0;
  double least = kInfinity;
  int label = 0;
  for (int centre = all ? 0 : next_candidate(low, high, k); centre < k;
       centre = all ? centre + 1 : next_candidate(low, high, k)) {
    const double distance = square_distance(rows, centers, row, centre);
    if (distance < least || (distance == least && centre < label)) {
      least = distance;
      label = centre;
    }
  }
  return label;
}

// Block (x, y): part y of list x. Leaves one candidate in every entry.
template <typename T, typename Work>
__global__ void __launch_bounds__(256, 4) decide(const Rows<T, Work> rows, const Work* centers, int k, Entry* entries,
                                              const unsigned* counts, long long capacity, const int* stopped) {
  if (*stopped) return;
  Entry* list = entries + blockIdx.x * capacity;
  const unsigned count = counts[blockIdx.x], warps = blockDim.x / 32 * gridDim.y, lane = threadIdx.x % 32;
  const unsigned even = (count + warps - 1) / warps, each = even < kMostEntries ? even : kMostEntries;
  for (unsigned begin = (blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32) * each; begin < count; begin += warps * each) {
    Entry mine = {};
    const bool present = lane < each && begin + lane < count;
    if (present) mine = list[begin + lane];
    unsigned waiting = __ballot_sync(simt::every_lane, present && __popc(mine.low) + __popc(mine.high) != 1);
    for (; waiting; waiting &= waiting - 1) {
      const int one = __ffs(waiting) - 1;
      const unsigned row = simt::shuffle(mine.row, one), low = simt::shuffle(mine.low, one);
      const int label = nearest_candidate(rows, centers, k, row, low, simt::shuffle(mine.high, one));
      if ((int)lane != one) continue;
      const int bit = bit_of_centre(label);
      mine.low = bit < 32 ? 1u << bit : 0;
      mine.high = bit < 32 ? 0 : 1u << (bit - 32);
      list[begin + lane] = mine;
    }
  }
}

}  // namespace kmeans
