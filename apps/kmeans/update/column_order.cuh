// Order of the columns of the float16 centers for large k, and error bounds of the column tiles (assign/large_k.cuh).
//
//   center j   →   column: rank of ‖c_j‖ one iteration before     column tile   →   maxima of the error coefficients
//
// The bound of a column tile is that of its worst center. So centers are sorted by norm, which makes the bounds of most
// tiles almost as good as bounds of single centers. Norms of the previous iteration are known before this iteration's
// centers are placed, so they cost no launch. If an iteration takes long, another launch sorts by the actual norms.
#pragma once
#include "kernels/device/block_reduce.cuh"
#include "apps/kmeans/assign/error_bound.cuh"

namespace kmeans {

// Results for one center c: ‖c · scale‖², ‖c · scale − ĉ‖² (ĉ is c in float16), and its terms of Outcome's sums.
struct CenterFound {
  double square, lost, shift, potential;

  // True if the center is not the nearest of any row within the norm limit. `least` is the least `square` of all
  // centers, and `far` is the squared norm limit of centers. NaN counts as far.
  __device__ __forceinline__ bool is_excluded(double least, double far) const {
    return !(square <= far) && least <= far / 4;
  }
};

// The order of the columns for large k, sorted by norm, and bounds of their scores (assign/large_k.cuh). Norms are
// compared as the integers with the same bits, which orders NaN too. If `columns` is null, center j has column j, and
// `centers` and `tile_bounds` are null too: column tiles have no bounds.
struct ColumnOrder {
  const int* norms;        // ‖c · scale‖ of each center one iteration before
  int* next_norms;         // those of this iteration
  int *columns, *centers;  // the column of each center, and the center of each column
  TileBound* tile_bounds;
  // b_T and a_T are maxima of of_norm · ‖c‖ + of_lost · ‖c − ĉ‖ and of of_half_square · ‖c‖²/2. of_level is the part of
  // the row's level: its factor is c₀ norm + c₀²/2, with the least norm c₀ of all centers.
  float of_norm, of_lost, of_half_square, of_level;

  // Stores the column and the norm of center j. By a thread.
  __device__ __forceinline__ void keep(int j, int column, float norm) const {
    if (columns != nullptr) columns[j] = column, centers[column] = j;
    next_norms[j] = __float_as_int(norm);
  }
  __device__ __forceinline__ int stored_column(int j) const { return columns != nullptr ? columns[j] : j; }
};

// With more centers, columns are not sorted and no center is excluded as repeated: each block compares its center with
// all others.
constexpr int kMostSorted = 1 << 14;

// The number of the first `count` norms, at a multiple of 16 bytes, of which `counts(norm, index)` is true. By a block,
// which has few warps to hide latencies: so a thread loads four norms at a time.
template <typename Counts>
__device__ __forceinline__ int number_of(const int* norms, int count, const Counts& counts) {
  using Four = simt::Vector<int, 4>;
  int found = 0;
#pragma unroll 4
  for (int i = threadIdx.x; i < count / 4; i += blockDim.x) {
    const Four four = reinterpret_cast<const Four*>(norms)[i];
#pragma unroll
    for (int r = 0; r < 4; ++r) found += counts(four.at[r], 4 * i + r);
  }
  for (int i = count / 4 * 4 + threadIdx.x; i < count; i += blockDim.x) found += counts(norms[i], i);
  return (int)over_block(Doubles<1>{(double)found}, [](int, double a, double b) { return a + b; }).at[0];
}

// The column of center j: the number of centers that come before it. By a block.
__device__ __forceinline__ int column_of(const ColumnOrder& order, int k, int j) {
  if (k > kMostSorted || order.columns == nullptr) return j;
  const int own = order.norms[j];
  return number_of(order.norms, k, [&](int norm, int i) { return norm < own || (norm == own && i < j) ? 1 : 0; });
}

// True if center j equals an earlier center, which then is the label of all rows of both. `order.norms` are the norms
// of `centers` (k × d). By a block.
template <typename Work>
__device__ __forceinline__ bool repeats(const Work* centers, int d, const ColumnOrder& order, int j) {
  const int own = order.norms[j];
  if (number_of(order.norms, j, [&](int norm, int) { return norm == own ? 1 : 0; }) == 0) return false;
  double found = 0;
  for (int i = threadIdx.x; i < j; i += blockDim.x) {
    if (order.norms[i] != own) continue;
    int same = 0;
    while (same < d && centers[(long long)i * d + same] == centers[(long long)j * d + same]) ++same;
    if (same == d) found = 1;
  }
  return over_block(Doubles<1>{found}, most_of).at[0] != 0;
}

// Computes the score error bounds of the column tiles. A warp per tile; excluded centers do not count.
__device__ __forceinline__ void bound_tiles(const CenterFound* found, int k, double least, double far, int height,
                                            const ColumnOrder& order) {
  if (order.tile_bounds == nullptr) return;
  const double near = sqrt(least), of_level = order.of_level;
  for (int tile = threadIdx.x / 32; tile * height < k; tile += blockDim.x / 32) {
    const int end = (tile + 1) * height < k ? (tile + 1) * height : k;
    double of_norm = 0, always = 0;
    for (int column = tile * height + threadIdx.x % 32; column < end; column += 32) {
      const CenterFound& one = found[order.centers[column]];
      if (one.is_excluded(least, far)) continue;
      of_norm = most_of(0, of_norm, sqrt(one.square) * order.of_norm + sqrt(one.lost) * order.of_lost);
      always = most_of(0, always, one.square / 2 * order.of_half_square);
    }
    for (int lanes = 16; lanes > 0; lanes /= 2) {
      of_norm = most_of(0, of_norm, simt::shuffle_xor(of_norm, lanes));
      always = most_of(0, always, simt::shuffle_xor(always, lanes));
    }
    if (threadIdx.x % 32 != 0) continue;
    order.tile_bounds[tile] = {(float)(1.001 * (of_norm + of_level * near)),
                               (float)(1.001 * (always + of_level * least / 2) + kLeastError)};
  }
}

}  // namespace kmeans
