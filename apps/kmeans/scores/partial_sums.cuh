// Partial sums of points and columns over ranges of rows, float64, as sums_by_cluster.cuh writes them.
//
// A block has kBlockPoints points, 16 for each warp, and 8 · kTiles columns. The sums of a warp are the fragments D of
// its products (kernels/ptx/mma.cuh): 4 · kTiles numbers of each lane, which are 32 numbers apart, so that lanes write
// consecutive numbers.
#pragma once

namespace kmeans {

constexpr int kBlockPoints = 128;

// Returns where the partial sums of a warp begin. `group` is one of `groups` groups of points, and `of_columns` one of
// `all_columns` groups of columns.
template <int kTiles>
__device__ __forceinline__ long long place_of(int range, int group, int groups, int of_columns, int all_columns,
                                              int warp) {
  const long long block = ((long long)range * all_columns + of_columns) * groups + group;
  return (block * (kBlockPoints / 16) + warp) * (4 * kTiles * 32);
}

// Adds up the partial sums of a point and a column over all ranges of rows, in their order.
template <int kTiles>
__device__ __forceinline__ double total_of(const double* partial, int ranges, int groups, int all_columns, int point,
                                           int column) {
  const int m = point % 16, n = column % 8, lane = 4 * (m % 8) + n / 2, quarter = 2 * (m / 8) + n % 2;
  const int of_columns = column / (8 * kTiles), tile = column / 8 % kTiles;
  const double* at = partial + (tile * 4 + quarter) * 32 + lane;
  const long long apart = place_of<kTiles>(1, 0, groups, 0, all_columns, 0);
  at += place_of<kTiles>(0, point / kBlockPoints, groups, of_columns, all_columns, point % kBlockPoints / 16);
  double sum = 0;
#pragma unroll 8
  for (int range = 0; range < ranges; ++range) sum += at[range * apart];
  return sum;
}

}  // namespace kmeans
