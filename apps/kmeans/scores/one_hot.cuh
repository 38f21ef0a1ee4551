// Sums by cluster as products of values with one-hot fragments of labels, of a tile of rows (fragments of mma:
// kernels/ptx/mma.cuh). Used by sums_by_cluster.cuh and distances_by_cluster.cuh, whose heads say more.
//
// A fragment has 8 columns of 16 rows, in bfloat16. A lane of a warp, 4·g + t, has of column g the rows of its values:
//
//   kRowsApart   t, t + 4, t + 8, t + 12
//   otherwise    2·t, 2·t + 1, 2·t + 8, 2·t + 9, which are those of its part of two adjacent fragments D
#pragma once
#include "apps/kmeans/scores/clusterings.cuh"
#include "apps/kmeans/scores/partial_sums.cuh"
#include "kernels/ptx/mma.cuh"

namespace kmeans {

// Rows of a tile, tiles between two additions to partial sums, and clusterings whose labels a thread loads ahead.
constexpr int kTileRows = 32, kFlushTiles = 64, kLabelsAhead = 4;

// Splits two values into kPlanes bfloat16 numbers each, whose sums they are, for word `place` of each fragment.
template <int kPlanes>
__device__ __forceinline__ void split_pair(float lower, float upper, unsigned (&planes)[kPlanes][4], int place) {
#pragma unroll
  for (int p = 0; p < kPlanes; ++p) {
    const unsigned pair = planes[p][place] = ptx::to_bfloat16s(lower, upper);
    lower -= __uint_as_float(pair << 16);
    upper -= __uint_as_float(pair & 0xffff0000u);
  }
}

// The labels of a tile: warp w has clusterings w, w + 8, …, of which lane l has row l. Elements of fragments, which are
// zero before, are set.
template <int kTiles, bool kRowsApart>
struct Labels {
  // Words of the fragments of a tile.
  static constexpr int kFragments = kTileRows / 16 * kTiles * 32;

  const OneClustering* of;
  int count;
  int ahead[kLabelsAhead];

  __device__ __forceinline__ void fetch(long long first_row, int present) {
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kLabelsAhead; ++i) {
      ahead[i] = -1;
      if (warp + 8 * i < count && lane < present) ahead[i] = of[warp + 8 * i].labels[first_row + lane];
    }
  }
  __device__ __forceinline__ void place(long long first_row, int present, uint2* to) const {
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kLabelsAhead; ++i) {
      if (warp + 8 * i < count) mark(to, warp + 8 * i, ahead[i]);
    }
    for (int clustering = warp + 8 * kLabelsAhead; clustering < count; clustering += 8)
      mark(to, clustering, lane < present ? of[clustering].labels[first_row + lane] : -1);
  }

 private:
  // Sets the element of the row of this lane and the column of its label. In a fragment, consecutive columns are 4
  // lanes of 8 bytes apart.
  __device__ __forceinline__ void mark(uint2* to, int clustering, int label) const {
    const int row = (int)threadIdx.x % 32, column = of[clustering].start + label;
    if ((unsigned)label >= (unsigned)of[clustering].k || (unsigned)column >= 8u * kTiles) return;
    const int in_order = row % 8 / 2 * 4 + row / 8 % 2 * 2 + row % 2, apart = row % 4 * 4 + row / 4 % 4;
    const int place = row / 16 * kTiles * 128 + (kRowsApart ? apart : in_order);
    reinterpret_cast<unsigned short*>(to)[place + 16 * column] = 0x3f80;
  }
};

// Adds the products of 16 points and 16 rows to sums by column, four fragments of columns at a time, so that no product
// waits for the one before it. If kRounds, they are added by rounded additions, and else by the tensor cores. `marks`
// are those of the rows and of this lane.
template <bool kRounds, int kTiles, int kPlanes>
__device__ __forceinline__ void add_by_label(float (&sums)[kTiles][4], const unsigned (&planes)[kPlanes][4],
                                             const uint2* marks) {
#pragma unroll
  for (int i = 0; i < kTiles; i += 4) {
    float of_rows[4][4] = {};
    unsigned of_labels[4][2];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint2 word = marks[(i + j) * 32];
      of_labels[j][0] = word.x;
      of_labels[j][1] = word.y;
    }
#pragma unroll
    for (int p = 0; p < kPlanes; ++p) {
#pragma unroll
      for (int j = 0; j < 4; ++j) ptx::mma_m16n8k16_bf16(kRounds ? of_rows[j] : sums[i + j], planes[p], of_labels[j]);
    }
    if (!kRounds) continue;
#pragma unroll
    for (int j = 0; j < 16; ++j) sums[i + j / 4][j % 4] += of_rows[j / 4][j % 4];
  }
}

// Adds sums to the partial sums of a warp from `to` on, its lane included, and clears them.
template <int kTiles>
__device__ __forceinline__ void flush(float (&sums)[kTiles][4], double* to, bool is_first) {
  // Eight loads are in flight together, as many as there are registers for.
#pragma unroll
  for (int i = 0; i < kTiles; i += 2) {
    double before[8] = {};
    if (!is_first) {
#pragma unroll
      for (int j = 0; j < 8; ++j) before[j] = to[(4 * i + j) * 32];
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      float& sum = sums[i + j / 4][j % 4];
      to[(4 * i + j) * 32] = before[j] + (double)sum;
      sum = 0;
    }
    __syncwarp();  // across which the compiler moves no loads
  }
}

}  // namespace kmeans
