// Whether an iteration did what it should, by what it left: after `advance` (centers.cuh), before the next iteration.
//
//   sums (k × (d + 1)), integers    add up over the clusters to what they did before, the last column to the samples' weight;
//   next (k × d)                    are the means of the sums, or the old centres of clusters without samples;
//   labels (n)                      of rows first, first + stride, … name a centre than which none is nearer, in float64 of X.
//
// Sums are integers modulo 2⁶⁴, so that the first is exact: an addition that was lost, doubled or wrong changes a column's
// total, whatever came after it. The first iteration from no labels says what the totals are.
//
// If anything is wrong, `stopped` is set: what was launched ahead does nothing, and the centres that the iteration began
// with are still there. The host learns of it with the iteration's outcome.
//
// Why it is fast: it reads the k · (d + 1) sums and few rows, and compares those in float32 where that decides (decide.cuh). Of
// many or long centres, several warps share a row: each finds the nearest of its own, beside which the label's is to stand.
#pragma once
#include "apps/kmeans/decide.cuh"

namespace kmeans {

// What is wrong, as bits.
constexpr unsigned kWrongSums = 1, kWrongCentres = 2, kWrongLabels = 4;

// Zero at first: blocks that arrived, what they found wrong, whether iterations are over, whether totals are known.
struct Checks {
  unsigned arrived, wrong, over, known;
};

// A block has some clusters; its warps have a row and one of `parts` of the centres at a time. `columns` (2 × (d + 1)): zeros, and the totals. `weight` is the
// total of the last column.
template <typename T, typename Work, typename Label>
__global__ void __launch_bounds__(256, 3)
    check(const Rows<T, Work> rows, const Work* centers, const Work* next, int k, const Label* labels, long long n,
          long long first, long long stride, int parts, const unsigned long long* sums, const double* units,
          unsigned long long weight, unsigned long long* columns, Checks* checks, int* stopped, unsigned* seen) {
  if (checks->over) return;
  const int d = rows.d, width = d + 1;
  const int each = (k + (int)gridDim.x - 1) / (int)gridDim.x, begin = (int)blockIdx.x * each;
  const int end = begin + each < k ? begin + each : k;
  unsigned wrong = 0;
  for (int column = threadIdx.x; column < width && begin < end; column += blockDim.x) {
    unsigned long long total = 0;
    for (int cluster = begin; cluster < end; ++cluster) {
      const unsigned long long* of_cluster = sums + (long long)cluster * width;
      total += of_cluster[column];
      if (column == d) continue;
      // As `advance` has it, to the bit.
      const double in_cluster = (double)(long long)of_cluster[d] * units[d];
      const double inverse = 1 / (in_cluster != 0 ? in_cluster : 1.0);
      const double sum = (double)(long long)of_cluster[column] * units[column];
      const long long place = (long long)cluster * d + column;
      if (next[place] != (in_cluster != 0 ? (Work)(sum * inverse) : centers[place])) wrong |= kWrongCentres;
    }
    atomicAdd(columns + column, total);
  }
  const long long warps = blockDim.x / 32 * (long long)gridDim.x;
  const long long warp = blockIdx.x * (long long)(blockDim.x / 32) + threadIdx.x / 32;
  for (long long item = warp; first + item / parts * stride < n; item += warps) {
    const long long row = first + item / parts * stride;
    const int part = (int)(item % parts), from = (int)((long long)k * part / parts);
    const int to = (int)((long long)k * (part + 1) / parts);
    const int label = labels[row];
    if (label < 0 || label >= k) {
      wrong |= kWrongLabels;
      continue;
    }
    const int nearest = nearest_of(rows, centers, row, label, [&](auto take) {
      for (int centre = from; centre < to; centre += 2) take(centre, centre + 1 < to ? centre + 1 : centre);
    });
    if (nearest == label) continue;
    double squares[2];
    square_distances(rows, centers, row, {label, nearest}, squares);
    // Of two that are as near, as far as float64 can tell, either will do.
    if (!(squares[0] <= squares[1] * (1 + 1.0 / (1 << 30)))) wrong |= kWrongLabels;
  }
  if (wrong) atomicOr(&checks->wrong, wrong);
  if (!simt::last_to_arrive(&checks->arrived, gridDim.x)) return;
  const bool known = checks->known != 0;
  for (int column = threadIdx.x; column < width; column += blockDim.x) {
    const unsigned long long found = simt::load_from_other_block(columns + column);
    unsigned long long* total = columns + width + column;
    if (column == d) *total = weight;
    else if (!known) *total = found;
    if (found != *total) atomicOr(&checks->wrong, kWrongSums);
    columns[column] = 0;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  const unsigned every = simt::load_from_other_block(&checks->wrong);
  *seen = every;
  if (every) *stopped = 1;
  *checks = {0, 0, *stopped != 0, 1};
}

}  // namespace kmeans
