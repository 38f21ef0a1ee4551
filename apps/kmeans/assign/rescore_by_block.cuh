// Rescoring of ambiguous long rows: as rescore.cuh, but a block has one row at a time.
//
//   features of a row   | thread 0 | thread 1 | ... | thread 255 | thread 0 | ...     a vector each
//   list of rows        every warp has the same 32 entries, one per lane; all warps go through their ambiguous rows
//   sums                shuffles in each warp, eight sums per center in shared memory, and shuffles again in every warp
//
// Arguments and results are those of rescore.cuh. The order of the sums differs, so a distance may differ in its last
// bits; equal centers still have equal distances.
//
// Why it is fast: few rows are ambiguous, so their number does not hide the latency of loads. A warp takes 64 steps for
// a row of 4,096 float64 numbers, and a block takes eight.
#pragma once
#include "apps/kmeans/assign/rescore.cuh"

namespace kmeans {

constexpr int kRowThreads = 256, kRowWarps = kRowThreads / 32;

// Computes ‖x − c‖² of one row x and two centers; the threads of a block sum in type Sum, and all get the same bits.
// The calls of a block take the two sets of `sums` in turn: so one barrier separates the reads of a set from the next
// writes to it.
template <typename Sum, typename T, typename Work>
__device__ __forceinline__ void square_distances_by_block(const CenteredRows<T, Work>& rows, const Work* centers,
                                                          long long row, const int (&which)[2], Sum (&squares)[2],
                                                          double (&sums)[kRowWarps][2]) {
  Sum(*const of_warps)[2] = reinterpret_cast<Sum(*)[2]>(sums);
  Sum sum[2] = {};
  add_square_differences<kRowThreads>(rows, centers, row, which, sum);
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    sum[c] = simt::warp_sum(sum[c]);
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32][c] = sum[c];
  }
  __syncthreads();  // all sums are written
  // Eight lanes of every warp add the sums of the first center, the next eight those of the second one.
  const int lane = threadIdx.x % 32;
  Sum one = of_warps[lane % kRowWarps][lane / kRowWarps % 2];
#pragma unroll
  for (int bits = kRowWarps / 2; bits > 0; bits /= 2) one += simt::shuffle_xor(one, bits);
#pragma unroll
  for (int c = 0; c < 2; ++c) squares[c] = simt::shuffle(one, kRowWarps * c);
}

// Prefetches a row to L2, by all threads of a block.
template <typename T, typename Work>
__device__ __forceinline__ void prefetch_row(const CenteredRows<T, Work>& rows, long long row) {
  const char* const x = reinterpret_cast<const char*>(rows.X + row * rows.leading);
  const int bytes = rows.d * (int)sizeof(T);
  for (int byte = 128 * threadIdx.x; byte < bytes; byte += 128 * kRowThreads) ptx::prefetch(x + byte);
}

// Rescores the ambiguous rows. Block (x, y) processes part y of list x. In each entry, it replaces the candidates by
// one candidate, the new label.
template <typename T, typename Work>
__global__ void __launch_bounds__(kRowThreads, 3)
    rescore_by_block(const CenteredRows<T, Work> rows, const Work* centers, int k, AmbiguousRow* entries,
                     const unsigned* counts, long long capacity, const int* stopped) {
  ptx::griddepcontrol_wait();
  if (*stopped) return;
  __shared__ double sums[2][kRowWarps][2];
  auto* const set = sums;
  AmbiguousRow* const list = entries + blockIdx.x * capacity;
  const unsigned count = counts[blockIdx.x], lane = threadIdx.x % 32;
  const unsigned even = (count + gridDim.y - 1) / gridDim.y, each = even < kMostEntries ? even : kMostEntries;
  int turn = 0;
  for (unsigned begin = blockIdx.y * each; begin < count; begin += gridDim.y * each) {
    const bool present = lane < each && begin + lane < count;
    AmbiguousRow mine = present ? list[begin + lane] : AmbiguousRow{0, 0, 1, 0};
    const unsigned listed = __ballot_sync(simt::every_lane, __popc(mine.low) + __popc(mine.high) != 1);
    int label = 0;  // of this lane's entry
#pragma unroll 1
    for (unsigned waiting = listed; waiting; waiting &= waiting - 1) {
      const int one = __ffs(waiting) - 1;
      const long long row = simt::shuffle(mine.row, one);
      const unsigned every_low = simt::shuffle(mine.low, one), every_high = simt::shuffle(mine.high, one);
      const bool all = (every_low | every_high) == 0;
      const int candidates = all ? k : __popc(every_low) + __popc(every_high);
      if (const unsigned later = waiting & (waiting - 1)) prefetch_row(rows, simt::shuffle(mine.row, __ffs(later) - 1));
      const auto distances = [&](const int (&which)[2], auto& squares) {
        square_distances_by_block(rows, centers, row, which, squares, set[turn ^= 1]);
      };
      const auto pairs = [&](const auto& compare) {
        unsigned low = every_low, high = every_high;
        int center = 0;
#pragma unroll 1
        for (int j = 0; j < candidates; j += 2) {
          const int first = all ? center++ : next_candidate(low, high, k);
          const int second = j + 1 == candidates ? first : all ? center++ : next_candidate(low, high, k);
          compare(first, second);
        }
      };
      const int nearest = nearest_by<Work>(distances, rows.d, 0, pairs);
      if ((int)lane == one) label = nearest;
    }
    // All warps have read the entries: each has passed a barrier since, if any row is ambiguous.
    if (threadIdx.x < 32 && listed >> lane & 1) {
      const int bit = bit_of_center((unsigned)label);
      mine.low = bit < 32 ? 1u << bit : 0;
      mine.high = bit < 32 ? 0 : 1u << (bit - 32);
      list[begin + lane] = mine;
    }
  }
}

}  // namespace kmeans
