// Sums by cluster of the distances of all rows from the points of a sample, as sums_by_cluster.cuh has them, for up to
// 64 features: distances from products on tensor cores where these are accurate, and from direct differences elsewhere.
//
//   ‖s − x‖² = ‖s − o‖² + ‖x − o‖² − 2·(s − o)·(x − o)     point s, row x, origin o
//
// Block (x, y, z) has kBlockPoints points, 8 · kTiles columns, and range z of the rows, of which it takes kTileRows, a
// tile, at a time. A warp has 16 points:
//
//   points, two parts   rows, two parts        −2·, norms, root          labels, one-hot
//   16 × 16·kSteps   ·  16·kSteps × 8, twice   →  16 × 16, two planes  ·  16 × 8·kTiles   →   sums, 16 × 8·kTiles
//   registers           shared, ldmatrix          registers               shared              registers
//
// The fragments D of the products with twice 8 rows are, element by element, the fragment A of the next product, so
// that nothing is exchanged between lanes. Rows are split once for all warps of a block, on their way to shared memory.
//
// split_rows.cuh has the parts, the norms, and the limit above which a square is accurate enough. Other squares are
// computed by direct differences. A row's distance from itself is 0.
//
// Why it is fast: per 16 features, 16 points and 8 rows, tensor cores take three instructions, and direct differences
// 128 on float32 units, to which about ten operations and a root per pair remain. Fragments of points and accumulators
// stay in registers. No sum depends on the order in which warps run, so results have the same bits on every run.
#pragma once
#include "apps/kmeans/scores/split_rows.cuh"
#include "kernels/ptx/ldmatrix.cuh"

namespace kmeans {

// `sample` has the row of each of n_points points. A range has `tiles` tiles. kSteps is even, and at least d / 16.
template <typename T, int kTiles, int kSteps>
__global__ void __launch_bounds__(kScoreThreads, 1)
    distances_by_cluster(const T* X, long long n, int d, const long long* sample, int n_points, const float* origin,
                         Clusterings clusterings, float per_error, int tiles, double* partial) {
  using Split = PartsOfRows<kSteps>;
  using OfTile = Labels<kTiles, false>;
  constexpr int kPitch = 16 * kSteps + 4, kFragments = OfTile::kFragments, kVectors = kSteps / 2;
  float* const points = simt::dynamic_shared<float>();
  float* const rows = points + kBlockPoints * kPitch;
  float* const middle = rows + 2 * kTileRows * kPitch;
  Split* const split = reinterpret_cast<Split*>(middle + 16 * kSteps);
  uint2* const one_hot = reinterpret_cast<uint2*>(split + 2);
  OneClustering* const of_clusterings = reinterpret_cast<OneClustering*>(one_hot + 3 * kFragments);
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4;
  const int own_row = thread / 8, in_row = thread % 8;
  const int first_point = blockIdx.x * kBlockPoints, first_column = blockIdx.y * (8 * kTiles);
  const bool active = first_point + 16 * warp < n_points;
  const long long n_tiles = (n + kTileRows - 1) / kTileRows, begin = (long long)blockIdx.z * tiles;
  const int count = n_tiles - begin < tiles ? (int)(n_tiles - begin) : tiles;
  const bool is_aligned = d % 4 == 0 && (unsigned long long)X % (4 * sizeof(T)) == 0;

  place_clusterings(clusterings, first_column, of_clusterings);
  for (int i = thread; i < 16 * kSteps; i += kScoreThreads) middle[i] = i < d ? origin[i] : 0.0f;
  for (int i = thread; i < 3 * kFragments; i += kScoreThreads) one_hot[i] = uint2{0, 0};
  __syncthreads();
  const auto place_row = [&](const RowPart<T, kVectors>& part, float* to, Split* of_tile) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i)
      *reinterpret_cast<simt::Vector<float, 4>*>(to + own_row * kPitch + 32 * i + 4 * in_row) = part.values(i);
    split_row<T, kSteps>(part, middle, own_row, in_row, per_error, of_tile);
  };

  // Points come in four tiles, of which two warps each keep their fragments, norms, and limits.
  unsigned of_points[kSteps][2][4] = {};
  float norms[2] = {}, twice[2] = {}, limits[2] = {};
  for (int tile = 0; tile < kBlockPoints / kTileRows; ++tile) {
    const int point = first_point + kTileRows * tile + own_row;
    const long long row = point < n_points ? sample[point] : -1;
    place_row(load_part<T, kVectors>(X, row, d, in_row, is_aligned), points + kTileRows * tile * kPitch, split);
    __syncthreads();
    if (warp / 2 == tile) {
      const int first = warp % 2 * 16;
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        const unsigned short* const from = split->parts[part] + (first + lane % 16) * Split::kPitch + 8 * (lane / 16);
#pragma unroll
        for (int k = 0; k < kSteps; ++k) ptx::ldmatrix_x4(of_points[k][part], from + 16 * k);
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        norms[h] = split->norms[first + g + 8 * h];
        twice[h] = 2 * split->factors[first + g + 8 * h];
        limits[h] = split->limits[first + g + 8 * h];
      }
    }
    __syncthreads();
  }

  OfTile labels{of_clusterings, clusterings.count, {}};
  RowPart<T, kVectors> ahead;
  const auto present_in = [&](int tile) {
    const long long left = n - (begin + tile) * kTileRows;
    return left < kTileRows ? (int)left : kTileRows;
  };
  const auto fetch = [&](int tile) {
    const long long first_row = (begin + tile) * kTileRows;
    const int present = present_in(tile);
    ahead = load_part<T, kVectors>(X, own_row < present ? first_row + own_row : -1, d, in_row, is_aligned);
    labels.fetch(first_row, present);
  };
  const auto place_ahead = [&](int tile, uint2* marks) {
    place_row(ahead, rows + tile % 2 * kTileRows * kPitch, split + tile % 2);
    labels.place((begin + tile) * kTileRows, present_in(tile), marks);
  };
  if (count > 0) fetch(0);
  if (count > 0) place_ahead(0, one_hot);

  float sums[kTiles][4] = {};
  double* const mine =
      partial + place_of<kTiles>(blockIdx.z, blockIdx.x, gridDim.x, blockIdx.y, gridDim.y, warp) + lane;
  int present = 0, cleared = 2;
  bool is_first = true;
  for (int tile = 0; tile < count; ++tile) {
    __syncthreads();
    if (tile + 1 < count) fetch(tile + 1);
    uint4* const clear = reinterpret_cast<uint4*>(one_hot + cleared * kFragments);
    for (int i = thread; i < kFragments / 2; i += kScoreThreads) clear[i] = uint4{0, 0, 0, 0};
    if (active) {
      const Split& now = split[tile % 2];
#pragma unroll 1
      for (int step = 0; step < kTileRows / 16; ++step) {
        const unsigned short* const from =
            now.parts[0] + (16 * step + lane / 16 * 8 + lane % 8) * Split::kPitch + lane / 8 % 2 * 8;
        float products[2][4] = {}, high_low[2][4] = {}, low_high[2][4] = {};
#pragma unroll
        for (int k = 0; k < kSteps; ++k) {
          unsigned of_rows[2][4];
          float high_high[2][4] = {};
#pragma unroll
          for (int part = 0; part < 2; ++part)
            ptx::ldmatrix_x4(of_rows[part], from + part * kTileRows * Split::kPitch + 16 * k);
#pragma unroll
          for (int b = 0; b < 2; ++b) {
            const unsigned high[2] = {of_rows[0][2 * b], of_rows[0][2 * b + 1]};
            const unsigned low[2] = {of_rows[1][2 * b], of_rows[1][2 * b + 1]};
            ptx::mma_m16n8k16_f16(high_high[b], of_points[k][0], high);
            ptx::mma_m16n8k16_f16(high_low[b], of_points[k][0], low);
            ptx::mma_m16n8k16_f16(low_high[b], of_points[k][1], high);
          }
#pragma unroll
          for (int i = 0; i < 8; ++i) products[i / 4][i % 4] += high_high[i / 4][i % 4];
        }
        float values[8];
        bool all_far = true;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const int b = i / 4, h = i / 2 % 2, row = 16 * step + 8 * b + 2 * t + i % 2;
          const float product = products[b][i % 4] + (high_low[b][i % 4] + low_high[b][i % 4]);
          const float square = norms[h] + now.norms[row] - twice[h] * (now.factors[row] * product);
          const bool far = square > limits[h] + now.limits[row];
          all_far = all_far && far;
          values[i] = far ? square : -1.0f;
        }
        if (__any_sync(simt::every_lane, !all_far)) {
          const float* const of_rows = rows + (tile % 2 * kTileRows + 16 * step) * kPitch;
          square_directly<kVectors, kPitch>(values, points + 16 * warp * kPitch, of_rows);
        }
        unsigned planes[2][4];
#pragma unroll
        for (int r = 0; r < 4; ++r)
          split_pair(ptx::square_root(values[2 * r]), ptx::square_root(values[2 * r + 1]), planes, r);
        add_by_label<false>(sums, planes, one_hot + present * kFragments + step * kTiles * 32 + lane);
      }
      if ((tile + 1) % kFlushTiles == 0 || tile + 1 == count) {
        flush(sums, mine, is_first);
        is_first = false;
      }
    }
    const int next = present == 2 ? 0 : present + 1;
    if (tile + 1 < count) place_ahead(tile + 1, one_hot + next * kFragments);
    cleared = present;
    present = next;
  }
}

}  // namespace kmeans
